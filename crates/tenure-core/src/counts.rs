//! What a client has counted: plain numbers, for whoever shows them (`tenure-metrics` does).
//!
//! Names never become labels: a program may claim a million of them. What is counted together is a [`Scope`].

use std::sync::Arc;
use std::time::Duration;

use crate::error::LossReason;

/// An enum whose variants are the values of a label, and index arrays of numbers.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$about])* $variant,)* }

        impl $name {
            /// All of them, in the order in which arrays count them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = $name::ALL.len();

            /// Returns the word for it, a label's value.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }
    };
}

words! {
    /// What a program asked for by name.
    Primitive {
        /// A mutex.
        Mutex = "mutex",
        /// A side of a read-write lock.
        RwLock = "rw_lock",
        /// Units of a semaphore.
        Semaphore = "semaphore",
        /// A slot.
        SlotPool = "slot_pool",
        /// A term.
        Election = "election",
        /// The right to load a value.
        SingleFlight = "single_flight",
        /// Items of a queue.
        Queue = "queue",
    }
}

words! {
    /// How a claim ended.
    ClaimEnd {
        /// Its lease reached its user.
        Granted = "granted",
        /// It was not to wait, and others hold.
        Busy = "busy",
        /// It waited for as long as it was to.
        Timeout = "timeout",
        /// Its user dropped it.
        Cancelled = "cancelled",
        /// A fresh value answered it.
        Fresh = "fresh",
        /// The engine did not answer, or the client has ended.
        Failed = "failed",
        /// It was wrong, or cannot be done.
        Refused = "refused",
    }
}

words! {
    /// Why a lease was lost.
    Loss {
        /// No renewal was answered before the deadline.
        Deadline = "deadline",
        /// The same, and this client noticed it more than 250 ms after the deadline: the process or its machine stood still.
        Late = "late",
        /// It was held for as long as its `max_hold` allows.
        MaxHold = "max_hold",
        /// The engine says that it is not held any more.
        Refused = "refused",
        /// Another lease of its set was lost.
        Bond = "bond",
        /// The client's own thread has ended.
        Client = "client",
    }
}

impl ClaimEnd {
    /// Whether it counts against the success rate: its user wanted the lease, and got an error.
    pub const fn is_failure(self) -> bool {
        matches!(self, ClaimEnd::Timeout | ClaimEnd::Failed)
    }
}

/// How long after the deadline of a lease its client notices the loss, if its process runs.
const LATE_MIN: Duration = Duration::from_millis(250);

impl Loss {
    /// Tells why, of what the user is told and of how long after the deadline it was noticed.
    pub fn of(reason: LossReason, noticed_after: Duration) -> Loss {
        match reason {
            LossReason::NotRenewed if noticed_after > LATE_MIN => Loss::Late,
            LossReason::NotRenewed => Loss::Deadline,
            LossReason::MaxHold => Loss::MaxHold,
            LossReason::Ended => Loss::Refused,
            LossReason::LostWithSet => Loss::Bond,
            LossReason::ClientEnded => Loss::Client,
        }
    }
}

words! {
    /// How a release ended.
    ReleaseEnd {
        /// It was held until then.
        Released = "released",
        /// It was lost before.
        AlreadyLost = "already_lost",
        /// The engine did not answer for as long as the hold could live.
        GivenUp = "given_up",
    }
}

words! {
    /// How a renewal ended.
    Renewal {
        /// The hold lives on.
        Kept = "kept",
        /// It was not answered, and is repeated.
        Repeated = "repeated",
        /// The hold is gone.
        Refused = "refused",
    }
}

words! {
    /// How a waiter learned of its grant.
    LearnedBy {
        /// The engine woke it.
        Wake = "wake",
        /// It asked by itself, as it does every third of its confirm window.
        Heartbeat = "heartbeat",
    }
}

words! {
    /// What the engine is called for.
    Verb {
        /// Claims.
        Claim = "claim",
        /// Renewals of leases and deliveries.
        Renew = "renew",
        /// Signs of life of waiters.
        Heartbeat = "heartbeat",
        /// Releases.
        Release = "release",
        /// Items wanted of a queue.
        Take = "take",
        /// Pushes.
        Push = "push",
        /// Ends of deliveries.
        Settle = "settle",
        /// Whatever is asked for one at a time: views, lists, values, an operator's acts.
        Other = "other",
    }
}

words! {
    /// How a call of the engine ended.
    CallEnd {
        /// It was answered, if only by a refusal.
        Answered = "answered",
        /// None of its requests got an answer of the store.
        Failed = "failed",
        /// It was not answered in time.
        Timeout = "timeout",
    }
}

