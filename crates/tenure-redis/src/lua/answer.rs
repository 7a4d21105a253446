//! What is sent to the scripts and what they answer, as text and numbers.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{
    Busy, CAPACITY_MAX, Claim, ClaimId, Grant, Kind, Label, Name, Published, Terms, Waiting,
};
use tenure_core::model::inspect::{HoldView, View, WaiterView};
use tenure_core::model::step::{Claimed, Refusal, ReleaseAnswer, Renewed, WithdrawAnswer};
use tenure_core::model::token::Token;

/// An answer that no script of this version gives.
#[derive(Debug)]
pub struct Unexpected(pub String);

type Result<T> = std::result::Result<T, Unexpected>;

/// What a script answered: the server's time, and an item for each request.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) now: Timestamp,
    pub(crate) items: Vec<Value>,
}

pub(crate) fn answers(value: Value) -> Result<Answers> {
    let mut items = array(value)?.into_iter();
    let now = items.next().ok_or_else(|| Unexpected("an empty answer".to_owned()))?;
    Ok(Answers { now: Timestamp::from_micros(number(&now)?), items: items.collect() })
}

pub(crate) fn array(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn unexpected(value: &Value) -> Unexpected {
    let mut text = format!("{value:?}");
    text.truncate(text.char_indices().nth(200).map_or(text.len(), |(end, _)| end));
    Unexpected(text)
}

pub(crate) fn bytes(value: &Value) -> Result<&[u8]> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        other => Err(unexpected(other)),
    }
}

/// Reads a text.
pub fn text(value: &Value) -> Result<&str> {
    std::str::from_utf8(bytes(value)?).map_err(|_| unexpected(value))
}

/// Reads a number that is not negative, given as one or as its digits.
pub fn number(value: &Value) -> Result<u64> {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        other => text(other)?.parse().ok(),
    };
    number.ok_or_else(|| unexpected(value))
}

fn millis(value: &Value) -> Result<Duration> {
    Ok(Duration::from_millis(number(value)?))
}

/// Reads a period where -1 means none.
fn millis_if_any(value: &Value) -> Result<Option<Duration>> {
    if matches!(value, Value::Int(..0)) { Ok(None) } else { millis(value).map(Some) }
}

fn fields<const N: usize>(items: &[Value]) -> Result<&[Value; N]> {
    items.first_chunk().ok_or_else(|| Unexpected(format!("{} fields in place of {N}", items.len())))
}

