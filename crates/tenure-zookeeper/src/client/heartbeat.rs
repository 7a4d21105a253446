//! Until when a client's entries live, from what was sent and answered.
//!
//! A client's session ends when the *leader* has not heard of it for the timeout that was agreed upon. What a client sends to
//! a follower, the leader hears of at the follower's next answer to a ping: at most half a tick later, if the two can still
//! talk. A `sync` is answered through the leader, which checks whether the session goes on, but does not count it as a sign
//! of life. So after a `sync` was answered, all that is known is that the leader had heard of everything that was sent a
//! while
//! *before* that `sync`. A whole tick is taken for the half that it is. From the youngest such moment the timeout runs.
//!
//! Rejected: counting from the last `sync` itself. A client whose follower was cut off right after its answer would
//! believe in its session for up to the age of the sign of life before that one too long.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::clock::Instant;

/// What is known of one session.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    /// When it was asked for: its beginning goes through the leader.
    begun: Instant,
    /// When those calls were sent that were answered, the oldest first.
    sent: VecDeque<Instant>,
    timeout: Duration,
    tick: Duration,
}

impl Heartbeats {
    pub(crate) fn new(begun: Instant, timeout: Duration, tick: Duration) -> Heartbeats {
        Heartbeats { begun, sent: VecDeque::from([begun]), timeout, tick }
    }

    /// A `sync` was answered that was sent at `sent`.
    pub(crate) fn answered(&mut self, sent: Instant) {
        if self.sent.back().is_some_and(|last| *last >= sent) {
            return;
        }
        self.sent.push_back(sent);
        // Only the youngest that is a tick older than the last is ever asked for.
        while self.sent.get(1).is_some_and(|second| sent.since(*second) >= self.tick) {
            self.sent.pop_front();
        }
    }

    /// When the last `sync` was sent that was answered.
    pub(crate) fn last(&self) -> Instant {
        self.sent.back().copied().unwrap_or(self.begun)
    }

    /// Until when the entries live at least.
    pub(crate) fn until(&self) -> Instant {
        let last = self.last();
        let heard = self.sent.iter().rev().find(|sent| last.since(**sent) >= self.tick);
        let margin = self.timeout / 100 + Duration::from_millis(2);
        *heard.unwrap_or(&self.begun) + self.timeout.saturating_sub(margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(200);
    const TIMEOUT: Duration = Duration::from_secs(2);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn until(heartbeats: &Heartbeats) -> u64 {
        heartbeats.until().nanos() / 1_000_000 + 22 - 2000
    }

    #[test]
    fn the_timeout_runs_from_what_the_leader_had_heard_of() {
        let mut heartbeats = Heartbeats::new(at(1000), TIMEOUT, TICK);
        assert_eq!(until(&heartbeats), 1000, "its beginning");
        heartbeats.answered(at(1150));
        assert_eq!(until(&heartbeats), 1000, "nobody knows yet that the leader heard of the second");
        heartbeats.answered(at(1300));
        assert_eq!(until(&heartbeats), 1000);
        heartbeats.answered(at(1350));
        assert_eq!(until(&heartbeats), 1150, "a tick after the second the leader answered");
        heartbeats.answered(at(3000));
        assert_eq!(until(&heartbeats), 1350, "after a silence the last one before it counts");
        heartbeats.answered(at(3199));
        assert_eq!(until(&heartbeats), 1350);
        heartbeats.answered(at(3200));
        assert_eq!(until(&heartbeats), 3000);
    }

    #[test]
    fn nothing_is_kept_that_nobody_asks_for() {
        let mut heartbeats = Heartbeats::new(at(0), TIMEOUT, TICK);
        for millis in 1..10_000 {
            heartbeats.answered(at(millis));
        }
        assert!(heartbeats.sent.len() <= 202, "{}", heartbeats.sent.len());
        assert_eq!(until(&heartbeats), 9799);
        heartbeats.answered(at(5));
        assert_eq!(heartbeats.last(), at(9999), "an answer out of order changes nothing");
    }
}
