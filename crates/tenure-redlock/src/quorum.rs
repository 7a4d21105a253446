//! What a majority of independent servers decides about one claim: a pure machine, which takes in each node's answer.
//!
//! **Tokens that only grow, whatever happens to exclusion.** Each node has a counter for a resource, which never falls. A claim brings a
//! proposal; a node that grants it raises its counter to `max(counter + 1, proposal)` and answers that number. The claim has won
//! with token *t* as soon as a majority of nodes have had their counter at *t* **while the claim's key was there**: nodes that granted just
//! that, and nodes that were *stamped* with it. A stamp counts only where the key is still the claim's; a node whose counter is above
//! answers with that, and the claim takes it for its token and stamps anew.
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
}

/// Returns how many of so many nodes are a majority.
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

impl Tally {
    pub(crate) fn new(nodes: usize) -> Tally {
        Tally { votes: vec![None; nodes], token: None, at_token: BTreeSet::new(), asked: BTreeSet::new() }
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
            // It was granted there a second number, whose answer was lost.
            Stamped::Above(number) => return self.stamp_with(number, &[node]),
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
