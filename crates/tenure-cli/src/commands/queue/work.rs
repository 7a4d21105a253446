//! `tenure queue work`: the flags become a queue with its rules, and a crew that serves it.

use std::path::Path;
use std::time::Duration;

use crate::exit::Outcome;
use crate::output::messages::Messages;
use crate::retry::{self, Patience};
use crate::supervise::job::{Job, OnLoss};
use crate::supervise::keeper::keeper_gone;
use crate::supervise::start::prepare;

use super::arguments::Work;
use super::worker_pool::WorkerPool;

/// Runs a program for each item.
pub(crate) fn work(mut arguments: Work, engine: &str, messages: Messages) -> Outcome {
    let program = arguments.command.remove(0);
    let job = Job {
        program: program.clone(),
        arguments: std::mem::take(&mut arguments.command),
        grace: arguments.grace,
        on_loss: OnLoss::Terminate,
        is_repeated: true,
        // Its stdin is the payload. One that wants to ask somebody is refused at a desk as it is in a service.
        is_detached: true,
    };
    // Before the client, which has threads. One for each lane: a keeper has one piece of work.
    let (events, keepers) = prepare(&job, arguments.parallel.into())?;
    let Some(first) = keepers.first() else { return Err(keeper_gone()) };
    // Without the arguments: they may hold a password.
    let program_name = Path::new(&program).file_name().unwrap_or(&program).to_string_lossy();
    let label = arguments.label.as_deref().unwrap_or(&program_name);
    let mut patience = Patience::new(arguments.drain.then_some(Duration::ZERO));
    let tenure = match patience.connect(engine, Some(label), &events, first, messages) {
        Ok(tenure) => tenure,
        Err(ended) => return ended.outcome(),
    };
    let mut queue = tenure.queue(&arguments.name).ttl(arguments.ttl).max_attempts(arguments.max_attempts);
    if let Some(interval) = arguments.interval {
        queue = match arguments.per_group {
            true => queue.group_interval(interval),
            false => queue.interval(interval),
        };
    }
    let program = program.to_string_lossy();
    let mut crew = WorkerPool::new(&tenure, queue, &arguments, &events, keepers, messages, &program);
    let outcome = crew.serve();
    // First the keepers: while they share the client's life, the client cannot tidy up after itself.
    crew.dismiss();
    // Waits for what is still to be settled; bounded by the answer timeout.
    drop(crew);
    retry::close(tenure, &events);
    outcome
}
