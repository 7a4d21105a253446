//! One resource in the store: its record is read, [`step`] changes it, and what became of it is written back.
//!
//! A row `r<name>` holds one byte that says how the rest is stored, eight of the index (see below), and the
//! record: whole while it is small, since one row costs one page, and in rows of its own when it has grown (see
//! `rows.rs`). The two thresholds lie apart, so that a record at the border does not go to and fro.
//!
//! The time is monotonic within a boot, so an idle record may be forgotten at once unless it remembers
//! something: finished claims, a value, which slot has been free longest. Such a record gets a row
//! `i<when><name>`, at most one, whose time is noted in the record's row; every so often a transaction looks at
//! the first of these. A record that is in use again keeps its row until then, so that the common case, to
//! claim and to release, costs nothing.

use heed::Database;
use heed::types::Bytes;
use tenure_core::claim::{ClaimId, ClientId, Name};
use tenure_core::clock::Timestamp;
use tenure_core::inspect::{View, inspect};
use tenure_core::record::{DecodeError, PlainRecord, Record};
use tenure_core::step::{Command, Outcome, Transition, forget_at, step};

use crate::error::Failure;
use crate::store::Transaction;
use crate::wake::News;

/// A record with more entries than this is stored in rows.
pub(crate) const ROWS_ABOVE: usize = 32;
/// How many holders' clients are looked at or watched for one claim. The deaths of others are noticed when
/// their holds end.
const HOLDERS_WATCHED_MAX: usize = 256;
/// How many waiters' clients are looked at for one view.
const WAITERS_WATCHED_MAX: usize = 256;

/// The first byte of the keys of records.
pub(crate) const RESOURCE: u8 = b'r';
/// The first byte of the keys of the index of idle records.
const IDLE: u8 = b'i';
/// The whole record follows.
const WHOLE: u8 = 1;
/// What comes before the record in its row: how it is stored, and when it is due in the index (zero: it is not).
const PREFIX_BYTES: usize = 9;

/// The unnamed database: a named one would cost a second page per commit.
pub(crate) type Rows = Database<'static, Bytes, Bytes>;

/// What a command did to a resource.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    /// Whose death would change the answer: of a claim that waits, the client ahead, or at the head the
    /// holders; of one that was refused, the holders.
    pub(crate) depends_on: Vec<ClientId>,
    /// Who was granted, and told.
    pub(crate) woken: Vec<ClaimId>,
}

struct Loaded {
    record: PlainRecord,
    is_stored: bool,
    indexed_at: Timestamp,
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Failure {
        match error {
            DecodeError::Format(_) => Failure::Format(error.to_string()),
            DecodeError::Damaged => Failure::Damaged("a record cannot be read"),
        }
    }
}

fn resource_key(name: &Name) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + name.as_str().len());
    key.push(RESOURCE);
    key.extend(name.as_str().as_bytes());
    key
}

fn index_key(at: Timestamp, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + name.len());
    key.push(IDLE);
    key.extend(at.micros().to_be_bytes());
    key.extend(name);
    key
}

