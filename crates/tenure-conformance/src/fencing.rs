//! Each grant of a resource has a larger token than every earlier one.

use futures_util::future::join_all;
use tenure_core::engine::RenewAnswer;
use tenure_core::model::claim::Claim;
use tenure_core::{ErrorKind, Token};

use crate::Setup;
use crate::direct::{self, Direct};
use crate::form::Form;
use crate::history::stale_tokens;
use crate::stage::{LONG, SHORT, name, resource};

fn assert_grows(last: &mut Token, token: Token) {
    assert!(token > *last, "a later grant has token {token}, an earlier one had {last}");
    *last = token;
}

/// Tokens grow from grant to grant, whichever client is granted.
pub async fn each_grant_has_a_larger_token(setup: &dyn Setup) {
    let clients = [setup.client().await, setup.client().await];
    let name = name("tokens");
    let mut last = Token::ZERO;
    for client in clients.iter().cycle().take(20) {
        let lease = setup.take(&client.mutex(&name)).await;
        assert_grows(&mut last, lease.token());
        setup.within("a release", lease.release()).await.expect("a release is answered");
    }
}

/// A grant to a waiter has a larger token than the hold it waited for, and than what it was told.
pub async fn a_waiter_gets_a_larger_token(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("tokens");
    let first = a.trying(&resource, &direct::mutex());
    let mut last = a.grant(&first).await.token;
    let waiting = b.waiting(&resource, &direct::mutex());
    let horizon = b.enqueue(&waiting).await.horizon;
    assert!(horizon >= last, "the horizon {horizon} is the largest token given, at least {last}");
    a.release(&first).await;
    let token = b.served(&waiting, "the hold was released").await.token;
    assert!(token > horizon, "the token {token} lies beyond the horizon {horizon}");
    assert_grows(&mut last, token);
    b.release(&waiting).await;
}

/// Tokens grow in the order of the grants, over processes.
pub async fn tokens_grow_across_processes(setup: &dyn Setup) {
    let name = name("tokens");
    let mut actors = [setup.actor().await, setup.actor().await];
    let rounds = setup.rounds(20).await;
    actors.iter_mut().for_each(|actor| actor.tell_sections(Form::Mutex, &name, LONG, rounds));
    let sections =
        join_all(actors.iter_mut().enumerate().map(|(client, actor)| actor.sections(client))).await;
    assert_eq!(stale_tokens(&sections.concat()), [], "a later grant had no larger token");
}

/// Who lets a hold expire has a smaller token than who is granted next, and is told so.
pub async fn tokens_grow_after_an_expiry(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("tokens");
    let mut last = Token::ZERO;
    for _ in 0..2 {
        let mut terms = direct::mutex();
        terms.ttl = crate::stage::ttl_of(a.capability(), SHORT);
        let stale = a.trying(&resource, &terms);
        assert_grows(&mut last, a.grant(&stale).await.token);
        let next = b.waiting(&resource, &direct::mutex());
        b.enqueue(&next).await;
        assert_grows(&mut last, b.served(&next, "the hold expires").await.token);
        assert_eq!(a.renew(&stale).await, RenewAnswer::Lost, "a hold that has ended is lost");
        b.release(&next).await;
    }
}

/// Who is granted a broken hold has a larger token than who held it.
pub async fn tokens_grow_after_a_break(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("tokens");
    let mut last = Token::ZERO;
    for _ in 0..3 {
        let broken = a.trying(&resource, &direct::mutex());
        let token = a.grant(&broken).await.token;
        assert_grows(&mut last, token);
        a.break_hold(&resource, token, true).await;
        let next = b.trying(&resource, &direct::mutex());
        assert_grows(&mut last, b.grant(&next).await.token);
        b.release(&next).await;
    }
}

/// A claim whose client has seen a larger token is granted a larger one still, or refused where the store counts its
/// tokens by itself.
pub async fn a_floor_is_honoured(setup: &dyn Setup) {
    let direct = setup.direct().await;
    let resource = resource("floor");
    let token = direct.token_of(&resource, &direct::mutex()).await;
    let floor = a_minute_ahead(token);
    let claim = Claim { floor, ..direct.trying(&resource, &direct::mutex()) };
    if !direct.capability().raises_tokens {
        return refuses(&direct, &claim, "above what the store counts", "restored").await;
    }
    let granted = direct.grant(&claim).await.token;
    assert!(granted > floor, "the token {granted} lies above the floor {floor}");
    direct.release(&claim).await;
    let next = direct.token_of(&resource, &direct::mutex()).await;
    assert!(next > granted, "a token that came from a floor is remembered");
}

/// A claim that waits brings its floor along, and its grant lies above it.
pub async fn a_waiters_floor_is_honoured(setup: &dyn Setup) {
    let (a, b) = (setup.direct().await, setup.direct().await);
    let resource = resource("floor");
    let held = a.trying(&resource, &direct::mutex());
    let token = a.grant(&held).await.token;
    let floor = a_minute_ahead(token);
    let waiting = Claim { floor, ..b.waiting(&resource, &direct::mutex()) };
    if !b.capability().raises_tokens {
        refuses(&b, &waiting, "above what the store counts", "restored").await;
        a.release(&held).await;
        return;
    }
    b.enqueue(&waiting).await;
    a.release(&held).await;
    let granted = b.served(&waiting, "the hold was released").await.token;
    assert!(granted > floor, "the token {granted} lies above the floor {floor}");
    b.release(&waiting).await;
}

/// Asserts that a claim is refused for its floor.
async fn refuses(direct: &Direct, claim: &Claim, floor: &str, what: &str) {
    let refused = format!("a floor {floor} is refused");
    let error = direct.claim(claim).await.expect_err(&refused);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let told = format!("{error} {}", error.hint().unwrap_or_default());
    assert!(told.contains(what), "{told} says what must be wrong: {what}");
}

/// A token that another store, or a clock a little ahead, may have given.
fn a_minute_ahead(token: Token) -> Token {
    Token::new(token.get() + 60_000_000)
}

/// A floor so far ahead that some clock must be wrong is refused, and poisons nothing.
pub async fn a_floor_far_ahead_is_refused(setup: &dyn Setup) {
    let direct = setup.direct().await;
    let resource = resource("floor");
    let token = direct.token_of(&resource, &direct::mutex()).await;
    let floor = Token::new(token.get() + 2 * 3600 * 1_000_000);
    for claim in [direct.trying(&resource, &direct::mutex()), direct.waiting(&resource, &direct::mutex())] {
        refuses(&direct, &Claim { floor, ..claim }, "two hours ahead", "clock").await;
    }
    let next = direct.token_of(&resource, &direct::mutex()).await;
    assert!(next > token && next < floor, "{next} goes on from {token}, below the refused {floor}");
}
