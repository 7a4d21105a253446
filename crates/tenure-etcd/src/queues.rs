//! The queues' rows as keys.
//!
//! ```text
//! <prefix>queues/<name>            the head
//! <prefix>queue/<name> <row>       the rows: see `tenure_ordered`'s
//! <prefix>queue-sign/<claim>       a client lives that has an item; on its lease for that ttl
//! <prefix>queue-clock              which lease is the clock: `1 <lease> <its time when it was granted, µs> <term>`
//! <prefix>queue-called/<client>    for which queue a client was called last; on a lease of its own
//! ```

pub(crate) mod clock;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Instant;
use tenure_core::engine::Wake;
use tenure_core::engine::queue::{CONSUMER_LIFE, QueueCapability};
use tenure_core::model::claim::{ClaimId, ClientId, Name};
use tenure_core::{Error, Result};
use tenure_ordered::{
    Change, Changed, Found, Key, KeyRange, Moment, QueueStore, Removal, SessionId, Snapshot, Standing, Value,
    Wakes,
};

use crate::client::endpoints::{Endpoints, deadline};
use crate::client::etcd_leases::{EtcdLeases, lease_of};
use crate::client::proto::{
    Compare, CompareResult, Operation, PutRequest, RangeRequest, RangeResponse, RequestOp, Target, TxnRequest,
};
use crate::client::watch::{Notice, Wanted as Watched, Watches};
use crate::error::{Fault, is_full};
use crate::keys::{Keys, get};
use crate::locks::store::{delete, failed, put, ranges, read};
use crate::locks::wake::comes;
use crate::queues::clock::QueueClock;

/// How many operations are in one part of a transaction: etcd takes 128 in each, unless it is configured otherwise.
const PART: usize = 100;
/// The shortest interval: what leases can count would be no shorter.
const INTERVAL_MIN: Duration = Duration::from_secs(2);

/// What etcd gives for queues.
pub(crate) struct EtcdQueues {
    endpoints: Endpoints,
    keys: Keys,
    client: ClientId,
    capability: QueueCapability,
    clock: Arc<QueueClock>,
    etcd_leases: Arc<EtcdLeases>,
    wakes: Arc<Wakes>,
    watches: Watches,
    wake_listener: tokio::sync::Mutex<WakeListener>,
}

/// How this client hears that it is called.
#[derive(Default)]
struct WakeListener {
    session_id: Option<SessionId>,
    listening: Option<Listening>,
}

/// Ends with the client.
struct Listening(tokio::task::AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What queues are made of.
pub(crate) struct Parts {
    pub(crate) endpoints: Endpoints,
    pub(crate) keys: Keys,
    pub(crate) client: ClientId,
    pub(crate) etcd_leases: Arc<EtcdLeases>,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) watches: Watches,
}

fn capability() -> QueueCapability {
    let mut capability = QueueCapability::of_step();
    capability.interval_min = INTERVAL_MIN;
    capability.interval_grain = Duration::from_secs(1);
    capability.is_durable = true;
    capability.survives_failover = true;
    capability
}

fn range(keys: &Keys, queue: &Name, wanted: &KeyRange) -> RequestOp {
    let (key, range_end) = (keys.queue_row(queue, &wanted.from), keys.queue_row(queue, &wanted.to));
    let limit = i64::try_from(wanted.most).unwrap_or(i64::MAX);
    read(RangeRequest { key, range_end, limit, ..RangeRequest::default() })
}

fn found(keys: &Keys, queue: &Name, range: &RangeResponse) -> Found {
    let prefix = keys.queue_row(queue, b"").len();
    let row =
        |key: &crate::client::proto::KeyValue| (key.key[prefix..].to_vec(), Value::from(&key.value[..]));
    Found { rows: range.kvs.iter().map(row).collect(), has_more: range.more }
}

impl EtcdQueues {
    pub(crate) fn new(parts: Parts) -> EtcdQueues {
        let Parts { endpoints, keys, client, etcd_leases, wakes, watches } = parts;
        let clock = Arc::new(QueueClock::new(endpoints.clone(), keys.queue_clock(), keys.queue_heads("")));
        let wake_listener = tokio::sync::Mutex::default();
        EtcdQueues {
            endpoints,
            keys,
            client,
            capability: capability(),
            clock,
            etcd_leases,
            wakes,
            watches,
            wake_listener,
        }
    }

    /// Asks for the head, the clock, and rows.
    fn read_operations(&self, queue: &Name, wanted: &[KeyRange]) -> Vec<RequestOp> {
        let first = [self.keys.queue_head(queue), self.keys.queue_clock()];
        let first = first.into_iter().map(|key| read(RangeRequest { key, ..RangeRequest::default() }));
        let rows = wanted.iter().map(|wanted| range(&self.keys, queue, wanted));
        parts(first.chain(rows).collect())
    }

