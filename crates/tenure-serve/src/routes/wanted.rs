//! What a claim asks for, read from its body.

use std::time::Duration;

use serde::Deserialize;
use tenure_core::model::claim::TTL_DEFAULT;
use tenure_core::{Acquire, ClaimId, Label, Lease, LoadTurn, Name, Tenure, Token};

use crate::limits::{LINGER_DEFAULT, LINGER_MAX, POLL_DEFAULT, POLL_MAX};
use crate::problem::{INVALID, Problem};

/// The wait of a claim that ends when its request does: longer than any.
const LONGER_THAN_ANY: Duration = Duration::from_secs(3600);

/// The body of `PUT /v1/claims/{claim}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimBody {
    name: String,
    #[serde(default)]
    kind: Kind,
    capacity: Option<u32>,
    weight: Option<u32>,
    exclusive: Option<bool>,
    ttl_ms: Option<u64>,
    wait: Option<bool>,
    poll_ms: Option<u64>,
    linger_ms: Option<u64>,
    max_hold_ms: Option<u64>,
    min_hold_ms: Option<u64>,
    lock_delay_ms: Option<u64>,
    label: Option<String>,
    floor: Option<u64>,
    #[serde(default)]
    unless_fresh: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    Mutex,
    RwLock,
    Semaphore,
    SlotPool,
}

/// The same, checked.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: Name,
    pub(crate) ttl: Duration,
    /// How long this request waits. `None`: not at all.
    pub(crate) poll: Option<Duration>,
    pub(crate) linger: Duration,
    pub(crate) label: String,
    units: Units,
    limits: Limits,
    floor: Token,
}

#[derive(Debug, PartialEq, Eq)]
enum Units {
    Mutex,
    /// A value that is fresh answers as well.
    UnlessFresh,
    Reader,
    Writer,
    Some {
        capacity: u32,
        weight: u32,
    },
    Slot {
        slots: u32,
    },
}

#[derive(Debug, Default)]
struct Limits {
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    lock_delay: Option<Duration>,
}

fn invalid<T>(detail: String) -> Result<T, Problem> {
    Err(Problem::new(INVALID, detail))
}

fn bounded(given: Option<u64>, default: Duration, most: Duration, field: &str) -> Result<Duration, Problem> {
    let period = given.map_or(default, Duration::from_millis);
    match period > most {
        true => invalid(format!("`{field}` is at most {}", most.as_millis())),
        false => Ok(period),
    }
}

impl ClaimBody {
    /// Refuses what does not go together. What the store decides (a ttl out of range, say) is refused there.
    pub(crate) fn check(self) -> Result<Wanted, Problem> {
        let name = Name::new(&self.name)?;
        let units = self.units()?;
        let waits = self.wait.unwrap_or(true);
        if !waits && self.poll_ms.is_some() {
            return invalid("`poll_ms` is for a claim that waits, and \"wait\" is false".to_owned());
        }
        let limits = Limits {
            max_hold: self.max_hold_ms.map(Duration::from_millis),
            min_hold: self.min_hold_ms.map(Duration::from_millis),
            lock_delay: self.lock_delay_ms.map(Duration::from_millis),
        };
        let has_limits =
            limits.max_hold.is_some() || limits.min_hold.is_some() || limits.lock_delay.is_some();
        if units == Units::UnlessFresh && (has_limits || self.floor.is_some()) {
            return invalid(
                "a claim with `unless_fresh` has no `floor` and no limits of its hold but `ttl_ms`"
                    .to_owned(),
            );
        }
        let poll = bounded(self.poll_ms, POLL_DEFAULT, POLL_MAX, "poll_ms")?;
        Ok(Wanted {
            name,
            ttl: self.ttl_ms.map_or(TTL_DEFAULT, Duration::from_millis),
            poll: waits.then_some(poll),
            linger: bounded(self.linger_ms, LINGER_DEFAULT, LINGER_MAX, "linger_ms")?,
            label: self.label.unwrap_or_default(),
            units,
            limits,
            floor: Token::new(self.floor.unwrap_or_default()),
        })
    }

