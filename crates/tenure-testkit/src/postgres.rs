//! PostgreSQL: one server, and PgBouncer before it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;

use crate::account::{Account, run};
use crate::process::{is_alive, poll, signal, wait_for};
use crate::{Port, READY_MAX, Server, ServerClock, Site, SqlConnection, certificates};

mod pair;
mod pgbouncer;

pub use pair::PostgresPair;
pub use pgbouncer::PgBouncer;

/// The account that the package makes, and the superuser of the servers here.
const USER: &str = "postgres";

/// Where Debian has the programs of each version. (A `postgres` on the search path may be anything.)
const VERSIONS: &str = "/usr/lib/postgresql";

/// Without a wish of the test: as fast as it goes. A killed *process* loses nothing without fsync, and no test
/// cuts the power.
const SETTINGS: [(&str, &str); 6] = [
    ("listen_addresses", "127.0.0.1"),
    ("max_connections", "200"),
    ("shared_buffers", "64MB"),
    ("fsync", "off"),
    // What a killed server leaves is a file in its directory, and not in `/dev/shm`.
    ("dynamic_shared_memory_type", "mmap"),
    ("autovacuum", "off"),
];

/// Returns the address of a server that all tests of this run share, and starts it if no test has yet. Tests that
/// break servers start their own.
pub fn shared() -> String {
    crate::shared("postgres", |site| {
        let server = PostgresServer::launch(site, Port::free(), &PostgresOptions::default());
        server.wait_until_ready();
        (server.url(), server)
    })
}

/// Returns the address of a [`PgBouncer`] that all tests of this run share, and starts it, before a server of its own, if
/// no test has yet.
pub fn shared_behind_pgbouncer() -> String {
    crate::shared("pgbouncer", |site| {
        let server = PostgresServer::launch(site, Port::free(), &PostgresOptions::default());
        server.wait_until_ready();
        let bouncer = PgBouncer::launch(site, Port::free(), server.port());
        bouncer.wait_until_ready();
        (bouncer.url(), (server, bouncer))
    })
}

/// How a [`PostgresServer`] is started.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    settings: Vec<(String, String)>,
    clock: bool,
    tls: bool,
    disk_megabytes: Option<u32>,
}

impl PostgresOptions {
    /// Sets a parameter of the server, such as `synchronous_commit` to `off`.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Keeps tables on a disk of their own that is only so large (the files of a fresh server need 25 MB of it). It is gone with
    /// the server's process. The tests must run as root.
    #[must_use]
    pub fn disk(mut self, megabytes: u32) -> Self {
        self.disk_megabytes = Some(megabytes);
        self
    }

    /// Accepts TLS, too, with a certificate for 127.0.0.1 and localhost of an authority of its own ([`PostgresServer::ca`]).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Gives the server a wall clock of its own, which a test moves: [`PostgresServer::clock`].
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }
}

/// A PostgreSQL server with the superuser `postgres`, no passwords, and the database `postgres`. It ends and its
/// files are removed when this value ends.
///
/// A server is a process that starts others, one for each connection. What is said here of *the server* is done
/// to all of them. To end one connection, ask `SELECT pg_terminate_backend(…)`.
#[derive(Debug)]
pub struct PostgresServer {
    server: Server,
    port: Port,
    clock: Option<ServerClock>,
}

crate::server::is_a_server!(PostgresServer);

impl PostgresServer {
    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(options: &PostgresOptions) -> PostgresServer {
        let server = PostgresServer::launch(&Site::new(), Port::free(), options);
        server.wait_until_ready();
        server
    }

