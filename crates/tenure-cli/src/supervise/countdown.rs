//! The time that a lease leaves to its work: which deadline the keeper gets, and when the work is asked to end, so that it is
//! dead before the lease can be granted again.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tenure::{Instant, Lease};

use super::keeper::Keeper;
use super::keeper::message::Order;
use super::work::Work;
use crate::clock;

/// The work is killed this long before the deadline, so that it is dead at the deadline. A kill takes well
/// under a millisecond for each process; a fiftieth of the ttl where that is less.
const KILL_AHEAD_MAX: Duration = Duration::from_millis(20);
/// How soon the work is killed again that a keeper should have killed.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// The countdown of one lease.
pub(crate) struct Countdown {
    /// What each renewal gives at most. The ttl that was asked for may be longer, and a part of that never left.
    ttl: Duration,
    grace: Duration,
    /// Since when the work has the lease.
    pub(crate) granted_at: Instant,
    /// The first deadline. A grant to a waiter lives only briefly until it is confirmed.
    first_deadline: Instant,
    /// The last deadline that was sent to the keeper.
    sent_deadline: Instant,
}

impl Countdown {
    /// Begins when the lease is granted.
    pub(crate) fn new(lease: &Lease, grace: Duration) -> Countdown {
        let deadline = lease.deadline();
        let (ttl, granted_at) = (lease.ttl(), clock::now());
        Countdown { ttl, grace, granted_at, first_deadline: deadline, sent_deadline: deadline }
    }

    /// When the keeper kills the work, as far as is known.
    pub(crate) fn kills_at(&self) -> Instant {
        self.sent_deadline - self.kill_ahead()
    }

    /// Sends the keeper a new deadline, and returns when to call this again. `None` means that there is no new one in time: the
    /// work is to be asked to end.
    pub(crate) fn follow(&mut self, lease: &Lease, keeper: &Keeper) -> Option<Duration> {
        let deadline = lease.deadline();
        if deadline > self.sent_deadline {
            self.sent_deadline = deadline;
            keeper.send(&Order::Deadline(self.kills_at().nanos()));
        }
        let left = deadline.since(clock::now());
        let grace = self.grace_before(deadline);
        if left <= grace {
            return None;
        }
        // Renewals come when two thirds of the ttl are left. After half of it, one is late: check more often.
        let half = self.ttl / 2;
        Some(if left > half { left - half } else { (self.ttl / 20).min(left - grace) })
    }

    /// Asks the work to end. It is killed before the lease can be granted again; where there is more time, after the grace.
    pub(crate) fn end_work(&mut self, lease: &Lease, keeper: &Keeper, has_time: bool) {
        let end = lease.deadline() - self.kill_ahead();
        let kill_at = if has_time { end.min(clock::now() + self.grace) } else { end };
        self.sent_deadline = kill_at;
        keeper.send(&Order::Terminate { kill_at: kill_at.nanos() });
    }

    /// Kills the work if the keeper should have done so, and returns when to call this again.
    pub(crate) fn kill_if_overdue(&self, program: Option<Pid>) -> Duration {
        let late = self.sent_deadline + self.kill_ahead();
        let now = clock::now();
        if now < late {
            return late.since(now);
        }
        if let Some(program) = program {
            // If it may not be killed, the keeper has reported that.
            Work::new(program).signal(Signal::KILL);
        }
        KILL_AGAIN
    }

    /// How long before the deadline the work is asked to end.
    fn grace_before(&self, deadline: Instant) -> Duration {
        let grace = self.grace.min(self.ttl / 3);
        if deadline > self.first_deadline {
            return grace;
        }
        // A third of what there was at first: that may be much less than the ttl.
        grace.min(self.first_deadline.since(self.granted_at) / 3)
    }

    fn kill_ahead(&self) -> Duration {
        KILL_AHEAD_MAX.min(self.ttl / 50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The countdown of a lease whose first deadline comes so soon.
    fn countdown(ttl: u64, grace: u64, first: u64) -> (Countdown, Instant) {
        let granted_at = Instant::from_nanos(0) + Duration::from_secs(3600);
        let deadline = granted_at + Duration::from_millis(first);
        let (ttl, grace) = (Duration::from_millis(ttl), Duration::from_millis(grace));
        (Countdown { ttl, grace, granted_at, first_deadline: deadline, sent_deadline: deadline }, deadline)
    }

    #[test]
    fn work_is_killed_20_ms_before_the_deadline_or_a_fiftieth_of_the_ttl() {
        for (ttl, ahead) in [(30_000, 20), (1_000, 20), (500, 10), (100, 2)] {
            let (countdown, deadline) = countdown(ttl, 10_000, ttl);
            assert_eq!(countdown.kills_at(), deadline - Duration::from_millis(ahead), "{ttl} ms");
        }
    }

    #[test]
    fn work_is_asked_to_end_at_the_grace_and_at_most_a_third_of_the_ttl_before_the_deadline() {
        for (ttl, grace, first, asked) in [
            (30_000, 10_000, 30_000, 10_000),
            (30_000, 2_000, 30_000, 2_000),
            (9_000, 10_000, 9_000, 3_000),
            // A grant that is not confirmed yet ends soon.
            (30_000, 10_000, 5_000, 1_666),
        ] {
            let (countdown, deadline) = countdown(ttl, grace, first);
            assert_eq!(countdown.grace_before(deadline).as_millis(), asked, "{ttl} {grace} {first}");
            let later = deadline + Duration::from_secs(60);
            assert_eq!(countdown.grace_before(later).as_millis(), grace.min(ttl / 3).into(), "renewed");
        }
    }
}
