//! Contexts beside clients that know none.

use std::sync::Arc;

use tenure_core::clock::SystemClock;
use tenure_testkit::TestDirectory;

use super::*;
use crate::config::Config;
use crate::place::directory::Directory;
use crate::store::{Store, Transaction};

/// A store in a directory of its own, removed at the end.
struct TestStore {
    store: Store,
    /// Removed after the store is closed.
    _files: TestDirectory,
}

impl TestStore {
    fn new() -> TestStore {
        let files = TestDirectory::new();
        let config = Config::in_directory(files.path().join("place"));
        let (directory, setup) = Directory::open(&config, &SystemClock).unwrap();
        let store = Store::open(Arc::new(directory), Arc::new(SystemClock), &config, &setup).unwrap();
        TestStore { store, _files: files }
    }

    fn transact<T>(&self, work: impl FnOnce(&mut Transaction<'_>) -> Result<T, Failure>) -> T {
        self.store.transact(work).unwrap().0
    }

    /// Does something with a queue, as a client of now does.
    fn with<T>(&self, id: u64, work: impl FnOnce(&mut QueueRows<'_, '_>) -> T) -> T {
        self.transact(|transaction| {
            let rows = transaction.rows();
            let mut queue = QueueRows::open(rows, transaction.writer(), id)?;
            let done = work(&mut queue);
            queue.close()?;
            Ok(done)
        })
    }

    /// Removes an item as a client does that knows no contexts.
    fn remove_before(&self, id: u64, item: u64) {
        self.transact(|transaction| {
            let rows = transaction.rows();
            let mut queue = QueueRows::open(rows, transaction.writer(), id)?;
            queue.delete(&queue.key(What::Item).number(item))?;
            // It does not know of the sweep either.
            Ok(())
        });
    }

    /// How many contexts there are, and where the sweep stopped.
    fn contexts(&self) -> usize {
        self.transact(|transaction| {
            let rows = transaction.rows();
            let found = rows.prefix_iter(transaction.reader(), &[CONTEXT])?;
            Ok(found.filter(|row| row.as_ref().is_ok_and(|(key, _)| key.len() > 1)).count())
        })
    }
}

fn item(id: u64, context: Option<&str>) -> Item {
    let context = context.map(|context| ItemContext::new(context).unwrap());
    let at = Timestamp::from_micros(7);
    let group = Some(Name::new("g").unwrap());
    Item { id: ItemId(id), group, payload: (*b"payload").into(), context, pushed_at: at, due_at: at }
}

#[test]
fn an_item_with_a_context_is_stored_as_one_without() {
    let store = TestStore::new();
    let stored = [None, Some("c")].map(|context| {
        store.with(1, |queue| {
            queue.put_item(item(5, context)).unwrap();
            let key = queue.key(What::Item).number(5);
            let bytes = queue.get(&key).unwrap().unwrap().to_vec();
            let read = queue.remove_item(ItemId(5)).unwrap().unwrap();
            assert_eq!(read, item(5, context));
            let dead =
                Dead { item: read, attempts: 1, reason: "why".to_owned(), died_at: Timestamp::default() };
            queue.put_dead(dead.clone()).unwrap();
            assert_eq!(queue.dead_after(None).unwrap(), Some(dead.clone()));
            let key = queue.key(What::Dead).number(5);
            let letter = queue.get(&key).unwrap().unwrap().to_vec();
            assert_eq!(queue.remove_dead(ItemId(5)).unwrap(), Some(dead));
            (bytes, letter)
        })
    });
    assert_eq!(stored[0], stored[1], "who knows no contexts reads what it always read");
    assert_eq!(store.contexts(), 0, "nothing is left of it");
}

#[test]
fn what_clients_leave_behind_that_know_no_contexts_goes() {
    let store = TestStore::new();
    for id in 1..=100 {
        store.with(1, |queue| queue.put_item(item(id, Some("c"))).unwrap());
    }
    store.with(1, |queue| {
        let item = queue.remove_item(ItemId(50)).unwrap().unwrap();
        queue
            .put_dead(Dead { item, attempts: 1, reason: String::new(), died_at: Timestamp::default() })
            .unwrap();
    });
    for id in (1..=99).filter(|id| *id != 50) {
        store.remove_before(1, id);
    }
    assert_eq!(store.contexts(), 100, "they were left");
    // Every change of any queue looks at some, so the queue that they were of need not be used again.
    for id in 1..=60 {
        store.with(2, |queue| queue.put_item(item(id, None)).unwrap());
    }
    assert_eq!(store.contexts(), 2, "those of an item and of a dead letter");
    store.with(1, |queue| {
        assert_eq!(queue.item(ItemId(100)).unwrap(), Some(item(100, Some("c"))));
        assert_eq!(queue.dead_after(None).unwrap().unwrap().item, item(50, Some("c")));
        drop(queue.remove_item(ItemId(100)).unwrap());
        drop(queue.remove_dead(ItemId(50)).unwrap());
    });
    store.with(2, |queue| queue.put_item(item(99, None)).unwrap());
    let rows = store.transact(|transaction| {
        let rows = transaction.rows();
        Ok(rows.prefix_iter(transaction.reader(), &[CONTEXT])?.count())
    });
    assert_eq!(rows, 0, "not even where it stopped");
}
