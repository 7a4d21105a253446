//! A queue in rows: every question of the model reads one row, or the first one of a range.
//!
//! | key | value |
//! | --- | --- |
//! | `l<lane>` | the lane; a lane is `g<group>` or `i<item>` |
//! | `p<when it is ready><its first item><lane>` | the lane again: the first of these is handed out next |
//! | `c<claim>` | the lane of which it has the first item |
//! | `i<item>` | group, times, and the payload or where it is; and behind that the context, if it has one |
//! | `b<number>` | a large payload |
//! | `n<group> <item>` | nothing: the order within a group |
//! | `d<item>` | attempts, when, why, and the item; and behind that the context |
//! | `u<dedup id>`, `v<until><dedup id>` | what is remembered; nothing |
//!
//! Numbers are 16 hexadecimal digits. What looks like a space is 0x1f, which no name has. The head stands apart, and
//! bears the number of the format of all of them.
//!
//! A context came later than this format. Readers of before stop where the payload ends, and do not see it; what an item has
//! without one is what it always was. One that they bury or replay they write without its context.
//!
//! Payloads beyond [`INLINE_MAX`] have rows of their own, which stay where they are when an item dies or comes back.
//! In the model an item's payload is what [`Payload`] says, so that no step has to carry bytes that it does not need.

use serde::{Deserialize, Serialize};
use tenure_core::clock::Timestamp;
use tenure_core::engine::queue::{ItemContext, ItemId};
use tenure_core::model::claim::{ClaimId, ClientId, Name};
use tenure_core::model::queue::record::{Dead, Head, Item, Lane, LaneId, Overdue, QueueRecord, Remembered};

use super::row_cache::{Key, KeyRange, NotLoaded, RowCache, Value, after as behind};
use super::signs::Signs;

/// Up to so many bytes a payload is part of its item: a transaction that buries hundreds of them stays small.
const INLINE_MAX: usize = 1024;
/// Ends a group's name in a key.
const END: u8 = 0x1f;
/// The number of the format.
const FORMAT: u8 = 1;

/// The head as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Top {
    /// The latest moment at which anything was judged: time never goes back for a queue.
    pub(crate) clock: Timestamp,
    pub(crate) head: Head,
}

impl Top {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, NotLoaded> {
        postcard::to_extend(self, vec![FORMAT]).map_err(|_| NotLoaded::Damaged("a head cannot be written"))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Top, NotLoaded> {
        match bytes.split_first() {
            Some((&FORMAT, rest)) => read(rest),
            Some(_) => Err(NotLoaded::Damaged("the queue was written by another version of tenure")),
            None => Err(NotLoaded::Damaged("a head is empty")),
        }
    }
}

/// Returns the latest moment at which anything in a queue was judged, by its head.
pub fn clock_of_head(head: &[u8]) -> Option<Timestamp> {
    Top::decode(head).ok().map(|top| top.clock)
}

#[derive(Serialize, Deserialize)]
struct StoredItem<'a> {
    group: Option<&'a str>,
    pushed_at: Timestamp,
    due_at: Timestamp,
    #[serde(with = "serde_bytes")]
    payload: &'a [u8],
}

#[derive(Serialize, Deserialize)]
struct StoredDead<'a> {
    attempts: u32,
    died_at: Timestamp,
    reason: &'a str,
    #[serde(borrow)]
    item: StoredItem<'a>,
}

/// A payload, or where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Inline(Value),
    /// In the row of this number.
    External(u64),
}

impl Payload {
    /// Packs a payload. `number`: of its row, if it needs one.
    pub(crate) fn pack(payload: &[u8], number: u64) -> (Payload, Value) {
        if payload.len() <= INLINE_MAX {
            return (Payload::Inline(payload.into()), [&[0], payload].concat().into());
        }
        (Payload::External(number), [&[1][..], &number.to_be_bytes()].concat().into())
    }

    pub(crate) fn unpack(packed: &[u8]) -> Result<Payload, NotLoaded> {
        let damaged = NotLoaded::Damaged("a payload cannot be read");
        match packed.split_first() {
            Some((0, payload)) => Ok(Payload::Inline(payload.into())),
            Some((1, number)) => {
                let number = number.try_into().map_err(|_| damaged)?;
                Ok(Payload::External(u64::from_be_bytes(number)))
            }
            _ => Err(damaged),
        }
    }
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, NotLoaded> {
    postcard::from_bytes(bytes).map_err(|_| NotLoaded::Damaged("a row cannot be read"))
}

/// Reads what may have a context behind it.
fn read_with_context<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, Option<ItemContext>), NotLoaded> {
    let damaged = NotLoaded::Damaged("a row cannot be read");
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|_| damaged)?;
    let context = postcard::from_bytes::<&[u8]>(rest).ok().and_then(ItemContext::from_stored);
    Ok((value, context))
}

