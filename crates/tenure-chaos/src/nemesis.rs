//! Carries out a schedule.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::crew::Crew;
use crate::engines::Engine;
use crate::history::now;
use crate::schedule::{Fault, Planned};

/// How often each fault was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) stops: usize,
    pub(crate) kills: usize,
    pub(crate) cuts: usize,
    pub(crate) troubles: usize,
    pub(crate) restarts: usize,
    pub(crate) hangs: usize,
    /// Faults of servers that were left out, since the one before was not over.
    pub(crate) skipped: usize,
}

impl Done {
    /// How many faults there were.
    pub(crate) fn faults(&self) -> usize {
        self.stops + self.kills + self.cuts + self.troubles + self.restarts + self.hangs
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
            match *fault {
                Fault::Stop { client, period } => {
                    done.stops += 1;
                    crew.stop(client);
                    scope.spawn(move || {
                        std::thread::sleep(period);
                        crew.go_on(client);
                    });
                }
                Fault::Kill { client } => {
                    done.kills += 1;
                    crew.kill(client);
                }
                Fault::Cut { client } => {
                    done.cuts += 1;
                    crew.cut(client);
                }
                Fault::Trouble { client, trouble, period } => {
                    done.troubles += 1;
                    crew.trouble(client, trouble);
                    scope.spawn(move || {
                        std::thread::sleep(period);
                        crew.heal(client);
                    });
                }
                Fault::Restart { .. } | Fault::Hang { .. } if is_server_away.swap(true, Ordering::SeqCst) => {
                    done.skipped += 1;
                }
                Fault::Restart { server } => {
                    done.restarts += 1;
                    let is_server_away = &is_server_away;
                    scope.spawn(move || {
                        engine.restart(server);
                        is_server_away.store(false, Ordering::SeqCst);
                    });
                }
                Fault::Hang { server, period } => {
                    done.hangs += 1;
                    let is_server_away = &is_server_away;
                    scope.spawn(move || {
                        engine.hang(server, period);
                        is_server_away.store(false, Ordering::SeqCst);
                    });
                }
            }
        }
        wait_until(began + lasts.as_nanos() as u64);
    });
    done
}

fn wait_until(at: u64) {
    std::thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}
