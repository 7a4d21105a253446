//! A queue in rows: every question of `step` reads an index.
//!
//! The keys are `x<id><what><...>`, numbers big-endian, so that LMDB's order is the order that is asked for. `id` is the
//! queue's, so that its name is not repeated; a group's name is, and with it the longest key has 286 bytes of LMDB's 511.
//!
//! | what | key | value |
//! | --- | --- | --- |
//! | head | | head |
//! | lane | lane | lane |
//! | place | when it is ready, its first item, lane | |
//! | claim | claim | lane |
//! | of a client | client, claim | |
//! | item | item | group, times, payload |
//! | of a group | group, 0, item | |
//! | dead letter | item | attempts, when, why, and the item |
//! | dedup id, its end | id; time, id | what is remembered |
//!
//! What travels with an item stands apart, at `t<id><item>`: an item's row ends with its payload, so there is no room in it that a client
//! of before would not take for payload. Such a client removes an item and leaves its context. So each change of a queue looks at two
//! contexts, from where the last one stopped (`t`), of whichever queue, and removes those whose items are gone.
//!
//! An invariant: an index row is written and removed together with the row that it points to, by the functions that set
//! lanes, items and dedup ids, and by nothing else.

use heed::{RoTxn, RwTxn, WithoutTls};
use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{ItemContext, ItemId};
use tenure_core::model::claim::{ClaimId, ClientId, Name};
use tenure_core::model::queue::record::{Dead, Head, Item, Lane, LaneId, QueueRecord, Remembered};

use crate::error::Failure;
use crate::locks::resource::read_name;
use crate::locks::rows::{KeyAndValue, ROW, decode, encode, read_claim, read_number};
use crate::place::environment::Rows;

/// The first byte of the keys of contexts; alone, the key of where the last sweep of them stopped.
const CONTEXT: u8 = b't';
/// How many contexts a change of a queue looks at whether their items are still there: more than a push adds.
const SWEPT_MAX: usize = 2;

/// What a row is. The order is part of the stored format.
#[derive(Clone, Copy)]
#[repr(u8)]
enum What {
    Head,
    Lane,
    Place,
    Claim,
    OfClient,
    Item,
    OfGroup,
    Dead,
    Dedup,
    DedupEnd,
}

/// A queue in rows, inside a transaction.
pub(crate) struct QueueRows<'t, 'a> {
    rows: Rows,
    txn: &'t mut RwTxn<'a>,
    id: u64,
    head: Head,
    stored: Head,
    is_changed: bool,
}

/// A key under construction.
struct Key(Vec<u8>);

impl Key {
    fn with(mut self, part: &[u8]) -> Key {
        self.0.extend_from_slice(part);
        self
    }

    fn number(self, number: u64) -> Key {
        self.with(&number.to_be_bytes())
    }

    fn claim(self, claim: ClaimId) -> Key {
        self.with(&claim.bits().to_be_bytes())
    }

    fn lane(self, lane: &LaneId) -> Key {
        match lane {
            LaneId::Group(group) => self.with(&[0]).with(group.as_str().as_bytes()),
            LaneId::Item(item) => self.with(&[1]).number(item.0),
        }
    }

    fn place(self, id: &LaneId, lane: &Lane) -> Key {
        let (ready_at, first) = lane.place();
        // None comes before every item, as in the order of options.
        let key = self.number(ready_at.micros()).with(&[u8::from(first.is_some())]);
        key.number(first.unwrap_or_default().0).lane(id)
    }
}

/// How long a place is before the lane.
const PLACE_BYTES: usize = 8 + 1 + 8;

fn read_lane(bytes: &[u8]) -> Result<LaneId, Failure> {
    match bytes.split_first() {
        Some((0, group)) => Ok(LaneId::Group(read_name(group)?)),
        Some((1, item)) => Ok(LaneId::Item(ItemId(read_number(item)?))),
        _ => Err(Failure::Damaged("a lane cannot be read")),
    }
}

fn write_item(item: &Item, to: &mut Vec<u8>) {
    let group = item.group.as_ref().map_or("", Name::as_str);
    // A name has 1 to 255 bytes.
    to.push(group.len() as u8);
    to.extend_from_slice(group.as_bytes());
    to.extend(item.pushed_at.micros().to_le_bytes());
    to.extend(item.due_at.micros().to_le_bytes());
    to.extend_from_slice(&item.payload);
}

