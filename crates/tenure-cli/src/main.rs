//! The `tenure` command: run a program under a lock, and look at locks.
//!
//! One file per command, a folder for `tenure queue`. `run.rs` is the main one: it acquires, and has the work done under the lease
//! (`supervise.rs`). What the command does, the library can do too.

mod arguments;
mod cache;
mod clock;
mod completions;
mod doctor;
mod elect;
mod exit;
mod fence;
mod lock;
mod output;
mod patience;
mod question;
mod queue;
mod release;
mod resize;
mod run;
mod status;
mod supervise;
mod sys;
mod waiting;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use arguments::{Arguments, Command, Fence};
use clap::Parser;
use clap::error::ErrorKind;
use exit::{Failure, Outcome};
use output::Messages;

/// The engine of this machine, which needs nothing.
const ENGINE_DEFAULT: &str = "local:";
/// How long the end of the command waits for a reader of stderr.
const FLUSH_MAX: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if is_asked_for(error.kind()) => {
            // A reader that has gone away is not an error.
            drop(error.print());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let failure = arguments::usage_failure(&error);
            Messages::TEXT.failure(&failure);
            return ExitCode::from(failure.code);
        }
    };
    let messages = match &arguments.command {
        Command::Run(run) => Messages { json: run.json, quiet: run.quiet },
        Command::Queue(queue) => queue.messages(),
        _ => Messages::TEXT,
    };
    let code = carry_out(arguments, messages).unwrap_or_else(|failure| {
        messages.failure(&failure);
        failure.code
    });
    output::flush(FLUSH_MAX);
    ExitCode::from(code)
}

fn is_asked_for(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

fn carry_out(arguments: Arguments, messages: Messages) -> Outcome {
    let engine = arguments.engine.filter(|url| !url.is_empty());
    let engine = engine.as_deref().unwrap_or(ENGINE_DEFAULT);
    match arguments.command {
        Command::Run(run) => run::run(*run, engine, messages),
        Command::Queue(queue) => queue::queue(queue, engine, messages),
        Command::Cache(cache) => cache::cache(*cache, engine),
        Command::Elect(elect) => elect::elect(&elect, engine),
        Command::Status(status) => status::status(&status, engine),
        Command::Watch(watch) => watch::watch(&watch, engine),
        Command::Release(release) => release::release(&release, engine),
        Command::Resize(resize) => resize::resize(&resize, engine),
        Command::Doctor(doctor) => doctor::doctor(&doctor, engine),
        Command::Fence(Fence::Check(check)) => fence::check(&check),
        Command::Completions(completions) => completions::completions(&completions),
        Command::Man(man) => completions::man(&man),
    }
}

/// Connects, once this process is done with forking.
fn connect(engine: &str, label: Option<&str>) -> Result<tenure::Tenure, Failure> {
    Ok(pollster::block_on(connecting(engine, label))?)
}

/// As [`connect`], without waiting for it.
async fn connecting(engine: &str, label: Option<&str>) -> tenure::Result<tenure::Tenure> {
    log_if_wanted();
    let mut settings = tenure::Settings::default();
    settings.label = label.unwrap_or_default().to_owned();
    tenure::connect_with(engine, settings).await
}

/// Writes the library's log to stderr if `TENURE_LOG` says what of it: `debug`, or `tenure_core=trace`.
fn log_if_wanted() {
    let Some(wanted) = std::env::var("TENURE_LOG").ok().filter(|wanted| !wanted.is_empty()) else { return };
    let Ok(targets) = wanted.parse::<tracing_subscriber::filter::Targets>() else {
        return Messages::TEXT.warning("TENURE_LOG is not understood: write `debug` or `tenure_core=trace`");
    };
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let layer = tracing_subscriber::fmt::layer().with_writer(|| output::Log);
    // It fails only if there is a log already.
    drop(tracing_subscriber::registry().with(layer).with(targets).try_init());
}
