//! What can be asked: a file for each sort of thing. A row of `docs/operating/serve.md` for each route.

pub(crate) mod claims;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod held;
pub(crate) mod items;
pub(crate) mod problems;
pub(crate) mod queues;
pub(crate) mod resources;
pub(crate) mod wanted;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post, put};

use crate::app::App;
use crate::problem::{METHOD_NOT_ALLOWED, NOT_FOUND, Problem};

/// Whether a path is for everybody who reaches the server: health, and what errors mean.
pub(crate) fn is_public(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz") || path.starts_with("/v1/problems/")
}

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
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
        .route("/v1/queue/push", post(queues::push))
        .route("/v1/queue/take", post(queues::take))
        .route("/v1/deliveries/{claim}/{act}", post(queues::settle))
        .route("/v1/queues", get(items::queues))
        .route("/v1/queue/items", get(items::items))
        .route("/v1/queue/replay", post(items::replay))
        .route("/v1/queue/purge", post(items::purge))
        .route("/v1/problems/{kind}", get(problems::problem))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(async || Problem::new(NOT_FOUND, "there is no such path"))
        .method_not_allowed_fallback(async || Problem::new(METHOD_NOT_ALLOWED, "the path has other methods"))
        .with_state(app)
}
