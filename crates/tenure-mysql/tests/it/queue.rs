//! Queues on a real server, beside the model.

use std::sync::Arc;

use tenure_conformance::queue_model::{Crowd, agrees_with_the_model, crowd};
use tenure_core::engine::DynEngine;
use tenure_core::model::claim::ClientId;
use tenure_testkit::mariadb;

use crate::conformance::connector;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn engine(url: &str) -> Arc<dyn DynEngine> {
    connector(url).open(ClientId::new(fastrand::u64(..))).await.expect("the server answers")
}

/// A name that no other test of the run uses.
fn name(what: &str) -> String {
    format!("{what} {:x}", fastrand::u64(..))
}

#[test]
fn queues_do_what_the_model_says() {
    let runtime = runtime();
    // Tables of its own: a scan of the queue before, in the index, holds this one's first row for a moment, and what is held is
    // passed over, so that the next item is handed out before it.
    let engine = runtime.block_on(engine(&format!("{}?prefix=model_", mariadb::shared())));
    let queues = engine.queues().expect("it has queues");
    for _ in 0..4 {
        agrees_with_the_model(&runtime, queues, &name("model"), 500, true);
    }
}

#[test]
fn nothing_is_lost_or_doubled_in_a_crowd() {
    let runtime = runtime();
    let url = mariadb::shared();
    let engines: Vec<_> = (0..8).map(|_| runtime.block_on(engine(&url))).collect();
    for (groups, items) in [(50, 300), (3, 100)] {
        crowd(&runtime, &engines, &name("crowd"), Crowd { groups, items, workers: 2 });
    }
}
