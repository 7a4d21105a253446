//! What is detached, without an async runtime.

use std::time::Duration;

use pollster::block_on;

use super::sealed::Configured;
use super::{Blocking, Delivery, Lease};
use crate::clock::Instant;
use crate::engine::queue::SettleAnswer;
use crate::engine::{ReleaseAnswer, WithdrawAnswer};
use crate::error::Result;
use crate::face::{detached, lease, queue, tenure};
use crate::model::claim::{ClaimId, Name};

impl<P: Configured> Blocking<P> {
    /// Gives the claim an id of the caller's own (see [`Mutex::claim_id`](crate::Mutex::claim_id)).
    #[must_use]
    pub fn claim_id(mut self, id: ClaimId) -> Self {
        self.0.set_claim(id);
        self
    }
}

impl Blocking<lease::Lease> {
    /// Lets go of the lease without releasing it (see [`lease::Lease::detach`]).
    ///
    /// # Errors
    /// As there.
    pub fn detach(self) -> Result<detached::Detached> {
        self.0.detach()
    }
}

impl Blocking<tenure::Tenure> {
    /// Makes a lease of what was detached (see [`tenure::Tenure::attach`]).
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, detached: &detached::Detached) -> Result<Option<Lease>> {
        Ok(block_on(self.0.attach(detached))?.map(Blocking))
    }

    /// Returns the verbs about claims by their ids.
    pub fn detached(&self) -> Blocking<detached::DetachedClaims> {
        Blocking(self.0.detached())
    }
}

impl Blocking<detached::DetachedClaims> {
    /// Renews holds, and keeps the places of claims that wait (see [`detached::DetachedClaims::renew`]).
    pub fn renew(&self, claims: Vec<(Name, ClaimId)>) -> Vec<Result<Option<detached::Kept>>> {
        block_on(self.0.renew(claims))
    }

    /// Releases holds and withdraws claims that wait (see [`detached::DetachedClaims::release`]).
    pub fn release(&self, claims: Vec<(Name, ClaimId)>) -> Vec<Result<ReleaseAnswer>> {
        block_on(self.0.release(claims))
    }

    /// Withdraws claims that nobody asks for any more (see [`detached::DetachedClaims::withdraw`]).
    pub fn withdraw(&self, claims: Vec<(Name, ClaimId)>) -> Vec<Result<WithdrawAnswer>> {
        block_on(self.0.withdraw(claims))
    }
}

impl Blocking<queue::Delivery> {
    /// Lets go of the delivery without ending it (see [`queue::Delivery::detach`]).
    ///
    /// # Errors
    /// As there.
    pub fn detach(self) -> Result<queue::detached::DetachedDelivery> {
        self.0.detach()
    }
}

impl Blocking<queue::Queue> {
    /// Makes a delivery of what was detached (see [`queue::Queue::attach`]).
    ///
    /// # Errors
    /// As there.
    pub fn attach(&self, detached: &queue::detached::DetachedDelivery) -> Result<Option<Delivery>> {
        Ok(block_on(self.0.attach(detached))?.map(Blocking))
    }

    /// Returns the verbs about deliveries by their ids.
    pub fn detached(&self) -> Blocking<queue::detached::DetachedDeliveries> {
        Blocking(self.0.detached())
    }
}

/// The verbs of [`queue::detached::DetachedDeliveries`].
impl Blocking<queue::detached::DetachedDeliveries> {
    /// Renews deliveries: until when it is safe to work on each.
    pub fn renew(&self, claims: Vec<ClaimId>) -> Vec<Result<Option<Instant>>> {
        block_on(self.0.renew(claims))
    }

    /// Acknowledges items.
    pub fn ack(&self, claims: Vec<ClaimId>) -> Vec<Result<SettleAnswer>> {
        block_on(self.0.ack(claims))
    }

    /// Hands items out again after so long.
    pub fn retry(&self, claims: Vec<ClaimId>, after: Duration, why: &str) -> Vec<Result<SettleAnswer>> {
        block_on(self.0.retry(claims, after, why))
    }

    /// Makes items dead letters.
    pub fn fail(&self, claims: Vec<ClaimId>, reason: &str) -> Vec<Result<SettleAnswer>> {
        block_on(self.0.fail(claims, reason))
    }

    /// Puts items back as if they had not been handed out.
    pub fn put_back(&self, claims: Vec<ClaimId>) -> Vec<Result<SettleAnswer>> {
        block_on(self.0.put_back(claims))
    }
}