fn write_with_context<T: Serialize>(value: &T, context: Option<&ItemContext>) -> Result<Value, NotLoaded> {
    let Some(context) = context else { return write(value) };
    let bytes = postcard::to_allocvec(&(value, context.as_str()));
    Ok(bytes.map_err(|_| NotLoaded::Damaged("a row cannot be written"))?.into())
}

fn write<T: Serialize>(value: &T) -> Result<Value, NotLoaded> {
    let bytes = postcard::to_allocvec(value).map_err(|_| NotLoaded::Damaged("a row cannot be written"))?;
    Ok(bytes.into())
}

fn key(what: char, parts: &[&[u8]]) -> Key {
    let mut key = vec![what as u8];
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

fn number(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (at, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * at) & 15) as usize];
    }
    digits
}

fn read_number(digits: &[u8]) -> Result<u64, NotLoaded> {
    let text = std::str::from_utf8(digits).ok();
    let read = text.and_then(|text| u64::from_str_radix(text, 16).ok());
    // Another spelling would be in another place: what comes after it could be itself, for ever.
    read.filter(|read| number(*read) == digits).ok_or(NotLoaded::Damaged("a key has no number"))
}

fn read_name(bytes: &[u8]) -> Result<Name, NotLoaded> {
    let name = std::str::from_utf8(bytes).ok().and_then(|text| Name::new(text).ok());
    name.ok_or(NotLoaded::Damaged("a key has no name"))
}

fn lane_key(lane: &LaneId) -> Vec<u8> {
    match lane {
        LaneId::Group(group) => [b"g", group.as_str().as_bytes()].concat(),
        LaneId::Item(item) => [&b"i"[..], &number(item.0)].concat(),
    }
}

fn read_lane(bytes: &[u8]) -> Result<LaneId, NotLoaded> {
    match bytes.split_first() {
        Some((b'g', group)) => Ok(LaneId::Group(read_name(group)?)),
        Some((b'i', item)) => Ok(LaneId::Item(ItemId(read_number(item)?))),
        _ => Err(NotLoaded::Damaged("a lane cannot be read")),
    }
}

fn place_key(id: &LaneId, lane: &Lane) -> Key {
    let (ready_at, first) = lane.place();
    // No item has the number 0.
    let first = first.map_or(0, |first| first.0);
    key('p', &[&number(ready_at.micros()), &number(first), &lane_key(id)])
}

/// What a place begins with before its lane.
const PLACE_BYTES: usize = 1 + 16 + 16;

fn group_key(group: &Name, item: u64) -> Key {
    key('n', &[group.as_str().as_bytes(), &[END], &number(item)])
}

fn body_key(body: u64) -> Key {
    key('b', &[&number(body)])
}

fn stored(item: &Item) -> StoredItem<'_> {
    StoredItem {
        group: item.group.as_ref().map(Name::as_str),
        pushed_at: item.pushed_at,
        due_at: item.due_at,
        payload: &item.payload,
    }
}

fn item_of(id: ItemId, stored: &StoredItem<'_>, context: Option<ItemContext>) -> Result<Item, NotLoaded> {
    let group = stored.group.map(|group| read_name(group.as_bytes())).transpose()?;
    let (pushed_at, due_at) = (stored.pushed_at, stored.due_at);
    Ok(Item { id, group, payload: stored.payload.into(), context, pushed_at, due_at })
}

fn read_item(id: ItemId, value: &[u8]) -> Result<Item, NotLoaded> {
    let (stored, context) = read_with_context(value)?;
    item_of(id, &stored, context)
}

/// Which rows a step will read first.
pub(crate) mod ahead {
    use super::*;

    fn all(what: u8, most: usize) -> KeyRange {
        KeyRange { from: vec![what], to: vec![what + 1], most }
    }

    /// The lanes that are ready first.
    pub(crate) fn places(most: usize) -> KeyRange {
        all(b'p', most)
    }

    /// The dedup ids that are forgotten first.
    pub(crate) fn dedup_ends() -> KeyRange {
        all(b'v', 2)
    }

    pub(crate) fn dedup(id: &Name) -> KeyRange {
        KeyRange::one(key('u', &[id.as_str().as_bytes()]))
    }

    pub(crate) fn lane(lane: &LaneId) -> KeyRange {
        KeyRange::one(key('l', &[&lane_key(lane)]))
    }

    pub(crate) fn claim(claim: ClaimId) -> KeyRange {
        KeyRange::one(key('c', &[claim.to_string().as_bytes()]))
    }