    fn units(&self) -> Result<Units, Problem> {
        let only = |is_given: bool, field: &str, kind: &str| match is_given {
            true => invalid(format!("`{field}` is for a {kind}")),
            false => Ok(()),
        };
        if self.kind != Kind::Semaphore {
            only(self.weight.is_some(), "weight", "semaphore")?;
        }
        if self.kind != Kind::RwLock {
            only(self.exclusive.is_some(), "exclusive", "rw_lock")?;
        }
        if !matches!(self.kind, Kind::Semaphore | Kind::SlotPool) {
            only(self.capacity.is_some(), "capacity", "semaphore or a slot_pool")?;
        }
        if self.kind != Kind::Mutex {
            only(self.unless_fresh, "unless_fresh", "mutex")?;
        }
        let capacity = || match self.capacity {
            Some(capacity) => Ok(capacity),
            None => invalid("a semaphore and a slot_pool need `capacity`".to_owned()),
        };
        Ok(match self.kind {
            Kind::Mutex if self.unless_fresh => Units::UnlessFresh,
            Kind::Mutex => Units::Mutex,
            Kind::RwLock if self.exclusive.unwrap_or(true) => Units::Writer,
            Kind::RwLock => Units::Reader,
            Kind::Semaphore => Units::Some { capacity: capacity()?, weight: self.weight.unwrap_or(1) },
            Kind::SlotPool => Units::Slot { slots: capacity()? },
        })
    }
}

/// Asks for it.
pub(crate) enum Asking {
    Lease(Acquire<Lease>),
    Turn(Acquire<LoadTurn>),
}

impl Asking {
    /// Waits for the first answer. `None`: it waits in the queue.
    pub(crate) async fn answered(&mut self) -> Option<tenure_core::Result<LoadTurn>> {
        match self {
            Asking::Lease(acquire) => acquire.answered().await.map(|lease| lease.map(LoadTurn::Load)),
            Asking::Turn(acquire) => acquire.answered().await,
        }
    }

    /// Waits until it is decided.
    pub(crate) async fn decided(&mut self) -> tenure_core::Result<LoadTurn> {
        match self {
            Asking::Lease(acquire) => acquire.await.map(LoadTurn::Load),
            Asking::Turn(acquire) => acquire.await,
        }
    }

    /// Lets go of the wait, and leaves the place.
    pub(crate) fn detach(self) -> Option<ClaimId> {
        match self {
            Asking::Lease(acquire) => acquire.detach(),
            Asking::Turn(acquire) => acquire.detach(),
        }
    }
}

/// Applies the settings that all kinds have.
macro_rules! settled {
    ($primitive:expr, $wanted:expr, $id:expr, $label:expr) => {{
        let mut primitive =
            $primitive.ttl($wanted.ttl).labelled($label).claim_id($id).left_in_store().floor($wanted.floor);
        if let Some(period) = $wanted.limits.max_hold {
            primitive = primitive.max_hold(period);
        }
        if let Some(period) = $wanted.limits.min_hold {
            primitive = primitive.min_hold(period);
        }
        if let Some(period) = $wanted.limits.lock_delay {
            primitive = primitive.lock_delay(period);
        }
        primitive
    }};
}

/// Asks with the verb that the claim wants.
macro_rules! asked {
    ($primitive:expr, $wanted:expr) => {{
        let acquire = match $wanted.poll {
            Some(_) => $primitive.acquire(),
            None => $primitive.acquire_within(Duration::ZERO),
        };
        Asking::Lease(acquire.into())
    }};
}

impl Wanted {
    /// Whether a value answers it as well.
    pub(crate) fn is_unless_fresh(&self) -> bool {
        matches!(self.units, Units::UnlessFresh)
    }