fn read_item(id: ItemId, mut bytes: &[u8]) -> Result<Item, Failure> {
    let [length] = take(&mut bytes)?;
    let (group, rest) =
        bytes.split_at_checked(length.into()).ok_or(Failure::Damaged("an item is too short"))?;
    bytes = rest;
    let group = if group.is_empty() { None } else { Some(read_name(group)?) };
    let pushed_at = Timestamp::from_micros(u64::from_le_bytes(take(&mut bytes)?));
    let due_at = Timestamp::from_micros(u64::from_le_bytes(take(&mut bytes)?));
    Ok(Item { id, group, payload: bytes.into(), context: None, pushed_at, due_at })
}

fn write_dead(dead: &Dead) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + dead.reason.len() + dead.item.payload.len());
    bytes.extend(dead.attempts.to_le_bytes());
    bytes.extend(dead.died_at.micros().to_le_bytes());
    bytes.extend((dead.reason.len() as u32).to_le_bytes());
    bytes.extend_from_slice(dead.reason.as_bytes());
    write_item(&dead.item, &mut bytes);
    bytes
}

fn read_dead(id: ItemId, mut bytes: &[u8]) -> Result<Dead, Failure> {
    let damaged = Failure::Damaged("a dead letter cannot be read");
    let attempts = u32::from_le_bytes(take(&mut bytes)?);
    let died_at = Timestamp::from_micros(u64::from_le_bytes(take(&mut bytes)?));
    let length = u32::from_le_bytes(take(&mut bytes)?);
    let Some((reason, item)) = bytes.split_at_checked(length as usize) else { return Err(damaged) };
    let Ok(reason) = std::str::from_utf8(reason) else { return Err(damaged) };
    Ok(Dead { item: read_item(id, item)?, attempts, reason: reason.to_owned(), died_at })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Failure> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(Failure::Damaged("a row is too short"))?;
    *bytes = rest;
    Ok(*head)
}

impl<'t, 'a> QueueRows<'t, 'a> {
    /// Opens a queue; an id that has no rows is an empty one.
    pub(crate) fn open(rows: Rows, txn: &'t mut RwTxn<'a>, id: u64) -> Result<Self, Failure> {
        let mut queue =
            QueueRows { rows, txn, id, head: Head::default(), stored: Head::default(), is_changed: false };
        if let Some(bytes) = queue.get(&queue.key(What::Head))? {
            queue.head = decode(bytes)?;
        }
        queue.stored = queue.head.clone();
        Ok(queue)
    }

    /// Writes what was kept back. Says whether anything changed since it was opened.
    pub(crate) fn close(mut self) -> Result<bool, Failure> {
        if self.is_changed || self.head != self.stored {
            self.sweep_contexts()?;
        }
        if self.head != self.stored {
            let bytes = encode(&self.head)?;
            self.put(&self.key(What::Head), &bytes)?;
        }
        Ok(self.is_changed)
    }

    /// Whether nothing would be missed if it were forgotten: a later token and number come from the clock.
    pub(crate) fn is_idle(&self, now: Timestamp) -> Result<bool, Failure> {
        let head = &self.head;
        let is_empty = head.items == 0 && head.dead == 0 && head.idle.is_empty();
        if !is_empty || head.rests_until > now {
            return Ok(false);
        }
        if head.last_item.0 >= now.micros() || head.last_token.get() >= now.micros() {
            return Ok(false);
        }
        // Groups that rest, and dedup ids.
        Ok(self.first_behind(What::Lane, &self.key(What::Lane))?.is_none()
            && self.first_behind(What::Dedup, &self.key(What::Dedup))?.is_none())
    }

    /// Removes what is left of an idle queue.
    pub(crate) fn remove(mut self) -> Result<(), Failure> {
        self.sweep_contexts()?;
        self.delete(&self.key(What::Head))
    }

