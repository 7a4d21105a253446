//! What can be asked: a file for each sort of thing. A row of `docs/operating/serve.md` for each route, and its operations in `openapi.json`.

pub(crate) mod claims;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod held;
pub(crate) mod items;
pub(crate) mod list;
pub(crate) mod metrics;
pub(crate) mod openapi;
pub(crate) mod problems;
pub(crate) mod queues;
pub(crate) mod resources;
pub(crate) mod server;
pub(crate) mod sign_in;
pub(crate) mod wanted;

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, get, post, put};
use hyper::Method;

use crate::app::App;
use crate::dashboard;
use crate::problem::{METHOD_NOT_ALLOWED, NOT_FOUND, Problem};

/// Whether a request is for everybody who reaches the server: health, what can be asked, what errors mean, the dashboard's files, and signing in.
pub(crate) fn is_public(method: &Method, path: &str) -> bool {
    match path {
        "/healthz" | "/readyz" | "/v1/openapi.json" | "/" => true,
        "/v1/sign-in" => method != Method::GET && method != Method::HEAD,
        _ => path.starts_with("/v1/problems/") || path.starts_with("/assets/"),
    }
}

/// Whether a request is for the page that a link may lead to.
pub(crate) fn is_page(method: &Method, path: &str) -> bool {
    path == "/" && (method == Method::GET || method == Method::HEAD)
}

/// The routes, and their patterns: what is counted is counted by these, since paths are somebody's.
pub(crate) struct Routes {
    pub(crate) router: Router,
    patterns: Vec<Pattern>,
}

struct Pattern {
    text: &'static str,
    /// Between its slashes.
    parts: Vec<&'static str>,
}

impl Pattern {
    /// Those of routes, in the order in which a path is compared with them: the first one that it fits is its own.
    fn all(mut texts: Vec<&'static str>) -> Vec<Pattern> {
        texts.sort_by_key(|text| text.contains('{'));
        texts.into_iter().map(|text| Pattern { text, parts: text.split('/').collect() }).collect()
    }

    fn fits(&self, path: &str, parts: usize) -> bool {
        let is_alike = |(wanted, given): (&&str, &str)| {
            *wanted == given || (wanted.starts_with('{') && !given.is_empty())
        };
        self.parts.len() == parts && self.parts.iter().zip(path.split('/')).all(is_alike)
    }
}

/// What a path is counted as that fits no pattern.
const OTHER: &str = "other";

impl Routes {
    /// The pattern that a path fits.
    pub(crate) fn pattern(&self, path: &str) -> &'static str {
        let parts = path.split('/').count();
        let found = self.patterns.iter().find(|pattern| pattern.fits(path, parts));
        found.map_or(OTHER, |pattern| pattern.text)
    }
}

/// A router that knows its patterns.
struct Rows(Router<Arc<App>>, Vec<&'static str>);

impl Rows {
    fn route(mut self, pattern: &'static str, methods: MethodRouter<Arc<App>>) -> Rows {
        self.1.push(pattern);
        Rows(self.0.route(pattern, methods), self.1)
    }
}

/// All routes.
pub(crate) fn routes(app: Arc<App>, has_dashboard: bool) -> Routes {
    let rows = if has_dashboard { of_dashboard(rows()) } else { rows() };
    let Rows(router, patterns) = rows;
    let router = router
        .fallback(async || Problem::new(NOT_FOUND, "there is no such path"))
        .method_not_allowed_fallback(async || Problem::new(METHOD_NOT_ALLOWED, "the path has other methods"))
        .with_state(app);
    Routes { router, patterns: Pattern::all(patterns) }
}

/// The dashboard, and signing in to it.
fn of_dashboard(rows: Rows) -> Rows {
    rows.route("/", get(dashboard::page))
        .route("/assets/{name}", get(dashboard::asset))
        .route("/v1/sign-in", get(sign_in::who).post(sign_in::sign_in).delete(sign_in::sign_out))
}

fn rows() -> Rows {
    Rows(Router::new(), Vec::new())
        .route("/v1/claims/{claim}", put(claims::claim).delete(held::release))
        .route("/v1/claims/{claim}/renew", post(held::renew))
        .route("/v1/claims/{claim}/value", put(held::publish))
        .route("/v1/claims/renew", post(held::renew_many))
        .route("/v1/resource", get(resources::resource))
        .route("/v1/resources", get(resources::resources))
        .route("/v1/events", get(events::events))
        .route("/v1/leader", get(resources::leader))
        .route("/v1/resource/break", post(resources::break_hold))
        .route("/v1/resource/resize", post(resources::resize))
        .route("/v1/doctor", get(resources::doctor))
        .route("/v1/server", get(server::server))
        .route("/v1/queue/push", post(queues::push))
        .route("/v1/queue/take", post(queues::take))
        .route("/v1/deliveries/{claim}/{act}", post(queues::settle))
        .route("/v1/queues", get(items::queues))
        .route("/v1/queue/items", get(items::items))
        .route("/v1/queue/replay", post(items::replay))
        .route("/v1/queue/purge", post(items::purge))
        .route("/v1/openapi.json", get(openapi::document))
        .route("/v1/problems/{kind}", get(problems::problem))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::metrics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_counted_by_its_pattern_and_never_by_itself() {
        let Rows(_, patterns) = of_dashboard(rows());
        let routes = Routes { router: Router::new(), patterns: Pattern::all(patterns) };
        for (path, pattern) in [
            ("/v1/claims/6f", "/v1/claims/{claim}"),
            ("/v1/claims/renew", "/v1/claims/renew"),
            ("/v1/claims/6f/renew", "/v1/claims/{claim}/renew"),
            ("/v1/deliveries/6f/ack", "/v1/deliveries/{claim}/{act}"),
            ("/", "/"),
            ("/assets/main.js", "/assets/{name}"),
            ("/v1/claims/", OTHER),
            ("/v1/claims/6f/", OTHER),
            ("/v1/claims/6f/renew/7", OTHER),
            ("/v1/nothing", OTHER),
            ("", OTHER),
        ] {
            assert_eq!(routes.pattern(path), pattern, "{path}");
        }
    }
}
