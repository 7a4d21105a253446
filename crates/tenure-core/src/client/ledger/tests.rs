//! Orders of answers that only chance would bring about.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::{AcquireRequest, ClaimOutcome, Holding, Identity, Key, Ledger, NotEntered, Now, Sent, ShardOf};
use crate::client::batch::{Following, Lane};
use crate::client::lease_state::LeaseState;
use crate::client::queue_requests::Pushing;
use crate::clock::{Instant, Timestamp};
use crate::engine::queue::{Push, Pushed};
use crate::engine::{ClaimAnswer, Incarnation, ReleaseAnswer, RenewAnswer, Shard, Wake};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::model::claim::{Busy, ClaimId, ClientId, Grant, Label, Name, Terms, Waiting};
use crate::model::token::Token;

const TTL: Duration = Duration::from_secs(9);

fn now(at: Instant) -> Now<'static> {
    Now { at, random: &|| 7, time_of_day: &Timestamp::default }
}

fn ledger() -> Ledger {
    Ledger::new(identity())
}

fn identity() -> Identity {
    Identity {
        client: ClientId::new(1),
        engine: "none",
        has_listener: false,
        is_counting: true,
        since: Instant::default(),
        answer_timeout: Duration::from_secs(2),
        silence_max: crate::model::claim::TTL_MAX,
        following: Following::ALONE,
        shard_of: Box::new(|_| Shard(0)),
    }
}

fn request() -> AcquireRequest {
    let terms = Terms { ttl: TTL, ..Terms::of_mutex(Label::new("here", 1, "test", "")) };
    let resource = Name::new("x").expect("a good name");
    AcquireRequest {
        resource,
        claim: None,
        is_left: false,
        terms: Arc::new(terms),
        wait: None,
        floor: Token::ZERO,
        scope: 0,
        span: None,
    }
}

#[test]
fn a_release_that_failed_is_repeated_although_a_renewal_is_answered_after_it() {
    let mut ledger = ledger();
    let mut at = Instant::default() + Duration::from_secs(3600);
    let key = ledger.submit(&now(at), request());
    let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
    ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Granted(grant)));
    assert!(matches!(ledger.poll(&now(at), key, None), Some(Ok(ClaimOutcome::Lease(_)))));
    at = at + TTL / 2;
    ledger.on_due(&now(at));
    let (renewals, _) = ledger.take_renewals(at, Lane::Renewals, Shard(0), 1);
    assert!(ledger.release(&now(at), key, false).is_none(), "there is something to send");
    let (releases, _) = ledger.take_releases(at, Shard(0), 1);
    let error = Error::new(ErrorKind::Unavailable, "release", "lost on the way");
    ledger.on_release(&now(at), releases[0], Err(error));
    ledger.on_renew(&now(at), renewals[0], Ok(RenewAnswer::Renewed { ends_in: TTL }));
    at = at + Duration::from_secs(1);
    ledger.on_due(&now(at));
    let (releases, _) = ledger.take_releases(at, Shard(0), 1);
    assert_eq!(releases.len(), 1, "the release is repeated");
    ledger.on_release(&now(at), releases[0], Ok(ReleaseAnswer::Released));
    assert!(matches!(ledger.poll_release(key, None), Some(Ok(ReleaseAnswer::Released))));
}

#[test]
fn a_waiter_that_queues_anew_after_a_long_wait_bears_one_failure() {
    let mut ledger = ledger();
    let mut at = Instant::default() + Duration::from_secs(3600);
    let key = ledger.submit(&now(at), request());
    let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
    ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
    at = at + Duration::from_secs(60);
    ledger.on_due(&now(at));
    let (renewals, _) = ledger.take_renewals(at, Lane::Heartbeats, Shard(0), 1);
    ledger.on_renew(&now(at), renewals[0], Ok(RenewAnswer::Lost));
    let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let error = Error::new(ErrorKind::Unavailable, "claim", "lost on the way");
    ledger.on_claim(&now(at), claims[0], Err(error));
    assert!(ledger.poll(&now(at), key, None).is_none(), "one failure does not end the wait");
    at = at + Duration::from_secs(1);
    ledger.on_due(&now(at));
    assert_eq!(ledger.take_claims(at, Shard(0), 1, 1).0.len(), 1, "the claim is repeated");
}

