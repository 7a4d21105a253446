//! Asking all servers for a batch of claims, and counting their votes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::clock::{Clock, Instant, Timestamp};
use tenure_core::engine::refused;
use tenure_core::model::claim::{Busy, Grant, Kind, Published, Waiting};
use tenure_core::model::step::Refusal;
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, mutant};
use tenure_redis::server::{Fault, pause};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Quorum;
use super::holds::forget_on_all;
use super::node::{Request, Said};
use super::own::{Copies, Held, Own, Servers};
use super::text::{self, Ending, NodeAnswer, NodeBusy, NodeHolder};
use super::values::Stored;
use crate::library::LIBRARY;
use crate::quorum::{Next, Stamped, Tally, Vote, majority};

/// How often a claim is tried in one go, where the servers are divided or a slot turns out to be taken.
const ROUNDS: u32 = 4;
/// No further round begins after this long: the client gives a call up after 2 s.
const ROUNDS_UNTIL: Duration = Duration::from_millis(600);
/// Between rounds, at most.
const ROUND_PAUSE: Duration = Duration::from_millis(20);

/// What an attempt has come to.
#[derive(Debug)]
pub(crate) enum Attempt {
    Won(Grant),
    Waiting(Waiting),
    Busy(Busy),
    Fresh(Published),
    Finished,
    /// It cannot be granted as it is, or the outcome is unknown.
    Failed(Error),
    /// The servers are divided, or its slot is taken: another round may settle it, with another of these slots.
    Again(Vec<u32>, Box<Attempt>),
}

/// A claim on its way through one round.
struct Poll {
    own: Own,
    slot: Option<u32>,
    tally: Tally,
    /// Until when the servers keep the hold, those that have said so, by this machine's clock at the least.
    kept: Vec<Option<Instant>>,
    answers: Vec<Option<NodeAnswer>>,
    /// The servers whose answer is no vote: they do not count, or have not answered.
    silent: Vec<Option<String>>,
    /// The token, or that it is lost.
    decided: Option<Option<u64>>,
    /// A majority has the fresh value that servers answered.
    is_of_most: bool,
}

/// What comes in during a round.
enum News {
    Claimed(usize, std::result::Result<Said, Fault>),
    /// With when they were sent.
    Stamped(usize, Instant, Vec<(usize, u64)>, std::result::Result<Said, Fault>),
}