    /// Makes the claim. Nothing is sent before it is awaited.
    pub(crate) fn ask(&self, tenure: &Tenure, id: ClaimId, label: Label) -> Asking {
        let name = self.name.as_str();
        match self.units {
            Units::Mutex => asked!(settled!(tenure.mutex(name), self, id, label), self),
            Units::Reader => asked!(settled!(tenure.rw_lock(name), self, id, label).read(), self),
            Units::Writer => asked!(settled!(tenure.rw_lock(name), self, id, label).write(), self),
            Units::Some { capacity, weight } => {
                asked!(settled!(tenure.semaphore(name, capacity), self, id, label).weight(weight), self)
            }
            Units::Slot { slots } => asked!(settled!(tenure.slot_pool(name, slots), self, id, label), self),
            Units::UnlessFresh => {
                let wait = self.poll.map_or(Duration::ZERO, |_| LONGER_THAN_ANY);
                Asking::Turn(tenure.single_flight(name).ttl(self.ttl).labelled(label).turn_within(id, wait))
            }
        }
    }
}

impl Wanted {
    /// Looks for the value under an id that nobody else has; none if it does not ask for one.
    pub(crate) fn look(&self, tenure: &Tenure) -> Option<Acquire<LoadTurn>> {
        let id = ClaimId::new(fastrand::u128(..));
        let value = tenure.single_flight(self.name.as_str()).ttl(self.ttl);
        (self.units == Units::UnlessFresh).then(|| value.turn_within(id, Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str) -> Result<Wanted, Problem> {
        let body: ClaimBody =
            serde_json::from_str(body).map_err(|error| Problem::new(INVALID, error.to_string()))?;
        body.check()
    }

    #[test]
    fn a_name_is_enough() {
        let wanted = check(r#"{"name": "billing/4711"}"#).expect("a claim");
        assert_eq!((wanted.units, wanted.ttl), (Units::Mutex, Duration::from_secs(30)));
        // page: docs/operating/serve.md "| `poll_ms` | 25000"
        assert_eq!(wanted.poll, Some(Duration::from_secs(25)));
        // page: docs/operating/serve.md "| `linger_ms` | 2000"
        assert_eq!(wanted.linger, Duration::from_secs(2));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for bad in [
            r#"{}"#,
            r#"{"name": ""}"#,
            r#"{"name": "a", "ttl": 30}"#,
            r#"{"name": "a", "kind": "lock"}"#,
            r#"{"name": "a", "kind": "semaphore"}"#,
            r#"{"name": "a", "capacity": 3}"#,
            r#"{"name": "a", "weight": 3}"#,
            r#"{"name": "a", "kind": "slot_pool", "capacity": 3, "weight": 2}"#,
            r#"{"name": "a", "exclusive": true}"#,
            r#"{"name": "a", "wait": false, "poll_ms": 7}"#,
            r#"{"name": "a", "poll_ms": 50001}"#,
            r#"{"name": "a", "linger_ms": 15001}"#,
            r#"{"name": "a", "unless_fresh": true, "max_hold_ms": 1000}"#,
            r#"{"name": "a", "kind": "rw_lock", "unless_fresh": true}"#,
            r#"{"name": "a", "ttl_ms": 1.5}"#,
            r#"{"name": "a", "ttl_ms": -1}"#,
        ] {
            let problem = check(bad).expect_err(bad);
            assert_eq!(problem.kind.status, 400, "{bad}");
        }
    }

    #[test]
    fn a_writer_is_alone_unless_it_says_otherwise() {
        let units = |body| check(body).expect("a claim").units;
        assert_eq!(units(r#"{"name": "a", "kind": "rw_lock"}"#), Units::Writer);
        assert_eq!(units(r#"{"name": "a", "kind": "rw_lock", "exclusive": false}"#), Units::Reader);
        assert_eq!(units(r#"{"name": "a", "kind": "slot_pool", "capacity": 3}"#), Units::Slot { slots: 3 });
        assert_eq!(units(r#"{"name": "a", "unless_fresh": true}"#), Units::UnlessFresh);
    }
}
