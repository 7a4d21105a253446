//! A question before a command of an operator does what cannot be undone.

use std::io::{self, IsTerminal, Write};

use crate::exit::{self, Failure};

/// Refuses a command that may not ask and was not forced. `what` fits before "needs a confirmation".
pub(crate) fn check_can_ask(what: &str, is_forced: bool) -> Result<(), Failure> {
    let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    if is_forced || is_terminal {
        return Ok(());
    }
    Err(Failure::new(exit::USAGE, format!("{what} needs a confirmation, and there is no terminal"))
        .with_hint("add `--force` if you are sure"))
}

/// Asks on the terminal. Anything but a yes is a no.
pub(crate) fn ask(question: &str) -> Result<bool, Failure> {
    let mut stderr = io::stderr().lock();
    let asked = stderr.write_all(format!("{question} [y/N] ").as_bytes()).and_then(|()| stderr.flush());
    asked.map_err(|error| Failure::system("ask", error))?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::system("read the answer", error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