words! {
    /// Where the value of a single-flight came from.
    FoundIn {
        /// It was fresh, or another was loading it.
        Fresh = "fresh",
        /// It was not fresh, and another is loading the next one.
        Stale = "stale",
        /// This call has loaded it.
        Loaded = "loaded",
        /// There is an error in its place.
        Failed = "failed",
    }
}

words! {
    /// How a push ended.
    PushEnd {
        /// The item is in line.
        Pushed = "pushed",
        /// An item with its dedup id was there.
        Duplicate = "duplicate",
        /// Its user got an error: it may have been pushed.
        Failed = "failed",
    }
}

words! {
    /// How a delivery ended.
    DeliveryEnd {
        /// It was acknowledged.
        Done = "done",
        /// The item is handed out again later.
        Retried = "retried",
        /// The item is a dead letter.
        Dead = "dead",
        /// It was put back as if it had not been handed out.
        Returned = "returned",
        /// It was lost, or nobody knows how it ended: the item is handed out again.
        Lost = "lost",
    }
}

/// What is counted together: what one sort of primitive is asked for, under names that are alike.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scope {
    /// The place of the scope among those of its client, from 0: for listeners that keep something for each.
    pub index: u16,
    /// What is asked for.
    pub primitive: Primitive,
    /// A pattern that the names fit, such as `billing/*`; `other` for what came after the limit.
    pub label: Arc<str>,
    /// The name of the election, for an election within the limit: two of them in one scope must not look like two leaders of one.
    pub election: Option<Arc<str>>,
}

/// The upper bounds of a histogram's buckets, as whole numbers of a small unit.
///
/// No example: [`Histogram::cumulative`] tells them.
#[derive(Debug, PartialEq, Eq)]
pub struct Buckets {
    bounds: &'static [u64],
    /// How many of the small unit are one of what is shown.
    per: u64,
}

const MILLION: u64 = 1_000_000;

/// Bounds in microseconds as ones in nanoseconds.
const fn micros<const N: usize>(mut bounds: [u64; N]) -> [u64; N] {
    let mut at = 0;
    while at < N {
        bounds[at] *= 1000;
        at += 1;
    }
    bounds
}

const fn seconds(bounds: &'static [u64]) -> Buckets {
    Buckets { bounds, per: 1000 * MILLION }
}

static WAIT: Buckets = seconds(&micros([
    500,
    1000,
    2500,
    5000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    MILLION,
    2_500_000,
    5 * MILLION,
    10 * MILLION,
    30 * MILLION,
    60 * MILLION,
    300 * MILLION,
    1800 * MILLION,
]));
static HOLD: Buckets = seconds(&micros([
    1000,
    10_000,
    100_000,
    MILLION,
    5 * MILLION,
    10 * MILLION,
    30 * MILLION,
    60 * MILLION,
    300 * MILLION,
    900 * MILLION,
    3600 * MILLION,
    14_400 * MILLION,
    86_400 * MILLION,
]));
static LOAD: Buckets = seconds(&micros([1000, 10_000, 100_000, 500_000, MILLION, 5 * MILLION, 30 * MILLION]));
static REQUEST: Buckets = seconds(&micros([
    250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, MILLION, 2_500_000,
]));
static LATE: Buckets = seconds(&micros([
    1000,
    2500,
    5000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    MILLION,
    2_500_000,
    10 * MILLION,
]));
static SLACK: Buckets =
    Buckets { bounds: &[50_000, 100_000, 250_000, 400_000, 500_000, 600_000, 650_000], per: MILLION };
static ITEMS: Buckets = Buckets { bounds: &[1, 4, 16, 64, 256], per: 1 };

/// How often something was so much.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # use tenure_core::{Settings, Tenure, memory::Store};
/// # let settings = Settings::new().counts(true);
/// # let tenure = Tenure::connect_with(Store::named("histogram-example").connector(), settings).await?;
/// tenure.mutex("billing/4711").acquire().await?.release().await?;
/// let counts = tenure.counts();
/// let waits: &tenure_core::counts::Histogram = &counts.scopes[0].wait;
/// assert_eq!(waits.count(), 1);
/// // The bound of each bucket in seconds, and how many waits were that short.
/// assert!(waits.cumulative().any(|(bound, count)| bound <= 0.5 && count == 1));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: &'static Buckets,
    counts: Vec<u64>,
    sum: u128,
}

