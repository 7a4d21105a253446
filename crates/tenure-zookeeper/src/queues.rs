//! Queues: their heads, their pages and their clock as nodes.
//!
//! ```text
//! <chroot>/%queues/<name>                           the head: the model's, and which pages there are
//! <chroot>/%queues/<name>/p<number>                 a page of rows, which never changes: see `tenure_ordered`'s
//! <chroot>/%queues/<name>/b<number>                 a large payload
//! <chroot>/%queue-calls/<client>                    for which queue a client was called last; ephemeral
//! <chroot>/%queue-calls/<client>-<session>-<number> room that a client keeps: see `reserve`; ephemeral
//! ```
//!
//! No name of a resource is written with a `%` that two hexadecimal digits do not follow, and with a foreign layout such names
//! are refused, so none of these is ever a lock's.
//!
//! A change is one `multi`: the head, if it still has the version that was read, new pages, and the old ones removed.
//! A client that reads a head and does not find a page of it was overtaken, and reads the head again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{join, try_join_all};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::queue::QueueCapability;
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::{ClientId, Name};
use tenure_ordered::{
    Change, Changed, Fit, Found, Key, KeyRange, Missing, Moment, QueueStore, Snapshot, Unread, Value, Wakes,
    is_apart,
};
use zookeeper_client::{Client, CreateMode};

use crate::engine::Inner;
use crate::error::{Fault, is_full, to_error, to_error_of_write, within};
use crate::name::{escape, unescape};
use clock::QueueClock;
use page_cache::PageCache;
use reserve::Reserve;
use transaction::{Done, QueueTransaction};
use wake_listener::WakeListener;

mod clock;
mod page_cache;
mod reserve;
mod transaction;
mod wake_listener;

/// Below which node the queues are.
pub(crate) const QUEUES: &str = "%queues";
/// Below which node clients are called.
pub(crate) const CALLS: &str = "%queue-calls";
/// The most items of a queue, dead letters included: beyond, each change would write a head that names thousands of pages.
const ITEMS_MAX: u64 = 10_000;
/// How often a queue may change while it is read.
const TRIES: usize = 20;
/// The heaviest transaction. A server takes 1,048,575 bytes (`jute.maxbuffer`), unless it is configured otherwise.
const REQUEST_MAX: usize = 1_000_000;
/// What an operation of a transaction weighs beside its path and its data, with an access list.
const OPERATION: usize = 160;
/// What the model's head weighs at most: a hundred idle clients, and numbers.
const TOP_MAX: usize = 8 * 1024;
/// Of how many queues the pages are kept.
const BOOKS_MAX: usize = 256;

/// What ZooKeeper gives for queues.
pub(crate) struct ZooKeeperQueues {
    inner: Arc<Inner>,
    client: ClientId,
    capability: QueueCapability,
    clock: QueueClock,
    /// Held by the task that reads the clock.
    reading: tokio::sync::Mutex<()>,
    books: Mutex<HashMap<Name, PageCache>>,
    wake_listener: OnceLock<WakeListener>,
    reserve: Arc<Reserve>,
}

fn capability() -> QueueCapability {
    let mut capability = QueueCapability::of_step();
    capability.items_max = ITEMS_MAX;
    capability.interval_min = Duration::from_millis(1);
    capability.interval_grain = Duration::from_millis(1);
    capability.is_durable = true;
    capability.survives_failover = true;
    capability
}

/// Returns the node that is written to call a client.
fn called(chroot: &str, client: ClientId) -> String {
    format!("{chroot}/{CALLS}/{client}")
}

/// Returns the node of a page.
fn page_path(head: &str, page: u64) -> String {
    format!("{head}/p{page}")
}

/// Returns the node of a large payload: its key is a letter and digits.
fn body_path(head: &str, key: &[u8]) -> String {
    format!("{head}/{}", String::from_utf8_lossy(key))
}

fn unread(unread: Unread) -> Error {
    let error = |why: String| Error::new(ErrorKind::Internal, "read a queue", why);
    match unread {
        Unread::Format(format) => error(format!(
            "the queue is stored in format {format}, which this version of tenure does not know"
        ))
        .with_hint("let all clients have the same version of tenure, the newest that one of them has"),
        Unread::Damaged => error("the queue's node is nothing that tenure wrote".to_owned())
            .with_hint("did somebody change it by hand? If not, report it"),
    }
}

