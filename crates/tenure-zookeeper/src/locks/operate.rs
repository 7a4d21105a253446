//! What is done with entries that are there: slots, values, and what operators do.

use std::collections::BTreeSet;

use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::model::line::{Line, Place, Resized, TakenSlot};
use tenure_core::model::token::Token;
use tenure_ordered::Mine;
use zookeeper_client::{Client, CreateMode, MultiWriteResult};

use crate::engine::Inner;
use crate::error::{Fault, to_error};
use crate::locks::node::{Content, slot_name, token_of, write_resized};

/// How often a node may change between its reading and its writing.
const ATTEMPTS: usize = 4;

impl Inner {
    /// Takes any free slot.
    pub(crate) async fn take_slot(&self, mine: &Mine, capacity: u32, line: &Line) -> Result<TakenSlot> {
        let failed = |fault: Fault| to_error("take a slot", &fault);
        let Some(session) = self.sessions.session(mine.session_id) else {
            return Err(failed(Fault::SessionExpired));
        };
        let client = &session.client;
        let path = self.path(&mine.resource)?;
        if let Some(slot) = self.node(mine.claim).and_then(|node| node.slot_in_doubt) {
            let read = client.get_data(&format!("{path}/{}", slot_name(slot))).await;
            if let Ok((data, stat)) = read
                && data == mine.claim.to_string().as_bytes()
            {
                return Ok(TakenSlot { number: slot, claim: mine.claim, token: token_of(&stat) });
            }
        }
        let mut taken: BTreeSet<u32> = line.slots().iter().map(|slot| slot.number).collect();
        for _ in 0..ATTEMPTS {
            // Fewer are taken than there are, since a claim that takes one holds a unit and gives back both at once.
            for slot in (0..capacity).filter(|slot| !taken.contains(slot)) {
                self.note(mine.claim, |node| node.slot_in_doubt = Some(slot));
                let created = self.create_slot(client, &path, slot, mine.claim).await.map_err(failed)?;
                self.note(mine.claim, |node| node.slot_in_doubt = None);
                if let Some(token) = created {
                    return Ok(TakenSlot { number: slot, claim: mine.claim, token });
                }
            }
            let seen = self.list_anew(client, &path).await.map_err(failed)?;
            taken = seen.slots.iter().map(|slot| slot.number).collect();
        }
        let why = "each slot is taken, though not each unit";
        Err(Error::new(ErrorKind::Unavailable, "take a slot", why).with_hint("this passes by itself"))
    }