impl Quorum {
    /// Tries claims, and notes what they have come to.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        claims: Vec<tenure_core::model::claim::Claim>,
    ) -> Vec<Attempt> {
        let start = self.clock.now();
        let mut attempts: BTreeMap<usize, Attempt> = BTreeMap::new();
        let mut left: Vec<(usize, Vec<u32>)> =
            claims.iter().enumerate().map(|(at, _)| (at, Vec::new())).collect();
        for round in 0..ROUNDS {
            let copies = Copies::new(self.nodes.len());
            let asked: Vec<(Own, Option<u32>)> = {
                let (now, wall) = (self.clock.now(), self.clock.time_of_day().micros());
                let mut owned = self.owned();
                owned.tidy(now);
                left.iter()
                    .map(|(at, free)| {
                        (owned.ask(&claims[*at], wall, now, &copies), slot(&*self.clock, &claims[*at], free))
                    })
                    .collect()
            };
            let outcomes = self.round(asked, copies).await;
            let mut again = Vec::new();
            for ((at, _), outcome) in left.into_iter().zip(outcomes) {
                match outcome {
                    Attempt::Again(slots, last) => {
                        again.push((at, slots));
                        attempts.insert(at, *last);
                    }
                    outcome => drop(attempts.insert(at, outcome)),
                }
            }
            left = again;
            if left.is_empty() || self.clock.now().since(start) > ROUNDS_UNTIL {
                break;
            }
            if round + 1 < ROUNDS {
                pause::sleep(ROUND_PAUSE.mul_f64(self.clock.random() as f64 / u64::MAX as f64)).await;
            }
        }
        // A late copy of what is over must not be granted.
        let over = left.iter().filter_map(|(at, _)| self.owned().get(claims[*at].id).cloned());
        let over = over.filter(|own| !own.claim.wait);
        let over: Vec<_> = over.map(|own| (own.reached(), own)).collect();
        forget_on_all(self, over, Ending::Released { is_unused: true, is_finished: true });
        for (at, attempt) in &attempts {
            let id = claims[*at].id;
            match attempt {
                Attempt::Busy(_) | Attempt::Fresh(_) | Attempt::Finished => drop(self.owned().remove(id)),
                Attempt::Waiting(waiting) => self.owned().note_told(id, waiting.horizon),
                _ => {}
            }
        }
        attempts.into_values().collect()
    }

    /// Asks all servers once for each claim, and stamps where they do not agree on a number.
    async fn round(self: &Arc<Self>, asked: Vec<(Own, Option<u32>)>, copies: Arc<Copies>) -> Vec<Attempt> {
        let start = self.clock.now();
        let within = patience(asked.iter().map(|(own, _)| own.claim.terms.ttl));
        let proposal = if self.has_plain_tokens() { 0 } else { self.clock.time_of_day().micros() };
        let mut request = Request::new(&LIBRARY.claim).noted_in(copies);
        text::claims(&mut request, &asked, proposal, |own| self.key_text(&own.claim.resource));
        let count = self.nodes.len();
        let mut polls: Vec<Poll> = asked.into_iter().map(|(own, slot)| Poll::new(own, slot, count)).collect();
        let (sender, mut news) = unbounded_channel();
        self.forward(within, request, sender.clone());
        let mut undecided = polls.len();
        while undecided > 0 {
            let Some(heard) = news.recv().await else { break };
            let mut stamps: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
            let nexts = match heard {
                News::Claimed(node, answer) => votes(&mut polls, node, start, answer),
                News::Stamped(node, sent, asked, answer) => stamped(&mut polls, node, sent, &asked, answer),
            };
            for (at, next) in nexts {
                let poll = &mut polls[at];
                match self.weaken(poll, next) {
                    Next::Wait => {}
                    Next::Won(token) => poll.decided = Some(Some(token)),
                    Next::Lost if poll.waits_for_more() => {}
                    Next::Lost => poll.decided = Some(None),
                    Next::Stamp(token, nodes) => {
                        self.note_stamp();
                        for node in nodes {
                            stamps.entry(node).or_default().push((at, token));
                        }
                    }
                }
            }
            undecided = polls.iter().filter(|poll| poll.decided.is_none()).count();
            for (node, asked) in stamps {
                self.stamp(node, within, &polls, asked, sender.clone());
            }
        }
        drop(sender);
        self.write_back_values(&mut polls).await;
        let outcomes: Vec<Attempt> = polls.iter().map(|poll| self.decide(poll)).collect();
        self.clear_up(polls, &outcomes, news);
        outcomes
    }

    /// Brings fresh values to a majority that only a few servers have, before they answer a claim: whoever asks next may hear the others.
    async fn write_back_values(self: &Arc<Self>, polls: &mut [Poll]) {
        let written = polls.iter_mut().filter(|poll| !poll.is_won()).map(async |poll| {
            let Some(value) = poll.fresh() else { return };
            let has_it =
                |answer: &&NodeAnswer| matches!(answer, NodeAnswer::Fresh(other) if other.token == value.token);
            let having = poll.answers.iter().flatten().filter(has_it).count();
            let is_of_most = mutant!("redlock-serves-what-few-have") || having >= majority(self.nodes.len());
            poll.is_of_most = is_of_most || self.write_back(&poll.own.claim.resource, value).await;
        });
        join_all(written).await;
    }

    fn forward(self: &Arc<Self>, within: Duration, request: Request, sender: UnboundedSender<News>) {
        let mut answers = self.ask_all(within, request);
        tokio::spawn(async move {
            while let Some((node, answer)) = answers.recv().await {
                if sender.send(News::Claimed(node, answer)).is_err() {
                    return;
                }
            }
        });
    }

    fn stamp(
        self: &Arc<Self>,
        node: usize,
        within: Duration,
        polls: &[Poll],
        asked: Vec<(usize, u64)>,
        sender: UnboundedSender<News>,
    ) {
        let mut request = Request::new(&LIBRARY.stamp);
        for (at, token) in &asked {
            let claim = &polls[*at].own.claim;
            request.ask(self.key_text(&claim.resource), claim.id, vec![token.to_string()]);
        }
        let quorum = self.clone();
        tokio::spawn(async move {
            let sent = quorum.clock.now();
            let answer = quorum.ask(node, within, false, &request).await;
            // The receiver was dropped: the others were enough.
            drop(sender.send(News::Stamped(node, sent, asked, answer)));
        });
    }

    /// The plain form, for tests: the largest number is the token, and no node is stamped with it.
    fn weaken(&self, poll: &Poll, next: Next) -> Next {
        if !self.has_plain_tokens() {
            return next;
        }
        let granted: Vec<u64> = poll.tally.granted().map(|(_, number)| number).collect();
        match granted.iter().max() {
            Some(largest) if granted.len() >= majority(self.nodes.len()) => Next::Won(*largest),
            _ => next,
        }
    }

    /// Says what the votes come to.
    fn decide(&self, poll: &Poll) -> Attempt {
        let Poll { own, slot, .. } = poll;
        let id = own.claim.id;
        if let Some(Some(token)) = poll.decided {
            let life = poll.life();
            let slot = poll.slot_held().or(*slot);
            // Counted from before anything was sent. What is left must be of use with clocks that do not run alike.
            let kept_until = if mutant!("redlock-believes-a-repeat") {
                self.clock.now() + life
            } else {
                poll.kept_until()
            };
            let ends_in = kept_until.since(self.clock.now());
            if ends_in > life / 100 + Duration::from_millis(2) {
                let token = Token::new(token);
                if let Some(known) = self.owned().get_mut(id) {
                    known.held = Some(Held { token, slot });
                }
                return Attempt::Won(Grant { token, slot, ends_in });
            }
        }
        let lost = poll.lost();
        if lost.can_try_again {
            return Attempt::Again(lost.free_slots, Box::new(lost.attempt));
        }
        lost.attempt
    }

    /// Gives back what the losers were granted, and takes the winners out of the queues where they still wait.
    fn clear_up(self: &Arc<Self>, polls: Vec<Poll>, outcomes: &[Attempt], mut news: UnboundedReceiver<News>) {
        let (mut over, mut cancelled) = (Vec::new(), Vec::new());
        let mut back = BTreeMap::<usize, Vec<(Own, Ending)>>::new();
        let mut winners = Vec::new();
        for (at, (poll, outcome)) in polls.into_iter().zip(outcomes).enumerate() {
            if matches!(outcome, Attempt::Won(_)) {
                winners.push((at, poll));
                continue;
            }
            let touched = poll.may_hold();
            if poll.own.claim.wait {
                for node in (0..self.nodes.len()).filter(|node| touched & 1 << node != 0) {
                    back.entry(node).or_default().push((poll.own.clone(), Ending::GivenBack));
                }
            } else if touched != 0 {
                // The same claim may come again where the outcome is unknown, so only this attempt is taken back.
                let may_come_again = match outcome {
                    Attempt::Again(..) => true,
                    Attempt::Failed(error) => error.kind() == ErrorKind::Unavailable,
                    _ => false,
                };
                let forsaken = (touched, poll.own.clone());
                if may_come_again { cancelled.push(forsaken) } else { over.push(forsaken) }
            }
        }
        for (node, endings) in back {
            self.end_once(node, endings);
        }
        forget_on_all(self, cancelled, Ending::Cancelled);
        forget_on_all(self, over, Ending::Released { is_unused: true, is_finished: true });
        winners
            .retain(|(_, poll)| poll.own.claim.wait && poll.answers.iter().any(|answer| !is_grant(answer)));
        if winners.is_empty() {
            return;
        }
        let quorum = self.clone();
        tokio::spawn(async move {
            let mut behind: BTreeMap<usize, Vec<(Own, Ending)>> = BTreeMap::new();
            let mut note = |node: usize, poll: &Poll, answer: &NodeAnswer| {
                if matches!(answer, NodeAnswer::Busy(_)) {
                    behind.entry(node).or_default().push((poll.own.clone(), Ending::WaitsNoMore));
                }
            };
            for (_, poll) in &winners {
                for (node, answer) in poll.answers.iter().enumerate() {
                    answer.iter().for_each(|answer| note(node, poll, answer));
                }
            }
            while let Some(heard) = news.recv().await {
                let News::Claimed(node, Ok(said)) = heard else { continue };
                for (at, poll) in &winners {
                    let answer = said.items.get(*at).cloned().map(text::answer);
                    if let Some(Ok(answer)) = answer {
                        note(node, poll, &answer);
                    }
                }
            }
            for (node, endings) in behind {
                quorum.end_once(node, endings);
            }
        });
    }

    /// Sends one server how claims end, once: what is lost is sent again by the next attempt, or ends by itself.
    fn end_once(self: &Arc<Self>, node: usize, endings: Vec<(Own, Ending)>) {
        let quorum = self.clone();
        tokio::spawn(async move {
            let mut request = Request::new(&LIBRARY.release);
            for (own, ending) in &endings {
                let (key, how) = (quorum.key_text(&own.claim.resource), text::ending(Some(own), *ending));
                request.ask(key, own.claim.id, vec![how]);
            }
            if let Err(fault) = quorum.ask(node, Duration::from_millis(500), false, &request).await {
                tracing::debug!(%fault, "what was granted in vain is not given back");
            }
        });
    }
}

