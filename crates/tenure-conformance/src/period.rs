//! Once per period: a mutex with a `min_hold`, for which everybody of a fleet tries.

use std::time::Duration;

use tenure_core::engine::Capability;

use crate::Setup;
use crate::form::Form;
use crate::stage::{LONG, SHORT, name, now, pause};

/// A period that does not end while a check runs.
const PERIOD: Form = Form::Period(3_600_000);

async fn can(setup: &dyn Setup, check: &str) -> bool {
    setup.can(&format!("period::{check}"), "rests", |capability: &Capability| capability.has_rests).await
}

/// A run that was killed is made up for by another within the period: at once where the engine notices deaths, else
/// after its ttl.
pub async fn a_run_that_was_killed_is_made_up_for(setup: &dyn Setup) {
    if !can(setup, "a_run_that_was_killed_is_made_up_for").await {
        return;
    }
    let client = setup.client().await;
    let name = name("killed");
    let ttl = if client.capability().notices_death { LONG } else { setup.ttl(2 * SHORT).await };
    let mut actor = setup.actor().await;
    let token = actor.acquire(PERIOD, &name, ttl).await.token;
    let lock = PERIOD.of(&client, &name, LONG);
    assert!(setup.try_take(&lock).await.is_none(), "two run at once");
    actor.kill();
    let mut again = None;
    setup
        .eventually("a run that was killed is made up for", async || {
            again = setup.try_take(&lock).await;
            again.is_some()
        })
        .await;
    assert!(again.expect("it was granted").token() > token, "the next token is larger");
}

/// A run that has finished is not repeated within the period, by whatever process, and is after it.
pub async fn a_run_that_finished_is_not_repeated(setup: &dyn Setup) {
    if !can(setup, "a_run_that_finished_is_not_repeated").await {
        return;
    }
    let client = setup.client().await;
    let (name, brief) = (name("finished"), name("brief"));
    let mut actor = setup.actor().await;
    actor.acquire(PERIOD, &name, LONG).await;
    actor.ask(&["release", "lease"]).await.expect("it lives");
    assert!(setup.try_take(&PERIOD.of(&client, &name, LONG)).await.is_none(), "it ran twice in a period");
    assert!(actor.try_acquire(PERIOD, &name, LONG).await.is_none(), "it ran twice in a period");
    actor.kill();
    pause(SHORT / 2).await;
    let tried = setup.try_take(&PERIOD.of(&client, &name, LONG)).await;
    assert!(tried.is_none(), "a run that has finished is repeated when its process dies");
    let period = Form::Period(SHORT.as_millis() as u32);
    let start = now();
    let lock = period.of(&client, &brief, LONG);
    let lease = setup.take(&lock).await;
    setup.within("a release", lease.release()).await.expect("a release is answered");
    setup.eventually("the next period begins", async || setup.try_take(&lock).await.is_some()).await;
    assert!(now().since(start) >= SHORT - Duration::from_millis(10), "too early: it ran twice in a period");
}