    /// Returns the claim whose row this is.
    pub(crate) fn claim_of(key: &Key) -> Option<ClaimId> {
        let (b'c', digits) = key.split_first()? else { return None };
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    pub(crate) fn item(item: ItemId) -> KeyRange {
        KeyRange::one(key('i', &[&number(item.0)]))
    }

    /// The deliveries that stand where what is ready stands, as far as they are known.
    pub(crate) fn overdue(row_cache: &RowCache, now: Timestamp, most: usize) -> Vec<(ClaimId, ItemId)> {
        let places = places(most);
        let lanes = row_cache.known(&places).filter_map(|(_, lane)| read::<Lane>(lane).ok());
        let ready = lanes.take_while(|lane| lane.ready_at <= now);
        ready.filter_map(|lane| Some((lane.delivery?.claim, lane.first?))).collect()
    }

    /// The items that are handed out first, and their large payloads, as far as it is known which these are.
    pub(crate) fn items_of_places(row_cache: &RowCache, most: usize) -> Vec<KeyRange> {
        let places = places(most);
        let items = row_cache.known(&places).filter_map(|(place, _)| read_number(place.get(17..33)?).ok());
        let items: Vec<KeyRange> = items.map(|first| item(ItemId(first))).collect();
        let bodies: Vec<KeyRange> = items.iter().filter_map(|item| body_of(row_cache, item)).collect();
        [items, bodies].concat()
    }

    /// The items that become dead letters first, and what comes after them in their groups, as far as it is known which these are.
    pub(crate) fn worn_out(
        row_cache: &RowCache,
        now: Timestamp,
        attempts_max: u32,
        most: usize,
    ) -> Vec<KeyRange> {
        let places = places(most);
        let lanes = row_cache.known(&places).map_while(|(place, value)| {
            let lane: Lane = read(value).ok()?;
            let is_worn_out = attempts_max != 0 && lane.attempts >= attempts_max && lane.ready_at <= now;
            let first = lane.first.filter(|_| is_worn_out)?;
            Some((read_lane(place.get(PLACE_BYTES..)?).ok()?, first))
        });
        let rows = lanes.flat_map(|(lane, first)| {
            let behind = match &lane {
                LaneId::Group(group) => next_in_group(row_cache, group, first),
                LaneId::Item(_) => Vec::new(),
            };
            [item(first)].into_iter().chain(behind)
        });
        rows.collect()
    }

    fn body_of(row_cache: &RowCache, item: &KeyRange) -> Option<KeyRange> {
        let value = row_cache.get(&item.from).ok()??;
        let stored: StoredItem<'_> = read(&value).ok()?;
        match Payload::unpack(stored.payload).ok()? {
            Payload::Inline(_) => None,
            Payload::External(body) => Some(KeyRange::one(body_key(body))),
        }
    }

    /// What comes after an item in its group, as far as it is known.
    pub(crate) fn next_in_group(row_cache: &RowCache, name: &Name, after: ItemId) -> Vec<KeyRange> {
        let range = group(name, after);
        let next = row_cache
            .known(&range)
            .next()
            .and_then(|(key, _)| read_number(key.get(key.len().checked_sub(16)?..)?).ok());
        next.map(|next| item(ItemId(next))).into_iter().chain([range]).collect()
    }

    /// Items or dead letters after a number.
    pub(crate) fn after(what: char, after: Option<ItemId>, most: usize) -> KeyRange {
        let from = after.map_or(vec![what as u8], |item| behind(&key(what, &[&number(item.0)])));
        KeyRange { from, to: vec![what as u8 + 1], most }
    }

    /// The items of a group after a number.
    pub(crate) fn group(group: &Name, after: ItemId) -> KeyRange {
        let to = key('n', &[group.as_str().as_bytes(), &[END + 1]]);
        KeyRange { from: behind(&group_key(group, after.0)), to, most: 2 }
    }
}

/// The rows that go with an item that is acknowledged, by the item's own.
pub(crate) fn rows_of_item(lane: &LaneId, item: ItemId, value: &Value) -> Result<Vec<Key>, NotLoaded> {
    let stored: StoredItem<'_> = read(value)?;
    let mut rows = vec![ahead::item(item).from];
    if let LaneId::Group(group) = lane {
        rows.push(group_key(group, item.0));
    }
    if let Payload::External(body) = Payload::unpack(stored.payload)? {
        rows.push(body_key(body));
    }
    Ok(rows)
}

/// A queue in rows, of which a part is known.
pub(crate) struct Rows<'a> {
    pub(crate) signs: &'a Signs<'a>,
    pub(crate) row_cache: &'a mut RowCache,
    pub(crate) head: &'a mut Head,
    pub(crate) cleared_max: usize,
}

