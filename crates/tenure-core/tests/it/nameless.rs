//! An engine whose errors say neither where they come from nor what they are about: the client says it for all verbs.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure_core::engine::queue::{
    Dispatched, ItemId, ItemView, Push, Pushed, QueueCapability, QueueEngine, QueueLine, QueueStats, Settle,
    SettleAnswer, Take, Taken, Which,
};
use tenure_core::engine::{
    BreakAnswer, Capability, ClaimAnswer, Connect, DynQueueEngine, Engine, Finding, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, Wake,
};
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::{Claim, ClaimId, Grant, Keep, Name};
use tenure_core::model::inspect::View;
use tenure_core::{Settings, Tenure, Token};

/// Grants what is called "granted" and hands out one item, so that there is something to fail with later.
pub(crate) struct Nameless {
    capability: Capability,
    queues: QueueCapability,
}

fn failure() -> Error {
    Error::new(ErrorKind::Invalid, "do it", "it failed").with_no_effect()
}

fn fail_all<R, T>(requests: &[R]) -> Vec<Result<T>> {
    requests.iter().map(|_| Err(failure())).collect()
}

impl Engine for Nameless {
    fn name(&self) -> &'static str {
        "nameless"
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        let answer = |claim: &Claim| match claim.resource.as_str() {
            "granted" => {
                Ok(ClaimAnswer::Granted(Grant { token: Token::new(1), slot: None, ends_in: claim.terms.ttl }))
            }
            _ => Err(failure()),
        };
        claims.iter().map(answer).collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        fail_all(&renewals)
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        fail_all(&releases)
    }

    async fn publish(&self, _: Name, _: ClaimId, _: Arc<[u8]>, _: Keep) -> Result<bool> {
        Err(failure())
    }

    async fn inspect(&self, _: String, _: Option<Name>, _: usize) -> Result<Vec<View>> {
        Err(failure())
    }

    async fn view(&self, resource: Name) -> Result<Option<View>> {
        if resource.as_str() == "silent" { std::future::pending().await } else { Err(failure()) }
    }

    fn inspect_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
        let one = failure().with_resource(&Name::new("unreadable").expect("a name"));
        let page = if prefix.is_empty() { Err(failure()) } else { Ok(vec![Err(one)]) };
        stream::iter([page]).boxed()
    }

    fn observe(&self, _: Name) -> BoxStream<'static, Result<Option<View>>> {
        stream::iter([Err(failure())]).boxed()
    }

    async fn break_hold(&self, _: Name, _: Token, _: bool) -> Result<BreakAnswer> {
        Err(failure())
    }

    async fn resize(&self, _: Name, _: u32) -> Result<()> {
        Err(failure())
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        stream::pending().boxed()
    }

    async fn check(&self) -> Vec<Finding> {
        Vec::new()
    }

    async fn migrate(&self) -> Result<Option<String>> {
        Err(failure())
    }

    async fn purge(&self) -> Result<Option<usize>> {
        Err(failure())
    }

    fn queues(&self) -> Option<&dyn DynQueueEngine> {
        Some(self)
    }

    fn share_life(&self, _: u32) -> Result<Option<std::os::fd::OwnedFd>> {
        Err(failure())
    }
}

impl QueueEngine for Nameless {
    fn capability(&self) -> &QueueCapability {
        &self.queues
    }

    async fn push(&self, pushes: Vec<Push>) -> Vec<Result<Pushed>> {
        fail_all(&pushes)
    }

    async fn take(&self, takes: Vec<Take>) -> Vec<Result<Taken>> {
        let answer = |take: &Take| match take.queue.as_str() {
            "granted" => Ok(Taken {
                items: take.claims.iter().map(|claim| item(*claim, take.rules.ttl)).collect(),
                look_in: None,
            }),
            _ => Err(failure()),
        };
        takes.iter().map(answer).collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        fail_all(&renewals)
    }

    async fn settle(&self, settlements: Vec<Settle>) -> Vec<Result<SettleAnswer>> {
        fail_all(&settlements)
    }

    async fn queues(&self, _: String, _: Option<Name>, _: usize) -> Result<Vec<(Name, QueueStats)>> {
        Err(failure())
    }

