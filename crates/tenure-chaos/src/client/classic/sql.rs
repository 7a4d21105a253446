//! The locks of SQL sessions, which last as long as the session.

use tenure_testkit::SqlConnection;

use super::Lock;

struct Session {
    connection: SqlConnection,
    take: fn(&str) -> String,
    let_go: fn(&str) -> String,
}

pub(super) fn connect(url: &str) -> Result<Box<dyn Lock>, String> {
    let (_, address) = url.split_once("127.0.0.1:").ok_or("a server on this machine")?;
    let port = address.split('/').next().and_then(|port| port.parse().ok()).ok_or("a port")?;
    let session = match url.starts_with("postgres") {
        true => Session {
            connection: SqlConnection::to_postgres(port, "postgres", "postgres")
                .map_err(|error| error.to_string())?,
            take: |name| format!("SELECT pg_try_advisory_lock(hashtext('{name}'))::int"),
            let_go: |name| format!("SELECT pg_advisory_unlock(hashtext('{name}'))::int"),
        },
        false => Session {
            connection: SqlConnection::to_mariadb(port, "root", "test", false)
                .map_err(|error| error.to_string())?,
            take: |name| format!("SELECT GET_LOCK('{name}', 0)"),
            let_go: |name| format!("SELECT RELEASE_LOCK('{name}')"),
        },
    };
    Ok(Box::new(session))
}

impl Session {
    fn ask(&mut self, statement: &str) -> Result<bool, String> {
        let answer = self.connection.ask(statement, &[]).map_err(|error| error.to_string())?;
        Ok(answer.first() == Some("1"))
    }
}

impl Lock for Session {
    fn take(&mut self, name: &str) -> Result<bool, String> {
        self.ask(&(self.take)(name))
    }

    fn let_go(&mut self, name: &str) -> Result<bool, String> {
        self.ask(&(self.let_go)(name))
    }
}
