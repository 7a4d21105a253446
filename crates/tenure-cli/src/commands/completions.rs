//! `tenure completions` and `tenure man`: made from the flags, so that they cannot go stale.

use clap::CommandFactory;

use crate::arguments::{Arguments, Completions, Man};
use crate::exit::{self, Failure, Outcome};
use crate::output::write_data;

/// Writes a completion script.
pub(crate) fn completions(completions: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Arguments::command(), "tenure", &mut script);
    write_data(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Writes a manual page.
pub(crate) fn man(man: &Man) -> Outcome {
    let mut root = Arguments::command();
    // Gives each command its whole name, `tenure-run`, and the flags that all have.
    root.build();
    let mut command = &root;
    for name in &man.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            Failure::new(exit::USAGE, format!("there is no command {:?}", man.command.join(" ")))
                .with_hint("see `tenure --help`")
        })?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .render(&mut page)
        .map_err(|error| Failure::system("write a manual page", error))?;
    write_data(&String::from_utf8_lossy(&page))?;
    Ok(0)
}
