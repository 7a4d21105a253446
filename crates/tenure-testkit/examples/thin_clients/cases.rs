//! The cases. Each breaks one thing, and says what the client must do about it.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Inconclusive;
use crate::proxy::Act;
use crate::soak::two_clients_never_both_believe;
use crate::world::{World, granted, new_id, number, until};

type Case = fn(&mut World) -> Result<(), Inconclusive>;

macro_rules! cases {
    ($($name:ident,)*) => {
        /// All of them.
        pub(crate) const CASES: &[(&str, Case)] = &[$((stringify!($name), $name)),*];
    };
}

cases! {
    two_clients_never_both_believe,
    a_lock_is_held_and_released,
    a_claim_whose_request_is_lost_is_sent_again,
    a_claim_whose_answer_is_lost_is_granted_once,
    a_claim_whose_answer_is_cut_is_granted_once,
    a_release_whose_answer_is_lost_is_done,
    a_503_is_repeated_when_it_says,
    what_a_gateway_says_is_no_answer,
    the_answer_to_another_is_no_grant,
    an_id_that_is_used_up_is_replaced,
    a_claim_that_waits_keeps_its_place_when_it_is_cut,
    a_wait_that_is_over_leaves_nothing,
    a_try_does_not_wait,
    a_deadline_counts_from_sending_the_claim,
    a_deadline_counts_from_sending_the_renewal,
    an_answer_after_the_ttl_is_no_grant,
    silence_ends_a_lease_before_the_store_does,
    a_410_ends_a_lease,
    a_restart_of_the_server_loses_nothing,
    failed_renewals_are_repeated,
    doubled_requests_do_nothing_twice,
    a_late_copy_of_a_claim_takes_nothing,
    a_client_that_was_paused_knows_that_it_lost,
    many_leases_are_renewed_together,
    a_client_that_closes_releases,
    a_program_that_ends_releases,
    nobody_there_is_unavailable,
    a_push_whose_answer_is_lost_is_in_line_once,
    an_ack_whose_answer_is_lost_is_not_done_twice,
}

const CLAIM: &str = "PUT /v1/claims/*";
const RENEWAL: &str = "POST /v1/claims/*renew";
const RELEASE: &str = "DELETE /v1/claims/*";

/// Every claim so far had one id.
fn has_one_id(world: &World) {
    let claims = world.proxy.seen(CLAIM);
    assert!(claims.iter().all(|claim| claim.line == claims[0].line), "{claims:?}");
}

fn is_held_once(world: &mut World, token: u64) {
    assert_eq!(world.token(), Some(token), "the store says {}", world.resource());
    assert!(world.is_held());
    assert!(world.rival().is_none());
}

fn is_free(world: &World) {
    let rival = world.rival().unwrap_or_else(|| panic!("it is held: {}", world.resource()));
    world.release(&rival);
}

fn a_lock_is_held_and_released(world: &mut World) -> Result<(), Inconclusive> {
    let token = world.acquire(5_000, 10_000);
    is_held_once(world, token);
    assert_eq!(world.client.ask("release a"), "released yes");
    is_free(world);
    Ok(())
}

fn a_claim_whose_request_is_lost_is_sent_again(world: &mut World) -> Result<(), Inconclusive> {
    world.proxy.next(CLAIM, 2, Act::LoseRequest);
    let token = world.acquire(5_000, 10_000);
    is_held_once(world, token);
    has_one_id(world);
    Ok(())
}

fn a_claim_whose_answer_is_lost_is_granted_once(world: &mut World) -> Result<(), Inconclusive> {
    world.proxy.next(CLAIM, 2, Act::LoseAnswer);
    let token = world.acquire(5_000, 10_000);
    is_held_once(world, token);
    has_one_id(world);
    assert_eq!(world.client.ask("release a"), "released yes");
    is_free(world);
    Ok(())
}

fn a_claim_whose_answer_is_cut_is_granted_once(world: &mut World) -> Result<(), Inconclusive> {
    world.proxy.next(CLAIM, 1, Act::CutAnswer);
    let token = world.acquire(5_000, 10_000);
    is_held_once(world, token);
    has_one_id(world);
    Ok(())
}

