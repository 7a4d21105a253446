//! The body of an answer that goes on: events until the server ends, or the token does.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use futures_util::stream;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};

use crate::access::Caller;
use crate::app::App;
use crate::drain::Stage;
use crate::events::frame::{COMMENT, bye};
use crate::events::names::OfName;
use crate::events::surveys::OfPrefix;
use crate::limits::COMMENT_EVERY;
use crate::pause::pause;
use crate::waiting::WaitingPlace;

/// Keeps nginx from collecting events.
const NO_BUFFER: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a stream is about.
pub(crate) enum Followed {
    Name(OfName),
    Prefix(OfPrefix),
}

impl Followed {
    async fn next(&mut self) -> Bytes {
        match self {
            Followed::Name(name) => name.next().await,
            Followed::Prefix(prefix) => prefix.next().await,
        }
    }
}

/// An open stream. It ends with its connection: then hyper drops it.
struct Open {
    app: Arc<App>,
    caller: Caller,
    followed: Followed,
    _place: WaitingPlace,
}

impl Open {
    /// The next bytes, and whether they are the last.
    async fn next(&mut self) -> (Bytes, bool) {
        tokio::select! {
            biased;
            () = self.app.drain.reached(Stage::Leaving) => (bye("ending"), true),
            () = self.caller.changed() => (bye("revoked"), true),
            frames = self.followed.next() => (frames, false),
            () = pause(COMMENT_EVERY) => (COMMENT, false),
        }
    }
}

/// Answers with what happens from now on.
pub(crate) fn follow(app: &Arc<App>, caller: Caller, place: WaitingPlace, followed: Followed) -> Response {
    let open = Open { app: app.clone(), caller, followed, _place: place };
    events(stream::unfold(Some(open), async |open| {
        let mut open = open?;
        let (bytes, is_last) = open.next().await;
        Some((bytes, Some(open).filter(|_| !is_last)))
    }))
}

/// Makes a response of events.
pub(crate) fn events(events: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response {
    use futures_util::StreamExt;
    let mut response = Response::new(Body::from_stream(events.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(NO_BUFFER, HeaderValue::from_static("no"));
    response
}
