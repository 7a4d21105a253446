//! Holders and waiters as users see them.

use std::fmt;

use serde::Serialize;
use tenure::Label;

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
