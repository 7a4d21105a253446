//! The body of a request that is answered before it was read: one without a token, say.
//!
//! On HTTP/2 a stream is reset as soon as nobody holds its body any more. A client that is still sending then may take the reset for the
//! end of its request, and never show the answer that came before. So the rest of a small body is taken from it, and thrown away.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;

use crate::limits::{CALL_MAX, SMALL_BODY_BYTES_MAX};

/// A body that is taken from its sender, whether it is read or not.
#[derive(Debug)]
pub(crate) struct Taken {
    body: Option<Incoming>,
}

impl Taken {
    pub(crate) fn new(body: Incoming) -> Taken {
        Taken { body: Some(body) }
    }
}

impl Body for Taken {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) else { return };
        // None where the server has ended, and with it the connection.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(tokio::time::timeout(CALL_MAX, throw_away(body)));
        }
    }
}

/// Takes as much of a body as all but few requests have. Whoever sends more is told to stop.
async fn throw_away(mut body: Incoming) {
    let mut left = SMALL_BODY_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        if length > left {
            return;
        }
        left -= length;
    }
}
