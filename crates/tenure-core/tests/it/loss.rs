//! Why a lease was lost, as its user is told.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use pollster::block_on;
use tenure_core::memory::{Flaw, Store, Verb};
use tenure_core::model::record::PlainRecord;
use tenure_core::testing::virtual_clock::VirtualClock;
use tenure_core::{ErrorKind, Lease, LossReason, Settings, Tenure, blocking};

use crate::client::eventually;

const TTL: Duration = Duration::from_secs(9);

fn connect(store: &Arc<Store>, clock: &VirtualClock) -> Tenure {
    let connecting = Tenure::start(store.clone().connector(), Arc::new(clock.clone()), Settings::new());
    block_on(connecting).expect("connects")
}

/// A client of a store of its own, on a clock that stands.
fn one() -> (VirtualClock, Tenure) {
    let clock = VirtualClock::new(7);
    let store = Store::new(Arc::new(clock.clone()));
    let tenure = connect(&store, &clock);
    (clock, tenure)
}

/// Lets a lease be renewed until it is lost.
fn renew_until_lost(clock: &VirtualClock, lease: &Lease) {
    while !lease.is_lost() {
        let before = lease.deadline();
        clock.advance(TTL / 4);
        // The renewal that is due may move the deadline by little or not at all.
        for _ in 0..20 {
            if lease.is_lost() || lease.deadline() > before {
                break;
            }
            #[allow(clippy::disallowed_methods, reason = "another thread's progress has no event to await")]
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_lease_that_slept_through_its_ttl_was_not_renewed() {
    let (clock, tenure) = one();
    let lease = block_on(tenure.mutex("x").ttl(TTL).acquire()).expect("free");
    assert_eq!(lease.loss_reason(), None);
    clock.advance(TTL * 2);
    let lost = block_on(lease.lost());
    assert_eq!((lost.kind(), lost.loss_reason()), (ErrorKind::Lost, Some(LossReason::NotRenewed)));
    assert!(lost.to_string().ends_with("the lease is lost: it was not renewed in time"), "{lost}");
    assert_eq!(lease.loss_reason(), Some(LossReason::NotRenewed), "it stays so");
}

#[test]
fn a_lease_that_was_renewed_to_the_last_has_been_held_for_max_hold() {
    for max_hold in [TTL / 2, TTL, TTL * 3] {
        let (clock, tenure) = one();
        let lease = block_on(tenure.mutex("x").ttl(TTL).max_hold(max_hold).acquire()).expect("free");
        renew_until_lost(&clock, &lease);
        assert_eq!(lease.loss_reason(), Some(LossReason::MaxHold), "{max_hold:?}");
    }
    let (clock, tenure) = one();
    let lease = block_on(tenure.mutex("x").ttl(TTL).max_hold(TTL * 3).acquire()).expect("free");
    clock.advance(TTL);
    assert_eq!(lease.loss_reason(), Some(LossReason::NotRenewed), "long before that");
}

#[test]
fn a_lease_that_an_operator_breaks_has_ended() {
    let (clock, tenure) = one();
    let lease = block_on(tenure.mutex("x").ttl(TTL).acquire()).expect("free");
    block_on(tenure.break_hold("x", lease.token(), false)).expect("answers");
    clock.advance(TTL / 3);
    assert_eq!(block_on(lease.lost()).loss_reason(), Some(LossReason::Ended));
}

#[test]
fn run_and_every_kind_of_lease_say_the_same() {
    let (clock, tenure) = one();
    let run = block_on(tenure.mutex("x").ttl(TTL).run(async |_| clock.advance(TTL * 2)));
    assert_eq!(run.expect_err("lost").loss_reason(), Some(LossReason::NotRenewed));
    let (read, slot) = (tenure.rw_lock("r").ttl(TTL).read(), tenure.slot_pool("s", 2).ttl(TTL));
    let (read, slot) = block_on(async { (read.acquire().await, slot.acquire().await) });
    let (read, slot) = (read.expect("free"), slot.expect("free"));
    let term = block_on(tenure.election("e").ttl(TTL).campaign()).expect("free");
    let blocking = blocking::Tenure::from(tenure.clone());
    let held = blocking.mutex("b").ttl(TTL).acquire().expect("free");
    let ran = blocking.mutex("c").ttl(TTL).run(|_| clock.advance(TTL * 2));
    let (term, published) = (block_on(term.lost()), block_on(term.publish(b"late")));
    let all = [block_on(read.lost()), block_on(slot.lost()), term, block_on(held.lost())];
    let all = all.into_iter().chain([published.expect_err("lost"), ran.expect_err("lost")]);
    for error in all {
        assert_eq!(error.loss_reason(), Some(LossReason::NotRenewed), "{error}");
    }
}

#[test]
fn a_delivery_that_is_lost_says_why_when_it_is_acknowledged() {
    let (clock, tenure) = one();
    let queue = tenure.queue("q").ttl(TTL);
    block_on(queue.push("work").into_future()).expect("pushed");
    let delivery = block_on(queue.next()).expect("there is one");
    clock.advance(TTL * 2);
    let lost = block_on(delivery.ack()).expect_err("too late");
    assert_eq!((lost.kind(), lost.loss_reason()), (ErrorKind::Lost, Some(LossReason::NotRenewed)));
}

#[test]
fn a_set_names_what_was_lost_first_and_the_others_were_lost_with_it() {
    let (clock, tenure) = one();
    let (a, b) = (tenure.mutex("a").ttl(TTL), tenure.mutex("b").ttl(TTL));
    let leases = block_on(tenure.all([a.into(), b.into()]).acquire()).expect("free");
    block_on(tenure.break_hold("b", leases.token("b").expect("held"), false)).expect("answers");
    clock.advance(TTL / 3);
    let lost = block_on(leases.lost());
    assert_eq!(lost.resource().map(|name| name.as_str()), Some("b"));
    assert_eq!(lost.loss_reason(), Some(LossReason::Ended));
    let reason = |name| leases.get(name).and_then(|lease| lease.loss_reason());
    assert_eq!((reason("a"), reason("b")), (Some(LossReason::LostWithSet), Some(LossReason::Ended)));
}

/// Breaks the client's thread down when it renews.
struct PanicsAtRenewal;

impl Flaw for PanicsAtRenewal {
    fn before(&self, _: &mut PlainRecord, verb: Verb<'_>) {
        assert!(!matches!(verb, Verb::Renew(_)), "this test breaks the client's thread down here");
    }
}

#[test]
fn a_lease_whose_client_has_broken_down_says_so() {
    let clock = VirtualClock::new(7);
    let store = Store::with_flaw(Arc::new(clock.clone()), Some(Arc::new(PanicsAtRenewal)));
    let tenure = connect(&store, &clock);
    let lease = block_on(tenure.mutex("x").ttl(TTL).acquire()).expect("free");
    clock.advance(TTL / 3);
    eventually("it is lost", || lease.is_lost());
    assert_eq!(block_on(lease.lost()).loss_reason(), Some(LossReason::ClientEnded));
}
