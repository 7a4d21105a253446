//! What `tenure` can be asked for: a file or a folder for each command, with its flags and its help.

pub(crate) mod cache;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod fence;
pub(crate) mod metrics;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod resize;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod watch;
