//! The suite itself: it passes on the model, and every check of it fails on a model that is broken for it.

#![allow(missing_docs, reason = "tests")]

mod breakages;
mod broken_engine;
mod broken_queue;
mod broken_record;
mod broken_setup;
mod lossy_lines;
mod skips;

use std::sync::Arc;

use tenure_conformance::Setup;
use tenure_core::clock::SystemClock;
use tenure_core::engine::Connect;
use tenure_core::memory::Store;

/// The engine `memory:`, a store of its own for each check.
struct Memory(Arc<Store>);

impl Setup for Memory {
    fn start() -> Memory {
        Memory(Store::new(Arc::new(SystemClock)))
    }

    fn connector(&self) -> Connect {
        self.0.clone().connector()
    }

    fn address(&self) -> String {
        unreachable!("no other process reaches this process's memory")
    }

    fn at(_address: &str) -> Memory {
        unreachable!("no other process reaches this process's memory")
    }
}

tenure_conformance::suite!(Memory);
