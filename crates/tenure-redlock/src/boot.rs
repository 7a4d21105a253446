//! Which servers count.
//!
//! A server that has started anew may have forgotten what it granted and how far its counters had come, whatever it reads from its disk.
//! So it counts only while its marker holds its present run id. Otherwise it first waits until all that it may have granted has
//! ended (the longest ttl), and then learns from a majority of the others how far counters have come: no counter of its own is below that
//! from then on, whatever it has read. Where no majority remembers, an operator must say that the quorum is new. A
//! server whose largest number is gone, which only happens if its keys are deleted, is as one that has started anew.
//!
//! The marker also holds the longest ttl that any client may ask for, which is how long such a server waits. So a
//! client with a longer one is refused; an operator raises it on all servers, and it is never lowered. One that has a
//! shorter one lets servers wait for the marker's.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::{Error, ErrorKind, Result};
use tenure_redis::server::{Fault, in_millis, number, pause, text};
use tokio::time::{Instant, timeout_at};

use crate::library::LIBRARY;
use crate::quorum::majority;
use crate::rounds::node::{Request, Said};
use crate::rounds::{ENGINE, Quorum};

/// How much longer than the longest ttl a server waits.
const WAIT_MORE: Duration = Duration::from_secs(2);
/// How long one server is waited for.
const WITHIN: Duration = Duration::from_millis(900);
/// How long the other servers have to answer when a majority has, so that one that is named twice is seen at once.
const MORE: Duration = Duration::from_millis(20);
/// How often it is tried to let a server in.
const EVERY: Duration = Duration::from_secs(1);

/// What is to become of a server.
enum Standing {
    /// With the longest ttl, in ms.
    Counts(u64),
    Waits(Duration),
    Learns(u64),
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) counts: bool,
    /// The largest number of all counters.
    pub(crate) top: u64,
    /// The longest ttl, in ms; 0 if it does not count.
    pub(crate) longest: u64,
}

impl Mark {
    pub(crate) fn of(said: &Said) -> Mark {
        let value = |at: usize| said.items.get(at).and_then(|item| number(item).ok()).unwrap_or(0);
        Mark { counts: value(0) == 1, top: value(1), longest: value(2) }
    }
}

impl Quorum {
    /// This client's longest ttl, in ms.
    pub(crate) fn own_longest(&self) -> u64 {
        in_millis(self.max_ttl)
    }

    /// Returns the longest ttl that a majority allows, in ms, if that is less than this client's.
    pub(crate) fn falls_short(&self) -> Option<u64> {
        let short: Vec<u64> = self.nodes.iter().filter_map(|node| node.falls_short()).collect();
        if short.len() < majority(self.nodes.len()) {
            return None;
        }
        // An operator may have raised it since.
        self.nodes.iter().for_each(|node| node.doubt.notify_one());
        short.into_iter().min()
    }

    /// Learns from a majority what the longest ttl is, so that a client begins with what is right.
    pub(crate) async fn learn_longest(self: &Arc<Self>) {
        let mut heard = self.ask_all(WITHIN, Request::new(&LIBRARY.mark));
        let mut answered = 0;
        let mut until = Instant::now() + 2 * WITHIN;
        while let Ok(Some((node, said))) = timeout_at(until, heard.recv()).await {
            let Ok(mark) = said.map(|said| Mark::of(&said)) else { continue };
            answered += 1;
            if mark.counts {
                self.nodes[node].learn(mark.longest, self.own_longest());
            }
            if answered == majority(self.nodes.len()) {
                until = Instant::now() + MORE;
            }
        }
    }

    async fn standing(&self, node: usize, longest: u64) -> std::result::Result<Standing, Fault> {
        let wait = Duration::from_millis(longest) + WAIT_MORE;
        let request = Request::new(&LIBRARY.settle).arg(wait.as_millis().to_string());
        let said = self.ask(node, WITHIN, true, &request).await?;
        let strange =
            || Fault::Cut { server: self.nodes[node].name.clone(), why: "a strange answer".to_owned() };
        let [state, left, top, longest] = &said.items[..] else { return Err(strange()) };
        let left = Duration::from_millis(number(left).map_err(|_| strange())?);
        match text(state).map_err(|_| strange())? {
            "R" => Ok(Standing::Counts(number(longest).map_err(|_| strange())?)),
            "W" => Ok(Standing::Waits(left)),
            _ => Ok(Standing::Learns(number(top).map_err(|_| strange())?)),
        }
    }

    /// Returns what each server says of itself.
    pub(crate) async fn marks(self: &Arc<Self>) -> Vec<std::result::Result<Mark, Fault>> {
        let request = Request::new(&LIBRARY.mark);
        let asked = (0..self.nodes.len()).map(|node| self.ask(node, WITHIN, true, &request));
        let answers = futures_util::future::join_all(asked).await;
        answers.into_iter().map(|said| said.map(|said| Mark::of(&said))).collect()
    }

    async fn admit(
        &self,
        node: usize,
        top: u64,
        longest: u64,
        is_told: bool,
    ) -> std::result::Result<bool, Fault> {
        let request = Request::new(&LIBRARY.admit).arg(top.to_string()).arg(longest.to_string());
        let request = request.arg(u8::from(is_told).to_string());
        let said = self.ask(node, WITHIN, true, &request).await?;
        Ok(said.items.first().and_then(|item| number(item).ok()) == Some(1))
    }

