//! An item in messages for people, and in events for programs (`--json`).

use serde::Serialize;
use tenure::Delivery;

/// What happened to an item, for `--json`. Field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct ItemEvent<'a> {
    pub(super) event: &'static str,
    pub(super) queue: &'a str,
    pub(super) item: u64,
    pub(super) group: Option<&'a str>,
    pub(super) attempt: u32,
    pub(super) token: u64,
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
pub(super) struct ItemInfo {
    item: u64,
    group: Option<String>,
    attempt: u32,
    token: u64,
}

impl ItemInfo {
    /// Takes it from a delivery.
    pub(super) fn of(delivery: &Delivery) -> ItemInfo {
        let group = delivery.group().map(str::to_owned);
        let (item, token) = (delivery.item().0, delivery.token().get());
        ItemInfo { item, group, attempt: delivery.attempt(), token }
    }

    /// Makes an event of it.
    pub(super) fn event<'a>(&'a self, event: &'static str, queue: &'a str) -> ItemEvent<'a> {
        let (item, group, attempt, token) = (self.item, self.group.as_deref(), self.attempt, self.token);
        let (pid, code, signal, took_ms, retry_in_ms, reason) = (None, None, None, None, None, None);
        ItemEvent {
            event,
            queue,
            item,
            group,
            attempt,
            token,
            pid,
            code,
            signal,
            took_ms,
            retry_in_ms,
            reason,
        }
    }
}

impl std::fmt::Display for ItemInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "item {}", self.item)?;
        if let Some(group) = &self.group {
            write!(f, " of {group:?}")?;
        }
        if self.attempt > 1 { write!(f, ", attempt {}", self.attempt) } else { Ok(()) }
    }
}