fn is_grant(answer: &Option<NodeAnswer>) -> bool {
    matches!(answer, Some(NodeAnswer::Granted { .. }))
}

/// How long one server is waited for: short against the ttl, of which the wait is lost.
pub(crate) fn patience(ttls: impl Iterator<Item = Duration>) -> Duration {
    let shortest = ttls.min().unwrap_or(Duration::from_secs(30));
    (shortest / 10).clamp(Duration::from_millis(50), Duration::from_millis(500))
}

/// Which slot is asked for: one of those that seem free, any of them at first.
fn slot(clock: &dyn Clock, claim: &tenure_core::model::claim::Claim, free: &[u32]) -> Option<u32> {
    if claim.terms.kind != Kind::SlotPool {
        return None;
    }
    let random = clock.random();
    Some(match free.len() as u64 {
        0 => (random % u64::from(claim.terms.capacity)) as u32,
        count => free[(random % count) as usize],
    })
}

fn votes(
    polls: &mut [Poll],
    node: usize,
    start: Instant,
    answer: std::result::Result<Said, Fault>,
) -> Vec<(usize, Next)> {
    let mut items = match answer {
        Ok(said) if said.counts => Ok((said.items.into_iter(), said.at)),
        Ok(_) => Err("does not count: it has started anew, and must wait or be let in".to_owned()),
        Err(fault) => Err(fault.to_string()),
    };
    let mut vote = |(at, poll): (usize, &mut Poll)| {
        let vote = match &mut items {
            Ok((items, at)) => match items.next().map(text::answer) {
                Some(Ok(mut answer)) => {
                    let vote = match &mut answer {
                        NodeAnswer::Granted { number, kept, .. } => {
                            // A copy of an earlier attempt may have been granted: then it is not kept as long as one of now.
                            let life = kept.map_or(poll.life(), Duration::from_millis).min(poll.life());
                            poll.kept[node] = Some(start + life);
                            Vote::Granted(*number)
                        }
                        NodeAnswer::Fresh(value) => {
                            value.at = *at;
                            Vote::Refused
                        }
                        _ => Vote::Refused,
                    };
                    poll.answers[node] = Some(answer);
                    vote
                }
                Some(Err(what)) => poll.is_silent(node, format!("answered {}", what.0)),
                None => poll.is_silent(node, "left out an answer".to_owned()),
            },
            Err(why) => poll.is_silent(node, why.clone()),
        };
        let next = poll.tally.vote(node, vote);
        (poll.decided.is_none()).then_some((at, next))
    };
    polls.iter_mut().enumerate().filter_map(&mut vote).collect()
}