    /// Starts a standby that follows this server, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_standby(&self, options: &PostgresOptions) -> PostgresServer {
        let copy = |account: Account, directory: &Path| copy_primary(self.port(), account, directory);
        let server = PostgresServer::launch_filled(&Site::new(), Port::free(), options, copy);
        server.wait_until_ready();
        server
    }

    /// Kills it if it runs, forgets its files, makes it a standby of the primary that answers at a port, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub(crate) fn follow(&self, primary: u16) {
        self.kill();
        let directory = self.server.directory();
        fs::remove_dir_all(directory.join("data")).expect("the files of the server");
        copy_primary(primary, Account::unprivileged(USER), directory);
        self.server.restart();
        self.wait_until_ready();
    }

    /// Makes a standby the primary, and returns when it takes writes.
    ///
    /// # Panics
    /// If it does not become one.
    pub fn promote(&self) {
        let promoted = self.connect().expect("it answers").run("SELECT pg_promote()");
        assert_eq!(promoted.first(), Some("t"), "{}", self.server.log());
    }

    /// Returns the certificate of the authority that its own is of.
    pub fn ca(&self) -> PathBuf {
        self.server.directory().join("ca.crt")
    }

    /// Starts one on a site, and does not wait for it.
    fn launch(site: &Arc<Site>, port: Port, options: &PostgresOptions) -> PostgresServer {
        let template = template();
        // A copy of a fresh server takes a tenth of the time that it takes to make one.
        let fill = |account: Account, directory: &Path| {
            run(account.command("cp").arg("-a").arg(template).arg(directory.join("data")));
        };
        PostgresServer::launch_filled(site, port, options, fill)
    }

    fn launch_filled(
        site: &Arc<Site>,
        port: Port,
        options: &PostgresOptions,
        fill: impl FnOnce(Account, &Path),
    ) -> PostgresServer {
        let (number, account) = (port.number(), Account::unprivileged(USER));
        let mut clock = None;
        let server = Server::start(site, &format!("postgres-{number}"), |directory| {
            account.give(directory);
            fill(account, directory);
            // A killed server leaves a piece of System V memory behind, so it is asked first.
            fs::write(directory.join("ends-by"), "QUIT\n").expect("a file of the server");
            let mut command = account.command(programs().join("postgres"));
            command.args(["-D", "data", "-p", &number.to_string()]).arg("-k").arg(directory);
            let own = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            for (name, value) in SETTINGS.into_iter().chain(own) {
                command.arg("-c").arg(format!("{name}={value}"));
            }
            if options.tls {
                certificates::make(directory);
                account.give(&directory.join("server.key"));
                let file = |name: &str| directory.join(name).display().to_string();
                command.args(["-c", "ssl=on", "-c", &format!("ssl_cert_file={}", file("server.crt"))]);
                command.args(["-c", &format!("ssl_key_file={}", file("server.key"))]);
            }
            if let Some(megabytes) = options.disk_megabytes {
                command = on_small_disk(&command, megabytes);
            }
            clock = options.clock.then(|| ServerClock::install(directory, &mut command));
            command
        });
        PostgresServer { server, port, clock }
    }

    /// Returns its address: `postgres://postgres@127.0.0.1:20000/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port())
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns its wall clock.
    ///
    /// # Panics
    /// If it was not started with one of its own.
    pub fn clock(&self) -> &ServerClock {
        self.clock.as_ref().unwrap_or_else(|| panic!("{} has the clock of this machine", self.server))
    }

    /// Connects with it.
    ///
    /// # Errors
    /// As the system or the server reports them.
    pub fn connect(&self) -> Result<SqlConnection, crate::SqlError> {
        SqlConnection::to_postgres(self.port(), USER, "postgres")
    }

    /// Kills it (SIGKILL), with all of its processes, and returns when they are gone.
    pub fn kill(&self) {
        if !is_alive(self.pid()) {
            return self.server.kill();
        }
        let processes = self.halt();
        self.server.kill();
        // One may have ended by itself; to ask for a process that is gone does no harm.
        processes.iter().filter(|pid| is_alive(**pid)).for_each(|pid| signal(*pid, Signal::KILL));
        wait_for("end of the server's processes", || {
            processes.iter().all(|pid| !is_alive(*pid)).then_some(())
        });
    }

    /// Ends it without waiting for clients (SIGINT), as an administrator may, and returns when it is gone.
    ///
    /// # Panics
    /// If it has been killed, or does not end.
    pub fn shut_down(&self) {
        self.end(Signal::INT);
    }

    /// Stops it (SIGSTOP), with all of its processes: it keeps its connections, and does nothing.
    ///
    /// # Panics
    /// If it has been killed.
    pub fn stop(&self) {
        let processes = self.halt();
        wait_for("stopped server", || {
            // One that ends meanwhile is not reaped by the first process, which is stopped.
            let stands_still = |pid: &u32| matches!(crate::state(*pid), Some('T' | 'Z') | None);
            processes.iter().all(stands_still).then_some(())
        });
    }

    /// Lets it continue after [`PostgresServer::stop`].
    ///
    /// # Panics
    /// If it has been killed.
    pub fn cont(&self) {
        self.children().into_iter().for_each(|pid| signal(pid, Signal::CONT));
        self.server.cont();
    }

    /// Kills it if it runs, starts it again on the same port with the same files, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.kill();
        self.server.restart();
        self.wait_until_ready();
    }

    fn wait_until_ready(&self) {
        self.server.wait_for("answer to SELECT", || self.connect().ok()?.ask("SELECT 1", &[]).ok());
    }

    /// Stops the first process, which then starts no others, and the others; returns those.
    fn halt(&self) -> Vec<u32> {
        self.server.stop();
        let children = self.children();
        children.iter().filter(|pid| is_alive(**pid)).for_each(|pid| signal(*pid, Signal::STOP));
        children
    }

    fn children(&self) -> Vec<u32> {
        let pid = self.pid();
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    fn end(&self, by: Signal) {
        signal(self.pid(), by);
        assert!(
            poll(READY_MAX, || (!self.server.runs()).then_some(())).is_some(),
            "{} does not end\n{}",
            self.server,
            self.server.log()
        );
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // It removes its shared memory itself if it can; a stopped one cannot.
        if self.server.runs() {
            signal(self.pid(), Signal::QUIT);
            poll(READY_MAX, || (!self.server.runs()).then_some(()));
        }
        self.kill();
    }
}

