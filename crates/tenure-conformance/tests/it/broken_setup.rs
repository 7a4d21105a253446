//! The engine `memory:`, broken in one way.

use std::sync::Arc;
use std::time::Duration;

use tenure_conformance::Setup;
use tenure_core::clock::SystemClock;
use tenure_core::engine::Connect;
use tenure_core::memory::Store;

use crate::broken_engine::{Call, Fault, Forgetful};
use crate::broken_queue::Line;
use crate::broken_record::{BrokenRecord, Rule};

/// How an engine can be broken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Breakage {
    /// Every client has a store of its own, so none knows of another.
    OwnWorld,
    /// The engine says that it notices deaths at once, but does not.
    PromisesMore,
    /// The engine knows mutexes only, and says so: nothing is wrong with it.
    OnlyMutexes,
    /// The engine says that claims end with their clients, and has any client renew them.
    AdoptsMore,
    /// What is asked or answered is changed on the way.
    Calls(Call),
    /// What is asked of queues, or answered, is changed on the way.
    Queues(Line),
    /// A rule of the model is broken.
    Record(Rule),
}

/// A store with a breakage.
pub(crate) struct Broken {
    breakage: Breakage,
    store: Arc<Store>,
    memory: Arc<Forgetful>,
}

impl Broken {
    pub(crate) fn new(breakage: Breakage) -> Broken {
        let store = match breakage {
            Breakage::Record(rule) => {
                Store::with_flaw(Arc::new(SystemClock), Some(Arc::new(BrokenRecord::new(rule))))
            }
            _ => Store::new(Arc::new(SystemClock)),
        };
        Broken { breakage, store, memory: Arc::default() }
    }
}

impl Setup for Broken {
    fn start() -> Broken {
        unreachable!("a breakage is chosen from the list")
    }

    fn connector(&self) -> Connect {
        let memory = self.memory.clone();
        match self.breakage {
            Breakage::OwnWorld => Store::new(Arc::new(SystemClock)).connector(),
            Breakage::PromisesMore => Fault::PromisesMore.connector(memory, self.store.clone().connector()),
            Breakage::OnlyMutexes => Fault::OnlyMutexes.connector(memory, self.store.clone().connector()),
            Breakage::AdoptsMore => Fault::AdoptsMore.connector(memory, self.store.clone().connector()),
            Breakage::Calls(call) => Fault::Call(call).connector(memory, self.store.clone().connector()),
            Breakage::Queues(line) => Fault::Queue(line).connector(memory, self.store.clone().connector()),
            Breakage::Record(_) => self.store.clone().connector(),
        }
    }

    fn address(&self) -> String {
        unreachable!("no other process reaches this process's memory")
    }

    fn at(_address: &str) -> Broken {
        unreachable!("no other process reaches this process's memory")
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(2500)
    }
}
