//! The `tenure` command: run a program under a lock, and inspect locks.
//!
//! `commands/` has a file for each command. `commands/run.rs` is the main one: it acquires, and has the work done under the lease
//! (`supervise.rs`). What the command does, the library can do too.

mod arguments;
mod clock;
mod commands;
mod connect;
mod counting;
mod duration;
mod exit;
mod listing;
mod output;
mod supervise;
mod sys;
mod traces;

use std::process::ExitCode;
use std::time::Duration;

use arguments::{Arguments, Command};
use clap::CommandFactory;
use clap::error::ErrorKind;
use commands::{
    cache, completions, doctor, elect, fence, metrics, queue, release, resize, run, serve, status, top, watch,
};
use connect::{ENGINE_DEFAULT, check_engine};
use exit::Outcome;
use output::lines;
use output::messages::Messages;

// That of musl has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the end of the command waits for a reader of stderr.
const FLUSH_MAX: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments = match arguments::read() {
        Ok(arguments) => arguments,
        Err(error) if is_asked_for(error.kind()) => {
            // A reader that has gone away is not an error.
            drop(error.print());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let failure = arguments::usage_failure(&error);
            let json = arguments::wants_json_messages(std::env::args_os());
            Messages { json, quiet: false }.failure(&failure);
            return ExitCode::from(failure.code);
        }
    };
    let messages = match &arguments.command {
        Command::Run(run) => Messages { json: run.json, quiet: run.quiet },
        Command::Queue(queue) => queue.messages(),
        _ => Messages::TEXT,
    };
    let code = dispatch(arguments, messages).unwrap_or_else(|failure| {
        messages.failure(&failure);
        failure.code
    });
    traces::end();
    lines::flush(FLUSH_MAX);
    ExitCode::from(code)
}

fn is_asked_for(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

fn dispatch(arguments: Arguments, messages: Messages) -> Outcome {
    let engine = arguments.engine.as_deref().unwrap_or(ENGINE_DEFAULT);
    let needs_engine = match &arguments.command {
        Command::Fence(_) | Command::Completions(_) | Command::Man(_) => false,
        Command::Serve(serve) => serve.needs_engine(),
        _ => true,
    };
    if needs_engine {
        check_engine(engine, messages)?;
    }
    match arguments.command {
        Command::Run(run) => run::run(*run, engine, messages),
        Command::Queue(queue) => queue::queue(queue, engine, messages),
        Command::Cache(cache) => cache::cache(*cache, engine),
        Command::Elect(elect) => elect::elect(&elect, engine),
        Command::Status(status) => status::status(&status, engine),
        Command::Top(top) => top::top(&top, engine),
        Command::Watch(watch) => watch::watch(&watch, engine),
        Command::Release(release) => release::release(&release, engine),
        Command::Resize(resize) => resize::resize(&resize, engine),
        Command::Doctor(doctor) => doctor::doctor(&doctor, engine),
        Command::Metrics(metrics) => metrics::metrics(&metrics, engine),
        Command::Serve(serve) => serve::serve(*serve, engine),
        Command::Fence(fence::Fence::Check(check)) => fence::check(&check),
        Command::Completions(completions) => {
            completions::completions(&completions, engine, Arguments::command())
        }
        Command::Man(man) => completions::man(&man, Arguments::command()),
    }
}
