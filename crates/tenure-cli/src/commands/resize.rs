//! `tenure resize`: an operator changes how many units a semaphore or a slot pool has.

use clap::Args;
use tenure::{Kind, View};

use crate::connect::connect_blocking;
use crate::exit::{self, Failure, Outcome};
use crate::output::audit::{self, Act};
use crate::output::data::write_data;
use crate::output::question;

const RESIZE_HELP: &str = "\
Changes how many units a semaphore (`run --permits`) or a slot pool (`run --slots`) has while it is in use.

More units go to the waiters. With fewer, no work is ended, and nothing is granted before enough units are released. \
Afterwards a program that says the old number is refused (exit code 64), so change them too. A name that is not in \
use has no capacity: the next claim says it.";

const RESIZE_AFTER_HELP: &str = "\
Example:
  tenure resize api 8    where programs say `tenure run api --permits 4`

Exit codes:
  0    changed, or NAME is not in use
  1    the question was answered with no
  64   wrong usage, there is no terminal to ask on, or NAME is neither a semaphore nor a slot pool
  69   the engine is not available";

/// Change how many units a semaphore or a slot pool has, while it is in use
#[derive(Debug, Args)]
#[command(long_about = RESIZE_HELP, after_help = RESIZE_AFTER_HELP)]
pub(crate) struct Resize {
    /// The semaphore or slot pool
    pub(crate) name: String,
    /// The new number of units or slots
    pub(crate) capacity: u32,
    /// Do not ask for a confirmation
    #[arg(long)]
    pub(crate) force: bool,
}

/// Changes a capacity.
pub(crate) fn resize(resize: &Resize, engine: &str) -> Outcome {
    question::check_can_ask("changing a capacity", resize.force)?;
    let tenure = connect_blocking(engine)?;
    let (name, capacity) = (&resize.name, resize.capacity);
    let view = pollster::block_on(tenure.view(name))?;
    if let Some(view) = &view {
        check_kind(view)?;
        if !resize.force && !question::ask(&question(view, capacity))? {
            return Ok(exit::DECLINED);
        }
    }
    let answer = pollster::block_on(tenure.resize(name, capacity));
    audit::tell(
        &tenure,
        engine,
        &Act { what: "resize", name, detail: &format!("{capacity} units") },
        &answer,
        |()| "done".to_owned(),
    );
    answer?;
    pollster::block_on(tenure.close());
    write_data(&match view {
        Some(view) => format!("{name:?} has {capacity} units now, in place of {}\n", view.capacity),
        None => format!("{name:?} is not in use: whoever claims it next says how many units it has\n"),
    })?;
    Ok(0)
}

fn check_kind(view: &View) -> Result<(), Failure> {
    if matches!(view.kind, Kind::Semaphore | Kind::SlotPool) {
        return Ok(());
    }
    Err(Failure::new(exit::USAGE, format!("{:?} is a {}", view.resource.as_str(), view.kind))
        .with_hint("only semaphores (`--permits`) and slot pools (`--slots`) have a capacity to change"))
}

fn question(view: &View, capacity: u32) -> String {
    let (name, used) = (view.resource.as_str(), view.used);
    let excess = if used > capacity {
        format!(
            "\n{used} are held: nobody is ended, and nobody is granted before they are fewer than {capacity}."
        )
    } else {
        String::new()
    };
    format!(
        "{name:?} is a {} of {} units, {used} of them held.{excess}\nPrograms that name it with {} are refused \
         afterwards.\nChange it to {capacity}?",
        view.kind, view.capacity, view.capacity
    )
}
