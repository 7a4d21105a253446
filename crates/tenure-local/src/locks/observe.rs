//! Following a resource: a row per observing client, a ring after each change, and a read at the next end.
//!
//! A row `o<name>0<client>` asks every transaction that changes the resource to ring the client. Where there are no
//! observers a transaction knows it from a number in the gate's page. A ring says only that there is something to
//! see, so rings may be lost or come together, but the latest view is always seen: the row is written before the
//! first read, and a ring that found a full queue is made up for (see `client/wake.rs`).

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::select;
use futures_util::stream::{self, BoxStream, StreamExt};
use tenure_core::clock::Timer;
use tenure_core::error::Result;
use tenure_core::model::claim::{ClaimId, ClientId, Name};
use tenure_core::model::inspect::{View, shows_the_same};
use tokio::sync::Notify;

use crate::client::job::Worker;
use crate::client::wake::News;
use crate::client::watch::{Reason, Watcher};
use crate::error::{Failure, Fault};
use crate::locks::resource::Seen;
use crate::store::{Store, Transaction};

/// The first byte of the keys of observers.
const OBSERVER: u8 = b'o';
/// How soon a view is read again when the store could not be reached.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

fn key(name: &Name, client: Option<ClientId>) -> Vec<u8> {
    let mut key = vec![OBSERVER];
    key.extend(name.as_str().as_bytes());
    // No name holds a zero byte, so that no name's rows begin like another's.
    key.push(0);
    if let Some(client) = client {
        key.extend(client.bits().to_be_bytes());
    }
    key
}

impl Transaction<'_> {
    /// Has a client notified of every change of a resource.
    fn add_observer(&mut self, name: &Name, client: ClientId) -> Result<(), Failure> {
        self.expect_observers();
        let rows = self.rows();
        Ok(rows.put(self.writer(), &key(name, Some(client)), &[])?)
    }

    /// Has a client notified no more.
    pub(crate) fn remove_observer(&mut self, name: &Name, client: ClientId) -> Result<(), Failure> {
        let rows = self.rows();
        if self.may_have_observers() {
            rows.delete(self.writer(), &key(name, Some(client)))?;
        }
        Ok(())
    }

    /// Notifies the observers of a resource that it has changed.
    pub(crate) fn notify_observers(&mut self, name: &Name) -> Result<(), Failure> {
        if !self.may_have_observers() {
            return Ok(());
        }
        let prefix = key(name, None);
        let mut clients = Vec::new();
        for row in self.rows().prefix_iter(self.reader(), &prefix)? {
            let client = row?.0[prefix.len()..].try_into();
            let client = client.map_err(|_| Failure::Damaged("an observer cannot be read"))?;
            clients.push(ClientId::new(u64::from_be_bytes(client)));
        }
        if clients.is_empty() && self.rows().prefix_iter(self.reader(), &[OBSERVER])?.next().is_none() {
            self.expect_no_observers();
        }
        for client in clients {
            self.notify(client, name, News::Changed(name.clone()));
        }
        Ok(())
    }
}

/// The observers within one client.
#[derive(Default)]
pub(crate) struct Observers {
    rung: Mutex<HashMap<Name, Vec<Weak<Notify>>>>,
}

impl Observers {
    /// Rings the observers of a resource; of all of them where none is named.
    pub(crate) fn ring(&self, name: Option<&Name>) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = |observers: &Vec<Weak<Notify>>| {
            observers.iter().filter_map(Weak::upgrade).for_each(|observer| observer.notify_one());
        };
        match name {
            Some(name) => rung.get(name).into_iter().for_each(ring),
            None => rung.values().for_each(ring),
        }
    }

    fn add(&self, name: &Name) -> Arc<Notify> {
        let observer = Arc::new(Notify::new());
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        rung.entry(name.clone()).or_default().push(Arc::downgrade(&observer));
        observer
    }

    /// Forgets those that are gone. Says whether none of the resource is left.
    fn tidy(&self, name: &Name) -> bool {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(observers) = rung.get_mut(name) else { return true };
        observers.retain(|observer| observer.strong_count() > 0);
        let is_empty = observers.is_empty();
        if is_empty {
            rung.remove(name);
        }
        is_empty
    }
}

