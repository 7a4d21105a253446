//! One leader at a time, which every client can look up.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::client::connection::Connection;
use crate::counts::Primitive;
use crate::engine::ReleaseAnswer;
use crate::error::{Error, ErrorKind, Result};
use crate::face::claimant::{finish, until_lost};
use crate::face::lease::Lease;
use crate::face::mutex::Mutex;
use crate::face::observer::Observer;
use crate::model::claim::{Keep, Kind, Label, Name};
use crate::model::inspect::View;
use crate::model::token::Token;

/// How long a former leader waits before it asks an engine again that did not answer: it has waited for the
/// answer, too.
const CAMPAIGN_PAUSE: Duration = Duration::from_secs(1);

/// An election: candidates campaign, one leads for a [`Term`], and every client can see which.
///
/// # Guarantees
/// Those of a [`Mutex`], which it is: at most one term at a time, candidates lead in the order in which they
/// began to campaign, each term's token is larger than every earlier one. A leader that loses its term learns
/// it by its own clock, before the engine lets another lead; the token marks what it still sends.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("election-example").await?;
/// let scheduler = tenure.election("scheduler");
/// let term = scheduler.campaign().await?;
/// term.publish(b"10.0.0.7:8080").await?;
/// let leader = scheduler.leader().await?.expect("there is one");
/// assert_eq!(leader.value.as_deref(), Some(&b"10.0.0.7:8080"[..]));
/// term.resign().await?;
/// # Ok(()) }) }
/// ```
///
/// Each method in a line:
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(election: tenure_core::Election, work: impl Fn(tenure_core::Token)) -> tenure_core::Result<()> {
/// let election = election.ttl(Duration::from_secs(15));
/// let election = election.label("eu-west");
/// let term = election.campaign().await?;
/// term.publish(b"10.0.0.7:8080").await?;
/// term.resign().await?;
/// let term = election.try_campaign().await?;
/// let done = election.run(async |term| work(term.token())).await?;
/// let leader = election.leader().await?;
/// let mut leaders = election.changes()?;
/// while let Some(leader) = leaders.next().await { println!("{:?}", leader?); }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Election {
    connection: Arc<Connection>,
    name: String,
    mutex: Mutex,
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mutex.claimant.debug("Election", f)
    }
}

impl Election {
    pub(crate) fn new(connection: &Arc<Connection>, name: &str) -> Election {
        let mutex = Mutex::of(connection.clone(), name, Primitive::Election);
        Election { mutex, name: name.to_owned(), connection: connection.clone() }
    }

    /// Sets how long a term lives without renewal (see [`Mutex::ttl`]): how long there is no leader after a leader
    /// has died.
    ///
    /// `let election = election.ttl(Duration::from_secs(15));`
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Election {
        self.mutex = self.mutex.ttl(ttl);
        self
    }

    /// Adds a free text to the label by which the leader is shown.
    ///
    /// `let election = election.label("eu-west");`
    #[must_use]
    pub fn label(mut self, text: &str) -> Election {
        self.mutex = self.mutex.label(text);
        self
    }

    /// Waits until this candidate leads. Waits for ever.
    ///
    /// `let term = election.campaign().await?;`
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    ///
    /// # Cost
    /// As [`Mutex::acquire`].
    pub async fn campaign(&self) -> Result<Term> {
        Ok(Term { lease: self.mutex.acquire().await? })
    }

    /// Leads if there is no leader and no other candidate; none otherwise.
    ///
    /// `let term = election.try_campaign().await?;`
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    pub async fn try_campaign(&self) -> Result<Option<Term>> {
        Ok(self.mutex.try_acquire().await?.map(|lease| Term { lease }))
    }

    /// Campaigns, does the work of a leader, and campaigns again whenever a term is lost: a leader that is cut
    /// off becomes a follower, not a dead process. It ends with the first work that comes to its end, and then
    /// resigns.
    ///
    /// `let done = election.run(async |term| work(term.token())).await?;`
    ///
    /// Once it has led, it campaigns for as long as that takes: a store that does not answer is why most terms are
    /// lost, and it is asked again every second.
    ///
    /// # Errors
    /// Those of [`Election::campaign`], but not [`ErrorKind::Unavailable`] once it has led;
    /// [`Lost`](ErrorKind::Lost) if the term was lost in the last stretch of work that has returned.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and resigns in the background.
    pub async fn run<T>(&self, mut work: impl AsyncFnMut(&Term) -> T) -> Result<T> {
        let mut has_led = false;
        loop {
            let term = self.campaign_on(has_led).await?;
            has_led = true;
            match until_lost(&term.lease, work(&term)).await {
                Ok(done) => return finish(term.lease, done).await,
                Err(error) => tracing::info!(%error, "campaigning again"),
            }
        }
    }

