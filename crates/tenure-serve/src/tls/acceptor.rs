//! TLS by rustls: the server's certificate, and the authorities and names of its clients.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tenure_core::{Error, ErrorKind, Result};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::options::Tls;
use crate::pace::Socket;

fn wrong(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, "serve", format!("{}: {why}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => Err(wrong(path, "there is no certificate in it")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(wrong(path, error)),
    }
}

/// Returns the names that a verified certificate was given: URIs first, since those are made for programs.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    parsed.valid_uri_names().chain(parsed.valid_dns_names()).map(str::to_owned).collect()
}

impl<S: Socket> Socket for TlsStream<S> {
    fn give_up_after(&self, millis: u32) -> io::Result<()> {
        self.get_ref().0.give_up_after(millis)
    }
}

/// What begins connections with TLS.
#[derive(Clone)]
pub(crate) struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// Reads the files.
    pub(crate) fn new(tls: &Tls) -> Result<Acceptor> {
        config(tls).map(|config| Acceptor(TlsAcceptor::from(Arc::new(config))))
    }

    /// Begins a connection. Returns the names of its client's certificate, too, if it has shown one.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Vec<String>)> {
        let stream = self.0.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let names = shown.map(names).unwrap_or_default();
        Ok((stream, names))
    }
}

fn config(tls: &Tls) -> Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&tls.certificate, error))?;
    let builder = match &tls.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(path, error))?;
            }
            // Who has no certificate may have a token.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| wrong(path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| wrong(&tls.key, error))?;
    let mut config = builder
        .with_single_cert(certificates(&tls.certificate)?, key)
        .map_err(|error| wrong(&tls.certificate, error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
