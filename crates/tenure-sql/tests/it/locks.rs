//! An engine without queues has every lock, and says that it has no queues.

use tenure_conformance::crew::use_every_kind;
use tenure_core::engine::Severity;
use tenure_core::{ErrorKind, Tenure};

use crate::sqlite::Store;

fn connect(store: &Store) -> Tenure {
    pollster::block_on(Tenure::new(store.connector())).expect("it is here")
}

#[test]
fn a_database_without_queues_has_every_lock() {
    let store = Store::new();
    let (a, b) = (connect(&store), connect(&store));
    // One client, whose own waiters need no heartbeat to learn of their turn.
    use_every_kind(&a, &a);
    let held = pollster::block_on(a.mutex("m").acquire()).expect("it is free");
    assert!(pollster::block_on(b.mutex("m").try_acquire()).expect("an answer").is_none());
    let views = pollster::block_on(b.inspect("m")).expect("an answer");
    assert_eq!(views[0].holds[0].token, held.token());
    let findings = pollster::block_on(a.check()).expect("an answer");
    assert!(findings.iter().all(|finding| finding.severity == Severity::Good), "{findings:?}");
    assert!(pollster::block_on(a.purge()).expect("an answer").is_some());
}

#[test]
fn queues_of_a_database_without_queues_are_unsupported() {
    let client = connect(&Store::new());
    assert!(client.queue_capability().is_none());
    let queue = client.queue("q");
    let pushed = pollster::block_on(async { queue.push("item").await.err() });
    let taken = pollster::block_on(async { queue.next().await.err() });
    let listed = pollster::block_on(client.queues("")).err();
    let counted = pollster::block_on(queue.stats()).err();
    for error in [pushed, taken, listed, counted] {
        let error = error.expect("there are no queues");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("no queues"), "{error}");
    }
}
