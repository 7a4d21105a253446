//! What is broken, and when: a pure function of a seed.

mod fault;

use std::fmt;
use std::time::Duration;

pub(crate) use fault::{Fault, KINDS, Reach, Trouble};

/// The time from one fault to the next.
pub(crate) const FAULT_EVERY: Duration = Duration::from_millis(600);
/// How long a client is stopped or its network troubled, in thousandths of a ttl: shorter pauses must lose nothing, longer ones
/// must lose the lease.
const PERIOD_TTL_THOUSANDTHS: std::ops::RangeInclusive<u64> = 100..=3000;
/// The first fault that takes a server away comes after this part of the time between two.
const FIRST_PART: u32 = 3;
/// One of so many faults is one of servers that is over at once.
const LIGHT_PART: u32 = 8;
/// For how long replicas receive nothing before their master is killed, where they do not keep up.
const LAGGING_MS: std::ops::RangeInclusive<u64> = 50..=500;
/// Steps of a clock ahead, in milliseconds, up to a day. It stays there.
const AHEAD_MS: [u64; 6] = [200, 1000, 5000, 60_000, 3_600_000, 86_400_000];
/// Steps of a clock back. What a dead client holds lasts longer by as much, so they must not be long.
const BACK_MS: [u64; 3] = [200, 500, 1000];

/// Of how many resources the server in charge may be meant.
const RESOURCES: usize = 8;
/// A connection is one of those that there are, whose number is not known before.
const CONNECTIONS: usize = 1000;

/// What there is to break.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) clients: usize,
    /// The servers' processes.
    pub(crate) servers: usize,
    /// What each client connects to: none without servers.
    pub(crate) addresses: usize,
    pub(crate) ttl: Duration,
    pub(crate) lasts: Duration,
    /// The least time between two faults that take servers away, so that clients get on in between.
    pub(crate) restart_every: Duration,
    /// The kinds of those.
    pub(crate) heavy: Vec<&'static str>,
    /// The kinds of faults of servers that are over at once.
    pub(crate) light: Vec<&'static str>,
}

/// A fault and its time, counted from when the work began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
}

/// Returns the faults of a seed in their order.
pub(crate) fn plan(seed: u64, scope: &Scope) -> Vec<Planned> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut free_from = vec![Duration::ZERO; scope.clients];
    let mut heavy_from = scope.restart_every / FIRST_PART;
    let mut planned = Vec::new();
    let mut at = FAULT_EVERY;
    while at < scope.lasts {
        let fault = if !scope.heavy.is_empty() && at >= heavy_from {
            heavy_from = at + scope.restart_every;
            let kind = scope.heavy[rng.usize(0..scope.heavy.len())];
            Some(of_servers(kind, &mut rng, scope))
        } else if !scope.light.is_empty() && rng.u32(0..LIGHT_PART) == 0 {
            let kind = scope.light[rng.usize(0..scope.light.len())];
            Some(of_servers(kind, &mut rng, scope))
        } else {
            of_client(&mut rng, scope, &free_from, at)
        };
        if let Some(fault) = fault {
            if let Fault::Stop { client, period } | Fault::Trouble { client, period, .. } = fault {
                free_from[client] = at + period;
            }
            planned.push(Planned { at, fault });
        }
        at += FAULT_EVERY;
    }
    planned
}

/// Leaves only faults of some kinds, at the times that they have in the whole schedule: `stop,kill`.
///
/// # Errors
/// If there is no such kind.
pub(crate) fn only(planned: &mut Vec<Planned>, kinds: &str) -> Result<(), String> {
    let kinds: Vec<&str> = kinds.split(',').collect();
    if let Some(kind) = kinds.iter().find(|kind| !KINDS.contains(kind)) {
        return Err(format!("there is no fault {kind:?}: one of {}", KINDS.join(", ")));
    }
    planned.retain(|planned| kinds.contains(&planned.fault.kind()));
    Ok(())
}

/// Chooses a fault of one of the clients that are not stopped; none if all are.
fn of_client(rng: &mut fastrand::Rng, scope: &Scope, free_from: &[Duration], at: Duration) -> Option<Fault> {
    let free: Vec<usize> = (0..scope.clients).filter(|client| free_from[*client] <= at).collect();
    let client = *free.get(rng.usize(0..free.len().max(1)))?;
    // Without servers there are no connections.
    Some(match rng.u32(0..if scope.addresses > 0 { 14 } else { 7 }) {
        0..4 => Fault::Stop { client, period: period(rng, scope) },
        4..7 => Fault::Kill { client },
        7..9 => Fault::Cut { client, reach: reach(rng, scope) },
        _ => {
            let reach = reach(rng, scope);
            Fault::Trouble { client, reach, trouble: trouble(rng, reach), period: period(rng, scope) }
        }
    })
}

