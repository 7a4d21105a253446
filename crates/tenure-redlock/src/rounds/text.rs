//! The form of claims for the scripts, and what their answers mean.

use std::sync::Arc;

use redis::Value;
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{ClaimId, Kind, Label};
use tenure_core::model::token::Token;
use tenure_redis::server::{Unexpected, in_millis, number, text};

use super::node::Request;
use super::own::Own;
use super::values;

type Result<T> = std::result::Result<T, Unexpected>;

/// What one server answered to one claim.
#[derive(Clone, Debug)]
pub(crate) enum NodeAnswer {
    /// With which number and slot. Of a grant to an earlier copy of the claim also how much longer it is kept, in ms.
    Granted {
        number: u64,
        slot: Option<u32>,
        kept: Option<u64>,
    },
    Busy(NodeBusy),
    /// The claim has ended.
    Finished,
    Fresh(values::Stored),
    Conflict(Kind, u32),
    /// The floor is too far ahead of this clock, in microseconds.
    FloorAhead(u64),
    NumbersUsedUp,
}

/// Why a server did not grant.
#[derive(Clone, Debug)]
pub(crate) struct NodeBusy {
    pub(crate) counter: u64,
    pub(crate) waiting: u32,
    /// The place of the claim in the queue; 0: it does not wait.
    pub(crate) position: u32,
    /// When something comes free by itself, in ms.
    pub(crate) free_in: Option<u64>,
    /// The slots that are taken.
    pub(crate) taken: Vec<u32>,
    pub(crate) holder: Option<NodeHolder>,
}

/// A holder, as a server knows it.
#[derive(Clone, Debug)]
pub(crate) struct NodeHolder {
    pub(crate) number: u64,
    pub(crate) held_for: u64,
    pub(crate) is_resting: bool,
    pub(crate) id: String,
    pub(crate) label: Label,
}

/// The letter of what is asked for.
fn letter(own: &Own) -> char {
    let terms = &own.claim.terms;
    match terms.kind {
        Kind::RwLock if terms.weight == terms.capacity => 'w',
        Kind::RwLock => 'r',
        Kind::SlotPool => 'p',
        _ => 'm',
    }
}

/// How long a waiter lives on a server that does not hear of it.
fn life(own: &Own) -> u64 {
    in_millis(tenure_core::model::step::confirm_window(own.claim.terms.ttl))
}

/// What a claim asks for, as the last columns of its hold.
fn terms(own: &Own, slot: Option<u32>) -> String {
    let (claim, terms) = (&own.claim, &own.claim.terms);
    format!(
        "{:08} {} {} {} {} {} {} {}",
        in_millis(terms.ttl),
        claim.client,
        terms.limits.max_hold.map_or(0, in_millis),
        in_millis(terms.limits.min_hold),
        in_millis(terms.limits.lock_delay),
        own.attempt,
        slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string()),
        terms.label.as_str(),
    )
}

/// How long the key of a mutex without anything special lives; 0 for any other claim.
fn plain_life(own: &Own) -> u64 {
    let terms = &own.claim.terms;
    let is_plain = terms.kind == Kind::Mutex && terms.limits == Default::default() && !terms.unless_fresh;
    if is_plain { in_millis(terms.ttl) } else { 0 }
}

/// Whether two claims differ in nothing but their names, ids, floors, tickets and what they were told.
fn are_alike((one, slot): &(Own, Option<u32>), (next, next_slot): &(Own, Option<u32>)) -> bool {
    let what = |own: &Own| (own.claim.client, own.claim.wait, own.claim.floor_forced, own.attempt);
    let terms_alike = Arc::ptr_eq(&one.claim.terms, &next.claim.terms) || one.claim.terms == next.claim.terms;
    slot == next_slot && what(one) == what(next) && terms_alike
}

/// How many claims from the first one on are a run, and by how much each ticket is larger than the one before.
fn run(asked: &[(Own, Option<u32>)], proposal: u64) -> (usize, u64) {
    let (Some(first), second) = (asked.first(), asked.get(1)) else { return (0, 0) };
    let step = second.map_or(0, |(own, _)| u64::from(Some(own.ticket) == first.0.ticket.checked_add(1)));
    let is_of_run = |(at, next): &(usize, &(Own, Option<u32>))| {
        let (floor, first_floor) = (next.0.claim.floor.get(), first.0.claim.floor.get());
        // Floors below the proposal do not matter, unless a server's clock is very wrong.
        let floors_alike = floor == first_floor || floor.max(first_floor) < proposal;
        let (told, first_told) = (next.0.told.get(), first.0.told.get());
        let told_alike = told == first_told || told.max(first_told) < proposal;
        let is_next = next.0.ticket == first.0.ticket + *at as u64 * step;
        is_next && floors_alike && told_alike && are_alike(first, next)
    };
    (asked.iter().enumerate().take_while(is_of_run).count(), step)
}

