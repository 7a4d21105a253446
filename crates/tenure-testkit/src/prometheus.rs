//! Prometheus: a server that scrapes, and `promtool`.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{Port, Server, Site};

/// How long an answer may take on a machine that may be busy.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A server of Prometheus. It is killed and its files are removed when this value ends.
#[derive(Debug)]
pub struct PrometheusServer {
    server: Server,
    port: Port,
}

crate::server::is_a_server!(PrometheusServer);

impl PrometheusServer {
    /// Starts one that scrapes `targets` (ports of 127.0.0.1) and evaluates the rules of files as often, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(interval: Duration, targets: &[u16], rules: &[PathBuf]) -> PrometheusServer {
        let port = Port::free();
        let server = Server::start(&Site::new(), &format!("prometheus-{}", port.number()), |directory| {
            let configuration = configuration(interval, targets, rules);
            fs::write(directory.join("prometheus.yml"), configuration).expect("a file of configuration");
            let mut command = Command::new("prometheus");
            command.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"]);
            command.arg(format!("--web.listen-address=127.0.0.1:{}", port.number()));
            command
        });
        let prometheus = PrometheusServer { server, port };
        prometheus.server.wait_for("readiness", || {
            let (status, _) = prometheus.get("/-/ready")?;
            (status == 200).then_some(())
        });
        prometheus
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Asks by an expression, and returns the answer as JSON; `None` while it does not answer.
    ///
    /// # Panics
    /// If it refuses the expression.
    pub fn query(&self, expression: &str) -> Option<String> {
        let (status, body) = self.get(&format!("/api/v1/query?query={}", in_url(expression)))?;
        assert_eq!(status, 200, "{expression}: {body}");
        Some(body)
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).ok()?;
        stream.set_read_timeout(Some(ANSWER_MAX)).ok()?;
        // HTTP/1.0, so that the body is not sent in chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }
}

/// Returns a call of `promtool` in a directory. It is of the package `prometheus`, which `cargo xtask setup` installs.
pub fn promtool(directory: &Path) -> Command {
    let mut command = Command::new("promtool");
    command.current_dir(directory).stdin(Stdio::null());
    command
}

fn configuration(interval: Duration, targets: &[u16], rules: &[PathBuf]) -> String {
    let interval = format!("{}ms", interval.as_millis());
    let targets: Vec<String> = targets.iter().map(|port| format!("'127.0.0.1:{port}'")).collect();
    let rules: Vec<String> = rules.iter().map(|path| format!("'{}'", path.display())).collect();
    format!(
        "global: {{scrape_interval: {interval}, scrape_timeout: {interval}, evaluation_interval: {interval}}}\n\
         rule_files: [{}]\nscrape_configs: [{{job_name: tenure, static_configs: [{{targets: [{}]}}]}}]\n",
        rules.join(", "),
        targets.join(", ")
    )
}

/// A text as a part of a URL.
fn in_url(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