/// One stream of views.
struct Observer {
    worker: Arc<Worker>,
    observers: Arc<Observers>,
    watcher: Arc<Watcher>,
    client: ClientId,
    resource: Name,
    /// Stands for this stream among the claims that are watched for.
    id: ClaimId,
    /// None only while it is dropped.
    rung: Option<Arc<Notify>>,
    is_started: bool,
    last: Option<View>,
    /// How long after the last read something ends by itself.
    changes_in: Option<Duration>,
}

/// Follows a resource.
pub(crate) fn observe(
    worker: &Arc<Worker>,
    observers: &Arc<Observers>,
    watcher: &Arc<Watcher>,
    client: ClientId,
    resource: Name,
) -> BoxStream<'static, Result<Option<View>>> {
    let random = || u128::from(worker.store.clock.random());
    let observer = Observer {
        id: ClaimId::new(random() << 64 | random()),
        rung: Some(observers.add(&resource)),
        worker: worker.clone(),
        observers: observers.clone(),
        watcher: watcher.clone(),
        client,
        resource,
        is_started: false,
        last: None,
        changes_in: None,
    };
    stream::unfold(observer, async |mut observer| Some((observer.next().await, observer))).boxed()
}

impl Observer {
    async fn next(&mut self) -> Result<Option<View>> {
        if !self.is_started {
            let view = self.register_and_read().await?;
            self.is_started = true;
            return Ok(view);
        }
        loop {
            self.wait().await;
            let before = self.last.take();
            let view = match self.register_and_read().await {
                Ok(view) => view,
                Err(error) => {
                    self.last = before;
                    self.changes_in = Some(RETRY_PERIOD);
                    return Err(error);
                }
            };
            if !shows_the_same(before.as_ref(), view.as_ref()) {
                return Ok(view);
            }
        }
    }

    /// Waits until there may be something to see.
    async fn wait(&self) {
        let Some(rung) = &self.rung else { return };
        let clock = &self.worker.store.clock;
        let timer = self.changes_in.and_then(|period| Some((clock.now() + period, clock.timer().ok()?)));
        match timer {
            Some((at, mut timer)) => {
                let end = poll_fn(|cx| Timer::poll_until(&mut *timer, at, cx));
                select(std::pin::pin!(rung.notified()), end).await;
            }
            None => rung.notified().await,
        }
    }

    async fn register_and_read(&mut self) -> Result<Option<View>> {
        let (name, client) = (self.resource.clone(), self.client);
        let (about, is_first) = (name.clone(), !self.is_started);
        let seen = self.worker.submit(
            "observe",
            1,
            move |transaction| {
                if is_first {
                    transaction.add_observer(&name, client)?;
                }
                transaction.view(&name)
            },
            move |store, seen| {
                without_the_dead(store, &about, seen)
                    .map_err(|fault| fault.to_error("observe", &store.directory.room.path))
            },
        );
        let seen = seen.await?;
        self.watcher.watch(Reason::Observes, &self.resource, self.id, &seen.holders);
        self.changes_in = seen.changes_in;
        self.last = seen.view.clone();
        Ok(seen.view)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.watcher.forget(self.id);
        self.rung = None;
        if self.observers.tidy(&self.resource) {
            let (name, client) = (self.resource.clone(), self.client);
            // If it cannot be removed now, it is once a ring finds no listener.
            drop(self.worker.post(
                "observe",
                1,
                move |transaction| transaction.remove_observer(&name, client),
                |_, ()| Ok(()),
            ));
        }
    }
}

/// Ends what dead clients hold, and reads again if there were any.
pub(crate) fn without_the_dead(store: &Store, name: &Name, mut seen: Seen) -> Result<Seen, Fault> {
    let suspects = seen.holders.iter().chain(&seen.waiters).map(|client| (name.clone(), *client)).collect();
    if store.reap(suspects)? {
        seen = store.read(|transaction| transaction.view(name))?;
    }
    Ok(seen)
}