impl Histogram {
    fn new(buckets: &'static Buckets) -> Histogram {
        Histogram { buckets, counts: vec![0; buckets.bounds.len() + 1], sum: 0 }
    }

    pub(crate) fn add(&mut self, value: u64) {
        // From the least on, not halving: where a pair takes a microsecond, what is counted of it lies in the first.
        let bucket = self.buckets.bounds.iter().take_while(|bound| **bound < value).count();
        self.counts[bucket] += 1;
        self.sum += u128::from(value);
    }

    pub(crate) fn add_time(&mut self, time: Duration) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }

    /// Returns how many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns their sum: seconds, for times.
    pub fn sum(&self) -> f64 {
        self.sum as f64 / self.buckets.per as f64
    }

    /// Returns each bound, and how many were no more than that.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.buckets.bounds.iter().map(|bound| *bound as f64 / self.buckets.per as f64);
        bounds.zip(self.counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        }))
    }
}

/// What was counted in a scope. Arrays are in the order of `ALL` of what they count.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScopeCounts {
    /// The scope.
    pub scope: Arc<Scope>,
    /// How claims ended.
    pub claims: [u64; ClaimEnd::COUNT],
    /// From asking to the lease, of those granted.
    pub wait: Histogram,
    /// How many claims wait now.
    pub waiting: u64,
    /// The age of the oldest of them.
    pub waiting_oldest: Duration,
    /// How many leases are held now, or how many deliveries are with this process.
    pub leases: u64,
    /// The age of the oldest of them.
    pub leases_oldest: Duration,
    /// From grant to release or loss; of deliveries, to settlement or loss. One that is detached ends here, and one that is attached
    /// begins.
    pub hold: Histogram,
    /// How many leases or deliveries were detached.
    pub detached: u64,
    /// How many that were detached are renewed by this client since.
    pub attached: u64,
    /// Why leases were lost.
    pub lost: [u64; Loss::COUNT],
    /// How many waiters lost their place.
    pub places_lost: u64,
    /// Where values came from, of single-flights.
    pub found: [u64; FoundIn::COUNT],
    /// How long loads took that succeeded, of single-flights.
    pub load: Histogram,
    /// How pushes ended, of queues.
    pub pushes: [u64; PushEnd::COUNT],
    /// How deliveries ended, of queues.
    pub deliveries: [u64; DeliveryEnd::COUNT],
    /// How long ago items were due that were handed out for the first time, of queues.
    pub delay: Histogram,
}

impl ScopeCounts {
    pub(crate) fn new(scope: Scope) -> ScopeCounts {
        ScopeCounts {
            scope: Arc::new(scope),
            claims: [0; ClaimEnd::COUNT],
            wait: Histogram::new(&WAIT),
            waiting: 0,
            waiting_oldest: Duration::ZERO,
            leases: 0,
            leases_oldest: Duration::ZERO,
            hold: Histogram::new(&HOLD),
            detached: 0,
            attached: 0,
            lost: [0; Loss::COUNT],
            places_lost: 0,
            found: [0; FoundIn::COUNT],
            load: Histogram::new(&LOAD),
            pushes: [0; PushEnd::COUNT],
            deliveries: [0; DeliveryEnd::COUNT],
            delay: Histogram::new(&WAIT),
        }
    }

    /// Whether anything was asked for in it.
    pub fn is_used(&self) -> bool {
        let sums = [&self.claims[..], &self.found, &self.pushes, &self.deliveries];
        self.leases + self.waiting + self.attached > 0
            || sums.iter().any(|counts| counts.iter().any(|count| *count > 0))
    }

    /// Adds what was counted of other names with the same label.
    pub(crate) fn merge(&mut self, other: &ScopeCounts) {
        let add = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        add(&mut self.claims, &other.claims);
        add(&mut self.lost, &other.lost);
        add(&mut self.found, &other.found);
        add(&mut self.pushes, &other.pushes);
        add(&mut self.deliveries, &other.deliveries);
        self.wait.merge(&other.wait);
        self.hold.merge(&other.hold);
        self.load.merge(&other.load);
        self.delay.merge(&other.delay);
        self.waiting += other.waiting;
        self.leases += other.leases;
        self.places_lost += other.places_lost;
        self.detached += other.detached;
        self.attached += other.attached;
        self.waiting_oldest = self.waiting_oldest.max(other.waiting_oldest);
        self.leases_oldest = self.leases_oldest.max(other.leases_oldest);
    }
}