impl Rows<'_> {
    fn one(&self, wanted: &KeyRange) -> Result<Option<Value>, NotLoaded> {
        self.row_cache.get(&wanted.from)
    }

    fn first(&self, wanted: &KeyRange) -> Result<Option<(Key, Value)>, NotLoaded> {
        self.row_cache.first(&wanted.from, &wanted.to, wanted.most)
    }

    /// Returns a large payload.
    pub(crate) fn body(&self, body: u64) -> Result<Option<Value>, NotLoaded> {
        self.row_cache.get(&body_key(body))
    }

    /// Stores a large payload.
    pub(crate) fn put_body(&mut self, body: u64, payload: Value) {
        self.row_cache.set(body_key(body), Some(payload));
    }

    /// An item is in the queue: its payload stays.
    fn keep_body(&mut self, payload: &[u8]) -> Result<(), NotLoaded> {
        if let Payload::External(body) = Payload::unpack(payload)? {
            self.row_cache.leave(&body_key(body));
        }
        Ok(())
    }

    /// An item leaves the queue, or comes back at once.
    fn drop_body(&mut self, payload: &[u8]) -> Result<(), NotLoaded> {
        if let Payload::External(body) = Payload::unpack(payload)? {
            self.row_cache.set(body_key(body), None);
        }
        Ok(())
    }

    fn dead(id: ItemId, value: &Value) -> Result<Dead, NotLoaded> {
        let (stored, context): (StoredDead<'_>, _) = read_with_context(value)?;
        let reason = stored.reason.to_owned();
        let (attempts, died_at) = (stored.attempts, stored.died_at);
        Ok(Dead { item: item_of(id, &stored.item, context)?, attempts, reason, died_at })
    }
}

/// How many rows are read when the first one of a range is not known: the next steps want the next ones.
const PAGE: usize = 16;

