//! The tokens of a quorum, over every order of events.
//!
//! Modelled: nodes with a counter and one key each; clients that claim, stamp, hold, release and crash, and decide by [`Tally`]; requests and
//! replies that are lost; keys that end in time (no client relies on them any more) or early (a node's clock jumps); nodes that forget
//! everything, or go back to a snapshot, with and without quarantine, which a clock that is set ahead cuts short; claims that are repeated
//! and whose holds end at a fixed time after the first grant; a client that counts one server twice. Each message is carried out by its node
//! at a step of its own, so all interleavings of messages are there. Proposals are left out: counters alone are the worst case. Not modelled:
//! a request that arrives after its claim was given up (it only raises counters, and its key ends by itself).
//!
//! A node has one resource, but what other resources do to it is there: its largest number may be above the resource's own counter, which
//! a snapshot brings back from any earlier time, or not at all (counters end after an hour without use).
//!
//! A run begins with uneven counters, as claims that failed leave them, or clients whose clocks were ahead once. The number of faults in a run
//! is bounded ([`Protocol::faults`]), so the space is finite. For each weaker form a test expects the counter-example.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure_core::testing::random::more;

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
    /// The same, but it has not forgotten everything: it has read any earlier counter from its snapshot.
    Snapshot(Learns),
}

/// What a node does with what it has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Learns {
    /// It raises the largest of all its numbers, which goes for resources without a counter.
    Top,
    /// And no counter is below it.
    Base,
}

/// How long a client believes a hold that ends at a fixed time after its first grant, if it has repeated the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    /// As long as if it had been granted when it was asked for last.
    FromLastCopy,
    /// As long as a majority says that it has it.
    AsStored,
}

#[derive(Clone, Copy, Debug)]
struct Protocol {
    form: Form,
    nodes: usize,
    clients: usize,
    /// How many claims each client makes.
    claims: u8,
    /// How far counters are ahead of others at first, at most.
    ahead: u64,
    /// How many messages are lost, clients crash, keys end early and nodes forget, in all.
    faults: u8,
    ends_early: bool,
    amnesia: Amnesia,
    /// The clock of a node that waits may be set ahead, so that it waits for no claim.
    lets_in_early: bool,
    loses: bool,
    /// How often a claim that has come to nothing is sent again.
    repeats: u8,
    belief: Belief,
    /// The first client reaches one server by two names, and another one not at all.
    counts_twice: bool,
}

const STRICT: Protocol = Protocol {
    form: Form::Strict,
    nodes: 3,
    clients: 2,
    claims: 1,
    faults: 2,
    ends_early: false,
    amnesia: Amnesia::Never,
    lets_in_early: false,
    ahead: 1,
    loses: true,
    repeats: 0,
    belief: Belief::AsStored,
    counts_twice: false,
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
    /// The resource's own counter, if it has one.
    own: Option<u64>,
    /// The largest of all counters.
    top: u64,
    /// What it had learned when it was let in.
    base: u64,
    key: Option<Key>,
    /// It must not count until these claims are over.
    quarantine: Option<BTreeSet<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    claim: u8,
    number: u64,
    /// Which copy of the claim was granted: the first one is 0.
    copy: u8,
}

impl Node {
    fn counter(&self) -> u64 {
        self.own.unwrap_or(self.top).max(self.base)
    }

