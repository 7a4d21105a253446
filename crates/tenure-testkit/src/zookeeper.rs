//! ZooKeeper: one server, and an ensemble of three.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use crate::{Port, Server, Site, certificates};

mod ensemble;

pub use ensemble::ZooKeeperEnsemble;

/// Where Debian has the server's classes, and what prints its log. The first names the others that it needs, but not
/// those that it needs for TLS.
const CLASSES: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar:\
    /usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar";
/// Small and soon there: a server of a test lives for seconds, in which to compile what runs seldom is not worth it.
const JAVA: [&str; 4] =
    ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CompileThresholdScaling=3"];
/// What only Java is told.
const PROPERTIES: [&str; 5] = [
    // A killed *process* loses nothing without fsync, and no test cuts the power.
    "-Dzookeeper.forceSync=no",
    // How often empty containers are removed.
    "-Dznode.container.checkIntervalMs=1000",
    // How seldom, at last, one that finds no leader asks again; else a minute.
    "-Dzookeeper.fastleader.maxNotificationInterval=1000",
    // When what is in the log was.
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
];
/// How long a server may take to answer a word.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Returns the address of a server that all tests of this run share, and starts it if no test has yet. Tests that
/// break servers start their own.
pub fn shared() -> String {
    crate::shared("zookeeper", |site| {
        let server = ZooKeeperServer::launch(site, &ZooKeeperOptions::default(), None);
        server.wait_until_ready();
        (server.url(), server)
    })
}

/// Returns the address of an ensemble that all tests of this run share, and starts it if no test has yet.
pub fn shared_ensemble() -> String {
    crate::shared("zookeeper-ensemble", |site| {
        let ensemble = ZooKeeperEnsemble::start_on(site, &ZooKeeperOptions::default(), false);
        (ensemble.url(), ensemble)
    })
}

/// How a [`ZooKeeperServer`] is started. Without more: ticks of 200 ms, timeouts of clients from 400 ms to 60 s, empty
/// containers are removed every second, no TLS, no users.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    tick: Duration,
    lines: Vec<String>,
    properties: Vec<String>,
    login: Option<(String, String)>,
    tls: bool,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        ZooKeeperOptions {
            tick: Duration::from_millis(200),
            lines: Vec::new(),
            properties: Vec::new(),
            login: None,
            tls: false,
        }
    }
}

impl ZooKeeperOptions {
    /// Sets the length of a tick, in which the others count.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Adds a line of configuration, such as `maxSessionTimeout=10000`.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Sets a property that only Java knows, such as `zookeeper.digest.enabled` to `false`.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push(format!("-D{name}={value}"));
        self
    }

    /// Makes a user who may say who it is by SASL (DIGEST-MD5). Nobody must: add the line
    /// `sessionRequireClientSASLAuth=true` for that. (The scheme `digest` of access lists needs no option.)
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((user.into(), password.into()));
        self
    }

    /// Accepts TLS from clients on a port of its own, with a certificate for 127.0.0.1 and localhost of an authority of its own
    /// ([`ZooKeeperServer::authority`]).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }
}

/// A ZooKeeper server, alone or of a [`ZooKeeperEnsemble`]. It is killed and its files are removed when this value
/// ends.
#[derive(Debug)]
pub struct ZooKeeperServer {
    server: Server,
    port: Port,
    secure_port: Port,
    options: ZooKeeperOptions,
}

/// What a server is told about its ensemble.
struct Place {
    /// Its number, from 1 on.
    number: usize,
    /// The lines of configuration that name the servers as this one reaches them.
    lines: String,
}

crate::server::is_a_server!(ZooKeeperServer);

impl ZooKeeperServer {
    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(options: &ZooKeeperOptions) -> ZooKeeperServer {
        let server = ZooKeeperServer::launch(&Site::new(), options, None);
        server.wait_until_ready();
        server
    }

    /// Starts one on a site, and does not wait for it.
    fn launch(site: &Arc<Site>, options: &ZooKeeperOptions, place: Option<Place>) -> ZooKeeperServer {
        let (port, secure_port) = (Port::free(), Port::free());
        let server = Server::start(site, &format!("zookeeper-{}", port.number()), |directory| {
            let mut lines = configuration(port.number(), options);
            fs::create_dir(directory.join("data")).expect("a new directory");
            if options.tls {
                lines += &secure(directory, secure_port.number());
            }
            if let Some(Place { number, lines: servers }) = place {
                fs::write(directory.join("data/myid"), number.to_string()).expect("a file for its number");
                lines += &servers;
            }
            fs::write(directory.join("zoo.cfg"), lines).expect("a file of configuration");
            let mut command = java();
            command.args(&options.properties);
            if let Some(login) = &options.login {
                fs::write(directory.join("jaas.conf"), logins(login)).expect("a file of logins");
                command.arg("-Djava.security.auth.login.config=jaas.conf");
            }
            command.args(["org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"]);
            command
        });
        ZooKeeperServer { server, port, secure_port, options: options.clone() }
    }

    /// Returns its address: `zookeeper://127.0.0.1:20000`, or `zookeepers://` with TLS.
    pub fn url(&self) -> String {
        url(&self.options, std::slice::from_ref(self))
    }

