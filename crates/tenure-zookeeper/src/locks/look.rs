//! Looking at lines.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join, join_all, join3};
use futures_util::{StreamExt, TryStreamExt, stream};
use tenure_core::error::Result;
use tenure_core::model::claim::{ClaimId, Name, Published};
use tenure_core::model::inspect::VIEW_ENTRIES_MAX;
use tenure_core::model::line::{Line, TakenSlot};
use tenure_ordered::{Look, Mine, Presence, SessionId};
use zookeeper_client::Client;

use crate::client::session::Session;
use crate::engine::Inner;
use crate::error::{Fault, in_time, is_dead, no_answer, to_error, within};
use crate::locks::node::{Content, Seen, slot_name, token_of};

/// How many nodes are read at a time.
const READS: usize = 128;

impl Inner {
    /// Looks at a line.
    ///
    /// Without details this is one read of whatever server the client is connected with, which may lag behind. That is good enough
    /// for a waiter: its own entry was made through this connection, or was seen through it, so everything before
    /// that is there or has gone; what has gone since may still be shown, and then it waits for a moment more.
    pub(crate) async fn read_line(&self, name: &Name, is_detailed: bool) -> Result<Look> {
        let path = self.path(name)?;
        let failed = |fault: Fault| match fault {
            Fault::Timeout => no_answer("look"),
            fault => to_error("look", &fault),
        };
        let listed = within("look", async {
            let session = self.begin().await?;
            let seen = if is_detailed {
                self.list_anew(&session.client, &path).await
            } else {
                self.list(&session.client, &path).await
            };
            Ok((seen.map_err(failed)?, session))
        });
        let (seen, session) = listed.await?;
        let line = if is_detailed {
            self.read_line_details(&session, &path, seen).await.map_err(failed)?
        } else {
            seen.line()
        };
        Ok(Look { line, revision: 0, keys: 0 })
    }

    /// The reads of a long line take a busy server more than a second, so each of them has that time.
    async fn read_line_details(&self, session: &Session, path: &str, mut seen: Seen) -> Result<Line, Fault> {
        let client = &session.client;
        let all: Vec<ClaimId> = seen.children.iter().map(|child| child.entry.claim).collect();
        let most = 2 * VIEW_ENTRIES_MAX;
        let value = self.fill_in(session, path, &mut seen, &all[..all.len().min(most)]).await?;
        let slot = |slot: TakenSlot| async move {
            match in_time(client.get_data(&format!("{path}/{}", slot_name(slot.number)))).await {
                Ok((data, stat)) => {
                    let claim = std::str::from_utf8(&data).ok().and_then(|claim| claim.parse().ok());
                    Ok(claim.map(|claim| TakenSlot { claim, token: token_of(&stat), ..slot }))
                }
                Err(Fault::NoNode) => Ok(None),
                Err(fault) => Err(fault),
            }
        };
        let slots = stream::iter(seen.slots.clone()).map(slot).buffered(READS);
        let slots: Vec<Option<TakenSlot>> = slots.try_collect().await?;
        seen.slots = slots.into_iter().flatten().collect();
        let mut line = seen.line();
        let holder = line.places()[..line.holding()].first().map(|place| place.entry.claim);
        line.value = value.filter(|(claim, _)| Some(*claim) == holder).map(|(_, value)| value);
        Ok(line)
    }

    /// Lists a line. One that is not there is empty.
    pub(crate) async fn list(&self, client: &Client, path: &str) -> Result<Seen, Fault> {
        let (listed, data) = join(client.list_children(path), client.get_data(path)).await;
        match (listed, data) {
            (Ok(names), Ok((data, _))) => Ok(self.config.layout.seen(names, Some(&data))),
            (Err(Fault::NoNode), _) | (Ok(_), Err(Fault::NoNode)) => Ok(Seen::default()),
            (Err(fault), _) | (Ok(_), Err(fault)) => Err(fault),
        }
    }

    /// Lists a line as it is at least now, from the leader's view.
    pub(crate) async fn list_anew(&self, client: &Client, path: &str) -> Result<Seen, Fault> {
        let (synced, seen) = join(client.sync(path), self.list(client, path)).await;
        synced?;
        seen
    }

