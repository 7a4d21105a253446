//! Holders and waiters as users see them.

use std::fmt;

use std::time::Duration;

use serde::Serialize;
use tenure::{Label, Printable};

use crate::duration::format_duration;

/// The program of labels that this command has made: their text names the work.
const OWN: &str = "tenure";

/// Names a holder for people: `backup.sh (pid 17 on host)`, where the process is the command's.
pub(crate) fn who(label: &Label) -> String {
    match label.program() == OWN && !label.text().is_empty() {
        true => format!("{} (pid {} on {})", Printable(label.text()), label.pid(), Printable(label.host())),
        false => label.to_string(),
    }
}

/// Says who holds, and for how long: `held by backup.sh (pid 17 on host) for 0.8s`.
pub(crate) fn held(label: &Label, held_for: Duration) -> String {
    // What another client of the store has set tells of no holder and of no time.
    match label.pid() {
        0 => format!("held by another client of the store ({label:?})"),
        _ => format!("held by {} for {}", who(label), format_duration(held_for)),
    }
}

/// Says how many wait: `nobody waits`, `1 waits`, `17 wait`.
pub(crate) fn waiters(waiting: u32) -> String {
    match waiting {
        0 => "nobody waits".to_owned(),
        1 => "1 waits".to_owned(),
        _ => format!("{waiting} wait"),
    }
}

/// A holder or a waiter, in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Holder<'a> {
    pub(crate) host: &'a str,
    pub(crate) pid: u32,
    pub(crate) program: &'a str,
    pub(crate) text: &'a str,
}

impl<'a> Holder<'a> {
    /// Takes a label apart.
    pub(crate) fn of(label: &'a Label) -> Holder<'a> {
        Holder { host: label.host(), pid: label.pid(), program: label.program(), text: label.text() }
    }
}

impl fmt::Display for Holder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Label::new(self.host, self.pid, self.program, self.text), f)
    }
}