fn stamped(
    polls: &mut [Poll],
    node: usize,
    sent: Instant,
    asked: &[(usize, u64)],
    answer: std::result::Result<Said, Fault>,
) -> Vec<(usize, Next)> {
    let items = answer.map(|said| if said.counts { said.items } else { Vec::new() }).unwrap_or_default();
    let mut nexts = Vec::new();
    for (index, (at, token)) in asked.iter().enumerate() {
        let poll = &mut polls[*at];
        let stamped = match items.get(index).and_then(text::stamp) {
            None => Stamped::No,
            Some((number, kept)) => {
                let until = sent + Duration::from_millis(kept).min(poll.life());
                poll.kept[node] = poll.kept[node].max(Some(until));
                if number == *token { Stamped::Yes } else { Stamped::Above(number) }
            }
        };
        let next = poll.tally.stamped(node, *token, stamped);
        if poll.decided.is_none() {
            nexts.push((*at, next));
        }
    }
    nexts
}

/// What the answers say about a claim that was not granted.
struct Lost {
    attempt: Attempt,
    can_try_again: bool,
    free_slots: Vec<u32>,
}

impl Poll {
    fn new(own: Own, slot: Option<u32>, nodes: usize) -> Poll {
        let (answers, silent) = (vec![None; nodes], vec![None; nodes]);
        Poll {
            own,
            slot,
            tally: Tally::new(nodes),
            kept: vec![None; nodes],
            answers,
            silent,
            decided: None,
            is_of_most: false,
        }
    }

