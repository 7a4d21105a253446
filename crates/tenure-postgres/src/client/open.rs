//! A connection without TLS, on which the password is not sent as it is.
//!
//! The client answers whatever the server asks for at the login. A server that asks for the password in clear text
//! gets it, and so does an attacker in between that poses as the server. So what the server says is read here first,
//! until the login is done: that one request ends the connection. Proofs of the password (SCRAM, MD5) may pass.
//!
//! The client takes a foreign stream only where it expects TLS: see `Config::without_tls`.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// What is said of a server that asks for the password in clear text.
pub(crate) const CLEAR_TEXT: &str = "the server asks for the password in clear text, and there is no TLS";

/// A request for a kind of login: its letter, the length of the rest, the kind.
const REQUEST: usize = 9;
const OK: u32 = 0;
const PASSWORD: u32 = 3;

/// Makes streams that watch the login.
#[derive(Clone, Debug)]
pub(crate) struct Open;

impl MakeTlsConnect<Socket> for Open {
    type Stream = OpenStream;
    type TlsConnect = Open;
    type Error = Infallible;

    fn make_tls_connect(&mut self, _host: &str) -> Result<Open, Infallible> {
        Ok(Open)
    }
}

impl TlsConnect<Socket> for Open {
    type Stream = OpenStream;
    type Error = Infallible;
    type Future = Ready<Result<OpenStream, Infallible>>;

    fn connect(self, socket: Socket) -> Self::Future {
        ready(Ok(OpenStream { socket, login: Some(Login::default()) }))
    }
}

/// A stream that watches the login.
#[derive(Debug)]
pub(crate) struct OpenStream {
    socket: Socket,
    /// `None`: it is done, and nothing is checked any more.
    login: Option<Login>,
}

/// How far the messages of the login have been read.
#[derive(Debug, Default)]
struct Login {
    /// The beginning of a message.
    head: Vec<u8>,
    /// How much of a message is still to come, of which the beginning has been read.
    skip: usize,
}

impl Login {
    /// Reads on, and returns whether the login is done.
    fn read(&mut self, bytes: &[u8]) -> io::Result<bool> {
        for byte in bytes {
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.head.push(*byte);
            let [kind, length @ ..] = &self.head[..] else { continue };
            let Some(length) = length.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) else {
                continue;
            };
            if *kind == b'R' && length + 1 >= REQUEST {
                let Some(code) = self.head.get(REQUEST - 4..REQUEST) else { continue };
                match u32::from_be_bytes(code.try_into().unwrap_or_default()) {
                    OK => return Ok(true),
                    PASSWORD => return Err(io::Error::new(io::ErrorKind::PermissionDenied, CLEAR_TEXT)),
                    _ => {}
                }
            }
            self.skip = (length + 1).saturating_sub(self.head.len());
            self.head.clear();
        }
        Ok(false)
    }
}

impl AsyncRead for OpenStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, to))?;
        if let Some(login) = &mut self.login
            && login.read(&to.filled()[before..])?
        {
            self.login = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for OpenStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl TlsStream for OpenStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of a login, in pieces of any size.
    fn read(messages: &[&[u8]], piece: usize) -> io::Result<bool> {
        let (mut login, all) = (Login::default(), messages.concat());
        for piece in all.chunks(piece) {
            if login.read(piece)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    #[test]
    fn a_request_for_the_password_is_found_in_whatever_pieces_it_comes() {
        let (ok, password): (&[u8], &[u8]) = (b"R\0\0\0\x08\0\0\0\0", b"R\0\0\0\x08\0\0\0\x03");
        let (sasl, proof): (&[u8], &[u8]) =
            (b"R\0\0\0\x12\0\0\0\x0aSCRAM-256\0", b"R\0\0\0\x0c\0\0\0\x0cv=xy");
        let (notice, empty): (&[u8], &[u8]) = (b"N\0\0\0\x0dR\0\0\0\x08\0\0\0\x03", b"N\0\0\0\x04");
        for piece in 1..40 {
            assert!(read(&[sasl, proof, ok], piece).expect("a proof"), "{piece}");
            assert!(!read(&[notice, empty, sasl], piece).expect("what is in a notice counts for nothing"));
            for messages in [&[password][..], &[notice, password], &[empty, password], &[sasl, password, ok]]
            {
                let refused = read(messages, piece).expect_err("it asks for the password");
                assert_eq!(refused.to_string(), CLEAR_TEXT);
            }
        }
        // What is said after the login is the server's.
        assert!(read(&[ok, password], 100).expect("it is done"));
    }
}
