//! How a connection begins: TCP or a socket, TLS, the login, and its settings.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tenure_core::engine::url::HostPort;
use tenure_core::error::{ErrorKind, plain};
use tenure_sql::{Dialect, Fault};
use tokio::net::{TcpStream, UnixStream};

use crate::client::auth::{Method, clear};
use crate::client::wire::{Reader, Stream, Wire, WireError, refusal};
use crate::config::{Config, Server};
use crate::dialect::MySqlDialect;
use crate::error::fault;

const WITH_DATABASE: u32 = 0x8;
const TLS: u32 = 0x800;
/// The protocol of this century, its passwords, the names of their methods, and several statements in one text.
const ALWAYS: u32 = 0x200 | 0x2000 | 0x8000 | 0x1_0000 | 0x2_0000 | 0x8_0000;
/// The longest packet that a server is asked to send. Servers ignore it, so [`Wire`] has limits of its own.
const PACKET_MAX: u32 = 1 << 30;
/// utf8mb4, of which only ASCII is ever sent.
const CHARSET: u8 = 45;
/// What a server says first, in its tenth version since ever.
const PROTOCOL: u8 = 10;

/// What the server says first.
struct Greeting {
    capabilities: u32,
    salt: Vec<u8>,
    method: String,
}

/// Connects, and logs in.
pub(crate) async fn dial(config: &Config) -> Result<Wire, Fault> {
    let (stream, host): (Box<dyn Stream>, _) = match &config.server {
        Server::Tcp(HostPort { host, port }) => {
            let stream = TcpStream::connect((host.as_str(), *port))
                .await
                .map_err(|error| unreachable(config, &error))?;
            // One text is one packet is one answer: there is nothing to wait for.
            stream.set_nodelay(true).map_err(|error| unreachable(config, &error))?;
            (Box::new(stream), Some(host.as_str()))
        }
        Server::Socket(path) => {
            let stream = UnixStream::connect(path).await.map_err(|error| unreachable(config, &error))?;
            (Box::new(stream), None)
        }
    };
    login(config, Wire::new(stream), host).await
}

/// Logs in on a new connection. `host`: to which it leads; `None` for a socket of this machine.
pub(crate) async fn login(config: &Config, mut wire: Wire, host: Option<&str>) -> Result<Wire, Fault> {
    let greeting =
        greeting(&wire.packet().await.map_err(|error| fault(&error))?).map_err(|error| fault(&error))?;
    let capabilities = ALWAYS | WITH_DATABASE;
    let mut is_private = host.is_none();
    let mut introduction = Vec::new();
    introduction.extend_from_slice(&capabilities.to_le_bytes());
    introduction.extend_from_slice(&PACKET_MAX.to_le_bytes());
    introduction.push(CHARSET);
    introduction.extend_from_slice(&[0; 23]);
    if let (true, Some(host)) = (config.is_tls, host) {
        if greeting.capabilities & TLS == 0 {
            return Err(Fault::Failed {
                kind: ErrorKind::Invalid,
                message: "the server has no TLS".to_owned(),
                hint: "give the server a certificate, or leave `tls` out of the URL",
            });
        }
        introduction[..4].copy_from_slice(&(capabilities | TLS).to_le_bytes());
        wire.send(&introduction).await.map_err(|error| fault(&error))?;
        wire = with_tls(wire, host, config.ca.as_deref()).await?;
        is_private = true;
    }
    let method = Method::named(&greeting.method).unwrap_or(Method::Native);
    let proof = method.answer(&config.password, &greeting.salt, is_private).unwrap_or_default();
    introduction.extend_from_slice(config.user.as_bytes());
    introduction.push(0);
    introduction.push(proof.len() as u8);
    introduction.extend_from_slice(&proof);
    introduction.extend_from_slice(config.database.as_bytes());
    introduction.push(0);
    let said = if Method::named(&greeting.method).is_some() {
        greeting.method.as_str()
    } else {
        "mysql_native_password"
    };
    introduction.extend_from_slice(said.as_bytes());
    introduction.push(0);
    wire.send(&introduction).await.map_err(|error| fault(&error))?;
    prove(&mut wire, config, method, is_private).await?;
    Ok(wire)
}

fn unreachable(config: &Config, error: &std::io::Error) -> Fault {
    Fault::unavailable(format!("cannot connect to {}: {}", config.server, plain(&error.to_string())))
}

fn greeting(packet: &[u8]) -> Result<Greeting, WireError> {
    let mut reader = Reader(packet);
    match reader.byte()? {
        PROTOCOL => {}
        0xff => return Err(refusal(packet)),
        _ => return Err(WireError::Strange("the server speaks another protocol")),
    }
    reader.text();
    reader.skip(4)?;
    let mut salt = reader.take(8)?.to_vec();
    reader.skip(1)?;
    let low = reader.short()?;
    reader.skip(3)?;
    let capabilities = u32::from(low) | u32::from(reader.short()?) << 16;
    let salt_length = usize::from(reader.byte()?);
    reader.skip(10)?;
    let rest = reader.take(salt_length.saturating_sub(8).max(13))?;
    // A zero ends it.
    salt.extend_from_slice(rest.strip_suffix(&[0]).unwrap_or(rest));
    let method = String::from_utf8_lossy(reader.text()).into_owned();
    Ok(Greeting { capabilities, salt, method })
}

