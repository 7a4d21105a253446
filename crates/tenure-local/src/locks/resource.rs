//! One resource in the store: its record is read, [`step`] changes it, and what became of it is written back.
//!
//! A row `r<name>` holds one byte that says how the rest is stored, eight of the index (see below), and the
//! record: whole while it is small, since one row costs one page, and in rows of its own when it has grown (see
//! `rows.rs`). The two thresholds lie apart, so that a record at the border does not go to and fro.
//!
//! The time is monotonic within a boot, so an idle record may be forgotten at once unless it remembers
//! something: finished claims, a value, which slot has been free longest. Such a record gets a row
//! `i<when><name>`, at most one, whose time is noted in the record's row; every so often a transaction reads
//! the first of these. A record that is in use again keeps its row until then, so that the common case, to
//! claim and to release, costs nothing.

use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Name};
use tenure_core::model::inspect::{View, inspect};
use tenure_core::model::record::{DecodeError, PlainRecord, Record, Waiter};
use tenure_core::model::step::{
    Break, Claimed, Command, Publish, Release, Renew, RenewOwn, Renewed, Resize, Settle, Transition, Vanish,
    Withdraw, forget_at, step,
};

use crate::client::wake::News;
use crate::error::Failure;
use crate::locks::rows::RowRecord;
use crate::store::Transaction;

/// How many holders' clients are checked or watched for one claim. The deaths of others are noticed when
/// their holds end.
const HOLDERS_WATCHED_MAX: usize = 256;
/// How many waiters' clients are checked for one view.
const WAITERS_WATCHED_MAX: usize = 256;

/// The first byte of the keys of records.
pub(crate) const RESOURCE: u8 = b'r';
/// The first byte of the keys of the index of idle records.
const IDLE: u8 = b'i';
/// How a record is stored: whole, in its row.
const WHOLE: u8 = 1;
/// How a record is stored: in rows of its own, whose id is in its row.
const IN_ROWS: u8 = 2;
/// What comes first in a record's row: how it is stored, and when it is due in the index (zero: it is not).
const PREFIX_BYTES: usize = 9;
/// The key of the last id that was given to a record in rows.
const LAST_ID: &[u8] = b"n";
/// A value of more bytes goes into a row of its own, so that the row stays within a page.
const VALUE_BYTES_WHOLE_MAX: usize = 1024;

/// What a command did to a resource.
#[derive(Debug)]
pub(crate) struct Done<A> {
    pub(crate) answer: A,
    /// Whose death would change the answer: of a claim that waits, the client ahead, or at the head the
    /// holders; of one that was refused, the holders.
    pub(crate) depends_on: Vec<ClientId>,
    /// The claims that were granted, and woken.
    pub(crate) woken: Vec<ClaimId>,
}

/// A record that knows which client is ahead of a waiter.
pub(crate) trait Queue: Record {
    /// Returns the last waiter ahead of a place.
    fn waiter_ahead(&self, place: u64) -> Result<Option<Waiter>, Self::Error>;
}

impl Queue for PlainRecord {
    fn waiter_ahead(&self, place: u64) -> Result<Option<Waiter>, Self::Error> {
        Ok(self.waiters(usize::MAX)?.into_iter().rev().find(|waiter| waiter.place < place))
    }
}

/// What is stored of a record.
enum Stored {
    Nothing,
    Whole(PlainRecord),
    InRows(u64),
}

/// What was seen of a resource.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) view: Option<View>,
    /// The clients that hold it.
    pub(crate) holders: Vec<ClientId>,
    /// The clients that wait for it.
    pub(crate) waiters: Vec<ClientId>,
    /// When it changes by itself.
    pub(crate) changes_in: Option<Duration>,
}

struct Loaded {
    stored: Stored,
    indexed_at: Timestamp,
}

/// What a step did, and what must be known before the record is put away.
struct Effects<A> {
    transition: Transition<A>,
    depends_on: Vec<ClientId>,
    /// The head of the queue, if it has come there by a grant to the one ahead.
    new_head: Option<(ClientId, ClaimId)>,
    /// When the record may be forgotten. `None`: it is in use.
    forget_at: Option<Timestamp>,
}

