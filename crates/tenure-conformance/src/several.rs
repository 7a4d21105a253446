//! Several at once, all or nothing.

use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::engine::{BreakAnswer, Capability, ReleaseAnswer};
use tenure_core::model::claim::Kind;
use tenure_core::{AllOf, ErrorKind, Name, Settings, Tenure};

use crate::actor::{SECTIONS, work_in_sections};
use crate::form::{Contest, Form, in_ring};
use crate::history::overlaps;
use crate::mortal::Life;
use crate::stage::{LONG, SHORT, name, waiters};
use crate::{Setup, cancellation, death, loss};

/// Names all mutexes of a ring at once, the last one first.
fn ring(client: &Tenure, name: &str, ttl: Duration) -> AllOf {
    client.all((0..3).rev().map(|number| client.mutex(&in_ring(name, number)).ttl(ttl).into()))
}

/// All are taken, or none: a try that one of them refuses leaves nothing held, and what is held together is
/// refused to another process, each for itself.
pub async fn a_try_takes_all_or_nothing(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let mut actor = setup.actor().await;
    let name = name("all");
    for busy in 0..3 {
        let lease = setup.take(&a.mutex(&in_ring(&name, busy))).await;
        let several = ring(&b, &name, LONG);
        let tried = setup.within("a try", several.try_acquire()).await.expect("a try is answered");
        assert!(tried.is_none(), "it has all, while another client holds one of them");
        for other in (0..3).filter(|other| *other != busy) {
            let tried = actor.try_acquire(Form::Mutex, &in_ring(&name, other), LONG).await;
            assert!(tried.is_some(), "a try that was refused holds a part");
            let answer = actor.ask(&["release", "lease"]).await;
            assert_eq!(answer.as_deref(), Some("released\tReleased"), "the other process held it");
        }
        setup.within("a release", lease.release()).await.expect("a release is answered");
    }
    let several = ring(&b, &name, LONG);
    let tried = setup.within("a try", several.try_acquire()).await.expect("a try is answered");
    let leases = tried.expect("all are free");
    for number in 0..3 {
        let member = in_ring(&name, number);
        assert!(leases.token(&member).is_some(), "each has a token");
        let tried = actor.try_acquire(Form::Mutex, &member, LONG).await;
        assert!(tried.is_none(), "another process got a part of what is held");
    }
    let answer = setup.within("a release", leases.release()).await.expect("a release is answered");
    assert_eq!(answer, ReleaseAnswer::Released);
    setup.assert_nothing_is_left(&name).await;
}

/// Processes that take sets which overlap, in orders that make a circle, never wait for each other for ever,
/// and never work at the same time.
pub async fn sets_that_overlap_never_deadlock(setup: &dyn Setup) {
    let name = name("circle");
    let forms = [Form::Several(0), Form::Several(1), Form::Several(2)];
    let mut actors = Vec::new();
    for _ in &forms {
        actors.push(setup.actor().await);
    }
    let sections = work_in_sections(&mut actors, &forms, &name, setup.rounds(SECTIONS).await).await;
    assert_eq!(overlaps(&sections), [], "two processes worked under {name:?} at once");
    // All wait, each for a first name of its own if there were no order, and are granted that together.
    let client = setup.client().await;
    for _ in 0..5 {
        let held = join_all(
            (0..3).map(|number| client.mutex(&in_ring(&name, number))).map(|mutex| setup.take(mutex)),
        );
        let held = held.await;
        actors.iter_mut().zip(forms).for_each(|(actor, form)| actor.tell_acquire(form, &name, LONG));
        setup
            .eventually("all wait", async || {
                let views = client.inspect(&name).await.expect("an inspection is answered");
                views.iter().map(|view| view.waiting).sum::<u32>() == 3
            })
            .await;
        drop(held);
        let served = actors.iter_mut().map(|actor| async {
            actor.granted().await;
            let answer = actor.ask(&["release", "lease"]).await;
            assert_eq!(answer.as_deref(), Some("released\tReleased"), "it held both");
        });
        join_all(served).await;
    }
    setup.assert_nothing_is_left(&name).await;
}