    /// Lets a server in if it is time. Returns how long to wait otherwise.
    async fn try_to_let_in(self: &Arc<Self>, node: usize) -> Option<Duration> {
        match self.ask(node, WITHIN, true, &Request::new(&LIBRARY.mark)).await.map(|said| Mark::of(&said)) {
            Ok(mark) if mark.counts => {
                self.nodes[node].learn(mark.longest, self.own_longest());
                return None;
            }
            Ok(_) => {}
            Err(fault) => {
                tracing::debug!(%fault, "cannot ask whether a server counts");
                return Some(EVERY);
            }
        }
        let mut others = self.marks().await;
        drop(others.remove(node));
        let known: Vec<Mark> = others.into_iter().flatten().filter(|mark| mark.counts).collect();
        // As the others know it now: an operator may have raised it since this client last heard.
        let marked = known.iter().map(|mark| mark.longest).max();
        if marked.is_some_and(|longest| longest < self.own_longest()) {
            // This client is not one of this quorum's.
            return Some(EVERY);
        }
        let longest = marked.unwrap_or(self.own_longest());
        let top = match self.standing(node, longest).await {
            Ok(Standing::Counts(longest)) => {
                self.nodes[node].learn(longest, self.own_longest());
                return None;
            }
            Ok(Standing::Waits(left)) => return Some(left.min(EVERY)),
            Ok(Standing::Learns(top)) => top,
            Err(_) => return Some(EVERY),
        };
        if known.len() < majority(self.nodes.len()) {
            return Some(EVERY);
        }
        let top = known.into_iter().map(|mark| mark.top).max().unwrap_or(0).max(top);
        match self.admit(node, top, longest, false).await {
            Ok(true) => {
                self.nodes[node].learn(longest, self.own_longest());
                tracing::info!(engine = ENGINE, server = self.nodes[node].name, "a server counts again");
                None
            }
            _ => Some(EVERY),
        }
    }

    /// Lets the servers of a new quorum in, or those of one that has forgotten everything, and raises the longest ttl. Returns what was done.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if servers are away: one that comes back later with what it remembers must not be taken for new.
    pub(crate) async fn init(self: &Arc<Self>) -> Result<String> {
        let marks = self.marks().await;
        let (all, own) = (marks.len(), self.own_longest());
        let counting: Vec<Mark> = marks.iter().flatten().filter(|mark| mark.counts).copied().collect();
        let longest = counting.iter().map(|mark| mark.longest).max().unwrap_or(0);
        let is_alike = counting.iter().all(|mark| mark.longest == longest);
        let is_to_raise = !is_alike || longest < own;
        if counting.len() == all && !is_to_raise {
            return Ok(format!(
                "all {all} servers count, for ttls of up to {:?}",
                Duration::from_millis(longest)
            ));
        }
        if counting.len() >= majority(all) && !is_to_raise {
            return Ok(format!(
                "{} of {all} servers count; the others are let in by themselves, {:?} after they are seen",
                counting.len(),
                Duration::from_millis(longest) + WAIT_MORE
            ));
        }
        if counting.len() >= majority(all) && counting.len() < all {
            let message = format!(
                "{} of {all} servers count: the longest ttl is raised on all of them or on none",
                counting.len()
            );
            return Err(Error::new(ErrorKind::Unavailable, "init", message)
                .with_hint("wait until all count, as `tenure doctor` shows, and repeat it"));
        }
        let away: Vec<String> = marks
            .iter()
            .zip(&self.nodes)
            .filter_map(|(mark, node)| Some(format!("{} ({})", node.name, mark.as_ref().err()?)))
            .collect();
        if !away.is_empty() {
            let message = format!("servers are away: {}", away.join(", "));
            return Err(Error::new(ErrorKind::Unavailable, "init", message)
                .with_hint("a new quorum begins with all of its servers: start those, or name others"));
        }
        let top = marks.iter().flatten().map(|mark| mark.top).max().unwrap_or(0);
        let longest = longest.max(own);
        for node in 0..all {
            let admitted = self.admit(node, top, longest, true).await;
            admitted.map_err(|fault| fault.to_error("init"))?;
            self.nodes[node].learn(longest, own);
        }
        Ok(format!(
            "all {all} servers count from now on, for ttls of up to {:?}",
            Duration::from_millis(longest)
        ))
    }
}

/// Looks after one server until the client is gone: whenever it is in doubt whether it counts, it is settled.
pub(crate) async fn watch_server(quorum: Weak<Quorum>, node: usize) {
    loop {
        let Some(this) = quorum.upgrade() else { return };
        let again = this.try_to_let_in(node).await;
        drop(this);
        match again {
            Some(period) => pause::sleep(period.max(Duration::from_millis(50))).await,
            None => {
                let Some(this) = quorum.upgrade() else { return };
                let doubt = this.nodes[node].doubt.clone();
                drop(this);
                doubt.notified().await;
            }
        }
    }
}