impl ZooKeeperQueues {
    pub(crate) fn new(inner: Arc<Inner>, client: ClientId) -> ZooKeeperQueues {
        ZooKeeperQueues {
            inner,
            client,
            capability: capability(),
            clock: QueueClock::default(),
            reading: tokio::sync::Mutex::default(),
            books: Mutex::default(),
            wake_listener: OnceLock::new(),
            reserve: Arc::default(),
        }
    }

    fn path(&self, queue: &Name) -> String {
        format!("{}/{QUEUES}/{}", self.inner.config.chroot, escape(queue.as_str()))
    }

    fn books(&self) -> MutexGuard<'_, HashMap<Name, PageCache>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is taken and not put back was only to save reading it.
    fn take_page_cache(&self, queue: &Name) -> Option<PageCache> {
        self.books().remove(queue)
    }

    fn put_page_cache(&self, queue: &Name, mut page_cache: PageCache) {
        page_cache.shrink();
        let mut books = self.books();
        if books.len() >= BOOKS_MAX {
            books.clear();
        }
        books.insert(queue.clone(), page_cache);
    }

    /// Makes what all queues are below of.
    async fn make_parent(&self, client: &Client) -> Result<(), Fault> {
        let parent = format!("{}/{QUEUES}", self.inner.config.chroot);
        client.mkdir(&parent, &self.inner.options(CreateMode::Persistent)).await
    }

    /// Writes a node for nothing but the time of it.
    async fn read_clock(&self) -> Result<()> {
        let failed = |fault: Fault| to_error("read the clock", &fault);
        let session = self.inner.begin().await?;
        let path = format!("{}/{QUEUES}", self.inner.config.chroot);
        for _ in 0..2 {
            let sent = SystemClock.now();
            match session.client.set_data(&path, b"", None).await {
                Ok(stat) => {
                    self.clock.note(&stat, sent, SystemClock.now());
                    return Ok(());
                }
                Err(Fault::NoNode) => self.make_parent(&session.client).await.map_err(failed)?,
                Err(fault) => return Err(failed(fault)),
            }
        }
        Err(failed(Fault::NoNode))
    }

    /// Reads the head, as it is at least now, and then what is wanted of its rows.
    async fn read_snapshot(&self, queue: &Name, wanted: &[KeyRange]) -> Result<Snapshot> {
        let failed = |fault: Fault| to_error("read a queue", &fault);
        let session = self.inner.begin().await?;
        let (client, path) = (&session.client, self.path(queue));
        let mut last = None;
        for _ in 0..TRIES {
            let (synced, head) = join(client.sync(&path), client.get_data(&path)).await;
            synced.map_err(failed)?;
            let known = self.take_page_cache(queue);
            let (data, stat) = match head {
                Ok(head) => head,
                Err(Fault::NoNode) => {
                    let found = wanted.iter().map(|_| Found::default()).collect();
                    return Ok(Snapshot { version: 0, head: None, found });
                }
                Err(fault) => return Err(failed(fault)),
            };
            let mut page_cache = PageCache::open(known, &data, &stat).map_err(unread)?;
            let is_same = last == Some(stat.mzxid);
            let found = find(client, &path, &mut page_cache, wanted, is_same).await?;
            let (version, head) = (page_cache.mzxid, Some(page_cache.head.clone()));
            self.put_page_cache(queue, page_cache);
            match found {
                Some(found) => return Ok(Snapshot { version, head, found }),
                None if is_same => return Err(unread(Unread::Damaged)),
                None => last = Some(stat.mzxid),
            }
        }
        let why = format!("the queue changed while it was read, {TRIES} times");
        Err(Error::new(ErrorKind::Unavailable, "read a queue", why)
            .with_hint("fewer clients, larger batches, or several queues"))
    }

