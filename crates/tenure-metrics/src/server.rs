//! Serves the page on an address of its own, by a thread of its own.
//!
//! It is for whoever watches, so it must not be a way to harm what is watched: 8 connections at a time, each for one request and 5
//! seconds, and what is asked for is read from the header alone.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};

use tenure_core::Counts;

use crate::render::{Format, render};

/// The most connections at a time: a server or two that scrape, and somebody who looks.
const CONNECTIONS_MAX: usize = 8;
/// How long a connection may last.
const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// How many connections the system keeps that are not accepted yet, of as many as it allows. It forgets what is beyond: by TCP without
/// telling a client, which takes itself for connected, and by a file with an error. A crowd comes at once when an instance has ended.
const BACKLOG: i32 = 4096;

/// Where the page is served: `127.0.0.1:9184`, or `unix:/run/job.sock`.
///
/// # Examples
/// ```
/// let address: tenure_metrics::Address = "unix:/run/job.sock".parse()?;
/// assert_eq!(address.to_string(), "unix:/run/job.sock");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// By TCP, for everybody who reaches it: the page tells the names of scopes, and no secret.
    Tcp(SocketAddr),
    /// By a socket in the file system, for this user alone.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(_) => Err("`unix:` names no file: write unix:/run/job.sock".to_owned()),
            None => text
                .parse()
                .map(Address::Tcp)
                .map_err(|_| format!("{text:?} is no address: write 127.0.0.1:9184, or unix:/run/job.sock")),
        }
    }
}

impl Address {
    /// Begins to listen there, in a runtime of tokio. Returns the address, too: a port that was not chosen is the one that the system has. A
    /// socket in the file system is this user's alone from its first moment, and one that a killed process has left is replaced.
    ///
    /// # Errors
    /// What the system says: the address is in use, or not this machine's.
    pub fn listen(&self) -> io::Result<(Listener, Address)> {
        match self {
            Address::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                rustix::net::listen(&listener, BACKLOG)?;
                listener.set_nonblocking(true)?;
                let address = Address::Tcp(listener.local_addr()?);
                Ok((Listener::Tcp(TcpListener::from_std(listener)?), address))
            }
            Address::Unix(path) => {
                remove_leftover(path)?;
                let listener = UnixListener::from_std(bind_unix(path)?)?;
                Ok((Listener::Unix(listener), Address::Unix(path.clone())))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Serves `/metrics` until it is dropped.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # use tenure_core::{Settings, Tenure, memory::Store};
/// # let settings = Settings::new().counts(true);
/// # let tenure = Tenure::connect_with(Store::named("server-example").connector(), settings).await?;
/// use tenure_metrics::Server;
///
/// let server = Server::start(&"127.0.0.1:0".parse()?, move || vec![tenure.counts()])?;
/// println!("scrape {}", server.address());
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct Server {
    address: Address,
    stop: watch::Sender<()>,
}

/// A socket that others connect to.
///
/// No example: [`Address::listen`] makes one.
#[derive(Debug)]
pub enum Listener {
    /// By TCP.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

/// Makes the page in a format, if there is one.
type Source = Arc<dyn Fn(Format) -> Option<String> + Send + Sync>;

impl Server {
    /// Begins to serve what `source` returns when it is asked.
    ///
    /// # Errors
    /// What the system says: the address is in use or not this machine's, or there can be no more threads or files.
    pub fn start(
        address: &Address,
        source: impl Fn() -> Vec<Counts> + Send + Sync + 'static,
    ) -> io::Result<Server> {
        Server::start_with(address, move |format| Some(render(&source(), format)))
    }

    /// Begins to serve a page of one's own. `None`: there is nothing to show now, and the reader is told so by 503. While the page is
    /// made, other readers wait.
    ///
    /// # Errors
    /// As of [`Server::start`].
    pub fn start_with(
        address: &Address,
        source: impl Fn(Format) -> Option<String> + Send + Sync + 'static,
    ) -> io::Result<Server> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let (socket, address) = address.listen()?;
        drop(entered);
        let (stop, stopped) = watch::channel(());
        let source: Source = Arc::new(source);
        std::thread::Builder::new()
            .name("tenure-metrics".to_owned())
            .spawn(move || runtime.block_on(serve(socket, source, stopped)))?;
        Ok(Server { address, stop })
    }

    /// Returns where it is served. A port that was not chosen is the one that the system has.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(());
        if let Address::Unix(path) = &self.address {
            // Somebody may have removed it.
            std::fs::remove_file(path).ok();
        }
    }
}

/// Removes what a process left behind that was killed. A file of another sort refuses connections as well, and stays.
fn remove_leftover(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(is_refused) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Binds a socket that nobody but this user can connect to, at any moment: it gets its rights before its name.
fn bind_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

async fn serve(socket: Listener, source: Source, mut stopped: watch::Receiver<()>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            // Never closed.
            let place = places.clone().acquire_owned().await;
            let connection = match &socket {
                Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| Connection::Tcp(stream)),
                Listener::Unix(listener) => {
                    listener.accept().await.map(|(stream, _)| Connection::Unix(stream))
                }
            };
            (place, connection)
        };
        let (place, connection) = match select(pin!(stopped.changed()), pin!(accepted)).await {
            Either::Left(_) => return,
            Either::Right((accepted, _)) => accepted,
        };
        let Ok(connection) = connection else {
            // No more files, say: not at once again.
            tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.ok();
            continue;
        };
        let source = source.clone();
        tokio::spawn(async move {
            match connection {
                Connection::Tcp(stream) => answer(stream, source).await,
                Connection::Unix(stream) => answer(stream, source).await,
            }
            drop(place);
        });
    }
}

enum Connection {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

/// Answers one request. What goes wrong with a connection is its reader's.
async fn answer(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static, source: Source) {
    let service = service_fn(move |request: Request<Incoming>| {
        let source = source.clone();
        async move { respond(&request, &source) }
    });
    let served = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    tokio::time::timeout(CONNECTION_MAX, served).await.ok();
}

fn respond(request: &Request<Incoming>, source: &Source) -> hyper::http::Result<Response<Full<Bytes>>> {
    let text = |status, text: &'static str| {
        Response::builder().status(status).body(Full::new(Bytes::from_static(text.as_bytes())))
    };
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, "see /metrics\n");
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let allowed = Response::builder().status(StatusCode::METHOD_NOT_ALLOWED).header(ALLOW, "GET, HEAD");
        return allowed.body(Full::default());
    }
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let Some(page) = source(format) else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "there is nothing to show now\n");
    };
    Response::builder().header(CONTENT_TYPE, format.content_type()).body(Full::new(Bytes::from(page)))
}
