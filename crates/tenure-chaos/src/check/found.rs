//! What one checker says.

use crate::promise::Promises;

/// Its findings, each of which breaks a promise, and how much it had to look at.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// What is promised not to be.
    pub(crate) name: &'static str,
    pub(crate) findings: Vec<String>,
    /// How much there was to judge: a checker that has seen nothing has found nothing.
    pub(crate) seen: String,
    pub(crate) excuse: Excuse,
}

/// When findings are counted only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Excuse {
    #[default]
    Never,
    /// Where two may hold at once, or what is fresh may be so for longer.
    Ages,
    /// Where order is not kept.
    Order,
}

impl Found {
    /// Whether all is as it was promised.
    pub(crate) fn keeps(&self, promises: Promises) -> bool {
        self.findings.is_empty() || self.is_counted(promises)
    }

    /// Whether findings are counted, and no failure.
    pub(crate) fn is_counted(&self, promises: Promises) -> bool {
        match self.excuse {
            Excuse::Never => false,
            Excuse::Ages => promises.counts_overlaps || promises.counts_ages,
            Excuse::Order => promises.counts_order,
        }
    }
}