impl Transaction<'_> {
    /// Carries out a command.
    pub(crate) fn step(&mut self, name: &Name, command: &Command<'_>) -> Result<Done, Failure> {
        self.step_on_row(name, command, false)
    }

    fn step_on_row(
        &mut self,
        name: &Name,
        command: &Command<'_>,
        is_index_gone: bool,
    ) -> Result<Done, Failure> {
        let key = resource_key(name);
        let now = self.now();
        let Loaded { mut record, is_stored, mut indexed_at } = self.load(&key)?;
        if is_index_gone {
            indexed_at = Timestamp::default();
        }
        let Transition { outcome, wakes, moved_up, is_token_ahead } = step(&mut record, command, now)?;
        if is_token_ahead {
            tracing::warn!(resource = %name, engine = "local", "the last token lies ahead of the clock");
        }
        let depends_on = depends_on(&record, command, &outcome)?;
        let may_be_unchanged = wakes.is_empty() && moved_up.is_empty();
        for woken in &wakes {
            let news = match woken.grant {
                Some(grant) => News::Granted(woken.claim, grant, self.store.incarnation),
                None => News::Look(woken.claim),
            };
            self.tell(woken.client, name, news);
        }
        for (client, claim) in moved_up {
            self.tell(client, name, News::Look(claim));
        }
        if !wakes.is_empty() {
            self.tell_new_head(name, &record)?;
        }
        if self.save(&key, &record, is_stored, indexed_at, may_be_unchanged, now)? {
            self.tell_observers(name)?;
        }
        let woken = wakes.iter().map(|woken| woken.claim).collect();
        Ok(Done { outcome, depends_on, woken })
    }

    /// A head of the queue watches all holders, which it did not while it watched the waiter ahead. With one
    /// holder at a time that is the same client.
    fn tell_new_head<R: Record>(&mut self, name: &Name, record: &R) -> Result<(), Failure>
    where
        Failure: From<R::Error>,
    {
        if record.head()?.is_some_and(|head| head.capacity > 1)
            && let Some(next) = record.waiter_behind(0)?
        {
            self.tell(next.client, name, News::Look(next.claim));
        }
        Ok(())
    }

    /// Looks at a resource: its view, and the clients that are in it.
    pub(crate) fn view(&self, name: &Name) -> Result<(Option<View>, Vec<ClientId>), Failure> {
        let Loaded { record, .. } = self.load(&resource_key(name))?;
        let view = inspect(name, &record, self.now())?;
        let mut clients = holders(&record)?;
        for waiter in record.waiters(WAITERS_WATCHED_MAX)? {
            if !clients.contains(&waiter.client) {
                clients.push(waiter.client);
            }
        }
        Ok((view, clients))
    }

    /// Whom a claim that waits depends on now.
    pub(crate) fn waits_for(&self, name: &Name, claim: ClaimId) -> Result<Vec<ClientId>, Failure> {
        let Loaded { record, .. } = self.load(&resource_key(name))?;
        ahead_of(&record, claim)
    }

    fn load(&self, key: &[u8]) -> Result<Loaded, Failure> {
        let Some(bytes) = self.rows().get(self.reader(), key)? else {
            let indexed_at = Timestamp::default();
            return Ok(Loaded { record: PlainRecord::default(), is_stored: false, indexed_at });
        };
        let (prefix, rest) =
            bytes.split_first_chunk::<PREFIX_BYTES>().ok_or(Failure::Damaged("a row is too short"))?;
        let [how, index @ ..] = *prefix;
        if how != WHOLE {
            return Err(Failure::Format("a record is stored in an unknown way".to_owned()));
        }
        Ok(Loaded {
            record: PlainRecord::decode(rest)?,
            is_stored: true,
            indexed_at: Timestamp::from_micros(u64::from_le_bytes(index)),
        })
    }

    /// Writes a record, or forgets it. Says whether anything changed.
    fn save(
        &mut self,
        key: &[u8],
        record: &PlainRecord,
        was_stored: bool,
        mut indexed_at: Timestamp,
        may_be_unchanged: bool,
        now: Timestamp,
    ) -> Result<bool, Failure> {
        let rows = self.rows();
        let name = &key[1..];
        match forget_at(record, true, now)? {
            _ if record.head()?.is_none() => return Ok(false),
            Some(at) if at <= now => {
                if was_stored {
                    rows.delete(self.writer(), key)?;
                }
                if indexed_at != Timestamp::default() {
                    rows.delete(self.writer(), &index_key(indexed_at, name))?;
                }
                return Ok(was_stored);
            }
            Some(at) if indexed_at == Timestamp::default() => {
                indexed_at = at;
                rows.put(self.writer(), &index_key(at, name), &[])?;
            }
            _ => {}
        }
        let mut row = Vec::with_capacity(256);
        row.push(WHOLE);
        row.extend(indexed_at.micros().to_le_bytes());
        let row = record.encode(row);
        if may_be_unchanged && was_stored && rows.get(self.reader(), key)? == Some(&row[..]) {
            return Ok(false);
        }
        rows.put(self.writer(), key, &row)?;
        Ok(true)
    }

    /// Forgets idle records whose time has come, up to `most`. Returns how many were looked at.
    pub(crate) fn purge(&mut self, most: usize) -> Result<usize, Failure> {
        for looked_at in 0..most {
            let now = self.now();
            let first = self.rows().get_greater_than_or_equal_to(self.reader(), &[IDLE])?;
            let Some((key, _)) = first.filter(|(key, _)| key.first() == Some(&IDLE)) else {
                return Ok(looked_at);
            };
            let (at, name) =
                key[1..].split_first_chunk::<8>().ok_or(Failure::Damaged("an index key is too short"))?;
            if Timestamp::from_micros(u64::from_be_bytes(*at)) > now {
                return Ok(looked_at);
            }
            let (key, name) = (key.to_vec(), read_name(name)?);
            self.rows().delete(self.writer(), &key)?;
            // Settling forgets the record, or gives it another row if it has more to remember.
            self.step_on_row(&name, &Command::Settle, true)?;
        }
        Ok(most)
    }

    /// Lists the names of up to `most` records that begin with `prefix` and come after `after`.
    pub(crate) fn names(
        &self,
        prefix: &str,
        after: Option<&Name>,
        most: usize,
    ) -> Result<Vec<Name>, Failure> {
        let start = [&[RESOURCE], prefix.as_bytes()].concat();
        let after = after.map(resource_key);
        let from = match &after {
            Some(after) if *after >= start => std::ops::Bound::Excluded(&after[..]),
            _ => std::ops::Bound::Included(&start[..]),
        };
        let mut names = Vec::new();
        for row in self.rows().range(self.reader(), &(from, std::ops::Bound::Unbounded))?.take(most) {
            let (key, _) = row?;
            if !key.starts_with(&start) {
                break;
            }
            names.push(read_name(&key[1..])?);
        }
        Ok(names)
    }
}

