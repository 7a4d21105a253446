//! A client that has used a name alone claims it by its mark, without reading the line. Whoever comes in between ends that, and nothing that
//! the line would have said is missed.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::engine::{ClaimAnswer, Engine, ReleaseRequest};
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Label, Name, Terms};
use tenure_core::model::step::Release;
use tenure_core::model::token::Token;
use tenure_etcd::{Config, Etcd, connect};
use tenure_ordered::Ordered;
use tenure_testkit::etcd::{EtcdOptions, EtcdServer};
use tenure_testkit::{etcd, wait_for};

use crate::crew::{connect as connect_client, keys};

const TTL: Duration = Duration::from_secs(20);

/// A client's engine without the client: it sends what it is told to.
struct Bare {
    engine: Ordered<Etcd>,
    client: ClientId,
    claims: u128,
}

impl Bare {
    async fn connect(url: &str, client: u64) -> Bare {
        let config = Config::parse(url).expect("the kit's URLs are right");
        let client = ClientId::new(client);
        let engine = connect(config, client).await.expect("it answers");
        // Of each test and each client its own.
        let claims = u128::from(std::process::id()) << 64 | u128::from(client.bits()) << 32;
        Bare { engine, client, claims }
    }

    fn claim(&mut self, name: &str, terms: &Terms) -> Claim {
        self.claims += 1;
        Claim {
            resource: Name::new(name).expect("a name"),
            id: ClaimId::new(self.claims),
            client: self.client,
            terms: Arc::new(terms.clone()),
            wait: true,
            floor: Token::ZERO,
            floor_forced: false,
            may_be_known: false,
        }
    }

    async fn send(&self, claim: &Claim) -> ClaimAnswer {
        let mut answers = self.engine.claim(vec![claim.clone()]).await;
        answers.pop().expect("an answer").expect("it is answered")
    }

    async fn release(&self, claim: &Claim, maybe_in_flight: bool) {
        let release = Release { claim: claim.id, maybe_in_flight, is_unused: false };
        let request = ReleaseRequest { resource: claim.resource.clone(), release };
        self.engine.release(vec![request]).await.pop().expect("an answer").expect("it is answered");
    }

    /// Takes a name and lets it go until the next claim goes by its mark.
    async fn use_alone(&mut self, name: &str) {
        for _ in 0..3 {
            let claim = self.claim(name, &terms());
            assert!(matches!(self.send(&claim).await, ClaimAnswer::Granted(_)));
            self.release(&claim, false).await;
        }
    }
}

fn terms() -> Terms {
    Terms { ttl: TTL, ..Terms::of_mutex(Label::new("host", 1, "test", "")) }
}