fn a_release_whose_answer_is_lost_is_done(world: &mut World) -> Result<(), Inconclusive> {
    world.acquire(30_000, 10_000);
    world.proxy.next(RELEASE, 1, Act::LoseAnswer);
    assert_eq!(world.client.ask("release a"), "released yes");
    is_free(world);
    // One whose request is lost, too.
    world.client.ask(&format!("acquire b {} 30000 10000", world.name));
    world.proxy.next(RELEASE, 1, Act::LoseRequest);
    assert_eq!(world.client.ask("release b"), "released yes");
    is_free(world);
    Ok(())
}

fn a_503_is_repeated_when_it_says(world: &mut World) -> Result<(), Inconclusive> {
    let body = "{\"type\":\"/v1/problems/overloaded\",\"status\":503,\"kind\":\"overloaded\",\"detail\":\"so it is\"}";
    world.proxy.next(
        CLAIM,
        1,
        Act::Say(503, "Retry-After: 1\r\nContent-Type: application/problem+json\r\n", body.to_owned()),
    );
    let token = world.acquire(5_000, 10_000);
    is_held_once(world, token);
    has_one_id(world);
    let claims = world.proxy.seen(CLAIM);
    let pause = claims[1].at.duration_since(claims[0].at);
    assert!(pause >= Duration::from_millis(990), "after {pause:?}, and it said 1 s");
    Ok(())
}

fn what_a_gateway_says_is_no_answer(world: &mut World) -> Result<(), Inconclusive> {
    for status in [502, 503, 504] {
        world.proxy.next(CLAIM, 1, Act::Say(status, "Content-Type: text/html\r\n", "<h1>no</h1>".to_owned()));
    }
    world.proxy.next(CLAIM, 1, Act::Say(200, "Content-Type: text/html\r\n", "<h1>yes</h1>".to_owned()));
    let token = world.acquire(5_000, 10_000);
    is_held_once(world, token);
    // A 410 that is not tenure's ends no lease.
    world.proxy.next(RENEWAL, 2, Act::Say(410, "Content-Type: text/html\r\n", "<h1>gone</h1>".to_owned()));
    until("renewals", || world.proxy.seen(RENEWAL).len() >= 4);
    assert!(world.is_held());
    has_one_id(world);
    Ok(())
}

fn the_answer_to_another_is_no_grant(world: &mut World) -> Result<(), Inconclusive> {
    let rival = world.rival().expect("it is free");
    let body = format!(
        "{{\"state\":\"granted\",\"name\":\"{}\",\"claim\":\"{}\",\"token\":7,\"slot\":null,\"expires_in_ms\":30000,\"renew_in_ms\":10000,\"waited_ms\":0}}",
        world.name,
        new_id()
    );
    world.proxy.next(CLAIM, 3, Act::Say(200, "Content-Type: application/json\r\n", body));
    let said = world.client.ask(&format!("acquire a {} 5000 1500", world.name));
    assert!(granted(&said).is_none(), "it is another's: {said}");
    world.release(&rival);
    Ok(())
}

fn an_id_that_is_used_up_is_replaced(world: &mut World) -> Result<(), Inconclusive> {
    let body =
        "{\"type\":\"/v1/problems/finished\",\"status\":410,\"kind\":\"finished\",\"detail\":\"so it is\"}";
    world.proxy.next(CLAIM, 1, Act::Say(410, "Content-Type: application/problem+json\r\n", body.to_owned()));
    let token = world.acquire(5_000, 10_000);
    is_held_once(world, token);
    let claims = world.proxy.seen(CLAIM);
    assert_ne!(claims[0].line, claims[1].line);
    Ok(())
}