    fn is_won(&self) -> bool {
        matches!(self.decided, Some(Some(_)))
    }

    /// How long a hold lasts that is granted now.
    fn life(&self) -> Duration {
        let terms = &self.own.claim.terms;
        terms.limits.max_hold.map_or(terms.ttl, |max_hold| max_hold.min(terms.ttl))
    }

    /// Until when a majority keeps the hold.
    fn kept_until(&self) -> Instant {
        let mut kept: Vec<Instant> = self.kept.iter().flatten().copied().collect();
        kept.sort_unstable_by(|one, other| other.cmp(one));
        // A majority has said so, or it would not have won.
        kept.get(majority(self.answers.len()) - 1).copied().unwrap_or(Instant::from_nanos(0))
    }

    fn is_silent(&mut self, node: usize, why: String) -> Vote {
        self.silent[node] = Some(why);
        Vote::Silent
    }

    /// The servers that may hold it by this attempt, or will.
    fn may_hold(&self) -> Servers {
        let has_refused = |answer: &Option<NodeAnswer>| answer.is_some() && !is_grant(answer);
        let refused = self.answers.iter().enumerate().filter(|(_, answer)| has_refused(answer));
        refused.fold(self.own.copies.reached(), |servers, (node, _)| servers & !(1 << node))
    }

    /// Whether it is lost, but another server is still to be heard for what is to be said of it: a majority says nothing yet, since others are
    /// away; or those that refused name one holder under several numbers, none of which is known to be its token. A server that was not needed
    /// for a grant may have given a number of its own.
    fn waits_for_more(&self) -> bool {
        let all = self.answers.len();
        let answered = self.answers.iter().flatten().count();
        if answered + self.silent.iter().flatten().count() == all {
            return false;
        }
        if answered < majority(all) {
            return true;
        }
        if self.own.claim.wait {
            return false;
        }
        let busy: Vec<&NodeBusy> = busy(self.answers.iter().flatten()).collect();
        holder_of_most(&busy).is_some_and(|holder| token_of(holder, &busy, majority(all)).is_none())
    }

    /// The slot that an earlier attempt was granted, if it was.
    fn slot_held(&self) -> Option<u32> {
        self.answers.iter().flatten().find_map(|answer| match answer {
            NodeAnswer::Granted { slot, .. } => *slot,
            _ => None,
        })
    }

    /// The newest of the fresh values that servers answered.
    fn fresh(&self) -> Option<&Stored> {
        let fresh = self.answers.iter().flatten().filter_map(|answer| match answer {
            NodeAnswer::Fresh(value) => Some(value),
            _ => None,
        });
        fresh.max_by_key(|value| value.token)
    }

    fn lost(&self) -> Lost {
        let claim = &self.own.claim;
        let final_one = |attempt| Lost { attempt, can_try_again: false, free_slots: Vec::new() };
        let answers: Vec<&NodeAnswer> = self.answers.iter().flatten().collect();
        if answers.iter().any(|answer| matches!(answer, NodeAnswer::Finished)) {
            return final_one(Attempt::Finished);
        }
        if answers.len() < majority(self.answers.len()) {
            return final_one(Attempt::Failed(self.unavailable()));
        }
        match self.fresh() {
            Some(fresh) if self.is_of_most => return final_one(Attempt::Fresh(fresh.published())),
            Some(_) => {
                let why = "only a few servers have the newest value, and a majority does not take it";
                let error = Error::new(ErrorKind::Unavailable, "claim", why);
                return final_one(Attempt::Failed(error));
            }
            None => {}
        }
        // What a minority says may be a leftover, which others do not know any more.
        let alike = |other: &NodeAnswer| {
            answers
                .iter()
                .filter(|answer| std::mem::discriminant(**answer) == std::mem::discriminant(other))
                .count()
        };
        for answer in answers.iter().filter(|answer| alike(answer) >= majority(self.answers.len())) {
            let refusal = match answer {
                NodeAnswer::Conflict(kind, capacity) => {
                    Refusal::Conflict { kind: *kind, capacity: *capacity }
                }
                NodeAnswer::FloorAhead(now) => Refusal::FloorAhead { now: Timestamp::from_micros(*now) },
                NodeAnswer::NumbersUsedUp => {
                    Refusal::Invalid("the tokens are used up: a floor or a server's clock was very wrong")
                }
                _ => continue,
            };
            return final_one(Attempt::Failed(refused(claim, refusal)));
        }
        self.refused(&answers)
    }