/// Asks for claims, with a number that servers may take for a token.
pub(crate) fn claims(
    request: &mut Request,
    asked: &[(Own, Option<u32>)],
    proposal: u64,
    key: impl Fn(&Own) -> String,
) {
    let digit = u8::from;
    let mut rest = asked;
    while let Some((own, slot)) = rest.first() {
        let (count, step) = run(rest, proposal);
        let (alike, others) = rest.split_at(count.max(1));
        let floor = alike.iter().map(|(own, _)| own.claim.floor.get()).max().unwrap_or(0);
        // No server follows a proposal that is too far ahead, and without one each has a number of its own.
        let clock = Timestamp::from_micros(proposal);
        let told = alike.iter().map(|(own, _)| own.told).filter(|told| !told.is_ahead_of(clock));
        let told = told.max().unwrap_or(Token::ZERO).get();
        let what = format!(
            "{} {} {} {} {} {floor} {} {} {step} {} {}",
            letter(own),
            own.claim.terms.capacity,
            digit(own.claim.wait),
            digit(own.claim.terms.unless_fresh),
            digit(own.claim.floor_forced),
            proposal.max(floor.max(told) + 1),
            own.ticket,
            life(own),
            plain_life(own),
        );
        request.ask(key(own), own.claim.id, vec![what, terms(own, *slot)]);
        alike[1..].iter().for_each(|(own, _)| request.ask_alike(key(own), own.claim.id));
        rest = others;
    }
}

/// How a claim ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is released, or withdrawn.
    Released { is_unused: bool, is_finished: bool },
    /// What this attempt was granted is given back, and it waits on.
    GivenBack,
    /// What this attempt was granted is given back; another attempt may follow.
    Cancelled,
    /// It holds elsewhere, and does not wait here any more.
    WaitsNoMore,
}

/// What is said when a claim ends. Of one that is not known, there is nothing but the id.
pub(crate) fn ending(own: Option<&Own>, ending: Ending) -> String {
    let digit = u8::from;
    let (mode, is_finished, is_unused) = match ending {
        Ending::Released { is_unused, is_finished } => ('r', is_finished, is_unused),
        Ending::GivenBack => ('b', false, true),
        Ending::Cancelled => ('c', false, true),
        Ending::WaitsNoMore => ('u', false, true),
    };
    let (finished, unused) = (digit(is_finished), digit(is_unused));
    match own {
        // Alike for all: neither the attempt nor the place matters any more.
        _ if mode == 'r' => format!("r 0 {finished} {unused} 0 0 "),
        None => format!("{mode} 0 {finished} {unused} 0 0 "),
        Some(own) => {
            let (claim, fresh) = (&own.claim, digit(own.claim.terms.unless_fresh));
            let waiter = format!("{} {fresh} {} {}", letter(own), claim.client, claim.terms.label.as_str());
            format!("{mode} {} {finished} {unused} {} {} {waiter}", own.attempt, own.ticket, life(own))
        }
    }
}

/// What is sent when an attempt, or all that there is of a claim, ends, to a server that gets it again later.
pub(crate) fn ending_of(attempt: u32, how: Ending) -> String {
    match how {
        Ending::Released { .. } => ending(None, how),
        _ => format!("c {attempt} 0 1 0 0 "),
    }
}

fn items(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(Unexpected(format!("{other:?}"))),
    }
}

fn small(value: &Value) -> Result<u32> {
    Ok(u32::try_from(number(value)?).unwrap_or(u32::MAX))
}

pub(crate) fn kind_of(letter: &str) -> Result<Kind> {
    match letter {
        "m" => Ok(Kind::Mutex),
        "r" => Ok(Kind::RwLock),
        "p" => Ok(Kind::SlotPool),
        other => Err(Unexpected(format!("kind {other:?}"))),
    }
}

