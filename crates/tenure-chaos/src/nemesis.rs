//! Carries out a schedule.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::crew::Crew;
use crate::engines::Engine;
use crate::history::now;
use crate::schedule::{Fault, Planned};

/// How often each fault was done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// By their kinds.
    pub(crate) by_kind: BTreeMap<&'static str, usize>,
    /// Faults of servers that were left out, since the one before was not over.
    pub(crate) skipped: usize,
}

impl Done {
    /// How many faults there were.
    pub(crate) fn faults(&self) -> usize {
        self.by_kind.values().sum()
    }
}

/// Does what is planned, and returns when the time and all of it is over: stopped clients go on, and servers answer.
pub(crate) fn carry_out(planned: &[Planned], crew: &Crew<'_>, engine: &Engine, lasts: Duration) -> Done {
    let began = now();
    let mut done = Done::default();
    let is_server_away = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for Planned { at, fault } in planned {
            wait_until(began + at.as_nanos() as u64);
            let from = now();
            match *fault {
                Fault::Stop { client, period } => {
                    crew.stop(client);
                    scope.spawn(move || {
                        std::thread::sleep(period);
                        crew.go_on(client);
                    });
                }
                Fault::Kill { client } => crew.kill(client),
                Fault::Cut { client, reach } => crew.cut(client, reach),
                Fault::Trouble { client, reach, trouble, period } => {
                    crew.trouble(client, reach, trouble);
                    scope.spawn(move || {
                        std::thread::sleep(period);
                        crew.heal(client);
                    });
                }
                _ if is_server_away.swap(true, Ordering::SeqCst) => {
                    done.skipped += 1;
                    continue;
                }
                fault => {
                    let is_server_away = &is_server_away;
                    scope.spawn(move || {
                        engine.break_servers(fault);
                        is_server_away.store(false, Ordering::SeqCst);
                    });
                }
            }
            crew.note(fault, from);
            *done.by_kind.entry(fault.kind()).or_default() += 1;
        }
        wait_until(began + lasts.as_nanos() as u64);
    });
    done
}

fn wait_until(at: u64) {
    std::thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}
