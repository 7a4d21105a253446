//! What is broken, and when: a pure function of a seed.

use std::fmt;
use std::time::Duration;

/// The time from one fault to the next.
pub(crate) const FAULT_EVERY: Duration = Duration::from_millis(600);
/// What [`only`] knows.
const KINDS: [&str; 6] = ["stop", "kill", "cut", "net", "restart", "hang"];
/// How long a client is stopped or its network troubled, in thousandths of a ttl: shorter pauses must lose nothing, longer ones
/// must lose the lease.
const PERIOD_TTL_THOUSANDTHS: std::ops::RangeInclusive<u64> = 100..=3000;

/// What there is to break.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) clients: usize,
    pub(crate) servers: usize,
    pub(crate) ttl: Duration,
    pub(crate) lasts: Duration,
    /// The least time between two restarts of servers, so that clients get on in between.
    pub(crate) restart_every: Duration,
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGSTOP, and SIGCONT after a while.
    Stop { client: usize, period: Duration },
    /// SIGKILL; a new process takes its place at once.
    Kill { client: usize },
    /// All its connections are reset; it may connect anew.
    Cut { client: usize },
    /// Its network is in trouble for a while.
    Trouble { client: usize, trouble: Trouble, period: Duration },
    /// SIGKILL, and a start with the same files.
    Restart { server: usize },
    /// SIGSTOP of a server, and SIGCONT after a while: it keeps its connections and says nothing.
    Hang { server: usize, period: Duration },
}

/// What a network does to one client, on all its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Everything takes longer, each way.
    Delay(Duration),
    /// Requests arrive, and nothing comes back.
    LosesReplies,
    /// Nothing arrives; what was asked before is answered.
    LosesRequests,
    /// Nothing arrives either way, and connections stay open.
    Silent,
    /// What is on its way arrives late, maybe after what is sent later on another connection.
    HoldsBack,
    /// New connections are refused; those that there are go on.
    Refuses,
}

impl Trouble {
    fn random(rng: &mut fastrand::Rng) -> Trouble {
        match rng.u32(0..6) {
            0 => Trouble::Delay(Duration::from_millis(rng.u64(1..=500))),
            1 => Trouble::LosesReplies,
            2 => Trouble::LosesRequests,
            3 => Trouble::Silent,
            4 => Trouble::HoldsBack,
            _ => Trouble::Refuses,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Delay(by) => write!(f, "delays each way by {} ms", by.as_millis()),
            Trouble::LosesReplies => f.write_str("loses replies"),
            Trouble::LosesRequests => f.write_str("loses requests"),
            Trouble::Silent => f.write_str("loses everything"),
            Trouble::HoldsBack => f.write_str("holds back what is on its way"),
            Trouble::Refuses => f.write_str("refuses new connections"),
        }
    }
}

impl Fault {
    /// Its kind, as the command line names it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Fault::Stop { .. } => "stop",
            Fault::Kill { .. } => "kill",
            Fault::Cut { .. } => "cut",
            Fault::Trouble { .. } => "net",
            Fault::Restart { .. } => "restart",
            Fault::Hang { .. } => "hang",
        }
    }
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
    let mut restart_from = scope.restart_every;
    let mut planned = Vec::new();
    let mut at = FAULT_EVERY;
    while at < scope.lasts {
        let fault = if scope.servers > 0 && at >= restart_from {
            restart_from = at + scope.restart_every;
            let server = rng.usize(0..scope.servers);
            Some(match rng.u32(0..3) {
                0 => Fault::Hang { server, period: period(&mut rng, scope) },
                _ => Fault::Restart { server },
            })
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
    Some(match rng.u32(0..if scope.servers > 0 { 14 } else { 7 }) {
        0..4 => Fault::Stop { client, period: period(rng, scope) },
        4..7 => Fault::Kill { client },
        7..9 => Fault::Cut { client },
        _ => Fault::Trouble { client, trouble: Trouble::random(rng), period: period(rng, scope) },
    })
}

fn period(rng: &mut fastrand::Rng, scope: &Scope) -> Duration {
    scope.ttl * u32::try_from(rng.u64(PERIOD_TTL_THOUSANDTHS)).unwrap_or(u32::MAX) / 1000
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.1} s  ", self.at.as_secs_f64())?;
        match self.fault {
            Fault::Stop { client, period } => write!(f, "stop client {client} for {} ms", period.as_millis()),
            Fault::Kill { client } => write!(f, "kill client {client}"),
            Fault::Cut { client } => write!(f, "cut the connections of client {client}"),
            Fault::Trouble { client, trouble, period } => {
                write!(f, "the network of client {client} {trouble} for {} ms", period.as_millis())
            }
            Fault::Restart { server } => write!(f, "restart server {server}"),
            Fault::Hang { server, period } => write!(f, "hang server {server} for {} ms", period.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope = Scope {
        clients: 6,
        servers: 3,
        ttl: Duration::from_secs(2),
        lasts: Duration::from_secs(600),
        restart_every: Duration::from_secs(12),
    };

    #[test]
    fn a_seed_has_one_schedule() {
        assert_eq!(plan(7, &SCOPE), plan(7, &SCOPE));
        assert_ne!(plan(7, &SCOPE), plan(8, &SCOPE));
    }

    #[test]
    fn a_schedule_is_dense_and_has_every_fault() {
        let planned = plan(1, &SCOPE);
        assert!(planned.len() > 900, "{}", planned.len());
        for has in [
            |fault: &Fault| matches!(fault, Fault::Stop { .. }),
            |fault: &Fault| matches!(fault, Fault::Kill { .. }),
            |fault: &Fault| matches!(fault, Fault::Cut { .. }),
            |fault: &Fault| matches!(fault, Fault::Trouble { .. }),
            |fault: &Fault| matches!(fault, Fault::Restart { .. }),
            |fault: &Fault| matches!(fault, Fault::Hang { .. }),
        ] {
            assert!(planned.iter().filter(|one| has(&one.fault)).count() > 10);
        }
    }

    #[test]
    fn some_kinds_alone_come_when_they_come_in_the_whole() {
        let (whole, mut some) = (plan(1, &SCOPE), plan(1, &SCOPE));
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
        for Planned { at, fault } in plan(3, &SCOPE) {
            if let Fault::Stop { client, .. }
            | Fault::Kill { client }
            | Fault::Cut { client }
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
        let scope = Scope { servers: 0, ..SCOPE };
        let of_clients = |one: &Planned| matches!(one.fault, Fault::Stop { .. } | Fault::Kill { .. });
        assert!(plan(1, &scope).iter().all(of_clients));
    }
}
