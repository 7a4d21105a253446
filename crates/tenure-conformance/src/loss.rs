//! A lease can always be lost, and whoever holds it is told.

use std::time::Duration;

use tenure_core::engine::{BreakAnswer, ReleaseAnswer, RenewAnswer};
use tenure_core::{ErrorKind, Settings, Tenure, Token};

use crate::Setup;
use crate::direct;
use crate::form::Form;
use crate::mortal::Life;
use crate::stage::{LONG, SHORT, assert_passed, name, now, resource};

/// A lease whose hold an operator breaks is lost to its user within its ttl.
pub async fn a_broken_lease_is_lost_to_its_holder(setup: &dyn Setup) {
    broken_is_lost(setup, Form::Mutex).await;
}

/// Takes something, has an operator break the hold, and looks what its user is told.
pub(crate) async fn broken_is_lost(setup: &dyn Setup, form: Form) {
    let (client, operator) = (setup.client().await, setup.client().await);
    let name = name("broken");
    let start = now();
    let ttl = setup.ttl(SHORT).await;
    let lease = setup.take(form.of(&client, &name, ttl)).await;
    let broken = setup.within("a break", operator.break_hold(&name, lease.token(), false)).await;
    assert!(matches!(broken.expect("a break is answered"), BreakAnswer::Broken { .. }), "it was held");
    let lost = setup.within("the user of a broken lease is told", lease.lost()).await;
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(lease.is_lost() && lease.expires_in().is_zero(), "all that can be asked says so");
    let deadline = lease.deadline();
    assert!(now() <= deadline + Duration::from_secs(1), "it is told by the last deadline that it had");
    assert!(deadline <= now() + ttl * 2 && deadline > start, "a broken hold is not renewed");
}

/// A hold that is broken keeps others out until it would have ended, so that its work can stop.
pub async fn a_broken_hold_rests_until_its_former_end(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("rests");
    let mut terms = direct::mutex();
    terms.ttl = crate::stage::ttl_of(a.capability(), SHORT);
    let claim = a.trying(&resource, &terms);
    let start = now();
    let token = a.grant(&claim).await.token;
    match b.break_hold(&resource, token, false).await {
        BreakAnswer::Broken { free_in } => assert!(free_in <= terms.ttl, "free in {free_in:?}"),
        other => panic!("it was held: {other:?}"),
    }
    assert_eq!(a.renew(&claim).await, RenewAnswer::Lost, "a broken hold is not renewed");
    let next = b.waiting(&resource, &direct::mutex());
    b.enqueue(&next).await;
    let grant = b.served(&next, "the hold would have ended").await;
    assert_passed(start, terms.ttl, "a broken hold comes free");
    assert!(grant.token > token);
    b.release(&next).await;
}

/// What an operator has broken rests, and who would break it again is told so.
pub async fn what_rests_is_not_broken_again(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("rests-twice");
    let mut terms = direct::mutex();
    terms.ttl = crate::stage::ttl_of(a.capability(), SHORT);
    let claim = a.trying(&resource, &terms);
    let start = now();
    let token = a.grant(&claim).await.token;
    let broken = b.break_hold(&resource, token, false).await;
    assert!(matches!(broken, BreakAnswer::Broken { .. }), "it was held: {broken:?}");
    match b.break_hold(&resource, token, false).await {
        BreakAnswer::Resting { free_in } => assert!(free_in <= terms.ttl, "free in {free_in:?}"),
        other => assert!(now() >= start + terms.ttl, "nothing is left to break: {other:?}"),
    }
}

/// A hold that is broken at once is free at once.
pub async fn breaking_at_once_frees_it(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("at-once");
    let claim = a.trying(&resource, &direct::mutex());
    let token = a.grant(&claim).await.token;
    let waiting = b.waiting(&resource, &direct::mutex());
    b.enqueue(&waiting).await;
    let answer = b.break_hold(&resource, token, true).await;
    assert_eq!(answer, BreakAnswer::Broken { free_in: Duration::ZERO });
    let grant = b.served(&waiting, "the hold was broken").await;
    assert!(grant.token > token);
    assert_eq!(a.renew(&claim).await, RenewAnswer::Lost, "a broken hold is not renewed");
    assert_eq!(a.release(&claim).await, ReleaseAnswer::AlreadyLost, "a broken hold is not released");
    b.release(&waiting).await;
}

