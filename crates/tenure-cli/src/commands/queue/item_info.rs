//! An item in messages for people, and in events for programs (`--json`).

use std::fmt;

use serde::Serialize;
use tenure::Delivery;

/// What happened to an item, for `--json`. Field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct ItemEvent<'a> {
    pub(super) event: &'static str,
    pub(super) queue: &'a str,
    #[serde(flatten)]
    pub(super) item: &'a ItemInfo,
    #[serde(flatten)]
    pub(super) details: Details<'a>,
}

/// What only some events have.
#[derive(Debug, Default, Serialize)]
pub(super) struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) took_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<&'a str>,
}

/// What messages name an item by. Its delivery is gone when it has been settled.
#[derive(Debug, Serialize)]
pub(super) struct ItemInfo {
    item: u64,
    group: Option<String>,
    attempt: u32,
    token: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
}

impl ItemInfo {
    /// Takes it from a delivery.
    pub(super) fn of(delivery: &Delivery) -> ItemInfo {
        let group = delivery.group().map(str::to_owned);
        let (item, token) = (delivery.item().0, delivery.token().get());
        let context = delivery.context().map(str::to_owned);
        ItemInfo { item, group, attempt: delivery.attempt(), token, context }
    }
}

impl fmt::Display for ItemInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "item {}", self.item)?;
        if let Some(group) = &self.group {
            write!(f, " of {group:?}")?;
        }
        if self.attempt > 1 { write!(f, ", attempt {}", self.attempt) } else { Ok(()) }
    }
}
