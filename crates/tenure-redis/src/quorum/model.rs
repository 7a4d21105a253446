//! The tokens of a quorum, over every order of events.
//!
//! Modelled: nodes with a counter and one key each; clients that claim, stamp, hold, release and crash, and decide by [`Tally`]; requests and
//! replies that are lost; keys that end in time (nobody relies on them any more) or early (a node's clock jumps); nodes that forget
//! everything, with and without quarantine. Each message is carried out by its node at a step of its own, so all interleavings of
//! messages are there. Proposals are left out: counters alone are the worst case. Not modelled: a request that arrives after its claim was given
//! up (it only raises counters, and its key ends by itself).
//!
//! A run begins with uneven counters, as claims that failed leave them. The number of faults in a run is bounded ([`Protocol::faults`]), so the space is
//! finite. For each weaker form a test expects the counter-example.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::{Next, Stamped, Tally, Vote, majority};

const DIFFERENT: &str = "tokens of two winners differ";
const LATER_LARGER: &str = "who begins after a winner has returned gets a larger token";
const EXCLUSIVE: &str = "one holds at a time";

/// How a token is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As [`Tally`] does it.
    Strict,
    /// A node acknowledges a stamp even if its counter is above the token.
    Held,
    /// A node takes a stamp even if the key is not the claim's any more.
    Anywhere,
    /// The largest grant is the token, and nothing is written back.
    Plain,
}

/// What becomes of a node that forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amnesia {
    Never,
    /// It counts at once, with a counter of nothing.
    Bare,
    /// It counts once all claims of that time are over, and with what a majority of the others knows.
    Quarantined,
}

#[derive(Clone, Copy, Debug)]
struct Protocol {
    form: Form,
    nodes: usize,
    clients: usize,
    /// How many claims each client makes.
    claims: u8,
    /// How many messages are lost, clients crash, keys end early and nodes forget, in all.
    faults: u8,
    ends_early: bool,
    amnesia: Amnesia,
    loses: bool,
}

