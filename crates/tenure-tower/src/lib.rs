//! Fencing for HTTP services on tower, such as axum: a request says under which lease it was sent, and one whose
//! lease is over is refused before it reaches the service.
//!
//! The lease is in two headers, [`TOKEN`] and [`CLAIM`]: `lease.token()` and `lease.claim()`. The layer gives
//! the [`Mark`] to the service as an extension of the request.
//!
//! | the request | answer |
//! | --- | --- |
//! | is by the latest lease | the service's |
//! | is late | 412, with the largest token that was seen in [`TOKEN`], for `Tenure::raise_floor` |
//! | has no headers, and needs them | 428 |
//! | has one of them, or one that cannot be read | 400 |
//!
//! The check is one step, and what the service then does is another: a service that is paused between the two
//! writes late. If it writes to a store, let it check the mark again in the statement that writes.
//! The fences are in memory: after a restart nothing was seen.
//!
//! # Examples
//! ```
//! use std::sync::Arc;
//! use http::Request;
//! use tenure_fence::Memory;
//! use tenure_tower::FenceLayer;
//!
//! let fences = Arc::new(Memory::new());
//! // A request writes to what its path names, unless it only reads.
//! let layer = FenceLayer::new(fences, |request: &Request<Vec<u8>>| {
//!     (request.method() != "GET").then(|| request.uri().path().to_owned())
//! });
//! ```

use std::fmt;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tenure_core::Token;
use tenure_fence::{Mark, Memory};
use tower_layer::Layer;
use tower_service::Service;

/// The header with the fencing token, in decimal.
pub static TOKEN: HeaderName = HeaderName::from_static("tenure-token");
/// The header with the id of the claim, 32 hexadecimal digits.
pub static CLAIM: HeaderName = HeaderName::from_static("tenure-claim");

/// Which key a request writes to.
type KeyOf<B> = dyn Fn(&Request<B>) -> Option<String> + Send + Sync;

/// Refuses requests whose lease is over. Clones share what was seen.
pub struct FenceLayer<B> {
    fences: Arc<Memory>,
    key: Arc<KeyOf<B>>,
    is_required: bool,
}

impl<B> FenceLayer<B> {
    /// Makes a layer. `key` says what a request writes to; if it returns `None`, the request is not fenced, as one that only
    /// reads. Each key that was ever seen stays in memory: make it from what you know, not from any path that
    /// a stranger sends.
    pub fn new(
        fences: Arc<Memory>,
        key: impl Fn(&Request<B>) -> Option<String> + Send + Sync + 'static,
    ) -> FenceLayer<B> {
        FenceLayer { fences, key: Arc::new(key), is_required: true }
    }

    /// Lets fenced requests without the headers pass. By default they are answered with 428.
    #[must_use]
    pub fn optional(mut self) -> FenceLayer<B> {
        self.is_required = false;
        self
    }

    /// Checks a request; the status and the largest token if it is refused.
    fn check(&self, request: &Request<B>) -> Result<Option<Mark>, (StatusCode, Option<Token>)> {
        let Some(key) = (self.key)(request) else { return Ok(None) };
        let headers = request.headers();
        let mark = match (one(headers, &TOKEN)?, one(headers, &CLAIM)?) {
            (Some(token), Some(claim)) => {
                Mark::parse(token, claim).map_err(|_| (StatusCode::BAD_REQUEST, None))?
            }
            (None, None) if self.is_required => return Err((StatusCode::PRECONDITION_REQUIRED, None)),
            (None, None) => return Ok(None),
            _ => return Err((StatusCode::BAD_REQUEST, None)),
        };
        match self.fences.check(&key, mark) {
            Ok(()) => Ok(Some(mark)),
            Err(stale) => Err((StatusCode::PRECONDITION_FAILED, Some(stale.max))),
        }
    }
}

/// The one value of a header. Two of them say two things.
fn one<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, (StatusCode, Option<Token>)> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map(HeaderValue::to_str).transpose();
    match (value, values.next()) {
        (Ok(value), None) => Ok(value),
        _ => Err((StatusCode::BAD_REQUEST, None)),
    }
}

impl<B> Clone for FenceLayer<B> {
    fn clone(&self) -> FenceLayer<B> {
        FenceLayer { fences: self.fences.clone(), key: self.key.clone(), is_required: self.is_required }
    }
}

impl<B> fmt::Debug for FenceLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("is_required", &self.is_required).finish_non_exhaustive()
    }
}

impl<S, B> Layer<S> for FenceLayer<B> {
    type Service = FenceService<S, B>;

    fn layer(&self, inner: S) -> FenceService<S, B> {
        FenceService { inner, layer: self.clone() }
    }
}

/// A service behind a [`FenceLayer`].
///
/// No example: [`FenceLayer`] makes it.
#[derive(Debug)]
pub struct FenceService<S, B> {
    inner: S,
    layer: FenceLayer<B>,
}

impl<S: Clone, B> Clone for FenceService<S, B> {
    fn clone(&self) -> FenceService<S, B> {
        FenceService { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, B, R> Service<Request<B>> for FenceService<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Default,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = FenceFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.layer.check(&request) {
            Ok(mark) => {
                if let Some(mark) = mark {
                    request.extensions_mut().insert(mark);
                }
                FenceFuture(Answer::Inner(Box::pin(self.inner.call(request))))
            }
            Err((status, max)) => {
                let mut response = Response::new(R::default());
                *response.status_mut() = status;
                if let Some(max) = max {
                    response.headers_mut().insert(&TOKEN, max.get().into());
                }
                FenceFuture(Answer::Refused(ready(Ok(response))))
            }
        }
    }
}

/// The answer of a [`FenceService`].
///
/// No example: a [`FenceService`] answers with it.
pub struct FenceFuture<F, R, E>(Answer<F, R, E>);

impl<F, R, E> std::fmt::Debug for FenceFuture<F, R, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FenceFuture").finish_non_exhaustive()
    }
}

enum Answer<F, R, E> {
    /// Boxed, so that no code of this crate needs `unsafe` to poll it.
    Inner(Pin<Box<F>>),
    Refused(Ready<Result<Response<R>, E>>),
}

impl<F, R, E> Future for FenceFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<R>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Answer::Inner(inner) => inner.as_mut().poll(cx),
            Answer::Refused(refused) => Pin::new(refused).poll(cx),
        }
    }
}

impl<F, R, E> Unpin for FenceFuture<F, R, E> {}
