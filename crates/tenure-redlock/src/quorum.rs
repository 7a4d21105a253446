//! What a majority of independent servers decides about one claim: a pure machine, which takes in each node's answer.
//!
//! **Tokens that only grow, whatever happens to exclusion.** Each node has a counter for a resource, which never falls. A claim brings a
//! proposal; a node that grants it raises its counter to `max(counter + 1, proposal)` and answers that number. The claim has won
//! with token *t* as soon as a majority of nodes have had their counter at *t* **while the claim's key was there**: nodes that granted just
//! that, and nodes that were *stamped* with it. A stamp counts only where the key is still the claim's; a node whose counter is above
//! answers with that, and the claim takes it for its token, or a larger one, and stamps anew.
//!
//! *Why that is enough.* Two winners share a node of their majorities. There they held the key one after the other. When the second was
//! granted there, the counter was at least the first one's token, so the second one's number was larger; and whatever it was stamped
//! with there was no smaller. So tokens differ, and grow in the order of these holds; and a claim that begins after another has won comes later on that
//! node. No clock is in the argument, and no consensus: only the order of winners is wanted, as from a register that
//! majorities write (Attiya and others 1995, "Sharing memory robustly in message-passing systems").
//!
//! *What is needed* is that a node's counter does not fall while the node counts. A node that has forgotten, all or a part (what it reads from its
//! disk is as old as its last snapshot, and that may be different for each key), must not count until no hold rests on its word, and until it has learned from a
//! majority of the others how far all counters have come. Every winner's majority shares a node with those, whose largest number is no
//! smaller than the winner's token. From then on no counter of the node is below what it has learned, also not one that it remembers (`boot.rs`,
//! `tenure.1.base` in `redlock.lua`). And each node has one vote: two links to one server would be a majority that shares no node with
//! another client's.
//!
//! `model.rs` checks it by exhaustion, with lost requests and replies, crashes, keys that end early, repeated claims, and nodes that forget all or
//! go back to a snapshot, and finds what is wrong with each weaker form.

use std::collections::BTreeSet;

use tenure_core::mutant;

#[cfg(test)]
mod model;

/// What a node has answered to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vote {
    /// It granted, and its counter is this now.
    Granted(u64),
    /// It did not grant: others hold, or it must not count, or it cannot.
    Refused,
    /// It has not answered in time, and is not waited for any longer.
    Silent,
}

/// What a node has answered to a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stamped {
    /// The key was the claim's, and the counter is at the token.
    Yes,
    /// The key was the claim's, but the counter is above the token.
    Above(u64),
    /// The key was not the claim's any more, or there was no answer.
    No,
}

/// What is to be done for a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Next {
    /// Wait for more answers.
    Wait,
    /// Stamp these nodes with this token.
    Stamp(u64, Vec<usize>),
    /// It has won, with this token.
    Won(u64),
    /// It cannot win any more. What it holds is to be released, on all nodes.
    Lost,
}

/// The answers to one claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tally {
    votes: Vec<Option<Vote>>,
    /// The token with which nodes are being stamped.
    token: Option<u64>,
    /// The nodes that were at the token while the key was there.
    at_token: BTreeSet<usize>,
    /// The nodes whose answers to a stamp are still to come.
    asked: BTreeSet<usize>,
    /// How often a node was above the token.
    raised: u32,
}

/// How far a token is ahead of the node that was above it, from the second time on: more than a call has claims, and twice as far each time.
///
/// Claims that share a resource each take the next number of a node. Where two nodes are less apart than there are claims, what one claim takes from
/// the first node is what another one has at the second: then it is above there, takes the next one, and so on for ever, each claim
/// with a number that another one had before it. A number that is far ahead is nobody's yet. (They are microseconds, of which a clock soon has more.)
const LEAP: u64 = 1024;
/// How often that doubles: to a second at most. Servers refuse numbers that are an hour ahead, and a call is given up long before its claims get there.
const LEAPS_MAX: u32 = 10;

/// Returns how many of so many nodes are a majority.
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

impl Tally {
    pub(crate) fn new(nodes: usize) -> Tally {
        Tally {
            votes: vec![None; nodes],
            token: None,
            at_token: BTreeSet::new(),
            asked: BTreeSet::new(),
            raised: 0,
        }
    }

    fn majority(&self) -> usize {
        majority(self.votes.len())
    }

