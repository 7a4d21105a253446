//! One process of a fleet loads a value; the others get it.

mod joint;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::backoff;
use crate::client::connection::Connection;
use crate::clock::Instant;
use crate::counts::{FoundIn, Primitive};
use crate::error::{Error, ErrorKind, Result};
use crate::face::claimant::{Claimant, labelled, until_lost};
use crate::face::lease::{Acquire, Acquired, Lease};
use crate::model::claim::{ClaimId, Keep, Name, Period, Published};
use crate::model::token::Token;

use joint::{Answer, Found, Joint, Loading, Turn, Wanted, join};

/// For how many answer timeouts a value is tried to be published.
const PUBLISHED_WITHIN: u32 = 5;

/// A guard against cache stampedes: when a value has expired, one process loads it, and a process that wants it
/// meanwhile waits for that value or takes the stale one.
///
/// # Guarantees
/// At most one process loads at a time. Its value is published under its token and answers all waiters at once. If it
/// fails or dies, exactly one of the waiters loads in its place. A loader that lost its lease publishes nothing.
///
/// The tasks of one client that want a value at the same time ask the store once, and share the answer.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("single-flight-example").await?;
/// use std::time::Duration;
/// let price = tenure.single_flight("price/4711").fresh(Duration::from_secs(60));
/// let found = price.get_or_refresh(async |_lease| Ok::<_, tenure_core::Error>(b"17.50".to_vec())).await?;
/// assert_eq!(&*found.bytes, b"17.50");
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use std::time::Duration;
/// # async fn load() -> tenure_core::Result<Vec<u8>> { Ok(Vec::new()) }
/// # async fn f(price: tenure_core::SingleFlight) -> tenure_core::Result<()> {
/// let price = price.fresh(Duration::from_secs(60));
/// let price = price.serve_stale(Duration::from_secs(600));
/// let price = price.ttl(Duration::from_secs(10));
/// let found = price.get_or_refresh(async |_lease| load().await).await?;
/// let found = price.refresh(async |_lease| load().await).await?;
/// price.forget().await?;
/// # let (id, wait) = (tenure_core::ClaimId::new(7), Duration::from_secs(5));
/// let turn = price.turn_within(id, wait).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SingleFlight {
    connection: Arc<Connection>,
    key: String,
    claimant: Claimant,
    fresh: Duration,
    stale: Duration,
    serves_stale: bool,
}

impl fmt::Debug for SingleFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.claimant.debug("SingleFlight", f)
    }
}

/// A value, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fetched {
    /// The value.
    pub bytes: Arc<[u8]>,
    /// Where it came from.
    pub source: FetchedFrom,
}

/// Where a value came from.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("fetched-from-example").await?;
/// use tenure_core::FetchedFrom;
///
/// let rates = tenure.single_flight("rates");
/// let found = rates.get_or_refresh(async |_| Ok::<_, tenure_core::Error>(b"1.07".to_vec())).await?;
/// match found.source {
///     FetchedFrom::Loaded(token) => println!("loaded here, under token {token}"),
///     FetchedFrom::Fresh(_) | FetchedFrom::Stale => println!("loaded elsewhere"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchedFrom {
    /// Another had loaded it, under this token, and it is fresh.
    Fresh(Token),
    /// It is not fresh any more; another is loading the next one.
    Stale,
    /// This call has loaded it, under this token.
    Loaded(Token),
}

/// The value, or the turn to load it. See [`SingleFlight::turn_within`].
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("load-turn-example").await?;
/// # let (id, wait) = (tenure_core::ClaimId::new(7), std::time::Duration::ZERO);
/// use tenure_core::LoadTurn;
///
/// match tenure.single_flight("rates").turn_within(id, wait).await? {
///     LoadTurn::Fresh(value) => println!("loaded elsewhere, under token {}", value.token),
///     LoadTurn::Load(lease) => println!("load it under token {}", lease.token()),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub enum LoadTurn {
    /// It is fresh.
    Fresh(Published),
    /// It is not, and nobody else loads it: load and publish it under this lease.
    Load(Lease),
}

impl SingleFlight {
    labelled!();

