//! The names in a client's certificate.

use rustls::pki_types::CertificateDer;

/// Returns the names that a verified certificate was given: URIs first, since those are made for programs.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    parsed.valid_uri_names().chain(parsed.valid_dns_names()).map(str::to_owned).collect()
}