/// Answers whatever the server asks before it lets us in.
async fn prove(wire: &mut Wire, config: &Config, mut method: Method, is_private: bool) -> Result<(), Fault> {
    let failed = |error: WireError| fault(&error);
    loop {
        let packet = wire.packet().await.map_err(failed)?;
        let mut reader = Reader(&packet);
        match (reader.byte().map_err(failed)?, packet.get(1)) {
            (0x00, _) => return Ok(()),
            (0xff, _) => return Err(fault(&refusal(&packet))),
            // The server found the password in its memory.
            (0x01, Some(0x03)) => {}
            // It did not, and wants the whole of it.
            (0x01, Some(0x04)) if method == Method::CachingSha2 && is_private => {
                wire.send(&clear(&config.password)).await.map_err(failed)?;
            }
            (0x01, Some(0x04)) => {
                return Err(refused(
                    "the server wants the password, and others could read it on the way",
                    "connect with `?tls=on`, or by `?socket=`",
                ));
            }
            (0xfe, Some(_)) => {
                let name = String::from_utf8_lossy(reader.text()).into_owned();
                let salt = reader.text();
                method = Method::named(&name).ok_or_else(|| {
                    refused(
                        &format!(
                            "the server asks for the password in a way that is not known here: {name:?}"
                        ),
                        "let the user have mysql_native_password or caching_sha2_password",
                    )
                })?;
                let answer = method.answer(&config.password, salt, is_private).ok_or_else(|| {
                    refused(
                        "the server wants the password, and others could read it on the way",
                        "connect with `?tls=on`",
                    )
                })?;
                wire.send(&answer).await.map_err(failed)?;
            }
            _ => return Err(fault(&WireError::Strange("the server asks for something unknown"))),
        }
    }
}

fn refused(message: &str, hint: &'static str) -> Fault {
    Fault::Failed { kind: ErrorKind::Unsupported, message: message.to_owned(), hint }
}

async fn with_tls(wire: Wire, host: &str, ca: Option<&Path>) -> Result<Wire, Fault> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| Fault::Failed {
        kind: ErrorKind::Invalid,
        message: format!("a certificate cannot be for {host:?}"),
        hint: "name the server as its certificate does",
    })?;
    let (stream, sequence) = wire.into_stream();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls(ca)?));
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| Fault::unavailable(format!("no private connection: {error}")))?;
    Ok(Wire::continued(Box::new(stream), sequence))
}

/// The server's certificate is checked against a file, or the Mozilla programme's roots.
fn tls(ca: Option<&Path>) -> Result<rustls::ClientConfig, Fault> {
    let mut roots = rustls::RootCertStore::empty();
    match ca {
        Some(path) => {
            use rustls::pki_types::CertificateDer;
            use rustls::pki_types::pem::PemObject;
            let found = CertificateDer::pem_file_iter(path).into_iter().flatten().flatten();
            let (added, _) = roots.add_parsable_certificates(found);
            if added == 0 {
                return Err(Fault::Failed {
                    kind: ErrorKind::Invalid,
                    message: format!("there is no certificate in {}", path.display()),
                    hint: "`ca` names a file with certificates in PEM",
                });
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("aws-lc-rs knows the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// What a session begins with. An administrator may have set any of these for all users, and each breaks something: an
/// UPDATE or DELETE is refused without a key in its condition (`sql_safe_updates`), a COMMIT begins another transaction or
/// ends the connection (`completion_type`), a join is refused or rows are left out (`max_join_size`, `sql_select_limit`), long
/// names are in no order (`max_sort_length`), `IS NULL` finds the row that was inserted last (`sql_auto_is_null`), a key is not
/// looked up (`unique_checks`). `DEFAULT` would be the administrator's value again. Strict mode: a value that does not fit
/// is an error, never cut. `/*M!` is for MariaDB alone. How far transactions see each other is set by a statement of its own: the two
/// servers call the variable differently.
const SETTINGS: &str = "autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = 1, \
    lock_wait_timeout = 2, wait_timeout = 30, sql_safe_updates = 0, completion_type = 0, sql_big_selects = 1, \
    sql_select_limit = 18446744073709551615, max_sort_length = 1024, sql_auto_is_null = 0, unique_checks = 1 \
    /*M!100300 , idle_transaction_timeout = 2, in_predicate_conversion_threshold = 0 */";

/// Sets how this connection behaves, and returns the moment of the server's start in microseconds, its version, and
/// the longest text that it takes.
pub(crate) async fn configure(wire: &mut Wire) -> Result<(i64, String, usize), Fault> {
    wire.is_known();
    let script = format!(
        "SET SESSION {SETTINGS};SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;\
         SELECT {}, VERSION(), @@max_allowed_packet;SHOW GLOBAL STATUS LIKE 'Uptime'",
        MySqlDialect::CLOCK
    );
    let answers = wire.run(&script).await.map_err(|error| fault(&error))?;
    let column = |answer: usize, column: usize| {
        answers.get(answer).and_then(|answer| answer.rows.first()?.get(column)?.as_deref())
    };
    let number = |answer, at| column(answer, at).and_then(|text| text.parse::<i64>().ok());
    let (Some(now), Some(version), Some(text_max), Some(uptime)) =
        (number(2, 0), column(2, 1), number(2, 2), number(3, 1))
    else {
        return Err(Fault::internal("the server does not say what it is"));
    };
    let text_max = usize::try_from(text_max).unwrap_or(usize::MAX);
    Ok((now - uptime * 1_000_000, version.to_owned(), text_max))
}