    /// Changes a queue. Returns `None` if it is another by now.
    async fn store_change(&self, change: &Change<'_>) -> Result<Option<i64>> {
        let page_cache = self.take_page_cache(change.queue);
        let mut page_cache = match page_cache {
            None if change.version == 0 => PageCache::default(),
            Some(page_cache) if page_cache.mzxid == change.version => page_cache,
            // What is known of its pages is still worth something.
            Some(page_cache) => {
                self.put_page_cache(change.queue, page_cache);
                return Ok(None);
            }
            None => return Ok(None),
        };
        let session = self.inner.begin().await?;
        let mut done = self.write(&session.client, &mut page_cache, change).await;
        if done.as_ref().is_err_and(is_full)
            && change.is_of_deliveries
            && let Some(_given_up) = self.reserve.give_up(&self.inner, &session, self.client).await
        {
            done = self.write(&session.client, &mut page_cache, change).await;
        }
        let done = done?;
        let version = done.is_some().then_some(page_cache.mzxid);
        self.put_page_cache(change.queue, page_cache);
        Ok(version)
    }

    async fn write(
        &self,
        client: &Client,
        page_cache: &mut PageCache,
        change: &Change<'_>,
    ) -> Result<Option<()>> {
        let failed = |fault: Fault| to_error_of_write("change a queue", &fault);
        let path = self.path(change.queue);
        let (apart, rows): (Vec<_>, Vec<_>) = change.rows.iter().cloned().partition(|(key, _)| is_apart(key));
        let mut merges = true;
        let mut transaction = loop {
            let rewritten = match page_cache.rewrite(&rows, merges) {
                Ok(rewritten) => rewritten,
                Err(Missing(pages)) if load(client, &path, page_cache, pages.clone()).await? => continue,
                Err(_) => return Ok(None),
            };
            let transaction = QueueTransaction::new(&path, page_cache, &change.head, rewritten, &apart);
            match transaction.weight() {
                ..=REQUEST_MAX => break transaction,
                // Small pages are better than none.
                _ if merges => merges = false,
                weight => {
                    let why = format!("a change of {weight} bytes is larger than a server takes");
                    return Err(Error::new(ErrorKind::Internal, "change a queue", why).with_hint("report it"));
                }
            }
        };
        transaction.add_wakes(&self.inner.config.chroot, change.queue, &change.calls);
        for _ in 0..2 {
            let sent = SystemClock.now();
            match transaction.commit(client, &self.inner).await.map_err(failed)? {
                Done::Yes(stat) => {
                    self.clock.note(&stat, sent, SystemClock.now());
                    page_cache.follow(transaction, &stat);
                    return Ok(Some(()));
                }
                Done::Overtaken => return Ok(None),
                Done::NoParent => self.make_parent(client).await.map_err(failed)?,
            }
        }
        Err(failed(Fault::NoNode))
    }
}

/// Finds rows. `None`: a page is not there, or a payload, so the queue has changed meanwhile. `is_same`: at the head's
/// version something was missing before. What a queue has is there for as long as its head is the same, so a payload
/// that is asked for is none of this version.
async fn find(
    client: &Client,
    path: &str,
    page_cache: &mut PageCache,
    wanted: &[KeyRange],
    is_same: bool,
) -> Result<Option<Vec<Found>>> {
    loop {
        let found: Vec<std::result::Result<Found, Missing>> = wanted
            .iter()
            .filter(|wanted| !is_apart(&wanted.from))
            .map(|wanted| page_cache.find(wanted))
            .collect();
        let missing: Vec<u64> = found
            .iter()
            .filter_map(|found| found.as_ref().err())
            .flat_map(|Missing(pages)| pages.clone())
            .collect();
        if !missing.is_empty() {
            if !load(client, path, page_cache, missing).await? {
                return Ok(None);
            }
            continue;
        }
        let bodies = wanted.iter().filter(|wanted| is_apart(&wanted.from));
        let bodies = try_join_all(bodies.map(|wanted| read_body(client, path, &wanted.from)));
        let bodies = bodies.await.map_err(|fault| to_error("read a queue", &fault))?;
        if !is_same && bodies.iter().any(|body| body.rows.is_empty()) {
            return Ok(None);
        }
        let (mut found, mut bodies) = (found.into_iter().flatten(), bodies.into_iter());
        let next = |wanted: &KeyRange| if is_apart(&wanted.from) { bodies.next() } else { found.next() };
        return Ok(Some(wanted.iter().filter_map(next).collect()));
    }
}

