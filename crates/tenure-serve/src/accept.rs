//! The accept loop: our own, since the deadlines of handshakes and heads have no place in `axum::serve`.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tenure_metrics::Listener;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::access::Peer;
use crate::drain::Stage;
use crate::front::Front;
use crate::health::Part;
use crate::limits::{
    HANDSHAKE_MAX, HEAD_BYTES_MAX, HEADERS_MAX, IDLE_MAX, STALL_MAX, STREAMS_OF_CONNECTION_MAX, TURN,
    UNREAD_BYTES, WINDOW_BYTES,
};
use crate::pace::{Pace, Paced, Socket};
use crate::pause::pause;
use crate::places::Places;
use crate::tls::Acceptor;

/// How long it rests after an error of the system: no more files, say.
const REST: Duration = Duration::from_millis(100);

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum Accepted {
    Tcp(TcpStream, IpAddr),
    Unix(tokio::net::UnixStream),
}

/// Accepts until the server leaves.
pub(crate) async fn serve(listener: Listener, front: Arc<Front>, tls: Option<Acceptor>, places: Places) {
    loop {
        front.app.health.turned(Part::AcceptLoop);
        let next = async {
            let place = places.take().await;
            (place, accept(&listener).await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = front.app.drain.reached(Stage::Leaving) => return,
            next = next => next,
            () = pause(TURN) => continue,
        };
        match (place, accepted) {
            (Some(place), Ok(accepted)) => {
                tokio::spawn(begin(accepted, front.clone(), tls.clone(), place));
            }
            _ => pause(REST).await,
        }
    }
}

async fn accept(listener: &Listener) -> std::io::Result<Accepted> {
    match listener {
        Listener::Tcp(listener) => listener
            .accept()
            .await
            .map(|(stream, address)| Accepted::Tcp(stream, address.ip().to_canonical())),
        Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
    }
}

async fn begin(accepted: Accepted, front: Arc<Front>, tls: Option<Acceptor>, place: OwnedSemaphorePermit) {
    let open = front.app.counting.connected();
    match accepted {
        Accepted::Unix(stream) => talk(stream, front, Peer::default()).await,
        Accepted::Tcp(stream, address) => {
            // An answer is one small write. It fails on a connection that is gone already.
            stream.set_nodelay(true).ok();
            // Without it a reader that reads nothing is noticed later.
            rustix::net::sockopt::set_socket_send_buffer_size(&stream, UNREAD_BYTES).ok();
            let peer = Peer { address: Some(address), ..Peer::default() };
            match tls {
                None => talk(stream, front, peer).await,
                // Four times as large: who waits without it does not pay for that.
                Some(tls) => Box::pin(talk_by_tls(tls, stream, front, peer)).await,
            }
        }
    }
    drop((open, place));
}

async fn talk_by_tls(tls: Acceptor, stream: TcpStream, front: Arc<Front>, peer: Peer) {
    let shaken = tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await;
    if shaken.is_err() {
        front.app.counting.refused("slow");
    }
    if let Ok(Ok((stream, names))) = shaken {
        talk(stream, front, Peer { names, is_tls: true, ..peer }).await;
    }
}

/// Serves one connection, of HTTP/1.1 or of HTTP/2, as its first bytes say. What goes wrong with it is its client's.
async fn talk(
    stream: impl AsyncRead + AsyncWrite + Socket + Unpin + Send + 'static,
    front: Arc<Front>,
    peer: Peer,
) {
    let pace = peer.pace.clone();
    let mut paced = Paced::new(stream, pace.clone());
    let is_http_2 = tokio::select! {
        biased;
        is_http_2 = paced.begins_with(PREFACE) => is_http_2,
        () = front.app.drain.reached(Stage::Leaving) => return,
    };
    let (of_service, served_by) = (pace.clone(), front.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let open = of_service.begin(request.version() == Version::HTTP_2);
        let (front, peer, pace) = (served_by.clone(), peer.clone(), of_service.clone());
        async move {
            let response = front.respond(request, &peer).await;
            Ok::<_, Infallible>(pace.answered(open, response))
        }
    });
    match is_http_2 {
        Ok(false) => follow(http_1().serve_connection(TokioIo::new(paced), service), &pace, &front).await,
        // Rare, and larger.
        Ok(true) => {
            Box::pin(follow(http_2().serve_connection(TokioIo::new(paced), service), &pace, &front)).await;
        }
        Err(error) => tracing::trace!(target: "tenure::http", %error, "a connection has ended"),
    }
    if pace.is_overdue() {
        front.app.counting.refused("slow");
    }
}

/// Serves a connection to its end.
async fn follow<C>(served: C, pace: &Pace, front: &Front)
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut served = pin!(served);
    let ended = tokio::select! {
        biased;
        ended = served.as_mut() => ended,
        () = front.app.drain.reached(Stage::Leaving) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
        () = pace.streams.overdue() => {
            served.as_mut().graceful_shutdown();
            // Who does not read may not read that, either.
            tokio::time::timeout(STALL_MAX, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::trace!(target: "tenure::http", %error, "a connection has ended");
    }
}

fn http_1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX);
    builder.max_headers(HEADERS_MAX).max_buf_size(HEAD_BYTES_MAX);
    builder
}

fn http_2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new());
    builder.max_concurrent_streams(STREAMS_OF_CONNECTION_MAX).max_header_list_size(HEAD_BYTES_MAX as u32);
    builder.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(4 * WINDOW_BYTES);
    builder.max_send_buf_size(WINDOW_BYTES as usize);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thousands wait at a time, and each is one of these.
    #[test]
    fn a_connection_without_tls_takes_less_than_3_kib() {
        fn size<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
            size_of::<F>()
        }
        let size = size(begin);
        assert!(size < 3 * 1024, "{size} bytes");
    }
}
