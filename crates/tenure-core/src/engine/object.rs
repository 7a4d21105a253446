//! Engines as objects: what the client keeps. An engine is written with `async fn`, which no object can have; here each future is put
//! into a box, once for a call.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::engine::queue::{
    ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueLine, QueueStats, Settle,
    SettleAnswer, Take, Taken, Which,
};
use crate::engine::{
    BlockingEngine, BreakAnswer, Capability, ClaimAnswer, Engine, Finding, ReleaseAnswer, ReleaseRequest,
    RenewAnswer, RenewRequest, Shard, Wake, WithdrawAnswer, WithdrawRequest,
};
use crate::error::Result;
use crate::model::claim::{Claim, ClaimId, Keep, Name};
use crate::model::inspect::View;
use crate::model::token::Token;

/// Writes a trait with the verbs of another, of which those under `later` return boxes, and implements it for all that have the other.
macro_rules! object_form {
    (
        $(#[$about:meta])*
        $object:ident of $engine:ident: [$($bound:tt)+]
        now { $(fn $now:ident($($given:ident: $is:ty),*) $(-> $says:ty)?;)* }
        later { $(fn $later:ident($($with:ident: $like:ty),*) -> $answer:ty;)* }
    ) => {
        $(#[$about])*
        #[allow(missing_docs, reason = "the verbs are those of the other trait")]
        pub trait $object: $($bound)+ {
            $(fn $now(&self, $($given: $is),*) $(-> $says)?;)*
            $(fn $later(&self, $($with: $like),*) -> BoxFuture<'_, $answer>;)*
        }

        impl<E: $engine> $object for E {
            $(fn $now(&self, $($given: $is),*) $(-> $says)? {
                $engine::$now(self, $($given),*)
            })*
            $(fn $later(&self, $($with: $like),*) -> BoxFuture<'_, $answer> {
                Box::pin($engine::$later(self, $($with),*))
            })*
        }
    };
}

object_form! {
    /// An [`Engine`] as an object. Every engine is one; it is not implemented by hand.
    DynEngine of Engine: [Send + Sync + 'static]
    now {
        fn name() -> &'static str;
        fn capability() -> &Capability;
        fn shard(resource: &Name) -> Shard;
        fn inspect_all(prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>>;
        fn observe(resource: Name) -> BoxStream<'static, Result<Option<View>>>;
        fn wakes() -> BoxStream<'static, Wake>;
        fn queues() -> Option<&dyn DynQueueEngine>;
        fn blocking() -> Option<&dyn BlockingEngine>;
        fn close();
        fn share_life(pid: u32) -> Result<Option<OwnedFd>>;
    }
    later {
        fn claim(claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>>;
        fn renew(renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>>;
        fn adopt(renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>>;
        fn release(releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>>;
        fn withdraw(withdrawals: Vec<WithdrawRequest>) -> Vec<Result<WithdrawAnswer>>;
        fn publish(resource: Name, claim: ClaimId, bytes: Arc<[u8]>, keep: Keep) -> Result<bool>;
        fn inspect(prefix: String, after: Option<Name>, most: usize) -> Result<Vec<View>>;
        fn view(resource: Name) -> Result<Option<View>>;
        fn break_hold(resource: Name, token: Token, at_once: bool) -> Result<BreakAnswer>;
        fn resize(resource: Name, capacity: u32) -> Result<()>;
        fn check() -> Vec<Finding>;
        fn migrate() -> Result<Option<String>>;
        fn purge() -> Result<Option<usize>>;
    }
}

object_form! {
    /// A [`QueueEngine`] as an object, as [`DynEngine`] is an [`Engine`].
    DynQueueEngine of QueueEngine: [Send + Sync]
    now {
        fn capability() -> &QueueCapability;
        fn queues_all(prefix: String) -> BoxStream<'_, Result<Vec<QueueLine>>>;
    }
    later {
        fn push(pushes: Vec<Push>) -> Vec<Result<Pushed>>;
        fn take(takes: Vec<Take>) -> Vec<Result<Taken>>;
        fn renew(renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>>;
        fn adopt(renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>>;
        fn settle(settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>>;
        fn queues(prefix: String, after: Option<Name>, most: usize) -> Result<Vec<(Name, QueueStats)>>;
        fn stats(queue: Name) -> Result<QueueStats>;
        fn is_empty(queue: Name) -> Result<bool>;
        fn items(queue: Name, which: Which, after: Option<ItemId>, most: usize) -> Result<Vec<ItemView>>;
        fn replay(queue: Name, item: Option<ItemId>, most: usize) -> Result<usize>;
        fn purge(queue: Name, which: Which, item: Option<ItemId>, most: usize) -> Result<usize>;
    }
}