/// Carries out a command on a record, however it is stored.
fn apply<R: Queue, C: Watchful>(
    record: &mut R,
    command: &C,
    now: Timestamp,
) -> Result<Effects<C::Answer>, Failure>
where
    Failure: From<R::Error>,
{
    let transition = step(record, command, now)?;
    let depends_on = command.depends_on(&transition.answer, record)?;
    // A head of the queue watches all holders, which it did not while it watched the waiter ahead. With one
    // holder at a time that is the same client.
    let mut new_head = None;
    if !transition.wakes.is_empty() && record.head()?.is_some_and(|head| head.capacity > 1) {
        new_head = record.waiter_behind(0)?.map(|next| (next.client, next.claim));
    }
    let forget_at = forget_at(record, true, now)?;
    Ok(Effects { transition, depends_on, new_head, forget_at })
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
    pub(crate) fn step<C: Watchful>(&mut self, name: &Name, command: &C) -> Result<Done<C::Answer>, Failure> {
        self.step_on_row(name, command, false)
    }

    fn step_on_row<C: Watchful>(
        &mut self,
        name: &Name,
        command: &C,
        is_index_gone: bool,
    ) -> Result<Done<C::Answer>, Failure> {
        let key = resource_key(name);
        let now = self.now();
        let Loaded { stored, indexed_at: noted } = self.load(&key)?;
        let indexed_at = if is_index_gone { Timestamp::default() } else { noted };
        let row = Row { key, noted, indexed_at, now };
        let (effects, is_changed) = match stored {
            Stored::Nothing => self.step_whole(row, PlainRecord::default(), false, command)?,
            Stored::Whole(record) => self.step_whole(row, record, true, command)?,
            Stored::InRows(id) => self.step_in_rows(row, id, command)?,
        };
        let Effects { transition: Transition { answer, wakes, moved_up }, .. } = effects;
        for woken in &wakes {
            let news = match woken.grant {
                Some(grant) => News::Granted(woken.claim, grant, self.store.incarnation),
                None => News::Look(woken.claim),
            };
            self.notify(woken.client, name, news);
        }
        for (client, claim) in moved_up.into_iter().chain(effects.new_head) {
            self.notify(client, name, News::Look(claim));
        }
        if is_changed {
            self.notify_observers(name)?;
        }
        let woken = wakes.iter().map(|woken| woken.claim).collect();
        Ok(Done { answer, depends_on: effects.depends_on, woken })
    }

    /// Steps a small record, and writes it back, forgets it, or puts it into rows.
    fn step_whole<C: Watchful>(
        &mut self,
        mut row: Row,
        mut record: PlainRecord,
        was_stored: bool,
        command: &C,
    ) -> Result<(Effects<C::Answer>, bool), Failure> {
        let effects = apply(&mut record, command, row.now)?;
        if record.head()?.is_none() {
            return Ok((effects, false));
        }
        if effects.forget_at.is_some_and(|at| at <= row.now) {
            self.forget(&row, was_stored)?;
            return Ok((effects, was_stored));
        }
        self.index(&mut row, effects.forget_at)?;
        if is_large(&record, self.store.rows_above)? {
            self.put_into_rows(&row, &record)?;
            return Ok((effects, true));
        }
        let bytes = record.encode(row.prefix(WHOLE));
        let rows = self.rows();
        let may_be_unchanged = effects.transition.wakes.is_empty() && effects.transition.moved_up.is_empty();
        if may_be_unchanged && was_stored && rows.get(self.reader(), &row.key)? == Some(&bytes[..]) {
            return Ok((effects, false));
        }
        rows.put(self.writer(), &row.key, &bytes)?;
        Ok((effects, true))
    }

    /// Steps a large record; takes it out of its rows when it has shrunk.
    fn step_in_rows<C: Watchful>(
        &mut self,
        mut row: Row,
        id: u64,
        command: &C,
    ) -> Result<(Effects<C::Answer>, bool), Failure> {
        let rows = self.rows();
        let shrunk_below = self.store.rows_above / 2;
        let mut record = RowRecord::open(rows, self.writer(), id)?;
        let effects = apply(&mut record, command, row.now)?;
        let is_small = record.entries() <= shrunk_below as u64
            && record.value()?.is_none_or(|value| value.bytes.len() <= VALUE_BYTES_WHOLE_MAX / 2);
        let mut shrunk = None;
        if is_small {
            let mut whole = PlainRecord::default();
            record.copy_to(&mut whole)?;
            shrunk = Some(whole);
        }
        let is_changed = record.close()?;
        let may_be_forgotten = effects.forget_at.is_some_and(|at| at <= row.now);
        if may_be_forgotten || is_small {
            RowRecord::remove(rows, self.writer(), id)?;
        }
        if may_be_forgotten {
            self.forget(&row, true)?;
            return Ok((effects, true));
        }
        self.index(&mut row, effects.forget_at)?;
        if let Some(whole) = shrunk {
            let bytes = whole.encode(row.prefix(WHOLE));
            rows.put(self.writer(), &row.key, &bytes)?;
        } else if row.indexed_at != row.noted {
            let mut bytes = row.prefix(IN_ROWS);
            bytes.extend(id.to_le_bytes());
            rows.put(self.writer(), &row.key, &bytes)?;
        }
        Ok((effects, is_changed))
    }

    /// Looks at a resource.
    pub(crate) fn view(&mut self, name: &Name) -> Result<Seen, Failure> {
        let now = self.now();
        match self.load(&resource_key(name))?.stored {
            Stored::Nothing => Ok(Seen::default()),
            Stored::Whole(record) => view_record(name, &record, now),
            Stored::InRows(id) => view_record(name, &RowRecord::open(self.rows(), self.writer(), id)?, now),
        }
    }

    /// The clients that a waiting claim depends on now.
    pub(crate) fn waits_for(&mut self, name: &Name, claim: ClaimId) -> Result<Vec<ClientId>, Failure> {
        match self.load(&resource_key(name))?.stored {
            Stored::Nothing => Ok(Vec::new()),
            Stored::Whole(record) => ahead_of(&record, claim),
            Stored::InRows(id) => ahead_of(&RowRecord::open(self.rows(), self.writer(), id)?, claim),
        }
    }

    /// Which of some clients hold or wait for a resource.
    pub(crate) fn clients_among(
        &mut self,
        name: &Name,
        clients: &[ClientId],
    ) -> Result<Vec<ClientId>, Failure> {
        match self.load(&resource_key(name))?.stored {
            Stored::Nothing => Ok(Vec::new()),
            Stored::Whole(record) => among(&record, clients),
            Stored::InRows(id) => among(&RowRecord::open(self.rows(), self.writer(), id)?, clients),
        }
    }

    fn load(&self, key: &[u8]) -> Result<Loaded, Failure> {
        let Some(bytes) = self.rows().get(self.reader(), key)? else {
            return Ok(Loaded { stored: Stored::Nothing, indexed_at: Timestamp::default() });
        };
        let (prefix, rest) =
            bytes.split_first_chunk::<PREFIX_BYTES>().ok_or(Failure::Damaged("a row is too short"))?;
        let [how, index @ ..] = *prefix;
        let stored = match how {
            WHOLE => Stored::Whole(PlainRecord::decode(rest)?),
            IN_ROWS => {
                let id =
                    rest.try_into().map_err(|_| Failure::Damaged("the id of a record cannot be read"))?;
                Stored::InRows(u64::from_le_bytes(id))
            }
            _ => return Err(Failure::Format("a record is stored in an unknown way".to_owned())),
        };
        Ok(Loaded { stored, indexed_at: Timestamp::from_micros(u64::from_le_bytes(index)) })
    }

    /// Puts a record that has grown into rows of its own.
    fn put_into_rows(&mut self, row: &Row, record: &PlainRecord) -> Result<(), Failure> {
        let rows = self.rows();
        let last = rows.get(self.reader(), LAST_ID)?.map(TryInto::try_into).transpose();
        let last = last.map_err(|_| Failure::Damaged("the last id cannot be read"))?;
        let id = last.map_or(1, |last| u64::from_le_bytes(last) + 1);
        rows.put(self.writer(), LAST_ID, &id.to_le_bytes())?;
        let mut in_rows = RowRecord::open(rows, self.writer(), id)?;
        record.copy_to(&mut in_rows)?;
        in_rows.close()?;
        let mut bytes = row.prefix(IN_ROWS);
        bytes.extend(id.to_le_bytes());
        Ok(rows.put(self.writer(), &row.key, &bytes)?)
    }

    fn forget(&mut self, row: &Row, was_stored: bool) -> Result<(), Failure> {
        let rows = self.rows();
        if was_stored {
            rows.delete(self.writer(), &row.key)?;
        }
        if row.indexed_at != Timestamp::default() {
            rows.delete(self.writer(), &index_key(row.indexed_at, &row.key[1..]))?;
        }
        Ok(())
    }

    /// Gives an idle record its row in the index, unless it has one: that one's time is checked first.
    fn index(&mut self, row: &mut Row, forget_at: Option<Timestamp>) -> Result<(), Failure> {
        if let Some(at) = forget_at
            && row.indexed_at == Timestamp::default()
        {
            row.indexed_at = at;
            self.rows().put(self.writer(), &index_key(at, &row.key[1..]), &[])?;
        }
        Ok(())
    }

    /// Forgets idle records whose time has come, up to `most`. Returns how many were read.
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
            self.step_on_row(&name, &Settle, true)?;
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
        self.names_behind(RESOURCE, prefix, after, most)
    }

    /// Lists the names of up to `most` rows of one sort that begin with `prefix` and come after `after`.
    pub(crate) fn names_behind(
        &self,
        sort: u8,
        prefix: &str,
        after: Option<&Name>,
        most: usize,
    ) -> Result<Vec<Name>, Failure> {
        let start = [&[sort], prefix.as_bytes()].concat();
        let after = after.map(|after| [&[sort], after.as_str().as_bytes()].concat());
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

/// A record's row, but for the record.
struct Row {
    key: Vec<u8>,
    /// What is stored of when it is due in the index.
    noted: Timestamp,
    /// When it is due in the index. Zero: it is not.
    indexed_at: Timestamp,
    now: Timestamp,
}

impl Row {
    fn prefix(&self, how: u8) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(256);
        bytes.push(how);
        bytes.extend(self.indexed_at.micros().to_le_bytes());
        bytes
    }
}

