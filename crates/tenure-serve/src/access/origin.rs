//! Whether a request comes from a web page that is not ours: a browser sends it for whoever wrote that page, with the rights of whoever looks
//! at it, be it to loopback.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::{HOST, ORIGIN};

use crate::problem::{FORBIDDEN, Problem};

/// Refuses what a page of elsewhere has sent, and a `Host` that is not ours: a name that somebody else has made to mean this address.
pub(crate) fn check(headers: &HeaderMap, names: &[String], is_tcp: bool) -> Result<(), Problem> {
    look(headers, names, is_tcp).map_err(Problem::foreign)
}

fn look(headers: &HeaderMap, names: &[String], is_tcp: bool) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    let host = text(HOST).unwrap_or_default();
    if is_tcp && !is_ours(host_of(host), names) {
        return Err(Problem::new(FORBIDDEN, format!("{:?} is no name of this server", host_of(host)))
            .with_hint("an operator adds it: tenure serve --host NAME"));
    }
    let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("\u{fffd}"));
    if site.is_some_and(|site| !["same-origin", "none"].contains(&site)) {
        return Err(Problem::new(FORBIDDEN, "a page of elsewhere has sent it"));
    }
    if let Some(origin) = text(ORIGIN) {
        let of_origin = origin.split_once("://").map_or("", |(_, host)| host);
        if of_origin.is_empty() || !of_origin.eq_ignore_ascii_case(host) {
            return Err(Problem::new(FORBIDDEN, "a page of elsewhere has sent it"));
        }
    }
    Ok(())
}

/// The host without the port.
fn host_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    }
}

/// An address is ours, since it was reached by it: only names can be made to mean something else.
fn is_ours(host: &str, names: &[String]) -> bool {
    host.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_elsewhere_and_a_name_of_somebody_else_are_refused() {
        let names = ["locks.shop.example".to_owned()];
        for (host, origin, site, is_tcp, is_good) in [
            ("127.0.0.1:7070", None, None, true, true),
            ("localhost", None, None, true, true),
            ("[::1]:7070", None, None, true, true),
            ("LOCKS.shop.example:443", None, None, true, true),
            ("rebound.example", None, None, true, false),
            ("127.0.0.1.rebound.example", None, None, true, false),
            ("", None, None, true, false),
            ("any", None, None, false, true),
            ("localhost:7070", Some("http://localhost:7070"), Some("same-origin"), true, true),
            ("localhost:7070", Some("http://localhost:3000"), None, true, false),
            ("localhost:7070", Some("null"), None, true, false),
            ("localhost:7070", None, Some("cross-site"), true, false),
            ("localhost:7070", None, Some("same-site"), true, false),
            ("localhost:7070", None, Some("none"), true, true),
            ("any", Some("https://evil.example"), None, false, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().expect("a value"));
            if let Some(origin) = origin {
                headers.insert(ORIGIN, origin.parse().expect("a value"));
            }
            if let Some(site) = site {
                headers.insert("sec-fetch-site", site.parse().expect("a value"));
            }
            assert_eq!(check(&headers, &names, is_tcp).is_ok(), is_good, "{host} {origin:?} {site:?}");
        }
    }
}
