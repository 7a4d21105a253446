//! Queues on real servers, beside the model.

use std::sync::Arc;

use tenure_conformance::queue_model::{Crowd, agrees_with_the_model, crowd};
use tenure_core::claim::ClientId;
use tenure_core::engine::Engine;
use tenure_testkit::postgres;

use crate::conformance::connector;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn engine(url: &str) -> Arc<dyn Engine> {
    connector(url)(ClientId::new(fastrand::u64(..))).await.expect("the server answers")
}

fn with(url: &str, setting: &str) -> String {
    let join = if url.contains('?') { '&' } else { '?' };
    format!("{url}{join}{setting}")
}

/// A name that no other test of the run uses.
fn name(what: &str) -> String {
    format!("{what} {:x}", fastrand::u64(..))
}

#[test]
fn queues_do_what_the_model_says() {
    runtime().block_on(async {
        for (url, has_short_ttls) in [
            (postgres::shared(), false),
            (with(&postgres::shared(), "listen=off"), true),
            (postgres::shared_behind_pgbouncer(), true),
        ] {
            let engine = engine(&url).await;
            let queues = engine.queues().expect("it has queues");
            for _ in 0..4 {
                agrees_with_the_model(queues, &name("model"), fastrand::u64(..), 500, has_short_ttls).await;
            }
        }
    });
}

#[test]
fn nothing_is_lost_or_doubled_in_a_crowd() {
    runtime().block_on(async {
        let mut engines = Vec::new();
        for _ in 0..8 {
            engines.push(engine(&postgres::shared()).await);
        }
        for (groups, items) in [(50, 400), (3, 200)] {
            crowd(&engines, &name("crowd"), Crowd { groups, items, workers: 2 }).await;
        }
    });
}
