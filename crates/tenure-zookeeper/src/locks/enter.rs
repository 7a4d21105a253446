//! Letting claims in.

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_core::model::claim::Kind;
use tenure_core::model::line::{Entry, Standing};
use tenure_core::model::token::Token;
use tenure_ordered::{Entered, Entrance, Look, Mine, Rule};

use crate::client::session::Session;
use crate::engine::{Inner, Node};
use crate::error::{Fault, is_dead, to_error_of_write, within};
use crate::locks::node::{Content, Seen};

/// How often a container may vanish between its making and that of its first child.
const ATTEMPTS: usize = 5;

impl Inner {
    /// Lets a claim in, as its rule says.
    pub(crate) async fn enter(&self, entrance: Entrance<'_>) -> Result<Entered> {
        let Some(session) = self.sessions.session(entrance.session_id) else { return Ok(Entered::Dead) };
        self.allows(&entrance.claim.terms).map_err(Error::with_no_effect)?;
        let path = self.path(&entrance.claim.resource).map_err(Error::with_no_effect)?;
        let entered = async {
            match self.enter_in(&session, &path, &entrance).await {
                Ok(Some(entered)) => Ok(entered),
                Ok(None) => {
                    let why = "the resource's node went again and again";
                    Err(Error::new(ErrorKind::Unavailable, "claim", why))
                }
                Err(fault) if is_dead(&fault) => Ok(Entered::Dead),
                Err(fault) => Err(to_error_of_write("claim", &fault)),
            }
        };
        within("claim", entered).await
    }

    /// Returns `None` if the container vanished too often.
    async fn enter_in(
        &self,
        session: &Session,
        path: &str,
        entrance: &Entrance<'_>,
    ) -> Result<Option<Entered>, Fault> {
        let (claim, client) = (entrance.claim, &session.client);
        if entrance.is_repeated {
            // What is sent on one connection is carried out in that order, and what was sent on an earlier one is refused once
            // there is a later one. So what is not there now will not come.
            let seen = self.list_anew(client, path).await?;
            if let Some(child) = seen.child(claim.id) {
                let (name, sequence) = (child.name.clone(), child.sequence);
                let node = format!("{path}/{name}");
                return match client.check_stat(&node).await? {
                    Some(stat) => {
                        let entered = (node, sequence, stat.czxid, stat.version);
                        self.entered(session, path, entrance, entered, seen).await.map(Some)
                    }
                    None => Ok(Some(Entered::Finished)),
                };
            }
        }
        if entrance.rule == Rule::IfItHolds {
            let seen = self.list_anew(client, path).await?;
            if seen.line().would_hold(&claim.terms) != Ok(true) {
                let line = self.line_with_holders(session, path, seen).await?;
                return Ok(Some(Entered::Out(Look { line, revision: 0, keys: 0 })));
            }
        }
        let lasts = claim.terms.ttl.max(session.timeout);
        let entry = Entry::new(claim, SystemClock.time_of_day(), lasts);
        let data = Content::write(&entry, None);
        let prefix = format!("{path}/{}", self.config.layout.prefix(claim));
        let wants_capacity = matches!(claim.terms.kind, Kind::Semaphore | Kind::SlotPool);
        for _ in 0..ATTEMPTS {
            match self.create_and_list(client, path, &prefix, &data, wants_capacity).await {
                Ok((stat, sequence, seen)) => {
                    let node = format!("{prefix}{sequence:010}");
                    let entered = (node, sequence, stat.czxid, 0);
                    return self.entered(session, path, entrance, entered, seen).await.map(Some);
                }
                // Nothing was made.
                Err(Fault::NoNode) => self.make_container(client, path).await?,
                Err(fault) => return Err(fault),
            }
        }
        Ok(None)
    }

    /// Notes an entry, and returns the line for the answer to its claim. `seen`: with the entry.
    async fn entered(
        &self,
        session: &Session,
        path: &str,
        entrance: &Entrance<'_>,
        (node, sequence, czxid, version): (String, i32, i64, i32),
        seen: Seen,
    ) -> Result<Entered, Fault> {
        let claim = entrance.claim;
        self.know(
            claim.id,
            Node { session_id: session.session_id, path: node, version, slot_in_doubt: None },
        );
        let mine = Mine {
            resource: claim.resource.clone(),
            claim: claim.id,
            order: seen.order(sequence),
            token: Token::new(czxid.cast_unsigned()),
            session_id: session.session_id,
            slot: None,

            adoptions: 0,
        };
        let line = seen.line();
        let line = match line.standing(claim.id) {
            Some(Standing::Waits(_)) => self.line_with_holders(session, path, seen).await?,
            _ => line,
        };
        Ok(Entered::In(mine, Look { line, revision: 0, keys: 0 }))
    }
}
