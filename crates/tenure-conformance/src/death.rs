//! A client that dies at any moment leaves nothing that blocks others.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream;
use tenure_core::Tenure;
use tenure_core::engine::Reach;

use crate::Setup;
use crate::actor::{Actor, Granted, granted_in};
use crate::form::{Contest, Form};
use crate::mortal;
use crate::stage::{LONG, SHORT, name, now, pause};

/// How much longer than the promise a survivor may take on a busy machine.
const SLACK: Duration = Duration::from_secs(2);
/// How often each place is survived at most before the client dies there.
const PASSES: u32 = 3;
/// How often at most it is tried again, where the machine was late and the client had lost its lease before.
const LATE_MAX: u32 = 5;
/// At how many places clients die at the same time. Most of the time they wait.
const AT_ONCE: usize = 6;

/// A mutex whose holder is killed goes to the next waiter: at once where the engine notices deaths, else when
/// the hold ends.
pub async fn a_killed_holder_is_replaced(setup: &dyn Setup) {
    killed_holder(setup, Contest::MUTEX).await;
}

/// Kills a holder for whom another waits.
pub(crate) async fn killed_holder(setup: &dyn Setup, contest: Contest) {
    let client = setup.client().await;
    let notices_death = client.capability().notices_death;
    let name = name("killed");
    let ttl = if notices_death { LONG } else { setup.ttl(2 * SHORT).await };
    let mut actor = setup.actor().await;
    let Granted { token, .. } = actor.acquire(contest.holder, &name, ttl).await;
    let waiting = setup.queue(contest.next.of(&client, &name, LONG)).await;
    let killed = now();
    actor.kill();
    let lease = setup.within("the next in the queue is served", waiting).await.expect("served");
    let took = now().since(killed);
    let most = if notices_death { SLACK } else { ttl + SLACK };
    assert!(took <= most, "a killed holder was waited for: {took:?} of {most:?}");
    assert!(lease.token() > token, "the next token is larger");
    drop(lease);
    setup.assert_nothing_is_left(&name).await;
}

/// A waiter that is killed is not waited for.
pub async fn a_killed_waiter_is_skipped(setup: &dyn Setup) {
    killed_waiter(setup, Contest::MUTEX).await;
}

/// Kills a waiter behind whom another waits.
pub(crate) async fn killed_waiter(setup: &dyn Setup, contest: Contest) {
    let (a, b) = (setup.client().await, setup.client().await);
    let notices_death = a.capability().notices_death;
    let name = name("killed");
    let ttl = if notices_death { LONG } else { setup.ttl(2 * SHORT).await };
    let lease = setup.take(contest.holder.of(&a, &name, LONG)).await;
    let mut actor = setup.actor().await;
    actor.tell_acquire(contest.next, &name, ttl);
    setup.eventually("the actor waits", async || waiting(&a, &name).await == 1).await;
    let next = setup.queue(contest.next.of(&b, &name, LONG)).await;
    let killed = now();
    actor.kill();
    setup.within("a release", lease.release()).await.expect("a release is answered");
    let lease = setup.within("the next waiter is served", next).await.expect("served");
    let took = now().since(killed);
    let most = if notices_death { SLACK } else { 2 * ttl + SLACK };
    assert!(took <= most, "a killed waiter was waited for: {took:?} of {most:?}");
    drop(lease);
    setup.assert_nothing_is_left(&name).await;
}

async fn waiting(client: &Tenure, name: &str) -> u32 {
    let views = client.inspect(name).await.expect("an inspection is answered");
    views.iter().map(|view| view.waiting).sum()
}

/// A client that is killed at any place of its work, the engine's failpoints and both ends of every call, is
/// survived: others are granted soon, tokens grow, and nothing is left.
pub async fn a_client_killed_at_any_point_leaves_nothing(setup: &dyn Setup) {
    let reach = setup.capability().await.reach;
    let failpoints = if reach == Reach::Process { &[][..] } else { setup.failpoints() };
    let places = mortal::PLACES.iter().chain(failpoints);
    let deaths = places.map(|place| async move {
        let mut deaths = 0;
        for passes in 1..=PASSES {
            for _ in 0..LATE_MAX {
                let end = dies_and_is_survived(setup, reach, place, passes).await;
                deaths += u32::from(end == End::Died);
                if end != End::Late {
                    break;
                }
            }
        }
        (*place, deaths)
    });
    let mut deaths = stream::iter(deaths).buffer_unordered(AT_ONCE);
    while let Some((place, deaths)) = deaths.next().await {
        assert!(deaths > 0, "no client came through {place:?}");
    }
}

/// What became of a client that was to die.
#[derive(PartialEq, Eq)]
enum End {
    Died,
    Lived,
    /// It had lost its lease before it came to release it, since the machine was late.
    Late,
}

/// Has a client wait, hold, be renewed and release, until it dies at `place`.
async fn dies_and_is_survived(setup: &dyn Setup, reach: Reach, place: &str, passes: u32) -> End {
    let survivor = setup.client().await;
    let ttl = setup.ttl(SHORT).await;
    let name = name(&format!("dies/{place}"));
    let lease = setup.take(&survivor.mutex(&name).ttl(LONG)).await;
    let mut last = lease.token();
    let mut actor = Actor::start(setup, reach).await;
    actor.ask(&["die", place, &passes.to_string()]).await.expect("it lives");
    actor.tell_acquire(Form::Mutex, &name, ttl);
    // It waits and sends heartbeats, unless it has died on the way.
    pause(ttl / 2).await;
    setup.within("a release", lease.release()).await.expect("a release is answered");
    let granted = answer_of_living(&mut actor, ttl).await.as_deref().and_then(granted_in);
    let mut end = if granted.is_some() { End::Lived } else { End::Died };
    if let Some(Granted { token, .. }) = granted {
        assert!(token > last, "{place}: the actor's token is larger");
        last = token;
        // It is renewed meanwhile.
        pause(ttl).await;
        actor.tell(&["release", "lease"]);
        end = match answer_of_living(&mut actor, ttl).await {
            None => End::Died,
            Some(answer) if answer.contains("AlreadyLost") => End::Late,
            Some(_) => End::Lived,
        };
    }
    let asked = now();
    let acquired = setup.within("a survivor is granted", survivor.mutex(&name).ttl(LONG).acquire()).await;
    let lease = acquired.expect("a survivor is granted");
    let took = now().since(asked);
    assert!(took <= ttl + SLACK, "{place}: the dead were waited for: {took:?}");
    assert!(lease.token() > last, "{place}: the survivor's token is larger");
    drop(lease);
    setup.assert_nothing_is_left(&name).await;
    end
}

/// Waits for an actor's answer. None: it is dead, or its connection is cut.
async fn answer_of_living(actor: &mut Actor, ttl: Duration) -> Option<String> {
    let answer = std::pin::pin!(actor.hear("it goes on or dies"));
    let silence = std::pin::pin!(pause(ttl + SLACK));
    match select(answer, silence).await {
        Either::Left((answer, _)) => answer.filter(|answer| !answer.starts_with("failed")),
        Either::Right(_) => None,
    }
}
