//! Which servers count.
//!
//! A server that has started anew may have forgotten what it granted and how far its counters had come, whatever it reads from its disk.
//! So it counts only while its marker holds its present run id. Otherwise it first waits until all that it may have granted has
//! ended (the longest ttl), and then learns from a majority of the others how far counters have come. Where no majority remembers,
//! an operator must say that the quorum is new.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::{Error, ErrorKind, Result};

use super::library::LIBRARY;
use super::node::{Request, Said};
use super::{ENGINE, Quorum};
use crate::answer::number;
use crate::answer::text;
use crate::error::Fault;
use crate::pause;
use crate::quorum::majority;

/// How much longer than the longest ttl a server waits.
const WAIT_MORE: Duration = Duration::from_secs(2);
/// How long one server is waited for.
const WITHIN: Duration = Duration::from_millis(900);
/// How often it is tried to let a server in.
const EVERY: Duration = Duration::from_secs(1);

/// What is to become of a server.
enum Standing {
    Counts,
    Waits(Duration),
    Learns(u64),
}

impl Quorum {
    async fn standing(&self, node: usize) -> std::result::Result<Standing, Fault> {
        let wait = (self.max_ttl + WAIT_MORE).as_millis();
        let request = Request::new(&LIBRARY.settle).arg(wait.to_string());
        let said = self.ask(node, WITHIN, true, &request).await?;
        let strange =
            || Fault::Cut { server: self.nodes[node].name.clone(), why: "a strange answer".to_owned() };
        let [state, left, top] = &said.items[..] else { return Err(strange()) };
        let left = Duration::from_millis(number(left).map_err(|_| strange())?);
        match text(state).map_err(|_| strange())? {
            "R" => Ok(Standing::Counts),
            "W" => Ok(Standing::Waits(left)),
            _ => Ok(Standing::Learns(number(top).map_err(|_| strange())?)),
        }
    }

    /// Returns what each server says of itself: whether it counts, and its largest number.
    pub(crate) async fn marks(self: &Arc<Self>) -> Vec<std::result::Result<(bool, u64), Fault>> {
        let request = Request::new(&LIBRARY.mark);
        let asked = (0..self.nodes.len()).map(|node| self.ask(node, WITHIN, true, &request));
        let answers = futures_util::future::join_all(asked).await;
        answers.into_iter().map(|said| said.map(|said| mark(&said))).collect()
    }

    async fn admit(&self, node: usize, top: u64, is_told: bool) -> std::result::Result<bool, Fault> {
        let request = Request::new(&LIBRARY.admit).arg(top.to_string()).arg(u8::from(is_told).to_string());
        let said = self.ask(node, WITHIN, true, &request).await?;
        Ok(said.items.first().and_then(|item| number(item).ok()) == Some(1))
    }

    /// Lets a server in if it is time. Returns how long to wait otherwise.
    async fn try_to_let_in(self: &Arc<Self>, node: usize) -> Option<Duration> {
        let top = match self.standing(node).await {
            Ok(Standing::Counts) => return None,
            Ok(Standing::Waits(left)) => return Some(left.min(EVERY)),
            Ok(Standing::Learns(top)) => top,
            Err(fault) => {
                tracing::debug!(%fault, "cannot ask whether a server counts");
                return Some(EVERY);
            }
        };
        let marks = self.marks().await;
        let others = marks.iter().enumerate().filter(|(other, _)| *other != node);
        let known: Vec<u64> = others
            .filter_map(|(_, mark)| mark.as_ref().ok())
            .filter(|mark| mark.0)
            .map(|mark| mark.1)
            .collect();
        if known.len() < majority(self.nodes.len()) {
            return Some(EVERY);
        }
        let top = known.into_iter().max().unwrap_or(0).max(top);
        match self.admit(node, top, false).await {
            Ok(true) => {
                tracing::info!(engine = ENGINE, server = self.nodes[node].name, "a server counts again");
                None
            }
            _ => Some(EVERY),
        }
    }

    /// Lets the servers of a new quorum in, or those of one that has forgotten everything. Returns what was done.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if servers are away: one that comes back later with what it remembers must not be taken for new.
    pub(crate) async fn init(self: &Arc<Self>) -> Result<String> {
        let marks = self.marks().await;
        let all = marks.len();
        let count = marks.iter().filter(|mark| matches!(mark, Ok((true, _)))).count();
        if count == all {
            return Ok(format!("all {all} servers count"));
        }
        if count >= majority(all) {
            return Ok(format!(
                "{count} of {all} servers count; the others are let in by themselves, {:?} after they are seen",
                self.max_ttl + WAIT_MORE
            ));
        }
        let away: Vec<String> = marks
            .iter()
            .zip(&self.nodes)
            .filter_map(|(mark, node)| Some(format!("{} ({})", node.name, mark.as_ref().err()?)))
            .collect();
        if !away.is_empty() {
            let message = format!("servers are away: {}", away.join(", "));
            return Err(Error::new(ErrorKind::Unavailable, "init", message)
                .with_engine(ENGINE)
                .with_hint("a new quorum begins with all of its servers: start those, or name others"));
        }
        let top = marks.iter().flatten().map(|mark| mark.1).max().unwrap_or(0);
        for node in 0..all {
            self.admit(node, top, true).await.map_err(|fault| fault.to_error("init").with_engine(ENGINE))?;
        }
        Ok(format!("all {all} servers count from now on"))
    }
}

fn mark(said: &Said) -> (bool, u64) {
    let value = |at: usize| said.items.get(at).and_then(|item| number(item).ok()).unwrap_or(0);
    (value(0) == 1, value(1))
}

/// Looks after one server until the client is gone: whenever it is in doubt whether it counts, it is settled.
pub(crate) async fn look_after(quorum: Weak<Quorum>, node: usize) {
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
