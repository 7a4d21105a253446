//! One process of a fleet loads a value; the others get it.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::Keep;
use crate::claimant::{Claimant, until_lost};
use crate::client::Tenure;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Asked, Lease};
use crate::token::Token;

/// A guard against cache stampedes: when a value has expired, one process loads it, and whoever wants it
/// meanwhile waits for that value or takes the stale one.
///
/// # Guarantees
/// At most one process loads at a time. Its value is published under its token and answers all who wait at once. If
/// it fails or dies, exactly one of those who wait loads in its place. A loader that lost its lease publishes
/// nothing.
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
#[derive(Clone)]
pub struct SingleFlight {
    tenure: Tenure,
    key: String,
    claimant: Claimant,
    fresh: Duration,
    stale: Duration,
    serves_stale: bool,
}

/// A value, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The value.
    pub bytes: Arc<[u8]>,
    /// Where it came from.
    pub source: Source,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Another had loaded it, under this token, and it is fresh.
    Fresh(Token),
    /// It is not fresh any more; another is loading the next one.
    Stale,
    /// This call has loaded it, under this token.
    Loaded(Token),
}

impl SingleFlight {
    pub(crate) fn new(tenure: Tenure, key: &str) -> SingleFlight {
        let mut claimant = Claimant::new(tenure.connection.clone(), key);
        claimant.terms().unless_fresh = true;
        SingleFlight {
            claimant,
            tenure,
            key: key.to_owned(),
            fresh: Duration::from_secs(60),
            stale: Duration::ZERO,
            serves_stale: false,
        }
    }

    /// Sets for how long a value is fresh (default 60 s): nobody loads meanwhile.
    #[must_use]
    pub fn fresh(mut self, fresh: Duration) -> SingleFlight {
        self.fresh = fresh;
        self
    }

    /// Serves a value for this long after it was fresh while another loads the next one, and does not wait
    /// (default: waits for the next one).
    #[must_use]
    pub fn serve_stale(mut self, stale: Duration) -> SingleFlight {
        (self.stale, self.serves_stale) = (stale, true);
        self
    }

    /// Sets how long a loader that is not heard of blocks the others (default 30 s; see [`Mutex::ttl`](crate::Mutex::ttl)).
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> SingleFlight {
        self.claimant.terms().ttl = ttl;
        self
    }

    /// Returns the value if it is fresh; otherwise loads it, or waits for who does, or returns the stale one.
    ///
    /// The load is dropped if its lease is lost.
    ///
    /// # Errors
    /// What the load says; [`ErrorKind::Lost`] if its lease was lost; [`ErrorKind::Invalid`] for a value of more
    /// than 256 KiB; [`ErrorKind::Unavailable`] if it was loaded and could not be published; those of [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Cancel safety
    /// Dropping the future drops the load, and another loads.
    ///
    /// # Cost
    /// One round trip for a fresh value; two for a stale one; three beside the load for who loads.
    pub async fn get_or_refresh<E: From<Error>>(
        &self,
        load: impl AsyncFnOnce(&Lease) -> Result<Vec<u8>, E>,
    ) -> Result<Found, E> {
        self.check()?;
        let mut asked = None;
        if self.serves_stale {
            match self.claimant.ask(Some(Duration::ZERO)).await? {
                Asked::Busy(..) => {
                    let view = self.tenure.view(&self.key).await?;
                    if let Some(bytes) = view.and_then(|view| view.value) {
                        return Ok(Found { bytes, source: Source::Stale });
                    }
                }
                answer => asked = Some(answer),
            }
        }
        let asked = match asked {
            Some(asked) => asked,
            None => self.claimant.ask(None).await?,
        };
        match asked {
            Asked::Fresh(value) => Ok(Found { bytes: value.bytes, source: Source::Fresh(value.token) }),
            Asked::Lease(lease) => self.load(lease, load).await,
            Asked::Busy(..) => {
                Err(Error::new(ErrorKind::Internal, "claim", "refused although it waits").into())
            }
        }
    }

    async fn load<E: From<Error>>(
        &self,
        lease: Lease,
        load: impl AsyncFnOnce(&Lease) -> Result<Vec<u8>, E>,
    ) -> Result<Found, E> {
        let bytes = until_lost(&lease, load(&lease)).await??;
        lease.publish(&bytes, Keep::For { fresh: self.fresh, stale: self.stale }).await?;
        let source = Source::Loaded(lease.token());
        if let Err(error) = lease.release().await {
            tracing::debug!(%error, "release after the load goes on in the background");
        }
        Ok(Found { bytes: bytes.into(), source })
    }

    fn check(&self) -> Result<()> {
        for (what, period) in [("fresh", self.fresh), ("stale", self.stale)] {
            if period > crate::claim::PERIOD_MAX {
                let message = format!("a {what} period of {period:?} is out of range");
                return Err(
                    Error::new(ErrorKind::Invalid, "refresh", message).with_hint("the longest is ten years")
                );
            }
        }
        Ok(())
    }
}
