//! `tenure run`: acquire the lock, run the program under it, release the lock, exit as the program did.
//!
//! Two processes share the duty. This one has the client: it acquires, passes signals on, does the terminal's
//! job control, and tells the keeper (`supervise/keeper.rs`) every new deadline. The keeper has the work, and ends it
//! whatever happens to this process. Invariant: the lease is released only after the keeper has said that
//! nothing of the work is left, or after this process has made sure of it in the keeper's place.

pub(crate) mod arguments;
mod lock;
mod waiting;

use std::time::Duration;

use tenure::{Instant, Tenure};

use crate::clock;
use crate::duration::{format_duration, millis};
use crate::exit::{self, Ended, Outcome};
use crate::output::messages::{Event, Messages};
use crate::retry::{self, Patience};
use crate::supervise::events::Events;
use crate::supervise::foreground::Foreground;
use crate::supervise::job::Job;
use crate::supervise::keeper::{Keeper, Streams, keeper_gone};
use crate::supervise::start::prepare;
use crate::supervise::supervised::Rules;
use arguments::Run;
use waiting::{Held, acquire};

/// How long a candidate waits before it asks a store again that did not answer: it has waited for the answer, too.
const CAMPAIGN_PAUSE: Duration = Duration::from_secs(1);

/// Runs a program under a lock.
pub(crate) fn run(mut arguments: Run, engine: &str, messages: Messages) -> Outcome {
    let began_at = clock::now();
    let program = arguments.command.remove(0);
    let job = Job {
        program: program.clone(),
        arguments: std::mem::take(&mut arguments.command),
        grace: arguments.grace,
        on_loss: arguments.on_loss,
        is_repeated: arguments.leader,
        is_detached: false,
    };
    // Before the client, which has threads.
    let (events, mut keepers) = prepare(&job, 1)?;
    let Some(keeper) = keepers.pop() else { return Err(keeper_gone()) };
    // Without the arguments: they may hold a password.
    let program_name = std::path::Path::new(&program).file_name().unwrap_or(&program).to_string_lossy();
    let label = arguments.label.as_deref().unwrap_or(&program_name);
    let wait = arguments.wait.or(arguments.every.map(|_| Duration::ZERO));
    let mut patience = Patience::new(wait);
    let tenure = match patience.connect(engine, Some(label), &events, &keeper, messages) {
        Ok(tenure) => tenure,
        Err(ended) => return ended.outcome(),
    };
    warn_of_grain(&tenure, &arguments, messages);
    let program = program.to_string_lossy();
    let term = Term { tenure: &tenure, arguments: &arguments, events: &events, keeper: &keeper, messages };
    let outcome = term.serve_all(&program, began_at, patience);
    // First the keeper: while it shares the client's life, the client cannot tidy up after itself.
    keeper.wait();
    retry::close(tenure, &events);
    outcome
}

/// Whoever asks for a short ttl wants the next one to run soon after this machine has died.
fn warn_of_grain(tenure: &Tenure, arguments: &Run, messages: Messages) {
    let capability = tenure.capability();
    if arguments.ttl >= capability.ttl_grain {
        return;
    }
    let (ttl, grain) = (format_duration(arguments.ttl), format_duration(capability.ttl_grain));
    let reason = match capability.ttl_grain_reason {
        "" => String::new(),
        reason => format!(" ({reason})"),
    };
    messages.warning(&format!(
        "if this process dies, {:?} is free after {grain}{reason}, and not after --ttl {ttl}",
        arguments.name
    ));
}

/// Acquires, works and releases: once, or with `--leader` again whenever the lease was lost.
struct Term<'a> {
    tenure: &'a Tenure,
    arguments: &'a Run,
    events: &'a Events,
    keeper: &'a Keeper,
    messages: Messages,
}

impl Term<'_> {
    fn serve_all(&self, program: &str, mut began_at: Instant, mut patience: Patience) -> Outcome {
        let Term { arguments, events, keeper, messages, .. } = *self;
        let mut is_silent = false;
        loop {
            let paused = match self.serve(program, began_at, patience.left()) {
                Ok(code) => return Ok(code),
                Err(Ended::Silent(failure)) if arguments.leader => {
                    // A store that cannot be reached is why most terms are lost, and it will come back.
                    if !is_silent {
                        messages.warning(&format!("{}; campaigning until it is back", failure.message));
                    }
                    is_silent = true;
                    retry::sleep(CAMPAIGN_PAUSE, events, keeper)
                }
                Err(Ended::Lost(failure)) if arguments.leader => {
                    is_silent = false;
                    messages.warning(&format!("{}; campaigning again", failure.message));
                    Ok(())
                }
                // Nothing is known to be held. Who may wait asks again.
                Err(Ended::Silent(failure)) => patience.pause(failure, events, keeper, messages),
                Err(ended) => return ended.outcome(),
            };
            if let Err(ended) = paused {
                return ended.outcome();
            }
            if arguments.leader {
                began_at = clock::now();
            }
        }
    }

    /// Acquires, works and releases.
    fn serve(&self, program: &str, began_at: Instant, wait: Option<Duration>) -> Result<u8, Ended> {
        let Term { tenure, arguments, events, keeper, messages } = *self;
        let held = acquire(tenure, arguments, wait, events, keeper, messages)?;
        let lease = held.lease();
        messages.event(&Event::Granted {
            name: &arguments.name,
            token: lease.token().get(),
            slot: lease.slot(),
            claim: lease.claim().to_string(),
            waited_ms: millis(clock::now().since(began_at)),
        });
        if arguments.leader {
            messages.message(&format!("leading {:?} under token {}", arguments.name, lease.token()));
        }
        let Run { ttl, grace, max_hold, on_loss, .. } = *arguments;
        let rules = Rules { ttl, grace, max_hold, on_loss };
        let mut work = Foreground::new(&arguments.name, rules, events, keeper, messages, lease);
        let mut variables = vec![("TENURE_NAME", arguments.name.clone())];
        variables.extend(lease.slot().map(|slot| ("TENURE_SLOT", slot.to_string())));
        let outcome = work.work(tenure, program, variables, Streams::default());
        let is_told_to_end = work.is_told_to_end;
        drop(work);
        release(held, arguments, messages);
        outcome.map_err(|failure| match failure.code {
            exit::LOST if !is_told_to_end => Ended::Lost(failure),
            _ => Ended::Failure(failure),
        })
    }
}

/// Releases the lease.
fn release(held: Held, arguments: &Run, messages: Messages) {
    let token = held.lease().token().get();
    match held.release() {
        Ok(tenure::ReleaseAnswer::Released) => {
            messages.event(&Event::Released { name: &arguments.name, token });
        }
        // What there is to say about that has been said when it was lost.
        Ok(tenure::ReleaseAnswer::AlreadyLost) => {}
        Err(error) => {
            messages.warning(&format!(
                "{error}; the lock is free in {} at the latest",
                format_duration(arguments.ttl)
            ));
        }
    }
}
