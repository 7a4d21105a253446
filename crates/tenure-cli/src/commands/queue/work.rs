//! `tenure queue work`: the flags become a queue with its rules, and a pool of workers that serves it.

use std::time::Duration;

use crate::exit::Outcome;
use crate::output::messages::Messages;
use crate::supervise::job::{Job, OnLoss};
use crate::supervise::setup::Setup;

use super::arguments::Work;
use super::worker_pool::WorkerPool;

/// Runs a program for each item.
pub(crate) fn work(mut arguments: Work, engine: &str, messages: Messages) -> Outcome {
    let job = Job::new(std::mem::take(&mut arguments.command), arguments.grace, OnLoss::Terminate);
    // Its stdin is the payload. A program that asks the user on the terminal is refused at a terminal as it is in a service.
    let job = Job { is_repeated: true, is_detached: true, ..job };
    job.check_program()?;
    let (program, name) = (job.program_text(), job.program_name());
    let label = arguments.label.as_deref().unwrap_or(&name);
    let wait = arguments.drain.then_some(Duration::ZERO);
    let setup = Setup { job, engine, label: Some(label), wait, messages, metrics: &arguments.metrics };
    // One keeper for each lane: a keeper has one piece of work.
    setup.with_keepers(arguments.parallel.into(), |tenure, events, keepers, _| {
        let mut queue = tenure.queue(&arguments.name).ttl(arguments.ttl).max_attempts(arguments.max_attempts);
        if let Some(interval) = arguments.interval {
            queue = match arguments.per_group {
                true => queue.group_interval(interval),
                false => queue.interval(interval),
            };
        }
        let mut pool = WorkerPool::new(tenure, queue, &arguments, events, keepers, messages, &program);
        let outcome = pool.serve();
        pool.dismiss();
        outcome
    })
}
