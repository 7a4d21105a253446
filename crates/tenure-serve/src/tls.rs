//! TLS, which takes a third of what a build for one machine takes: so it can be left out.

#[cfg(feature = "tls")]
mod acceptor;

#[cfg(feature = "tls")]
pub(crate) use acceptor::Acceptor;
#[cfg(not(feature = "tls"))]
pub(crate) use left_out::Acceptor;

#[cfg(not(feature = "tls"))]
mod left_out {
    use std::io;

    use tenure_core::{Error, ErrorKind, Result};
    use tokio::net::TcpStream;

    use crate::options::Tls;

    /// There is none.
    #[derive(Clone)]
    pub(crate) enum Acceptor {}

    impl Acceptor {
        pub(crate) fn new(_tls: &Tls) -> Result<Acceptor> {
            let error = Error::new(ErrorKind::Unsupported, "serve", "it was compiled without TLS");
            Err(error.with_hint("compile it with the feature `tls`, or put a proxy with TLS in front"))
        }

        pub(crate) async fn accept(&self, _stream: TcpStream) -> io::Result<(TcpStream, Vec<String>)> {
            match *self {}
        }
    }
}
