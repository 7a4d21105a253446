//! Letting claims leave.

use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::ClaimId;
use tenure_ordered::{Leaving, Left};
use zookeeper_client::{Client, MultiWriteError};

use crate::client::session::Session;
use crate::engine::{Inner, Node};
use crate::error::{Fault, is_dead, to_error, within};
use crate::locks::node::{Content, slot_name};

/// How often a node may change between its reading and its removal: only an operator changes it.
const ATTEMPTS: usize = 4;

/// What became of one try to remove an entry.
enum Removal {
    Gone,
    WasNot,
    /// Its data is of another version.
    Changed,
}

impl Inner {
    /// Removes the entry of a claim, and its slot.
    pub(crate) async fn leave(&self, leaving: &Leaving) -> Result<Left> {
        let left = within("release", async {
            // The entries of a session that is over are gone.
            let session = match &leaving.mine {
                Some(mine) => self.sessions.session(mine.session_id),
                None => Some(self.begin().await?),
            };
            let Some(session) = session else { return Ok(Left::WasNot) };
            let node = match self.node(leaving.claim).filter(|node| node.session_id == session.session_id) {
                Some(node) => node,
                None => match self.find_path(&session, &leaving.resource, leaving.claim).await? {
                    Some(path) => {
                        Node { session_id: session.session_id, path, version: 0, slot_in_doubt: None }
                    }
                    None => return Ok(Left::WasNot),
                },
            };
            let slot = leaving.mine.as_ref().and_then(|mine| mine.slot);
            let node = if leaving.may_have_slot && leaving.mine.is_none() {
                let slot_in_doubt = self.slot_of(&session, &node.path, leaving.claim).await;
                Node { slot_in_doubt: slot_in_doubt.map_err(|fault| to_error("release", &fault))?, ..node }
            } else {
                node
            };
            match self.remove(&session, leaving, node, slot).await {
                Ok(Some(left)) => Ok(left),
                Ok(None) => {
                    let why = "the entry's node changed again and again";
                    Err(Error::new(ErrorKind::Unavailable, "release", why))
                }
                Err(fault) if is_dead(&fault) => Ok(Left::WasNot),
                Err(fault) => Err(to_error("release", &fault)),
            }
        });
        let left = left.await?;
        if left != Left::IsBroken {
            self.forget(leaving.claim);
        }
        Ok(left)
    }

    /// Looks which slot a claim took, beside its entry.
    async fn slot_of(&self, session: &Session, entry: &str, claim: ClaimId) -> Result<Option<u32>, Fault> {
        let (line, _) = entry.rsplit_once('/').unwrap_or(("", entry));
        for slot in self.list(&session.client, line).await?.slots {
            let slot = slot.number;
            let read = session.client.get_data(&format!("{line}/{}", slot_name(slot))).await;
            if read.is_ok_and(|(data, _)| data == claim.to_string().as_bytes()) {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Returns `None` if its data changed too often.
    async fn remove(
        &self,
        session: &Session,
        leaving: &Leaving,
        node: Node,
        slot: Option<u32>,
    ) -> Result<Option<Left>, Fault> {
        let client = &session.client;
        let (parent, _) = node.path.rsplit_once('/').unwrap_or(("", &node.path));
        let slot_path = slot.map(|slot| format!("{parent}/{}", slot_name(slot)));
        let mut version = node.version;
        for _ in 0..ATTEMPTS {
            let left = match remove_at(client, &node.path, version, slot_path.as_deref()).await? {
                Removal::Gone => Left::Gone,
                Removal::WasNot => Left::WasNot,
                Removal::Changed => match client.get_data(&node.path).await {
                    Ok((data, _)) if Content::read(&data).is_broken() && !leaving.is_over => {
                        return Ok(Some(Left::IsBroken));
                    }
                    Ok((_, stat)) => {
                        version = stat.version;
                        continue;
                    }
                    Err(Fault::NoNode) => Left::WasNot,
                    Err(fault) => return Err(fault),
                },
            };
            for slot in [node.slot_in_doubt, slot.filter(|_| left == Left::WasNot)].into_iter().flatten() {
                free(client, &format!("{parent}/{}", slot_name(slot)), leaving.claim).await?;
            }
            return Ok(Some(left));
        }
        Ok(None)
    }
}

async fn remove_at(client: &Client, path: &str, version: i32, slot: Option<&str>) -> Result<Removal, Fault> {
    let removed = match slot {
        None => client.delete(path, Some(version)).await,
        Some(slot) => {
            let mut both = client.new_multi_writer();
            both.add_delete(path, Some(version))?;
            both.add_delete(slot, None)?;
            match both.commit().await {
                Ok(_) => Ok(()),
                // The slot is free already.
                Err(MultiWriteError::OperationFailed { index: 1, source: Fault::NoNode }) => {
                    client.delete(path, Some(version)).await
                }
                Err(fault) => Err(fault.into()),
            }
        }
    };
    match removed {
        Ok(()) => Ok(Removal::Gone),
        Err(Fault::NoNode) => Ok(Removal::WasNot),
        Err(Fault::BadVersion) => Ok(Removal::Changed),
        Err(fault) => Err(fault),
    }
}

/// Frees a slot, if it is a claim's.
async fn free(client: &Client, path: &str, claim: ClaimId) -> Result<(), Fault> {
    let freed = match client.get_data(path).await {
        Ok((data, stat)) if data == claim.to_string().as_bytes() => {
            client.delete(path, Some(stat.version)).await
        }
        Ok(_) => Ok(()),
        Err(fault) => Err(fault),
    };
    match freed {
        Ok(()) | Err(Fault::NoNode) => Ok(()),
        Err(fault) => Err(fault),
    }
}