fn waits(answer: &ClaimAnswer) -> bool {
    matches!(answer, ClaimAnswer::Waiting(..))
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// A name that no other test of the run has.
fn fresh(name: &str) -> String {
    format!("marks/{}/{name}", std::process::id())
}

#[test]
fn whoever_enters_is_seen_by_the_client_that_was_alone() {
    run(async {
        let (url, name) = (etcd::shared(), fresh("seen"));
        let (mut one, mut other) = (Bare::connect(&url, 1).await, Bare::connect(&url, 2).await);
        for round in 0..3 {
            one.use_alone(&name).await;
            let held = other.claim(&name, &terms());
            assert!(matches!(other.send(&held).await, ClaimAnswer::Granted(_)), "round {round}");
            let second = one.claim(&name, &terms());
            assert!(waits(&one.send(&second).await), "two hold in round {round}");
            one.release(&second, false).await;
            // The same if it does not wait, and after it was seen once.
            let tried = Claim { wait: false, ..one.claim(&name, &terms()) };
            assert!(matches!(one.send(&tried).await, ClaimAnswer::Busy(_)), "two hold in round {round}");
            other.release(&held, false).await;
        }
    });
}

/// A mark takes the place of another client's mark, whose client must not take it for its own.
#[test]
fn a_mark_is_of_no_use_to_another_client() {
    run(async {
        let (url, name) = (etcd::shared(), fresh("another"));
        let (mut one, mut other) = (Bare::connect(&url, 3).await, Bare::connect(&url, 4).await);
        one.use_alone(&name).await;
        other.use_alone(&name).await;
        let held = other.claim(&name, &terms());
        assert!(matches!(other.send(&held).await, ClaimAnswer::Granted(_)));
        let second = one.claim(&name, &terms());
        assert!(waits(&one.send(&second).await), "two hold");
        one.release(&second, false).await;
        other.release(&held, false).await;
    });
}

#[test]
fn a_client_does_not_overtake_itself() {
    run(async {
        let (url, name) = (etcd::shared(), fresh("itself"));
        let mut one = Bare::connect(&url, 5).await;
        one.use_alone(&name).await;
        let held = one.claim(&name, &terms());
        assert!(matches!(one.send(&held).await, ClaimAnswer::Granted(_)));
        let second = one.claim(&name, &terms());
        assert!(waits(&one.send(&second).await), "two hold");
        one.release(&second, false).await;
        one.release(&held, false).await;
    });
}

#[test]
fn a_client_that_was_never_alone_reads_the_line() {
    run(async {
        let (url, name) = (etcd::shared(), fresh("company"));
        let (mut one, mut other) = (Bare::connect(&url, 6).await, Bare::connect(&url, 7).await);
        let held = other.claim(&name, &terms());
        assert!(matches!(other.send(&held).await, ClaimAnswer::Granted(_)));
        for round in 0..4 {
            let claim = one.claim(&name, &terms());
            assert!(waits(&one.send(&claim).await), "two hold in round {round}");
            one.release(&claim, false).await;
        }
        other.release(&held, false).await;
    });
}

#[test]
fn what_rests_after_a_hold_is_not_missed() {
    run(async {
        let (url, name) = (etcd::shared(), fresh("rests"));
        let mut one = Bare::connect(&url, 8).await;
        one.use_alone(&name).await;
        let mut resting = terms();
        resting.limits.min_hold = TTL;
        let claim = one.claim(&name, &resting);
        assert!(matches!(one.send(&claim).await, ClaimAnswer::Granted(_)));
        one.release(&claim, false).await;
        let next = one.claim(&name, &terms());
        assert!(waits(&one.send(&next).await), "it rests");
        one.release(&next, false).await;
    });
}

/// It was given up by a call that came first.
#[test]
fn a_claim_that_was_given_up_is_not_let_in_by_a_mark() {
    run(async {
        let (url, name) = (etcd::shared(), fresh("given-up"));
        let (mut one, other) = (Bare::connect(&url, 9).await, Bare::connect(&url, 10).await);
        one.use_alone(&name).await;
        let late = one.claim(&name, &terms());
        other.release(&late, true).await;
        assert!(matches!(one.send(&late).await, ClaimAnswer::Finished), "it was given up");
    });
}

#[test]
fn an_operator_who_breaks_a_hold_at_once_ends_what_was_known() {
    run(async {
        let (url, name) = (etcd::shared(), fresh("broken"));
        let (mut one, mut other) = (Bare::connect(&url, 11).await, Bare::connect(&url, 12).await);
        one.use_alone(&name).await;
        let held = one.claim(&name, &terms());
        let ClaimAnswer::Granted(grant) = one.send(&held).await else { panic!("it is free") };
        other.engine.break_hold(held.resource.clone(), grant.token, true).await.expect("an answer");
        let next = other.claim(&name, &terms());
        assert!(matches!(other.send(&next).await, ClaimAnswer::Granted(_)), "it is free");
        one.release(&held, false).await;
        let second = one.claim(&name, &terms());
        assert!(waits(&one.send(&second).await), "two hold");
        one.release(&second, false).await;
        other.release(&next, false).await;
    });
}

/// What a client keeps in the store for names that it does not use any more has a limit, and ends with the client.
#[test]
fn marks_have_a_limit_and_end_with_their_client() {
    const NAMES: usize = 1500;
    let server = EtcdServer::start(&EtcdOptions::default());
    let client = connect_client(&server.url());
    let ttl = Duration::from_secs(3);
    let marks = || keys(&server, "tenure/alone/").len();
    for _ in 0..3 {
        let names: Vec<String> = (0..NAMES).map(|at| format!("m{at}")).collect();
        let mutexes: Vec<_> = names.iter().map(|name| client.mutex(name).ttl(ttl)).collect();
        for batch in mutexes.chunks(100) {
            let taken = futures_util::future::join_all(batch.iter().map(|mutex| async move {
                for _ in 0..2 {
                    mutex.acquire().await?.release().await?;
                }
                Ok::<(), tenure_core::Error>(())
            }));
            pollster::block_on(taken).into_iter().for_each(|taken| taken.expect("it is free"));
        }
    }
    wait_for("the forgotten marks to go", || (marks() <= 1024).then_some(()));
    assert!(marks() > 0, "there are marks");
    pollster::block_on(client.close());
    wait_for("all marks to go", || (marks() == 0).then_some(()));
}