fn a_claim_that_waits_keeps_its_place_when_it_is_cut(world: &mut World) -> Result<(), Inconclusive> {
    let rival = world.rival().expect("it is free");
    world.proxy.next(CLAIM, 2, Act::CutAfter(Duration::from_millis(300)));
    world.client.begin(&format!("acquire a {} 5000 60000", world.name));
    until("it waits again", || world.proxy.seen(CLAIM).len() >= 3);
    has_one_id(world);
    // A claim that comes later is behind it.
    let later = new_id();
    let (status, body) = world
        .ask(&format!("PUT /v1/claims/{later}"), &format!("{{\"name\":\"{}\",\"poll_ms\":0}}", world.name));
    assert_eq!(status, 202, "{body}");
    world.release(&rival);
    let said = world.client.answer("a");
    let token = granted(&said).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(world.token(), Some(token));
    assert!(world.is_held());
    world.release(&later);
    Ok(())
}

fn a_wait_that_is_over_leaves_nothing(world: &mut World) -> Result<(), Inconclusive> {
    let rival = world.rival().expect("it is free");
    let said = world.client.ask(&format!("acquire a {} 30000 300", world.name));
    assert_eq!(said, "failed timeout");
    until("it is withdrawn", || !world.proxy.seen(RELEASE).is_empty());
    world.release(&rival);
    until("nobody has it", || world.token().is_none());
    is_free(world);
    Ok(())
}

fn a_try_does_not_wait(world: &mut World) -> Result<(), Inconclusive> {
    let rival = world.rival().expect("it is free");
    assert_eq!(world.client.ask(&format!("try a {} 5000", world.name)), "busy");
    world.release(&rival);
    is_free(world);
    world.proxy.next(CLAIM, 1, Act::LoseAnswer);
    let said = world.client.ask(&format!("try a {} 5000", world.name));
    assert_eq!(granted(&said), world.token(), "{said}");
    Ok(())
}