    /// Reads the answers of [`EtcdQueues::read_operations`], and which clock there was.
    fn snapshot<'a>(
        &self,
        queue: &Name,
        mut answers: impl Iterator<Item = &'a RangeResponse>,
    ) -> (Snapshot, i64) {
        let head = answers.next().and_then(|head| head.kvs.first());
        let clock = answers.next().and_then(|clock| clock.kvs.first()).map_or(0, |clock| clock.mod_revision);
        let snapshot = Snapshot {
            version: head.map_or(0, |head| head.mod_revision),
            head: head.map(|head| Value::from(&head.value[..])),
            found: answers.map(|answer| found(&self.keys, queue, answer)).collect(),
        };
        (snapshot, clock)
    }

    /// Wakes a client, if it listens: its key is there for as long as it does.
    fn wake_operation(&self, client: ClientId, queue: &Name) -> RequestOp {
        let key = self.keys.queue_called(client);
        let listens = Compare::is_there(key.clone());
        let value = queue.as_str().as_bytes().to_vec();
        let wake = PutRequest { key, value, ignore_lease: true, ..PutRequest::default() };
        let success = vec![Operation::Put(wake).into()];
        Operation::Txn(TxnRequest { compare: vec![listens], success, failure: Vec::new() }).into()
    }

    /// Writes signs of deliveries that begin, and removes those of deliveries that end.
    async fn signs(&self, signs: &[(ClaimId, Option<Duration>)]) -> Result<Vec<RequestOp>, Fault> {
        let mut operations = Vec::with_capacity(signs.len());
        for (claim, ttl) in signs {
            let key = self.keys.queue_sign(*claim);
            operations.push(match ttl {
                Some(ttl) => put(key, Vec::new(), lease_of(self.etcd_leases.of(*ttl).await?)),
                None => delete(key),
            });
        }
        Ok(operations)
    }

    async fn listen_at(&self, wake_listener: &mut WakeListener) -> Result<()> {
        let session_id = self.etcd_leases.of(CONSUMER_LIFE).await.map_err(failed("take"))?;
        let key = self.keys.queue_called(self.client);
        if wake_listener.listening.as_ref().is_none_or(|listening| listening.0.is_finished()) {
            let (watches, wakes, key) = (self.watches.clone(), self.wakes.clone(), key.clone());
            wake_listener.listening = Some(Listening(tokio::spawn(hear(watches, wakes, key)).abort_handle()));
            wake_listener.session_id = None;
        }
        if wake_listener.session_id != Some(session_id) {
            let put =
                PutRequest { key, value: Vec::new(), lease: lease_of(session_id), ..PutRequest::default() };
            match self.endpoints.call(put, deadline()).await {
                Ok(_) => wake_listener.session_id = Some(session_id),
                Err(fault) if fault.is_no_lease() => self.etcd_leases.check_ended(session_id).await,
                Err(fault) => return Err(fault.to_error("take")),
            }
        }
        Ok(())
    }
}

/// Passes on for which queues this client is called.
async fn hear(watches: Watches, wakes: Arc<Wakes>, key: Vec<u8>) {
    loop {
        let wanted: Watched = comes(key.clone());
        let mut watch = watches.watch(wanted);
        loop {
            match watch.next().await {
                // What was sent before it began was not heard.
                Ok(Notice::Began { .. }) => wakes.put(Wake::LookAtAll),
                Ok(Notice::Events { events, .. }) => {
                    let called = events.iter().filter_map(|event| event.kv.as_ref());
                    let names = called.filter_map(|kv| Name::new(std::str::from_utf8(&kv.value).ok()?).ok());
                    names.for_each(|queue| wakes.put(Wake::Queue(queue)));
                }
                Err(_) => break,
            }
        }
        crate::client::endpoints::sleep(Duration::from_millis(100)).await;
    }
}

/// Puts operations into transactions of their own, so that none has more than etcd takes.
fn parts(operations: Vec<RequestOp>) -> Vec<RequestOp> {
    if operations.len() <= PART {
        return operations;
    }
    let part = |success: &[RequestOp]| {
        Operation::Txn(TxnRequest { success: success.to_vec(), ..TxnRequest::default() }).into()
    };
    operations.chunks(PART).map(part).collect()
}

impl QueueStore for EtcdQueues {
    const ENGINE: &'static str = "etcd";

    fn capability(&self) -> &QueueCapability {
        &self.capability
    }

    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    async fn time(&self) -> Result<Moment> {
        self.clock.time().await.map_err(failed("read the clock"))
    }

    async fn read(&self, queue: &Name, wanted: &[KeyRange]) -> Result<Snapshot> {
        let success = self.read_operations(queue, wanted);
        let request = TxnRequest { success, ..TxnRequest::default() };
        let answer = self.endpoints.call(request, deadline()).await.map_err(failed("read"))?;
        let (snapshot, clock) = self.snapshot(queue, flat(&answer.responses).into_iter());
        self.clock.forget(clock);
        Ok(snapshot)
    }

