//! etcd's leases: what keys hang on. (Not a lease of tenure: one of etcd's carries the claims of a whole client.)
//!
//! Keep-alives of all leases go over one stream, whose answers come in the order of the requests. The stream is made
//! anew when it breaks, when an answer does not come in time, and when the client moves to another endpoint. A caller
//! that waits for an answer then gets a fault, and may ask again: a keep-alive that is repeated does no harm.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::endpoints::Endpoints;
use crate::client::proto::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
};
use crate::client::rpc::{Stream, Wire};
use crate::error::Fault;

/// How many keep-alives wait for their answers at most. A client has a lease for each ttl that it uses.
const WAITING_MAX: usize = 1024;

/// The leases of a client. Cheap to clone; its task ends with the last clone.
#[derive(Clone)]
pub(crate) struct Leases {
    endpoints: Endpoints,
    asks: mpsc::Sender<Ask>,
}

/// A lease as it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) id: i64,
    /// May be longer than what was asked for.
    pub(crate) ttl: Duration,
}

/// A keep-alive that waits for its answer.
struct Ask {
    id: i64,
    asked: Instant,
    deadline: Instant,
    answer: oneshot::Sender<Result<i64, Fault>>,
}

impl Leases {
    /// Makes them. It must be called on a tokio runtime.
    pub(crate) fn start(endpoints: &Endpoints) -> Leases {
        let (asks, receiver) = mpsc::channel(WAITING_MAX);
        tokio::spawn(renew(endpoints.clone(), receiver));
        Leases { endpoints: endpoints.clone(), asks }
    }

    /// Grants a lease, with an id that the server chooses. The ttl is rounded up to seconds. One that was granted without an
    /// answer has no keys, and ends by itself.
    pub(crate) async fn grant(&self, ttl: Duration, deadline: Instant) -> Result<Granted, Fault> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let ttl = i64::try_from(seconds.max(1)).unwrap_or(i64::MAX);
        let answer = self.endpoints.call(LeaseGrantRequest { ttl, id: 0 }, deadline).await?;
        Ok(Granted { id: answer.id, ttl: to_duration(answer.ttl) })
    }

    /// Revokes a lease, and with it deletes all of its keys.
    pub(crate) async fn revoke(&self, id: i64, deadline: Instant) -> Result<(), Fault> {
        match self.endpoints.call(LeaseRevokeRequest { id }, deadline).await {
            Ok(_) => Ok(()),
            Err(fault) if fault.is_no_lease() => Err(Fault::NoLease { id }),
            Err(fault) => Err(fault),
        }
    }

    /// Makes a lease last for its whole ttl from now on, which is returned. [`Fault::NoLease`] if there is none.
    pub(crate) async fn keep_alive(&self, id: i64, deadline: Instant) -> Result<Duration, Fault> {
        let (answer, answered) = oneshot::channel();
        let down = || Fault::Down { why: "no keep-alive was answered in time".to_owned() };
        let ask = Ask { id, asked: Instant::now(), deadline, answer };
        match timeout_at(deadline, self.asks.send(ask)).await {
            Ok(Ok(())) => {}
            // The task ends with the runtime alone.
            Ok(Err(_)) | Err(_) => return Err(down()),
        }
        // The task answers at the deadline, too; but it may be busy finding an endpoint.
        match timeout_at(deadline, answered).await {
            Ok(Ok(Ok(ttl))) if ttl > 0 => Ok(to_duration(ttl)),
            Ok(Ok(Ok(_))) => Err(Fault::NoLease { id }),
            Ok(Ok(Err(fault))) => Err(fault),
            Ok(Err(_)) | Err(_) => Err(down()),
        }
    }
}

/// A stream of keep-alives, and the callers that wait for its answers.
struct Open {
    wire: Wire,
    stream: Stream<LeaseKeepAliveRequest>,
    waiting: VecDeque<Ask>,
}