/// Whatever can be held can be held together with others, on the terms of each.
pub async fn any_mix_is_taken_together(setup: &dyn Setup) {
    let check = "several::any_mix_is_taken_together";
    let knows = |capability: &Capability| {
        [Kind::RwLock, Kind::Semaphore, Kind::SlotPool].iter().all(|kind| capability.kinds.contains(kind))
    };
    if !setup.can(check, "read-write locks, semaphores and slot pools", knows).await {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let stem = name("mix");
    let [mutex, lock, units, pool] = ["mutex", "lock", "units", "pool"].map(|end| format!("{stem}/{end}"));
    let several = |client: &Tenure| {
        client.all([
            client.mutex(&mutex).into(),
            client.rw_lock(&lock).read().into(),
            client.semaphore(&units, 5).weight(3).into(),
            client.slot_pool(&pool, 2).into(),
        ])
    };
    let leases = setup.within("all are granted", several(&a).acquire()).await.expect("all are free");
    let slot = leases.get(&pool).and_then(|lease| lease.slot());
    assert!(slot.is_some_and(|slot| slot < 2), "the number of a slot is told: {slot:?}");
    assert!(setup.try_take(&Form::Read.of(&b, &lock, LONG)).await.is_some(), "readers share");
    assert!(setup.try_take(&Form::Write.of(&b, &lock, LONG)).await.is_none(), "a writer joins a reader");
    let units_left = |weight| Form::Semaphore { capacity: 5, weight }.of(&b, &units, LONG);
    assert!(setup.try_take(&units_left(3)).await.is_none(), "three units of five are taken");
    assert!(setup.try_take(&units_left(2)).await.is_some(), "two units of five are left");
    let other = setup.try_take(&Form::Slots(2).of(&b, &pool, LONG)).await.expect("a slot is left");
    assert_ne!(other.slot(), slot, "a slot is held twice");
    drop((leases, other));
    let waits = setup.within("all come free", several(&b).acquire()).await.expect("all come free");
    setup.within("a release", waits.release()).await.expect("a release is answered");
    for (form, name) in [(Form::Write, &lock), (Form::Slots(2), &pool), (Form::Mutex, &mutex)] {
        let lease = setup.take(&form.of(&a, name, LONG)).await;
        setup.within("a release", lease.release()).await.expect("a release is answered");
    }
}

/// What is free is asked for in one call of the engine, and released in one; in one for each shard, where an engine has several.
pub async fn what_is_free_is_one_call(setup: &dyn Setup) {
    let life = Life::of_thread();
    let connected = Tenure::connect_with(life.connector(setup.connector()), Settings::default());
    let client = setup.within("a client connects", connected).await.expect("a client connects");
    let name = name("call");
    let resources = (0..3).map(|number| Name::new(&in_ring(&name, number)).expect("a good name"));
    let shards = setup.direct().await.shards(resources);
    let several = ring(&client, &name, LONG);
    for _ in 0..3 {
        let leases = setup.within("all are granted", several.acquire()).await.expect("all are free");
        setup.within("a release", leases.release()).await.expect("a release is answered");
        let calls = (life.take_passes("claim.before"), life.take_passes("release.before"));
        assert_eq!(calls, (shards, shards), "calls that claim, and that release");
    }
    setup.assert_nothing_is_left(&name).await;
}

/// One loss is the loss of all. The others stay held until their user lets go, and then are free at once.
pub async fn one_loss_loses_all(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let (name, ttl) = (name("loss"), setup.ttl(SHORT).await);
    let (brief, lasting) = (in_ring(&name, 1), in_ring(&name, 2));
    let several = a.all([
        a.mutex(&name).ttl(LONG).into(),
        a.mutex(&brief).ttl(ttl).into(),
        a.mutex(&lasting).ttl(LONG).into(),
    ]);
    let leases = setup.within("all are granted", several.acquire()).await.expect("all are free");
    assert!(!leases.is_lost() && leases.expires_in() <= ttl, "the least ends first");
    let token = leases.token(&brief).expect("it is held");
    let broken = setup.within("a break", b.break_hold(&brief, token, true)).await;
    assert!(matches!(broken, Ok(BreakAnswer::Broken { .. })), "it was held: {broken:?}");
    let lost = setup.within("the user is told", leases.lost()).await;
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(lost.to_string().contains(&brief), "the loss names what was lost first: {lost}");
    assert!(leases.is_lost() && leases.expires_in().is_zero(), "all that can be asked says so");
    assert!(leases.iter().all(|lease| lease.is_lost()), "one loss is the loss of all");
    for kept in [&name, &lasting] {
        assert!(setup.try_take(&b.mutex(kept)).await.is_none(), "its user has not let go yet");
    }
    let answer = setup.within("a release", leases.release()).await.expect("no error");
    assert_eq!(answer, ReleaseAnswer::AlreadyLost);
    for freed in [&name, &brief, &lasting] {
        let lease = setup.try_take(&b.mutex(freed)).await.expect("what its user has let go is free at once");
        setup.within("a release", lease.release()).await.expect("a release is answered");
    }
    setup.assert_nothing_is_left(&name).await;
}

/// Leases are lost by the first of their deadlines if nothing can be heard from the engine, all of them, and
/// before anybody else is granted one.
pub async fn the_first_deadline_is_the_end_of_all(setup: &dyn Setup) {
    let life = Life::of_thread();
    let connected = Tenure::connect_with(life.connector(setup.connector()), Settings::default());
    let client = setup.within("a client connects", connected).await.expect("a client connects");
    let other = setup.client().await;
    let (name, ttl) = (name("silent"), setup.ttl(2 * SHORT).await);
    let brief = in_ring(&name, 1);
    let several = client.all([client.mutex(&name).ttl(LONG).into(), client.mutex(&brief).ttl(ttl).into()]);
    let leases = setup.within("all are granted", several.acquire()).await.expect("all are free");
    life.cut();
    let next = other.mutex(&brief).ttl(LONG).acquire();
    let next = setup.within("the next holder", next).await.expect("granted");
    assert!(leases.is_lost(), "two clients hold {brief:?}");
    setup.within("its user is told without the engine", leases.lost()).await;
    assert!(leases.iter().all(|lease| lease.is_lost()), "one loss is the loss of all");
    if other.capability().silence_max >= LONG {
        assert!(setup.try_take(&other.mutex(&name)).await.is_none(), "the other has not ended yet");
    }
    assert!(Some(next.token()) > leases.token(&brief), "the next token is larger");
    life.mend();
    let answer = setup.within("a release", leases.release()).await.expect("no error");
    assert_eq!(answer, ReleaseAnswer::AlreadyLost);
    let freed = setup.take(&other.mutex(&name)).await;
    drop((freed, next));
    setup.assert_nothing_is_left(&name).await;
}

/// A wait that loses what it holds already begins again, and ends with all.
pub async fn a_wait_that_loses_its_part_begins_again(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let (name, ttl) = (name("again"), setup.ttl(SHORT).await);
    let last = in_ring(&name, 2);
    let held = setup.take(&b.mutex(&last).ttl(LONG)).await;
    let several = ring(&a, &name, ttl);
    let waits = async { several.acquire().await.expect("all are granted in the end") };
    let breaks = async {
        setup.eventually("it waits for the last", async || waiters(&b, &last).await == 1).await;
        let view = b.view(&name).await.expect("a look is answered").expect("it holds the first");
        let token = view.holds.first().expect("it holds the first").token;
        let broken = setup.within("a break", b.break_hold(&name, token, true)).await;
        assert!(matches!(broken, Ok(BreakAnswer::Broken { .. })), "it was held: {broken:?}");
        // Another has it for a moment, so the part was truly lost.
        let between = setup.take(&b.mutex(&name).ttl(LONG)).await;
        assert!(between.token() > token, "the next token is larger");
        setup.eventually("it begins again", async || waiters(&b, &name).await == 1).await;
        // Its place there is given up by another call, which may come in later.
        setup.eventually("it waits for one at a time", async || waiters(&b, &last).await == 0).await;
        setup.within("a release", held.release()).await.expect("a release is answered");
        setup.within("a release", between.release()).await.expect("a release is answered");
        token
    };
    let both = futures_util::future::join(waits, breaks);
    let (leases, token) = setup.within("it has all in the end", both).await;
    assert!(leases.token(&name).is_some_and(|again| again > token), "it was granted anew");
    for number in 0..3 {
        let tried = setup.try_take(&b.mutex(&in_ring(&name, number))).await;
        assert!(tried.is_none(), "another client got a part of what is held");
    }
    drop(leases);
    setup.assert_nothing_is_left(&name).await;
}

/// What was held only until it was seen that the others are busy keeps nobody out, whatever its `min_hold`.
pub async fn what_was_given_back_does_not_rest(setup: &dyn Setup) {
    let has_rests = |capability: &Capability| capability.has_rests;
    if !setup.can("several::what_was_given_back_does_not_rest", "rests", has_rests).await {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("unused");
    let held = setup.take(&b.mutex(&in_ring(&name, 1))).await;
    let hour = Duration::from_secs(3600);
    let several = a.all((0..3).map(|number| a.mutex(&in_ring(&name, number)).min_hold(hour).into()));
    let tried = setup.within("a try", several.try_acquire()).await.expect("a try is answered");
    assert!(tried.is_none(), "one of them is held");
    for free in [0, 2] {
        let lease = setup.try_take(&b.mutex(&in_ring(&name, free))).await;
        drop(lease.expect("what was given back rests"));
    }
    drop(held);
    setup.assert_nothing_is_left(&name).await;
}

/// An acquisition that is dropped at any moment leaves nothing held.
pub async fn an_acquire_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    cancellation::drop_acquires(setup, Form::Several(1)).await;
}

/// A wait that is dropped at any moment leaves no place in a queue and nothing held.
pub async fn a_wait_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    cancellation::drop_waits(setup, Contest::SEVERAL).await;
}