    /// Returns the nodes that granted, with their numbers.
    pub(crate) fn granted(&self) -> impl Iterator<Item = (usize, u64)> {
        let granted = |(node, vote): (usize, &Option<Vote>)| match vote {
            Some(Vote::Granted(number)) => Some((node, *number)),
            _ => None,
        };
        self.votes.iter().enumerate().filter_map(granted)
    }

    /// Takes in what a node answered to the claim.
    pub(crate) fn vote(&mut self, node: usize, vote: Vote) -> Next {
        self.votes[node].get_or_insert(vote);
        // One that comes while nodes are stamped is one that may be stamped, too, if more are needed.
        if self.token.is_some() { self.stamping() } else { self.counting() }
    }

    fn counting(&mut self) -> Next {
        let granted: Vec<(usize, u64)> = self.granted().collect();
        let open = self.votes.iter().filter(|vote| vote.is_none()).count();
        if granted.len() + open < self.majority() {
            return Next::Lost;
        }
        let Some(largest) = granted.iter().map(|(_, number)| *number).max() else { return Next::Wait };
        for (_, number) in &granted {
            let agree = granted.iter().filter(|(_, other)| other == number).count();
            if agree >= self.majority() {
                return Next::Won(*number);
            }
        }
        if open > 0 || granted.len() < self.majority() {
            return Next::Wait;
        }
        if mutant!("redlock-plain-tokens") { Next::Won(largest) } else { self.stamp_with(largest, &[]) }
    }

    /// Begins to stamp with a token, at which these nodes are already beside those that granted it.
    fn stamp_with(&mut self, token: u64, at_token: &[usize]) -> Next {
        self.token = Some(token);
        let granted: Vec<(usize, u64)> = self.granted().collect();
        self.at_token = at_token.iter().copied().collect();
        self.at_token.extend(granted.iter().filter(|(_, number)| *number == token).map(|(node, _)| *node));
        // A silent node may have granted, too.
        let may_hold = |(node, vote): (usize, &Option<Vote>)| {
            let may = matches!(vote, Some(Vote::Granted(_) | Vote::Silent));
            (may && !self.at_token.contains(&node)).then_some(node)
        };
        self.asked = self.votes.iter().enumerate().filter_map(may_hold).collect();
        if self.at_token.len() >= self.majority() {
            return Next::Won(token);
        }
        Next::Stamp(token, self.asked.iter().copied().collect())
    }

    /// Takes in what a node answered to a stamp with `token`.
    pub(crate) fn stamped(&mut self, node: usize, token: u64, stamped: Stamped) -> Next {
        // An answer to a stamp before the present one says nothing about this one.
        if self.token != Some(token) {
            return Next::Wait;
        }
        self.asked.remove(&node);
        match stamped {
            Stamped::Yes => {
                self.at_token.insert(node);
            }
            Stamped::Above(number) => {
                self.raised += 1;
                return match self.raised {
                    // It was granted there a second number, whose answer was lost, or others have been granted since.
                    1 => self.stamp_with(number, &[node]),
                    // Nobody has that one, so the node is asked once more, too. A hostile node may have answered any number.
                    raised => self.stamp_with(number.saturating_add(LEAP << raised.min(LEAPS_MAX)), &[]),
                };
            }
            Stamped::No => {}
        }
        self.stamping()
    }

