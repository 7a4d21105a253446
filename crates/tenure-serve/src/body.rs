//! What is in a request: its body and its query.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Query;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request};
use serde::de::DeserializeOwned;
use tenure_core::ClaimId;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::limits::{BODY_BYTES_MAX, BODY_MAX, LARGE_BODIES_MAX, LIST_MAX, SMALL_BODY_BYTES_MAX};
use crate::problem::{INVALID, MEDIA_TYPE, Problem, TOO_LARGE, TOO_SLOW};

/// Reads a JSON body.
pub(crate) async fn read<T: DeserializeOwned>(request: Request<Body>) -> Result<T, Problem> {
    let (parts, body) = request.into_parts();
    if !is_json(&parts.headers) {
        return Err(Problem::new(MEDIA_TYPE, "the body is not said to be JSON")
            .with_hint("send Content-Type: application/json (curl --json)")
            .last());
    }
    let collected = collect(body, BODY_MAX).await?;
    serde_json::from_slice(&collected.bytes).map_err(|error| {
        Problem::new(INVALID, format!("the body is not understood: {error}"))
            .with_hint("see docs/operating/serve.md for the fields; periods are whole milliseconds (`_ms`)")
    })
}

/// Whether a body is JSON by its own word. What a form of a web page can send is not.
fn is_json(headers: &HeaderMap) -> bool {
    let said = headers.get(CONTENT_TYPE).and_then(|said| said.to_str().ok()).unwrap_or_default();
    let essence = said.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// The bodies that are more than small: as many of them as there may be in memory at a time. The others are not read meanwhile, so that they
/// stay with their senders.
static LARGE: Semaphore = Semaphore::const_new(LARGE_BODIES_MAX);

/// A body, and its place among the large ones.
#[derive(Debug)]
struct Collected {
    bytes: Vec<u8>,
    _place: Option<SemaphorePermit<'static>>,
}

async fn collect(body: Body, within: Duration) -> Result<Collected, Problem> {
    // What is said beforehand need not be read.
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(within, pieces(body)).await;
    collected.unwrap_or_else(|_| {
        Err(Problem::new(TOO_SLOW, format!("the body took more than {within:?}, or others were in its way"))
            .last())
    })
}

async fn pieces(mut body: Body) -> Result<Collected, Problem> {
    let (mut bytes, mut place) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::new(INVALID, "the body ended before its end").last())?;
        let Ok(piece) = frame.into_data() else { continue };
        let length = bytes.len() + piece.len();
        if length > BODY_BYTES_MAX {
            return Err(too_large());
        }
        if length > SMALL_BODY_BYTES_MAX && place.is_none() {
            // Never closed.
            place = LARGE.acquire().await.ok();
            bytes.reserve_exact(BODY_BYTES_MAX - bytes.len());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Collected { bytes, _place: place })
}

fn too_large() -> Problem {
    Problem::new(TOO_LARGE, format!("the body has more than {BODY_BYTES_MAX} bytes")).last()
}

/// Reads the query of a request.
pub(crate) fn query<T: DeserializeOwned>(parts: &Parts) -> Result<T, Problem> {
    let read = Query::try_from_uri(&parts.uri);
    read.map(|Query(query)| query).map_err(|error| {
        Problem::new(INVALID, format!("the query is not understood: {}", error.body_text()))
            .with_hint("names are in the query, encoded: ?name=billing%2F4711")
    })
}

/// How many entries a list has: what was asked for, or as many as it may have.
pub(crate) fn limited(limit: Option<usize>) -> Result<usize, Problem> {
    match limit {
        None => Ok(LIST_MAX),
        Some(limit) if (1..=LIST_MAX).contains(&limit) => Ok(limit),
        Some(_) => Err(Problem::new(INVALID, format!("`limit` is 1 to {LIST_MAX}"))),
    }
}

/// Reads the id of a claim, which its client has made: 32 digits, so that nobody sends a number that is not random.
pub(crate) fn claim_id(text: &str) -> Result<ClaimId, Problem> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let id = Some(text).filter(|text| text.len() == 32 && text.bytes().all(is_digit));
    id.and_then(|text| text.parse().ok()).ok_or_else(|| {
        Problem::new(INVALID, "the id of a claim is 32 hexadecimal digits in lower case")
            .with_hint("make 128 random bits for each claim: openssl rand -hex 16")
    })
}

/// Bytes that come as text or in base64.
pub(crate) fn bytes(text: Option<String>, base64: Option<String>, field: &str) -> Result<Vec<u8>, Problem> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(encoded)) => STANDARD
            .decode(encoded)
            .map_err(|_| Problem::new(INVALID, format!("`{field}_base64` is not base64"))),
        _ => Err(Problem::new(INVALID, format!("give either `{field}` or `{field}_base64`"))),
    }
}

/// The same the other way: the name of the field, and what it holds.
pub(crate) fn shown(bytes: &[u8], field: &str) -> (String, String) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (field.to_owned(), text.to_owned()),
        Err(_) => (format!("{field}_base64"), STANDARD.encode(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt, stream};

    use super::*;

    /// A body of which so many bytes come, and then nothing more.
    fn stalled(length: usize) -> Body {
        let first = stream::iter([Ok::<_, std::io::Error>(vec![b' '; length])]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[test]
    fn large_bodies_take_turns_and_small_ones_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut open: Vec<_> =
                (0..LARGE_BODIES_MAX).map(|_| Box::pin(pieces(stalled(SMALL_BODY_BYTES_MAX + 1)))).collect();
            for body in &mut open {
                assert!(body.now_or_never().is_none(), "it is not over");
            }
            let mut small = Box::pin(pieces(stalled(SMALL_BODY_BYTES_MAX)));
            assert!((&mut small).now_or_never().is_none());
            let whole = |length| Body::from(vec![b' '; length]);
            let read = pieces(whole(SMALL_BODY_BYTES_MAX)).now_or_never();
            assert_eq!(read.expect("it needs no turn").expect("a body").bytes.len(), SMALL_BODY_BYTES_MAX);
            let mut next = Box::pin(pieces(whole(BODY_BYTES_MAX)));
            assert!((&mut next).now_or_never().is_none(), "it waits");
            open.pop();
            assert_eq!(next.await.expect("its turn has come").bytes.len(), BODY_BYTES_MAX);
            assert!(pieces(whole(BODY_BYTES_MAX + 1)).await.is_err());
        });
    }

    #[test]
    fn an_id_has_32_digits() {
        assert!(claim_id("6f00000000000000000000000000000a").is_ok());
        for bad in [
            "",
            "6f",
            "6F00000000000000000000000000000A",
            "+f00000000000000000000000000000a",
            "6f00000000000000000000000000000aa",
        ] {
            assert!(claim_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_are_text_where_they_can_be() {
        for (given, field, text) in
            [(&b"17.50"[..], "value", "17.50"), (&[0xff, 0x00][..], "value_base64", "/wA=")]
        {
            let (name, shown) = shown(given, "value");
            assert_eq!((&*name, &*shown), (field, text));
            let (plain, encoded) = if name == "value" { (Some(shown), None) } else { (None, Some(shown)) };
            assert_eq!(bytes(plain, encoded, "value").expect("bytes"), given);
        }
        assert!(bytes(None, None, "value").is_err());
        assert!(bytes(Some(String::new()), Some(String::new()), "value").is_err());
    }
}
