//! `tenure queue work`: the flags become a queue with its rules, and a crew that serves it.

use std::path::Path;

use crate::events::{Events, Signals};
use crate::exit::{Failure, Outcome};
use crate::keeper::{Job, Keeper, OnLoss};
use crate::output::Messages;

use super::arguments::Work;
use super::crew::Crew;

/// Runs a program for each item.
pub(crate) fn work(mut arguments: Work, engine: &str, messages: Messages) -> Outcome {
    let signals = Signals::catch().map_err(|error| Failure::system("catch signals", error))?;
    let program = arguments.command.remove(0);
    let job = Job {
        program: program.clone(),
        arguments: std::mem::take(&mut arguments.command),
        grace: arguments.grace,
        on_loss: OnLoss::Terminate,
        is_repeated: true,
    };
    // Before the client, which has threads. One for each lane: a keeper has one piece of work.
    let keepers = Keeper::start_several(&job, signals.before(), arguments.parallel.into())
        .map_err(|error| Failure::system("start the keeper processes", error))?;
    // If a keeper is killed, its work becomes a child of this process and can be waited for.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let events = Events::new(signals).map_err(|error| Failure::system("wait for events", error))?;
    // Without the arguments: they may hold a password.
    let program_name = Path::new(&program).file_name().unwrap_or(&program).to_string_lossy();
    let label = arguments.label.as_deref().unwrap_or(&program_name);
    let tenure = crate::connect(engine, Some(label))?;
    let mut queue = tenure.queue(&arguments.name).ttl(arguments.ttl).max_attempts(arguments.max_attempts);
    if let Some(interval) = arguments.interval {
        queue = match arguments.per_group {
            true => queue.group_interval(interval),
            false => queue.interval(interval),
        };
    }
    let program = program.to_string_lossy();
    let mut crew = Crew::new(&tenure, queue, &arguments, &events, keepers, messages, &program);
    let outcome = crew.serve();
    // First the keepers: while they share the client's life, the client cannot tidy up after itself.
    crew.dismiss();
    // Waits for what is still to be settled; bounded by the answer timeout.
    pollster::block_on(tenure.close());
    outcome
}
