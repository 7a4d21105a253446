//! What every lock-like primitive is made of: its settings, its checks and the four verbs, written once.
//!
//! A primitive is a struct around a [`Claimant`], its constructor, and the lines `settings!`, `verbs!` and `run!`,
//! which give it the methods that all have in common, with its own words in their docs. Rejected: a public
//! trait, which users would have to import before they could lock a mutex.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tracing::Instrument;

use crate::client::connection::Connection;
use crate::client::ledger::AcquireRequest;
use crate::counts::Primitive;
use crate::error::{Error, ErrorKind, Result};
use crate::face::lease::{Acquire, AcquireFuture, Acquired, Lease, unasked_value};
use crate::model::claim::{ClaimId, Kind, Label, Name, Terms};
use crate::model::token::Token;

/// Asks for units of one resource, again and again on the same terms.
#[derive(Clone)]
pub(crate) struct Claimant {
    connection: Arc<Connection>,
    name: Result<Name>,
    /// The id of the one claim that it makes, if a user has given one.
    claim: Option<ClaimId>,
    /// Whether that is never withdrawn but by the user.
    is_left: bool,
    terms: Arc<Terms>,
    /// The largest token that its user knows of.
    floor: Token,
    /// In which scope it is counted.
    scope: u16,
}

impl Claimant {
    /// Asks for a mutex with the default settings, on behalf of a primitive.
    pub(crate) fn new(connection: Arc<Connection>, name: &str, primitive: Primitive) -> Claimant {
        let (terms, name) = (connection.shared.terms.clone(), Name::new(name));
        let scope = connection.shared.scope(primitive, name.as_ref().ok());
        Claimant { connection, name, claim: None, is_left: false, terms, floor: Token::ZERO, scope }
    }

    /// Asks for one unit of another kind of resource.
    pub(crate) fn of_kind(mut self, kind: Kind, capacity: u32) -> Claimant {
        let terms = self.terms();
        (terms.kind, terms.capacity) = (kind, capacity);
        self
    }

    /// Returns the terms, to be changed.
    pub(crate) fn terms(&mut self) -> &mut Terms {
        Arc::make_mut(&mut self.terms)
    }

    pub(crate) fn set_claim(&mut self, claim: ClaimId) {
        self.claim = Some(claim);
    }

    pub(crate) fn set_left(&mut self) {
        self.is_left = true;
    }

    pub(crate) fn set_floor(&mut self, floor: Token) {
        self.floor = floor;
    }

    /// Sets the whole label.
    pub(crate) fn set_whole_label(&mut self, label: Label) {
        self.terms().label = label;
    }

    /// Whether a user has given the id of its claim.
    pub(crate) fn has_given_id(&self) -> bool {
        self.claim.is_some()
    }

    /// Returns in which scope it is counted.
    pub(crate) fn scope(&self) -> u16 {
        self.scope
    }

    /// Returns how long a hold lives without renewal.
    pub(crate) fn ttl(&self) -> Duration {
        self.terms.ttl
    }

    pub(crate) fn kind(&self) -> Kind {
        self.terms.kind
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.terms.capacity
    }

    pub(crate) fn label(&self) -> &Label {
        &self.terms.label
    }

    pub(crate) fn set_label(&mut self, text: &str) {
        let label = self.terms.label.with_text(text);
        self.terms().label = label;
    }

    /// Makes the future of a claim. `wait` is how long to queue. `None`: for ever. Zero: not at all.
    pub(crate) fn ask(&self, wait: Option<Duration>) -> AcquireFuture {
        AcquireFuture::new(self.connection.clone(), self.request(wait))
    }

    /// Asks without waiting, and makes of the lease what the primitive gives its users.
    pub(crate) async fn try_acquire<T>(&self, held: fn(Lease) -> Result<T>) -> Result<Option<T>> {
        tried(self.ask(Some(Duration::ZERO)).await?, held)
    }

    /// As [`Claimant::try_acquire`], on the caller's own thread where the engine can.
    pub(crate) fn try_acquire_blocking<T>(&self, held: fn(Lease) -> Result<T>) -> Result<Option<T>> {
        tried(self.ask(Some(Duration::ZERO)).block()?, held)
    }

    /// Waits, and makes of the lease what the primitive gives its users.
    pub(crate) fn acquire<T>(&self, wait: Option<Duration>, held: fn(Lease) -> Result<T>) -> Acquire<T> {
        Acquire::new(self.ask(wait), held)
    }