#[test]
fn a_place_that_was_lost_is_withdrawn_if_a_copy_of_its_claim_may_be_under_way() {
    for was_repeated in [false, true] {
        let mut ledger = ledger();
        let mut at = Instant::default() + Duration::from_secs(3600);
        ledger.submit(&now(at), request());
        let (mut sent, mut claims) = ledger.take_claims(at, Shard(0), 1, 1);
        if was_repeated {
            let error = Error::new(ErrorKind::Unavailable, "claim", "lost on the way");
            ledger.on_claim(&now(at), sent[0], Err(error));
            at = at + Duration::from_secs(1);
            ledger.on_due(&now(at));
            (sent, claims) = ledger.take_claims(at, Shard(0), 1, 1);
        }
        let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
        ledger.on_claim(&now(at), sent[0], Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
        at = at + Duration::from_secs(60);
        ledger.on_due(&now(at));
        let (renewals, _) = ledger.take_renewals(at, Lane::Heartbeats, Shard(0), 1);
        ledger.on_renew(&now(at), renewals[0], Ok(RenewAnswer::Lost));
        let (_, releases) = ledger.take_releases(at, Shard(0), 9);
        let withdrawn: Vec<_> =
            releases.iter().map(|request| (request.release.claim, request.release.maybe_in_flight)).collect();
        assert_eq!(withdrawn, Vec::from_iter(was_repeated.then_some((claims[0].id, true))));
    }
}

#[test]
fn a_store_that_may_have_forgotten_is_asked_about_every_hold_at_once() {
    let mut ledger = ledger();
    let mut at = Instant::default() + Duration::from_secs(3600);
    let key = ledger.submit(&now(at), request());
    let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
    ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Granted(grant)));
    let Some(Ok(ClaimOutcome::Lease(lease))) = ledger.poll(&now(at), key, None) else { panic!("it is held") };
    at = at + Duration::from_millis(10);
    ledger.on_wake(&now(at), Wake::LookAtAll);
    assert_eq!(ledger.take_renewals(at, Lane::Renewals, Shard(0), 9).0.len(), 0, "a holder need not look");
    ledger.on_wake(&now(at), Wake::RenewAll);
    let (renewals, _) = ledger.take_renewals(at, Lane::Renewals, Shard(0), 9);
    assert_eq!(renewals.len(), 1, "long before its renewal is due");
    ledger.on_renew(&now(at), renewals[0], Ok(RenewAnswer::Lost));
    assert!(lease.is_over(at), "the store has forgotten it");
}

/// Has a request granted and held. The lease ends after `ends_in`.
fn hold(ledger: &mut Ledger, at: Instant, ends_in: Duration) -> (Key, Arc<LeaseState>) {
    let key = ledger.submit(&now(at), request());
    let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let grant = Grant { token: Token::new(1), slot: None, ends_in };
    ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Granted(grant)));
    let Some(Ok(ClaimOutcome::Lease(lease))) = ledger.poll(&now(at), key, None) else { panic!("it is held") };
    (key, lease)
}

#[test]
fn a_lease_lasts_no_longer_than_was_asked_for_whatever_a_store_says_whose_clock_was_set_back() {
    let mut ledger = ledger();
    let mut at = Instant::default() + Duration::from_secs(3600);
    let (_, lease) = hold(&mut ledger, at, TTL + Duration::from_secs(3600));
    assert!(lease.deadline() < at + TTL, "{:?}", lease.deadline().since(at));
    at = at + TTL / 2;
    ledger.on_due(&now(at));
    let (renewals, _) = ledger.take_renewals(at, Lane::Renewals, Shard(0), 9);
    ledger.on_renew(&now(at), renewals[0], Ok(RenewAnswer::Renewed { ends_in: TTL * 10 }));
    assert!(lease.deadline() > at + TTL / 2 && lease.deadline() < at + TTL);
}

#[test]
fn a_lease_lasts_no_longer_than_its_max_hold_though_a_store_that_forgot_counts_anew() {
    let mut ledger = ledger();
    let granted_at = Instant::default() + Duration::from_secs(3600);
    let (key, lease) = hold(&mut ledger, granted_at, TTL);
    // As a grant of a claim with this limit notes.
    let ends_at = granted_at + TTL + TTL / 2;
    ledger.max_holds.insert(key.index, ends_at);
    let at = granted_at + 2 * TTL / 3;
    ledger.on_due(&now(at));
    let (renewals, _) = ledger.take_renewals(at, Lane::Renewals, Shard(0), 9);
    ledger.on_renew(&now(at), renewals[0], Ok(RenewAnswer::Renewed { ends_in: TTL }));
    assert_eq!(lease.deadline(), ends_at);
}

#[test]
fn a_user_who_is_first_to_see_a_deadline_pass_finds_all_bound_leases_lost() {
    let mut ledger = ledger();
    let mut at = Instant::default() + Duration::from_secs(3600);
    let (lasting_key, lasting) = hold(&mut ledger, at, TTL);
    let (brief_key, brief) = hold(&mut ledger, at, TTL / 10);
    let bond = ledger.bind(&now(at), vec![lasting_key, brief_key]).expect("both are held");
    ledger.check_bond(&now(at), &bond);
    assert!(bond.lost_first().is_none() && !lasting.is_over(at), "nothing is lost yet");
    at = at + TTL / 10;
    assert!(brief.is_over(at) && !lasting.is_over(at), "the client's thread has not looked yet");
    ledger.check_bond(&now(at), &bond);
    assert!(lasting.is_over(at), "one loss is the loss of all");
    assert_eq!(bond.lost_first(), Some(1), "it is known which was first");
    ledger.on_due(&now(at));
    ledger.on_wake(&now(at), Wake::RenewAll);
    assert_eq!(
        ledger.take_renewals(at, Lane::Renewals, Shard(0), 9).0.len(),
        0,
        "what is lost with another is not renewed"
    );
    assert_eq!(ledger.take_releases(at, Shard(0), 9).0.len(), 0, "nor released before its user lets go");
    assert_eq!(ledger.release(&now(at), brief_key, true), Some(ReleaseAnswer::AlreadyLost));
    assert_eq!(ledger.release(&now(at), lasting_key, true), None, "the engine still knows it");
    assert_eq!(ledger.take_releases(at, Shard(0), 9).0.len(), 1);
}