impl QueueRecord for Rows<'_> {
    type Error = NotLoaded;

    fn cleared_max(&self) -> usize {
        self.cleared_max
    }

    fn head(&mut self) -> Result<Head, NotLoaded> {
        Ok(self.head.clone())
    }

    fn set_head(&mut self, head: Head) -> Result<(), NotLoaded> {
        *self.head = head;
        Ok(())
    }

    fn lane(&mut self, id: &LaneId) -> Result<Option<Lane>, NotLoaded> {
        // What is being pushed has a number that nothing had before.
        if matches!(id, LaneId::Item(item) if *item > self.head.last_item) {
            return Ok(None);
        }
        self.one(&ahead::lane(id))?.map(|value| read(&value)).transpose()
    }

    fn next_lane(&mut self) -> Result<Option<(LaneId, Lane)>, NotLoaded> {
        let Some((place, lane)) = self.first(&ahead::places(PAGE))? else { return Ok(None) };
        let (id, lane) = (read_lane(place.get(PLACE_BYTES..).unwrap_or_default())?, read(&lane)?);
        // Such a row would never go: a lane that has changed takes its place from where it says that it is.
        if place_key(&id, &lane) != place {
            return Err(NotLoaded::Damaged("a lane is not where it says"));
        }
        Ok(Some((id, lane)))
    }

    fn set_lane(&mut self, id: &LaneId, was: Option<&Lane>, lane: Option<Lane>) -> Result<(), NotLoaded> {
        if let Some(was) = was {
            self.row_cache.set(place_key(id, was), None);
        }
        let value = lane.as_ref().map(write).transpose()?;
        if let Some(lane) = &lane {
            self.row_cache.set(place_key(id, lane), value.clone());
        }
        self.row_cache.set(key('l', &[&lane_key(id)]), value);
        Ok(())
    }

    fn lane_of(&mut self, claim: ClaimId) -> Result<Option<LaneId>, NotLoaded> {
        let stored = self.one(&ahead::claim(claim))?.map(|lane| read_lane(&lane)).transpose()?;
        Ok(stored.or_else(|| self.signs.own_lane(claim)))
    }

    fn set_lane_of(&mut self, claim: ClaimId, lane: Option<&LaneId>) -> Result<(), NotLoaded> {
        let lane = lane.map(|lane| lane_key(lane).into());
        self.row_cache.set(ahead::claim(claim).from, lane);
        Ok(())
    }

    fn claims_of(&mut self, _client: ClientId) -> Result<Vec<ClaimId>, NotLoaded> {
        // Asked for where deaths are noticed, which these stores do not.
        Ok(Vec::new())
    }

    fn overdue(&mut self, claim: ClaimId, _item: ItemId) -> Result<Overdue, NotLoaded> {
        self.signs.overdue(claim)
    }

    fn item(&mut self, id: ItemId) -> Result<Option<Item>, NotLoaded> {
        self.one(&ahead::item(id))?.map(|value| read_item(id, &value)).transpose()
    }

    fn first_item(&mut self, id: ItemId) -> Result<Option<Item>, NotLoaded> {
        let item = self.item(id)?;
        item.map(Some).ok_or(NotLoaded::Damaged("a lane begins with an item that is not there"))
    }

    fn item_after(&mut self, after: Option<ItemId>) -> Result<Option<Item>, NotLoaded> {
        let Some((key, value)) = self.first(&ahead::after('i', after, PAGE))? else { return Ok(None) };
        read_item(ItemId(read_number(&key[1..])?), &value).map(Some)
    }

    fn item_of(&mut self, group: &Name, after: ItemId) -> Result<Option<ItemId>, NotLoaded> {
        let Some((key, _)) = self.first(&ahead::group(group, after))? else { return Ok(None) };
        let digits = key.len().checked_sub(16).map(|from| &key[from..]).unwrap_or_default();
        read_number(digits).map(|item| Some(ItemId(item)))
    }

    fn put_item(&mut self, item: Item) -> Result<(), NotLoaded> {
        self.keep_body(&item.payload)?;
        if let Some(group) = &item.group {
            self.row_cache.set(group_key(group, item.id.0), Some([].into()));
        }
        let value = write_with_context(&stored(&item), item.context.as_ref())?;
        self.row_cache.set(ahead::item(item.id).from, Some(value));
        Ok(())
    }

    fn remove_item(&mut self, id: ItemId) -> Result<Option<Item>, NotLoaded> {
        let Some(item) = self.item(id)? else { return Ok(None) };
        self.drop_body(&item.payload)?;
        if let Some(group) = &item.group {
            self.row_cache.set(group_key(group, id.0), None);
        }
        self.row_cache.set(ahead::item(id).from, None);
        Ok(Some(item))
    }

    fn dead_after(&mut self, after: Option<ItemId>) -> Result<Option<Dead>, NotLoaded> {
        let Some((key, value)) = self.first(&ahead::after('d', after, PAGE))? else { return Ok(None) };
        Rows::dead(ItemId(read_number(&key[1..])?), &value).map(Some)
    }

    fn put_dead(&mut self, dead: Dead) -> Result<(), NotLoaded> {
        self.keep_body(&dead.item.payload)?;
        let stored = StoredDead {
            attempts: dead.attempts,
            died_at: dead.died_at,
            reason: &dead.reason,
            item: stored(&dead.item),
        };
        let value = write_with_context(&stored, dead.item.context.as_ref())?;
        self.row_cache.set(key('d', &[&number(dead.item.id.0)]), Some(value));
        Ok(())
    }

    fn remove_dead(&mut self, id: ItemId) -> Result<Option<Dead>, NotLoaded> {
        let key = key('d', &[&number(id.0)]);
        let Some(value) = self.row_cache.get(&key)? else { return Ok(None) };
        let dead = Rows::dead(id, &value)?;
        self.drop_body(&dead.item.payload)?;
        self.row_cache.set(key, None);
        Ok(Some(dead))
    }

    fn dedup(&mut self, id: &Name) -> Result<Option<Remembered>, NotLoaded> {
        self.one(&ahead::dedup(id))?.map(|value| read(&value)).transpose()
    }

    fn next_dedup(&mut self) -> Result<Option<(Name, Remembered)>, NotLoaded> {
        let Some((end, _)) = self.first(&ahead::dedup_ends())? else { return Ok(None) };
        let id = read_name(end.get(1 + 16..).unwrap_or_default())?;
        let remembered = self.dedup(&id)?.ok_or(NotLoaded::Damaged("a dedup id is missing"))?;
        Ok(Some((id, remembered)))
    }

    fn set_dedup(
        &mut self,
        id: &Name,
        was: Option<Remembered>,
        remembered: Option<Remembered>,
    ) -> Result<(), NotLoaded> {
        let name = id.as_str().as_bytes();
        if let Some(was) = was {
            self.row_cache.set(key('v', &[&number(was.until.micros()), name]), None);
        }
        if let Some(remembered) = &remembered {
            let end = key('v', &[&number(remembered.until.micros()), name]);
            self.row_cache.set(end, Some([].into()));
        }
        let value = remembered.as_ref().map(write).transpose()?;
        self.row_cache.set(ahead::dedup(id).from, value);
        Ok(())
    }
}
