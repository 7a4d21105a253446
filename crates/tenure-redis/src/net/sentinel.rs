//! The master, as the Sentinels name it.
//!
//! The client listens to all Sentinels, and the one that knows of the latest failover (the highest configuration
//! epoch) is believed, not the first that answers: after a partition a Sentinel may name the old master for
//! seconds, and that one takes writes until it learns of it, which are then lost. They are asked again when they
//! announce something, when there is no connection with the master, and every few seconds, since announcements
//! get lost with connections.
//!
//! A failover that an operator asks for is the dangerous one: the old master is well and answers, and a Sentinel
//! needs over a second to see that the replica has been promoted, and some more to say so. All that was
//! acknowledged meanwhile is lost (13,000 to 25,000 increments by one client, when this was tried). So the old
//! master is left when the leading Sentinel announces that it is about to promote, which is a tenth of a second
//! before it does: what was acknowledged until then still reaches the replica, and nothing is afterwards.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Fault;
use crate::net::address::Address;
use crate::net::dial::{Dialer, text_of};
use crate::net::pause;

/// How long a Sentinel may take to answer. They do nothing that takes long.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long finding a master may take before the attempt counts as failed.
const FIND_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a Sentinel is asked although nothing happens. It also finds out that one hangs.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// What the leading Sentinel announces right before it promotes a replica.
const PROMOTING: &str = "+failover-state-send-slaveof-noone";
/// What a Sentinel announces when it sees that the replica has been promoted, although others have still to
/// follow it, which takes as long as they need to copy the data; and at the end of a failover.
const PROMOTED: [&str; 2] = ["+promoted-slave", "+switch-master"];
/// How long an announced promotion is waited for. The Sentinel sees it within two seconds; if it does not, the
/// old master is used again.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(4);

/// The Sentinels of one master. Cheap to clone; connections end with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct Sentinels {
    shared: Arc<Shared>,
    /// The master that was found last.
    found: Option<Address>,
    _watchers: Arc<Watchers>,
}

#[derive(Debug)]
struct Shared {
    dialer: Dialer,
    master: String,
    /// What each Sentinel says.
    sights: watch::Sender<Vec<Sight>>,
    /// Wakes the task that asks.
    ask: Notify,
}

/// What one Sentinel says.
#[derive(Clone, Debug)]
enum Sight {
    /// It has not been asked yet.
    Unknown,
    /// This is the master.
    Master(Named),
    /// It does not know, or does not answer.
    Nobody(Fault),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    address: Address,
    /// How many failovers there have been; and during one, that the new master has been promoted already.
    age: (u64, bool),
}

#[derive(Debug)]
struct Watchers(Vec<AbortHandle>);

impl Drop for Watchers {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Sentinels {
    /// Begins to listen to the Sentinels.
    pub(crate) fn start(dialer: Dialer, addresses: &[Address], master: &str) -> Sentinels {
        let shared = Arc::new(Shared {
            dialer,
            master: master.to_owned(),
            sights: watch::Sender::new(vec![Sight::Unknown; addresses.len()]),
            ask: Notify::new(),
        });
        let watchers = addresses.iter().enumerate().map(|(index, address)| {
            tokio::spawn(watch(shared.clone(), index, address.clone())).abort_handle()
        });
        let watchers = Arc::new(Watchers(watchers.collect()));
        Sentinels { shared, found: None, _watchers: watchers }
    }

    /// Returns the master that is named now. It may be on its way out: [`Sentinels::moved`] says when.
    pub(crate) async fn find(&mut self) -> Result<Address, Fault> {
        self.shared.ask.notify_waiters();
        let mut sights = self.shared.sights.subscribe();
        let give_up_at = Instant::now() + FIND_TIMEOUT;
        loop {
            let fault = match best(&sights.borrow_and_update()) {
                Ok(address) => {
                    self.found = Some(address.clone());
                    return Ok(address);
                }
                // All of them say what only people can mend.
                Err(Some(fault)) if fault.is_permanent() => return Err(fault),
                Err(fault) => fault,
            };
            if timeout_at(give_up_at, sights.changed()).await.is_err() {
                let why = format!("no Sentinel names the master {:?}", self.shared.master);
                return Err(fault.unwrap_or(Fault::Nobody { why }));
            }
        }
    }