/// Until the store would end it at the earliest; from then on the client may not believe in it.
fn is_lost_by(world: &mut World, end: Instant) {
    loop {
        let asked = Instant::now();
        let is_held = world.is_held();
        assert!(!is_held || asked < end, "it believes {:?} longer than the store holds it", asked - end);
        if !is_held {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has it send something once, since the first request of a program may take long.
fn is_warm(world: &mut World) {
    let said = world.client.ask(&format!("try w {}/warm 30000", world.name));
    assert!(granted(&said).is_some(), "{said}");
    assert_eq!(world.client.ask("release w"), "released yes");
}

fn a_deadline_counts_from_sending_the_claim(world: &mut World) -> Result<(), Inconclusive> {
    is_warm(world);
    let before = world.proxy.seen(CLAIM).len();
    // The store holds it for 9 s from here; the answer comes later.
    world.proxy.next(CLAIM, 1, Act::DelayAnswer(Duration::from_secs(2)));
    world.proxy.next(RENEWAL, usize::MAX, Act::Silence);
    let said = world.client.ask(&format!("acquire a {} 9000 7000", world.name));
    if granted(&said).is_none() {
        return Err(Inconclusive(format!("it was not granted: {said}")));
    }
    let claims = world.proxy.seen(CLAIM);
    if claims.len() > before + 1 {
        return Err(Inconclusive("it was sent again".to_owned()));
    }
    is_lost_by(world, claims[before].at + Duration::from_secs(9));
    world.client.told("a");
    Ok(())
}

fn a_deadline_counts_from_sending_the_renewal(world: &mut World) -> Result<(), Inconclusive> {
    is_warm(world);
    // Before anything is sent, so that the first renewal is the last one that the server hears of.
    world.proxy.next(RENEWAL, 1, Act::DelayAnswer(Duration::from_millis(1_200)));
    world.proxy.next(RENEWAL, usize::MAX, Act::Silence);
    world.acquire(9_000, 10_000);
    until("a renewal", || !world.proxy.seen(RENEWAL).is_empty());
    let sent = world.proxy.seen(RENEWAL)[0].at;
    is_lost_by(world, sent + Duration::from_secs(9));
    Ok(())
}

fn an_answer_after_the_ttl_is_no_grant(world: &mut World) -> Result<(), Inconclusive> {
    world.proxy.next(CLAIM, 1, Act::DelayAnswer(Duration::from_millis(1_500)));
    world.client.begin(&format!("acquire a {} 1000 20000", world.name));
    // Another has it when the answer comes.
    until("the claim is sent", || !world.proxy.seen(CLAIM).is_empty());
    let mut rival = None;
    until("its hold has ended", || {
        rival = world.rival();
        rival.is_some()
    });
    if let Some(said) = world.client.answer_within("a", Duration::from_millis(1_500)) {
        assert!(granted(&said).is_none() || !world.is_held(), "both hold it: {said}");
    }
    world.release(&rival.expect("it was taken"));
    let said = world.client.answer("a");
    let token = granted(&said).unwrap_or_else(|| panic!("{said}"));
    until("it is held", || world.token() == Some(token) || !world.is_held());
    Ok(())
}

fn silence_ends_a_lease_before_the_store_does(world: &mut World) -> Result<(), Inconclusive> {
    world.acquire(2_000, 10_000);
    until("a renewal", || !world.proxy.seen(RENEWAL).is_empty());
    world.proxy.next("*", usize::MAX, Act::Silence);
    // Some renewal was the last one that the server heard of.
    let last = Instant::now();
    is_lost_by(world, last + Duration::from_millis(2_000));
    world.client.told("a");
    assert!(!world.is_held());
    world.proxy.heal();
    assert!(!world.is_held(), "what was lost stays lost");
    Ok(())
}

fn a_410_ends_a_lease(world: &mut World) -> Result<(), Inconclusive> {
    let token = world.acquire(3_000, 10_000);
    let body = format!("{{\"name\":\"{}\",\"token\":{token},\"now\":true}}", world.name);
    let (status, answer) = world.ask("POST /v1/resource/break", &body);
    assert_eq!(status, 200, "{answer}");
    world.client.told("a");
    assert!(!world.is_held());
    Ok(())
}

fn a_restart_of_the_server_loses_nothing(world: &mut World) -> Result<(), Inconclusive> {
    // So long that a server on a busy machine is back before it ends.
    let token = world.acquire(15_000, 10_000);
    world.restart();
    let before = world.proxy.seen(RENEWAL).len();
    until("renewals", || world.proxy.seen(RENEWAL).len() >= before + 2);
    is_held_once(world, token);
    assert_eq!(world.client.ask("release a"), "released yes");
    is_free(world);
    Ok(())
}

fn failed_renewals_are_repeated(world: &mut World) -> Result<(), Inconclusive> {
    let token = world.acquire(6_000, 10_000);
    world.proxy.next(RENEWAL, 1, Act::LoseRequest);
    world.proxy.next(RENEWAL, 1, Act::LoseAnswer);
    world.proxy.next(RENEWAL, 1, Act::CutAnswer);
    until("renewals", || world.proxy.seen(RENEWAL).len() >= 5);
    let last = Instant::now();
    until("longer than a ttl", || last.elapsed() > Duration::from_secs(7));
    is_held_once(world, token);
    Ok(())
}

fn doubled_requests_do_nothing_twice(world: &mut World) -> Result<(), Inconclusive> {
    world.proxy.next("*", usize::MAX, Act::Double);
    let token = world.acquire(3_000, 20_000);
    is_held_once(world, token);
    until("renewals", || world.proxy.seen(RENEWAL).len() >= 4);
    is_held_once(world, token);
    assert!(world.client.ask("release a").starts_with("released"));
    is_free(world);
    Ok(())
}

fn a_late_copy_of_a_claim_takes_nothing(world: &mut World) -> Result<(), Inconclusive> {
    let period = Duration::from_millis(1_500);
    world.proxy.next(CLAIM, 1, Act::CopyLater(period));
    world.acquire(30_000, 10_000);
    let sent = world.proxy.seen(CLAIM)[0].at;
    assert_eq!(world.client.ask("release a"), "released yes");
    if sent.elapsed() > period {
        return Err(Inconclusive("the copy came before the release".to_owned()));
    }
    until("the copy has come", || sent.elapsed() > period + Duration::from_millis(500));
    is_free(world);
    Ok(())
}

fn a_client_that_was_paused_knows_that_it_lost(world: &mut World) -> Result<(), Inconclusive> {
    world.acquire(2_000, 10_000);
    let pid = world.client.pid();
    tenure_testkit::signal(pid, Signal::STOP);
    let mut rival = None;
    until("its hold has ended", || {
        rival = world.rival();
        rival.is_some()
    });
    // It finds these when it goes on. Its clock is all that can tell it.
    world.proxy.next(RENEWAL, usize::MAX, Act::Silence);
    (0..20).for_each(|_| world.client.begin("check a"));
    tenure_testkit::signal(pid, Signal::CONT);
    for _ in 0..20 {
        assert_eq!(world.client.answer("a"), "lost", "another has it");
    }
    world.client.told("a");
    world.release(&rival.expect("it was taken"));
    Ok(())
}

fn many_leases_are_renewed_together(world: &mut World) -> Result<(), Inconclusive> {
    let name = world.name.clone();
    for at in 0..100 {
        let said = world.client.ask(&format!("acquire k{at} {name}/{at} 6000 10000"));
        assert!(granted(&said).is_some(), "{said}");
    }
    let began = Instant::now();
    let before = world.proxy.seen("POST *").len();
    until("longer than two ttls", || began.elapsed() > Duration::from_secs(13));
    let count = world.proxy.seen("POST *").len() - before;
    for at in 0..100 {
        assert_eq!(world.client.ask(&format!("check k{at}")), "held");
    }
    // One by one these are 650.
    assert!(count <= 200, "{count} requests renew 100 leases six times");
    Ok(())
}

fn a_client_that_closes_releases(world: &mut World) -> Result<(), Inconclusive> {
    world.acquire(30_000, 10_000);
    assert_eq!(world.client.ask("close c"), "closed");
    assert!(!world.is_held(), "others may have it");
    is_free(world);
    Ok(())
}

fn a_program_that_ends_releases(world: &mut World) -> Result<(), Inconclusive> {
    world.acquire(30_000, 10_000);
    world.client.begin("exit");
    world.client.ended();
    is_free(world);
    Ok(())
}

fn nobody_there_is_unavailable(world: &mut World) -> Result<(), Inconclusive> {
    world.stop();
    let said = world.client.ask(&format!("acquire a {} 5000 500", world.name));
    assert_eq!(said, "failed unavailable");
    Ok(())
}

fn a_push_whose_answer_is_lost_is_in_line_once(world: &mut World) -> Result<(), Inconclusive> {
    let name = world.name.clone();
    world.proxy.next("POST /v1/queue/push", 1, Act::LoseAnswer);
    assert_eq!(world.client.ask(&format!("push p {name} work")), "pushed");
    assert_eq!(world.client.ask(&format!("take t {name} 30000 10000")), "taken work");
    assert_eq!(world.client.ask("ack t"), "settled");
    assert_eq!(world.client.ask(&format!("take u {name} 30000 0")), "nothing");
    Ok(())
}

fn an_ack_whose_answer_is_lost_is_not_done_twice(world: &mut World) -> Result<(), Inconclusive> {
    let name = world.name.clone();
    assert_eq!(world.client.ask(&format!("push p {name} work")), "pushed");
    assert_eq!(world.client.ask(&format!("take t {name} 30000 10000")), "taken work");
    world.proxy.next("POST /v1/deliveries/*/ack", 1, Act::LoseAnswer);
    let said = world.client.ask("ack t");
    // Done, or nobody knows; it was not lost.
    assert!(said == "settled" || said == "failed unavailable", "{said}");
    let (status, body) = world.ask(&format!("GET /v1/queues?prefix={}", name.replace('/', "%2F")), "");
    assert_eq!((status, number(&body, "in_flight").unwrap_or(0)), (200, 0), "{body}");
    assert_eq!(world.client.ask(&format!("take u {name} 30000 0")), "nothing");
    Ok(())
}
