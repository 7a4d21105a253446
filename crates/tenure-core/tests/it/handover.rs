//! The project's hand-over rule, checked over every order of events.
//!
//! A waiter that is woken may give the lease to its user before it has confirmed the grant. The rule says when;
//! each field of [`Rule`] is one of its conditions. This model visits every state that one mutex can reach,
//! shows that under the full rule no client believes in a hold that the engine does not have, and finds a
//! counter-example for each weaker form.
//!
//! Modelled: an engine that settles late or at once; one client whose messages are delayed, reordered, lost and
//! sent again, and which may pause between any two steps (time passes, it does nothing); everybody else
//! ([`Holder::Another`]), who take, free and hand on the mutex at will; a store that restarts and forgets
//! everything, tokens included; a replica that lags. Not modelled: clocks of unequal rate (the margin covers
//! them), rests, `Break`, and an engine that cuts the window short.
//!
//! Time has no end here, nor have tokens and claims. Ages are relative to now and stop where they stop
//! mattering, tokens are ranks (only their order counts), claims are numbered anew once nothing names an old
//! one. So the space is finite; what bounds it is the number of messages under way, of claims named at once
//! and of restarts ([`Bounds`]). A lost message is one that is never delivered; it goes when its room is needed.
//! Rejected: a bound on time (five ticks: more states, fewer orders of events).

mod client;
mod engine;
mod state;

use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure_core::testing::random::more;

use client::{Client, Phase};
use engine::Message::{self, Claim, Release, Renew, Waiting};
use engine::{Engine, Holder};
use state::State;

/// How long a confirmed hold lives: longer than the window, so that one taken for the other shows.
const TTL: u8 = 3;
/// How long a grant to a waiter lives unconfirmed: two ticks, so that there is an instant inside it.
const WINDOW: u8 = 2;
/// How long a waiter lives without a heartbeat: longer than the window, as in the engines.
const WAITER_TTL: u8 = 3;

/// For the full rule.
const STEADY: Bounds = Bounds { in_flight_max: 3, claims_max: 3, restarts_max: 0 };
/// The same where more is tried than in the ordinary suite: 1.7 million states, 30 s of CPU.
const STEADY_AND_MORE: Bounds = Bounds { in_flight_max: 5, ..STEADY };
/// For the weaker forms: three messages at once are enough for each counter-example.
const SMALL: Bounds = Bounds { in_flight_max: 3, claims_max: 2, restarts_max: 0 };
/// A restart makes the space twenty times as large.
const RESTARTING: Bounds = Bounds { in_flight_max: 2, restarts_max: 1, ..SMALL };
/// The same where more is tried: 1.1 million states, 15 s of CPU; a fourth message, twelve times as long.
const RESTARTING_AND_MORE: Bounds = Bounds { in_flight_max: 3, ..RESTARTING };

const HELD: &str = "a client that believes it holds is held by the engine";
const NO_ZOMBIE: &str = "no claim is granted after its own release";

const FULL: Rule = Rule {
    first_copy: true,
    token_check: true,
    new_id_after_lost: true,
    remembers_finished: true,
    same_incarnation: true,
    linearizable_answers: true,
};

/// The conditions of the hand-over rule. `false` is the weaker form, in brackets.
#[derive(Clone, Copy, Debug)]
struct Rule {
    /// With no request answered, `t0` is the send time of the first copy of the claim (or: of the last).
    first_copy: bool,
    /// The token of the wake must be above the horizon of the answer that gave `t0`.
    token_check: bool,
    /// After `Lost`, the client claims with a new id (or: with the same one).
    new_id_after_lost: bool,
    /// The engine refuses claims that have ended (or: it takes them for new ones).
    remembers_finished: bool,
    /// The wake and the answer that gave `t0` must come from the same incarnation of the store.
    same_incarnation: bool,
    /// Every answer comes from the engine itself (or: heartbeats are also answered by a lagging replica).
    linearizable_answers: bool,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The client sends nothing while so many messages are under way.
    in_flight_max: usize,
    /// Claims named at once: the client's present one, and earlier ones that something still refers to.
    claims_max: u8,
    /// One at most, since tokens are told apart only as old and new.
    restarts_max: u8,
}