    /// Makes the node of a slot, if the claim's entry is still there: a client that released it meanwhile knows
    /// nothing of the slot. Returns the token; none if another has taken the slot.
    async fn create_slot(
        &self,
        client: &Client,
        line: &str,
        slot: u32,
        claim: ClaimId,
    ) -> Result<Option<Token>, Fault> {
        let Some(entry) = self.node(claim) else { return Err(Fault::NoNode) };
        let mut both = client.new_multi_writer();
        both.add_check_version(&entry.path, -1)?;
        let data = claim.to_string();
        let options = self.options(CreateMode::Ephemeral);
        let path = format!("{line}/{}", slot_name(slot));
        both.add_create(&path, data.as_bytes(), &options)?;
        let results = match both.commit().await.map_err(Fault::from) {
            Ok(results) => results,
            Err(Fault::NodeExists) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let created = results.iter().find_map(|result| match result {
            MultiWriteResult::Create { stat, .. } if !stat.is_invalid() => Some(*stat),
            _ => None,
        });
        // Some servers do not say it (ZOOKEEPER-4026, ZOOKEEPER-4667).
        let stat = match created {
            Some(stat) => stat,
            None => client.get_data(&path).await?.1,
        };
        Ok(Some(token_of(&stat)))
    }

    /// Sets the value of a resource while a claim holds it.
    pub(crate) async fn publish(&self, mine: &Mine, bytes: &[u8]) -> Result<bool> {
        let failed = |fault: Fault| to_error("publish", &fault);
        let Some(session) = self.sessions.session(mine.session_id) else { return Ok(false) };
        let path = match self.node(mine.claim) {
            Some(node) => node.path,
            None => match self.find_path(&session, &mine.resource, mine.claim).await? {
                Some(path) => path,
                None => return Ok(false),
            },
        };
        let write = |entry: &_| Some(Content::write(entry, Some(bytes)));
        let written = change(&session.client, &path, |content| match &content.entry {
            Some(entry) if !content.is_broken() => write(entry),
            _ => None,
        });
        match written.await.map_err(failed)? {
            Some(version) => {
                self.note(mine.claim, |node| node.version = version);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Notes a change of the capacity.
    pub(crate) async fn resize(&self, name: &Name, resized: Resized) -> Result<()> {
        let session = self.begin().await?;
        let text = write_resized(&resized);
        match session.client.set_data(&self.path(name)?, text.as_bytes(), None).await {
            // Without the node nothing is held that could be resized.
            Ok(_) | Err(Fault::NoNode) => Ok(()),
            Err(fault) => Err(to_error("resize", &fault)),
        }
    }

    /// Marks an entry as broken, or removes it.
    pub(crate) async fn break_place(
        &self,
        name: &Name,
        place: &Place,
        slot: Option<u32>,
        at_once: bool,
    ) -> Result<bool> {
        let failed = |fault: Fault| to_error("break a hold", &fault);
        let session = self.begin().await?;
        let (client, claim) = (&session.client, place.entry.claim);
        let Some(path) = self.find_path(&session, name, claim).await? else { return Ok(false) };
        if at_once {
            return remove_broken(client, &path, slot).await.map_err(failed);
        }
        let mut is_foreign = false;
        let marked = change(client, &path, |content| {
            let mut entry = content.entry.clone();
            is_foreign = entry.is_none();
            entry.as_mut()?.about.as_mut()?.is_broken = true;
            Some(Content::write(&entry?, content.value.as_deref()))
        });
        let marked = marked.await.map_err(failed)?;
        if is_foreign {
            let why = "it is another client's lock, which does not look for a mark";
            return Err(Error::new(ErrorKind::Unsupported, "break a hold", why)
                .with_hint("break it at once, after its work was stopped"));
        }
        Ok(marked.is_some())
    }
}

/// Removes an entry, and the slot that it took.
async fn remove_broken(client: &Client, path: &str, slot: Option<u32>) -> Result<bool, Fault> {
    let (line, _) = path.rsplit_once('/').unwrap_or(("", path));
    let mut both = client.new_multi_writer();
    both.add_delete(path, None)?;
    if let Some(slot) = slot {
        both.add_delete(&format!("{line}/{}", slot_name(slot)), None)?;
    }
    match both.commit().await {
        Ok(_) => Ok(true),
        Err(fault) => match Fault::from(fault) {
            Fault::NoNode => Ok(false),
            fault => Err(fault),
        },
    }
}

/// Changes what is in a node, and returns its new version. `None`: it is gone, or `to` says that it stays.
async fn change(
    client: &Client,
    path: &str,
    mut to: impl FnMut(&Content) -> Option<Vec<u8>>,
) -> Result<Option<i32>, Fault> {
    let mut last = Fault::BadVersion;
    for _ in 0..ATTEMPTS {
        let (data, stat) = match client.get_data(path).await {
            Err(Fault::NoNode) => return Ok(None),
            read => read?,
        };
        let Some(data) = to(&Content::read(&data)) else { return Ok(None) };
        match client.set_data(path, &data, Some(stat.version)).await {
            Ok(stat) => return Ok(Some(stat.version)),
            Err(Fault::NoNode) => return Ok(None),
            Err(Fault::BadVersion) => last = Fault::Timeout,
            Err(fault) => return Err(fault),
        }
    }
    Err(last)
}