#[test]
fn what_is_lost_with_another_ends_by_itself_if_its_user_does_not_let_go() {
    let mut ledger = ledger();
    let mut at = Instant::default() + Duration::from_secs(3600);
    let (lasting_key, _lasting) = hold(&mut ledger, at, TTL);
    let (brief_key, _brief) = hold(&mut ledger, at, TTL / 2);
    ledger.bind(&now(at), vec![lasting_key, brief_key]).expect("both are held");
    at = at + TTL / 2;
    ledger.on_due(&now(at));
    at = at + TTL;
    assert_eq!(ledger.release(&now(at), lasting_key, true), Some(ReleaseAnswer::AlreadyLost));
    assert!(ledger.bind(&now(at), vec![brief_key]).is_none(), "what is lost is not bound");
    assert_eq!(ledger.release(&now(at), brief_key, true), Some(ReleaseAnswer::AlreadyLost));
    assert!(!ledger.has_releases());
}

#[test]
fn a_call_takes_so_many_claims_of_one_resource_and_keeps_the_order() {
    let mut ledger = ledger();
    let random = std::cell::Cell::new(0);
    let random = || {
        random.set(random.get() + 1);
        random.get()
    };
    let at = Instant::default() + Duration::from_secs(3600);
    let now = Now { at, random: &random, time_of_day: &Timestamp::default };
    for name in ["a", "a", "b", "a", "b"] {
        let resource = Name::new(name).expect("a short name is one");
        ledger.submit(&now, AcquireRequest { resource, ..request() });
    }
    let mut names = |most| {
        let (_, claims) = ledger.take_claims(at, Shard(0), most, 1);
        claims.iter().map(|claim| claim.resource.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(8), ["a", "b"]);
    assert_eq!(names(1), ["a"]);
    assert_eq!(names(8), ["a", "b"], "who was left stands before who came later");
    // However many ask for one, the others do not wait for them.
    for name in ["a"; 20].iter().chain(&["b"]) {
        let resource = Name::new(name).expect("a short name is one");
        ledger.submit(&now, AcquireRequest { resource, ..request() });
    }
    let (_, claims) = ledger.take_claims(at, Shard(0), 8, 1);
    assert_eq!(claims.len(), 2, "one of the crowd, and the one behind it");
}

#[test]
fn claims_of_one_resource_are_in_one_of_the_calls_side_by_side() {
    let following = Following { calls_max: 2, is_ordered: false };
    let mut ledger = Ledger::new(Identity { following, ..identity() });
    let random = std::cell::Cell::new(0);
    let random = || {
        random.set(random.get() + 1);
        random.get()
    };
    let at = Instant::default() + Duration::from_secs(3600);
    let now = Now { at, random: &random, time_of_day: &Timestamp::default };
    let [a, b] = ["a", "b"].map(|name| Name::new(name).expect("a short name is one"));
    for resource in [&a, &a, &b, &a] {
        ledger.submit(&now, AcquireRequest { resource: resource.clone(), ..request() });
    }
    let names = |ledger: &mut Ledger, most| {
        let (_, claims) = ledger.take_claims(at, Shard(0), most, most);
        claims.iter().map(|claim| claim.resource.as_str().to_owned()).collect::<Vec<_>>()
    };
    let may_call_beside = |ledger: &mut Ledger, calls: &[usize]| {
        calls.iter().for_each(|count| ledger.begin_call(Lane::Claims, Shard(0), *count));
        let may_call = ledger.may_call(Lane::Claims, Shard(0));
        calls.iter().for_each(|count| ledger.end_call(Lane::Claims, Shard(0), *count));
        may_call
    };
    assert_eq!(names(&mut ledger, 1), ["a"]);
    assert!(may_call_beside(&mut ledger, &[4]));
    assert!(!may_call_beside(&mut ledger, &[4, 1]), "two are under way");
    assert!(!may_call_beside(&mut ledger, &[64]), "it would carry much less than the call beside it");
    assert_eq!(names(&mut ledger, 8), ["b"], "the others would overtake, or be overtaken");
    assert_eq!(names(&mut ledger, 8), [""; 0]);
    ledger.end_claiming(&[a]);
    assert_eq!(names(&mut ledger, 8), ["a", "a"]);
}

/// A ledger whose resources are on the shard that is stored in the atomic, and a claim of each of these names in it.
fn divided(names: &[&str]) -> (Ledger, Arc<AtomicU16>, Instant) {
    let moved_to = Arc::new(AtomicU16::new(0));
    let told = moved_to.clone();
    let shard_of: ShardOf = Box::new(move |name| match name.as_str() {
        "other" => Shard(1),
        _ => Shard(told.load(Ordering::Relaxed)),
    });
    let mut ledger = Ledger::new(Identity { shard_of, ..identity() });
    let random = std::cell::Cell::new(0);
    let random = || {
        random.set(random.get() + 1);
        random.get()
    };
    let at = Instant::default() + Duration::from_secs(3600);
    let now = Now { at, random: &random, time_of_day: &Timestamp::default };
    for name in names {
        let resource = Name::new(name).expect("a short name is one");
        ledger.submit(&now, AcquireRequest { resource, ..request() });
    }
    (ledger, moved_to, at)
}

fn claimed(ledger: &mut Ledger, at: Instant, shard: Shard) -> Vec<String> {
    let (_, claims) = ledger.take_claims(at, shard, 8, 8);
    claims.iter().map(|claim| claim.resource.as_str().to_owned()).collect()
}

#[test]
fn a_call_is_about_one_shard() {
    let (mut ledger, _, at) = divided(&["a", "other", "b"]);
    assert_eq!(ledger.lines(), [(Lane::Claims, Shard(0)), (Lane::Claims, Shard(1))]);
    assert_eq!(claimed(&mut ledger, at, Shard(1)), ["other"]);
    assert_eq!(ledger.lines(), [(Lane::Claims, Shard(0))]);
    assert_eq!(claimed(&mut ledger, at, Shard(0)), ["a", "b"]);
    assert_eq!(ledger.lines(), []);
}

#[test]
fn what_has_moved_to_another_shard_goes_over_to_its_line_in_order() {
    let (mut ledger, moved_to, at) = divided(&["a", "b", "other", "a"]);
    moved_to.store(3, Ordering::Relaxed);
    assert_eq!(ledger.lines(), [(Lane::Claims, Shard(1))]);
    assert!(ledger.take_news(), "there is a line that was not there before");
    assert_eq!(ledger.lines(), [(Lane::Claims, Shard(1)), (Lane::Claims, Shard(3))]);
    assert_eq!(claimed(&mut ledger, at, Shard(0)), [""; 0]);
    assert_eq!(claimed(&mut ledger, at, Shard(3)), ["a", "b", "a"]);
    // It moves while a call is being made.
    let (mut ledger, moved_to, at) = divided(&["a", "other", "b"]);
    assert_eq!(ledger.lines().len(), 2);
    moved_to.store(1, Ordering::Relaxed);
    assert_eq!(claimed(&mut ledger, at, Shard(0)), [""; 0]);
    assert!(ledger.take_news() || !ledger.lines().is_empty(), "it is looked at again");
    assert_eq!(claimed(&mut ledger, at, Shard(1)), ["other", "a", "b"]);
}

#[test]
fn a_grant_that_finds_its_waiter_in_line_is_confirmed_among_the_leases() {
    let mut ledger = ledger();
    let mut at = Instant::default() + Duration::from_secs(3600);
    let key = ledger.submit(&now(at), request());
    let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
    ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
    at = at + Duration::from_secs(2);
    ledger.on_due(&now(at));
    assert_eq!(ledger.lines(), [(Lane::Heartbeats, Shard(0))]);
    let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
    let wake = Wake::Granted { claim: claims[0].claim, grant, incarnation: Incarnation(1) };
    ledger.on_wake(&now(at), wake);
    assert!(matches!(ledger.poll(&now(at), key, None), Some(Ok(ClaimOutcome::Lease(_)))));
    assert!(ledger.take_renewals(at, Lane::Heartbeats, Shard(0), 9).0.is_empty());
    assert_eq!(ledger.lines(), [(Lane::Renewals, Shard(0))]);
    let (_, renewals) = ledger.take_renewals(at, Lane::Renewals, Shard(0), 9);
    assert!(!renewals[0].is_waiter);
}

#[test]
fn who_lets_others_repeat_a_claim_is_told_of_a_grant_when_the_store_has_heard_of_it_or_does_not_answer() {
    for is_answered in [true, false] {
        let mut ledger = ledger();
        let mut at = Instant::default() + Duration::from_secs(3600);
        let key = ledger.submit(&now(at), AcquireRequest { is_left: true, ..given(7) });
        let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
        let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
        ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
        let waker = Some(std::task::Waker::noop());
        assert!(ledger.poll(&now(at), key, waker).is_none());
        at = at + Duration::from_secs(1);
        let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
        let wake = Wake::Granted { claim: claims[0].claim, grant, incarnation: Incarnation(1) };
        ledger.on_wake(&now(at), wake);
        assert_eq!(ledger.take_notices().wakers.len(), 0, "the store may have passed it on");
        assert!(ledger.poll(&now(at), key, waker).is_none());
        let (renewals, _) = ledger.take_renewals(at, Lane::Renewals, Shard(0), 1);
        let error = || Error::new(ErrorKind::Unavailable, "renew", "lost on the way");
        let answer = if is_answered { Ok(RenewAnswer::Renewed { ends_in: TTL }) } else { Err(error()) };
        ledger.on_renew(&now(at), renewals[0], answer);
        assert_eq!(ledger.take_notices().wakers.len(), 1);
        assert!(matches!(ledger.poll(&now(at), key, None), Some(Ok(ClaimOutcome::Lease(_)))));
        assert_eq!(ledger.is_confirmed(key), is_answered);
    }
}

#[test]
fn a_grant_that_may_be_older_than_the_last_answer_or_of_another_store_is_not_used_before_it_is_confirmed() {
    let answered_by = Incarnation(1);
    let waiting = Waiting { position: 1, horizon: Token::new(7), look_in: None };
    for (token, incarnation, is_used) in
        [(8, answered_by, true), (7, answered_by, false), (8, Incarnation(2), false)]
    {
        let mut ledger = ledger();
        let at = Instant::default() + Duration::from_secs(3600);
        let key = ledger.submit(&now(at), request());
        let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
        ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Waiting(waiting, answered_by)));
        let grant = Grant { token: Token::new(token), slot: None, ends_in: TTL };
        ledger.on_wake(&now(at), Wake::Granted { claim: claims[0].claim, grant, incarnation });
        assert_eq!(ledger.poll(&now(at), key, None).is_some(), is_used, "{token} of {incarnation:?}");
        let lane = if is_used { Lane::Renewals } else { Lane::Heartbeats };
        assert_eq!(ledger.lines(), [(lane, Shard(0))], "the store is asked at once");
    }
}

