//! Making one connection.

use std::path::Path;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    PushInfo, RedisConnectionInfo, TlsCertificates, Value,
};
use tenure_core::engine::Incarnation;
use tenure_core::engine::url::Login;

use crate::error::Fault;
use crate::net::address::Address;

/// The name by which `CLIENT LIST` shows a connection.
const CLIENT_NAME: &str = "tenure";

/// How to connect with a server, wherever it is.
#[derive(Clone, Debug)]
pub struct Dialer {
    login: Option<Login>,
    db: u16,
    tls: Option<Tls>,
}

/// Which certificates to trust.
#[derive(Clone, Debug)]
struct Tls {
    /// Root certificates (PEM). `None`: those of the Mozilla programme.
    roots: Option<Vec<u8>>,
}

/// What a server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) incarnation: Incarnation,
    /// `master`, `slave`; a Sentinel says `sentinel`.
    pub(crate) role: String,
    pub(crate) is_loading: bool,
}

impl Dialer {
    /// Reads the file with the root certificates, if one is named.
    pub fn new(login: &Option<Login>, db: u16, is_tls: bool, ca: Option<&Path>) -> Result<Dialer, Fault> {
        let tls = match (is_tls, ca) {
            (false, _) => None,
            (true, None) => Some(Tls { roots: None }),
            (true, Some(path)) => {
                let roots = std::fs::read(path).map_err(|error| Fault::Setup {
                    why: format!("cannot read the root certificates in {}: {error}", path.display()),
                    hint: "`ca` names a file with certificates in the PEM format",
                })?;
                Some(Tls { roots: Some(roots) })
            }
        };
        if tls.is_some() {
            use_some_cryptography();
        }
        Ok(Dialer { login: login.clone(), db, tls })
    }

    /// As this one, for the servers that stand beside the data: another login, no database.
    pub(crate) fn for_sentinels(&self, login: &Option<Login>) -> Dialer {
        Dialer { login: login.clone(), db: 0, tls: self.tls.clone() }
    }

    /// Connects. `on_push` is called on the connection's own task for whatever comes unasked, *before* any answer
    /// that comes after it is delivered.
    pub(crate) async fn dial(
        &self,
        address: &Address,
        on_push: impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, Fault> {
        let name = address.to_string();
        // Both timeouts are ours: redis-rs's do not cover everything, and 500 ms is a short answer timeout.
        let config = AsyncConnectionConfig::new()
            .set_push_sender(on_push)
            .set_connection_timeout(None)
            .set_response_timeout(None);
        self.client(address)?
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| Fault::of_connecting(&error, &name))
    }

    fn client(&self, address: &Address) -> Result<Client, Fault> {
        let wrong = |error: redis::RedisError| Fault::Setup {
            why: format!("cannot use {address}: {error}").to_lowercase(),
            hint: "`ca` names a file with certificates in the PEM format",
        };
        let (info, roots) = match (address, &self.tls) {
            (Address::Unix(path), _) => (self.info(ConnectionAddr::Unix(path.clone())), None),
            (Address::Tcp(host, port), None) => (self.info(ConnectionAddr::Tcp(host.clone(), *port)), None),
            (Address::Tcp(host, port), Some(tls)) => {
                let address = ConnectionAddr::TcpTls {
                    host: host.clone(),
                    port: *port,
                    insecure: false,
                    tls_params: None,
                };
                (self.info(address), tls.roots.clone())
            }
        };
        let info = info.map_err(wrong)?;
        match roots {
            None => Client::open(info).map_err(wrong),
            Some(roots) => {
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(roots) };
                Client::build_with_tls(info, certificates).map_err(wrong)
            }
        }
    }

    fn info(&self, address: ConnectionAddr) -> redis::RedisResult<ConnectionInfo> {
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name()
            .set_db(self.db.into());
        if let Some(Login { user, password }) = &self.login {
            settings = settings.set_password(password);
            if !user.is_empty() {
                settings = settings.set_username(user);
            }
        }
        Ok(address
            .into_connection_info()?
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(settings))
    }
}

/// Asks a server for its identity, and names the client to it.
pub(crate) async fn identify(
    connection: &mut MultiplexedConnection,
    address: &Address,
) -> Result<Identity, Fault> {
    let name = address.to_string();
    let mut pipeline = redis::pipe();
    pipeline.cmd("INFO").arg("server").cmd("INFO").arg("replication").cmd("INFO").arg("persistence");
    pipeline.cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME);
    let answers = connection
        .send_packed_commands(&pipeline, 0, 4)
        .await
        .map_err(|error| Fault::of_command(&error, &name))?;
    let mut text = String::new();
    // The answer to SETNAME does not matter: a user may lack the permission, and the name is for people.
    for answer in answers.into_iter().take(3) {
        text.push_str(&text_of(answer, &name)?);
        text.push('\n');
    }
    let field = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or_default().trim()
    };
    // Valkey, which began as Redis 7.2, says so too.
    let version = field("redis_version");
    if version.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u32| major < 7) {
        let why = format!("{name} runs Redis {version}");
        return Err(Fault::Setup { why, hint: "the engine needs Redis 7.0 or newer" });
    }
    // A process is another after a restart (`run_id`); a replica that is promoted begins another history
    // (`master_replid`), and so does a master that was a replica in between.
    Ok(Identity {
        incarnation: incarnation(field("run_id"), field("master_replid")),
        role: field("role").to_owned(),
        is_loading: field("loading") == "1",
    })
}

/// Names one life of a server's memory. Other clients must come to the same number, other versions of this one
/// too: wakes carry it. So this is FNV-1a, written out, and not the hash of some standard library.
fn incarnation(run_id: &str, replication_id: &str) -> Incarnation {
    let bytes = run_id.bytes().chain([b' ']).chain(replication_id.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Incarnation(hash)
}

/// The text in an answer, or the error in it.
pub(crate) fn text_of(answer: Value, server: &str) -> Result<String, Fault> {
    match answer {
        Value::ServerError(error) => Err(Fault::server(server, error.code(), error.details())),
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text),
        Value::Okay => Ok("OK".to_owned()),
        other => Err(Fault::Cut { server: server.to_owned(), why: format!("unexpected answer {other:?}") }),
    }
}

/// rustls chooses its cryptography by itself only if the whole program has compiled in exactly one, and panics
/// otherwise. redis-rs offers no way to name one, so this sets the default of the process, if it has none.
fn use_some_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error says that other code was quicker, and then there is one.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_is_the_same_number_for_all_versions() {
        // Never change this: clients of two versions would not believe each other's wakes.
        assert_eq!(incarnation("a", "b"), Incarnation(0xe63f_9919_0483_3892));
        assert_ne!(incarnation("ab", ""), incarnation("a", "b"));
        assert_ne!(incarnation("a", "b"), incarnation("b", "a"));
    }
}