const STRICT: Protocol = Protocol {
    form: Form::Strict,
    nodes: 3,
    clients: 2,
    claims: 1,
    faults: 2,
    ends_early: false,
    amnesia: Amnesia::Never,
    loses: true,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    /// What winners were given, in the order in which they returned.
    wins: Vec<Win>,
    next_claim: u8,
    faults: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    counter: u64,
    key: Option<u8>,
    /// It must not count until these claims are over.
    quarantine: Option<BTreeSet<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Win {
    token: u64,
    /// How many had returned when it began.
    began_after: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    Idle {
        claims: u8,
    },
    Claiming {
        claims: u8,
        claim: u8,
        began_after: usize,
        to_ask: BTreeSet<usize>,
        to_stamp: BTreeSet<(usize, u64)>,
        tally: Tally,
    },
    Holding {
        claims: u8,
        claim: u8,
    },
    Releasing {
        claims: u8,
        claim: u8,
        left: BTreeSet<usize>,
    },
}

impl Client {
    fn claim(&self) -> Option<u8> {
        match self {
            Client::Idle { .. } => None,
            Client::Claiming { claim, .. }
            | Client::Holding { claim, .. }
            | Client::Releasing { claim, .. } => Some(*claim),
        }
    }

    /// Whether it may still rely on its keys.
    fn relies_on(&self, key: u8) -> bool {
        matches!(self, Client::Claiming { claim, .. } | Client::Holding { claim, .. } if *claim == key)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Begin(usize),
    Ask(usize, usize, Fate),
    Stamp(usize, usize, u64, Fate),
    Release(usize, usize, Fate),
    LetGo(usize),
    Crash(usize),
    End(usize),
    Forget(usize),
    Recover(usize),
}

impl Protocol {
    fn ask(&self, state: &mut State, client: usize, node: usize, fate: Fate) {
        let Client::Claiming { claim, to_ask, tally, .. } = &mut state.clients[client] else { return };
        to_ask.remove(&node);
        let at = &mut state.nodes[node];
        let mut vote = Vote::Silent;
        if fate != Fate::RequestLost {
            vote = Vote::Refused;
            if at.quarantine.is_none() && at.key.is_none() {
                at.key = Some(*claim);
                at.counter += 1;
                vote = Vote::Granted(at.counter);
            }
        }
        let vote = if fate == Fate::Answered { vote } else { Vote::Silent };
        let next = tally.vote(node, vote);
        self.go_on(state, client, next);
    }

    fn stamp(&self, state: &mut State, client: usize, node: usize, token: u64, fate: Fate) {
        let Client::Claiming { claim, to_stamp, tally, .. } = &mut state.clients[client] else { return };
        to_stamp.remove(&(node, token));
        let at = &mut state.nodes[node];
        let mut stamped = Stamped::No;
        let is_its = at.key == Some(*claim) || self.form == Form::Anywhere;
        if fate != Fate::RequestLost && at.quarantine.is_none() && is_its {
            stamped = if at.counter > token && self.form == Form::Strict {
                Stamped::Above(at.counter)
            } else {
                at.counter = at.counter.max(token);
                Stamped::Yes
            };
        }
        let stamped = if fate == Fate::Answered { stamped } else { Stamped::No };
        let next = tally.stamped(node, token, stamped);
        self.go_on(state, client, next);
    }

    fn go_on(&self, state: &mut State, client: usize, next: Next) {
        let all: BTreeSet<usize> = (0..self.nodes).collect();
        let Client::Claiming { claims, claim, began_after, to_stamp, tally, .. } = &mut state.clients[client]
        else {
            return;
        };
        let (claims, claim, began_after) = (*claims, *claim, *began_after);
        match next {
            Next::Wait => {}
            Next::Stamp(token, _) if self.form == Form::Plain => {
                self.win(state, client, (claims, claim), began_after, token)
            }
            // An earlier stamp may still be under way: its answer is no use any more.
            Next::Stamp(token, nodes) if self.form == Form::Anywhere => {
                let behind =
                    (0..self.nodes).filter(|node| !tally.granted().any(|granted| granted == (*node, token)));
                *to_stamp = behind.map(|node| (node, token)).collect();
                drop(nodes);
            }
            Next::Stamp(token, nodes) => *to_stamp = nodes.into_iter().map(|node| (node, token)).collect(),
            Next::Won(token) => self.win(state, client, (claims, claim), began_after, token),
            Next::Lost => state.clients[client] = Client::Releasing { claims, claim, left: all },
        }
    }

    fn win(
        &self,
        state: &mut State,
        client: usize,
        (claims, claim): (u8, u8),
        began_after: usize,
        token: u64,
    ) {
        state.wins.push(Win { token, began_after });
        state.clients[client] = Client::Holding { claims, claim };
    }

    fn release(&self, state: &mut State, client: usize, node: usize, fate: Fate) {
        let Client::Releasing { claims, claim, left } = &mut state.clients[client] else { return };
        left.remove(&node);
        if fate != Fate::RequestLost && state.nodes[node].key == Some(*claim) {
            state.nodes[node].key = None;
        }
        if left.is_empty() {
            let claims = *claims;
            state.clients[client] = Client::Idle { claims };
        }
        over(state);
    }

    fn forget(&self, state: &mut State, node: usize) {
        let living: BTreeSet<u8> = state.clients.iter().filter_map(Client::claim).collect();
        let quarantine = (self.amnesia == Amnesia::Quarantined).then_some(living);
        state.nodes[node] = Node { counter: 0, key: None, quarantine };
    }

    /// Returns what a node learns, if it may count again.
    fn learns(&self, state: &State, node: usize) -> Option<u64> {
        if !state.nodes[node].quarantine.as_ref()?.is_empty() {
            return None;
        }
        let others =
            (0..self.nodes).filter(|other| *other != node && state.nodes[*other].quarantine.is_none());
        let mut counters: Vec<u64> = others.map(|other| state.nodes[other].counter).collect();
        // The least that a majority of them can know.
        counters.sort_unstable();
        counters.get(majority(self.nodes) - 1).copied()
    }

    fn fates(&self, state: &State) -> &'static [Fate] {
        if self.loses && state.faults > 0 {
            &[Fate::Answered, Fate::RequestLost, Fate::ReplyLost]
        } else {
            &[Fate::Answered]
        }
    }
}

/// Claims that are over are waited for no longer.
fn over(state: &mut State) {
    let living: BTreeSet<u8> = state.clients.iter().filter_map(Client::claim).collect();
    for quarantine in state.nodes.iter_mut().filter_map(|node| node.quarantine.as_mut()) {
        quarantine.retain(|claim| living.contains(claim));
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let uneven = (0..1_u64 << self.nodes).map(|bits| {
            let node = |node| Node { counter: bits >> node & 1, key: None, quarantine: None };
            State {
                nodes: (0..self.nodes).map(node).collect(),
                clients: vec![Client::Idle { claims: self.claims }; self.clients],
                wins: Vec::new(),
                next_claim: 0,
                faults: self.faults,
            }
        });
        uneven.collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (client, is) in state.clients.iter().enumerate() {
            match is {
                Client::Idle { claims: 0 } => {}
                Client::Idle { .. } => actions.push(Action::Begin(client)),
                Client::Claiming { to_ask, to_stamp, .. } => {
                    for fate in self.fates(state) {
                        actions.extend(to_ask.iter().map(|node| Action::Ask(client, *node, *fate)));
                        actions.extend(
                            to_stamp.iter().map(|(node, token)| Action::Stamp(client, *node, *token, *fate)),
                        );
                    }
                }
                Client::Holding { .. } => actions.push(Action::LetGo(client)),
                Client::Releasing { left, .. } => {
                    // A reply that is lost changes nothing here.
                    let fates = self.fates(state).iter().filter(|fate| **fate != Fate::ReplyLost);
                    // In one order: who comes in between may come before or after all of them as well.
                    actions.extend(
                        left.first()
                            .into_iter()
                            .flat_map(|node| fates.clone().map(|fate| Action::Release(client, *node, *fate))),
                    );
                }
            }
            if state.faults > 0 && self.loses && is.claim().is_some() {
                actions.push(Action::Crash(client));
            }
        }
        for (node, is) in state.nodes.iter().enumerate() {
            if let Some(key) = is.key {
                let is_early = state.clients.iter().any(|client| client.relies_on(key));
                if !is_early || self.ends_early && state.faults > 0 {
                    actions.push(Action::End(node));
                }
            }
            if self.amnesia != Amnesia::Never && state.faults > 0 {
                actions.push(Action::Forget(node));
            }
            if self.learns(state, node).is_some() {
                actions.push(Action::Recover(node));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let is_fault = match &action {
            Action::Ask(_, _, fate) | Action::Stamp(_, _, _, fate) | Action::Release(_, _, fate) => {
                *fate != Fate::Answered
            }
            Action::Crash(_) | Action::Forget(_) => true,
            Action::End(node) => {
                let key = last.nodes[*node].key?;
                last.clients.iter().any(|client| client.relies_on(key))
            }
            _ => false,
        };
        state.faults -= u8::from(is_fault);
        match action {
            Action::Begin(client) => {
                let Client::Idle { claims } = state.clients[client] else { return None };
                let to_ask = (0..self.nodes).collect();
                state.clients[client] = Client::Claiming {
                    claims: claims - 1,
                    claim: state.next_claim,
                    began_after: state.wins.len(),
                    to_ask,
                    to_stamp: BTreeSet::new(),
                    tally: Tally::new(self.nodes),
                };
                state.next_claim += 1;
            }
            Action::Ask(client, node, fate) => self.ask(&mut state, client, node, fate),
            Action::Stamp(client, node, token, fate) => self.stamp(&mut state, client, node, token, fate),
            Action::Release(client, node, fate) => self.release(&mut state, client, node, fate),
            Action::LetGo(client) => {
                let Client::Holding { claims, claim } = state.clients[client] else { return None };
                state.clients[client] = Client::Releasing { claims, claim, left: (0..self.nodes).collect() };
            }
            Action::Crash(client) => {
                state.clients[client] = Client::Idle { claims: 0 };
                over(&mut state);
            }
            Action::End(node) => state.nodes[node].key = None,
            Action::Forget(node) => self.forget(&mut state, node),
            Action::Recover(node) => {
                let counter = self.learns(&state, node)?;
                state.nodes[node] = Node { counter, key: None, quarantine: None };
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        vec![
            Property::always(DIFFERENT, |_, state: &State| {
                let tokens: BTreeSet<u64> = state.wins.iter().map(|win| win.token).collect();
                tokens.len() == state.wins.len()
            }),
            Property::always(LATER_LARGER, |_, state: &State| {
                let is_larger =
                    |win: &Win| state.wins[..win.began_after].iter().all(|before| before.token < win.token);
                state.wins.iter().all(is_larger)
            }),
            Property::always(EXCLUSIVE, |protocol: &Protocol, state: &State| {
                let holding = state.clients.iter().filter(|client| matches!(client, Client::Holding { .. }));
                // A key that ends early, or is forgotten, takes exclusion away: that is what tokens are for.
                protocol.ends_early || protocol.amnesia == Amnesia::Bare || holding.count() <= 1
            }),
        ]
    }
}

/// Visits every state, and asserts that none breaks a property.
#[track_caller]
fn holds(protocol: Protocol) {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1000, "a space that is too small shows nothing");
}

/// Asserts that a form is refuted.
#[track_caller]
fn is_refuted(protocol: Protocol) {
    let checker = protocol.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = [DIFFERENT, LATER_LARGER].iter().any(|property| checker.discovery(property).is_some());
    assert!(found, "no counter-example was found to {protocol:?}");
}

#[test]
fn the_strict_form_holds_when_messages_are_lost_and_clients_crash() {
    holds(STRICT);
}

#[test]
fn the_strict_form_keeps_tokens_in_order_when_keys_end_early() {
    holds(Protocol { ends_early: true, ..STRICT });
}

#[test]
fn the_strict_form_holds_when_nodes_forget_and_are_quarantined() {
    holds(Protocol { amnesia: Amnesia::Quarantined, ..STRICT });
}

#[test]
fn without_quarantine_a_node_that_forgets_breaks_the_order() {
    is_refuted(Protocol { amnesia: Amnesia::Bare, ..STRICT });
}

#[test]
fn without_writing_back_tokens_repeat() {
    is_refuted(Protocol { form: Form::Plain, ..STRICT });
}

#[test]
fn stamps_where_the_key_is_gone_let_tokens_repeat() {
    is_refuted(Protocol { form: Form::Anywhere, ends_early: true, ..STRICT });
}

#[test]
fn stamps_that_are_acknowledged_from_above_let_tokens_repeat() {
    is_refuted(Protocol { form: Form::Held, ends_early: true, faults: 3, claims: 1, ..STRICT });
}
