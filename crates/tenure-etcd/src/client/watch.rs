//! Watching keys: all watches of a client on one stream.
//!
//! The stream is made anew when it breaks, when the server is silent, and when the client moves to another endpoint;
//! each watch then goes on after the last revision that it has reported, so nothing is left out. Where that revision
//! is forgotten already (etcd compacts), a watch ends and says so: its user must read the keys anew.
//!
//! To find a silent server, it is asked for its progress each second. The revision in the answer is not used: before
//! 3.4.25 it may come before events of earlier revisions.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::Code;

use crate::client::endpoints::{Endpoints, sleep};
use crate::client::proto::{
    Event, WatchCancelRequest, WatchCreateRequest, WatchOrder, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use crate::client::rpc::{Stream, Wire};
use crate::error::Fault;

/// How often the server is asked whether it is there. One that is silent for as long again is left.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long it takes at most to open the stream at one endpoint.
const OPEN_MAX: Duration = Duration::from_secs(2);
/// How long to wait before the stream is opened anew.
const PAUSE: Duration = Duration::from_millis(50);
/// How many notices wait for the user of a watch. A user that has not read them must begin anew.
const NOTICES_MAX: usize = 1024;

/// The watches of a client. Cheap to clone; its task ends with the last clone and the last watch.
#[derive(Clone)]
pub(crate) struct Watches {
    orders: mpsc::UnboundedSender<Order>,
    last_id: Arc<AtomicI64>,
}

/// What to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) key: Vec<u8>,
    /// Empty for one key; see [`end_of_prefix`](crate::client::proto::end_of_prefix).
    pub(crate) range_end: Vec<u8>,
    /// The first revision of interest; 0 for what comes after [`Notice::Began`].
    pub(crate) start_revision: i64,
    /// What is left away: [`WatchFilter`](crate::client::proto::WatchFilter)s.
    pub(crate) filters: Vec<i32>,
    /// Whether an event brings what was there before it.
    pub(crate) prev_kv: bool,
}

/// One watch. It ends when this value ends.
#[derive(Debug)]
pub(crate) struct Watch {
    id: i64,
    notices: mpsc::Receiver<Result<Notice, End>>,
    orders: mpsc::UnboundedSender<Order>,
}

/// What a watch reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// All events after this revision will come. It comes once, and first.
    Began { revision: i64 },
    /// What happened, in order; all events of a revision come together, and maybe those of later ones.
    Events { revision: i64, events: Vec<Event> },
}

/// Why a watch ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Events are missing: etcd has forgotten them, or the user has not read those before. Read the keys anew.
    Behind,
    /// The server, or every server, refuses it.
    Refused(Fault),
}

#[derive(Debug)]
enum Order {
    Create { id: i64, wanted: Wanted, notices: mpsc::Sender<Result<Notice, End>> },
    Cancel { id: i64 },
}

impl Watches {
    /// Makes them. It must be called on a tokio runtime.
    pub(crate) fn start(endpoints: &Endpoints) -> Watches {
        let (orders, receiver) = mpsc::unbounded_channel();
        tokio::spawn(serve(endpoints.clone(), receiver));
        Watches { orders, last_id: Arc::default() }
    }

    /// Begins to watch.
    pub(crate) fn watch(&self, wanted: Wanted) -> Watch {
        // 0 would let the server choose.
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, notices) = mpsc::channel(NOTICES_MAX);
        // The task ends before its users only with the runtime, and then the watch ends.
        drop(self.orders.send(Order::Create { id, wanted, notices: sender }));
        Watch { id, notices, orders: self.orders.clone() }
    }
}

impl Watch {
    /// Waits for the next notice. After an end, nothing comes but [`End::Behind`].
    pub(crate) async fn next(&mut self) -> Result<Notice, End> {
        self.notices.recv().await.unwrap_or(Err(End::Behind))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // If the task has ended, so have its watches.
        drop(self.orders.send(Order::Cancel { id: self.id }));
    }
}

/// A watch as the task sees it.
struct Entry {
    wanted: Wanted,
    /// The first revision that was not reported; 0 before it is known.
    next_revision: i64,
    has_begun: bool,
    /// Parts of an answer whose end has not come.
    parts: Vec<Event>,
    /// Whether it was refused, and asked for again with another token.
    is_second_try: bool,
    notices: mpsc::Sender<Result<Notice, End>>,
}

/// All watches.
#[derive(Default)]
struct Table {
    entries: HashMap<i64, Entry>,
    /// Those whose creation the server has not answered, in the order in which it will.
    pending: VecDeque<i64>,
}