/// Reads a large payload. No row: it is not there.
async fn read_body(client: &Client, path: &str, key: &[u8]) -> std::result::Result<Found, Fault> {
    match client.get_data(&body_path(path, key)).await {
        Ok((data, _)) => Ok(Found { rows: vec![(key.to_vec(), Value::from(data))], has_more: false }),
        Err(Fault::NoNode) => Ok(Found::default()),
        Err(fault) => Err(fault),
    }
}

/// Reads pages, and says whether they are all there.
async fn load(client: &Client, path: &str, page_cache: &mut PageCache, mut pages: Vec<u64>) -> Result<bool> {
    pages.sort_unstable();
    pages.dedup();
    let read = |page: u64| {
        let data = client.get_data(&page_path(path, page));
        async move { data.await.map(|(data, _)| (page, data)) }
    };
    let read = match try_join_all(pages.into_iter().map(read)).await {
        Ok(read) => read,
        Err(Fault::NoNode) => return Ok(false),
        Err(fault) => return Err(to_error("read a queue", &fault)),
    };
    for (page, data) in read {
        page_cache.learn(page, &data).map_err(unread)?;
    }
    Ok(true)
}

impl QueueStore for ZooKeeperQueues {
    const ENGINE: &'static str = "zookeeper";

    fn capability(&self) -> &QueueCapability {
        &self.capability
    }

    fn wakes(&self) -> &Wakes {
        &self.inner.wakes
    }

    async fn time(&self) -> Result<Moment> {
        within("read the clock", async {
            if let Some(moment) = self.clock.time(SystemClock.now()) {
                return Ok(moment);
            }
            let _reading = self.reading.lock().await;
            if let Some(moment) = self.clock.time(SystemClock.now()) {
                return Ok(moment);
            }
            self.read_clock().await?;
            let why = "the answer took too long to tell the time by";
            self.clock
                .time(SystemClock.now())
                .ok_or_else(|| Error::new(ErrorKind::Unavailable, "read the clock", why))
        })
        .await
    }

    async fn read(&self, queue: &Name, wanted: &[KeyRange]) -> Result<Snapshot> {
        within("read a queue", self.read_snapshot(queue, wanted)).await
    }

    async fn change(&self, change: Change<'_>) -> Result<Changed> {
        // Under whose clock it was judged does not matter: a transaction cannot ask for that, and a queue's own never goes back.
        match within("change a queue", self.store_change(&change)).await? {
            Some(version) => Ok(Changed::Yes(version)),
            None => {
                let snapshot = within("read a queue", self.read_snapshot(change.queue, change.otherwise));
                Ok(Changed::No(snapshot.await?))
            }
        }
    }

    fn fit<'a>(&self, queue: &Name, rows: &mut dyn Iterator<Item = (&'a Key, Option<&'a Value>)>) -> Fit {
        let path = self.path(queue).len() + "/p".len() + 20;
        let books = self.books();
        let empty = PageCache::default();
        let page_cache = books.get(queue).unwrap_or(&empty);
        let weight = page_cache.weigh(rows, path);
        if weight <= REQUEST_MAX { Fit::Room } else { Fit::Beyond }
    }

    async fn names(&self, prefix: &str, after: Option<&Name>, most: usize) -> Result<Vec<Name>> {
        within("list queues", async move {
            let session = self.inner.begin().await?;
            let path = format!("{}/{QUEUES}", self.inner.config.chroot);
            let (synced, listed) =
                join(session.client.sync(&path), session.client.list_children(&path)).await;
            let listed = match synced.and(listed) {
                Ok(listed) => listed,
                Err(Fault::NoNode) => Vec::new(),
                Err(fault) => return Err(to_error("list queues", &fault)),
            };
            let mut names: Vec<Name> = listed.iter().filter_map(|name| unescape(name)).collect();
            names.retain(|name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after));
            names.sort_unstable();
            names.truncate(most);
            Ok(names)
        })
        .await
    }

    async fn listen(&self) -> Result<()> {
        let wake_listener = self.wake_listener.get_or_init(|| WakeListener::open(&self.inner, self.client));
        wake_listener.ready(&self.inner).await?;
        self.reserve.keep(&self.inner, self.client).await;
        Ok(())
    }
}
