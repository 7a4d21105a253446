//! etcd: one server, and a cluster of three.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use crate::{Port, Server, Site, certificates, wait_for};

mod cluster;

pub use cluster::EtcdCluster;

/// Where the certificates are, beside the servers' directories.
const TLS: &str = "tls";
/// The user whom etcd demands before it checks who asks.
const ROOT: &str = "root";
/// The password of that user.
const ROOT_PASSWORD: &str = "secret-of-root";
/// How long a call of `etcdctl` may take.
const CTL_TIMEOUT: &str = "--command-timeout=3s";

/// Returns the address of a server that all tests of this run share, and starts it if no test has yet. Tests that
/// break servers start their own.
pub fn shared() -> String {
    crate::shared("etcd", |site| {
        let server = EtcdServer::launch(site, Alone::new(), &EtcdOptions::default());
        server.wait_until_ready();
        (server.url(), server)
    })
}

/// Returns the address of a cluster that all tests of this run share, and starts it if no test has yet.
pub fn shared_cluster() -> String {
    crate::shared("etcd-cluster", |site| {
        let cluster = EtcdCluster::start_on(site, &EtcdOptions::default(), false);
        (cluster.url(), cluster)
    })
}

/// How an [`EtcdServer`] is started. Without more: a heartbeat each 100 ms, an election after 1 s without one, no
/// users, no TLS.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    heartbeat: Duration,
    election: Duration,
    flags: Vec<String>,
    login: Option<(String, String)>,
    tls: bool,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        EtcdOptions {
            heartbeat: Duration::from_millis(100),
            election: Duration::from_secs(1),
            flags: Vec::new(),
            login: None,
            tls: false,
        }
    }
}

impl EtcdOptions {
    /// Has followers stand for election after so long without a heartbeat; etcd demands five heartbeats.
    #[must_use]
    pub fn election(mut self, heartbeat: Duration, timeout: Duration) -> Self {
        (self.heartbeat, self.election) = (heartbeat, timeout);
        self
    }

    /// Adds a flag, such as `--quota-backend-bytes=1000000`.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Makes a user who may read and write every key, and enables authentication.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((user.into(), password.into()));
        self
    }

    /// Accepts TLS only from clients, with a certificate for 127.0.0.1 and localhost of an authority of its own
    /// ([`EtcdServer::authority`]).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }
}

/// An etcd server, alone or of an [`EtcdCluster`]. It is killed and its files are removed when this value ends.
#[derive(Debug)]
pub struct EtcdServer {
    server: Server,
    client_port: Port,
    options: EtcdOptions,
    // Reserved as long as the server lives.
    _peer_port: Port,
}

/// What a server is told about its cluster.
struct Place {
    name: String,
    peer_port: Port,
    /// How others find it: its own port or a proxy's.
    advertised_port: u16,
    /// All servers, as `--initial-cluster` has them.
    cluster: String,
}

/// The place of a server that has no peers.
struct Alone;

impl Alone {
    #[allow(clippy::new_ret_no_self, reason = "it is a place like the others")]
    fn new() -> Place {
        let peer_port = Port::free();
        let advertised_port = peer_port.number();
        let cluster = format!("alone=http://127.0.0.1:{advertised_port}");
        Place { name: "alone".to_owned(), peer_port, advertised_port, cluster }
    }
}

crate::server::is_a_server!(EtcdServer);

impl EtcdServer {
    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(options: &EtcdOptions) -> EtcdServer {
        let server = EtcdServer::launch(&Site::new(), Alone::new(), options);
        server.wait_until_ready();
        server.enable_login();
        server
    }

    /// Starts one on a site, and does not wait for it.
    fn launch(site: &Arc<Site>, place: Place, options: &EtcdOptions) -> EtcdServer {
        let client_port = Port::free();
        let number = client_port.number();
        let tls = site.path().join(TLS);
        if options.tls && !tls.exists() {
            fs::create_dir(&tls).expect("a new directory for certificates");
            certificates::make(&tls);
        }
        let server = Server::start(site, &format!("etcd-{number}"), |_| {
            let mut command = Command::new("etcd");
            let scheme = if options.tls { "https" } else { "http" };
            for name in ["listen-client-urls", "advertise-client-urls"] {
                command.arg(format!("--{name}={scheme}://127.0.0.1:{number}"));
            }
            command.arg(format!("--listen-peer-urls=http://127.0.0.1:{}", place.peer_port.number()));
            command.arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{}", place.advertised_port));
            command.arg(format!("--name={}", place.name)).arg(format!("--initial-cluster={}", place.cluster));
            command.args(["--data-dir=data", "--initial-cluster-state=new"]);
            // Clusters must not find one another, even if one got a port that another had before.
            command.arg(format!("--initial-cluster-token={}", site.path().display()));
            command.arg(format!("--heartbeat-interval={}", options.heartbeat.as_millis()));
            command.arg(format!("--election-timeout={}", options.election.as_millis()));
            if options.tls {
                command.arg(format!("--cert-file={}", tls.join("server.crt").display()));
                command.arg(format!("--key-file={}", tls.join("server.key").display()));
            }
            command.args(&options.flags).env_remove("ETCDCTL_API");
            command
        });
        EtcdServer { server, client_port, options: options.clone(), _peer_port: place.peer_port }
    }

