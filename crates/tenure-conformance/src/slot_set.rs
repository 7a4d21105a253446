//! Several slots of one pool, all or none.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::{join, join_all, poll_immediate};
use tenure_core::engine::ReleaseAnswer;
use tenure_core::model::claim::Kind;
use tenure_core::{AllOf, Leases, Tenure};

use crate::actor::{SECTIONS, work_in_sections};
use crate::form::Form;
use crate::history::overlaps;
use crate::stage::{LONG, SHORT, name, waiters};
use crate::{Setup, cancellation};

async fn can(setup: &dyn Setup, check: &str) -> bool {
    let check = format!("slot_set::{check}");
    setup.can(&check, "slot pools", |capability| capability.kinds.contains(&Kind::SlotPool)).await
}

fn set(client: &Tenure, name: &str, slots: u32, of: u32, ttl: Duration) -> AllOf {
    client.slot_pool(name, of).ttl(ttl).several(slots)
}

fn numbers(leases: &Leases) -> BTreeSet<u32> {
    leases.iter().filter_map(|lease| lease.slot()).collect()
}

/// The mutex of those who gather slots of a pool.
fn gate(name: &str) -> String {
    format!("{name}/several")
}

/// So many slots are granted, each another one, or none; and one release gives all back.
pub async fn all_slots_are_taken_or_none(setup: &dyn Setup) {
    if !can(setup, "all_slots_are_taken_or_none").await {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("slot-set");
    let single = setup.take(Form::Slots(4).of(&a, &name, LONG)).await;
    let four = set(&b, &name, 4, 4, LONG);
    let tried = setup.within("a try", four.try_acquire()).await.expect("a try is answered");
    assert!(tried.is_none(), "it has all, while another client holds one of them");
    let three = set(&a, &name, 3, 4, LONG);
    let tried = setup.within("a try", three.try_acquire()).await.expect("a try is answered");
    let held = tried.expect("what the refused try was granted came back");
    let mut taken = numbers(&held);
    taken.extend(single.slot());
    assert_eq!(taken, BTreeSet::from([0, 1, 2, 3]), "a slot is held twice");
    let other = setup.try_take(Form::Slots(4).of(&b, &name, LONG)).await;
    assert!(other.is_none(), "a fifth slot of four");
    let answer = setup.within("a release", held.release()).await.expect("a release is answered");
    assert_eq!(answer, ReleaseAnswer::Released);
    setup.within("a release", single.release()).await.expect("a release is answered");
    let all = setup.within("all are granted", four.acquire()).await.expect("all are free");
    assert_eq!(numbers(&all).len(), 4, "a slot is held twice");
    drop(all);
    setup.assert_nothing_is_left(&name).await;
}

/// Processes that each want more than half of a pool never wait for each other for ever, nor work at the same time; somebody who wants a single
/// slot comes through between them.
pub async fn sets_of_slots_never_deadlock(setup: &dyn Setup) {
    if !can(setup, "sets_of_slots_never_deadlock").await {
        return;
    }
    let (name, client) = (name("slot-circle"), setup.client().await);
    let form = Form::SlotSet { slots: 3, of: 4 };
    let forms = [form; 3];
    let mut actors = Vec::new();
    for _ in &forms {
        actors.push(setup.actor().await);
    }
    let rounds = setup.rounds(SECTIONS).await;
    let single = Form::Slots(4).of(&client, &name, LONG);
    let singles = async {
        for _ in 0..rounds {
            let held = setup.take(&single).await;
            setup.within("a release", held.release()).await.expect("a release is answered");
        }
    };
    let (sections, ()) = join(work_in_sections(&mut actors, &forms, &name, rounds), singles).await;
    assert_eq!(overlaps(&sections), [], "two processes worked under {name:?} at once");
    // All wait when all slots come free at the same moment.
    for _ in 0..5 {
        let held = setup.within("all are granted", set(&client, &name, 4, 4, LONG).acquire()).await;
        actors.iter_mut().for_each(|actor| actor.tell_acquire(form, &name, LONG));
        setup
            .eventually("all wait", async || {
                waiters(&client, &name).await > 0 && waiters(&client, &gate(&name)).await == 2
            })
            .await;
        drop(held.expect("all come free"));
        let served = actors.iter_mut().map(|actor| async {
            actor.granted().await;
            let answer = actor.ask(&["release", "lease"]).await;
            assert_eq!(answer.as_deref(), Some("released\tReleased"), "it held all");
        });
        join_all(served).await;
    }
    setup.assert_nothing_is_left(&name).await;
}

/// Slots that come free are kept for the set that came first, until it has all; who comes later waits for that.
pub async fn a_set_of_slots_has_one_place(setup: &dyn Setup) {
    if !can(setup, "a_set_of_slots_has_one_place").await {
        return;
    }
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("slot-place");
    let pool = Form::Slots(2).of(&a, &name, LONG);
    let (one, two) = (setup.take(&pool).await, setup.take(&pool).await);
    let both = set(&b, &name, 2, 2, LONG);
    let mut waiting = Box::pin(both.acquire());
    assert!(poll_immediate(&mut waiting).await.is_none(), "all slots are held");
    let places = async {
        setup.eventually("both claims wait", async || waiters(&a, &name).await == 2).await;
        let later = setup.queue(&pool).await;
        setup.within("a release", one.release()).await.expect("a release is answered");
        // The set keeps the first slot, and waits for the second; so does the one that came later.
        setup.eventually("the first is granted", async || waiters(&a, &name).await == 2).await;
        setup.within("a release", two.release()).await.expect("a release is answered");
        (later,)
    };
    let (leases, (mut later,)) = join(setup.within("it has both", waiting), places).await;
    let leases = leases.expect("granted");
    assert_eq!(numbers(&leases).len(), 2, "a slot is held twice");
    assert!(poll_immediate(&mut later).await.is_none(), "who came later was granted before the set had all");
    setup.within("a release", leases.release()).await.expect("a release is answered");
    drop(setup.within("the next one", later).await.expect("served"));
    setup.assert_nothing_is_left(&name).await;
}

/// A process that is killed while it gathers leaves nothing of the part that it held, and the next one gathers.
pub async fn a_killed_gatherer_is_replaced(setup: &dyn Setup) {
    if !can(setup, "a_killed_gatherer_is_replaced").await {
        return;
    }
    let client = setup.client().await;
    let name = name("slot-killed");
    let ttl = if client.capability().notices_death { LONG } else { setup.ttl(2 * SHORT).await };
    let form = Form::SlotSet { slots: 2, of: 2 };
    let held = setup.take(Form::Slots(2).of(&client, &name, LONG)).await;
    let mut actor = setup.actor().await;
    actor.tell_acquire(form, &name, ttl);
    setup.eventually("it has a part and waits", async || waiters(&client, &name).await == 1).await;
    let both = set(&client, &name, 2, 2, LONG);
    let mut next = Box::pin(both.acquire());
    assert!(poll_immediate(&mut next).await.is_none(), "another one gathers");
    let death = async {
        setup.eventually("it waits at the gate", async || waiters(&client, &gate(&name)).await == 1).await;
        actor.kill();
        setup.within("a release", held.release()).await.expect("a release is answered");
    };
    let (leases, ()) = join(setup.within("the next one has all", next), death).await;
    drop(leases.expect("served"));
    setup.assert_nothing_is_left(&name).await;
}

/// An acquisition that is dropped at any moment leaves nothing held, neither slots nor the gate.
pub async fn a_set_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    if can(setup, "a_set_dropped_at_any_moment_leaves_nothing").await {
        cancellation::drop_acquires(setup, Form::SlotSet { slots: 2, of: 3 }).await;
    }
}