    /// Shows whose claimant it is, as [`debug!`] says.
    pub(crate) fn debug(&self, primitive: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, primitive, &self.name, &self.connection)
    }

    /// Returns the client that asks.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Checks everything that can be checked before anything is sent, and returns what is to be asked.
    pub(crate) fn request(&self, wait: Option<Duration>) -> Result<AcquireRequest> {
        let resource = self.name.clone()?;
        let request = self.checked_request(&resource, wait);
        if request.is_err() {
            self.connection.shared.with_ledger(|ledger, _| ledger.refused(self.scope, &resource));
        }
        request
    }

    fn checked_request(&self, resource: &Name, wait: Option<Duration>) -> Result<AcquireRequest> {
        self.connection.shared.check_process()?;
        let engine = &self.connection.shared.engine;
        self.terms.check().map_err(|error| error.with_resource(resource))?;
        let capability = engine.capability();
        let limits = &self.terms.limits;
        let unsupported = if !capability.kinds.contains(&self.terms.kind) {
            Some(because(format!("a {}", self.terms.kind), capability.kinds_reason))
        } else if !(capability.has_rests || limits.min_hold.is_zero() && limits.lock_delay.is_zero()) {
            Some("min_hold and lock_delay: its units cannot rest".to_owned())
        } else if self.terms.unless_fresh && !capability.keeps_values {
            Some("single-flight: it keeps no value beyond the hold".to_owned())
        } else if self.terms.ttl < capability.ttl_min || self.terms.ttl > capability.ttl_max {
            let (least, most) = (capability.ttl_min, capability.ttl_max);
            let what = format!("a ttl of {:?}, but {least:?} to {most:?}", self.terms.ttl);
            Some(because(what, if self.terms.ttl > most { capability.ttl_reason } else { "" }))
        } else {
            None
        };
        if let Some(what) = unsupported {
            return Err(Error::new(ErrorKind::Unsupported, "claim", format!("it cannot do {what}"))
                .with_resource(resource)
                .with_engine(engine.name()));
        }
        self.connection.shared.report_coarse_ttl(resource, self.terms.ttl);
        let (floor, terms) = (
            self.connection.shared.floor(resource).max(self.floor),
            self.connection.shared.share(&self.terms),
        );
        let (resource, claim) = (resource.clone(), self.claim);
        let is_left = self.is_left;
        Ok(AcquireRequest { resource, claim, is_left, terms, wait, floor, scope: self.scope, span: None })
    }
}

/// Shows what is asked for by a name.
pub(crate) fn show(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    name: &Result<Name>,
    connection: &Connection,
) -> fmt::Result {
    let name: &dyn fmt::Debug = name.as_ref().map_or_else(|error| error as _, |name| name as _);
    f.debug_struct(what).field("name", name).field("engine", &connection.engine()).finish_non_exhaustive()
}

/// Says what an engine cannot do, and why if it has a reason.
fn because(what: String, reason: &str) -> String {
    if reason.is_empty() { what } else { format!("{what}: {reason}") }
}

fn tried<T>(acquired: Acquired, held: fn(Lease) -> Result<T>) -> Result<Option<T>> {
    match acquired {
        Acquired::Lease(lease) => held(lease).map(Some),
        Acquired::Busy(..) => Ok(None),
        Acquired::Fresh(..) => Err(unasked_value()),
    }
}

/// Works in the lease's span until the work is done, or drops it when the lease is lost.
pub(crate) async fn until_lost<T>(lease: &Lease, work: impl Future<Output = T>) -> Result<T> {
    let lost = std::pin::pin!(lease.lost());
    let work = std::pin::pin!(work.instrument(lease.span()));
    match select(lost, work).await {
        Either::Left((lost, _)) => Err(lost),
        Either::Right((done, _)) => Ok(done),
    }
}

/// Releases the lease of work that is done, unless it was lost before that.
pub(crate) async fn finish<T>(lease: Lease, done: T) -> Result<T> {
    // The deadline may have passed in the work's last stretch, in which it was not checked.
    if lease.is_lost() {
        return Err(lease.lost().await);
    }
    // The work is done. A release that fails goes on in the background, and the hold ends by itself.
    if let Err(error) = lease.release().await {
        tracing::debug!(%error, "release after the work goes on in the background");
    }
    Ok(done)
}

/// What a primitive shows of itself to programmers: its name, if it is a good one, its engine, and no secret.
macro_rules! debug {
    ($($primitive:ident)*) => {
        $(impl std::fmt::Debug for $primitive {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.claimant.debug(stringify!($primitive), f)
            }
        })*
    };
}

