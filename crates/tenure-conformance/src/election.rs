//! One leader at a time, whom everybody sees.

use tenure_core::{ErrorKind, ReleaseAnswer, Settings, Tenure};

use crate::form::{Contest, Form};
use crate::mortal::Life;
use crate::stage::{SHORT, name, pause};
use crate::{Setup, cancellation, death, loss};

/// Only one candidate leads; the next leads when it resigns, with a larger token.
pub async fn one_leads_and_the_next_follows(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("leads");
    let (one, two) = (a.election(&name), b.election(&name));
    let term = setup.within("the first leads", one.campaign()).await.expect("the first leads");
    let tried = setup.within("an answer", two.try_campaign()).await.expect("an answer");
    assert!(tried.is_none(), "two lead");
    let token = term.token();
    let next = async {
        let next = setup.within("the next leads", two.campaign()).await.expect("the next leads");
        assert!(next.token() > token, "a later term has no larger token");
        next
    };
    let (answer, next) = futures_util::future::join(setup.within("an answer", term.resign()), next).await;
    assert_eq!(answer.expect("an answer"), ReleaseAnswer::Released);
    setup.within("an answer", next.resign()).await.expect("an answer");
}

/// Everybody sees who leads and what it has published; nobody, once it has resigned.
pub async fn everybody_sees_the_leader(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("seen");
    let (one, two) = (a.election(&name).label("first"), b.election(&name));
    assert_eq!(two.leader().await.expect("an answer"), None, "nobody leads yet");
    let term = setup.within("the first leads", one.campaign()).await.expect("the first leads");
    setup.within("an answer", term.publish(b"here")).await.expect("an answer");
    let leader = two.leader().await.expect("an answer").expect("a leader is seen");
    assert_eq!((leader.token, leader.label.text()), (term.token(), "first"), "another leader is seen");
    assert_eq!(leader.value.as_deref(), Some(&b"here"[..]), "its value is seen");
    setup.within("an answer", term.publish(b"there")).await.expect("an answer");
    let leader = two.leader().await.expect("an answer").expect("a leader is seen");
    assert_eq!(leader.value.as_deref(), Some(&b"there"[..]), "its later value is seen");
    setup.within("an answer", term.resign()).await.expect("an answer");
    assert_eq!(two.leader().await.expect("an answer"), None, "nobody leads any more");
}

/// Who follows the leaders sees the present one first, and never misses the latest.
pub async fn changes_end_with_the_latest(setup: &dyn Setup) {
    let (a, b) = (setup.client().await, setup.client().await);
    let name = name("followed");
    let (one, two) = (a.election(&name), b.election(&name));
    let mut leaders = two.changes().expect("a good name");
    let first = setup.within("a first state", leaders.next()).await;
    assert_eq!(first.expect("the client lives").expect("a state"), None, "nobody leads yet");
    for round in 0..5_u8 {
        let term = setup.within("it leads", one.campaign()).await.expect("it leads");
        setup.within("an answer", term.publish(&[round])).await.expect("an answer");
        if round < 4 {
            setup.within("an answer", term.resign()).await.expect("an answer");
            continue;
        }
        let latest = async {
            loop {
                let leader = leaders.next().await.expect("the client lives").expect("a state");
                let is_latest =
                    leader.is_some_and(|leader| leader.token == term.token() && leader.value.is_some());
                if is_latest {
                    return;
                }
            }
        };
        setup.within("the latest leader is seen", latest).await;
        setup.within("an answer", term.resign()).await.expect("an answer");
    }
    let gone = async { while leaders.next().await.expect("the client lives").expect("a state").is_some() {} };
    setup.within("the end of the last term is seen", gone).await;
}

/// A leader whose term is broken campaigns again, and does not publish under the old one.
pub async fn a_leader_that_loses_its_term_campaigns_again(setup: &dyn Setup) {
    let (a, operator) = (setup.client().await, setup.client().await);
    let name = name("again");
    let ttl = setup.ttl(SHORT).await;
    let election = a.election(&name).ttl(ttl);
    let mut terms = Vec::new();
    let work = async |term: &tenure_core::Term| {
        terms.push(term.token());
        if terms.len() == 1 {
            operator.break_hold(&name, term.token(), true).await.expect("an answer");
            let refused = term.publish(b"late").await.expect_err("its term is over");
            assert!(matches!(refused.kind(), ErrorKind::Lost), "{refused}");
            std::future::pending::<()>().await;
        }
    };
    setup.within("a second term", election.run(work)).await.expect("the second work ends");
    assert!(terms.len() == 2 && terms[0] < terms[1], "it led again under a larger token: {terms:?}");
}

/// A leader that is cut off from its engine, for longer than an answer may take, leads again when it is back.
pub async fn a_leader_that_is_cut_off_campaigns_again(setup: &dyn Setup) {
    let life = Life::of_thread();
    let settings = Settings::new().answer_timeout(SHORT / 2);
    let connected = Tenure::connect_with(life.connector(setup.connector()), settings);
    let client = setup.within("a client connects", connected).await.expect("a client connects");
    let (name, other) = (name("cut"), setup.client().await);
    let election = client.election(&name).ttl(setup.ttl(SHORT).await);
    let mut terms = Vec::new();
    let is_cut = std::cell::Cell::new(false);
    let work = async |term: &tenure_core::Term| {
        terms.push(term.token());
        if terms.len() == 1 {
            life.cut();
            is_cut.set(true);
            std::future::pending::<()>().await;
        }
    };
    let mends = async {
        // An answer from before the cut says nothing of its end.
        let has_ended =
            async || is_cut.get() && other.election(&name).leader().await.expect("an answer").is_none();
        setup.eventually("the term ends", has_ended).await;
        // By then a campaign has failed.
        pause(SHORT * 2).await;
        life.mend();
    };
    let led = async { election.run(work).await.expect("being cut off does not end it") };
    let led = futures_util::future::join(led, mends);
    setup.within("a second term", led).await;
    assert!(terms.len() == 2 && terms[0] < terms[1], "it led again under a larger token: {terms:?}");
}

/// A campaign that is dropped at any moment leaves nobody leading.
pub async fn a_campaign_dropped_at_any_moment_leaves_nothing(setup: &dyn Setup) {
    cancellation::drop_acquires(setup, Form::Term).await;
    cancellation::drop_waits(setup, Contest::ELECTION).await;
}

/// A term that is dropped on a thread without any runtime ends.
pub async fn a_term_dropped_outside_a_runtime_ends(setup: &dyn Setup) {
    cancellation::drop_outside_a_runtime(setup, Contest::ELECTION).await;
}

/// A term that an operator breaks is lost to the leader within its ttl.
pub async fn a_broken_term_is_lost_to_the_leader(setup: &dyn Setup) {
    loss::broken_is_lost(setup, Form::Term).await;
}

/// A leader that is killed is followed by the next candidate, at once where the engine notices deaths.
pub async fn a_killed_leader_is_followed(setup: &dyn Setup) {
    death::killed_holder(setup, Contest::ELECTION).await;
}

/// A candidate that is killed is not waited for.
pub async fn a_killed_candidate_is_skipped(setup: &dyn Setup) {
    death::killed_waiter(setup, Contest::ELECTION).await;
}