struct HandOver {
    rule: Rule,
    bounds: Bounds,
}

/// What may happen next; in a printed path, claims and tokens are ranks, made anew after each action.
#[derive(Clone, Debug, PartialEq)]
enum Action {
    Tick,
    Settle,
    AnotherTakes,
    AnotherFrees,
    AnotherHandsOn,
    Restart,
    SendClaim,
    SendRenew,
    SendRelease,
    Deliver(Message),
    DeliverToReplica(Message),
    Lose(Message),
}

impl Model for HandOver {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = Client { claim: 0, phase: Phase::Idle, past_hold: 0 };
        vec![State { engine: Engine::new(Holder::Another), client, network: vec![] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        use Action::*;
        if !state.belief_is_true() || state.is_held_after_release() {
            return; // A promise is broken: what follows tells nothing more.
        }
        actions.extend([Tick, Settle]);
        match state.engine.holder {
            Holder::Another => actions.extend([AnotherFrees, AnotherHandsOn]),
            _ => actions.push(AnotherTakes),
        }
        let phase = state.client.phase;
        if state.engine.incarnation < self.bounds.restarts_max && phase != Phase::Released {
            actions.push(Restart);
        }
        let is_full = state.network.len() >= self.bounds.in_flight_max;
        match phase {
            _ if is_full => {}
            Phase::Idle => actions.push(SendClaim),
            Phase::Unanswered { .. } => actions.extend([SendClaim, SendRelease]),
            Phase::Answered { .. } => actions.extend([SendClaim, SendRenew, SendRelease]),
            Phase::Holding { .. } => actions.extend([SendRenew, SendRelease]),
            Phase::Released => {}
        }
        for (at, message) in state.network.iter().enumerate() {
            if at > 0 && *message == state.network[at - 1] {
                continue;
            }
            actions.push(Deliver(message.clone()));
            if let (Renew { claim, .. }, Some((lagging, _))) = (message, state.engine.lagging)
                && *claim == lagging
            {
                actions.push(DeliverToReplica(message.clone()));
            }
            if is_full && phase != Phase::Released {
                actions.push(Lose(message.clone()));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let State { engine, client, network } = &mut state;
        match action {
            Action::Tick => {
                state.tick();
                if state.client.phase == (Phase::Holding { ends_in: 0 }) {
                    return None; // The deadline ends the lease. There is nothing left to be wrong about.
                }
            }
            Action::Settle => engine.settle(&self.rule, network),
            Action::AnotherTakes => {
                engine.settle(&self.rule, network);
                if engine.holder != Holder::Nobody {
                    return None;
                }
                engine.holder = Holder::Another;
                engine.last_token += 1;
            }
            Action::AnotherFrees => {
                engine.holder = Holder::Nobody;
                engine.settle(&self.rule, network);
            }
            Action::AnotherHandsOn => engine.last_token += 1,
            Action::Restart => state.restart(),
            Action::SendClaim => {
                network.push(Claim { claim: client.claim, age: 0 });
                match client.phase {
                    Phase::Unanswered { .. } if self.rule.first_copy => {}
                    Phase::Answered { .. } => {}
                    _ => client.phase = Phase::Unanswered { age: 0 },
                }
            }
            Action::SendRenew => network.push(Renew { claim: client.claim, age: 0 }),
            Action::SendRelease => {
                network.push(Release { claim: client.claim });
                client.phase = Phase::Released;
            }
            Action::Deliver(message) => {
                network.remove(network.iter().position(|m| *m == message)?);
                if message.is_request() {
                    engine.answer(&message, &self.rule, network);
                } else {
                    client.receive(&message, self);
                }
            }
            Action::DeliverToReplica(message) => {
                network.remove(network.iter().position(|m| *m == message)?);
                let (Renew { claim, age }, Some((_, horizon))) = (message, engine.lagging) else {
                    return None;
                };
                network.push(Waiting { claim, age, horizon, incarnation: engine.incarnation });
            }
            Action::Lose(message) => {
                network.remove(network.iter().position(|m| *m == message)?);
            }
        }
        state.normalise();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(HELD, |_: &Self, state: &State| state.belief_is_true()),
            Property::always(NO_ZOMBIE, |_: &Self, state: &State| !state.is_held_after_release()),
            Property::sometimes("a wake is used with no request answered", |model: &Self, state: &State| {
                matches!(state.client.phase, Phase::Unanswered { .. }) && model.a_wake_may_be_used(state)
            }),
            Property::sometimes("a wake is used after an answer", |model: &Self, state: &State| {
                matches!(state.client.phase, Phase::Answered { .. }) && model.a_wake_may_be_used(state)
            }),
        ]
    }
}

impl HandOver {
    fn a_wake_may_be_used(&self, state: &State) -> bool {
        state.network.iter().any(|message| state.client.may_use(message, &self.rule))
    }
}

/// Visits every state unless one of the promises is broken before.
fn check(rule: Rule, bounds: Bounds, promises: &[&'static str]) -> impl Checker<HandOver> {
    let until = HasDiscoveries::AnyOf(promises.iter().copied().collect());
    let checker = HandOver { rule, bounds }.checker().threads(2).finish_when(until).spawn_bfs().join();
    println!("{} states, depth {}: {rule:?}, {bounds:?}", checker.unique_state_count(), checker.max_depth());
    checker
}

/// Expects that both promises are kept and that wakes are used, in at least so many states.
fn assert_holds(rule: Rule, bounds: Bounds, states_min: usize) {
    let checker = check(rule, bounds, &[HELD, NO_ZOMBIE]);
    checker.assert_properties();
    let states = checker.unique_state_count();
    assert!(states >= states_min, "only {states} states: the model does less than it should");
}

/// Expects a way to break the promise, and prints it.
fn assert_breaks(rule: Rule, bounds: Bounds, promise: &'static str) {
    let path = check(rule, bounds, &[promise]).assert_any_discovery(promise);
    println!("not so: {promise}");
    path.into_actions().iter().for_each(|action| println!("    {action:?}"));
}

#[test]
fn under_the_full_rule_a_client_that_believes_it_holds_is_held() {
    let (bounds, states_min) = more((STEADY, 50_000), (STEADY_AND_MORE, 1_500_000));
    assert_holds(FULL, bounds, states_min);
}

#[test]
fn under_the_full_rule_no_belief_outlives_a_hold_that_a_restart_forgot() {
    let (bounds, states_min) = more((RESTARTING, 90_000), (RESTARTING_AND_MORE, 1_000_000));
    assert_holds(FULL, bounds, states_min);
}

#[test]
fn counting_from_the_last_copy_of_the_claim_lets_belief_outlive_the_hold() {
    assert_breaks(Rule { first_copy: false, ..FULL }, SMALL, HELD);
}

/// An engine that remembers every claim that has ended grants each claim once, so that it has one wake and the
/// token adds nothing. But it remembers for a limited time, and then only the token tells two wakes apart.
#[test]
fn without_the_token_check_the_wake_of_an_earlier_grant_is_taken_for_the_present_one() {
    let forgets = Rule { remembers_finished: false, ..FULL };
    let (bounds, states_min) = more((Bounds { in_flight_max: 2, ..SMALL }, 5_000), (SMALL, 40_000));
    assert_holds(Rule { token_check: false, ..FULL }, bounds, states_min);
    check(forgets, bounds, &[HELD]).assert_no_discovery(HELD);
    assert_breaks(Rule { token_check: false, ..forgets }, SMALL, HELD);
}

#[test]
fn claiming_with_the_same_id_after_lost_revives_the_wake_of_the_lost_claim() {
    assert_breaks(Rule { new_id_after_lost: false, ..FULL }, SMALL, HELD);
}

#[test]
fn an_engine_that_forgets_finished_claims_grants_one_after_its_own_release() {
    assert_breaks(Rule { remembers_finished: false, ..FULL }, SMALL, NO_ZOMBIE);
}

#[test]
fn a_wake_from_another_incarnation_than_the_answer_lets_belief_outlive_the_hold() {
    assert_breaks(Rule { same_incarnation: false, ..FULL }, RESTARTING_AND_MORE, HELD);
}

#[test]
fn an_answer_from_a_lagging_replica_lets_belief_outlive_the_hold() {
    assert_breaks(Rule { linearizable_answers: false, ..FULL }, SMALL, HELD);
}