#[test]
fn a_wake_that_overtakes_an_answer_is_not_lost() {
    let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
    for wake in [Wake::Look(ClaimId::new(0)), Wake::LookAtAll, Wake::RenewAll] {
        let mut ledger = ledger();
        let mut at = Instant::default() + Duration::from_secs(3600);
        ledger.submit(&now(at), request());
        let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
        let wake = if let Wake::Look(_) = wake { Wake::Look(claims[0].claim) } else { wake };
        ledger.on_wake(&now(at), wake.clone());
        ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
        let (asked, _) = ledger.take_renewals(at, Lane::Heartbeats, Shard(0), 9);
        assert_eq!(asked.len(), 1, "{wake:?}: what holds it up may have gone before the claim was answered");
        ledger.on_wake(&now(at), wake.clone());
        ledger.on_renew(&now(at), asked[0], Ok(RenewAnswer::Waiting(waiting, Incarnation(1))));
        let (asked, _) = ledger.take_renewals(at, Lane::Heartbeats, Shard(0), 9);
        assert_eq!(asked.len(), 1, "{wake:?}: and before its heartbeat was");
        ledger.on_renew(&now(at), asked[0], Ok(RenewAnswer::Waiting(waiting, Incarnation(1))));
        at = at + Duration::from_millis(1);
        ledger.on_due(&now(at));
        assert!(ledger.lines().is_empty(), "{wake:?}: once for each wake");
    }
}