/// Why the stream is not served any longer.
enum Over {
    /// Every user is gone.
    Unused,
    /// It must be opened anew.
    Fault(Fault),
    /// It must be opened anew with another token.
    Token,
}

async fn serve(endpoints: Endpoints, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut table = Table::default();
    loop {
        while table.entries.is_empty() {
            let Some(order) = orders.recv().await else { return };
            table.apply(order);
        }
        while let Ok(order) = orders.try_recv() {
            table.apply(order);
        }
        if table.entries.is_empty() {
            continue;
        }
        let deadline = Instant::now() + OPEN_MAX;
        let (wire, over) = match endpoints.wire(deadline).await {
            Ok(wire) => (Some(wire.clone()), serve_at(&endpoints, &wire, &mut table, &mut orders).await),
            Err(fault) => (None, Over::Fault(fault)),
        };
        let over = match over {
            Over::Fault(fault) if fault.is_of_token() => Over::Token,
            over => over,
        };
        match (wire, over) {
            (_, Over::Unused) => return,
            (Some(wire), Over::Token) => {
                let token = wire.token();
                if let Err(fault) = wire.renew_token(token, Instant::now() + OPEN_MAX).await {
                    endpoints.leave(&wire, &fault);
                }
            }
            (Some(wire), Over::Fault(fault)) if fault.is_of_endpoint() => endpoints.leave(&wire, &fault),
            // Every endpoint would refuse it.
            (_, Over::Fault(fault)) if !matches!(fault, Fault::Down { .. }) => table.refuse_all(&fault),
            (_, Over::Fault(_) | Over::Token) => {}
        }
        sleep(PAUSE).await;
    }
}

