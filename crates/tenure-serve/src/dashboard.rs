//! The dashboard: a page for operators, of files that are part of this program.
//!
//! It asks the public routes alone, so whatever it can do, its token can. Nothing of it is built: what a browser reads is what is in
//! `dashboard/`. A library of components would be vendored and be larger than the page; pages of HTML made here would have to be escaped
//! rightly in each place, where the scripts put data into text nodes alone.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use hyper::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};

use crate::problem::{NOT_FOUND, Problem};

/// What the page may do in a browser: run these scripts, ask this server. Text that gets into a page by mistake is not run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("content-security-policy"), POLICY),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("referrer-policy"), "no-referrer"),
    (HeaderName::from_static("x-content-type-options"), "nosniff"),
];

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file, as a browser is given it.
struct Asset {
    name: &'static str,
    sort: &'static str,
    bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal $sort:expr;)*) => {
        /// All files; the first one is the page.
        const ASSETS: &[Asset] =
            &[$(Asset { name: $name, sort: $sort, bytes: include_bytes!(concat!("dashboard/", $name)) }),*];
    };
}

assets! {
    "index.html" HTML;
    "dashboard.css" "text/css; charset=utf-8";
    "icon.svg" "image/svg+xml";
    "main.js" SCRIPT;
    "api.js" SCRIPT;
    "live.js" SCRIPT;
    "dom.js" SCRIPT;
    "format.js" SCRIPT;
    "table.js" SCRIPT;
    "ask.js" SCRIPT;
    "overview.js" SCRIPT;
    "locks.js" SCRIPT;
    "lock.js" SCRIPT;
    "queues.js" SCRIPT;
    "queue.js" SCRIPT;
    "health.js" SCRIPT;
}

/// The tag of all files: one that is new makes all new, so that no page has scripts of two versions.
static TAG: LazyLock<HeaderValue> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    ASSETS.iter().for_each(|asset| hash.update(asset.bytes));
    let tag = format!("\"{}\"", URL_SAFE_NO_PAD.encode(&hash.finalize()[..12]));
    HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""))
});

/// `GET /`.
pub(crate) async fn page(headers: HeaderMap) -> Response {
    shown(&ASSETS[0], &headers)
}

/// `GET /assets/{name}`.
pub(crate) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    let asset = ASSETS[1..].iter().find(|asset| asset.name == name);
    asset
        .map(|asset| shown(asset, &headers))
        .ok_or_else(|| Problem::new(NOT_FOUND, "the dashboard has no such file"))
}

fn shown(asset: &Asset, headers: &HeaderMap) -> Response {
    let is_known = headers.get(IF_NONE_MATCH).is_some_and(|tag| tag == *TAG);
    let mut response = Response::new(if is_known { Body::empty() } else { Body::from(asset.bytes) });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let of = response.headers_mut();
    of.insert(CONTENT_TYPE, HeaderValue::from_static(asset.sort));
    of.insert(ETAG, TAG.clone());
    for (name, value) in HEADERS {
        of.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it costs the program, and a browser that comes for the first time.
    const BYTES_MAX: usize = 80 * 1024;

    #[test]
    fn the_files_are_small_and_each_is_asked_for() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
        let all: String = ASSETS.iter().map(|asset| String::from_utf8_lossy(asset.bytes)).collect();
        for asset in &ASSETS[1..] {
            let is_named =
                ["/assets/", "./"].iter().any(|place| all.contains(&format!("{place}{}\"", asset.name)));
            assert!(is_named, "nothing asks for {}", asset.name);
        }
    }

    #[test]
    fn data_gets_into_the_page_as_text_alone() {
        for asset in ASSETS.iter().filter(|asset| asset.sort == SCRIPT) {
            let text = String::from_utf8_lossy(asset.bytes);
            for way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                ".style",
            ] {
                assert!(!text.contains(way), "{} has {way}", asset.name);
            }
        }
        let page = String::from_utf8_lossy(ASSETS[0].bytes);
        assert!(
            !page.contains("style=") && !page.contains(" on"),
            "the policy refuses what stands in the page"
        );
    }
}
