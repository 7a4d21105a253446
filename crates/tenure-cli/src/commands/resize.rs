//! `tenure resize`: an operator changes how many units a semaphore or a slot pool has.

use tenure::{Kind, View};

use crate::arguments::Resize;
use crate::exit::{self, Failure, Outcome};
use crate::output::write_data;
use crate::question;

/// Changes a capacity.
pub(crate) fn resize(resize: &Resize, engine: &str) -> Outcome {
    question::check_can_ask("changing a capacity", resize.force)?;
    let tenure = crate::connect(engine, None)?;
    let (name, capacity) = (&resize.name, resize.capacity);
    let view = pollster::block_on(tenure.view(name))?;
    if let Some(view) = &view {
        check_kind(view)?;
        if !resize.force && !question::ask(&question(view, capacity))? {
            return Ok(exit::DECLINED);
        }
    }
    pollster::block_on(tenure.resize(name, capacity))?;
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
