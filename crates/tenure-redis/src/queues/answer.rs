//! What the operations on queues answer, as text and numbers.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{
    Dispatched, ItemContext, ItemId, ItemState, ItemView, Pushed, QueueStats, Take, Taken, Which,
};
use tenure_core::model::claim::{Label, Name};
use tenure_core::model::token::Token;

use crate::lua::answer::{Unexpected, array, bytes, number, text, unexpected};

type Result<T> = std::result::Result<T, Unexpected>;

/// A number of an item as it is stored.
pub(crate) fn padded(item: ItemId) -> String {
    format!("{:016}", item.0)
}

/// Reads a period in microseconds where -1 means none.
fn period_if_any(value: &Value) -> Result<Option<Duration>> {
    match value {
        Value::Int(..0) => Ok(None),
        value => Ok(Some(Duration::from_micros(number(value)?))),
    }
}

pub(crate) fn pushed(value: &Value) -> Result<Pushed> {
    // The number of what was pushed before is given as text.
    let is_duplicate = !matches!(value, Value::Int(_));
    Ok(Pushed { item: ItemId(number(value)?), is_duplicate })
}

/// An item as it is stored.
struct Stored<'a> {
    pushed_at: Timestamp,
    due_at: Timestamp,
    group: Option<Name>,
    payload: &'a [u8],
}

/// As [`stored`], and what was changed so that it cannot be read is a payload as it is.
fn shown(value: &[u8]) -> Stored<'_> {
    let never = Timestamp::from_micros(0);
    let damaged = Stored { pushed_at: never, due_at: never, group: None, payload: value };
    stored(value).unwrap_or(damaged)
}

/// Reads an item: when it was pushed, until when it is held back, the group, a tab, the payload.
fn stored(value: &[u8]) -> Option<Stored<'_>> {
    let moment = |from: usize| {
        let micros = std::str::from_utf8(value.get(from..from + 16)?).ok()?.parse::<u64>().ok()?;
        Some(Timestamp::from_micros(micros))
    };
    let rest = value.get(32..)?;
    let tab = rest.iter().position(|byte| *byte == b'\t')?;
    let group = match &rest[..tab] {
        [] => None,
        group => Some(Name::new(std::str::from_utf8(group).ok()?).ok()?),
    };
    Some(Stored { pushed_at: moment(0)?, due_at: moment(16)?, group, payload: &rest[tab + 1..] })
}

/// Reads what was handed out; none if the tokens are used up.
pub(crate) fn taken(take: &Take, now: Timestamp, value: Value) -> Result<Option<Taken>> {
    let answer = array(value)?;
    let Some((look_in, fields)) = answer.split_first() else {
        return Err(Unexpected("an empty answer".to_owned()));
    };
    if *look_in == Value::Int(-2) {
        return Ok(None);
    }
    let mut items = Vec::with_capacity(fields.len() / 5);
    for (claim, item) in take.claims.iter().zip(fields.chunks_exact(5)) {
        let [id, attempt, token, context, value] = item else { continue };
        let stored = stored(bytes(value)?).ok_or_else(|| unexpected(value))?;
        let Stored { group, payload, due_at, .. } = stored;
        items.push(Dispatched {
            claim: *claim,
            item: ItemId(number(id)?),
            group,
            payload: payload.into(),
            context: ItemContext::from_stored(bytes(context)?),
            attempt: u32::try_from(number(attempt)?).unwrap_or(u32::MAX),
            token: Token::new(number(token)?),
            ends_in: take.rules.ttl,
            age: now.since(due_at),
        });
    }
    Ok(Some(Taken { items, look_in: period_if_any(look_in)? }))
}

pub(crate) fn stats(items: &[Value]) -> Result<QueueStats> {
    let [live, in_flight, dead, next_in] = items else {
        return Err(Unexpected(format!("{} fields", items.len())));
    };
    let mut stats = QueueStats::default();
    stats.in_flight = number(in_flight)?;
    stats.waiting = number(live)?.saturating_sub(stats.in_flight);
    stats.dead = number(dead)?;
    stats.next_in = period_if_any(next_in)?;
    Ok(stats)
}

/// Reads how many there were, and behind which there may be more.
pub(crate) fn count(items: &[Value]) -> Result<(usize, Option<String>)> {
    let Some((count, rest)) = items.split_first() else { return Err(Unexpected("no fields".to_owned())) };
    let seen = rest.first().map(text).transpose()?.filter(|seen| !seen.is_empty());
    Ok((number(count)? as usize, seen.map(str::to_owned)))
}

/// Reads an item as `queue_items.lua` shows it.
pub(crate) fn view(which: Which, now: Timestamp, value: Value) -> Result<ItemView> {
    let fields = array(value)?;
    let view = match which {
        Which::Live => live_view(now, &fields),
        Which::Dead => dead_view(now, &fields),
    };
    view.ok_or_else(|| Unexpected(format!("an item of {} fields", fields.len())))
}

/// A column of digits.
fn digits(text: &[u8], from: usize, to: usize) -> Option<u64> {
    std::str::from_utf8(text.get(from..to)?).ok()?.parse().ok()
}

fn live_view(now: Timestamp, fields: &[Value]) -> Option<ItemView> {
    let [id, context, value, state, ready] = fields else { return None };
    let Stored { pushed_at, group, payload, .. } = shown(bytes(value).ok()?);
    let state = bytes(state).ok()?;
    let since = |micros: u64| Timestamp::from_micros(micros).since(now);
    let (mut attempts, mut ends_in) = (0, Duration::ZERO);
    if !state.is_empty() {
        attempts = u32::try_from(digits(state, 96, 106)?).ok()?;
        // It is zero where no consumer has it.
        ends_in = since(digits(state, 16, 32)?);
    }
    let state = match ready {
        Value::Int(..0) => ItemState::Behind,
        _ if !ends_in.is_zero() => {
            let label = Label::from_stored(&String::from_utf8_lossy(state.get(122..)?));
            ItemState::InFlight { label, ends_in }
        }
        ready => ItemState::Waiting { ready_in: since(number(ready).ok()?) },
    };
    let (item, context) = (ItemId(number(id).ok()?), ItemContext::from_stored(bytes(context).ok()?));
    let (payload, age) = (payload.into(), now.since(pushed_at));
    Some(ItemView { item, group, payload, context, attempts, age, state })
}

fn dead_view(now: Timestamp, fields: &[Value]) -> Option<ItemView> {
    let [id, context, letter] = fields else { return None };
    let context = ItemContext::from_stored(bytes(context).ok()?);
    let letter = bytes(letter).ok()?;
    let since = now.since(Timestamp::from_micros(digits(letter, 0, 16)?));
    let attempts = u32::try_from(digits(letter, 16, 26)?).ok()?;
    let end = 29 + usize::try_from(digits(letter, 26, 29)?).ok()?;
    let reason = String::from_utf8_lossy(letter.get(29..end)?).into_owned();
    let Stored { pushed_at, group, payload, .. } = shown(letter.get(end..)?);
    let (item, payload): (_, Arc<[u8]>) = (ItemId(number(id).ok()?), payload.into());
    let (age, state) = (now.since(pushed_at), ItemState::Dead { reason, since });
    Some(ItemView { item, group, payload, context, attempts, age, state })
}