    /// Campaigns; one that has led does so until the engine answers.
    pub(crate) async fn campaign_on(&self, has_led: bool) -> Result<Term> {
        loop {
            match self.campaign().await {
                Err(error) if has_led && error.kind() == ErrorKind::Unavailable => {
                    tracing::info!(%error, "campaigning until the engine answers");
                    self.connection.shared.pause(CAMPAIGN_PAUSE).await?;
                }
                campaigned => return campaigned,
            }
        }
    }

    /// Returns the leader; none if there is none.
    ///
    /// `let leader = election.leader().await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name; [`ErrorKind::Conflict`] if the name is in use as a semaphore or another kind that no election is;
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time.
    ///
    /// # Cost
    /// One round trip.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        match self.connection.shared.view(Name::new(&self.name)?).await? {
            Some(view) => Leader::of(view),
            None => Ok(None),
        }
    }

    /// Follows the leader: the present leader first, then each change of the leader or its value. A slow reader
    /// misses changes in between, but never the latest.
    ///
    /// `let mut leaders = election.changes()?;`
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a bad name.
    pub fn changes(&self) -> Result<Leaders> {
        Ok(Leaders { changes: Observer::new(&self.connection, Name::new(&self.name)?), last: None })
    }
}

/// The time in which one candidate leads: a [`Lease`] that can be published under.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("term-example").await?;
/// let term = tenure.election("scheduler").campaign().await?;
/// term.publish(b"10.0.0.7:8080").await?;
/// while !term.is_lost() {
///     // One step of the work, under `term.token()`.
///     # break;
/// }
/// term.resign().await?;
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct Term {
    lease: Lease,
}

impl Term {
    /// Publishes a value that every client can read, such as an address. It goes with the term.
    ///
    /// `term.publish(b"10.0.0.7:8080").await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the term has ended; [`ErrorKind::Invalid`] for more than 256 KiB;
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time: then publish again.
    ///
    /// # Cost
    /// One round trip.
    pub async fn publish(&self, value: &[u8]) -> Result<()> {
        self.lease.publish(value.into(), Keep::WhileHeld).await
    }

    /// Ends the term; the next candidate leads.
    ///
    /// `term.resign().await?;`
    ///
    /// # Errors
    /// As [`Lease::release`].
    pub async fn resign(self) -> Result<ReleaseAnswer> {
        self.lease.release().await
    }
}

impl Deref for Term {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

/// The present leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Whose term it is.
    pub label: Label,
    /// The token of the term.
    pub token: Token,
    /// What was published under it.
    pub value: Option<Arc<[u8]>>,
}

impl Leader {
    fn of(view: View) -> Result<Option<Leader>> {
        if view.kind != Kind::Mutex && view.used > 0 {
            let message = format!("it is in use as a {}, and nobody leads by that", view.kind);
            return Err(Error::new(ErrorKind::Conflict, "look", message).with_resource(&view.resource));
        }
        let hold = view.holds.into_iter().find(|hold| hold.claim.is_some());
        Ok(hold.map(|hold| Leader { label: hold.label, token: hold.token, value: view.value }))
    }
}

/// The leaders of an election, one after the other (see [`Election::changes`]).
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("leaders-example").await?;
/// # let election = tenure.election("scheduler");
/// # let term = election.campaign().await?;
/// let mut leaders = election.changes()?;
/// while let Some(leader) = leaders.next().await {
///     match leader? {
///         Some(leader) => println!("{} leads", leader.label),
///         None => println!("nobody leads"),
///     }
///     # break;
/// }
/// # drop(term);
/// # Ok(()) }) }
/// ```
pub struct Leaders {
    changes: Observer,
    last: Option<Option<Leader>>,
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders")
            .field("last", &self.last.as_ref().and_then(Option::as_ref))
            .finish_non_exhaustive()
    }
}

impl Leaders {
    /// Waits for the next change of the leader or its value; an inner `None` means that there is no leader. The end
    /// means that the client is closed.
    ///
    /// `while let Some(leader) = leaders.next().await { println!("{:?}", leader?); }`
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping it.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        loop {
            let leader = match self.changes.next().await? {
                Ok(view) => view.map_or(Ok(None), Leader::of),
                Err(error) => Err(error),
            };
            let leader = match leader {
                Ok(leader) => leader,
                Err(error) => return Some(Err(error)),
            };
            // Candidates that come and go change the view too.
            if self.last.as_ref() != Some(&leader) {
                self.last = Some(leader.clone());
                return Some(Ok(leader));
            }
        }
    }
}