/// Whether a record should not be stored whole.
fn is_large(record: &PlainRecord, rows_above: usize) -> Result<bool, Failure> {
    let value_bytes = record.value()?.map_or(0, |value| value.bytes.len());
    Ok(record.entries() > rows_above || value_bytes > VALUE_BYTES_WHOLE_MAX)
}

pub(crate) fn read_name(bytes: &[u8]) -> Result<Name, Failure> {
    let name = std::str::from_utf8(bytes).ok().and_then(|name| Name::new(name).ok());
    name.ok_or(Failure::Damaged("a name cannot be read"))
}

/// A command, and whose death would change its answer.
pub(crate) trait Watchful: Command {
    /// Returns the clients whose death would change the answer that was given.
    fn depends_on<R: Queue>(&self, answer: &Self::Answer, record: &R) -> Result<Vec<ClientId>, Failure>
    where
        Failure: From<R::Error>,
    {
        let _ = (answer, record);
        Ok(Vec::new())
    }
}

impl Watchful for Claim {
    fn depends_on<R: Queue>(&self, answer: &Self::Answer, record: &R) -> Result<Vec<ClientId>, Failure>
    where
        Failure: From<R::Error>,
    {
        match answer {
            Ok(Claimed::Busy(_)) => holders(record),
            Ok(Claimed::Waiting(_)) => ahead_of(record, self.id),
            _ => Ok(Vec::new()),
        }
    }
}