/// Sends keep-alives and gives out the answers, until every sender is dropped.
async fn renew(endpoints: Endpoints, mut asks: mpsc::Receiver<Ask>) {
    let mut in_use = endpoints.in_use();
    let mut open: Option<Open> = None;
    loop {
        let Some(current) = &mut open else {
            let Some(first) = asks.recv().await else { return };
            open = begin(&endpoints, first, &mut asks).await;
            continue;
        };
        // A stream without waiting callers is still one of the endpoint in use.
        let due = current.waiting.front().map(|ask| ask.deadline);
        let fault = tokio::select! {
            ask = asks.recv() => match ask {
                Some(ask) => current.send(ask),
                None => return,
            },
            answer = current.stream.next() => match answer {
                Ok(answer) => current.give(&answer),
                Err(fault) => Some(fault),
            },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                current.expire()
            }
            changed = in_use.changed() => {
                let moved = changed.is_err() || *in_use.borrow_and_update() != current.wire.number();
                moved.then(|| current.cut("the client has moved to another endpoint"))
            }
        };
        if let Some(fault) = fault {
            current.end(&endpoints, &fault);
            open = None;
        }
    }
}

/// Opens a stream with what waits already.
async fn begin(endpoints: &Endpoints, first: Ask, asks: &mut mpsc::Receiver<Ask>) -> Option<Open> {
    let deadline = first.deadline;
    let mut waiting = VecDeque::from([first]);
    while let Ok(ask) = asks.try_recv() {
        waiting.push_back(ask);
    }
    // A caller that has given up needs no answer.
    waiting.retain(|ask| !ask.answer.is_closed());
    if waiting.is_empty() {
        return None;
    }
    let requests: Vec<_> = waiting.iter().map(|ask| LeaseKeepAliveRequest { id: ask.id }).collect();
    let opened = async {
        let wire = endpoints.wire(deadline).await.map_err(|fault| (None, fault))?;
        match wire.open(requests, deadline).await {
            Ok(stream) => Ok((wire, stream)),
            Err(fault) => Err((Some(wire), fault)),
        }
    };
    match opened.await {
        Ok((wire, stream)) => Some(Open { wire, stream, waiting }),
        Err((wire, fault)) => {
            if let Some(wire) = wire.filter(|_| fault.is_of_endpoint()) {
                endpoints.leave(&wire, &fault);
            }
            fail_all(waiting, &fault);
            None
        }
    }
}

impl Open {
    fn send(&mut self, ask: Ask) -> Option<Fault> {
        let request = LeaseKeepAliveRequest { id: ask.id };
        self.waiting.push_back(ask);
        match self.stream.requests.send(request) {
            Ok(()) => None,
            Err(_) => Some(self.cut("the stream of keep-alives has ended")),
        }
    }

    fn give(&mut self, answer: &LeaseKeepAliveResponse) -> Option<Fault> {
        let place = self.waiting.iter().position(|ask| ask.id == answer.id);
        // An answer that was not asked for is dropped.
        if let Some(ask) = place.and_then(|place| self.waiting.remove(place)) {
            // A caller that has given up needs no answer.
            drop(ask.answer.send(Ok(answer.ttl)));
        }
        None
    }

    /// Gives up on an endpoint that did not answer the first waiting caller.
    fn expire(&self) -> Option<Fault> {
        let first = self.waiting.front()?;
        let after = first.deadline.saturating_duration_since(first.asked);
        Some(Fault::Silent { endpoint: self.wire.endpoint().to_owned(), after })
    }

    fn cut(&self, why: &str) -> Fault {
        Fault::Cut { endpoint: self.wire.endpoint().to_owned(), why: why.to_owned() }
    }

    fn end(&mut self, endpoints: &Endpoints, fault: &Fault) {
        if fault.is_of_endpoint() {
            endpoints.leave(&self.wire, fault);
        }
        fail_all(std::mem::take(&mut self.waiting), fault);
    }
}

/// Answers all waiting callers with the fault.
fn fail_all(waiting: VecDeque<Ask>, fault: &Fault) {
    for ask in waiting {
        // A caller that has given up needs none.
        drop(ask.answer.send(Err(fault.clone())));
    }
}

fn to_duration(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests;
