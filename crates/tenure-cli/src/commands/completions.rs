//! `tenure completions` and `tenure man`: made from the flags, so that they cannot go stale.

use clap::Args;

use crate::exit::{self, Failure, Outcome};
use crate::output::data::write_data;

/// Write a completion script for a shell to stdout
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tenure completions bash > ~/.local/share/bash-completion/completions/tenure"
)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Write the manual page to stdout
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tenure man run | man -l -")]
pub(crate) struct Man {
    /// The command, as `run` or `queue push`; without it, the page of `tenure` itself
    pub(crate) command: Vec<String>,
}

/// Writes a completion script for the command line `tenure`.
pub(crate) fn completions(completions: &Completions, mut tenure: clap::Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut tenure, "tenure", &mut script);
    write_data(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Writes a manual page of the command line `tenure`.
pub(crate) fn man(man: &Man, mut tenure: clap::Command) -> Outcome {
    // Gives each command its whole name, `tenure-run`, and the flags that all have.
    tenure.build();
    let mut command = &tenure;
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