/// A period in whole milliseconds, never shorter than asked for.
pub fn in_millis(period: Duration) -> u64 {
    u64::try_from(period.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// The letter of a kind in the store.
fn letter(kind: Kind) -> &'static str {
    match kind {
        Kind::RwLock => "r",
        Kind::Semaphore => "s",
        Kind::SlotPool => "p",
        // The face of the client knows no other.
        _ => "m",
    }
}

fn kind_of(letter: &str) -> Result<Kind> {
    match letter {
        "m" => Ok(Kind::Mutex),
        "r" => Ok(Kind::RwLock),
        "s" => Ok(Kind::Semaphore),
        "p" => Ok(Kind::SlotPool),
        other => Err(Unexpected(format!("kind {other:?}"))),
    }
}

/// The terms of a claim as its waiter and the last columns of its hold have them.
pub(crate) fn terms(claim: &Claim) -> String {
    let Terms { ttl, limits, weight, label, .. } = &*claim.terms;
    format!(
        "{:08} {} {} {} {} {weight} - {}",
        in_millis(*ttl),
        claim.client,
        limits.max_hold.map_or(0, in_millis),
        in_millis(limits.min_hold),
        in_millis(limits.lock_delay),
        label.as_str(),
    )
}

/// What else a claim asks for.
pub(crate) fn options(claim: &Claim) -> String {
    let digit = u8::from;
    format!(
        "{} {} {} {} {}",
        letter(claim.terms.kind),
        claim.terms.capacity,
        digit(claim.wait),
        digit(claim.floor_forced),
        digit(claim.terms.unless_fresh),
    )
}

/// How long the key of a mutex without anything special lives; 0 for any other claim.
pub(crate) fn plain_life(claim: &Claim) -> u64 {
    let terms = &claim.terms;
    let is_plain = terms.kind == Kind::Mutex && terms.limits == Default::default() && !terms.unless_fresh;
    if is_plain { in_millis(terms.ttl) } else { 0 }
}

/// What a script says of a request that failed alone. What it had done by then is not known.
fn failed(items: &[Value]) -> Unexpected {
    let why = items.first().and_then(|why| text(why).ok()).unwrap_or("no reason");
    Unexpected(format!("that a key of this resource cannot be used: {why}"))
}

/// Says what a key holds that no claim can use, if that is the answer to it: another client has made it.
pub(crate) fn foreign(answer: &Value) -> Option<&str> {
    let Value::Array(items) = answer else { return None };
    let [kind, what] = &items[..] else { return None };
    (text(kind).ok()? == "X").then_some(match text(what).ok()? {
        "zset" => "sorted set",
        what => what,
    })
}

/// Reads the answer to a release.
pub(crate) fn released(answer: Value) -> Result<ReleaseAnswer> {
    match answer {
        Value::Array(items) => Err(failed(items.get(1..).unwrap_or_default())),
        answer if number(&answer)? == 1 => Ok(ReleaseAnswer::Released),
        _ => Ok(ReleaseAnswer::AlreadyLost),
    }
}

/// Reads the answer to a withdrawal.
pub(crate) fn withdrawn(answer: Value) -> Result<WithdrawAnswer> {
    if let Value::Array(items) = answer {
        return Err(failed(items.get(1..).unwrap_or_default()));
    }
    match number(&answer)? {
        0 => Ok(WithdrawAnswer::AlreadyLost),
        1 => Ok(WithdrawAnswer::Withdrawn),
        2 => Ok(WithdrawAnswer::InUse),
        _ => Err(unexpected(&answer)),
    }
}

/// Reads the answer to a claim.
pub(crate) fn claimed(
    claim: &Claim,
    now: Timestamp,
    answer: Value,
) -> Result<std::result::Result<Claimed, Refusal>> {
    let items = match answer {
        // The common case: the token of a mutex without anything special.
        Value::Int(_) => {
            let token = Token::new(number(&answer)?);
            let ends_in = Duration::from_millis(in_millis(claim.terms.ttl));
            return Ok(Ok(Claimed::Granted(Grant { token, slot: None, ends_in })));
        }
        other => array(other)?,
    };
    let Some((kind, rest)) = items.split_first() else { return Err(Unexpected("no fields".to_owned())) };
    match text(kind)? {
        "E" => Err(failed(rest)),
        "G" => Ok(Ok(Claimed::Granted(grant(rest)?))),
        "W" => Ok(Ok(Claimed::Waiting(waiting(rest)?))),
        "B" => Ok(Ok(Claimed::Busy(busy(rest)?))),
        "F" => Ok(Ok(Claimed::Finished)),
        "V" => {
            let [fresh_for, token, value] = fields(rest)?;
            let (fresh_for, token) = (millis(fresh_for)?, Token::new(number(token)?));
            Ok(Ok(Claimed::Fresh(Published { bytes: bytes(value)?.into(), token, fresh_for })))
        }
        "C" => {
            let [kind, capacity] = fields(rest)?;
            let capacity = u32::try_from(number(capacity)?).unwrap_or(CAPACITY_MAX);
            Ok(Err(Refusal::Conflict { kind: kind_of(text(kind)?)?, capacity }))
        }
        "A" => Ok(Err(Refusal::FloorAhead { now })),
        "I" => Ok(Err(Refusal::Invalid("the weight does not fit the capacity"))),
        "T" => {
            Ok(Err(Refusal::Invalid("the tokens are used up: a floor or the store's clock was very wrong")))
        }
        "X" => Ok(Err(Refusal::Invalid("the key holds what another program has made"))),
        "Q" => Ok(Err(Refusal::QueueFull)),
        other => Err(Unexpected(other.to_owned())),
    }
}

/// Reads the answer to a renewal.
pub(crate) fn renewed(answer: Value) -> Result<Renewed> {
    let items = match answer {
        Value::Int(0) => return Ok(Renewed::Lost),
        Value::Int(_) => {
            let ends_in = millis(&answer)?;
            return Ok(Renewed::Held(Grant { token: Token::ZERO, slot: None, ends_in }));
        }
        other => array(other)?,
    };
    let Some((kind, rest)) = items.split_first() else { return Err(Unexpected("no fields".to_owned())) };
    match text(kind)? {
        "E" => Err(failed(rest)),
        "G" => Ok(Renewed::Held(grant(rest)?)),
        "W" => Ok(Renewed::Waiting(waiting(rest)?)),
        other => Err(Unexpected(other.to_owned())),
    }
}

fn grant(items: &[Value]) -> Result<Grant> {
    let [token, slot, ends_in] = fields(items)?;
    Ok(Grant { token: Token::new(number(token)?), slot: slot_of(text(slot)?)?, ends_in: millis(ends_in)? })
}

fn slot_of(text: &str) -> Result<Option<u32>> {
    if text == "-" { Ok(None) } else { parse(text).map(Some) }
}

fn parse<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| Unexpected(format!("{text:?} in place of a number")))
}