    /// Waits until another master is named than was found.
    pub(crate) async fn moved(&mut self) {
        let mut sights = self.shared.sights.subscribe();
        loop {
            if best(&sights.borrow_and_update()).is_ok_and(|address| Some(address) != self.found) {
                return;
            }
            if sights.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// The master of the latest failover, or why there is none. A Sentinel that answers says more than one that does
/// not; what only people can mend comes last, since it stops the waiting.
fn best(sights: &[Sight]) -> Result<Address, Option<Fault>> {
    let named = sights.iter().filter_map(|sight| match sight {
        Sight::Master(named) => Some(named),
        _ => None,
    });
    if let Some(named) = named.max_by_key(|named| named.age) {
        return Ok(named.address.clone());
    }
    if sights.iter().any(|sight| matches!(sight, Sight::Unknown)) {
        return Err(None);
    }
    let faults = sights.iter().filter_map(|sight| match sight {
        Sight::Nobody(fault) => Some(fault),
        _ => None,
    });
    Err(faults.min_by_key(|fault| (fault.is_permanent(), !matches!(fault, Fault::Nobody { .. }))).cloned())
}

/// Keeps an ear on one Sentinel.
async fn watch(shared: Arc<Shared>, index: usize, address: Address) {
    let mut attempt = 0;
    loop {
        let started = Instant::now();
        let fault = listen(&shared, index, &address).await;
        tracing::debug!(engine = "redis", sentinel = %address, %fault, "cannot hear a Sentinel");
        see(&shared, index, Sight::Nobody(fault));
        if started.elapsed() >= ASK_EVERY {
            attempt = 0;
        }
        pause::before(attempt).await;
        attempt = attempt.saturating_add(1);
    }
}

/// Listens to a Sentinel until it does not answer any more, and returns why.
async fn listen(shared: &Shared, index: usize, address: &Address) -> Fault {
    let server = address.to_string();
    let (sender, mut pushes) = unbounded_channel();
    let on_push = move |push: PushInfo| sender.send(push).map_err(drop);
    let mut connection = match in_time(&server, shared.dialer.dial(address, on_push)).await {
        Ok(connection) => connection,
        Err(fault) => return fault,
    };
    let subscribing = async {
        for channel in PROMOTED.into_iter().chain([PROMOTING]) {
            let answer = connection.send_packed_command(redis::cmd("SUBSCRIBE").arg(channel)).await;
            answer.map_err(|error| Fault::of_command(&error, &server))?;
        }
        Ok(())
    };
    if let Err(fault) = in_time(&server, subscribing).await {
        return fault;
    }
    let mut promotion: Option<Promotion> = None;
    loop {
        // Made before asking, so that no call for news is missed.
        let asked = shared.ask.notified();
        match in_time(&server, ask(&mut connection, address, &shared.master)).await {
            Ok(sight) => see(shared, index, with_promotion(sight, &mut promotion)),
            Err(fault) => return fault,
        }
        let (announced, asked) = (pin!(announcement(&mut pushes)), pin!(asked));
        match timeout(ASK_EVERY, select(announced, asked)).await {
            Ok(Either::Left((None, _))) => {
                return Fault::Cut { server, why: "the Sentinel closed it".to_owned() };
            }
            Ok(Either::Left((Some(said), _))) => {
                if let Some(replica) = read_promoting(&said, &shared.master, address) {
                    promotion = Some(Promotion { replica, until: Instant::now() + PROMOTION_TIMEOUT });
                }
            }
            Ok(Either::Right(_)) | Err(_) => {}
        }
    }
}

/// A replica that is about to be the master.
#[derive(Clone, Debug)]
struct Promotion {
    replica: Address,
    until: Instant,
}

/// What a Sentinel says, seen in the light of what it announced: until it has noticed the promotion that it
/// asked for, it names the old master. (A link takes the replica for a master only when it says that it is one.)
fn with_promotion(sight: Sight, promotion: &mut Option<Promotion>) -> Sight {
    match (sight, promotion.take()) {
        (Sight::Master(Named { age: (epoch, false), address }), Some(pending))
            if address != pending.replica && Instant::now() < pending.until =>
        {
            let named = Named { address: pending.replica.clone(), age: (epoch, true) };
            *promotion = Some(pending);
            Sight::Master(named)
        }
        (sight, _) => sight,
    }
}

/// Reads `slave name host port @ master host port`, which is announced before a promotion.
fn read_promoting((channel, text): &(String, String), master: &str, from: &Address) -> Option<Address> {
    let fields: Vec<&str> = text.split(' ').collect();
    let is_ours = channel == PROMOTING && fields.get(5) == Some(&master);
    is_ours.then(|| Some(Address::of(fields[2], fields[3].parse().ok()?, from))).flatten()
}

/// Waits for an announcement, a channel and a text; none for the end of the connection.
async fn announcement(pushes: &mut UnboundedReceiver<PushInfo>) -> Option<(String, String)> {
    loop {
        let push = pushes.recv().await?;
        let mut parts = push.data.into_iter().map(|part| text_of(part, "").unwrap_or_default());
        match push.kind {
            PushKind::Message => return Some((parts.next()?, parts.next()?)),
            PushKind::Disconnection => return None,
            _ => {}
        }
    }
}

async fn in_time<T>(server: &str, step: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let silent = |_| Fault::Silent { server: server.to_owned(), after: ANSWER_TIMEOUT };
    timeout(ANSWER_TIMEOUT, step).await.map_err(silent)?
}

/// Asks a Sentinel for the master.
async fn ask(connection: &mut MultiplexedConnection, from: &Address, master: &str) -> Result<Sight, Fault> {
    let server = from.to_string();
    let mut commands = redis::pipe();
    commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    commands.cmd("SENTINEL").arg("MASTER").arg(master);
    let answers = connection
        .send_packed_commands(&commands, 0, 2)
        .await
        .map_err(|error| Fault::of_command(&error, &server))?;
    let mut answers = answers.into_iter();
    let (address, state) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
    let unexpected = || Fault::Cut { server: server.clone(), why: "unexpected answer".to_owned() };
    let (host, port) = match address {
        Value::Array(parts) => {
            let mut parts = parts.into_iter().map(|part| text_of(part, &server));
            (parts.next().ok_or_else(unexpected)??, parts.next().ok_or_else(unexpected)??)
        }
        Value::Nil => {
            let why = format!("the Sentinel {server} knows no master {master:?}");
            return Ok(Sight::Nobody(Fault::Nobody { why }));
        }
        other => return Err(text_of(other, &server).err().unwrap_or_else(unexpected)),
    };
    let field = |name: &str| field(&state, name, &server);
    let epoch = field("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    // While a failover is under way, the first answer may be ahead of the second.
    let is_promoted =
        field("ip").is_some_and(|ip| ip != host) || field("port").is_some_and(|old| old != port);
    let address = Address::of(&host, port.parse().map_err(|_| unexpected())?, from);
    Ok(Sight::Master(Named { address, age: (epoch, is_promoted) }))
}

/// A field of an answer that is a map, or the list that it was before RESP3.
fn field(state: &Value, name: &str, server: &str) -> Option<String> {
    let text = |value: &Value| text_of(value.clone(), server).ok();
    match state {
        Value::Map(pairs) => {
            pairs.iter().find_map(|(key, value)| (text(key)? == name).then(|| text(value))?)
        }
        Value::Array(parts) => {
            parts.chunks_exact(2).find_map(|pair| (text(&pair[0])? == name).then(|| text(&pair[1]))?)
        }
        _ => None,
    }
}

fn see(shared: &Shared, index: usize, sight: Sight) {
    shared.sights.send_modify(|sights| sights[index] = sight);
}

#[cfg(test)]
mod tests;