    /// Returns its address with its user: `etcd://127.0.0.1:20000`, or `etcds://` with TLS.
    pub fn url(&self) -> String {
        url(&self.options, std::slice::from_ref(self))
    }

    /// Returns where it is, as etcd writes it: `http://127.0.0.1:20000`.
    pub fn endpoint(&self) -> String {
        let scheme = if self.options.tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// Returns its port for clients.
    pub fn port(&self) -> u16 {
        self.client_port.number()
    }

    /// Returns the certificate of its authority, a PEM file.
    ///
    /// # Panics
    /// If it has no TLS.
    pub fn authority(&self) -> PathBuf {
        assert!(self.options.tls, "{} has no TLS", self.server);
        authority(self.server.directory())
    }

    /// Returns what it counts: the sum of all metrics that begin so, such as `etcd_network_client_grpc_sent_bytes_total`.
    ///
    /// # Panics
    /// If it does not answer, or has TLS.
    pub fn metric(&self, name: &str) -> u64 {
        assert!(!self.options.tls, "{} shows its metrics with TLS only", self.server);
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).expect("the server");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let values =
            text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<f64>().expect("a number") as u64).sum()
    }

    /// Kills it if it runs, starts it again on the same ports with the same files, and waits until it answers: for
    /// one of a cluster, until the cluster has a majority.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.server.restart();
        self.wait_until_ready();
    }

    /// Calls `etcdctl` for this server, as the user whom etcd calls root if there are users, and returns what it
    /// wrote.
    ///
    /// # Errors
    /// What it wrote if it failed, or did not end within 3 s.
    pub fn try_ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let login = self.options.login.as_ref().map(|_| format!("{ROOT}:{ROOT_PASSWORD}"));
        self.ctl_as(login.as_deref(), arguments)
    }

    /// Calls `etcdctl` for this server, and returns what it wrote.
    ///
    /// # Panics
    /// If it fails.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        self.try_ctl(arguments).unwrap_or_else(|error| panic!("{}: {arguments:?}: {error}", self.server))
    }

    fn ctl_as(&self, login: Option<&str>, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(CTL_TIMEOUT).arg(format!("--endpoints={}", self.endpoint()));
        command.args(login.map(|login| format!("--user={login}")));
        if self.options.tls {
            command.arg(format!("--cacert={}", self.authority().display()));
        }
        let Output { status, stdout, stderr } = command.args(arguments).output().expect("etcdctl");
        let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if status.success() { Ok(stdout) } else { Err(format!("{stdout}{stderr}")) }
    }

    /// Returns its term if it takes itself for the leader.
    fn term_led(&self) -> Option<u64> {
        // Without a login: to check one takes a majority, which a server that is cut off does not have.
        let status = self.ctl_as(None, &["endpoint", "status"]).ok()?;
        let fields: Vec<&str> = status.trim().split(", ").collect();
        (*fields.get(4)? == "true").then(|| fields.get(6)?.parse().ok())?
    }

    /// Returns the id that it has in its cluster, as etcd writes it in hexadecimal digits.
    fn id(&self) -> String {
        let status = self.ctl_as(None, &["endpoint", "status"]);
        let status = status.unwrap_or_else(|error| panic!("{}: {error}", self.server));
        status.split(", ").nth(1).expect("an id").to_owned()
    }

    fn wait_until_ready(&self) {
        // With users and without them: each request is answered, if only with a refusal, when there is a leader.
        self.server.wait_for("answer to a read", || match self.ctl_as(None, &["get", "ready"]) {
            Err(error) if !error.contains("user name is empty") => None,
            _ => Some(()),
        });
    }

    /// Makes the users that the options ask for.
    fn enable_login(&self) {
        let Some((user, password)) = &self.options.login else { return };
        let call = |arguments: &[&str]| {
            let answer = self.ctl_as(None, arguments);
            answer.unwrap_or_else(|error| panic!("{}: {arguments:?}: {error}", self.server));
        };
        call(&["user", "add", &format!("{ROOT}:{ROOT_PASSWORD}")]);
        call(&["user", "grant-role", ROOT, "root"]);
        call(&["role", "add", "every-key"]);
        call(&["role", "grant-permission", "every-key", "--prefix=true", "readwrite", ""]);
        call(&["user", "add", &format!("{user}:{password}")]);
        call(&["user", "grant-role", user, "every-key"]);
        call(&["auth", "enable"]);
        wait_for("users", || self.try_ctl(&["get", "ready"]).ok());
    }
}

fn url(options: &EtcdOptions, servers: &[EtcdServer]) -> String {
    let scheme = if options.tls { "etcds" } else { "etcd" };
    let login = options.login.as_ref().map(|(user, password)| format!("{user}:{password}@"));
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("{scheme}://{}{}", login.unwrap_or_default(), hosts.join(","))
}

fn authority(directory: &Path) -> PathBuf {
    directory.with_file_name(TLS).join("ca.crt")
}