    fn raise(&mut self, number: u64) {
        self.own = Some(number);
        self.top = self.top.max(number);
    }
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
        /// Which copy it is.
        copy: u8,
        /// Which copies the nodes that answered have granted.
        granted: BTreeMap<usize, u8>,
        /// Holds of copies before this one have ended.
        ended_before: u8,
    },
    Holding {
        claims: u8,
        claim: u8,
        /// It relies on what was granted to this copy and later ones.
        since: u8,
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

    /// Whether it may still rely on a key.
    fn relies_on(&self, key: Key) -> bool {
        match self {
            Client::Claiming { claim, copy, .. } => *claim == key.claim && *copy == key.copy,
            Client::Holding { claim, since, .. } => *claim == key.claim && *since <= key.copy,
            _ => false,
        }
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
    /// It goes back to this counter. Its key may be in the snapshot as well.
    Forget(usize, Option<u64>, bool),
    Recover(usize),
    /// The clock of a node that waits.
    SetAhead(usize),
}

impl Protocol {
    /// Whether a server may be asked twice for a claim.
    fn is_repeated(&self) -> bool {
        self.repeats > 0 || self.counts_twice
    }

    /// The server behind a link of a client.
    fn server(&self, client: usize, link: usize) -> usize {
        if self.counts_twice && client == 0 { link.saturating_sub(1) } else { link }
    }

    fn ask(&self, state: &mut State, client: usize, node: usize, fate: Fate) {
        let (server, is_repeated) = (self.server(client, node), self.is_repeated());
        let Client::Claiming { claim, to_ask, tally, copy, granted, .. } = &mut state.clients[client] else {
            return;
        };
        to_ask.remove(&node);
        let at = &mut state.nodes[server];
        let mut vote = Vote::Silent;
        if fate != Fate::RequestLost {
            vote = Vote::Refused;
            if at.quarantine.is_none() && at.key.is_none() {
                let number = at.counter() + 1;
                at.raise(number);
                // What is never read must not make states differ.
                let number = if is_repeated { number } else { 0 };
                at.key = Some(Key { claim: *claim, number, copy: *copy });
                vote = Vote::Granted(at.counter());
            }
            let repeated = |key: &Key| is_repeated && key.claim == *claim && at.quarantine.is_none();
            if let Some(key) = at.key.filter(repeated) {
                vote = Vote::Granted(key.number);
                if fate == Fate::Answered {
                    granted.insert(node, key.copy);
                }
            }
        }
        let vote = if fate == Fate::Answered { vote } else { Vote::Silent };
        let next = tally.vote(node, vote);
        self.go_on(state, client, next);
    }

    fn stamp(&self, state: &mut State, client: usize, node: usize, token: u64, fate: Fate) {
        let (server, is_repeated) = (self.server(client, node), self.is_repeated());
        let Client::Claiming { claim, to_stamp, tally, granted, .. } = &mut state.clients[client] else {
            return;
        };
        to_stamp.remove(&(node, token));
        let at = &mut state.nodes[server];
        let mut stamped = Stamped::No;
        let key = at.key.filter(|key| key.claim == *claim);
        let is_its = key.is_some() || self.form == Form::Anywhere;
        if fate != Fate::RequestLost && at.quarantine.is_none() && is_its {
            let counter = at.counter();
            stamped = if counter > token && self.form == Form::Strict {
                Stamped::Above(counter)
            } else {
                at.raise(counter.max(token));
                Stamped::Yes
            };
            if let (Some(key), Fate::Answered, true) = (key, fate, is_repeated) {
                granted.insert(node, key.copy);
            }
            if let (Some(key), Stamped::Yes, true) = (&mut at.key, stamped, is_repeated) {
                key.number = key.number.max(token);
            }
        }
        let stamped = if fate == Fate::Answered { stamped } else { Stamped::No };
        let next = tally.stamped(node, token, stamped);
        self.go_on(state, client, next);
    }

    fn go_on(&self, state: &mut State, client: usize, next: Next) {
        let Client::Claiming { to_stamp, tally, .. } = &mut state.clients[client] else { return };
        match next {
            Next::Wait => {}
            Next::Stamp(token, _) if self.form == Form::Plain => self.win(state, client, token),
            // An earlier stamp may still be under way: its answer is no use any more.
            Next::Stamp(token, nodes) if self.form == Form::Anywhere => {
                let behind =
                    (0..self.nodes).filter(|node| !tally.granted().any(|granted| granted == (*node, token)));
                *to_stamp = behind.map(|node| (node, token)).collect();
                drop(nodes);
            }
            Next::Stamp(token, nodes) => *to_stamp = nodes.into_iter().map(|node| (node, token)).collect(),
            Next::Won(token) => self.win(state, client, token),
            Next::Lost => self.lose(state, client),
        }
    }

    fn lose(&self, state: &mut State, client: usize) {
        let Client::Claiming { claims, claim, began_after, copy, ended_before, .. } = state.clients[client]
        else {
            return;
        };
        state.clients[client] = if copy < self.repeats {
            self.claiming(claims, claim, began_after, (copy + 1, ended_before))
        } else {
            Client::Releasing { claims, claim, left: (0..self.nodes).collect() }
        };
    }

    fn claiming(&self, claims: u8, claim: u8, began_after: usize, (copy, ended_before): (u8, u8)) -> Client {
        Client::Claiming {
            claims,
            claim,
            began_after,
            to_ask: (0..self.nodes).collect(),
            to_stamp: BTreeSet::new(),
            tally: Tally::new(self.nodes),
            copy,
            granted: BTreeMap::new(),
            ended_before,
        }
    }

    fn win(&self, state: &mut State, client: usize, token: u64) {
        let Client::Claiming { claims, claim, began_after, copy, granted, ended_before, .. } =
            &state.clients[client]
        else {
            return;
        };
        let mut since: Vec<u8> = granted.values().copied().collect();
        since.sort_unstable_by(|one, other| other.cmp(one));
        let since = match self.belief {
            Belief::FromLastCopy => *copy,
            // The hold is over when no majority has it any more.
            Belief::AsStored => since.get(majority(self.nodes) - 1).copied().unwrap_or(0),
        };
        if since < *ended_before {
            return self.lose(state, client);
        }
        let holding = Client::Holding { claims: *claims, claim: *claim, since };
        state.wins.push(Win { token, began_after: *began_after });
        state.clients[client] = holding;
    }

    fn release(&self, state: &mut State, client: usize, node: usize, fate: Fate) {
        let Client::Releasing { claims, claim, left } = &mut state.clients[client] else { return };
        left.remove(&node);
        let at = &mut state.nodes[self.server(client, node)];
        if fate != Fate::RequestLost && at.key.is_some_and(|key| key.claim == *claim) {
            at.key = None;
        }
        if left.is_empty() {
            let claims = *claims;
            state.clients[client] = Client::Idle { claims };
        }
        over(state);
    }

    fn forget(&self, state: &mut State, node: usize, own: Option<u64>, keeps_key: bool) {
        let living: BTreeSet<u8> = state.clients.iter().filter_map(Client::claim).collect();
        let quarantine = (self.amnesia != Amnesia::Bare).then_some(living);
        let key = state.nodes[node].key.filter(|_| keeps_key);
        // The least that the snapshot can say of other resources.
        state.nodes[node] = Node { own, top: own.unwrap_or(0), base: 0, key, quarantine };
    }

    /// A key has ended: all that was granted to its copy and earlier ones of the claim ends now.
    fn end(&self, state: &mut State, node: usize) {
        let Some(key) = state.nodes[node].key.take() else { return };
        for client in &mut state.clients {
            if let Client::Claiming { claim, ended_before, .. } = client
                && *claim == key.claim
                && self.repeats > 0
            {
                *ended_before = (key.copy + 1).max(*ended_before);
            }
        }
    }

    /// The counters that a node may have read from its snapshot.
    fn remembered(&self, node: &Node) -> Vec<(Option<u64>, bool)> {
        let Amnesia::Snapshot(_) = self.amnesia else { return vec![(None, false)] };
        let counters = std::iter::once(None).chain((0..=node.own.unwrap_or(0)).map(Some));
        // A key that is there still is in a snapshot that is new; what an older one has of it has ended by the time it counts.
        let has_key = node.key.is_some().then_some((node.own, true));
        counters.map(|own| (own, false)).chain(has_key).collect()
    }

    /// Returns what a node learns, if it may count again.
    fn learns(&self, state: &State, node: usize) -> Option<u64> {
        if !state.nodes[node].quarantine.as_ref()?.is_empty() {
            return None;
        }
        let others =
            (0..self.nodes).filter(|other| *other != node && state.nodes[*other].quarantine.is_none());
        let mut counters: Vec<u64> = others.map(|other| state.nodes[other].top).collect();
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
        // Counters decide nothing about holds.
        let is_about_tokens = !self.is_repeated();
        let is_above = u64::from(matches!(self.amnesia, Amnesia::Snapshot(_)));
        // Nodes are alike: which of them is ahead does not matter.
        let ahead = if is_about_tokens { self.ahead } else { 0 };
        let mut heights = vec![vec![0]];
        for _ in 1..self.nodes {
            let taller = |below: &Vec<u64>| {
                (*below.last().unwrap_or(&0)..=ahead)
                    .map(|next| [&below[..], &[next]].concat())
                    .collect::<Vec<_>>()
            };
            heights = heights.iter().flat_map(taller).collect();
        }
        let uneven = heights.into_iter().map(|heights| {
            let node = |node: usize| Node {
                own: Some(heights[node]),
                top: heights[node].max(is_above),
                base: 0,
                key: None,
                quarantine: None,
            };
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
                // Clients are alike while they are idle: which of them begins does not matter.
                Client::Idle { .. } if !self.counts_twice && state.clients[..client].contains(is) => {}
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
                    // In one order: what comes in between may come before or after all of them as well.
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
                let remembered = self.remembered(is).into_iter();
                actions.extend(remembered.map(|(own, has_key)| Action::Forget(node, own, has_key)));
            }
            if self.learns(state, node).is_some() {
                actions.push(Action::Recover(node));
            }
            if self.lets_in_early
                && state.faults > 0
                && is.quarantine.as_ref().is_some_and(|left| !left.is_empty())
            {
                actions.push(Action::SetAhead(node));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let is_fault = match &action {
            Action::Ask(_, _, fate) | Action::Stamp(_, _, _, fate) | Action::Release(_, _, fate) => {
                *fate != Fate::Answered
            }
            Action::Crash(_) | Action::Forget(..) | Action::SetAhead(_) => true,
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
                let (claim, began_after) = (state.next_claim, state.wins.len());
                state.clients[client] = self.claiming(claims - 1, claim, began_after, (0, 0));
                state.next_claim += 1;
            }
            Action::Ask(client, node, fate) => self.ask(&mut state, client, node, fate),
            Action::Stamp(client, node, token, fate) => self.stamp(&mut state, client, node, token, fate),
            Action::Release(client, node, fate) => self.release(&mut state, client, node, fate),
            Action::LetGo(client) => {
                let Client::Holding { claims, claim, .. } = state.clients[client] else { return None };
                state.clients[client] = Client::Releasing { claims, claim, left: (0..self.nodes).collect() };
            }
            Action::Crash(client) => {
                state.clients[client] = Client::Idle { claims: 0 };
                over(&mut state);
            }
            Action::End(node) => self.end(&mut state, node),
            Action::Forget(node, own, has_key) => self.forget(&mut state, node, own, has_key),
            Action::SetAhead(node) => state.nodes[node].quarantine = Some(BTreeSet::new()),
            Action::Recover(node) => {
                let top = self.learns(&state, node)?;
                let at = &mut state.nodes[node];
                at.top = at.top.max(top);
                at.base = if self.amnesia == Amnesia::Snapshot(Learns::Base) { at.top } else { 0 };
                at.quarantine = None;
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
                protocol.ends_early
                    || protocol.lets_in_early
                    || protocol.amnesia == Amnesia::Bare
                    || holding.count() <= 1
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
    let found =
        [DIFFERENT, LATER_LARGER, EXCLUSIVE].iter().any(|property| checker.discovery(property).is_some());
    assert!(found, "no counter-example was found to {protocol:?}");
}

#[test]
fn the_strict_form_holds_when_messages_are_lost_and_clients_crash() {
    holds(Protocol { faults: more(1, STRICT.faults), ..STRICT });
}

#[test]
fn the_strict_form_keeps_tokens_in_order_when_keys_end_early() {
    holds(Protocol { faults: more(1, STRICT.faults), ends_early: true, ..STRICT });
}

#[test]
fn the_strict_form_holds_when_nodes_forget_and_are_quarantined() {
    holds(Protocol { faults: more(1, 2), amnesia: Amnesia::Quarantined, ..STRICT });
}

#[test]
fn the_strict_form_keeps_tokens_in_order_when_nodes_forget_and_keys_end_early() {
    holds(Protocol {
        faults: more(1, 2),
        ends_early: true,
        loses: false,
        amnesia: Amnesia::Quarantined,
        ..STRICT
    });
}

#[test]
fn a_node_that_waits_by_a_clock_which_is_set_ahead_lets_tokens_repeat() {
    is_refuted(Protocol { lets_in_early: true, loses: false, amnesia: Amnesia::Quarantined, ..STRICT });
}

#[test]
fn counters_that_were_far_ahead_once_keep_tokens_in_order() {
    holds(Protocol { faults: more(1, STRICT.faults), ahead: 2, ..STRICT });
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

/// What else can fail beside a node that forgets is seen where nodes forget everything.
const SNAPSHOT: Protocol =
    Protocol { amnesia: Amnesia::Snapshot(Learns::Base), loses: false, faults: 1, ..STRICT };

#[test]
fn nodes_that_go_back_to_a_snapshot_keep_tokens_in_order_by_a_base() {
    holds(SNAPSHOT);
}

#[test]
fn a_counter_from_a_snapshot_that_shadows_what_was_learned_lets_tokens_repeat() {
    is_refuted(Protocol { amnesia: Amnesia::Snapshot(Learns::Top), ..SNAPSHOT });
}

/// Claims that are sent twice, whose holds end at a fixed time after the first grant.
const REPEATED: Protocol = Protocol { repeats: 1, faults: 1, ..STRICT };

#[test]
fn a_repeated_claim_is_believed_as_long_as_a_majority_keeps_it() {
    holds(REPEATED);
}

#[test]
fn a_repeated_claim_that_is_believed_from_its_last_copy_on_lets_two_hold() {
    is_refuted(Protocol { belief: Belief::FromLastCopy, ..REPEATED });
}

#[test]
fn a_client_that_counts_one_server_twice_lets_two_hold() {
    is_refuted(Protocol { counts_twice: true, ..STRICT });
}
