//! `tenure queue ls`, `peek` and `dead`: lists of queues and items.

use serde::Serialize;
use tenure::Name;
use tenure::queue::{ItemContext, ItemState, ItemView, QueueStats};

use super::arguments::{Ls, Peek};
use crate::connect::connect_blocking;
use crate::duration::{format_duration, millis};
use crate::exit::Outcome;
use crate::listing::table::Table;
use crate::output::data::{write_data, write_json};
use crate::output::holder::Holder;

/// How much of a payload or a reason a table shows, in characters.
const SHOWN_MAX: usize = 48;

/// A queue in JSON. Field names are stable; times are whole milliseconds.
#[derive(Serialize)]
struct QueueJson<'a> {
    queue: &'a str,
    waiting: u64,
    in_flight: u64,
    dead: u64,
    next_in_ms: Option<u64>,
}

/// An item in JSON. Field names are stable; times are whole milliseconds.
#[derive(Serialize)]
struct ItemJson<'a> {
    item: u64,
    group: Option<&'a str>,
    state: &'static str,
    attempts: u32,
    age_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<Holder<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<&'a str>,
    bytes: usize,
    /// `None` if it is not UTF-8.
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
}

impl<'a> ItemJson<'a> {
    fn of(view: &'a ItemView) -> ItemJson<'a> {
        let payload = std::str::from_utf8(&view.payload).ok();
        let hex = || view.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut json = ItemJson {
            item: view.item.0,
            group: view.group.as_ref().map(Name::as_str),
            state: "behind",
            attempts: view.attempts,
            age_ms: millis(view.age),
            ready_in_ms: None,
            holder: None,
            ends_in_ms: None,
            reason: None,
            dead_ms: None,
            context: view.context.as_ref().map(ItemContext::as_str),
            bytes: view.payload.len(),
            payload,
            payload_hex: payload.is_none().then(hex),
        };
        match &view.state {
            ItemState::Waiting { ready_in } => {
                (json.state, json.ready_in_ms) = ("waiting", Some(millis(*ready_in)));
            }
            ItemState::Behind => {}
            ItemState::InFlight { label, ends_in } => {
                (json.state, json.holder) = ("in_flight", Some(Holder::of(label)));
                json.ends_in_ms = Some(millis(*ends_in));
            }
            ItemState::Dead { reason, since } => {
                (json.state, json.reason) = ("dead", Some(reason.as_str()));
                json.dead_ms = Some(millis(*since));
            }
        }
        json
    }
}

/// Lists queues.
pub(crate) fn list_queues(ls: &Ls, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let queues = pollster::block_on(tenure.queues_each(&ls.prefix))?;
    pollster::block_on(tenure.close());
    if ls.json {
        let queue = |(name, stats): &'_ (Name, tenure::Result<QueueStats>)| match stats {
            Ok(QueueStats { waiting, in_flight, dead, next_in, .. }) => serde_json::json!(QueueJson {
                queue: name.as_str(),
                waiting: *waiting,
                in_flight: *in_flight,
                dead: *dead,
                next_in_ms: next_in.map(millis),
            }),
            Err(error) => serde_json::json!({ "queue": name.as_str(), "error": error.to_string() }),
        };
        write_json(&queues.iter().map(queue).collect::<Vec<_>>())?;
        return Ok(0);
    }
    if queues.is_empty() {
        write_data("there are no queues\n")?;
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = queues
        .iter()
        .map(|(name, stats)| {
            let stats = match stats {
                Ok(stats) => stats,
                Err(error) => {
                    let rest = ["-", "-", "-"].map(str::to_owned);
                    return [name.to_string()]
                        .into_iter()
                        .chain(rest)
                        .chain([format!("unreadable: {error}")])
                        .collect();
                }
            };
            let next = match stats.next_in {
                None => "-".to_owned(),
                Some(wait) if wait.is_zero() => "now".to_owned(),
                Some(wait) => format_duration(wait),
            };
            let counts = [stats.waiting, stats.in_flight, stats.dead].map(|count| count.to_string());
            [name.to_string()].into_iter().chain(counts).chain([next]).collect()
        })
        .collect();
    let headings = ["QUEUE", "WAITING", "IN FLIGHT", "DEAD", "NEXT IN"];
    write_data(&Table::new(&headings, &[1, 2, 3, 4]).render(&rows))?;
    Ok(0)
}

/// Shows what waits or is in flight.
pub(crate) fn list_items(peek: &Peek, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let items = pollster::block_on(tenure.queue(&peek.name).items(None, peek.count))?;
    pollster::block_on(tenure.close());
    let headings = ["ITEM", "GROUP", "STATE", "ATTEMPTS", "AGE", "PAYLOAD"];
    write_items(peek, &items, "nothing waits, and nothing is in flight\n", &headings, |item| {
        match &item.state {
            ItemState::Waiting { ready_in } if ready_in.is_zero() => "ready".to_owned(),
            ItemState::Waiting { ready_in } => format!("ready in {}", format_duration(*ready_in)),
            ItemState::InFlight { label, ends_in } if ends_in.is_zero() => format!("given up by {label}"),
            ItemState::InFlight { label, .. } => format!("with {label}"),
            _ => "behind".to_owned(),
        }
    })
}

/// Shows dead letters.
pub(crate) fn list_dead_letters(dead: &Peek, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let items = pollster::block_on(tenure.queue(&dead.name).dead_letters(None, dead.count))?;
    pollster::block_on(tenure.close());
    let headings = ["ITEM", "GROUP", "REASON", "ATTEMPTS", "AGE", "PAYLOAD"];
    write_items(dead, &items, "there are no dead letters\n", &headings, |item| match &item.state {
        ItemState::Dead { reason, .. } => shorten(reason.as_bytes()),
        _ => String::new(),
    })
}

fn write_items(
    peek: &Peek,
    items: &[ItemView],
    nothing: &str,
    headings: &[&str],
    state: impl Fn(&ItemView) -> String,
) -> Outcome {
    if peek.json {
        write_json(&items.iter().map(ItemJson::of).collect::<Vec<_>>())?;
        return Ok(0);
    }
    if items.is_empty() {
        write_data(nothing)?;
        return Ok(0);
    }
    let row = |item: &ItemView| {
        let group = item.group.as_ref().map_or("-".to_owned(), ToString::to_string);
        let (attempts, age) = (item.attempts.to_string(), format_duration(item.age));
        vec![item.item.to_string(), group, state(item), attempts, age, shorten(&item.payload)]
    };
    write_data(&Table::new(headings, &[3, 4]).render(&items.iter().map(row).collect::<Vec<_>>()))?;
    Ok(0)
}

/// A payload on one line: shortened, and without what would steer a terminal.
fn shorten(bytes: &[u8]) -> String {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.chars().take(SHOWN_MAX + 1).flat_map(char::escape_debug).collect::<String>(),
        Err(_) => {
            bytes.iter().take(SHOWN_MAX + 1).flat_map(|byte| byte.escape_ascii()).map(char::from).collect()
        }
    };
    // `escape_debug` is made for literals; quotes need no backslash here.
    let text = text.replace("\\\"", "\"").replace("\\'", "'");
    if text.chars().count() <= SHOWN_MAX {
        return text;
    }
    text.chars().take(SHOWN_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_one_short_line_that_steers_no_terminal() {
        for (payload, text) in [
            (&b"order 4711"[..], "order 4711"),
            (b"{\"a\": 1}\n", "{\"a\": 1}\\n"),
            (b"\x1b[2J", "\\u{1b}[2J"),
            (b"\xff\x00", "\\xff\\x00"),
            (b"", ""),
        ] {
            assert_eq!(shorten(payload), text);
        }
        let long = shorten("ä".repeat(1000).as_bytes());
        assert!(long.chars().count() == SHOWN_MAX && long.ends_with("ä…"), "{long}");
    }
}
