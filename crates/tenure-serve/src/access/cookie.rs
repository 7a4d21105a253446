//! The cookie of the dashboard: what a browser sends in the place of a token that was shown once.
//!
//! It names the token by its hash and says until when, and a code over both proves that this server made it. Nothing of it is kept: it
//! dies with the entry of its token, with the key of the process, or after 12 h. That it is sent by the browser without being asked is its
//! danger: any page may make the browser send it. So it is worth nothing for a change unless the page is ours and says so (`may_change`).

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::{COOKIE, HOST, ORIGIN};
use hyper::{HeaderMap, Method};
use sha2::Sha256;
use tenure_core::clock::Timestamp;

use super::file::read_private;
use super::origin::is_of_this_machine;
use crate::limits::SIGNED_IN_MAX;
use crate::problem::{FORBIDDEN, Problem};

/// The least bytes of a key in a file: as many as the code has.
const KEY_BYTES_MIN: usize = 32;
/// Nobody sends it by accident: a form cannot, and a page of elsewhere would have to ask first.
const BY_THE_DASHBOARD: &str = "tenure-dashboard";

/// Which of its two names a cookie has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Sent by TLS only, and set by this host only: a browser sees to both where a name begins so.
    Private,
    /// Without TLS, which a browser can bear on its own machine alone.
    Loopback,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Private => "__Host-tenure",
            Way::Loopback => "tenure",
        }
    }

    /// The way by which a browser has come; none if others could read the cookie on theirs. A proxy may speak TLS for us: then the
    /// page's own origin says so.
    pub(crate) fn of(headers: &HeaderMap, is_tls: bool) -> Option<Way> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if is_tls || text(ORIGIN).starts_with("https://") {
            return Some(Way::Private);
        }
        is_of_this_machine(text(HOST)).then_some(Way::Loopback)
    }

    /// Has the browser keep a cookie; without one, forget it.
    pub(crate) fn set(self, cookie: Option<&str>) -> String {
        let (name, value) = (self.name(), cookie.unwrap_or_default());
        let seconds = if cookie.is_some() { SIGNED_IN_MAX.as_secs() } else { 0 };
        let secure = if self == Way::Private { "; Secure" } else { "" };
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }
}

/// Makes and reads cookies.
pub(crate) struct Cookies {
    key: Vec<u8>,
}

impl Cookies {
    /// With a key of this process: a cookie ends with it.
    pub(crate) fn new() -> io::Result<Cookies> {
        let mut key = vec![0; KEY_BYTES_MIN];
        fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
        Ok(Cookies { key })
    }

    /// With the key in a file, which must be as private as the file of tokens: a cookie of one instance is good at the others.
    pub(crate) fn load(path: &Path) -> Result<Cookies, String> {
        let key = read_private(path)?.trim_end().as_bytes().to_vec();
        if key.len() < KEY_BYTES_MIN {
            let bytes = key.len();
            return Err(format!(
                "{}: {bytes} bytes, and {KEY_BYTES_MIN} or more are needed: openssl rand -hex 32",
                path.display()
            ));
        }
        Ok(Cookies { key })
    }

    /// The code over what a cookie says. Its name is in it: what was made for loopback is no cookie of TLS.
    fn code(&self, way: Way, said: &str) -> Option<Hmac<Sha256>> {
        let mut code = Hmac::<Sha256>::new_from_slice(&self.key).ok()?;
        code.update(way.name().as_bytes());
        code.update(b"=");
        code.update(said.as_bytes());
        Some(code)
    }

    /// Makes a cookie for the token with this hash.
    pub(crate) fn seal(&self, way: Way, token: &[u8; 32], now: Timestamp) -> String {
        let expires = (now + SIGNED_IN_MAX).micros() / 1_000_000;
        let said = format!("{expires}.{}", URL_SAFE_NO_PAD.encode(token));
        let code = self.code(way, &said).map(Mac::finalize).map(|code| code.into_bytes());
        format!("{said}.{}", URL_SAFE_NO_PAD.encode(code.unwrap_or_default()))
    }

    /// Reads a cookie: the hash of its token, if we have made it and its time is not over.
    fn open(&self, way: Way, cookie: &str, now: Timestamp) -> Option<[u8; 32]> {
        let (said, code) = cookie.rsplit_once('.')?;
        // In the same time, whatever of it is right.
        self.code(way, said)?.verify_slice(&URL_SAFE_NO_PAD.decode(code).ok()?).ok()?;
        let (expires, token) = said.split_once('.')?;
        let is_over = expires.parse::<u64>().ok()? <= now.micros() / 1_000_000;
        URL_SAFE_NO_PAD.decode(token).ok()?.try_into().ok().filter(|_| !is_over)
    }

    /// The hash of the token for which a request has a cookie.
    pub(crate) fn sent(&self, headers: &HeaderMap, is_tls: bool, now: Timestamp) -> Option<[u8; 32]> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let ways: &[Way] = match is_tls {
            true => &[Way::Private],
            false if is_of_this_machine(host) => &[Way::Private, Way::Loopback],
            false => &[Way::Private],
        };
        let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find_map(|(name, value)| {
            let way = ways.iter().find(|way| way.name() == name)?;
            self.open(*way, value, now)
        })
    }
}