    /// Asks for the value, or for the turn to load it: for a server whose clients load, and which keeps nothing of them. Waits up to `wait`
    /// while another one loads; zero does not wait. The claim has an id of the caller's own, as [`Mutex::claim_id`](crate::Mutex::claim_id)
    /// says, and is left in the store as [`Mutex::left_in_store`](crate::Mutex::left_in_store) says.
    ///
    /// `let turn = price.turn_within(id, wait).await?;`
    ///
    /// The value is published under the lease, or by its id ([`DetachedClaims::publish`](crate::DetachedClaims::publish)).
    ///
    /// # Errors
    /// As [`Mutex::acquire_within`](crate::Mutex::acquire_within), and [`ErrorKind::Unsupported`] if the engine keeps no values.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws nothing.
    pub fn turn_within(&self, id: ClaimId, wait: Duration) -> Acquire<LoadTurn> {
        let mut claimant = self.claimant.clone();
        claimant.set_claim(id);
        claimant.set_left();
        let acquire = claimant.acquire(Some(wait), |lease| Ok(LoadTurn::Load(lease)));
        acquire.or_fresh(|value| Ok(LoadTurn::Fresh(value)))
    }

    pub(crate) fn new(connection: Arc<Connection>, key: &str) -> SingleFlight {
        let mut claimant = Claimant::new(connection.clone(), key, Primitive::SingleFlight);
        claimant.terms().unless_fresh = true;
        SingleFlight {
            claimant,
            connection,
            key: key.to_owned(),
            fresh: Duration::from_secs(60),
            stale: Duration::ZERO,
            serves_stale: false,
        }
    }

    /// Sets for how long a value is fresh (default 60 s): it is not loaded meanwhile.
    ///
    /// `let price = price.fresh(Duration::from_secs(60));`
    #[must_use]
    pub fn fresh(mut self, fresh: Duration) -> SingleFlight {
        self.fresh = fresh;
        self
    }

    /// Serves a value for this long after it was fresh while another loads the next one, and does not wait
    /// (default: waits for the next one).
    ///
    /// `let price = price.serve_stale(Duration::from_secs(600));`
    #[must_use]
    pub fn serve_stale(mut self, stale: Duration) -> SingleFlight {
        (self.stale, self.serves_stale) = (stale, true);
        self
    }

    /// Sets how long a loader that is not heard of blocks the others (default 30 s; see [`Mutex::ttl`](crate::Mutex::ttl)).
    ///
    /// `let price = price.ttl(Duration::from_secs(10));`
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> SingleFlight {
        self.claimant.terms().ttl = ttl;
        self
    }

    /// Returns the value if it is fresh; otherwise loads it, or waits for the loader, or returns the stale one.
    ///
    /// `let found = price.get_or_refresh(async |_lease| load().await).await?;`
    ///
    /// The load is dropped if its lease is lost.
    ///
    /// # Errors
    /// What the load says; [`ErrorKind::Lost`] if its lease was lost; [`ErrorKind::Invalid`] for a value of more
    /// than 256 KiB; [`ErrorKind::Unavailable`] if it was loaded and could not be published within five answer timeouts;
    /// those of [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Cancel safety
    /// Dropping the future drops the load, and another loads.
    ///
    /// # Cost
    /// One round trip for a fresh value; two for a stale one; three beside the load for the loader. Each is shared by
    /// all tasks of the client that want the value meanwhile; who comes when a call is under way shares the next one, since this one may bring what
    /// has been forgotten meanwhile.
    pub async fn get_or_refresh<E: From<Error>>(
        &self,
        load: impl AsyncFnOnce(&Lease) -> Result<Vec<u8>, E>,
    ) -> Result<Fetched, E> {
        let (asked, mut loaded) = (self.connection.shared.clock.now(), None);
        let fetched = self.fetch(asked, &mut loaded, load).await;
        self.count(asked, loaded, &fetched);
        fetched
    }