/// Serves all watches over one connection.
async fn serve_at(
    endpoints: &Endpoints,
    wire: &Wire,
    table: &mut Table,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) -> Over {
    let mut in_use = endpoints.in_use();
    let mut stream = match wire.open(table.creations(), Instant::now() + OPEN_MAX).await {
        Ok(stream) => stream,
        Err(fault) => return Over::Fault(fault),
    };
    let mut looks = interval(CHECK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.reset();
    let mut is_silent = false;
    loop {
        let over = tokio::select! {
            order = orders.recv() => match order {
                Some(order) => table.order(order, &stream, wire),
                None => Some(Over::Unused),
            },
            answer = stream.next() => {
                is_silent = false;
                match answer {
                    Ok(answer) => table.take(answer, &stream, wire),
                    Err(fault) => Some(Over::Fault(fault)),
                }
            }
            _ = looks.tick() => {
                let was_silent = std::mem::replace(&mut is_silent, true);
                if was_silent {
                    let endpoint = wire.endpoint().to_owned();
                    Some(Over::Fault(Fault::Silent { endpoint, after: CHECK_EVERY }))
                } else {
                    send(&stream, wire, WatchOrder::Progress(WatchProgressRequest {}))
                }
            }
            changed = in_use.changed() => {
                let is_moved = changed.is_err() || *in_use.borrow_and_update() != wire.number();
                is_moved.then(|| Over::Fault(cut(wire, "the client has moved to another endpoint")))
            }
        };
        if let Some(over) = over {
            return over;
        }
    }
}

impl Table {
    /// Follows an order without asking the server. Returns what is to be sent to it.
    fn apply(&mut self, order: Order) -> Option<WatchOrder> {
        match order {
            Order::Create { id, wanted, notices } => {
                let entry = Entry {
                    next_revision: wanted.start_revision,
                    wanted,
                    has_begun: false,
                    parts: Vec::new(),
                    is_second_try: false,
                    notices,
                };
                let creation = entry.creation(id);
                self.entries.insert(id, entry);
                Some(creation)
            }
            Order::Cancel { id } => {
                self.entries.remove(&id)?;
                Some(WatchOrder::Cancel(WatchCancelRequest { watch_id: id }))
            }
        }
    }

    fn order(&mut self, order: Order, stream: &Stream<WatchRequest>, wire: &Wire) -> Option<Over> {
        let order = self.apply(order)?;
        if let WatchOrder::Create(creation) = &order {
            self.pending.push_back(creation.watch_id);
        }
        send(stream, wire, order)
    }

    /// What is sent to the server on a new stream.
    fn creations(&mut self) -> Vec<WatchRequest> {
        let mut ids: Vec<i64> = self.entries.keys().copied().collect();
        ids.sort_unstable();
        self.pending = ids.iter().copied().collect();
        let mut creation = |id: &i64| {
            let entry = self.entries.get_mut(id)?;
            entry.parts.clear();
            Some(WatchRequest { request: Some(entry.creation(*id)) })
        };
        ids.iter().filter_map(&mut creation).collect()
    }

    /// Passes an answer on.
    fn take(&mut self, answer: WatchResponse, stream: &Stream<WatchRequest>, wire: &Wire) -> Option<Over> {
        let mut id = answer.watch_id;
        if answer.created {
            // One that is refused may come without its id; but answers come in order.
            let first = self.pending.front().copied();
            if !self.pending.contains(&id) {
                id = first?;
            }
            self.pending.retain(|pending| *pending != id);
        }
        if answer.canceled {
            return self.end(id, &answer, wire);
        }
        // Progress is of all watches; what was cancelled meanwhile is of none.
        let entry = self.entries.get_mut(&id)?;
        let is_kept = if answer.created {
            entry.begin(answer.header.map_or(0, |header| header.revision))
        } else {
            entry.forward(answer.events, answer.fragment)
        };
        if is_kept {
            return None;
        }
        // Its user will find the end after the last notice.
        self.entries.remove(&id);
        send(stream, wire, WatchOrder::Cancel(WatchCancelRequest { watch_id: id }))
    }

    /// Ends a watch that the server has ended.
    fn end(&mut self, id: i64, answer: &WatchResponse, wire: &Wire) -> Option<Over> {
        let entry = self.entries.get_mut(&id)?;
        if answer.compact_revision > 0 {
            let entry = self.entries.remove(&id)?;
            entry.finish(End::Behind);
            return None;
        }
        // "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
        let message = answer.cancel_reason.rsplit("desc = ").next().unwrap_or_default().to_owned();
        let is_denied = message.contains("permission denied");
        let code = if is_denied { Code::PermissionDenied } else { Code::Unknown };
        let fault = Fault::Server { endpoint: wire.endpoint().to_owned(), code, message };
        // Some versions say the one of a token that has expired, some the other.
        if (is_denied || fault.is_of_token()) && wire.has_login() && !entry.is_second_try {
            entry.is_second_try = true;
            return Some(Over::Token);
        }
        let entry = self.entries.remove(&id)?;
        entry.finish(End::Refused(fault));
        None
    }

    fn refuse_all(&mut self, fault: &Fault) {
        for (_, entry) in self.entries.drain() {
            entry.finish(End::Refused(fault.clone()));
        }
    }
}

impl Entry {
    fn creation(&self, id: i64) -> WatchOrder {
        WatchOrder::Create(WatchCreateRequest {
            key: self.wanted.key.clone(),
            range_end: self.wanted.range_end.clone(),
            start_revision: self.next_revision,
            progress_notify: false,
            filters: self.wanted.filters.clone(),
            prev_kv: self.wanted.prev_kv,
            watch_id: id,
            fragment: true,
        })
    }

    /// Notes that the server watches. Returns whether the user follows.
    fn begin(&mut self, revision: i64) -> bool {
        self.is_second_try = false;
        if self.next_revision == 0 {
            self.next_revision = revision + 1;
        }
        if std::mem::replace(&mut self.has_begun, true) {
            return true;
        }
        self.send(Notice::Began { revision: self.next_revision - 1 })
    }

    /// Passes events on, as soon as all parts of them are there. Returns whether the user follows.
    fn forward(&mut self, events: Vec<Event>, is_part: bool) -> bool {
        self.parts.extend(events);
        if is_part || self.parts.is_empty() {
            return true;
        }
        let events = std::mem::take(&mut self.parts);
        let revisions = events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision);
        let revision = revisions.max().unwrap_or_default();
        self.next_revision = self.next_revision.max(revision + 1);
        self.send(Notice::Events { revision, events })
    }

    fn send(&self, notice: Notice) -> bool {
        match self.notices.try_send(Ok(notice)) {
            Ok(()) => true,
            // The user is gone, and the order to cancel is on its way; or does not follow.
            Err(TrySendError::Closed(_) | TrySendError::Full(_)) => false,
        }
    }

    fn finish(self, end: End) {
        // A user that has not read the notices before finds the same end after them, but for its reason.
        drop(self.notices.try_send(Err(end)));
    }
}

fn send(stream: &Stream<WatchRequest>, wire: &Wire, order: WatchOrder) -> Option<Over> {
    let sent = stream.requests.send(WatchRequest { request: Some(order) });
    sent.err().map(|_| Over::Fault(cut(wire, "the stream of watches has ended")))
}

fn cut(wire: &Wire, why: &str) -> Fault {
    Fault::Cut { endpoint: wire.endpoint().to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests;