/// The settings that all primitives share. `$units` is what a holder holds, in words.
macro_rules! settings {
    ($units:literal) => {
        /// Sets how long a hold lives without renewal (default 30 s; 100 ms to 24 h). Renewals are sent every
        /// third of it. More: slower to notice a dead holder. Less: sooner lost when the store is slow.
        ///
        /// `let lock = lock.ttl(Duration::from_secs(30));`
        #[must_use]
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.claimant.terms().ttl = ttl;
            self
        }

        /// Ends every lease this long after its grant, renewed or not (default: never).
        ///
        /// `let lock = lock.max_hold(Duration::from_secs(3600));`
        #[must_use]
        pub fn max_hold(mut self, max_hold: Duration) -> Self {
            self.claimant.terms().limits.max_hold = Some(max_hold);
            self
        }

        #[doc = concat!("Keeps ", $units, " from others until this long after the grant, even if released sooner")]
        /// (default: not at all). A fleet in which every process tries does the work once per period; if the holder
        /// vanishes, another may try at once.
        ///
        /// `let lock = lock.min_hold(Duration::from_secs(60));`
        #[must_use]
        pub fn min_hold(mut self, min_hold: Duration) -> Self {
            self.claimant.terms().limits.min_hold = min_hold;
            self
        }

        #[doc = concat!("Keeps ", $units, " from others for this long after the holder vanished (default: not at")]
        /// all), for resources that cannot check tokens.
        ///
        /// `let lock = lock.lock_delay(Duration::from_secs(10));`
        #[must_use]
        pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
            self.claimant.terms().limits.lock_delay = lock_delay;
            self
        }

        /// Adds a free text to the label that others are shown (default: none). Too long a text is cut.
        ///
        /// `let lock = lock.label("night run");`
        #[must_use]
        pub fn label(mut self, text: &str) -> Self {
            self.claimant.set_label(text);
            self
        }
    };
}

/// The setting that shows others a label of somebody else.
macro_rules! labelled {
    () => {
        /// Shows others this label in place of the client's own (default). For a server that passes on what others ask for, and knows who
        /// they are.
        ///
        /// `let lock = lock.labelled(label);`
        #[must_use]
        pub fn labelled(mut self, label: $crate::model::claim::Label) -> Self {
            self.claimant.set_whole_label(label);
            self
        }
    };
}

/// The settings of one claim that is passed on for another program, which may repeat it.
macro_rules! claim_id {
    () => {
        /// Gives the claim an id of the caller's own: 128 random bits, used for one acquisition, in place of those that the client makes
        /// (default). For a server that passes on what others ask for, who repeat a request that was not answered.
        ///
        /// `let lease = lock.claim_id(id).acquire_within(Duration::from_secs(5)).await?;`
        ///
        /// The same id repeated, by this client or another one, is the same claim: while it holds it gets the same grant, and while it
        /// waits the same place. After its end it gets [`Finished`](crate::ErrorKind::Finished) for 60 s, and after that it
        /// would be a new claim. Repeat it with the same settings: what was asked for first counts.
        ///
        /// A client has one claim of an id at a time: a second one gets [`Invalid`](crate::ErrorKind::Invalid) until the first one is released or
        /// withdrawn. What would be claimed anew under another id (a place that was lost, a grant that came too late) ends with `Finished`.
        /// None of several ([`Tenure::all`](crate::Tenure::all), [`Tenure::any`](crate::Tenure::any)) has an id of its own.
        ///
        /// # Engines
        /// Where [`Capability::adopts`](crate::engine::Capability::adopts) is `SameClient`, an id that another client holds or waits under is
        /// [`Unsupported`](crate::ErrorKind::Unsupported). Where [`Capability::remembers_ends`](crate::engine::Capability::remembers_ends) is false, the
        /// end of a hold that ended by itself is forgotten, and its id is that of a new claim at once.
        #[must_use]
        pub fn claim_id(mut self, id: $crate::model::claim::ClaimId) -> Self {
            self.claimant.set_claim(id);
            self
        }

        /// Leaves the claim where it is when this client ends a wait without a lease: when the wait is dropped or over, or failed (default: it is
        /// withdrawn). For a server whose clients repeat an id at another one, and may hold by it there: what this one knows is too old
        /// to end that. What nobody asks for again lapses by itself, a hold after its ttl; [`DetachedClaims::release`](crate::DetachedClaims::release)
        /// ends it. A grant that was handed over is given to its user once the store has answered its first renewal, or has not answered:
        /// [`Lease::is_confirmed`](crate::Lease::is_confirmed).
        ///
        /// `let lock = lock.left_in_store();`
        #[must_use]
        pub fn left_in_store(mut self) -> Self {
            self.claimant.set_left();
            self
        }

        /// Raises the floor of this claim: its grant gets a larger token (default: the largest that this client has seen). For a token that who
        /// asks has seen and this client has not. [`Tenure::raise_floor`](crate::Tenure::raise_floor) raises it for all claims of the client.
        ///
        /// `let lock = lock.floor(token);`
        #[must_use]
        pub fn floor(mut self, token: $crate::model::token::Token) -> Self {
            self.claimant.set_floor(token);
            self
        }
    };
}

