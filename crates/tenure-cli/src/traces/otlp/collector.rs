//! The way to a collector: one HTTP request for each batch of spans, on a connection of its own.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How long a collector may take, if `OTEL_EXPORTER_OTLP_TIMEOUT` does not say.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How much of an answer is read.
const ANSWER_MAX: usize = 64 * 1024;

/// Sends requests from the thread that collects spans, which has no runtime.
#[derive(Clone)]
pub(super) struct Collector(Arc<State>);

struct State {
    runtime: Runtime,
    tls: TlsConnector,
    timeout: Duration,
    last_error: Mutex<Option<String>>,
}

impl Collector {
    pub(super) fn new() -> io::Result<Collector> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        // Named, since another crate of the program may bring a second one along.
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().map_err(io::Error::other)?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let named = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let named = named.into_iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        let timeout = named.map_or(TIMEOUT, Duration::from_millis);
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Collector(Arc::new(State { runtime, tls, timeout, last_error: Mutex::default() })))
    }

    /// Returns why the last batch was not taken, if it was not.
    pub(super) fn last_error(&self) -> Option<String> {
        self.0.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let uri = request.uri().clone();
        let host = uri.host().ok_or("the URL of the collector has no host")?;
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
        if is_tls {
            let name = ServerName::try_from(host.to_owned())?;
            exchange(self.0.tls.connect(name, stream).await?, request, &uri).await
        } else {
            exchange(stream, request, &uri).await
        }
    }
}

/// Returns the host and the port of a URL, without a user and a password.
fn host_of(uri: &Uri) -> &str {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// Sends one request, and reads its answer.
async fn exchange(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    request: Request<Bytes>,
    uri: &Uri,
) -> Result<Response<Bytes>, HttpError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    parts.headers.insert(hyper::header::HOST, host_of(uri).parse()?);
    parts.uri = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await?;
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, ANSWER_MAX).collect().await?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(parts, body))
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The caller blocks its thread on this future, and has no runtime to drive a socket.
        let State { runtime, timeout, last_error, .. } = &*self.0;
        let answer = runtime.block_on(async { tokio::time::timeout(*timeout, self.send(request)).await });
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {timeout:?}").into()));
        let error = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answers {}", answer.status())),
            Err(error) => Some(format!("the collector cannot be reached: {error}")),
        };
        *last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        answer
    }
}
