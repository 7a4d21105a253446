//! A record as seen from outside: for `status`, `watch` and operators.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::model::claim::{ClaimId, Kind, Label, Name};
use crate::model::record::{Record, Value};
use crate::model::token::Token;

/// The most holds, and the most waiters, that one view lists. The counts go on.
pub const VIEW_ENTRIES_MAX: usize = 1024;

/// One resource as an engine sees it.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("view-example").await?;
/// # let held = tenure.mutex("billing/4711").acquire().await?;
/// let view = tenure.view("billing/4711").await?.expect("it is held");
/// for hold in &view.holds {
///     println!("{} under token {}", hold.label, hold.token);
/// }
/// assert_eq!((view.used, view.last_token), (1, held.token()));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct View {
    /// Its name.
    pub resource: Name,
    /// What it is.
    pub kind: Kind,
    /// How many units it has.
    pub capacity: u32,
    /// How many of them are held or rest.
    pub used: u32,
    /// The largest token given.
    pub last_token: Token,
    /// The holds, and what rests, by token.
    pub holds: Vec<HoldView>,
    /// How many claims wait.
    pub waiting: u32,
    /// The waiters, the head of the queue first.
    pub waiters: Vec<WaiterView>,
    /// The value that a holder published.
    pub value: Option<Arc<[u8]>>,
}

/// Units that are not free.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HoldView {
    /// The claim. `None`: the units rest.
    pub claim: Option<ClaimId>,
    /// The label of the holder.
    pub label: Label,
    /// The token of the grant.
    pub token: Token,
    /// The slot, for a slot pool.
    pub slot: Option<u32>,
    /// How many units.
    pub weight: u32,
    /// How long ago they were granted.
    pub held_for: Duration,
    /// When the hold ends without renewal.
    pub ends_in: Duration,
}

/// A claim in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterView {
    /// The claim.
    pub claim: ClaimId,
    /// The label of the waiter.
    pub label: Label,
    /// How many units it wants.
    pub weight: u32,
}

impl View {
    /// Makes the view of a resource of which nothing is held; fill in what is known.
    pub fn new(resource: Name, kind: Kind, capacity: u32) -> View {
        View {
            resource,
            kind,
            capacity,
            used: 0,
            last_token: Token::ZERO,
            holds: Vec::new(),
            waiting: 0,
            waiters: Vec::new(),
            value: None,
        }
    }
}

impl HoldView {
    /// Makes the view of units that rest; fill in what is known.
    pub fn new(token: Token, label: Label, weight: u32) -> HoldView {
        let (held_for, ends_in) = (Duration::ZERO, Duration::ZERO);
        HoldView { claim: None, label, token, slot: None, weight, held_for, ends_in }
    }
}

impl WaiterView {
    /// Makes the view of a waiter.
    pub fn new(claim: ClaimId, label: Label, weight: u32) -> WaiterView {
        WaiterView { claim, label, weight }
    }
}

