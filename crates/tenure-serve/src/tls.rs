//! TLS: the server's certificate, and the authorities of its clients.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tenure_core::{Error, ErrorKind, Result};
use tokio_rustls::TlsAcceptor;

use crate::options::Tls;

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

/// Reads the files.
pub(crate) fn acceptor(tls: &Tls) -> Result<TlsAcceptor> {
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
    Ok(TlsAcceptor::from(Arc::new(config)))
}