#[test]
fn a_delivery_that_has_ended_is_not_handed_to_its_user() {
    let AcquireRequest { resource, terms, .. } = request();
    let at = Instant::default() + Duration::from_secs(3600);
    for (passes, is_held) in [(TTL / 2, true), (TTL, false)] {
        let mut ledger = ledger();
        let lease = LeaseState::new(resource.clone(), ClaimId::new(1), terms.clone());
        let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
        let entered = ledger.enter_delivery(&now(at), Holding { lease, grant, sent: at, scope: 0 });
        let (key, _) = entered.expect("it has just begun");
        assert_eq!(ledger.hand_over(at + passes, key), is_held, "after {passes:?}, while nobody has looked");
    }
}

/// A store that was silent for long may know of less than a third of the ttl. Of what `max_hold` ends, more cannot be had.
#[test]
fn a_lease_that_is_granted_for_little_is_renewed_before_that_is_over() {
    for (max_hold, renewed) in [(None, 1), (Some(TTL / 4), 0)] {
        let (mut ledger, mut request) = (ledger(), request());
        Arc::make_mut(&mut request.terms).limits.max_hold = max_hold;
        let at = Instant::default() + Duration::from_secs(3600);
        let key = ledger.submit(&now(at), request);
        let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
        let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL / 4 };
        ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Granted(grant)));
        assert!(matches!(ledger.poll(&now(at), key, None), Some(Ok(ClaimOutcome::Lease(_)))));
        ledger.on_due(&now(at + TTL / 6));
        let (renewals, _) = ledger.take_renewals(at + TTL / 6, Lane::Renewals, Shard(0), 1);
        assert_eq!(renewals.len(), renewed, "with a max_hold of {max_hold:?}");
    }
}

/// Has a lease granted, and a renewal of it sent.
fn renewing(ledger: &mut Ledger, at: Instant) -> (Key, Sent, Arc<LeaseState>) {
    let key = ledger.submit(&now(at), request());
    let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
    ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Granted(grant)));
    let Some(Ok(ClaimOutcome::Lease(lease))) = ledger.poll(&now(at), key, None) else {
        panic!("it was granted")
    };
    ledger.on_due(&now(at + TTL / 2));
    let (renewals, _) = ledger.take_renewals(at + TTL / 2, Lane::Renewals, Shard(0), 1);
    (key, renewals[0], lease)
}

#[test]
fn an_answer_that_comes_after_a_lease_was_detached_brings_nothing_back() {
    for answer in
        [Ok(RenewAnswer::Renewed { ends_in: TTL }), Err(Error::new(ErrorKind::Unavailable, "renew", "lost"))]
    {
        let mut ledger = ledger();
        let at = Instant::default() + Duration::from_secs(3600);
        let (key, renewal, lease) = renewing(&mut ledger, at);
        assert!(ledger.depart(&now(at + TTL / 2), key).is_ok());
        ledger.on_renew(&now(at + TTL / 2), renewal, answer);
        assert!(lease.is_over(at), "nobody here holds it");
        assert_eq!(ledger.next_due(), Instant::NEVER, "nothing is renewed");
        assert_eq!(ledger.lines(), [], "nothing is sent");
        assert!(ledger.depart(&now(at), key).is_err(), "it is detached once");
    }
}