fn of_servers(kind: &str, rng: &mut fastrand::Rng, scope: &Scope) -> Fault {
    let server = rng.usize(0..scope.servers);
    match kind {
        "restart" => Fault::Restart { server },
        "hang" => Fault::Hang { server, period: period(rng, scope) },
        "failover" => Fault::Failover { of: rng.usize(0..RESOURCES) },
        "lagging" => Fault::LaggingFailover { by: Duration::from_millis(rng.u64(LAGGING_MS)) },
        "handover" => Fault::HandOver { of: rng.usize(0..RESOURCES) },
        "link" => Fault::CutOff { server: rng.bool().then_some(server), period: period(rng, scope) },
        "lag" => Fault::LeaveBehind { period: period(rng, scope) },
        "slots" => Fault::MoveSlot { of: rng.usize(0..RESOURCES), period: period(rng, scope) / 4 },
        "disk" => Fault::FillDisk { period: period(rng, scope) },
        "kick" => Fault::Kick { messages: rng.bool() },
        "scripts" => Fault::ForgetScripts,
        "flush" => Fault::ForgetAll,
        "compact" => Fault::Compact,
        "clock" if rng.u32(0..3) == 0 => {
            Fault::SetBack { server, by: Duration::from_millis(BACK_MS[rng.usize(0..BACK_MS.len())]) }
        }
        "clock" => {
            Fault::SetAhead { server, by: Duration::from_millis(AHEAD_MS[rng.usize(0..AHEAD_MS.len())]) }
        }
        _ => unreachable!("{kind} is no fault of servers"),
    }
}

/// Half of them all connections, the others one, or those to one server where there are several.
fn reach(rng: &mut fastrand::Rng, scope: &Scope) -> Reach {
    match rng.u32(0..4) {
        0 | 1 => Reach::All,
        2 if scope.addresses > 1 => Reach::Address(rng.usize(0..scope.addresses)),
        _ => Reach::Connection(rng.usize(0..CONNECTIONS)),
    }
}

fn trouble(rng: &mut fastrand::Rng, reach: Reach) -> Trouble {
    // Delays, and what becomes of new connections, are of an address, and not of one of its connections.
    let troubles = if matches!(reach, Reach::Connection(_)) { 4 } else { 6 };
    match rng.u32(0..troubles) {
        0 => Trouble::LosesReplies,
        1 => Trouble::LosesRequests,
        2 => Trouble::Silent,
        3 => Trouble::HoldsBack,
        4 => Trouble::Delay(Duration::from_millis(rng.u64(1..=500))),
        _ => Trouble::Refuses,
    }
}

fn period(rng: &mut fastrand::Rng, scope: &Scope) -> Duration {
    scope.ttl * u32::try_from(rng.u64(PERIOD_TTL_THOUSANDTHS)).unwrap_or(u32::MAX) / 1000
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.1} s  {}", self.at.as_secs_f64(), self.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        Scope {
            clients: 6,
            servers: 3,
            addresses: 3,
            ttl: Duration::from_secs(2),
            lasts: Duration::from_secs(1200),
            restart_every: Duration::from_secs(4),
            heavy: vec!["restart", "hang", "failover", "lagging", "handover", "link", "lag", "slots", "disk"],
            light: vec!["kick", "scripts", "flush", "compact", "clock"],
        }
    }

    #[test]
    fn a_seed_has_one_schedule() {
        assert_eq!(plan(7, &scope()), plan(7, &scope()));
        assert_ne!(plan(7, &scope()), plan(8, &scope()));
    }

    #[test]
    fn a_schedule_is_dense_and_has_every_fault() {
        let planned = plan(1, &scope());
        assert!(planned.len() > 1700, "{}", planned.len());
        for kind in KINDS {
            let count = planned.iter().filter(|one| one.fault.kind() == kind).count();
            assert!(count > 10, "{kind}: {count}");
        }
    }

    #[test]
    fn some_kinds_alone_come_when_they_come_in_the_whole() {
        let (whole, mut some) = (plan(1, &scope()), plan(1, &scope()));
        only(&mut some, "kill,restart").expect("both are kinds");
        assert!(!some.is_empty() && some.len() < whole.len());
        assert!(
            some.iter().all(|one| whole.contains(one) && ["kill", "restart"].contains(&one.fault.kind()))
        );
        assert!(only(&mut some, "kill,flood").is_err());
    }

    #[test]
    fn a_stopped_client_is_left_alone_until_it_goes_on() {
        let mut free_from = [Duration::ZERO; 6];
        for Planned { at, fault } in plan(3, &scope()) {
            if let Fault::Stop { client, .. }
            | Fault::Kill { client }
            | Fault::Cut { client, .. }
            | Fault::Trouble { client, .. } = fault
            {
                assert!(free_from[client] <= at);
            }
            if let Fault::Stop { client, period } | Fault::Trouble { client, period, .. } = fault {
                free_from[client] = at + period;
            }
        }
    }

    #[test]
    fn without_servers_only_clients_fail() {
        let scope = Scope { servers: 0, addresses: 0, heavy: Vec::new(), light: Vec::new(), ..scope() };
        let of_clients = |one: &Planned| matches!(one.fault, Fault::Stop { .. } | Fault::Kill { .. });
        assert!(plan(1, &scope).iter().all(of_clients));
    }
}