    /// Lists up to `most` clients that have items, by their ids from one on.
    pub(crate) fn clients(&self, from: ClientId, most: usize) -> Result<Vec<ClientId>, Failure> {
        let mut clients = Vec::new();
        let mut next = Some(from.bits());
        while let Some(from) = next
            && clients.len() < most
        {
            let prefix = self.key(What::OfClient);
            let key = self.key(What::OfClient).number(from);
            let row = self.rows.get_greater_than_or_equal_to(self.txn(), &key.0)?;
            let Some(rest) = row.and_then(|(key, _)| key.strip_prefix(&prefix.0[..])) else { break };
            let client = read_number(rest.get(..8).unwrap_or_default())?;
            clients.push(ClientId::new(client));
            next = client.checked_add(1);
        }
        Ok(clients)
    }

    /// The clients that wait for items, the first one first.
    pub(crate) fn idle(&self) -> impl Iterator<Item = ClientId> {
        self.head.idle.iter().map(|idle| idle.client)
    }

    fn txn(&self) -> &RoTxn<'a, WithoutTls> {
        self.txn
    }

    fn key(&self, what: What) -> Key {
        Key(Vec::with_capacity(64)).with(&[ROW]).number(self.id).with(&[what as u8])
    }

    fn group(&self, group: &Name) -> Key {
        // No name has a zero byte in it, so no other group's rows lie between.
        self.key(What::OfGroup).with(group.as_str().as_bytes()).with(&[0])
    }

    fn get(&self, key: &Key) -> Result<Option<&[u8]>, Failure> {
        Ok(self.rows.get(self.txn(), &key.0)?)
    }

    fn put(&mut self, key: &Key, bytes: &[u8]) -> Result<(), Failure> {
        self.is_changed = true;
        Ok(self.rows.put(self.txn, &key.0, bytes)?)
    }

    fn delete(&mut self, key: &Key) -> Result<(), Failure> {
        self.is_changed = true;
        self.rows.delete(self.txn, &key.0)?;
        Ok(())
    }

    /// The first row of one sort behind a key: what follows the sort in its key, and its value.
    fn first_behind(&self, what: What, key: &Key) -> Result<Option<KeyAndValue<'_>>, Failure> {
        let prefix = self.key(what);
        let row = self.rows.get_greater_than(self.txn(), &key.0)?;
        Ok(row.and_then(|(key, value)| Some((key.strip_prefix(&prefix.0[..])?, value))))
    }

    /// The first row of items or dead letters after a number.
    fn after(&self, what: What, after: Option<ItemId>) -> Result<Option<(ItemId, &[u8])>, Failure> {
        let key = self.key(what);
        let key = match after {
            Some(after) => key.number(after.0),
            None => key,
        };
        let row = self.first_behind(what, &key)?;
        row.map(|(key, value)| Ok((ItemId(read_number(key)?), value))).transpose()
    }

    fn context_key(id: u64, item: ItemId) -> Key {
        Key(Vec::with_capacity(17)).with(&[CONTEXT]).number(id).number(item.0)
    }

    fn context(&self, item: ItemId) -> Result<Option<ItemContext>, Failure> {
        Ok(self.get(&QueueRows::context_key(self.id, item))?.and_then(ItemContext::from_stored))
    }

    fn with_context(&self, item: Item) -> Result<Item, Failure> {
        Ok(Item { context: self.context(item.id)?, ..item })
    }

    /// Stores the context of an item that is put somewhere.
    fn put_context(&mut self, item: &Item) -> Result<(), Failure> {
        let Some(context) = &item.context else { return Ok(()) };
        self.put(&QueueRows::context_key(self.id, item.id), context.as_str().as_bytes())
    }

    fn delete_context(&mut self, item: &Item) -> Result<(), Failure> {
        match item.context {
            Some(_) => self.delete(&QueueRows::context_key(self.id, item.id)),
            None => Ok(()),
        }
    }

    /// Removes what clients have left that know no contexts.
    fn sweep_contexts(&mut self) -> Result<(), Failure> {
        let stopped = Key(vec![CONTEXT]);
        let was = self.get(&stopped)?.map(|rest| Key(vec![CONTEXT]).with(rest));
        let (mut from, had) = (was.unwrap_or(Key(vec![CONTEXT])), self.get(&stopped)?.is_some());
        for _ in 0..SWEPT_MAX {
            let row = self.rows.get_greater_than(self.txn(), &from.0)?;
            let Some(rest) = row.and_then(|(key, _)| key.strip_prefix(&[CONTEXT][..])) else {
                // The next one begins anew.
                return if had { self.delete(&stopped) } else { Ok(()) };
            };
            let key = Key(vec![CONTEXT]).with(rest);
            if !self.has_item_of(rest)? {
                self.delete(&key)?;
            }
            from = key;
        }
        self.put(&stopped, &from.0[1..])
    }

    /// Whether the item of a context is in its queue, or a dead letter.
    fn has_item_of(&self, context: &[u8]) -> Result<bool, Failure> {
        for what in [What::Item, What::Dead] {
            let Some((id, item)) = context.split_at_checked(8) else { return Ok(false) };
            let key = Key(Vec::with_capacity(32)).with(&[ROW]).with(id).with(&[what as u8]).with(item);
            if self.get(&key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sets which client has the first item of a lane.
    fn set_client(&mut self, was: Option<&Lane>, lane: Option<&Lane>) -> Result<(), Failure> {
        let of = |lane: Option<&Lane>| {
            lane.and_then(|lane| lane.delivery.as_ref()).map(|handed| (handed.client, handed.claim))
        };
        let (was, is) = (of(was), of(lane));
        if was == is {
            return Ok(());
        }
        if let Some((client, claim)) = was {
            self.delete(&self.key(What::OfClient).number(client.bits()).claim(claim))?;
        }
        if let Some((client, claim)) = is {
            self.put(&self.key(What::OfClient).number(client.bits()).claim(claim), &[])?;
        }
        Ok(())
    }
}

impl QueueRecord for QueueRows<'_, '_> {
    type Error = Failure;

    fn head(&mut self) -> Result<Head, Failure> {
        Ok(self.head.clone())
    }

    fn set_head(&mut self, head: Head) -> Result<(), Failure> {
        self.head = head;
        Ok(())
    }

    fn lane(&mut self, id: &LaneId) -> Result<Option<Lane>, Failure> {
        self.get(&self.key(What::Lane).lane(id))?.map(decode).transpose()
    }

    fn next_lane(&mut self) -> Result<Option<(LaneId, Lane)>, Failure> {
        let Some((place, _)) = self.first_behind(What::Place, &self.key(What::Place))? else {
            return Ok(None);
        };
        let id = read_lane(place.get(PLACE_BYTES..).unwrap_or_default())?;
        let lane = self.lane(&id)?.ok_or(Failure::Damaged("a lane is missing"))?;
        Ok(Some((id, lane)))
    }

    fn set_lane(&mut self, id: &LaneId, was: Option<&Lane>, lane: Option<Lane>) -> Result<(), Failure> {
        let place = |lane: &Lane| self.key(What::Place).place(id, lane);
        let (was_at, is_at) = (was.map(place), lane.as_ref().map(place));
        self.set_client(was, lane.as_ref())?;
        if was_at.as_ref().map(|key| &key.0) != is_at.as_ref().map(|key| &key.0) {
            was_at.map_or(Ok(()), |key| self.delete(&key))?;
            is_at.map_or(Ok(()), |key| self.put(&key, &[]))?;
        }
        let key = self.key(What::Lane).lane(id);
        match lane {
            Some(lane) => self.put(&key, &encode(&lane)?),
            None => self.delete(&key),
        }
    }

    fn lane_of(&mut self, claim: ClaimId) -> Result<Option<LaneId>, Failure> {
        self.get(&self.key(What::Claim).claim(claim))?.map(read_lane).transpose()
    }

    fn set_lane_of(&mut self, claim: ClaimId, lane: Option<&LaneId>) -> Result<(), Failure> {
        let key = self.key(What::Claim).claim(claim);
        match lane {
            Some(lane) => self.put(&key, &Key(Vec::new()).lane(lane).0),
            None => self.delete(&key),
        }
    }

    fn claims_of(&mut self, client: ClientId) -> Result<Vec<ClaimId>, Failure> {
        let prefix = self.key(What::OfClient).number(client.bits());
        let rows = self.rows.prefix_iter(self.txn(), &prefix.0)?;
        rows.map(|row| read_claim(row?.0.get(prefix.0.len()..).unwrap_or_default())).collect()
    }

    fn item(&mut self, id: ItemId) -> Result<Option<Item>, Failure> {
        let item =
            self.get(&self.key(What::Item).number(id.0))?.map(|bytes| read_item(id, bytes)).transpose()?;
        item.map(|item| self.with_context(item)).transpose()
    }

    fn item_after(&mut self, after: Option<ItemId>) -> Result<Option<Item>, Failure> {
        let item = self.after(What::Item, after)?.map(|(id, bytes)| read_item(id, bytes)).transpose()?;
        item.map(|item| self.with_context(item)).transpose()
    }

    fn item_of(&mut self, group: &Name, after: ItemId) -> Result<Option<ItemId>, Failure> {
        let key = self.group(group).number(after.0);
        let row = self.rows.get_greater_than(self.txn(), &key.0)?;
        let next = row.and_then(|(key, _)| key.strip_prefix(&self.group(group).0[..]));
        next.map(|item| read_number(item).map(ItemId)).transpose()
    }

    fn put_item(&mut self, item: Item) -> Result<(), Failure> {
        let mut bytes = Vec::with_capacity(64 + item.payload.len());
        write_item(&item, &mut bytes);
        self.put_context(&item)?;
        self.put(&self.key(What::Item).number(item.id.0), &bytes)?;
        match &item.group {
            Some(group) => self.put(&self.group(group).number(item.id.0), &[]),
            None => Ok(()),
        }
    }

    fn remove_item(&mut self, id: ItemId) -> Result<Option<Item>, Failure> {
        let Some(item) = self.item(id)? else { return Ok(None) };
        self.delete(&self.key(What::Item).number(id.0))?;
        self.delete_context(&item)?;
        if let Some(group) = &item.group {
            self.delete(&self.group(group).number(id.0))?;
        }
        Ok(Some(item))
    }

    fn dead_after(&mut self, after: Option<ItemId>) -> Result<Option<Dead>, Failure> {
        let dead = self.after(What::Dead, after)?.map(|(id, bytes)| read_dead(id, bytes)).transpose()?;
        dead.map(|dead| Ok(Dead { item: self.with_context(dead.item)?, ..dead })).transpose()
    }

    fn put_dead(&mut self, dead: Dead) -> Result<(), Failure> {
        self.put_context(&dead.item)?;
        self.put(&self.key(What::Dead).number(dead.item.id.0), &write_dead(&dead))
    }

    fn remove_dead(&mut self, id: ItemId) -> Result<Option<Dead>, Failure> {
        let key = self.key(What::Dead).number(id.0);
        let Some(dead) = self.get(&key)?.map(|bytes| read_dead(id, bytes)).transpose()? else {
            return Ok(None);
        };
        self.delete(&key)?;
        let dead = Dead { item: self.with_context(dead.item)?, ..dead };
        self.delete_context(&dead.item)?;
        Ok(Some(dead))
    }

    fn dedup(&mut self, id: &Name) -> Result<Option<Remembered>, Failure> {
        self.get(&self.key(What::Dedup).with(id.as_str().as_bytes()))?.map(decode).transpose()
    }

    fn next_dedup(&mut self) -> Result<Option<(Name, Remembered)>, Failure> {
        let Some((end, _)) = self.first_behind(What::DedupEnd, &self.key(What::DedupEnd))? else {
            return Ok(None);
        };
        let id = read_name(end.get(8..).unwrap_or_default())?;
        let remembered = self.dedup(&id)?.ok_or(Failure::Damaged("a dedup id is missing"))?;
        Ok(Some((id, remembered)))
    }

    fn set_dedup(
        &mut self,
        id: &Name,
        was: Option<Remembered>,
        remembered: Option<Remembered>,
    ) -> Result<(), Failure> {
        let name = id.as_str().as_bytes();
        if let Some(was) = was {
            self.delete(&self.key(What::DedupEnd).number(was.until.micros()).with(name))?;
        }
        let key = self.key(What::Dedup).with(name);
        match remembered {
            Some(remembered) => {
                self.put(&self.key(What::DedupEnd).number(remembered.until.micros()).with(name), &[])?;
                self.put(&key, &encode(&remembered)?)
            }
            None => self.delete(&key),
        }
    }
}

#[cfg(test)]
mod tests;