    fn refused(&self, answers: &[&NodeAnswer]) -> Lost {
        let claim = &self.own.claim;
        let busy: Vec<&NodeBusy> = busy(answers.iter().copied()).collect();
        let most = majority(self.answers.len());
        // No majority says that it is held: then the servers are divided among several that claim.
        let is_divided = busy.len() < most && self.slot.is_none();
        let is_behind = busy.iter().filter(|busy| busy.holder.is_none()).count() >= most;
        let mut free_slots = Vec::new();
        if self.slot.is_some() && !is_behind {
            let is_free = |slot: &u32| busy.iter().filter(|busy| busy.taken.contains(slot)).count() < most;
            free_slots = (0..claim.terms.capacity).filter(is_free).collect();
        }
        let can_try_again = is_divided && !claim.wait || !free_slots.is_empty();
        let attempt = if claim.wait {
            Attempt::Waiting(waiting(&busy, most))
        } else {
            Attempt::Busy(seen_by_most(&busy, most))
        };
        Lost { attempt, can_try_again, free_slots }
    }

    fn unavailable(&self) -> Error {
        let heard = self.answers.iter().flatten().count();
        let whys: HashSet<&String> = self.silent.iter().flatten().collect();
        let mut whys: Vec<&str> = whys.into_iter().map(String::as_str).collect();
        whys.sort_unstable();
        let message = format!(
            "{heard} of {} servers answer, {} are needed: {}",
            self.answers.len(),
            majority(self.answers.len()),
            whys.join("; ")
        );
        Error::new(ErrorKind::Unavailable, "claim", message).with_hint(
            "are the servers running and reachable? those of a new quorum are let in by `tenure doctor --init`",
        )
    }
}

/// Returns the number that a majority has reached, of those that some have given.
pub(crate) fn reached_by_most(mut numbers: Vec<u64>, most: usize) -> Option<u64> {
    numbers.sort_unstable();
    numbers.get(most - 1).copied()
}

/// Returns the number that most have, which is the token of a hold: a server that was not needed may have another one.
pub(crate) fn named_by_most(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut counts = BTreeMap::new();
    numbers.for_each(|number| *counts.entry(number).or_insert(0_usize) += 1);
    counts.into_iter().max_by_key(|(number, count)| (*count, *number)).map_or(0, |(number, _)| number)
}

fn waiting(busy: &[&NodeBusy], most: usize) -> Waiting {
    let mut positions: Vec<u32> = busy.iter().map(|busy| busy.position).filter(|at| *at > 0).collect();
    positions.sort_unstable();
    let position = positions.get(positions.len() / 2).copied().unwrap_or(1);
    // Of a bare majority any server may be the one that has the largest token; or one that was late with a grant and has a number of its own.
    let horizon = Token::new(busy.iter().map(|busy| busy.counter).max().unwrap_or(0));
    // A server that refused because others wait says nothing of an end.
    let ends = busy.iter().filter_map(|busy| busy.free_in).collect::<Vec<_>>();
    let needed = most.min(ends.len().max(1));
    let look_in = reached_by_most(ends, needed).filter(|_| position == 1).map(Duration::from_millis);
    Waiting { position, horizon, look_in }
}

fn busy<'a>(answers: impl Iterator<Item = &'a NodeAnswer>) -> impl Iterator<Item = &'a NodeBusy> {
    answers.filter_map(|answer| match answer {
        NodeAnswer::Busy(busy) => Some(busy),
        _ => None,
    })
}

/// How the servers name one holder.
fn namings<'a>(id: &'a str, busy: &'a [&NodeBusy]) -> impl Iterator<Item = &'a NodeHolder> {
    busy.iter().filter_map(|busy| busy.holder.as_ref()).filter(move |holder| holder.id == id)
}