/// What was counted of the calls of one verb.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallCounts {
    /// How they ended.
    pub ended: [u64; CallEnd::COUNT],
    /// How long they took.
    pub took: Histogram,
    /// How many requests went in each.
    pub items: Histogram,
}

/// An election that this process takes part in.
///
/// No example: the elections of [`Counts`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// Its name.
    pub election: Arc<str>,
    /// Whether this process leads.
    pub is_leading: bool,
}

/// What a client has counted since it connected (see [`Tenure::counts`](crate::Tenure::counts)).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Counts {
    /// The engine's one word.
    pub engine: &'static str,
    /// What was counted in each scope in which anything was asked for.
    pub scopes: Vec<ScopeCounts>,
    /// The elections, of those within the limit, in which this process has stood.
    pub elections: Vec<Standing>,
    /// How releases ended.
    pub releases: [u64; ReleaseEnd::COUNT],
    /// How renewals ended.
    pub renewals: [u64; Renewal::COUNT],
    /// Which part of the ttl was left when a renewal was answered. The work is safe while it is well above 0: a renewal is due after a
    /// third of the ttl.
    pub slack: Histogram,
    /// How waiters learned of their grants.
    pub learned_by: [u64; LearnedBy::COUNT],
    /// The calls of the engine, by verb.
    pub calls: Vec<CallCounts>,
    /// Whether the last call was answered in time.
    pub is_store_up: bool,
    /// How often the store may have forgotten what it knew.
    pub store_forgot: u64,
    /// How many tokens were ahead of this machine's clock.
    pub tokens_ahead: u64,
    /// By how much the client's thread woke too late.
    pub late: Histogram,
    /// How many label values there are, of scopes and elections.
    pub labels: u64,
    /// How often something was named that is counted as `other`.
    pub folded: u64,
    /// How many events were dropped.
    pub events_dropped: u64,
}

impl Counts {
    pub(crate) fn new(engine: &'static str) -> Counts {
        let calls = || CallCounts {
            ended: [0; CallEnd::COUNT],
            took: Histogram::new(&REQUEST),
            items: Histogram::new(&ITEMS),
        };
        Counts {
            engine,
            scopes: Vec::new(),
            elections: Vec::new(),
            releases: [0; ReleaseEnd::COUNT],
            renewals: [0; Renewal::COUNT],
            slack: Histogram::new(&SLACK),
            learned_by: [0; LearnedBy::COUNT],
            calls: std::iter::repeat_with(calls).take(Verb::COUNT).collect(),
            is_store_up: true,
            store_forgot: 0,
            tokens_ahead: 0,
            late: Histogram::new(&LATE),
            labels: 0,
            folded: 0,
            events_dropped: 0,
        }
    }

    /// Returns what was counted in a scope.
    pub fn scope(&self, primitive: Primitive, label: &str) -> Option<&ScopeCounts> {
        self.scopes.iter().find(|counts| counts.scope.primitive == primitive && &*counts.scope.label == label)
    }

    /// Adds up what is counted apart for a while: elections of one scope. What nobody has used is left out.
    pub(crate) fn fold(&mut self) {
        let mut folded: Vec<ScopeCounts> = Vec::new();
        for counts in std::mem::take(&mut self.scopes).into_iter().filter(ScopeCounts::is_used) {
            let scope = &counts.scope;
            if let Some(election) = scope.election.clone() {
                self.elections.push(Standing { election, is_leading: counts.leases > 0 });
            }
            let alike = |other: &&mut ScopeCounts| {
                (other.scope.primitive, &other.scope.label) == (scope.primitive, &scope.label)
            };
            match folded.iter_mut().find(alike) {
                Some(other) => other.merge(&counts),
                None => folded.push(counts),
            }
        }
        self.scopes = folded;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_shown_as_it_is_written_and_counts_what_equals_it() {
        let mut wait = Histogram::new(&WAIT);
        wait.add_time(Duration::from_micros(500));
        wait.add_time(Duration::from_secs(4000));
        let bounds: Vec<String> = wait.cumulative().map(|(bound, _)| bound.to_string()).collect();
        let written = "0.0005 0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 300 1800";
        assert_eq!(bounds.join(" "), written);
        assert!(wait.cumulative().all(|(_, count)| count == 1));
        assert_eq!((wait.count(), wait.sum()), (2, 4000.0005));
        for buckets in [&WAIT, &HOLD, &LOAD, &REQUEST, &LATE, &SLACK, &ITEMS] {
            assert!(buckets.bounds.is_sorted_by(|a, b| a < b), "{buckets:?}");
        }
    }
}