/// A break names the token that it means: another's hold is not broken.
pub async fn breaking_what_is_not_held_says_so(setup: &dyn Setup) {
    let direct = setup.direct().await;
    let resource = resource("not-held");
    let nothing = direct.break_hold(&resource, Token::new(1), true).await;
    assert_eq!(nothing, BreakAnswer::NotHeld, "nobody holds it");
    let old = direct.token_of(&resource, &direct::mutex()).await;
    let claim = direct.trying(&resource, &direct::mutex());
    direct.grant(&claim).await;
    let stale = direct.break_hold(&resource, old, true).await;
    assert_eq!(stale, BreakAnswer::NotHeld, "a hold that has ended was broken");
    assert!(matches!(direct.renew(&claim).await, RenewAnswer::Renewed { .. }), "another's hold was broken");
    direct.release(&claim).await;
}

/// Work under `run` is dropped when its lease is lost.
pub async fn run_drops_its_work_on_loss(setup: &dyn Setup) {
    run_drops(setup, Form::Mutex).await;
}

/// Works under something whose hold an operator breaks meanwhile.
pub(crate) async fn run_drops(setup: &dyn Setup, form: Form) {
    let client = setup.client().await;
    let operator = setup.client().await;
    let name = name("run");
    let ttl = setup.ttl(SHORT).await;
    let lock = form.of(&client, &name, ttl);
    let run = lock.run(async |lease| {
        let broken = operator.break_hold(&name, lease.token(), false).await;
        assert!(matches!(broken, Ok(BreakAnswer::Broken { .. })), "it is held: {broken:?}");
        std::future::pending::<()>().await;
    });
    let ended = setup.within("work under a lost lease ends", run).await;
    assert_eq!(ended.expect_err("the lease was lost").kind(), ErrorKind::Lost);
}

/// Releasing a lease that is lost is no error: the answer says so.
pub async fn a_release_after_a_loss_says_already_lost(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("lost");
    // Long enough that the release comes before the loss is noticed, too.
    let lease = setup.take(&a.mutex(&name).ttl(LONG)).await;
    let broken = setup.within("a break", b.break_hold(&name, lease.token(), true)).await;
    assert!(matches!(broken, Ok(BreakAnswer::Broken { .. })), "it was held: {broken:?}");
    let next = setup.take(&b.mutex(&name)).await;
    let answer = setup.within("a release", lease.release()).await.expect("no error");
    assert_eq!(answer, ReleaseAnswer::AlreadyLost);
    assert!(setup.try_take(&a.mutex(&name)).await.is_none(), "the release harmed the next holder");
    drop(next);
}

/// A lease is lost by its deadline even if nothing can be heard from the engine, and nobody is granted before.
pub async fn a_lease_is_lost_by_its_deadline_when_the_engine_is_silent(setup: &dyn Setup) {
    let life = Life::of_thread();
    let connected = Tenure::connect_with(life.connector(setup.connector()), Settings::default());
    let client = setup.within("a client connects", connected).await.expect("a client connects");
    let other = setup.client().await;
    let name = name("silent");
    let ttl = setup.ttl(2 * SHORT).await;
    let lease = setup.take(&client.mutex(&name).ttl(ttl)).await;
    life.cut();
    let next =
        setup.within("the next holder", other.mutex(&name).ttl(LONG).acquire()).await.expect("granted");
    assert!(lease.is_lost(), "two clients hold {name:?}");
    assert!(now() >= lease.deadline(), "the deadline was not the last word");
    setup.within("its user is told without the engine", lease.lost()).await;
    assert!(next.token() > lease.token());
    let answer = setup.within("a release", lease.release()).await.expect("no error");
    assert_eq!(answer, ReleaseAnswer::AlreadyLost);
}

/// A client that was stopped for longer than its ttl, or could not reach its engine, finds its lease lost as soon
/// as it goes on, and harms nobody.
pub async fn a_client_that_was_stopped_finds_its_lease_lost(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("stopped");
    let ttl = setup.ttl(2 * SHORT).await;
    let mut actor = setup.actor().await;
    let token = actor.acquire(Form::Mutex, &name, ttl).await.token;
    actor.stop();
    let next = setup.within("the next holder", a.mutex(&name).ttl(LONG).acquire()).await.expect("granted");
    assert!(next.token() > token, "the next token is larger");
    actor.go_on();
    let status = actor.ask(&["status", "lease"]).await.expect("it lives");
    assert!(status.starts_with("lost"), "one that was stopped believes in its lease: {status}");
    let released = actor.ask(&["release", "lease"]).await;
    assert_eq!(released.as_deref(), Some("released\tAlreadyLost"));
    assert!(setup.try_take(&b.mutex(&name)).await.is_none(), "the next holder lost what it holds");
    assert!(!next.is_lost(), "the next holder lost its lease");
}
