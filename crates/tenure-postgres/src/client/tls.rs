//! How a connection is private, as the settings say.

use std::sync::Arc;

/// Calls `$with` with the settings of the server, and with what makes a connection private, as the settings say.
macro_rules! with_tls {
    ($config:expr, |$server:ident, $tls:ident| $with:expr) => {
        if $config.is_tls() {
            let ($server, $tls) = ($config.server.clone(), $crate::client::tls::tls($config.ca.as_deref()));
            $with
        } else {
            let ($server, $tls) = ($config.without_tls(), $crate::client::open::Open);
            $with
        }
    };
}
pub(crate) use with_tls;

/// Makes connections private: the server's certificate is checked against a file, or the Mozilla programme's roots.
pub(crate) fn tls(ca: Option<&std::path::Path>) -> tokio_postgres_rustls::MakeRustlsConnect {
    let mut roots = rustls::RootCertStore::empty();
    match ca {
        Some(path) => {
            use rustls::pki_types::CertificateDer;
            use rustls::pki_types::pem::PemObject;
            let found = CertificateDer::pem_file_iter(path).into_iter().flatten().flatten();
            // An empty store trusts no certificate, and the connection says so.
            roots.add_parsable_certificates(found);
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("aws-lc-rs knows the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tokio_postgres_rustls::MakeRustlsConnect::new(config)
}