fn waiting(items: &[Value]) -> Result<Waiting> {
    let [position, horizon, look_in] = fields(items)?;
    Ok(Waiting {
        position: u32::try_from(number(position)?).unwrap_or(u32::MAX),
        horizon: Token::new(number(horizon)?),
        look_in: millis_if_any(look_in)?,
    })
}

fn busy(items: &[Value]) -> Result<Busy> {
    let [last, waiting, free_in] = fields(items)?;
    let waiting = u32::try_from(number(waiting)?).unwrap_or(u32::MAX);
    let mut busy = Busy::new(Token::new(number(last)?), waiting);
    busy.free_in = millis_if_any(free_in)?;
    if let [token, held_for, is_resting, label] = &items[3..] {
        busy.token = Token::new(number(token)?);
        busy.held_for = millis(held_for)?;
        busy.is_resting = number(is_resting)? == 1;
        busy.holder = Some(Label::from_stored(&String::from_utf8_lossy(bytes(label)?)));
    }
    Ok(busy)
}

/// News for a waiter, as the scripts publish it.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// The claim is granted, by which life of the server.
    Granted(ClaimId, Grant, u64),
    /// A client should ask whether the claim can be granted.
    Look(ClaimId),
    /// Something is ready in a queue.
    Ready(Name),
}

/// Reads a message of an inbox.
pub fn message(payload: &[u8]) -> Option<Message> {
    let text = std::str::from_utf8(payload).ok()?;
    if let Some(queue) = text.strip_prefix("Q ") {
        return Name::new(queue).ok().map(Message::Ready);
    }
    let mut words = text.split(' ');
    let kind = words.next()?;
    let claim = words.next()?.parse().ok()?;
    match kind {
        "G" => {
            let token = Token::new(words.next()?.parse().ok()?);
            let slot = slot_of(words.next()?).ok()?;
            let ends_in = Duration::from_millis(words.next()?.parse().ok()?);
            let incarnation = words.next()?.parse().ok()?;
            Some(Message::Granted(claim, Grant { token, slot, ends_in }, incarnation))
        }
        "L" => Some(Message::Look(claim)),
        _ => None,
    }
}

/// A hold as it is stored.
struct StoredHold<'a> {
    claim: Option<ClaimId>,
    token: Token,
    granted_at: Timestamp,
    delay: Duration,
    weight: u32,
    slot: Option<u32>,
    label: &'a str,
}

/// None if the text is none of ours, by the same columns as in `record.lua`: then another client holds the key.
fn stored_hold(text: &str) -> Option<StoredHold<'_>> {
    let words: Vec<&str> = text.splitn(12, ' ').collect();
    let [id, flag, token, granted_at, ttl, client, max, min, delay, weight, slot, label] = words[..] else {
        return None;
    };
    let are_exact = [(id, 32), (flag, 1), (token, 16), (granted_at, 16), (ttl, 8)];
    let are_bounded = [(client, 16), (max, 15), (min, 15), (delay, 15), (weight, 7), (slot, 7)];
    let is_ours = are_exact.iter().all(|(column, length)| column.len() == *length)
        && are_bounded.iter().all(|(column, most)| column.len() <= *most);
    if !is_ours {
        return None;
    }
    Some(StoredHold {
        claim: id.parse().ok(),
        token: Token::new(token.parse().ok()?),
        granted_at: Timestamp::from_micros(granted_at.parse().ok()?),
        delay: Duration::from_millis(delay.parse().ok()?),
        weight: weight.parse().ok()?,
        slot: slot_of(slot).ok()?,
        label,
    })
}

