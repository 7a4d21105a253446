//! The layer in front of a service: who gets through, and what the others are told.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use tenure_fence::{Mark, Memory};
use tenure_tower::{CLAIM, FenceLayer, FenceService, TOKEN};
use tower_layer::Layer;
use tower_service::Service;

/// Answers with the mark that it was given.
#[derive(Clone)]
struct Echo;

impl Service<Request<()>> for Echo {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let mark = request.extensions().get::<Mark>();
        ready(Ok(Response::new(mark.map_or("none".to_owned(), Mark::to_string))))
    }
}

type Fenced = FenceService<Echo, ()>;

/// Writes are fenced by their path.
fn layer() -> FenceLayer<()> {
    FenceLayer::new(Arc::new(Memory::new()), |request: &Request<()>| {
        (request.method() != Method::GET).then(|| request.uri().path().to_owned())
    })
}

fn send(service: &mut Fenced, method: Method, headers: &[(&str, &str)]) -> (u16, Option<String>, String) {
    let mut request = Request::builder().method(method).uri("/accounts/7");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = pollster::block_on(service.call(request.body(()).expect("a request"))).expect("no error");
    let max = response.headers().get(&TOKEN).map(|value| value.to_str().expect("text").to_owned());
    (response.status().as_u16(), max, response.into_body())
}

fn put(service: &mut Fenced, token: &str, claim: &str) -> (u16, Option<String>, String) {
    send(service, Method::PUT, &[(TOKEN.as_str(), token), (CLAIM.as_str(), claim)])
}

const ONE: &str = "00000000000000000000000000000001";
const TWO: &str = "00000000000000000000000000000002";

#[test]
fn a_late_request_is_told_the_largest_token() {
    let mut service = layer().layer(Echo);
    assert_eq!(put(&mut service, "5", ONE), (200, None, format!("5/{ONE}")));
    // Each connection may have a clone of its own.
    assert_eq!(put(&mut service.clone(), "7", TWO).0, 200);
    assert_eq!(put(&mut service, "5", ONE), (412, Some("7".to_owned()), String::new()));
    assert_eq!(put(&mut service, "7", TWO).0, 200);
    assert_eq!(put(&mut service, "7", ONE), (412, Some("7".to_owned()), String::new()));
}

#[test]
fn what_is_not_fenced_passes() {
    let mut service = layer().layer(Echo);
    assert_eq!(send(&mut service, Method::GET, &[]), (200, None, "none".to_owned()));
}

#[test]
fn headers_are_required_unless_they_are_optional() {
    let mut service = layer().layer(Echo);
    assert_eq!(send(&mut service, Method::PUT, &[]).0, 428);
    let mut service = layer().optional().layer(Echo);
    assert_eq!(send(&mut service, Method::PUT, &[]).0, 200);
    assert_eq!(put(&mut service, "5", ONE).0, 200);
    assert_eq!(put(&mut service, "4", ONE).0, 412);
}

#[test]
fn what_cannot_be_read_is_refused() {
    let (token, claim) = (TOKEN.as_str(), CLAIM.as_str());
    for layer in [layer(), layer().optional()] {
        let mut service = layer.layer(Echo);
        for headers in [
            &[(token, "5")][..],
            &[(claim, ONE)],
            &[(token, "0"), (claim, ONE)],
            &[(token, "x"), (claim, ONE)],
            &[(token, "5"), (claim, "1")],
            &[(token, "5"), (token, "6"), (claim, ONE)],
            &[(token, "\u{e9}"), (claim, ONE)],
        ] {
            assert_eq!(send(&mut service, Method::PUT, headers).0, 400, "{headers:?}");
        }
    }
}