    async fn fetch<E: From<Error>>(
        &self,
        asked: Instant,
        loaded: &mut Option<Duration>,
        load: impl AsyncFnOnce(&Lease) -> Result<Vec<u8>, E>,
    ) -> Result<Fetched, E> {
        self.check()?;
        let ttl = self.claimant.ttl();
        if self.serves_stale {
            let (joint, answer) = self.answer(Wanted::Try(ttl), asked).await?;
            match answer {
                Answer::Fresh(value) => return Ok(found(value)),
                Answer::Granted(loading) => {
                    if let Some((lease, turn)) = loading.take_turn(joint) {
                        return self.load(Some(turn), lease, loaded, load).await;
                    }
                }
                Answer::Busy | Answer::There(..) => {}
            }
            if let (_, Answer::There(Some(bytes), _)) = self.answer(Wanted::Look, asked).await? {
                return Ok(Fetched { bytes, source: FetchedFrom::Stale });
            }
        }
        loop {
            let (joint, answer) = self.answer(Wanted::Value(ttl), asked).await?;
            let loading = match answer {
                Answer::Fresh(value) => return Ok(found(value)),
                Answer::Granted(loading) => loading,
                Answer::Busy | Answer::There(..) => {
                    let error = Error::new(ErrorKind::Internal, "claim", "refused although it waits");
                    return Err(error.into());
                }
            };
            if let Some((lease, turn)) = loading.take_turn(joint) {
                return self.load(Some(turn), lease, loaded, load).await;
            }
            if let Some(value) = loading.value().await.filter(|value| value.answers(asked)) {
                return Ok(found(value));
            }
        }
    }

    /// Loads the value although there may be a fresh one, and publishes it. It waits for its turn behind whoever loads meanwhile.
    ///
    /// `let found = price.refresh(async |_lease| load().await).await?;`
    ///
    /// Those who wait for a value get this one. Each call loads: two at the same time load one after the other.
    ///
    /// # Errors
    /// As [`SingleFlight::get_or_refresh`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the load, and what was kept stays.
    ///
    /// # Cost
    /// Three round trips beside the load.
    pub async fn refresh<E: From<Error>>(
        &self,
        load: impl AsyncFnOnce(&Lease) -> Result<Vec<u8>, E>,
    ) -> Result<Fetched, E> {
        let (asked, mut loaded) = (self.connection.shared.clock.now(), None);
        let fetched = async {
            self.check()?;
            self.load(None, self.turn().await?, &mut loaded, load).await
        };
        let fetched = fetched.await;
        self.count(asked, loaded, &fetched);
        fetched
    }

    /// Drops the value, fresh or stale: for whoever changes the data of which it was made.
    ///
    /// `price.forget().await?;`
    ///
    /// # Guarantees
    /// Whoever asks after this has returned gets a value whose load began after it was called. It waits until a load that is under way has
    /// ended, so that what was read before the change is not kept after it.
    ///
    /// # Errors
    /// Those of [`Mutex::acquire`](crate::Mutex::acquire); [`ErrorKind::Unavailable`] if it is not known whether the value is gone (Redlock: a server
    /// did not answer, and may keep its copy as long as it was to be kept).
    ///
    /// # Cancel safety
    /// Dropping the future leaves the value, or not.
    ///
    /// # Cost
    /// Three round trips.
    pub async fn forget(&self) -> Result<()> {
        let lease = self.turn().await?;
        lease.publish(Arc::from([]), Keep::For { fresh: Duration::ZERO, stale: Duration::ZERO }).await?;
        lease.release().await.map(drop)
    }

    /// Waits for the right to change the value, whether it is fresh or not.
    async fn turn(&self) -> Result<Lease> {
        // What an engine lacks for single-flight it lacks for this.
        self.claimant.request(None)?;
        let mut claimant = self.claimant.clone();
        claimant.terms().unless_fresh = false;
        match claimant.ask(None).await? {
            Acquired::Lease(lease) => Ok(lease),
            Acquired::Busy(..) | Acquired::Fresh(..) => {
                Err(Error::new(ErrorKind::Internal, "claim", "refused although it waits"))
            }
        }
    }

    /// Returns an answer of the store that is one to who asked then, and the request of which it came.
    async fn answer(&self, wanted: Wanted, asked: Instant) -> Result<(Joint, Answer)> {
        loop {
            let joint = self.ask(wanted)?;
            match joint.clone().await? {
                // The next request is begun after that.
                Answer::Fresh(value) if !value.answers(asked) => {}
                // Meanwhile a newer value may have been served.
                Answer::There(_, began) if began < asked => {}
                answer => return Ok((joint, answer)),
            }
        }
    }