/// Reads a resource as `look.lua` shows it, as it is now; none if nothing is held, rests or waits, and no value is
/// kept.
pub(crate) fn view(
    resource: &Name,
    now: Timestamp,
    last_token: Token,
    answer: Value,
) -> Result<Option<View>> {
    if answer == Value::Nil {
        return Ok(None);
    }
    let items = array(answer)?;
    match &items[..] {
        [_, why] => return Err(Unexpected(format!("that it cannot be read: {}", text(why)?))),
        [_, hold, ends] => {
            let (is_there, hold) = hold_view(hold, ends, now)?;
            let mut view = View::new(resource.clone(), Kind::Mutex, 1);
            (view.used, view.last_token) = (1, hold.token);
            view.holds.push(hold);
            return Ok(is_there.then_some(view));
        }
        _ => {}
    }
    let [kind, capacity, used, waiting, holds, waiters, value] = fields(&items)?;
    let mut view = View::new(resource.clone(), kind_of(text(kind)?)?, number(capacity)? as u32);
    view.used = number(used)? as u32;
    view.waiting = number(waiting)? as u32;
    let (holds, waiters) = (array(holds.clone())?, array(waiters.clone())?);
    let (mut held, mut ended) = (Vec::new(), Vec::new());
    for pair in holds.chunks_exact(2) {
        let (is_there, hold) = hold_view(&pair[0], &pair[1], now)?;
        let tokens = if hold.claim.is_none() { &mut ended } else { &mut held };
        tokens.push(hold.token);
        if is_there {
            view.holds.push(hold);
        } else {
            view.used = view.used.saturating_sub(hold.weight);
        }
    }
    for waiter in waiters.chunks_exact(3) {
        if ends_at(&waiter[2])? <= now {
            view.waiting = view.waiting.saturating_sub(1);
            continue;
        }
        let terms = String::from_utf8_lossy(bytes(&waiter[1])?);
        let mut words = terms.splitn(8, ' ').skip(5);
        let weight = parse(words.next().unwrap_or_default())?;
        let label = Label::from_stored(words.nth(1).unwrap_or_default());
        let claim = text(&waiter[0])?.parse().map_err(|_| unexpected(&waiter[0]))?;
        view.waiters.push(WaiterView::new(claim, label, weight));
    }
    // The last token of all that share it says nothing about this one.
    view.last_token = view.holds.last().map_or(last_token, |hold| hold.token);
    // A mutex is gone by itself when it ends. Of many holds of a hash not all are shown, and one that has ended stays until it is settled.
    let is_held =
        |token| if view.kind == Kind::Mutex { held.contains(&token) } else { !ended.contains(&token) };
    view.value = value_of(value, now, is_held)?;
    let is_shown = !view.holds.is_empty() || view.waiting > 0 || view.value.is_some();
    Ok(is_shown.then_some(view))
}

fn ends_at(value: &Value) -> Result<Timestamp> {
    Ok(Timestamp::from_micros(number(value)?.saturating_mul(1000)))
}

/// Reads a hold, and whether it is still there now.
fn hold_view(stored: &Value, ends: &Value, now: Timestamp) -> Result<(bool, HoldView)> {
    let stored = String::from_utf8_lossy(bytes(stored)?);
    let mut ends_at = ends_at(ends)?;
    // What another client of the classic protocol has set: all that is known is its text.
    let hold = stored_hold(&stored).unwrap_or(StoredHold {
        claim: Some(ClaimId::new(0)),
        token: Token::ZERO,
        granted_at: now,
        delay: Duration::ZERO,
        weight: 1,
        slot: None,
        label: &stored,
    });
    let is_ended = ends_at <= now;
    // A hold whose holder vanished and whose lock_delay runs is shown as the rest that it is.
    if is_ended && hold.claim.is_some() {
        ends_at = ends_at + hold.delay;
    }
    let mut view = HoldView::new(hold.token, Label::from_stored(hold.label), hold.weight);
    view.claim = hold.claim.filter(|_| !is_ended);
    view.slot = hold.slot;
    view.held_for = now.since(hold.granted_at);
    view.ends_in = ends_at.since(now);
    Ok((ends_at > now, view))
}

fn value_of(value: &Value, now: Timestamp, is_held: impl Fn(Token) -> bool) -> Result<Option<Arc<[u8]>>> {
    let items = array(value.clone())?;
    let [value, token, keep] = fields(&items)?;
    if text(token)?.is_empty() {
        return Ok(None);
    }
    let is_kept =
        if text(keep)?.is_empty() { is_held(Token::new(number(token)?)) } else { ends_at(keep)? > now };
    is_kept.then(|| bytes(value).map(Into::into)).transpose()
}