/// What happened to a resource between two looks at it.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// use tenure_core::model::inspect::{Change, changes};
///
/// # let tenure = tenure_core::memory::connect("change-example").await?;
/// let before = tenure.view("billing/4711").await?;
/// let held = tenure.mutex("billing/4711").acquire().await?;
/// let after = tenure.view("billing/4711").await?;
/// for change in changes(before.as_ref(), after.as_ref()) {
///     if let Change::Granted(hold) = change {
///         println!("granted to {} under token {}", hold.label, hold.token);
///         assert_eq!(hold.token, held.token());
///     }
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change<'a> {
    /// It was held already at the first look.
    Held(&'a HoldView),
    /// A claim was granted.
    Granted(&'a HoldView),
    /// A hold ended: it was released or broken, its holder died, or it was not renewed.
    Ended(&'a HoldView),
    /// Units rest: they are not held, and not granted yet.
    Resting(&'a HoldView),
    /// Another number of claims waits.
    Waiting(u32),
    /// It is not held, and no claim waits.
    Idle,
}

/// Tells what happened between two looks at a resource. What came and went in between is not seen.
pub fn changes<'a>(before: Option<&'a View>, after: Option<&'a View>) -> Vec<Change<'a>> {
    let (mut changes, old, new) = (Vec::new(), holds(before), holds(after));
    let has = |holds: &[HoldView], hold: &HoldView| {
        holds.iter().any(|other| other.token == hold.token && other.claim == hold.claim)
    };
    let ended = old.iter().filter(|hold| hold.claim.is_some() && !has(new, hold));
    changes.extend(ended.map(Change::Ended));
    changes.extend(new.iter().filter(|hold| !has(old, hold)).map(|hold| match hold.claim {
        None => Change::Resting(hold),
        Some(_) => Change::Granted(hold),
    }));
    let waiting = |view: Option<&View>| view.map_or(0, |view| view.waiting);
    if waiting(before) != waiting(after) {
        changes.push(Change::Waiting(waiting(after)));
    }
    if after.is_none() && before.is_some() {
        changes.push(Change::Idle);
    }
    changes
}

/// Tells how a resource is at the first look, as changes are told.
pub fn at_first(view: Option<&View>) -> Vec<Change<'_>> {
    let Some(view) = view else { return vec![Change::Idle] };
    let held = |hold| match hold {
        Change::Granted(hold) => Change::Held(hold),
        other => other,
    };
    changes(None, Some(view)).into_iter().map(held).collect()
}

fn holds(view: Option<&View>) -> &[HoldView] {
    view.map(|view| &*view.holds).unwrap_or_default()
}

/// Whether two views show the same, but for how long ago and how much longer: an observer is not notified of that.
pub fn shows_the_same(one: Option<&View>, other: Option<&View>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one.is_none() && other.is_none() };
    let head = |view: &View| (view.kind, view.capacity, view.used, view.last_token, view.waiting);
    head(one) == head(other)
        && one.value == other.value
        && one.waiters == other.waiters
        && one.holds.len() == other.holds.len()
        && one.holds.iter().zip(&other.holds).all(|(one, other)| {
            (one.claim, one.token, one.slot, one.weight)
                == (other.claim, other.token, other.slot, other.weight)
                && one.label == other.label
        })
}

/// Looks at a record as it is at `now`. Writes nothing, so what has ended is only left out.
///
/// Returns none if nothing is held, rests or waits, and no value is kept.
///
/// # Errors
/// Those of the store.
pub fn inspect<R: Record>(resource: &Name, record: &R, now: Timestamp) -> Result<Option<View>, R::Error> {
    let Some(head) = record.head()? else { return Ok(None) };
    let mut used = head.used;
    let mut holds = Vec::new();
    for hold in record.holds(VIEW_ENTRIES_MAX)? {
        // A hold whose holder vanished and whose lock_delay runs is shown as the rest that it is.
        let rest = hold.claim.map_or(Duration::ZERO, |_| hold.limits.lock_delay);
        let is_ended = hold.expires_at <= now;
        let ends_at = if is_ended { hold.expires_at + rest } else { hold.expires_at };
        if ends_at <= now {
            used = used.saturating_sub(hold.weight);
            continue;
        }
        holds.push(HoldView {
            claim: hold.claim.filter(|_| !is_ended),
            label: hold.label,
            token: hold.token,
            slot: hold.slot,
            weight: hold.weight,
            held_for: now.since(hold.granted_at),
            ends_in: ends_at.since(now),
        });
    }
    let mut waiting = head.waiting;
    let mut waiters = Vec::new();
    for waiter in record.waiters(VIEW_ENTRIES_MAX)? {
        if waiter.expires_at <= now {
            waiting = waiting.saturating_sub(1);
            continue;
        }
        waiters.push(WaiterView { claim: waiter.claim, label: waiter.label, weight: waiter.weight });
    }
    let mut value = record.value()?;
    if let Some(Value { token, keep_until, .. }) = value {
        let ends_at = match keep_until {
            Some(until) => Some(until),
            // It goes with its hold, and the hold of an elected leader may have ended since the last step.
            None => record.hold(token)?.filter(|hold| hold.claim.is_some()).map(|hold| hold.expires_at),
        };
        value = value.filter(|_| ends_at.is_some_and(|ends_at| ends_at > now));
    }
    if holds.is_empty() && waiting == 0 && value.is_none() {
        return Ok(None);
    }
    Ok(Some(View {
        resource: resource.clone(),
        kind: head.kind,
        capacity: head.capacity,
        used,
        last_token: head.last_token,
        holds,
        waiting,
        waiters,
        value: value.map(|value| value.bytes),
    }))
}