/// Leases that are dropped on a thread without any runtime are released.
pub async fn leases_dropped_outside_a_runtime_are_released(setup: &dyn Setup) {
    cancellation::drop_outside_a_runtime(setup, Contest::SEVERAL).await;
}

/// Leases of which an operator breaks one are lost to their user within its ttl.
pub async fn a_broken_lease_is_lost_to_its_holder(setup: &dyn Setup) {
    loss::broken_is_lost(setup, Form::Several(0)).await;
}

/// Work under `run` is dropped when one lease is lost.
pub async fn run_drops_its_work_on_loss(setup: &dyn Setup) {
    loss::run_drops(setup, Form::Several(0)).await;
}

/// A holder that is killed is replaced by the next waiter, at once where the engine notices deaths.
pub async fn a_killed_holder_is_replaced(setup: &dyn Setup) {
    death::killed_holder(setup, Contest::SEVERAL).await;
}

/// A waiter that is killed is not waited for, and nothing stays of the part that it held.
pub async fn a_killed_waiter_is_skipped(setup: &dyn Setup) {
    death::killed_waiter(setup, Contest::SEVERAL).await;
    // One that holds a part while it waits for the rest.
    let (a, b) = (setup.client().await, setup.client().await);
    let notices_death = a.capability().notices_death;
    let name = name("part");
    let ttl = if notices_death { LONG } else { setup.ttl(2 * SHORT).await };
    let held = setup.take(&a.mutex(&in_ring(&name, 1))).await;
    let mut actor = setup.actor().await;
    actor.tell_acquire(Form::Several(0), &name, ttl);
    setup.eventually("it waits for the rest", async || waiters(&a, &in_ring(&name, 1)).await == 1).await;
    let next = setup.queue(&b.mutex(&name)).await;
    actor.kill();
    drop(setup.within("the part comes free", next).await.expect("served"));
    drop(held);
    setup.assert_nothing_is_left(&name).await;
}

/// Waits of many tasks of one client for sets that overlap all come to their end.
pub async fn many_tasks_of_one_client_share(setup: &dyn Setup) {
    let client = setup.client().await;
    let name = name("tasks");
    let tasks = (0..30).map(|task| {
        let lock = Form::Several(task).of(&client, &name, LONG);
        async move {
            let held = setup.within("a task is granted", lock.acquire()).await.expect("granted");
            setup.within("a release", held.release()).await.expect("a release is answered");
        }
    });
    join_all(tasks).await;
    setup.assert_nothing_is_left(&name).await;
}