#[test]
fn an_answer_from_before_a_lease_was_detached_does_not_move_the_attached_one() {
    let mut ledger = ledger();
    let at = Instant::default() + Duration::from_secs(3600);
    let (key, renewal, lease) = renewing(&mut ledger, at);
    assert!(ledger.depart(&now(at + TTL / 2), key).is_ok());
    let attach = |ledger: &mut Ledger| {
        let lease = LeaseState::new(lease.resource().clone(), lease.claim(), lease.terms().clone());
        let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL / 2 };
        ledger.attach(&now(at + TTL / 2), Holding { lease, grant, sent: at + TTL / 2, scope: 0 }, None)
    };
    let (_, again) = attach(&mut ledger).unwrap_or_else(|_| panic!("it is held"));
    let deadline = again.deadline();
    ledger.on_renew(&now(at + TTL / 2), renewal, Ok(RenewAnswer::Renewed { ends_in: TTL }));
    assert_eq!(again.deadline(), deadline, "the answer was to another lease");
    assert!(deadline < at + TTL, "a deadline is counted from when the answered request was sent");
    assert!(matches!(attach(&mut ledger), Err(NotEntered::InUse)), "one client has one lease of a claim");
}

#[test]
fn a_lease_that_is_lost_is_not_detached() {
    let mut ledger = ledger();
    let at = Instant::default() + Duration::from_secs(3600);
    let (key, ..) = renewing(&mut ledger, at);
    assert_eq!(ledger.depart(&now(at + TTL), key), Err(LossReason::NotRenewed), "before anybody has noticed");
    assert_eq!(ledger.depart(&now(at + TTL), key), Err(LossReason::NotRenewed), "and again");
}

#[test]
fn what_was_attached_is_remembered_as_finished_when_it_is_released() {
    let mut ledger = ledger();
    let at = Instant::default() + Duration::from_secs(3600);
    let AcquireRequest { resource, terms, .. } = request();
    let lease = LeaseState::new(resource, ClaimId::new(1), terms);
    let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
    let attached = ledger.attach(&now(at), Holding { lease, grant, sent: at, scope: 0 }, Some(TTL / 2));
    let (key, lease) = attached.unwrap_or_else(|_| panic!("it is held"));
    assert_eq!(ledger.releases_begun(), []);
    ledger.on_due(&now(at + TTL / 3));
    let (renewals, _) = ledger.take_renewals(at + TTL / 3, Lane::Renewals, Shard(0), 1);
    ledger.on_renew(&now(at + TTL / 3), renewals[0], Ok(RenewAnswer::Renewed { ends_in: TTL }));
    let deadline = lease.deadline();
    assert!(
        deadline > at + TTL / 3 && deadline <= at + TTL / 2,
        "what is left of its max_hold counts here, too"
    );
    assert!(ledger.release(&now(at + TTL / 3), key, false).is_none(), "there is something to send");
    let (_, releases) = ledger.take_releases(at + TTL / 3, Shard(0), 1);
    assert!(releases[0].release.maybe_in_flight, "a copy of the claim may be under way from whoever made it");
}

/// Asks under an id that a user has given.
fn given(id: u128) -> AcquireRequest {
    AcquireRequest { claim: Some(ClaimId::new(id)), ..request() }
}

fn kind_of_end(ledger: &mut Ledger, at: Instant, key: Key) -> Option<ErrorKind> {
    ledger.poll(&now(at), key, None).and_then(|ended| ended.err()).map(|error| error.kind())
}