    /// Asks the store, together with all tasks of this client that want the same now.
    fn ask(&self, wanted: Wanted) -> Result<Joint> {
        let (shared, claimant) = (self.connection.shared.clone(), self.claimant.clone());
        let key = Name::new(&self.key)?;
        Ok(join(&self.connection.shared, (key.clone(), wanted), move |pass| {
            Box::pin(async move {
                let wait = match wanted {
                    Wanted::Value(_) => None,
                    Wanted::Try(_) => Some(Duration::ZERO),
                    Wanted::Look => {
                        let began = shared.clock.now();
                        let view = shared.view(key).await?;
                        return Ok(Answer::There(view.and_then(|view| view.value), began));
                    }
                };
                Ok(match claimant.ask(wait).await? {
                    Acquired::Fresh(value, sent) => Answer::Fresh(Found::read(sent, value)),
                    Acquired::Busy(..) => Answer::Busy,
                    Acquired::Lease(lease) => Answer::Granted(Loading::new(lease, pass)),
                })
            })
        }))
    }

    /// Publishes what was loaded. One try is not enough for it: a server that is too busy with those who wait would have all of them
    /// load again, one after the other.
    async fn publish(&self, lease: &Lease, bytes: &Arc<[u8]>, keep: Keep) -> Result<()> {
        let shared = &self.connection.shared;
        let give_up_at = shared.clock.now() + shared.settings.answer_timeout * PUBLISHED_WITHIN;
        let mut attempts = 0;
        loop {
            let error = match lease.publish(bytes.clone(), keep).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => error,
                answer => return answer,
            };
            let delay = backoff::delay(attempts, shared.clock.random());
            attempts = attempts.saturating_add(1);
            if lease.is_lost() || shared.clock.now() + delay >= give_up_at {
                return Err(error);
            }
            shared.pause(delay).await?;
        }
    }

    async fn load<E: From<Error>>(
        &self,
        // Dropped after the lease, whose release is to come before what the others ask.
        turn: Option<Turn>,
        lease: Lease,
        loaded: &mut Option<Duration>,
        load: impl AsyncFnOnce(&Lease) -> Result<Vec<u8>, E>,
    ) -> Result<Fetched, E> {
        let clock = &self.connection.shared.clock;
        let asked = clock.now();
        let bytes: Arc<[u8]> = until_lost(&lease, load(&lease)).await??.into();
        let began = clock.now();
        *loaded = Some(began.since(asked));
        let keep = match (self.fresh + self.stale).is_zero() {
            true => Keep::WhileHeld,
            false => Keep::For { fresh: self.fresh, stale: self.stale },
        };
        self.publish(&lease, &bytes, keep).await?;
        let token = lease.token();
        if let Some(turn) = turn {
            let value = Published { bytes: bytes.clone(), token, fresh_for: self.fresh };
            turn.publish(Found::loaded(began, value));
        }
        if let Err(error) = lease.release().await {
            tracing::debug!(%error, "release after the load goes on in the background");
        }
        Ok(Fetched { bytes, source: FetchedFrom::Loaded(token) })
    }

    /// Counts a value, or the error in its place.
    fn count<E>(&self, asked: Instant, loaded: Option<Duration>, fetched: &Result<Fetched, E>) {
        let Ok(key) = Name::new(&self.key) else { return };
        let (source, load) = match fetched.as_ref().map(|fetched| fetched.source) {
            Ok(FetchedFrom::Fresh(_)) => (FoundIn::Fresh, None),
            Ok(FetchedFrom::Stale) => (FoundIn::Stale, None),
            Ok(FetchedFrom::Loaded(_)) => (FoundIn::Loaded, loaded),
            Err(_) => (FoundIn::Failed, None),
        };
        let of = (self.claimant.scope(), &key);
        self.connection.shared.with_ledger(|ledger, now| ledger.found(of, source, now.at.since(asked), load));
    }

    fn check(&self) -> Result<()> {
        for (what, period) in [("fresh", self.fresh), ("stale", self.stale)] {
            if period > crate::model::claim::PERIOD_MAX {
                let message = format!("a {what} period of {} is out of range", Period(period));
                return Err(
                    Error::new(ErrorKind::Invalid, "refresh", message).with_hint("the longest is ten years")
                );
            }
        }
        Ok(())
    }
}

fn found(value: Found) -> Fetched {
    let value = value.value();
    Fetched { bytes: value.bytes, source: FetchedFrom::Fresh(value.token) }
}
