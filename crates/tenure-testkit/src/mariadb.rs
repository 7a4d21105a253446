//! MariaDB: one server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::account::{Account, run, server_program};
use crate::{Port, Server, ServerClock, Site, SqlConnection, SqlError, certificates};

/// The account that the package makes.
const ACCOUNT: &str = "mysql";
/// The superuser of the servers here.
const USER: &str = "root";
/// A database that a fresh server has.
const DATABASE: &str = "test";

/// Small files: each server has a copy. The same for those who make them and those who use them.
const FILES: [&str; 2] = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=64M"];

/// Returns the address of a server that all tests of this run share, and starts it if no test has yet. Tests that
/// break servers start their own.
pub fn shared() -> String {
    crate::shared("mariadb", |site| {
        let server = MariaDbServer::launch(site, Port::free(), &MariaDbOptions::default());
        server.wait_until_ready();
        (server.url(), server)
    })
}

/// How a [`MariaDbServer`] is started.
#[derive(Clone, Debug, Default)]
pub struct MariaDbOptions {
    settings: Vec<(String, String)>,
    clock: bool,
    tls: bool,
}

impl MariaDbOptions {
    /// Sets a variable of the server, such as `innodb-flush-log-at-trx-commit` to `0`.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Accepts TLS, too, with a certificate for 127.0.0.1 and localhost of an authority of its own ([`MariaDbServer::ca`]).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Gives the server a wall clock of its own, which a test moves: [`MariaDbServer::clock`].
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }
}

/// A MariaDB server with the superuser `root`, no passwords, and the database `test`. It is killed and its files
/// are removed when this value ends.
#[derive(Debug)]
pub struct MariaDbServer {
    server: Server,
    port: Port,
    clock: Option<ServerClock>,
}

crate::server::is_a_server!(MariaDbServer);

impl MariaDbServer {
    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(options: &MariaDbOptions) -> MariaDbServer {
        let server = MariaDbServer::launch(&Site::new(), Port::free(), options);
        server.wait_until_ready();
        server
    }

    /// Starts one on a site, and does not wait for it.
    fn launch(site: &Arc<Site>, port: Port, options: &MariaDbOptions) -> MariaDbServer {
        let (number, account, template) = (port.number(), Account::unprivileged(ACCOUNT), template());
        let mut clock = None;
        let server = Server::start(site, &format!("mariadb-{number}"), |directory| {
            account.give(directory);
            // Making one takes seconds.
            run(account.command("cp").arg("-a").arg(template).arg(directory.join("data")));
            let temporary = temporary_files(&account, directory);
            let mut command = account.command(server_program("mariadbd"));
            command.args([
                "--no-defaults",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--skip-log-bin",
            ]);
            // It works in its data directory, so that every path is a whole one.
            command.arg(format!("--datadir={}", directory.join("data").display()));
            command.arg(temporary);
            command.arg(format!("--socket={}", directory.join("socket").display()));
            command.arg(format!("--pid-file={}", directory.join("mariadbd.pid").display()));
            command.arg(format!("--port={number}")).arg("--max-connections=300").args(FILES);
            for (name, value) in &options.settings {
                command.arg(format!("--{name}={value}"));
            }
            if options.tls {
                certificates::make(directory);
                account.give(&directory.join("server.key"));
                for (name, file) in [("ca", "ca.crt"), ("cert", "server.crt"), ("key", "server.key")] {
                    command.arg(format!("--ssl-{name}={}", directory.join(file).display()));
                }
            }
            clock = options.clock.then(|| ServerClock::install(directory, &mut command));
            command
        });
        MariaDbServer { server, port, clock }
    }

    /// Returns its address: `mysql://root@127.0.0.1:20000/test`.
    pub fn url(&self) -> String {
        format!("mysql://{USER}@127.0.0.1:{}/{DATABASE}", self.port())
    }

    /// Returns the certificate of the authority that its own is of.
    pub fn ca(&self) -> PathBuf {
        self.server.directory().join("ca.crt")
    }

    /// Returns its socket in the file system.
    pub fn socket(&self) -> PathBuf {
        self.server.directory().join("socket")
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

    /// Connects with it as clients do by default: a row that is set to what it was does not count as affected.
    ///
    /// # Errors
    /// As the system or the server reports them.
    pub fn connect(&self) -> Result<SqlConnection, SqlError> {
        SqlConnection::to_mariadb(self.port(), USER, DATABASE, false)
    }

    /// Kills it if it runs, starts it again on the same port with the same files, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.server.restart();
        self.wait_until_ready();
    }

    fn wait_until_ready(&self) {
        self.server.wait_for("answer to SELECT", || self.connect().ok()?.ask("SELECT 1", &[]).ok());
    }
}

/// Makes a directory for a server's temporary tables, and returns the setting that names it. A server that starts removes every
/// `#sql*` file of that directory: one that shared it with others would take their tables from under their statements.
fn temporary_files(account: &Account, directory: &Path) -> String {
    let temporary = directory.join("tmp");
    fs::create_dir(&temporary).expect("a new directory");
    account.give(&temporary);
    format!("--tmpdir={}", temporary.display())
}

/// The files of a fresh server, which are made once a run.
fn template() -> PathBuf {
    let path = crate::shared("mariadb-template", |site| {
        let account = Account::unprivileged(ACCOUNT);
        let data = site.path().join("data");
        fs::create_dir(&data).expect("a new directory");
        account.give(&data);
        let mut install: Command = account.command("mariadb-install-db");
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-name-resolve"]);
        install.arg(format!("--datadir={}", data.display())).args(FILES);
        install.arg(temporary_files(&account, site.path()));
        run(install.current_dir(site.path()));
        (data.display().to_string(), ())
    });
    path.into()
}
