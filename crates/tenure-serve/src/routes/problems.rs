//! `/v1/problems/{kind}`: what the `type` of an error leads to.

use axum::extract::Path;
use axum::response::Response;
use serde_json::json;

use crate::answer::json;
use crate::problem::{KINDS, NOT_FOUND, Problem};

pub(crate) async fn problem(Path(name): Path<String>) -> Result<Response, Problem> {
    let known = KINDS.iter().find(|kind| kind.name == name);
    let kind = known.ok_or_else(|| Problem::new(NOT_FOUND, "there is no such kind of error"))?;
    Ok(json(
        200,
        &json!({
            "kind": kind.name,
            "status": kind.status,
            "title": kind.title,
            "what_to_do": kind.advice,
        }),
    ))
}
