//! HTTP: a layer for tower and axum refuses late requests. Here without a network, to be short.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use tenure::fence::{Mark, Memory};
use tenure::{Lease, Token};
use tenure_tower::{CLAIM, FenceLayer, TOKEN};
use tower_layer::Layer;
use tower_service::Service;

/// What the layer protects. It may check the mark again where it writes.
struct Accounts;

impl Service<Request<String>> for Accounts {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let mark = request.extensions().get::<Mark>().expect("the layer gives it");
        ready(Ok(Response::new(format!("{} under {mark}", request.body()))))
    }
}

fn put(lease: &Lease, body: &str) -> http::Result<Request<String>> {
    Request::put("/accounts/7")
        .header(&TOKEN, lease.token().get())
        .header(&CLAIM, lease.claim().to_string())
        .body(body.to_owned())
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fences = Arc::new(Memory::new());
    let layer = FenceLayer::new(fences, |request: &Request<String>| Some(request.uri().path().to_owned()));
    let mut service = layer.layer(Accounts);

    // A holder is paused. An operator breaks its hold, and somebody else gets the lock.
    let tenure = tenure::connect("memory:").await?;
    let paused = tenure.mutex("billing").acquire().await?;
    tenure.break_hold("billing", paused.token(), true).await?;
    let next = tenure.mutex("billing").acquire().await?;
    let response = service.call(put(&next, "20")?).await?;
    assert_eq!(response.status(), StatusCode::OK);

    // The paused one wakes up and writes.
    let response = service.call(put(&paused, "10")?).await?;
    assert_eq!(response.status(), StatusCode::PRECONDITION_FAILED);
    let max = Token::new(response.headers()[&TOKEN].to_str()?.parse()?);
    assert_eq!(max, next.token());

    tenure.raise_floor("billing", max)?;
    Ok(())
}
