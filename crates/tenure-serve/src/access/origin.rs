//! Whether a request comes from a web page that is not ours: a browser sends it for whoever wrote that page, with the rights of whoever looks
//! at it, be it to loopback.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::{HOST, ORIGIN};

use crate::problem::{FORBIDDEN, Problem};

/// Refuses what a page of elsewhere has sent, and a `Host` that is not ours: a name that somebody else has made to mean this address.
/// A link of elsewhere to the dashboard may be followed: the page is the same for everybody, and asks for the rest itself.
pub(crate) fn check(
    headers: &HeaderMap,
    names: &[String],
    is_tcp: bool,
    is_page: bool,
) -> Result<(), Problem> {
    look(headers, names, is_tcp, is_page).map_err(Problem::foreign)
}

fn look(headers: &HeaderMap, names: &[String], is_tcp: bool, is_page: bool) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    let host = text(HOST).unwrap_or_default();
    if is_tcp && !is_ours(host_of(host), names) {
        return Err(Problem::new(FORBIDDEN, format!("{:?} is no name of this server", host_of(host)))
            .with_hint("an operator adds it: tenure serve --host NAME"));
    }
    let site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("\u{fffd}"));
    let is_followed = is_page
        && headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
        && headers.get("sec-fetch-dest").is_some_and(|shown_in| shown_in == "document");
    if site.is_some_and(|site| !["same-origin", "none"].contains(&site)) && !is_followed {
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

/// Whether a browser takes a host for its own machine.
pub(crate) fn is_of_this_machine(host: &str) -> bool {
    let host = host_of(host);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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
            assert_eq!(check(&headers, &names, is_tcp, false).is_ok(), is_good, "{host} {origin:?} {site:?}");
        }
    }
    #[test]
    fn a_link_to_the_dashboard_may_be_followed_and_nothing_else_be_asked() {
        let sent = |mode: &str, dest: &str, is_page| {
            let lines = [
                ("host", "localhost"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", dest),
            ];
            let headers = lines
                .iter()
                .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
            check(&headers.collect::<HeaderMap>(), &[], true, is_page).is_ok()
        };
        assert!(sent("navigate", "document", true));
        assert!(!sent("navigate", "document", false), "it is no page");
        assert!(!sent("navigate", "iframe", true), "it is not shown within another page");
        assert!(!sent("no-cors", "script", true) && !sent("cors", "empty", true));
    }
}
