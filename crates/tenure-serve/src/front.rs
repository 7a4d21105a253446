//! What is done with every request: whence it comes, who sends it, its id, its log line.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Version};
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument;

use crate::access::forwarded::{self, Network};
use crate::access::{Caller, Peer, origin};
use crate::answer::Noted;
use crate::app::App;
use crate::drain::Stage;
use crate::limits::HEADERS_MAX;
use crate::millis::millis;
use crate::options::Options;
use crate::problem::{INTERNAL, INVALID, Problem};
use crate::routes::{self, Routes};
use crate::trace::{self, Below};
use crate::unread::Taken;

const REQUEST_ID: HeaderName = HeaderName::from_static("tenure-request-id");

/// Answers requests.
pub(crate) struct Front {
    pub(crate) app: Arc<App>,
    routes: Routes,
    hosts: Vec<String>,
    trusted_proxies: Vec<Network>,
    below: Option<Below>,
}

impl Front {
    pub(crate) fn new(app: Arc<App>, options: &Options) -> Front {
        let routes = routes::routes(app.clone(), options.has_dashboard);
        let (hosts, trusted_proxies) = (options.hosts.clone(), options.trusted_proxies.clone());
        Front { routes, app, hosts, trusted_proxies, below: options.below }
    }

    /// Answers one.
    pub(crate) async fn respond(&self, mut request: Request<Incoming>, peer: &Peer) -> Response {
        let began = Instant::now();
        let id = format!("{:016x}", fastrand::u64(..));
        name_host(&mut request);
        let peer = &self.client(request.headers(), peer);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let route = self.routes.pattern(&path);
        let span = trace::begin(&method, route, &id, request.headers(), self.below);
        let is_http_2 = request.version() == Version::HTTP_2;
        let request =
            request.map(|body| if is_http_2 { Body::new(Taken::new(body)) } else { Body::new(body) });
        let mut who = None;
        let answered = self.answer(request, peer, &mut who).instrument(span.clone()).await;
        let mut response = answered.unwrap_or_else(IntoResponse::into_response);
        self.finish(&mut response, &id);
        let noted = response.extensions().get::<Noted>();
        trace::end(&span, response.status(), noted);
        let waited = noted.map_or(0, |noted| noted.waited_ms);
        let took = began.elapsed().saturating_sub(std::time::Duration::from_millis(waited));
        self.app.counting.answered(route, &method, response.status().as_u16(), took);
        let client = peer.address;
        self.log(
            &response,
            Logged { id: &id, method: &method, path: &path, who: who.as_ref(), client, began },
        );
        response
    }

    /// The other end, with the address of the client for whom it speaks.
    fn client(&self, headers: &HeaderMap, peer: &Peer) -> Peer {
        let address = peer.address.map(|address| forwarded::client(headers, address, &self.trusted_proxies));
        Peer { address, ..peer.clone() }
    }

    async fn answer(
        &self,
        request: Request<Body>,
        peer: &Peer,
        who: &mut Option<Caller>,
    ) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        // HTTP/1.1 has refused that before.
        if parts.headers.len() > HEADERS_MAX {
            return Err(Problem::new(INVALID, format!("there are more than {HEADERS_MAX} headers")));
        }
        let is_page = routes::is_page(&parts.method, parts.uri.path());
        origin::check(&parts.headers, &self.hosts, peer.address.is_some(), is_page)?;
        parts.extensions.insert(peer.clone());
        if !routes::is_public(&parts.method, parts.uri.path()) {
            let caller = self.app.access.caller(&parts, peer)?;
            parts.extensions.insert(caller.clone());
            *who = Some(caller);
        }
        let request = Request::from_parts(parts, body);
        // A router is always ready, and never fails.
        let Ok(response) = self.routes.router.clone().call(request).await;
        Ok(response)
    }

    /// Adds what every answer has.
    fn finish(&self, response: &mut Response, id: &str) {
        let status = response.status();
        if status.is_client_error() || status.is_server_error() {
            let problem = response.extensions_mut().remove::<Problem>();
            let is_ours = problem.is_some()
                || response.headers().get("content-type").is_some_and(|kind| kind == "application/json");
            if !is_ours {
                // What axum itself refuses: a path that is no text, say.
                let kind = if status.is_client_error() { INVALID } else { INTERNAL };
                *response = Problem::new(kind, "the request is not understood").into_response();
            }
            if let Some(problem) = problem.or_else(|| response.extensions_mut().remove::<Problem>()) {
                *response.body_mut() = Body::from(problem.text(id) + "\n");
                // That of the empty body, by axum.
                response.headers_mut().remove(CONTENT_LENGTH);
                if problem.kind.name == "lost" {
                    self.app.counting.told_lost();
                }
                if let Some(reason) = problem.refusal() {
                    self.app.counting.refused(reason);
                }
                let resource = problem.resource().map(str::to_owned);
                response.extensions_mut().insert(Noted { resource, waited_ms: problem.waited_ms() });
            }
        }
        let headers = response.headers_mut();
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert(REQUEST_ID, id);
        }
        if self.app.drain.stage() == Stage::Leaving {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// One line for each request. No query and no body, ever: what they hold is somebody's.
    fn log(&self, response: &Response, logged: Logged<'_>) {
        let noted = response.extensions().get::<Noted>();
        let waited_ms = noted.map_or(0, |noted| noted.waited_ms);
        tracing::info!(
            target: "tenure::http",
            request_id = logged.id,
            client = logged.client.map(tracing::field::display),
            token = logged.who.and_then(Caller::name),
            method = %logged.method,
            path = logged.path,
            resource = noted.and_then(|noted| noted.resource.as_deref()),
            status = response.status().as_u16(),
            took_ms = millis(logged.began.elapsed()),
            waited_ms,
            "answered"
        );
    }
}

/// HTTP/2 says by which name it was reached beside the path.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(authority)) = authority {
        request.headers_mut().entry(HOST).or_insert(authority);
    }
}

struct Logged<'a> {
    id: &'a str,
    method: &'a Method,
    path: &'a str,
    who: Option<&'a Caller>,
    client: Option<IpAddr>,
    began: Instant,
}