impl Watchful for Renew {
    fn depends_on<R: Queue>(&self, answer: &Renewed, record: &R) -> Result<Vec<ClientId>, Failure>
    where
        Failure: From<R::Error>,
    {
        match answer {
            Renewed::Waiting(_) => ahead_of(record, self.0),
            Renewed::Held(_) | Renewed::Lost => Ok(Vec::new()),
        }
    }
}

impl Watchful for RenewOwn {
    fn depends_on<R: Queue>(&self, answer: &Self::Answer, record: &R) -> Result<Vec<ClientId>, Failure>
    where
        Failure: From<R::Error>,
    {
        match answer {
            Some(renewed) => Renew(self.0).depends_on(renewed, record),
            // With that client it ends, and then it is nobody's.
            None => match record.hold_of(self.0)? {
                Some(hold) => Ok(vec![hold.client]),
                None => Ok(record.waiter_of(self.0)?.map(|waiter| waiter.client).into_iter().collect()),
            },
        }
    }
}

impl Watchful for Release {}
impl Watchful for Withdraw {}
impl Watchful for Publish {}
impl Watchful for Break {}
impl Watchful for Resize {}
impl Watchful for Vanish {}
impl Watchful for Settle {}

fn ahead_of<R: Queue>(record: &R, claim: ClaimId) -> Result<Vec<ClientId>, Failure>
where
    Failure: From<R::Error>,
{
    let Some(waiter) = record.waiter_of(claim)? else { return Ok(Vec::new()) };
    match record.waiter_ahead(waiter.place)? {
        Some(ahead) => Ok(vec![ahead.client]),
        None => holders(record),
    }
}

/// The view of a record, the clients in it, and when something in it ends.
fn view_record<R: Record>(name: &Name, record: &R, now: Timestamp) -> Result<Seen, Failure>
where
    Failure: From<R::Error>,
{
    let view = inspect(name, record, now)?;
    let mut waiters = Vec::new();
    for waiter in record.waiters(WAITERS_WATCHED_MAX)? {
        if !waiters.contains(&waiter.client) {
            waiters.push(waiter.client);
        }
    }
    let hold = record.next_hold_to_end()?.map(|hold| hold.expires_at);
    let waiter = record.next_waiter_to_end()?.map(|waiter| waiter.expires_at);
    let value = record.value()?.and_then(|value| value.keep_until);
    // What has ended already is left out of the view, but for a rest: the view knows when that ends.
    let rests = view.iter().flat_map(|view| &view.holds).map(|hold| now + hold.ends_in);
    let ends = [hold, waiter, value].into_iter().flatten().filter(|end| *end > now);
    let changes_in = ends.chain(rests).min().map(|end| end.since(now));
    Ok(Seen { view, holders: holders(record)?, waiters, changes_in })
}

fn among<R: Record>(record: &R, clients: &[ClientId]) -> Result<Vec<ClientId>, Failure>
where
    Failure: From<R::Error>,
{
    let mut found = Vec::new();
    for client in clients {
        if !record.claims_of(*client)?.is_empty() {
            found.push(*client);
        }
    }
    Ok(found)
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