pub(crate) fn lossy(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

/// Reads a period where -1 means none.
fn millis_if_any(value: &Value) -> Result<Option<u64>> {
    if matches!(value, Value::Int(..0)) { Ok(None) } else { number(value).map(Some) }
}

/// Reads a server's answer to a stamp: the number that it has come to, and how much longer the hold is kept, in ms.
/// `None` if it does not hold there.
pub(crate) fn stamp(value: &Value) -> Option<(u64, u64)> {
    let Value::Array(items) = value else { return None };
    let [stamped, kept] = &items[..] else { return None };
    Some((number(stamped).ok()?, number(kept).ok()?))
}

/// Reads a server's answer to a claim.
pub(crate) fn answer(value: Value) -> Result<NodeAnswer> {
    if let Value::Int(_) = value {
        return Ok(NodeAnswer::Granted { number: number(&value)?, slot: None, kept: None });
    }
    let items = items(value)?;
    let field = |at: usize| items.get(at).ok_or_else(|| Unexpected(format!("{} fields", items.len())));
    match text(field(0)?)? {
        // Granted before, to an earlier copy.
        "G" => {
            let slot = items.get(2).and_then(|slot| text(slot).ok()?.parse().ok());
            Ok(NodeAnswer::Granted { number: number(field(1)?)?, slot, kept: Some(number(field(3)?)?) })
        }
        "B" => Ok(NodeAnswer::Busy(busy(&items)?)),
        "F" => Ok(NodeAnswer::Finished),
        "V" => {
            let Value::BulkString(bytes) = field(3)? else { return Err(Unexpected("no bytes".to_owned())) };
            let (fresh, token, keep) = (number(field(1)?)?, number(field(2)?)?, number(field(4)?)?);
            Ok(NodeAnswer::Fresh(values::Stored::new(bytes, token, None, fresh, keep)))
        }
        "C" => Ok(NodeAnswer::Conflict(kind_of(text(field(1)?)?)?, small(field(2)?)?)),
        "A" => Ok(NodeAnswer::FloorAhead(number(field(1)?)?)),
        "T" => Ok(NodeAnswer::NumbersUsedUp),
        "E" => Err(Unexpected(text(field(1)?)?.to_owned())),
        other => Err(Unexpected(other.to_owned())),
    }
}

fn busy(items: &[Value]) -> Result<NodeBusy> {
    let Some([_, counter, waiting, position, free_in, taken]) = items.first_chunk() else {
        return Err(Unexpected(format!("{} fields", items.len())));
    };
    let taken = text(taken)?.split(',').filter_map(|slot| slot.parse().ok()).collect();
    let holder = match &items[6..] {
        [number_of, held_for, is_resting, id, label] => Some(NodeHolder {
            number: number(number_of)?,
            held_for: number(held_for)?,
            is_resting: number(is_resting)? == 1,
            id: lossy(id),
            label: Label::from_stored(&lossy(label)),
        }),
        _ => None,
    };
    Ok(NodeBusy {
        counter: number(counter)?,
        waiting: small(waiting)?,
        position: small(position)?,
        free_in: millis_if_any(free_in)?,
        taken,
        holder,
    })
}

/// A hold as a server stores it.
pub(crate) struct Stored {
    /// `None`: the key was set by a client of the classic protocol.
    pub(crate) id: Option<ClaimId>,
    pub(crate) is_resting: bool,
    pub(crate) number: u64,
    pub(crate) granted: u64,
    pub(crate) slot: Option<u32>,
    pub(crate) is_writer: bool,
    pub(crate) label: Label,
}

/// Reads a hold.
pub(crate) fn stored(text: &str) -> Result<Stored> {
    let words: Vec<&str> = text.splitn(12, ' ').collect();
    let &[id, flag, number, granted, _, _, _, _, _, _, slot, label] = &words[..] else {
        return Err(Unexpected(format!("a hold {text:?}")));
    };
    let parsed = |word: &str| word.parse().map_err(|_| Unexpected(format!("{word:?} in place of a number")));
    Ok(Stored {
        id: id.parse().ok(),
        is_resting: flag.chars().all(char::is_uppercase),
        number: parsed(number)?,
        granted: parsed(granted)?,
        slot: slot.parse().ok(),
        is_writer: flag.eq_ignore_ascii_case("w"),
        label: Label::from_stored(label),
    })
}