fn holder_of_most<'a>(busy: &'a [&NodeBusy]) -> Option<&'a NodeHolder> {
    let holders = busy.iter().filter_map(|busy| busy.holder.as_ref());
    holders.max_by_key(|holder| (namings(&holder.id, busy).count(), holder.number))
}

/// Returns the token of a hold: the number that a majority names, or else the only one that is named.
fn token_of(holder: &NodeHolder, busy: &[&NodeBusy], most: usize) -> Option<u64> {
    let numbers = || namings(&holder.id, busy).map(|named| named.number);
    let named = named_by_most(numbers());
    let count = numbers().filter(|number| *number == named).count();
    (count >= most || count == numbers().count()).then_some(named)
}

/// The holder that most servers name, and when it ends for most.
fn seen_by_most(busy: &[&NodeBusy], most: usize) -> Busy {
    let last = Token::new(busy.iter().map(|busy| busy.counter).max().unwrap_or(0));
    let mut waiting: Vec<u32> = busy.iter().map(|busy| busy.waiting).collect();
    waiting.sort_unstable();
    let mut seen = Busy::new(last, waiting.get(waiting.len() / 2).copied().unwrap_or(0));
    let ends: Vec<u64> = busy.iter().filter_map(|busy| busy.free_in).collect();
    let needed = most.min(ends.len().max(1));
    seen.free_in = reached_by_most(ends, needed).map(Duration::from_millis);
    if let Some(holder) = holder_of_most(busy) {
        seen.holder = Some(holder.label.clone());
        seen.token = token_of(holder, busy, most).map_or(Token::ZERO, Token::new);
        seen.held_for = Duration::from_millis(holder.held_for);
        seen.is_resting = holder.is_resting;
    }
    seen
}

#[cfg(test)]
mod tests {
    use tenure_core::clock::SystemClock;
    use tenure_core::model::claim::Label;

    use super::*;

    fn refusal(id: &str, number: u64) -> NodeBusy {
        let (held_for, is_resting, label) = (5, false, Label::new("host", 1, "tenure", "night run"));
        let holder = NodeHolder { number, held_for, is_resting, id: id.to_owned(), label };
        let (free_in, taken) = (Some(1000), Vec::new());
        NodeBusy { counter: number, waiting: 0, position: 0, free_in, taken, holder: Some(holder) }
    }

    /// The third server was not needed for the grant, and has a number of its own, which may be the larger one.
    #[test]
    fn of_two_numbers_that_tie_none_is_named_and_a_third_answer_decides() {
        let (first, second, other) = (refusal("a", 7), refusal("a", 7), refusal("a", 9));
        let tie = seen_by_most(&[&first, &other], 2);
        assert_eq!((tie.token, tie.holder.is_some()), (Token::ZERO, true));
        assert_eq!(seen_by_most(&[&first, &other, &second], 2).token, Token::new(7));
        assert_eq!(seen_by_most(&[&first, &second], 2).token, Token::new(7));
        // Of five, with two that were not needed.
        assert_eq!(seen_by_most(&[&first, &other, &second], 3).token, Token::ZERO);
        // The others do not know the hold.
        assert_eq!(seen_by_most(&[&other], 2).token, Token::new(9));
    }

    #[test]
    fn a_poll_waits_for_one_answer_more_while_it_can_come() {
        let claim = tenure_core::model::claim::Claim {
            resource: tenure_core::model::claim::Name::new("m").expect("a good name"),
            id: tenure_core::model::claim::ClaimId::new(1),
            client: tenure_core::model::claim::ClientId::new(1),
            terms: Arc::new(tenure_core::model::claim::Terms::of_mutex(Label::from_stored("tests"))),
            wait: false,
            floor: Token::ZERO,
            floor_forced: false,
            may_be_known: false,
        };
        let mut poll = Poll::new(Own::new(claim, 7, SystemClock.now(), &Copies::new(3)), None, 3);
        poll.answers[0] = Some(NodeAnswer::Busy(refusal("a", 7)));
        assert!(poll.waits_for_more(), "one server is no majority");
        poll.answers[1] = Some(NodeAnswer::Busy(refusal("b", 9)));
        assert!(!poll.waits_for_more(), "these are two holds");
        poll.answers[1] = Some(NodeAnswer::Busy(refusal("a", 9)));
        assert!(poll.waits_for_more());
        poll.silent[2] = Some("it is down".to_owned());
        assert!(!poll.waits_for_more(), "nobody else answers");
    }
}