    /// Reads what is in the entries of some claims; what has gone meanwhile is left out. Returns the value of the first that
    /// has one, and whose it is.
    pub(crate) async fn fill_in(
        &self,
        session: &Session,
        path: &str,
        seen: &mut Seen,
        claims: &[ClaimId],
    ) -> Result<Option<(ClaimId, Published)>, Fault> {
        let claims: BTreeSet<ClaimId> = claims.iter().copied().collect();
        let wanted = seen.children.iter().filter(|child| claims.contains(&child.entry.claim));
        let names: Vec<String> = wanted.map(|child| child.name.clone()).collect();
        let read = |name: String| async move {
            match in_time(session.client.get_data(&format!("{path}/{name}"))).await {
                Ok(data) => Ok((name, Some(data))),
                Err(Fault::NoNode) => Ok((name, None)),
                Err(fault) => Err(fault),
            }
        };
        // The first that fails ends it: a server that hangs midway would be waited for once for each part.
        let mut found: BTreeMap<_, _> = stream::iter(names).map(read).buffered(READS).try_collect().await?;
        let mut value = None;
        seen.children.retain_mut(|child| match found.remove(&child.name) {
            None => true,
            Some(None) => false,
            Some(Some((data, stat))) => {
                let content = Content::read(&data);
                let about = content.about(&stat, &data, session.timeout);
                let token = about.token;
                let published = content.value.filter(|_| !about.is_broken);
                child.entry.about = Some(about);
                if let Some(bytes) = published.filter(|_| value.is_none()) {
                    let fresh_for = std::time::Duration::ZERO;
                    value = Some((child.entry.claim, Published { bytes: bytes.into(), token, fresh_for }));
                }
                true
            }
        });
        Ok(value)
    }

    /// Looks what became of entries of this client.
    ///
    /// The one `sync` before the reads goes to the leader and comes back behind everything that was decided before it, on the same
    /// connection, so that a server that lags does not show a broken hold as whole.
    pub(crate) async fn find_all(&self, mine: &[Mine]) -> Vec<Result<Presence>> {
        let sessions: BTreeSet<SessionId> = mine.iter().map(|mine| mine.session_id).collect();
        let syncs = sessions.into_iter().filter_map(|session_id| {
            let session = self.sessions.session(session_id)?;
            Some(async move { (session_id, session.client.sync("/").await) })
        });
        // All are sent in this order when they are asked for the first time.
        let (synced, found) = join(join_all(syncs), join_all(mine.iter().map(|mine| self.find(mine)))).await;
        let fault = |session_id| {
            synced.iter().find(|(synced, _)| *synced == session_id).and_then(|(_, sync)| sync.clone().err())
        };
        let answer = |(mine, found): (&Mine, Result<Presence>)| match fault(mine.session_id) {
            Some(fault) if !is_dead(&fault) => Err(to_error("renew", &fault)),
            _ => found,
        };
        mine.iter().zip(found).map(answer).collect()
    }

    async fn find(&self, mine: &Mine) -> Result<Presence> {
        let Some(session) = self.sessions.session(mine.session_id) else { return Ok(Presence::Gone) };
        let path = match self.node(mine.claim) {
            Some(node) => node.path,
            None => match self.find_path(&session, &mine.resource, mine.claim).await? {
                Some(path) => path,
                None => return Ok(Presence::Gone),
            },
        };
        match session.client.get_data(&path).await {
            Ok((data, _)) if Content::read(&data).is_broken() => Ok(Presence::Broken),
            Ok(_) => Ok(Presence::Here),
            Err(Fault::NoNode) => Ok(Presence::Gone),
            Err(fault) if is_dead(&fault) => Ok(Presence::Gone),
            Err(fault) => Err(to_error("renew", &fault)),
        }
    }

    /// Returns the path of a claim's entry, by its line.
    pub(crate) async fn find_path(
        &self,
        session: &Session,
        name: &Name,
        claim: ClaimId,
    ) -> Result<Option<String>> {
        let path = self.path(name)?;
        let seen = self.list_anew(&session.client, &path).await.map_err(|fault| to_error("look", &fault))?;
        Ok(seen.child(claim).map(|child| format!("{path}/{}", child.name)))
    }

    /// Returns a line with what the answer to a claim that does not hold needs: the first holder, and the largest
    /// token.
    pub(crate) async fn line_with_holders(
        &self,
        session: &Session,
        path: &str,
        mut seen: Seen,
    ) -> Result<Line, Fault> {
        let line = seen.line();
        let holders = &line.places()[..line.holding()];
        let ends: Vec<ClaimId> =
            [holders.first(), holders.last()].into_iter().flatten().map(|place| place.entry.claim).collect();
        let before = seen.children.len();
        self.fill_in(session, path, &mut seen, &ends).await?;
        // One that went meanwhile was there when the line was seen, and counts.
        Ok(if seen.children.len() == before { seen.line() } else { line })
    }

    /// The same answers as three calls one after the other, in the time of one.
    pub(crate) async fn create_and_list(
        &self,
        client: &Client,
        line: &str,
        prefix: &str,
        data: &[u8],
        wants_capacity: bool,
    ) -> Result<(zookeeper_client::Stat, i32, Seen), Fault> {
        let mode = zookeeper_client::CreateMode::EphemeralSequential;
        let read = async { if wants_capacity { client.get_data(line).await.map(Some) } else { Ok(None) } };
        let options = self.options(mode);
        let (created, listed, read) =
            join3(client.create(prefix, data, &options), client.list_children(line), read).await;
        let (stat, sequence) = created?;
        let sequence = i32::try_from(sequence.into_i64()).map_err(|_| Fault::Unimplemented)?;
        let data = read?.map(|(data, _)| data);
        Ok((stat, sequence, self.config.layout.seen(listed?, data.as_deref())))
    }
}
