//! Errors as RFC 9457 has them: a kind to act on, a text, a hint.
//!
//! A [`Problem`] is put into the response as an extension, and written as JSON where the id of the request is known (`front.rs`).

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use serde_json::{Map, Value, json};
use tenure_core::{Busy, Error, ErrorKind};

use crate::holder::holder;
use crate::millis::millis;

/// Its kind: what a program decides by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) status: u16,
    pub(crate) title: &'static str,
    /// What to do, for `/v1/problems/{kind}`.
    pub(crate) advice: &'static str,
}

macro_rules! kinds {
    ($($constant:ident $status:literal $name:literal $title:literal $advice:literal;)*) => {
        $(pub(crate) const $constant: &Kind = &Kind { name: $name, status: $status, title: $title, advice: $advice };)*
        /// All kinds.
        pub(crate) const KINDS: &[&Kind] = &[$($constant),*];
    };
}

kinds! {
    INVALID 400 "invalid" "the request breaks a stated limit" "Fix the caller: the text says which field, and what is allowed.";
    UNAUTHORIZED 401 "unauthorized" "no token that is known" "Send a token of this server: Authorization: Bearer tnr_...";
    FORBIDDEN 403 "forbidden" "not with this token, or not from there" "Ask the operator for the verb and the name, or send the request to a name of this server.";
    NOT_FOUND 404 "not_found" "there is nothing here" "See the routes in docs/operating/serve.md.";
    METHOD_NOT_ALLOWED 405 "method_not_allowed" "not with this method" "See the header Allow.";
    TOO_SLOW 408 "too_slow" "the request took too long to arrive" "Send the body at once.";
    CONFLICT 409 "conflict" "the name is in use with another kind or capacity" "Fix the caller, or resize the resource.";
    LOST 410 "lost" "the claim neither holds nor waits" "Stop the work now. Take a new id to claim again.";
    FINISHED 410 "finished" "the id of the claim is used up" "Nothing is held under it. Take a new id to claim again.";
    TOO_LARGE 413 "too_large" "the body is too large" "Send at most 1 MiB.";
    MEDIA_TYPE 415 "unsupported_media_type" "the body is not JSON" "Send JSON with Content-Type: application/json.";
    ELSEWHERE 421 "elsewhere" "the claim lives in another instance" "Send the request to the instance that granted the claim. On this engine run one instance.";
    BUSY 423 "busy" "held by another" "Try again, or wait: leave out \"wait\": false.";
    RATE 429 "rate" "too many requests" "Wait as long as Retry-After says.";
    INTERNAL 500 "internal" "a bug of tenure, or a damaged store" "Report it, with the output of `tenure doctor`.";
    UNSUPPORTED 501 "unsupported" "the engine cannot do it" "The text says why. Another engine may.";
    OVERLOADED 503 "overloaded" "this server has as much to do as it may" "Wait as long as Retry-After says.";
    UNAVAILABLE 503 "unavailable" "the outcome is unknown" "Repeat the same request, with the same id.";
}

/// Why a request was not done.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) kind: &'static Kind,
    detail: String,
    hint: Option<String>,
    resource: Option<String>,
    /// More that programs may read.
    more: Map<String, Value>,
    retry_after: Option<u32>,
    /// Whether the rest of the connection is of no use: its body was not read.
    is_last: bool,
    /// Whether a page of elsewhere has sent the request.
    is_foreign: bool,
    /// How long the request had waited for a grant.
    waited_ms: u32,
}

impl Problem {
    pub(crate) fn new(kind: &'static Kind, detail: impl Into<String>) -> Problem {
        Problem {
            kind,
            detail: detail.into(),
            hint: None,
            resource: None,
            more: Map::new(),
            retry_after: None,
            is_last: false,
            is_foreign: false,
            waited_ms: 0,
        }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Problem {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn about(mut self, resource: &str) -> Problem {
        self.resource = Some(resource.to_owned());
        self
    }

    pub(crate) fn with_retry_after(mut self, period: Duration) -> Problem {
        self.retry_after = Some(period.as_secs().max(1) as u32);
        self
    }

    /// Its body was not read: the connection ends with the answer.
    pub(crate) fn last(mut self) -> Problem {
        self.is_last = true;
        self
    }

    /// A page of elsewhere has sent the request.
    pub(crate) fn foreign(mut self) -> Problem {
        self.is_foreign = true;
        self
    }

    pub(crate) fn after(mut self, waited_ms: u64) -> Problem {
        self.waited_ms = u32::try_from(waited_ms).unwrap_or(u32::MAX);
        self
    }

    pub(crate) fn waited_ms(&self) -> u64 {
        self.waited_ms.into()
    }

    /// As which refusal it is counted, if it is one.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        match self.kind.name {
            _ if self.is_foreign => Some("origin"),
            "unauthorized" => Some("unauthorized"),
            "forbidden" => Some("forbidden"),
            "rate" => Some("rate"),
            "overloaded" => Some("overload"),
            "too_large" => Some("too_large"),
            "too_slow" => Some("slow"),
            _ => None,
        }
    }