    fn queues_all(&self, prefix: String) -> BoxStream<'_, Result<Vec<QueueLine>>> {
        let one = (Name::new("unreadable").expect("a name"), Err(failure()));
        let page = if prefix.is_empty() { Err(failure()) } else { Ok(vec![one]) };
        stream::iter([page]).boxed()
    }

    async fn stats(&self, _: Name) -> Result<QueueStats> {
        Err(failure())
    }

    async fn items(&self, _: Name, _: Which, _: Option<ItemId>, _: usize) -> Result<Vec<ItemView>> {
        Err(failure())
    }

    async fn replay(&self, _: Name, _: Option<ItemId>, _: usize) -> Result<usize> {
        Err(failure())
    }

    async fn purge(&self, _: Name, _: Which, _: Option<ItemId>, _: usize) -> Result<usize> {
        Err(failure())
    }
}

fn item(claim: ClaimId, ttl: Duration) -> Dispatched {
    Dispatched {
        claim,
        item: ItemId(1),
        group: None,
        payload: Arc::from(*b"x"),
        context: None,
        token: Token::new(1),
        attempt: 1,
        ends_in: ttl,
        age: Duration::ZERO,
    }
}

impl Nameless {
    pub(crate) fn connector() -> Connect {
        Connect::new("nameless", async move |_| {
            let (capability, queues) = (Capability::of_step(), QueueCapability::of_step());
            Ok(Arc::new(Nameless { capability, queues }))
        })
    }
}

fn connect() -> Tenure {
    let settings = Settings::new().answer_timeout(Duration::from_millis(100));
    pollster::block_on(Tenure::connect_with(Nameless::connector(), settings)).expect("connects")
}

#[track_caller]
fn is_named<T>(answer: Result<T>, resource: Option<&str>) {
    let error = answer.err().expect("the engine fails");
    let about = resource.map_or(String::new(), |resource| format!(" {resource:?}"));
    assert_eq!(error.to_string(), format!("do it{about} on nameless: it failed"));
}

#[test]
fn every_verb_of_locks_names_engine_and_resource() {
    let tenure = connect();
    pollster::block_on(async {
        is_named(tenure.mutex("a").try_acquire().await, Some("a"));
        is_named(tenure.mutex("a").acquire().await, Some("a"));
        let held = tenure.election("granted").campaign().await.expect("it is granted");
        is_named(held.publish(b"x").await, Some("granted"));
        is_named(held.resign().await, Some("granted"));
        is_named(tenure.view("a").await, Some("a"));
        is_named(tenure.break_hold("a", Token::new(1), true).await, Some("a"));
        is_named(tenure.resize("a", 1).await, Some("a"));
        is_named(tenure.observe("a").expect("a name").next().await.expect("an error"), Some("a"));
        is_named(tenure.inspect("").await, None);
        is_named(tenure.inspect("u").await, Some("unreadable"));
        let mut pages = tenure.inspect_pages("");
        is_named(pages.next().await.expect("an error"), None);
        assert!(pages.next().await.is_none(), "a list that has failed is over");
        let mut pages = tenure.inspect_pages("u");
        let mut page =
            pages.next().await.expect("a page").expect("one that cannot be read is no failure of the list");
        is_named(page.remove(0).1, Some("unreadable"));
        is_named(tenure.migrate().await, None);
        is_named(tenure.purge().await, None);
        is_named(tenure.share_life(1), None);
    });
}

#[test]
fn every_verb_of_queues_names_engine_and_resource() {
    let tenure = connect();
    pollster::block_on(async {
        let queue = tenure.queue("q");
        is_named(queue.push(b"x").await, Some("q"));
        is_named(queue.try_next().await, Some("q"));
        is_named(queue.next().await, Some("q"));
        is_named(queue.stats().await, Some("q"));
        is_named(queue.is_empty().await, Some("q"));
        is_named(queue.items(None, 1).await, Some("q"));
        is_named(queue.dead_letters(None, 1).await, Some("q"));
        is_named(queue.replay(Some(ItemId(1))).await, Some("q"));
        is_named(queue.purge(None).await, Some("q"));
        is_named(queue.purge_dead(None).await, Some("q"));
        is_named(tenure.queues("").await, None);
        is_named(tenure.queues("u").await, Some("unreadable"));
        let delivery = tenure.queue("granted").next().await.expect("it is handed out");
        is_named(delivery.ack().await, Some("granted"));
    });
}

#[test]
fn what_cannot_connect_names_the_engine() {
    let connect = Connect::new("nameless", async |_| Err::<Arc<Nameless>, _>(failure()));
    is_named(pollster::block_on(Tenure::connect_with(connect, Settings::default())), None);
}

#[test]
fn a_silent_engine_is_named() {
    let error = pollster::block_on(connect().view("silent")).expect_err("it does not answer");
    assert_eq!(error.to_string(), "ask \"silent\" on nameless: no answer within 100ms");
}
