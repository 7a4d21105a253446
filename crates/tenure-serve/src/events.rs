//! What happens to locks and queues, told as it happens: server-sent events.
//!
//! The store is asked once for all streams of the same thing: one watcher for each name that is followed ([`names`]), and one survey for
//! all prefixes ([`surveys`]), and only while a stream wants it. A stream that is behind is told the way to the latest state, so nothing
//! is kept for it; one whose reader reads nothing ends with its connection (`pace.rs`).
//!
//! Rejected: a queue of events for each stream, which grows behind a slow reader, or has to say that it left something out.

pub(crate) mod frame;
pub(crate) mod names;
pub(crate) mod stream;
pub(crate) mod surveys;

use std::sync::Arc;

use tenure_core::Tenure;
use tenure_core::survey::Surveyor;
use tokio::runtime::Handle;

use names::Names;
use surveys::Surveys;

/// What streams share.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) names: Arc<Names>,
    pub(crate) surveys: Arc<Surveys>,
}

impl Events {
    pub(crate) fn new(tenure: &Tenure, surveyor: Arc<Surveyor>, runtime: &Handle) -> Events {
        Events {
            names: Arc::new(Names::new(tenure.clone(), runtime.clone())),
            surveys: Arc::new(Surveys::new(surveyor, runtime.clone())),
        }
    }
}