    /// Returns its port for clients without TLS.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns its port for clients with TLS.
    ///
    /// # Panics
    /// If it has no TLS.
    pub fn secure_port(&self) -> u16 {
        assert!(self.options.tls, "{} has no TLS", self.server);
        self.secure_port.number()
    }

    /// Returns the certificate of its authority, a PEM file.
    ///
    /// # Panics
    /// If it has no TLS.
    pub fn authority(&self) -> PathBuf {
        assert!(self.options.tls, "{} has no TLS", self.server);
        self.server.directory().join("ca.crt")
    }

    /// Kills it if it runs, starts it again on the same ports with the same files, and waits until it serves: not for
    /// one of an ensemble, see [`ZooKeeperEnsemble::restart`].
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.server.restart();
        self.wait_until_ready();
    }

    /// Changes its configuration as an operator does, by a line such as `maxSessionTimeout=2000`, and restarts it.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_with(&self, line: &str) {
        let path = self.server.directory().join("zoo.cfg");
        let lines = fs::read_to_string(&path).expect("its configuration");
        let name = line.split_once('=').expect("a name and a value").0;
        let kept = lines.lines().filter(|kept| !kept.starts_with(&format!("{name}=")));
        let lines: String = kept.chain([line]).map(|line| format!("{line}\n")).collect();
        fs::write(&path, lines).expect("a file of configuration");
        self.restart();
    }

    /// Asks it one of its words of four letters, such as `mntr`, on a connection of its own.
    ///
    /// # Errors
    /// As the system reports them, and after 2 s.
    pub fn word(&self, word: &str) -> std::io::Result<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port()));
        let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        drop(stream.shutdown(Shutdown::Both));
        Ok(answer)
    }

    /// Returns what it is now: `standalone`, `leader` or `follower`; `None` while it does not serve.
    pub fn mode(&self) -> Option<String> {
        let answer = self.word("srvr").ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// Runs one command of ZooKeeper's own shell, such as `["create", "/a", "b"]`, and returns what it wrote. A login
    /// of the options is used. It takes a second.
    ///
    /// # Errors
    /// What it wrote, if it failed.
    pub fn shell(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = java();
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
        if self.options.login.is_some() {
            let logins = self.server.directory().join("jaas.conf");
            command.arg(format!("-Djava.security.auth.login.config={}", logins.display()));
        }
        command.args(["org.apache.zookeeper.ZooKeeperMain", "-waitforconnection", "-timeout", "10000"]);
        command.arg("-server").arg(format!("127.0.0.1:{}", self.port())).args(arguments);
        let Output { status, stdout, stderr } = command.output().expect("java");
        let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if status.success() { Ok(stdout) } else { Err(format!("{stdout}{stderr}")) }
    }

    fn wait_until_ready(&self) {
        self.server.wait_for("answer to srvr", || self.mode());
    }
}

/// A call of Java for which the class is still to be named.
fn java() -> Command {
    let mut command = Command::new("java");
    command.args(JAVA).args(PROPERTIES).args(["-cp", CLASSES]);
    command
}

/// The lines that every server has.
fn configuration(port: u16, options: &ZooKeeperOptions) -> String {
    let mut lines = vec![
        format!("tickTime={}", options.tick.as_millis()),
        // In ticks: how long a follower may take to join, and to answer. The first is also how long one waits in vain
        // who takes itself for the leader after an election that others saw otherwise.
        "initLimit=12\nsyncLimit=10".to_owned(),
        format!("dataDir=data\nclientPort={port}\nclientPortAddress=127.0.0.1"),
        "admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0".to_owned(),
        "minSessionTimeout=400\nmaxSessionTimeout=60000".to_owned(),
    ];
    if options.login.is_some() {
        lines.push("authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider".to_owned());
    }
    lines.extend(options.lines.iter().cloned());
    lines.join("\n") + "\n"
}

/// Makes certificates, and returns the lines for a port with TLS.
fn secure(directory: &Path, port: u16) -> String {
    certificates::make(directory);
    let read = |name| fs::read_to_string(directory.join(name)).expect("a certificate");
    fs::write(directory.join("keys.pem"), read("server.key") + &read("server.crt")).expect("a file of keys");
    fs::copy(directory.join("ca.crt"), directory.join("trusted.pem")).expect("a certificate");
    format!(
        "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location=keys.pem\nssl.trustStore.location=trusted.pem\nssl.clientAuth=none\n"
    )
}

/// What Java must be told: which users may log in, and as which one the shell does.
fn logins((user, password): &(String, String)) -> String {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule required";
    format!(
        "Server {{ {module} user_{user}=\"{password}\"; }};\n\
         Client {{ {module} username=\"{user}\" password=\"{password}\"; }};\n"
    )
}

fn url(options: &ZooKeeperOptions, servers: &[ZooKeeperServer]) -> String {
    let scheme = if options.tls { "zookeepers" } else { "zookeeper" };
    let port = |server: &ZooKeeperServer| if options.tls { server.secure_port() } else { server.port() };
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", port(server))).collect();
    format!("{scheme}://{}", hosts.join(","))
}
