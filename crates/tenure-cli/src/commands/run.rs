//! `tenure run`: acquire the lock, run the program under it, release the lock, exit as the program did.
//!
//! Two processes share the duty. This one has the client: it acquires, passes signals on, does the terminal's
//! job control, and sends the keeper (`supervise/keeper.rs`) every new deadline. The keeper has the work, and ends it
//! whatever happens to this process. Invariant: the lease is released only after the keeper has reported that
//! nothing of the work is left, or after this process has made sure of it in the keeper's place.

pub(crate) mod arguments;
mod lock;
mod record;
mod waiting;

use std::time::Duration;

use tenure::{Instant, Tenure};

use crate::clock;
use crate::duration::{format_duration, millis};
use crate::exit::{self, Ended, Outcome};
use crate::output::messages::{JsonEvent, Messages};
use crate::supervise::foreground::Foreground;
use crate::supervise::job::Job;
use crate::supervise::keeper::Streams;
use crate::supervise::retry::Retry;
use crate::supervise::setup::Setup;
use crate::supervise::supervised::Rules;
use crate::supervise::supervisor::Supervisor;
use arguments::Run;
use record::RunRecord;
use waiting::{Held, acquire};

/// How long a candidate waits before it asks a store again that did not answer: it has waited for the answer, too.
const CAMPAIGN_PAUSE: Duration = Duration::from_secs(1);

/// Runs a program under a lock.
pub(crate) fn run(mut arguments: Run, engine: &str, messages: Messages) -> Outcome {
    let began_at = clock::now();
    let job = Job::new(std::mem::take(&mut arguments.command), arguments.grace, arguments.on_loss);
    let job = Job { is_repeated: arguments.leader, ..job };
    let (program, name) = (job.program_text(), job.program_name());
    let label = arguments.label.as_deref().unwrap_or(&name);
    let wait = arguments.wait.or(arguments.every.map(|_| Duration::ZERO));
    let setup = Setup { job, engine, label: Some(label), wait, messages, metrics: &arguments.metrics };
    let Run { name, expected, .. } = &arguments;
    let record = arguments.metrics_file.as_deref();
    let record =
        record.map(|directory| RunRecord::begin(directory, name, *expected, messages)).transpose()?;
    let outcome = setup.with_keeper(|tenure, supervisor, retry| {
        warn_of_grain(tenure, &arguments, messages);
        let record = record.as_ref().inspect(|record| record.write_in_background());
        LockedRun { tenure, arguments: &arguments, program: &program, supervisor, record }
            .run(began_at, retry)
    });
    if let Some(record) = record {
        record.end(&outcome);
    }
    outcome
}

/// Warns if a dead client is noticed later than after the ttl: a short ttl is meant to let the next one run soon after that.
fn warn_of_grain(tenure: &Tenure, arguments: &Run, messages: Messages) {
    let capability = tenure.capability();
    // A ttl that is refused needs no warning.
    if arguments.ttl >= capability.ttl_grain || arguments.ttl < capability.ttl_min {
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
struct LockedRun<'a> {
    tenure: &'a Tenure,
    arguments: &'a Run,
    program: &'a str,
    supervisor: Supervisor<'a>,
    record: Option<&'a RunRecord>,
}

impl LockedRun<'_> {
    fn run(&self, mut began_at: Instant, mut retry: Retry) -> Outcome {
        let LockedRun { arguments, supervisor, .. } = *self;
        let messages = supervisor.messages;
        let mut has_warned_no_answer = false;
        loop {
            let paused = match self.run_once(began_at, retry.left()) {
                Ok(code) => return Ok(code),
                Err(Ended::NoAnswer(failure)) if arguments.leader => {
                    // A store that cannot be reached is why most terms are lost, and it will come back.
                    if !has_warned_no_answer {
                        messages.warning(&format!("{}; campaigning until it is back", failure.message));
                    }
                    has_warned_no_answer = true;
                    supervisor.sleep(CAMPAIGN_PAUSE)
                }
                Err(Ended::Lost(failure)) if arguments.leader => {
                    has_warned_no_answer = false;
                    messages.warning(&format!("{}; campaigning again", failure.message));
                    Ok(())
                }
                // Nothing is known to be held, so it may be asked for again while there is time.
                Err(Ended::NoAnswer(failure)) => retry.pause(failure, supervisor),
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
    fn run_once(&self, began_at: Instant, wait: Option<Duration>) -> Result<u8, Ended> {
        let LockedRun { tenure, arguments, program, supervisor, record } = *self;
        let messages = supervisor.messages;
        let held = acquire(tenure, arguments, wait, supervisor)?;
        let lease = held.lease();
        let waited = clock::now().since(began_at);
        record.inspect(|record| record.granted(waited));
        messages.event(&JsonEvent::Granted {
            name: &arguments.name,
            token: lease.token().get(),
            slot: lease.slot(),
            claim: lease.claim().to_string(),
            waited_ms: millis(waited),
        });
        if arguments.leader {
            messages.message(&format!("leading {:?} under token {}", arguments.name, lease.token()));
        }
        let Run { grace, max_hold, on_loss, .. } = *arguments;
        let rules = Rules { grace, max_hold, on_loss };
        let mut work = Foreground::new(&arguments.name, program, rules, supervisor, lease);
        let mut variables = vec![("TENURE_NAME", arguments.name.clone())];
        variables.extend(lease.slot().map(|slot| ("TENURE_SLOT", slot.to_string())));
        let outcome = work.run(tenure, variables, Streams::default());
        let was_asked_to_end = work.was_asked_to_end;
        drop(work);
        record.inspect(|record| record.worked(&outcome));
        release(held, arguments, messages);
        outcome.map_err(|failure| match failure.code {
            exit::LOST if !was_asked_to_end => Ended::Lost(failure),
            _ => Ended::Failure(failure),
        })
    }
}

/// Releases the lease.
fn release(held: Held, arguments: &Run, messages: Messages) {
    let token = held.lease().token().get();
    match held.release() {
        Ok(tenure::ReleaseAnswer::Released) => {
            messages.event(&JsonEvent::Released { name: &arguments.name, token });
        }
        // That was reported when it was lost.
        Ok(tenure::ReleaseAnswer::AlreadyLost) => {}
        Err(error) => {
            messages.warning(&format!(
                "{error}; the lock is free in {} at the latest",
                format_duration(arguments.ttl)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // page: docs/command.md "says so once, and asks again about every 3 s"
    #[test]
    fn a_candidate_asks_a_silent_store_each_3_s() {
        // The command leaves the answer timeout as it is: 2 s.
        let answer_max = Duration::from_secs(2);
        assert_eq!(answer_max + CAMPAIGN_PAUSE, Duration::from_secs(3));
    }
}