#[test]
fn an_id_that_was_given_is_never_replaced() {
    // What the store says of the waiter or the holder, and what is done when it is too late.
    type Ends = fn(&mut Ledger, Instant, Key, Sent);
    let cases: [(&str, bool, Ends); 4] = [
        ("the id was used before", false, |ledger, at, _, sent| {
            ledger.on_claim(&now(at), sent, Ok(ClaimAnswer::Finished));
        }),
        ("its place is lost", false, |ledger, at, _, sent| {
            let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
            ledger.on_claim(&now(at), sent, Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
            ledger.on_renew(&now(at), sent, Ok(RenewAnswer::Lost));
        }),
        ("its grant came too late", true, |ledger, at, _, sent| {
            let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
            ledger.on_claim(&now(at + TTL), sent, Ok(ClaimAnswer::Granted(grant)));
        }),
        ("nobody has collected its grant", true, |ledger, at, _, sent| {
            let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
            ledger.on_claim(&now(at), sent, Ok(ClaimAnswer::Granted(grant)));
            ledger.on_renew(
                &now(at + TTL / 2),
                Sent { at: at + TTL / 2, ..sent },
                Ok(RenewAnswer::Renewed { ends_in: TTL }),
            );
            ledger.on_due(&now(at + TTL));
        }),
    ];
    for (case, is_withdrawn, ends) in cases {
        let mut ledger = ledger();
        let at = Instant::default() + Duration::from_secs(3600);
        let key = ledger.submit(&now(at), given(4711));
        let (sent, claims) = ledger.take_claims(at, Shard(0), 1, 1);
        assert!(claims[0].may_be_known && claims[0].id == ClaimId::new(4711), "{case}");
        ends(&mut ledger, at, key, sent[0]);
        assert_eq!(kind_of_end(&mut ledger, at + TTL, key), Some(ErrorKind::Finished), "{case}");
        let (anew, _) = ledger.take_claims(at + TTL, Shard(0), 1, 1);
        assert!(anew.is_empty(), "{case}: nothing is claimed anew");
        let (_, releases) = ledger.take_releases(at + TTL, Shard(0), 2);
        assert_eq!(releases.len(), usize::from(is_withdrawn), "{case}");
        assert!(releases.iter().all(|request| request.release.claim == ClaimId::new(4711)), "{case}");
        assert!(
            releases.iter().all(|request| request.release.maybe_in_flight),
            "{case}: it is remembered as used"
        );
    }
}

#[test]
fn an_id_is_used_once_at_a_time() {
    let mut ledger = ledger();
    let at = Instant::default() + Duration::from_secs(3600);
    let first = ledger.submit(&now(at), given(7));
    let second = ledger.submit(&now(at), given(7));
    assert_eq!(kind_of_end(&mut ledger, at, second), Some(ErrorKind::Invalid), "it is in use");
    let other = ledger.submit(&now(at), given(8));
    assert!(ledger.poll(&now(at), other, None).is_none(), "another id is another claim");
    let (sent, claims) = ledger.take_claims(at, Shard(0), 4, 4);
    assert_eq!(claims.iter().map(|claim| claim.id.bits()).collect::<Vec<_>>(), [7, 8]);
    let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
    ledger.on_claim(&now(at), sent[0], Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
    // The wake of the first one still finds it: the second one has not taken its place in any list.
    let grant = Grant { token: Token::new(1), slot: None, ends_in: TTL };
    let wake = Wake::Granted { claim: ClaimId::new(7), grant, incarnation: Incarnation(1) };
    ledger.on_wake(&now(at), wake);
    assert!(matches!(ledger.poll(&now(at), first, None), Some(Ok(ClaimOutcome::Lease(_)))));
    assert!(ledger.release(&now(at), first, false).is_none(), "there is something to send");
    let third = ledger.submit(&now(at), given(7));
    assert_eq!(
        kind_of_end(&mut ledger, at, third),
        Some(ErrorKind::Invalid),
        "its release is not answered yet"
    );
    let (releases, _) = ledger.take_releases(at, Shard(0), 1);
    ledger.on_release(&now(at), releases[0], Ok(ReleaseAnswer::Released));
    assert!(ledger.poll_release(first, None).is_some());
    let fourth = ledger.submit(&now(at), given(7));
    assert!(ledger.poll(&now(at), fourth, None).is_none(), "the store says what has become of it");
}

#[test]
fn a_wait_that_was_detached_is_neither_withdrawn_nor_kept() {
    let mut ledger = ledger();
    let at = Instant::default() + Duration::from_secs(3600);
    let key = ledger.submit(&now(at), given(7));
    assert_eq!(ledger.depart_early(&now(at), key), None, "nothing was asked");
    assert!(ledger.take_claims(at, Shard(0), 1, 1).0.is_empty(), "and nothing will be");
    let key = ledger.submit(&now(at), given(7));
    let (sent, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
    ledger.on_claim(&now(at), sent[0], Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
    assert_eq!(ledger.depart_early(&now(at), key), Some(ClaimId::new(7)));
    assert_eq!((ledger.next_due(), ledger.lines()), (Instant::NEVER, vec![]), "nothing is sent");
    ledger.submit(&now(at), given(7));
    assert_eq!(ledger.take_claims(at, Shard(0), 1, 1).1[0].id, ClaimId::new(7), "it may be asked for again");
}

/// Asks without waiting, has the first copy of the claim go unanswered if there is to be a stray one, and answers.
fn answered(answer: Result<ClaimAnswer, Error>, has_stray_copy: bool) -> (Ledger, Instant, Key) {
    let mut ledger = ledger();
    let mut at = Instant::default() + Duration::from_secs(3600);
    let key = ledger.submit(&now(at), AcquireRequest { wait: Some(Duration::ZERO), ..request() });
    let (mut claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    if has_stray_copy {
        let error = Error::new(ErrorKind::Unavailable, "claim", "lost on the way");
        ledger.on_claim(&now(at), claims[0], Err(error));
        at = at + Duration::from_secs(1);
        ledger.on_due(&now(at));
        claims = ledger.take_claims(at, Shard(0), 1, 1).0;
    }
    ledger.on_claim(&now(at), claims[0], answer);
    (ledger, at, key)
}

#[test]
fn only_a_decision_about_the_only_copy_of_a_claim_is_a_refusal() {
    let error = |kind| Error::new(kind, "claim", "so it is");
    let busy = || Ok(ClaimAnswer::Busy(Busy::new(Token::ZERO, 0)));
    for (what, answer, has_stray_copy, is_withdrawn) in [
        ("a failed call", Err(error(ErrorKind::Internal)), false, true),
        ("a right that is missing half way", Err(error(ErrorKind::Unsupported)), false, true),
        ("a kind that may mean anything", Err(error(ErrorKind::Conflict)), false, true),
        ("the decision", Err(error(ErrorKind::Conflict).with_no_effect()), false, false),
        ("the decision about a second copy", Err(error(ErrorKind::Conflict).with_no_effect()), true, true),
        ("others hold", busy(), false, false),
        ("others held when the second copy came", busy(), true, true),
    ] {
        let (mut ledger, at, key) = answered(answer, has_stray_copy);
        assert!(ledger.poll(&now(at), key, None).is_some(), "{what}: its user is told at once");
        let (_, releases) = ledger.take_releases(at, Shard(0), 9);
        assert_eq!(releases.len(), usize::from(is_withdrawn), "{what}");
        assert!(releases.iter().all(|request| request.release.maybe_in_flight), "{what}");
    }
}

fn pushing() -> (Pushing, oneshot::Receiver<Result<Pushed>>) {
    let (waiter, answer) = oneshot::channel();
    let queue = Name::new("q").expect("a good name");
    let push = Push {
        queue,
        payload: Arc::from(*b"work"),
        group: None,
        delay: Duration::ZERO,
        dedup: None,
        context: None,
    };
    (Pushing { push, waiter }, answer)
}

#[test]
fn the_thread_is_not_woken_for_what_only_the_end_of_a_call_lets_it_send() {
    let mut ledger = ledger();
    let line = [(Lane::Pushes, Shard(0))];
    ledger.enqueue_push(pushing().0);
    assert!(ledger.take_news() && ledger.lines() == line);
    let count = ledger.take_pushes(Shard(0), 8).len();
    ledger.begin_call(Lane::Pushes, Shard(0), count);
    for _ in 0..3 {
        ledger.enqueue_push(pushing().0);
        assert!(!ledger.take_news() && !ledger.may_call(Lane::Pushes, Shard(0)), "one is under way");
    }
    ledger.end_call(Lane::Pushes, Shard(0), count);
    assert!(
        ledger.may_call(Lane::Pushes, Shard(0)) && ledger.lines() == line,
        "the thread looks by itself then"
    );
    assert_eq!(ledger.take_pushes(Shard(0), 8).len(), 3);
    ledger.enqueue_push(pushing().0);
    assert!(ledger.take_news(), "none is under way any more");
}

#[test]
fn the_thread_is_woken_for_what_may_go_out_beside_a_call() {
    let woken_at = |following, calls: &[usize]| -> Vec<usize> {
        let mut ledger = Ledger::new(Identity { following, ..identity() });
        let at = Instant::default() + Duration::from_secs(3600);
        ledger.submit(&now(at), request());
        ledger.take_claims(at, Shard(0), 8, 8);
        calls.iter().for_each(|count| ledger.begin_call(Lane::Claims, Shard(0), *count));
        ledger.take_news();
        let mut is_woken = |_: &usize| {
            ledger.submit(&now(at), request());
            ledger.take_news()
        };
        (1..=8).filter(|waiting| is_woken(waiting)).collect()
    };
    let (behind, beside) =
        (Following { calls_max: 2, is_ordered: true }, Following { calls_max: 2, is_ordered: false });
    assert_eq!(woken_at(behind, &[]), [1]);
    assert_eq!(woken_at(behind, &[1]), [4], "a call behind another one carries so many");
    assert_eq!(woken_at(behind, &[1, 4]), [], "two are under way");
    // Those that waited may be about what is in the call, and those that come may not.
    assert_eq!(woken_at(beside, &[8]), [2, 4, 8]);
    assert_eq!(woken_at(beside, &[8, 2]), [], "two are under way");
}

#[test]
fn a_push_does_not_outlive_the_thread_that_would_send_it() {
    let mut ledger = ledger();
    let at = Instant::default() + Duration::from_secs(3600);
    let (waiting, mut answer) = pushing();
    assert!(ledger.enqueue_push(waiting).is_none());
    assert!(ledger.take_news() && ledger.lines() == [(Lane::Pushes, Shard(0))]);
    drop(ledger.close(&now(at), Error::new(ErrorKind::Internal, "use the client", "its thread has ended")));
    assert!(answer.try_recv().is_err_and(|error| error == TryRecvError::Closed), "its caller finds that out");
    assert!(ledger.enqueue_push(pushing().0).is_some(), "it would wait for ever");
}

#[test]
fn who_asks_whether_a_claim_has_queued_is_woken_when_it_has() {
    let mut ledger = ledger();
    let at = Instant::default() + Duration::from_secs(3600);
    let key = ledger.submit(&now(at), request());
    assert!(ledger.poll(&now(at), key, Some(std::task::Waker::noop())).is_none());
    assert!(!ledger.is_queued(key), "nothing is answered yet");
    let (claims, _) = ledger.take_claims(at, Shard(0), 1, 1);
    let waiting = Waiting { position: 1, horizon: Token::ZERO, look_in: None };
    ledger.on_claim(&now(at), claims[0], Ok(ClaimAnswer::Waiting(waiting, Incarnation(1))));
    assert_eq!(ledger.take_notices().wakers.len(), 1);
    assert!(ledger.is_queued(key));
}