    async fn change(&self, change: Change<'_>) -> Result<Changed> {
        let Change { queue, version, epoch, head, rows, there, signs, calls, otherwise, .. } = change;
        let key = self.keys.queue_head(queue);
        let is = |key, revision| Compare::of(key, CompareResult::Equal, Target::Mod(revision));
        let there = there.iter().map(|row| Compare::is_there(self.keys.queue_row(queue, row)));
        let compare: Vec<Compare> =
            [is(key.clone(), version), is(self.clock.key(), epoch)].into_iter().chain(there).collect();
        let signed = self.signs(&signs).await.map_err(failed("change a queue"))?;
        let rows = rows.into_iter().map(|(row, value)| {
            let key = self.keys.queue_row(queue, &row);
            match value {
                Some(value) => put(key, value.to_vec(), 0),
                None => delete(key),
            }
        });
        let calls = calls.into_iter().map(|client| self.wake_operation(client, queue));
        let success = parts([put(key, head, 0)].into_iter().chain(rows).chain(signed).chain(calls).collect());
        let request = TxnRequest { compare, success, failure: self.read_operations(queue, otherwise) };
        let answer = match self.endpoints.call(request, deadline()).await {
            Err(fault) if fault.is_no_lease() => {
                // Nothing was changed. A delivery that begins anew is given another lease.
                for ttl in signs.iter().filter_map(|(_, ttl)| *ttl) {
                    let session_id = self.etcd_leases.of(ttl).await.map_err(failed("change a queue"))?;
                    self.etcd_leases.check_ended(session_id).await;
                }
                return Ok(Changed::No(self.read(queue, otherwise).await?));
            }
            answer => answer.map_err(failed("change a queue"))?,
        };
        if answer.succeeded {
            return Ok(Changed::Yes(answer.header.as_ref().map_or(0, |header| header.revision)));
        }
        let (snapshot, clock) = self.snapshot(queue, flat(&answer.responses).into_iter());
        self.clock.forget(clock);
        Ok(Changed::No(snapshot))
    }

    async fn names(&self, prefix: &str, after: Option<&Name>, most: usize) -> Result<Vec<Name>> {
        let all = self.keys.queue_heads(prefix);
        let behind = after.map(|after| [&self.keys.queue_head(after)[..], &[0]].concat());
        let request = RangeRequest {
            key: behind.unwrap_or_default().max(all.clone()),
            range_end: crate::client::proto::end_of_prefix(&all),
            limit: i64::try_from(most).unwrap_or(i64::MAX),
            ..RangeRequest::default()
        };
        let answer = self.endpoints.call(request, deadline()).await.map_err(failed("list queues"))?;
        let name = |key: &crate::client::proto::KeyValue| {
            let name = &key.key[self.keys.queue_heads("").len()..];
            Name::new(std::str::from_utf8(name).ok()?).ok()
        };
        Ok(answer.kvs.iter().filter_map(name).collect())
    }

    fn has_signs(&self) -> bool {
        true
    }

    async fn prepare(&self, ttl: Duration) -> Result<()> {
        self.etcd_leases.of(ttl).await.map(drop).map_err(failed("take"))
    }

    async fn keep(&self, ttl: Duration) -> Result<Option<Instant>> {
        let session_id = self.etcd_leases.of(ttl).await.map_err(failed("renew"))?;
        self.etcd_leases.heartbeat(session_id).await.map_err(failed("renew"))
    }

    fn is_full(&self, error: &Error) -> bool {
        is_full(error)
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<bool> {
        let Removal { queue, claim, there, rows, with_sign } = removal;
        let sign = self.keys.queue_sign(claim);
        let compare =
            vec![Compare::is_there(sign.clone()), Compare::is_there(self.keys.queue_row(queue, &there))];
        let rows = rows.iter().map(|row| delete(self.keys.queue_row(queue, row)));
        let success = rows.chain(with_sign.then(|| delete(sign))).collect();
        let request = TxnRequest { compare, success, failure: Vec::new() };
        let answer = self.endpoints.call(request, deadline()).await.map_err(failed("change a queue"))?;
        Ok(answer.succeeded)
    }

    async fn standing(&self, queue: &Name, deliveries: &[(ClaimId, Key, Key)]) -> Result<Vec<Standing>> {
        let keys = deliveries.iter().flat_map(|(id, claim, item)| {
            let row = |row: &Key| self.keys.queue_row(queue, row);
            [self.keys.queue_sign(*id), row(claim), row(item)]
        });
        let success = parts(keys.map(|key| read(RangeRequest { keys_only: true, ..get(key) })).collect());
        let request = TxnRequest { success, ..TxnRequest::default() };
        let answer = self.endpoints.call(request, deadline()).await.map_err(failed("read"))?;
        let found: Vec<bool> = flat(&answer.responses).iter().map(|found| !found.kvs.is_empty()).collect();
        let standing =
            |found: &[bool]| Standing { has_sign: found[0], has_claim: found[1], has_item: found[2] };
        Ok(found.chunks_exact(3).map(standing).collect())
    }

    async fn listen(&self) -> Result<()> {
        self.listen_at(&mut *self.wake_listener.lock().await).await
    }
}

/// The ranges of a transaction and of those in it, in their order.
fn flat(responses: &[crate::client::proto::ResponseOp]) -> Vec<&RangeResponse> {
    let inner = responses.iter().flat_map(|response| match &response.response {
        Some(crate::client::proto::Answered::Txn(part)) => flat(&part.responses),
        _ => ranges(std::slice::from_ref(response)).collect(),
    });
    inner.collect()
}