/// Three of the verbs. `$units` is what is taken, in words; `$held` what its users are given, which `$of` makes of
/// a lease.
macro_rules! verbs {
    ($units:literal, $held:ty, $of:expr) => {
        #[doc = concat!("Takes ", $units, " if free and nobody waits; none if not.")]
        ///
        /// `let lease = lock.try_acquire().await?;`
        ///
        /// # Errors
        /// [`Unavailable`](crate::ErrorKind::Unavailable) if the engine does not answer within the answer timeout
        /// (default 2 s); [`Conflict`](crate::ErrorKind::Conflict) if the name is in use with another kind or
        /// capacity; [`Invalid`](crate::ErrorKind::Invalid) for a bad name, capacity or setting, before anything
        /// is sent; [`Unsupported`](crate::ErrorKind::Unsupported) if the engine cannot do it.
        ///
        /// # Cancel safety
        /// Dropping the future releases what it may have been granted, in the background.
        ///
        /// # Cost
        /// One round trip.
        pub async fn try_acquire(&self) -> Result<Option<$held>> {
            self.claimant.try_acquire($of).await
        }

        #[doc = concat!("Waits until ", $units, " can be granted, and takes it. Waits for ever.")]
        ///
        /// `let lease = lock.acquire().await?;`
        ///
        /// Waiters are served in the order in which the engine received their claims.
        ///
        /// # Errors
        /// As [`Self::try_acquire`], and [`Unavailable`](crate::ErrorKind::Unavailable) if the engine stays silent
        /// for so long that the place in the queue is gone (15 s, or the ttl if that is less, but not less than
        /// the answer timeout).
        ///
        /// # Cancel safety
        /// Dropping the future withdraws the claim and loses the place in the queue. If the grant was already on
        /// its way, it is released in the background; if that fails, it ends after its ttl. A future that is not
        /// polled does not keep what it was granted: after one ttl it is given back, and the next poll asks anew, at
        /// the end of the queue.
        ///
        /// # Cost
        /// One round trip when free; one more message when woken; while waiting, a heartbeat every third of
        /// the confirm window (5 s, or the ttl if that is less).
        pub fn acquire(&self) -> Acquire<$held> {
            self.claimant.acquire(None, $of)
        }

        #[doc = concat!("Waits up to `wait` for ", $units, ". Zero does not queue.")]
        ///
        /// `let lease = lock.acquire_within(Duration::from_secs(5)).await?;`
        ///
        /// # Errors
        /// As [`Self::acquire`], and [`Timeout`](crate::ErrorKind::Timeout) if the wait was over first; then
        /// nothing is held.
        ///
        /// # Cancel safety
        /// As [`Self::acquire`].
        pub fn acquire_within(&self, wait: Duration) -> Acquire<$held> {
            self.claimant.acquire(Some(wait), $of)
        }
    };
}

/// The fourth verb, for primitives whose work is done once.
macro_rules! run {
    ($units:literal) => {
        #[doc = concat!("Takes ", $units, ", does the work and releases. If the lease is lost, the work is dropped.")]
        ///
        /// `let done = lock.run(async |lease| work(lease.token())).await?;`
        ///
        /// # Errors
        /// Those of [`Self::acquire`], and [`Lost`](crate::ErrorKind::Lost) if the lease was lost before the work
        /// was done.
        ///
        /// # Cancel safety
        /// Dropping the future drops the work and releases in the background.
        pub async fn run<T>(&self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T> {
            let lease = self.acquire().await?;
            let done = $crate::face::claimant::until_lost(&lease, work(&lease)).await?;
            $crate::face::claimant::finish(lease, done).await
        }
    };
}

pub(crate) use {claim_id, debug, labelled, run, settings, verbs};