/// Refuses a change for which there is only a cookie, unless a page of ours has sent it and says so.
pub(crate) fn may_change(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    if [Method::GET, Method::HEAD].contains(method) {
        return Ok(());
    }
    // An origin of elsewhere was refused before (`origin.rs`).
    let is_own = headers.contains_key(ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| site == "same-origin");
    let is_said = headers.get(BY_THE_DASHBOARD).is_some_and(|said| said == "1");
    match is_own && is_said {
        true => Ok(()),
        false => Err(Problem::new(FORBIDDEN, "a cookie is for the dashboard, and it has not sent this")
            .with_hint("send a token of this server: Authorization: Bearer tnr_…")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
            .collect()
    }

    #[test]
    fn a_cookie_names_its_token_for_12_hours_and_by_its_own_name() {
        let cookies = Cookies::new().expect("a key");
        let cookie = cookies.seal(Way::Private, &[7; 32], NOW);
        assert_eq!(cookies.open(Way::Private, &cookie, NOW), Some([7; 32]));
        let last = NOW + SIGNED_IN_MAX;
        assert_eq!(SIGNED_IN_MAX, Duration::from_secs(12 * 3600));
        assert!(cookies.open(Way::Private, &cookie, Timestamp::from_micros(last.micros() - 1)).is_some());
        assert_eq!(cookies.open(Way::Private, &cookie, last), None, "its time is over");
        assert_eq!(cookies.open(Way::Loopback, &cookie, NOW), None, "it is of the other name");
        assert_eq!(Cookies::new().expect("a key").open(Way::Private, &cookie, NOW), None, "of another key");
    }

    #[test]
    fn no_byte_of_a_cookie_can_be_changed() {
        let cookies = Cookies::new().expect("a key");
        let cookie = cookies.seal(Way::Loopback, &[7; 32], NOW);
        for at in 0..cookie.len() {
            let mut forged = cookie.clone().into_bytes();
            forged[at] = if forged[at] == b'1' { b'2' } else { b'1' };
            let forged = String::from_utf8(forged).expect("text");
            assert_eq!(cookies.open(Way::Loopback, &forged, NOW), None, "{at}: {forged}");
        }
        for forged in ["", ".", "..", "9999999999..", "9999999999.AAAA"] {
            assert_eq!(cookies.open(Way::Loopback, forged, NOW), None, "{forged}");
        }
    }

    #[test]
    fn a_browser_keeps_it_to_this_host_and_from_scripts() {
        for (origin, host, is_tls, name) in [
            (None, "locks.example", true, Some("__Host-tenure")),
            (Some("https://locks.example"), "locks.example", false, Some("__Host-tenure")),
            (Some("http://localhost:7070"), "localhost:7070", false, Some("tenure")),
            (None, "127.0.0.1:7070", false, Some("tenure")),
            (None, "[::1]:7070", false, Some("tenure")),
            (Some("http://locks.example"), "locks.example", false, None),
            (None, "10.0.0.7:7070", false, None),
        ] {
            let lines: Vec<_> = [("host", Some(host)), ("origin", origin)]
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?)))
                .collect();
            let way = Way::of(&headers(&lines), is_tls);
            assert_eq!(way.map(Way::name), name, "{origin:?} {host} {is_tls}");
        }
        let set = Way::Private.set(Some("x"));
        assert_eq!(set, "__Host-tenure=x; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure");
        assert_eq!(Way::Loopback.set(None), "tenure=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
    }

    #[test]
    fn a_cookie_is_found_among_others_and_by_its_way() {
        let cookies = Cookies::new().expect("a key");
        let of = |way| cookies.seal(way, &[7; 32], NOW);
        let (private, loopback) = (of(Way::Private), of(Way::Loopback));
        let sent = |line: &str, host: &str, is_tls| {
            let headers = headers(&[("host", host), ("cookie", line)]);
            cookies.sent(&headers, is_tls, NOW).is_some()
        };
        assert!(sent(&format!("a=b; __Host-tenure={private}; c=d"), "locks.example", true));
        assert!(sent(&format!("tenure=old; tenure={loopback}"), "localhost:1", false));
        assert!(
            !sent(&format!("tenure={loopback}"), "locks.example", true),
            "a page without TLS may have set it"
        );
        assert!(!sent(&format!("tenure={loopback}"), "locks.example", false));
        assert!(!sent(&format!("tenure2={loopback}; xtenure={loopback}"), "localhost", false));
    }

    #[test]
    fn a_cookie_changes_nothing_unless_the_dashboard_says_so() {
        for (lines, method, may) in [
            (&[][..], Method::GET, true),
            (&[][..], Method::POST, false),
            (&[("tenure-dashboard", "1")][..], Method::POST, false),
            (&[("sec-fetch-site", "same-origin")][..], Method::DELETE, false),
            (&[("sec-fetch-site", "none"), ("tenure-dashboard", "1")][..], Method::PUT, false),
            (&[("sec-fetch-site", "same-origin"), ("tenure-dashboard", "0")][..], Method::POST, false),
            (&[("sec-fetch-site", "same-origin"), ("tenure-dashboard", "1")][..], Method::POST, true),
            (&[("origin", "http://localhost"), ("tenure-dashboard", "1")][..], Method::DELETE, true),
        ] {
            assert_eq!(may_change(&method, &headers(lines)).is_ok(), may, "{method} {lines:?}");
        }
    }

    #[test]
    fn a_key_is_its_owners_alone_and_long_enough() {
        let path = std::env::temp_dir().join(format!("tenure-cookie-key-{}", std::process::id()));
        let load = |key: &str, mode| {
            fs::write(&path, key).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
            Cookies::load(&path).map(|cookies| cookies.key.len())
        };
        assert_eq!(load(&("k".repeat(64) + "\n"), 0o600), Ok(64));
        assert!(load(&"k".repeat(64), 0o640).expect_err("others may read it").contains("chmod 600"));
        assert!(load("short\n", 0o600).expect_err("it is short").contains("openssl rand -hex 32"));
        fs::remove_file(&path).expect("it is there");
        assert!(Cookies::load(&path).is_err());
    }
}