    pub(crate) fn lost(resource: &str) -> Problem {
        Problem::new(LOST, "the claim neither holds nor waits").about(resource)
    }

    pub(crate) fn finished(resource: &str) -> Problem {
        Problem::new(FINISHED, "the id of the claim is used up: what it held or waited for has ended")
            .with_hint("claim anew, with another id")
            .about(resource)
    }

    /// As it stands in a list of answers.
    pub(crate) fn brief(&self) -> Value {
        json!({"kind": self.kind.name, "status": self.kind.status, "detail": self.detail, "hint": self.hint})
    }

    /// As it is sent.
    pub(crate) fn text(&self, request_id: &str) -> String {
        let Kind { name, status, title, .. } = self.kind;
        let mut text = json!({
            "type": format!("/v1/problems/{name}"),
            "title": title,
            "status": status,
            "kind": name,
            "detail": self.detail,
            "hint": self.hint,
            "resource": self.resource,
            "request_id": request_id,
        });
        if let Some(fields) = text.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
            fields.extend(self.more.clone());
        }
        text.to_string()
    }

    pub(crate) fn resource(&self) -> Option<&str> {
        self.resource.as_deref()
    }

    fn of_busy(mut self, busy: &Busy) -> Problem {
        let mut fields = json!({
            "held_ms": millis(busy.held_for),
            "free_in_ms": busy.free_in.map(millis),
            "waiting": busy.waiting,
            "resting": busy.is_resting,
        });
        fields["holder"] = busy.holder.as_ref().map_or(Value::Null, holder);
        if let Value::Object(mut fields) = fields {
            fields.retain(|_, value| !value.is_null());
            self.more = fields;
        }
        self
    }
}

/// Which kind an error is.
pub(crate) fn kind_of(error: &Error) -> &'static Kind {
    match error.kind() {
        _ if error.is_of_another_client() => ELSEWHERE,
        ErrorKind::Lost => LOST,
        ErrorKind::Timeout => BUSY,
        ErrorKind::Finished => FINISHED,
        ErrorKind::Unavailable => UNAVAILABLE,
        ErrorKind::Conflict => CONFLICT,
        ErrorKind::Invalid => INVALID,
        ErrorKind::Unsupported => UNSUPPORTED,
        _ => INTERNAL,
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let kind = kind_of(&error);
        let mut problem = Problem::new(kind, error.to_string());
        problem.hint = match (error.hint(), kind.name) {
            (_, "unavailable") => Some("repeat the same request, with the same id".to_owned()),
            (hint, _) => hint.map(str::to_owned),
        };
        problem.resource = error.resource().map(|name| name.as_str().to_owned());
        match error.busy() {
            Some(busy) => problem.of_busy(busy),
            None => problem,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::from_u16(self.kind.status).unwrap_or(StatusCode::BAD_REQUEST);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.kind == UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_last {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_name_and_a_status_of_errors() {
        for (at, kind) in KINDS.iter().enumerate() {
            assert!((400..600).contains(&kind.status), "{}", kind.name);
            assert!(KINDS[..at].iter().all(|other| other.name != kind.name), "{} twice", kind.name);
        }
    }

    #[test]
    fn an_unknown_outcome_says_to_repeat_and_a_used_id_to_take_another() {
        for (kind, status, hint) in [
            (ErrorKind::Unavailable, 503, "repeat the same request"),
            (ErrorKind::Finished, 410, ""),
            (ErrorKind::Lost, 410, ""),
            (ErrorKind::Conflict, 409, ""),
            (ErrorKind::Invalid, 400, ""),
            (ErrorKind::Timeout, 423, ""),
            (ErrorKind::Unsupported, 501, ""),
            (ErrorKind::Internal, 500, ""),
        ] {
            let problem = Problem::from(Error::new(kind, "claim", "so it is"));
            assert_eq!(problem.kind.status, status, "{kind:?}");
            let text: Value = serde_json::from_str(&problem.text("7")).expect("JSON");
            assert_eq!(text["request_id"], "7");
            assert!(text["hint"].as_str().unwrap_or_default().contains(hint), "{kind:?}");
        }
    }
}
