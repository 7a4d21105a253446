//! What one checker says.

use crate::promise::Promises;

/// The findings of one checker, and how much it has judged. A finding fails the soak unless the engine's promises excuse it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// What must not happen, as reports call it.
    pub(crate) name: &'static str,
    pub(crate) findings: Vec<String>,
    /// How much was judged: no findings mean nothing if nothing was.
    pub(crate) seen: String,
    pub(crate) excuse: Excuse,
}

/// Which promise an engine must have given up for findings to be counted only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Excuse {
    #[default]
    Never,
    /// One holder at a time.
    Overlaps,
    /// The same, or that a value is fresh no longer than it was said to be.
    Ages,
    /// The order of lines and of items, and the pace of dispatches.
    Order,
}

impl Found {
    /// Whether all is as it was promised.
    pub(crate) fn keeps(&self, promises: Promises) -> bool {
        self.findings.is_empty() || self.is_counted(promises)
    }

    /// Whether findings are counted here, and do not fail the soak.
    pub(crate) fn is_counted(&self, promises: Promises) -> bool {
        match self.excuse {
            Excuse::Never => false,
            Excuse::Overlaps => promises.counts_overlaps,
            Excuse::Ages => promises.counts_overlaps || promises.counts_ages,
            Excuse::Order => promises.counts_order,
        }
    }
}