/// Fills a directory with a copy of the primary that answers at a port, as that of a standby that follows it there.
fn copy_primary(primary: u16, account: Account, directory: &Path) {
    let mut command = account.command(programs().join("pg_basebackup"));
    command.args([
        "-h",
        "127.0.0.1",
        "-p",
        &primary.to_string(),
        "-U",
        USER,
        "-c",
        "fast",
        "--no-sync",
        "-R",
        "-D",
    ]);
    run(command.arg(directory.join("data")).current_dir(directory));
}

/// The same command in a place of its own, where the tables lie in memory.
fn on_small_disk(command: &Command, megabytes: u32) -> Command {
    let script = format!(
        "set -e; cp -a data/base tables; mount -t tmpfs -o size={megabytes}m tmpfs data/base; cp -a tables/. data/base; \
         chown --reference=tables data/base; chmod 700 data/base; rm -r tables; exec \"$@\""
    );
    let mut whole = Command::new("unshare");
    whole
        .args(["--mount", "--", "sh", "-c", &script, "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    whole
}

/// The programs of the newest version.
fn programs() -> PathBuf {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let with_server =
        versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists());
    let number = |bin: &PathBuf| bin.parent()?.file_name()?.to_str()?.parse::<u32>().ok();
    with_server
        .max_by_key(number)
        .unwrap_or_else(|| panic!("no PostgreSQL in {VERSIONS}: `cargo xtask setup` installs it"))
}

/// The files of a fresh server, which are made once a run.
fn template() -> PathBuf {
    let path = crate::shared("postgres-template", |site| {
        let account = Account::unprivileged(USER);
        let data = site.path().join("data");
        make_directory(&data, account);
        let mut initdb = account.command(programs().join("initdb"));
        initdb.arg("-D").arg(&data).args([
            "-A",
            "trust",
            "-U",
            USER,
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ]);
        run(initdb.current_dir(site.path()));
        (data.display().to_string(), ())
    });
    path.into()
}

fn make_directory(path: &Path, account: Account) {
    fs::create_dir(path).expect("a new directory");
    account.give(path);
}
