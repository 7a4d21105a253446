//! PgBouncer: many clients share few connections, and none of them has one for longer than a transaction.

use std::fs;
use std::sync::Arc;

use super::{PostgresServer, USER};
use crate::account::{Account, server_program};
use crate::{Port, Server, Site, SqlConnection, SqlError};

/// How many connections with the server all clients share.
const POOL: usize = 4;

/// A PgBouncer in transaction mode. It is killed and its files are removed when this value ends.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
    port: Port,
}

crate::server::is_a_server!(PgBouncer);

impl PgBouncer {
    /// Starts one before a server, and waits until that answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(before: &PostgresServer) -> PgBouncer {
        let bouncer = PgBouncer::launch(&Site::new(), Port::free(), before.port());
        bouncer.wait_until_ready();
        bouncer
    }

    pub(super) fn launch(site: &Arc<Site>, port: Port, before: u16) -> PgBouncer {
        let (number, account) = (port.number(), Account::unprivileged(USER));
        let server = Server::start(site, &format!("pgbouncer-{number}"), |directory| {
            account.give(directory);
            fs::write(directory.join("users"), format!("\"{USER}\" \"\"\n")).expect("a file of the server");
            // The last line: drivers set it at the start, and nothing here depends on it.
            let lines = format!(
                "[databases]\n\
                 * = host=127.0.0.1 port={before}\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\n\
                 listen_port = {number}\n\
                 unix_socket_dir =\n\
                 auth_type = trust\n\
                 auth_file = users\n\
                 pool_mode = transaction\n\
                 default_pool_size = {POOL}\n\
                 max_client_conn = 1000\n\
                 server_login_retry = 1\n\
                 ignore_startup_parameters = extra_float_digits\n"
            );
            fs::write(directory.join("pgbouncer.ini"), lines).expect("a file of the server");
            let mut command = account.command(server_program("pgbouncer"));
            command.arg("pgbouncer.ini");
            command
        });
        PgBouncer { server, port }
    }

    /// Returns its address: `postgres://postgres@127.0.0.1:20000/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port.number())
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Connects with the server through it.
    ///
    /// # Errors
    /// As the system, PgBouncer or the server reports them.
    pub fn connect(&self) -> Result<SqlConnection, SqlError> {
        SqlConnection::to_postgres(self.port(), USER, "postgres")
    }

    /// Kills it if it runs, starts it again on the same port, and waits until the server answers.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&self) {
        self.server.restart();
        self.wait_until_ready();
    }

    pub(super) fn wait_until_ready(&self) {
        self.server.wait_for("answer to SELECT", || self.connect().ok()?.ask("SELECT 1", &[]).ok());
    }
}