fn read_name(bytes: &[u8]) -> Result<Name, Failure> {
    let name = std::str::from_utf8(bytes).ok().and_then(|name| Name::new(name).ok());
    name.ok_or(Failure::Damaged("a name cannot be read"))
}

/// Whose death would change an answer.
fn depends_on<R: Record>(
    record: &R,
    command: &Command<'_>,
    outcome: &Outcome,
) -> Result<Vec<ClientId>, Failure>
where
    Failure: From<R::Error>,
{
    match (outcome, command) {
        (Outcome::Busy(_), _) => holders(record),
        (Outcome::Waiting(_), Command::Claim(claim)) => ahead_of(record, claim.id),
        (Outcome::Waiting(_), Command::Renew(claim)) => ahead_of(record, *claim),
        _ => Ok(Vec::new()),
    }
}

fn ahead_of<R: Record>(record: &R, claim: ClaimId) -> Result<Vec<ClientId>, Failure>
where
    Failure: From<R::Error>,
{
    let Some(waiter) = record.waiter_of(claim)? else { return Ok(Vec::new()) };
    let ahead = record.waiters(usize::MAX)?;
    match ahead.iter().rev().find(|ahead| ahead.place < waiter.place) {
        Some(ahead) => Ok(vec![ahead.client]),
        None => holders(record),
    }
}

fn holders<R: Record>(record: &R) -> Result<Vec<ClientId>, Failure>
where
    Failure: From<R::Error>,
{
    let mut clients = Vec::new();
    for hold in record.holds(HOLDERS_WATCHED_MAX)? {
        if hold.claim.is_some() && !clients.contains(&hold.client) {
            clients.push(hold.client);
        }
    }
    Ok(clients)
}