    fn stamping(&self) -> Next {
        let Some(token) = self.token else { return Next::Wait };
        if self.at_token.len() >= self.majority() {
            return Next::Won(token);
        }
        if self.at_token.len() + self.asked.len() < self.majority() { Next::Lost } else { Next::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_that_agrees_wins_at_once() {
        let mut tally = Tally::new(5);
        assert_eq!(tally.vote(0, Vote::Granted(7)), Next::Wait);
        assert_eq!(tally.vote(3, Vote::Granted(9)), Next::Wait);
        assert_eq!(tally.vote(1, Vote::Granted(7)), Next::Wait);
        assert_eq!(tally.vote(2, Vote::Granted(7)), Next::Won(7));
    }

    #[test]
    fn a_majority_that_does_not_agree_is_stamped_with_the_largest() {
        let mut tally = Tally::new(3);
        tally.vote(0, Vote::Granted(7));
        tally.vote(1, Vote::Granted(9));
        assert_eq!(
            tally.vote(2, Vote::Silent),
            Next::Stamp(9, vec![0, 2]),
            "who was silent may have granted"
        );
        assert_eq!(tally.stamped(0, 9, Stamped::Yes), Next::Won(9));
    }

    #[test]
    fn a_node_that_is_above_raises_the_token() {
        let mut tally = Tally::new(3);
        tally.vote(0, Vote::Granted(7));
        tally.vote(1, Vote::Granted(9));
        tally.vote(2, Vote::Refused);
        assert_eq!(tally.stamped(0, 9, Stamped::Above(11)), Next::Stamp(11, vec![1]));
        assert_eq!(tally.stamped(0, 9, Stamped::Yes), Next::Wait, "a late answer to the first stamp");
        assert_eq!(tally.stamped(1, 11, Stamped::Yes), Next::Won(11));
    }

    #[test]
    fn a_number_that_no_honest_node_has_makes_no_token_small() {
        let mut tally = Tally::new(3);
        tally.vote(0, Vote::Granted(7));
        tally.vote(1, Vote::Granted(9));
        tally.vote(2, Vote::Refused);
        assert_eq!(tally.stamped(0, 9, Stamped::Above(11)), Next::Stamp(11, vec![1]));
        let next = tally.stamped(1, 11, Stamped::Above(u64::MAX));
        assert_eq!(next, Next::Stamp(u64::MAX, vec![0, 1]), "which an honest node refuses");
    }

    #[test]
    fn leaps_never_take_a_token_an_hour_ahead_within_a_call() {
        let mut tally = Tally::new(3);
        tally.vote(0, Vote::Granted(7));
        tally.vote(1, Vote::Granted(9));
        tally.vote(2, Vote::Refused);
        let (mut token, mut node) = (9, 0);
        // A call is given up after 2 s, and each of these takes a round trip.
        for _ in 0..2_000 {
            let Next::Stamp(next, _) = tally.stamped(node, token, Stamped::Above(token + 1)) else {
                panic!("it is stamped anew")
            };
            (token, node) = (next, 1 - node);
        }
        assert!(token < 3_600_000_000, "servers refuse floors that far ahead: {token}");
    }

    /// A node that grants to all, each its own number, as `redlock.lua` does.
    struct Shared {
        counter: u64,
        holds: Vec<u64>,
    }

    impl Shared {
        fn grant(&mut self) -> u64 {
            self.counter += 1;
            self.holds.push(self.counter);
            self.counter
        }

        fn stamp(&mut self, claim: usize, token: u64) -> Stamped {
            if self.holds[claim] < token {
                self.counter = token.max(self.counter + 1);
                self.holds[claim] = self.counter;
            }
            if self.holds[claim] == token { Stamped::Yes } else { Stamped::Above(self.holds[claim]) }
        }
    }

    #[test]
    fn claims_of_one_call_that_share_a_resource_all_win() {
        for (claims, apart) in [(2, 1), (3, 1), (3, 2), (100, 1), (100, 57), (100, 99), (100, 100)] {
            let mut nodes = [0, apart].map(|counter| Shared { counter, holds: Vec::new() });
            let mut tallies = vec![Tally::new(3); claims];
            let mut nexts = Vec::new();
            for (claim, tally) in tallies.iter_mut().enumerate() {
                tally.vote(2, Vote::Refused);
                tally.vote(0, Vote::Granted(nodes[0].grant()));
                nexts.push((claim, tally.vote(1, Vote::Granted(nodes[1].grant()))));
            }
            let mut won = BTreeSet::new();
            // Each call to a node has the stamps of all claims.
            for _ in 0..6 {
                let calls = std::mem::take(&mut nexts);
                for (at, node) in nodes.iter_mut().enumerate() {
                    for (claim, next) in &calls {
                        let Next::Stamp(token, asked) = next else { continue };
                        if asked.contains(&at) {
                            let stamped = node.stamp(*claim, *token);
                            match tallies[*claim].stamped(at, *token, stamped) {
                                Next::Won(token) => assert!(won.insert(token), "{token} is won twice"),
                                Next::Wait => {}
                                next => nexts.push((*claim, next)),
                            }
                        }
                    }
                }
            }
            assert_eq!(won.len(), claims, "{claims} claims of which two nodes have numbers {apart} apart");
        }
    }

    #[test]
    fn without_a_majority_it_has_lost() {
        let mut tally = Tally::new(3);
        tally.vote(0, Vote::Refused);
        assert_eq!(tally.vote(1, Vote::Silent), Next::Lost);
        let mut tally = Tally::new(3);
        tally.vote(0, Vote::Granted(7));
        tally.vote(1, Vote::Granted(9));
        tally.vote(2, Vote::Refused);
        assert_eq!(tally.stamped(0, 9, Stamped::No), Next::Lost, "a key that has ended is no vote any more");
    }
}
