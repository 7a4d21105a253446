//! A record that has grown, in rows of its own: every question reads an index.
//!
//! The keys are `x<id><what><...>`, numbers big-endian, so that LMDB's order is the order that is asked for.
//! `id` is the record's, given when it grew, so that long names are not repeated.
//!
//! | what | key | value |
//! | --- | --- | --- |
//! | summary | | head, counts |
//! | hold | token | hold |
//! | waiter | place | waiter |
//! | claim | claim | whether it holds or waits, and the token or place |
//! | of a client | client, whether it holds or waits, token or place | claim |
//! | end of a hold, of a waiter | time, token or place | |
//! | slot | slot | token |
//! | finished, its end | claim; time, claim | time |
//! | free slot | running number | slot |
//! | value | | value |
//!
//! An invariant: an index row is written and removed together with the row that it points to, by the four
//! functions that put and remove holds and waiters, and by nothing else.

use std::cell::OnceCell;
use std::ops::Bound;

use heed::{RoTxn, RwTxn, WithoutTls};
use serde::{Deserialize, Serialize};
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{ClaimId, ClientId};
use tenure_core::model::record::{Head, Hold, PlainRecord, Record, Value, Waiter};
use tenure_core::model::token::Token;

use crate::error::Failure;
use crate::locks::resource::Queue;
use crate::place::environment::Rows;

/// The first byte of the keys of all such rows.
pub(crate) const ROW: u8 = b'x';
/// The longest key: a client, a byte and a number; or a time and a claim.
const KEY_BYTES_MAX: usize = 10 + 24;

/// What a row is. The order is part of the stored format.
#[derive(Clone, Copy)]
#[repr(u8)]
enum What {
    Summary,
    Hold,
    Waiter,
    Claim,
    OfClient,
    HoldEnd,
    WaiterEnd,
    Slot,
    Finished,
    FinishedEnd,
    FreeSlot,
    Value,
}

/// What is counted, and the head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Summary {
    head: Option<Head>,
    holds: u64,
    waiters: u64,
    finished: u64,
    free_slots: u64,
    next_free: u64,
}

/// A record in rows, inside a transaction.
pub(crate) struct RowRecord<'t, 'a> {
    rows: Rows,
    txn: &'t mut RwTxn<'a>,
    id: u64,
    summary: Summary,
    stored: Summary,
    /// The value may be large, and every step asks for it more than once.
    value: OnceCell<Option<Value>>,
    is_changed: bool,
}

/// A key, without an allocation.
#[derive(Clone, Copy)]
struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    length: usize,
}

impl Key {
    fn new(id: u64, what: What) -> Key {
        let key = Key { bytes: [0; KEY_BYTES_MAX], length: 0 };
        key.with(&[ROW]).with(&id.to_be_bytes()).with(&[what as u8])
    }

    fn with(mut self, part: &[u8]) -> Key {
        self.bytes[self.length..self.length + part.len()].copy_from_slice(part);
        self.length += part.len();
        self
    }

    fn number(self, number: u64) -> Key {
        self.with(&number.to_be_bytes())
    }

    fn time(self, time: Timestamp) -> Key {
        self.number(time.micros())
    }

    fn claim(self, claim: ClaimId) -> Key {
        self.with(&claim.bits().to_be_bytes())
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A row.
pub(crate) type KeyAndValue<'b> = (&'b [u8], &'b [u8]);

/// Where a claim is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Holds(Token),
    Waits(u64),
}

impl Place {
    fn encode(self) -> [u8; 9] {
        let (tag, number) = match self {
            Place::Holds(token) => (0, token.get()),
            Place::Waits(place) => (1, place),
        };
        let mut bytes = [tag; 9];
        bytes[1..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Place, Failure> {
        match bytes.split_first() {
            Some((0, number)) => Ok(Place::Holds(Token::new(read_number(number)?))),
            Some((1, number)) => Ok(Place::Waits(read_number(number)?)),
            _ => Err(Failure::Damaged("an index row cannot be read")),
        }
    }
}

pub(crate) fn read_number(bytes: &[u8]) -> Result<u64, Failure> {
    let bytes = bytes.try_into().map_err(|_| Failure::Damaged("a number cannot be read"))?;
    Ok(u64::from_be_bytes(bytes))
}

pub(crate) fn read_claim(bytes: &[u8]) -> Result<ClaimId, Failure> {
    let bytes = bytes.try_into().map_err(|_| Failure::Damaged("a claim id cannot be read"))?;
    Ok(ClaimId::new(u128::from_be_bytes(bytes)))
}

pub(crate) fn decode<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, Failure> {
    postcard::from_bytes(bytes).map_err(|_| Failure::Damaged("a row cannot be read"))
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Failure> {
    postcard::to_extend(value, Vec::with_capacity(128))
        .map_err(|_| Failure::Damaged("a row cannot be written"))
}

impl<'t, 'a> RowRecord<'t, 'a> {
    /// Opens a record; an id that has no rows is an empty one.
    pub(crate) fn open(rows: Rows, txn: &'t mut RwTxn<'a>, id: u64) -> Result<Self, Failure> {
        let summary: Summary = match rows.get(txn, Key::new(id, What::Summary).as_bytes())? {
            Some(bytes) => decode(bytes)?,
            None => Summary::default(),
        };
        let stored = summary.clone();
        Ok(RowRecord { rows, txn, id, summary, stored, value: OnceCell::new(), is_changed: false })
    }

    /// Writes what was kept back. Says whether anything changed since it was opened.
    pub(crate) fn close(mut self) -> Result<bool, Failure> {
        if self.summary != self.stored {
            let bytes = encode(&self.summary)?;
            self.put(Key::new(self.id, What::Summary), &bytes)?;
        }
        Ok(self.is_changed)
    }

    /// Removes all rows of a record.
    pub(crate) fn remove(rows: Rows, txn: &mut RwTxn<'_>, id: u64) -> Result<(), Failure> {
        let from = Key::new(id, What::Summary);
        let to = Key { length: 9, ..Key::new(id + 1, What::Summary) };
        rows.delete_range(txn, &(Bound::Included(from.as_bytes()), Bound::Excluded(to.as_bytes())))?;
        Ok(())
    }

    /// Counts what makes the record large, as [`PlainRecord::entries`] does.
    pub(crate) fn entries(&self) -> u64 {
        self.summary.holds + self.summary.waiters + self.summary.finished + self.summary.free_slots
    }

    /// Copies everything into an empty record.
    pub(crate) fn copy_to(&self, other: &mut PlainRecord) -> Result<(), Failure> {
        if let Some(head) = &self.summary.head {
            other.set_head(head.clone())?;
        }
        for hold in self.holds(usize::MAX)? {
            other.put_hold(hold)?;
        }
        for waiter in self.waiters(usize::MAX)? {
            other.put_waiter(waiter)?;
        }
        for row in self.all(What::Finished)? {
            let (key, until) = row?;
            other.put_finished(read_claim(&key[10..])?, Timestamp::from_micros(read_number(until)?))?;
        }
        for row in self.all(What::FreeSlot)? {
            other.push_free_slot(decode(row?.1)?)?;
        }
        other.set_value(self.value()?)?;
        Ok(())
    }

    fn txn(&self) -> &RoTxn<'a, WithoutTls> {
        self.txn
    }

    fn key(&self, what: What) -> Key {
        Key::new(self.id, what)
    }

    fn get(&self, key: Key) -> Result<Option<&[u8]>, Failure> {
        Ok(self.rows.get(self.txn(), key.as_bytes())?)
    }

    fn put(&mut self, key: Key, bytes: &[u8]) -> Result<(), Failure> {
        self.is_changed = true;
        Ok(self.rows.put(self.txn, key.as_bytes(), bytes)?)
    }

    fn delete(&mut self, key: Key) -> Result<(), Failure> {
        self.is_changed = true;
        self.rows.delete(self.txn, key.as_bytes())?;
        Ok(())
    }

    /// All rows of one sort, in order.
    fn all(&self, what: What) -> Result<impl Iterator<Item = Result<KeyAndValue<'_>, heed::Error>>, Failure> {
        Ok(self.rows.prefix_iter(self.txn(), self.key(what).as_bytes())?)
    }

    /// The first row of one sort behind a key: what follows the sort in its key, and its value.
    fn first_behind(&self, what: What, key: Key) -> Result<Option<KeyAndValue<'_>>, Failure> {
        let prefix = self.key(what);
        let row = self.rows.get_greater_than(self.txn(), key.as_bytes())?;
        Ok(row.and_then(|(key, value)| Some((key.strip_prefix(prefix.as_bytes())?, value))))
    }

    /// The last row of one sort before a key.
    fn last_before(&self, what: What, key: Key) -> Result<Option<KeyAndValue<'_>>, Failure> {
        let prefix = self.key(what);
        let row = self.rows.get_lower_than(self.txn(), key.as_bytes())?;
        Ok(row.and_then(|(key, value)| Some((key.strip_prefix(prefix.as_bytes())?, value))))
    }

    /// The token or place that ends first.
    fn first_to_end(&self, what: What) -> Result<Option<u64>, Failure> {
        match self.first_behind(what, self.key(what))? {
            Some((key, _)) if key.len() == 16 => read_number(&key[8..]).map(Some),
            Some(_) => Err(Failure::Damaged("an end cannot be read")),
            None => Ok(None),
        }
    }

    fn place_of(&self, claim: ClaimId) -> Result<Option<Place>, Failure> {
        self.get(self.key(What::Claim).claim(claim))?.map(Place::decode).transpose()
    }

    fn waiter(&self, place: u64) -> Result<Option<Waiter>, Failure> {
        self.get(self.key(What::Waiter).number(place))?.map(decode).transpose()
    }

    fn of_client(&self, client: ClientId, place: Place) -> Key {
        self.key(What::OfClient).number(client.bits()).with(&place.encode())
    }

    fn index_claim(&mut self, claim: ClaimId, client: ClientId, place: Place) -> Result<(), Failure> {
        self.put(self.key(What::Claim).claim(claim), &place.encode())?;
        self.put(self.of_client(client, place), &claim.bits().to_be_bytes())
    }

    fn unindex_claim(&mut self, claim: ClaimId, client: ClientId, place: Place) -> Result<(), Failure> {
        self.delete(self.key(What::Claim).claim(claim))?;
        self.delete(self.of_client(client, place))
    }

    fn hold_end(&self, hold: &Hold) -> Key {
        self.key(What::HoldEnd).time(hold.expires_at).number(hold.token.get())
    }

    fn waiter_end(&self, waiter: &Waiter) -> Key {
        self.key(What::WaiterEnd).time(waiter.expires_at).number(waiter.place)
    }

    fn remove_finished(&mut self, claim: ClaimId) -> Result<(), Failure> {
        let key = self.key(What::Finished).claim(claim);
        if let Some(until) = self.get(key)?.map(read_number).transpose()? {
            self.delete(key)?;
            self.delete(self.key(What::FinishedEnd).number(until).claim(claim))?;
            self.summary.finished -= 1;
        }
        Ok(())
    }
}

impl Queue for RowRecord<'_, '_> {
    fn waiter_ahead(&self, place: u64) -> Result<Option<Waiter>, Failure> {
        let row = self.last_before(What::Waiter, self.key(What::Waiter).number(place))?;
        row.map(|(_, waiter)| decode(waiter)).transpose()
    }
}

impl Record for RowRecord<'_, '_> {
    type Error = Failure;

    fn head(&self) -> Result<Option<Head>, Failure> {
        Ok(self.summary.head.clone())
    }

    fn set_head(&mut self, head: Head) -> Result<(), Failure> {
        self.summary.head = Some(head);
        Ok(())
    }

    fn hold_of(&self, claim: ClaimId) -> Result<Option<Hold>, Failure> {
        match self.place_of(claim)? {
            Some(Place::Holds(token)) => self.hold(token),
            _ => Ok(None),
        }
    }

    fn hold(&self, token: Token) -> Result<Option<Hold>, Failure> {
        self.get(self.key(What::Hold).number(token.get()))?.map(decode).transpose()
    }

    fn next_hold_to_end(&self) -> Result<Option<Hold>, Failure> {
        match self.first_to_end(What::HoldEnd)? {
            Some(token) => self.hold(Token::new(token)),
            None => Ok(None),
        }
    }

    fn holds(&self, most: usize) -> Result<Vec<Hold>, Failure> {
        self.all(What::Hold)?.take(most).map(|row| decode(row?.1)).collect()
    }

    fn put_hold(&mut self, hold: Hold) -> Result<(), Failure> {
        let place = Place::Holds(hold.token);
        let old = self.hold(hold.token)?;
        let bytes = encode(&hold)?;
        self.put(self.key(What::Hold).number(hold.token.get()), &bytes)?;
        if old.as_ref().is_none_or(|old| old.expires_at != hold.expires_at) {
            if let Some(old) = &old {
                self.delete(self.hold_end(old))?;
            }
            self.put(self.hold_end(&hold), &[])?;
        }
        let before = old.as_ref().and_then(|old| old.claim);
        if before != hold.claim {
            if let Some(before) = before {
                self.unindex_claim(before, hold.client, place)?;
            }
            if let Some(claim) = hold.claim {
                self.index_claim(claim, hold.client, place)?;
            }
        }
        if old.is_none() {
            self.summary.holds += 1;
            if let Some(slot) = hold.slot {
                let key = self.key(What::Slot).with(&slot.to_be_bytes());
                self.put(key, &hold.token.get().to_be_bytes())?;
            }
        }
        Ok(())
    }

    fn remove_hold(&mut self, token: Token) -> Result<(), Failure> {
        let Some(hold) = self.hold(token)? else { return Ok(()) };
        self.delete(self.key(What::Hold).number(token.get()))?;
        self.delete(self.hold_end(&hold))?;
        if let Some(claim) = hold.claim {
            self.unindex_claim(claim, hold.client, Place::Holds(token))?;
        }
        if let Some(slot) = hold.slot {
            self.delete(self.key(What::Slot).with(&slot.to_be_bytes()))?;
        }
        self.summary.holds -= 1;
        Ok(())
    }

    fn is_slot_held(&self, slot: u32) -> Result<bool, Failure> {
        Ok(self.get(self.key(What::Slot).with(&slot.to_be_bytes()))?.is_some())
    }

    fn waiter_of(&self, claim: ClaimId) -> Result<Option<Waiter>, Failure> {
        match self.place_of(claim)? {
            Some(Place::Waits(place)) => self.waiter(place),
            _ => Ok(None),
        }
    }

    fn waiter_behind(&self, place: u64) -> Result<Option<Waiter>, Failure> {
        let row = self.first_behind(What::Waiter, self.key(What::Waiter).number(place))?;
        row.map(|(_, waiter)| decode(waiter)).transpose()
    }

    fn waiters_ahead(&self, place: u64, most: u32) -> Result<u32, Failure> {
        let end = self.key(What::Waiter).number(place);
        let mut ahead = 0;
        for row in self.all(What::Waiter)?.take(most as usize) {
            if row?.0 >= end.as_bytes() {
                break;
            }
            ahead += 1;
        }
        Ok(ahead)
    }

    fn next_waiter_to_end(&self) -> Result<Option<Waiter>, Failure> {
        match self.first_to_end(What::WaiterEnd)? {
            Some(place) => self.waiter(place),
            None => Ok(None),
        }
    }

    fn waiters(&self, most: usize) -> Result<Vec<Waiter>, Failure> {
        self.all(What::Waiter)?.take(most).map(|row| decode(row?.1)).collect()
    }

    fn put_waiter(&mut self, waiter: Waiter) -> Result<(), Failure> {
        let old = self.waiter(waiter.place)?;
        let bytes = encode(&waiter)?;
        self.put(self.key(What::Waiter).number(waiter.place), &bytes)?;
        if old.as_ref().is_none_or(|old| old.expires_at != waiter.expires_at) {
            if let Some(old) = &old {
                self.delete(self.waiter_end(old))?;
            }
            self.put(self.waiter_end(&waiter), &[])?;
        }
        if old.as_ref().is_none_or(|old| old.client != waiter.client) {
            if let Some(old) = &old {
                self.unindex_claim(old.claim, old.client, Place::Waits(old.place))?;
            }
            self.index_claim(waiter.claim, waiter.client, Place::Waits(waiter.place))?;
        }
        self.summary.waiters += u64::from(old.is_none());
        Ok(())
    }

    fn remove_waiter(&mut self, place: u64) -> Result<(), Failure> {
        let Some(waiter) = self.waiter(place)? else { return Ok(()) };
        self.delete(self.key(What::Waiter).number(place))?;
        self.delete(self.waiter_end(&waiter))?;
        self.unindex_claim(waiter.claim, waiter.client, Place::Waits(place))?;
        self.summary.waiters -= 1;
        Ok(())
    }

    fn claims_of(&self, client: ClientId) -> Result<Vec<ClaimId>, Failure> {
        let prefix = self.key(What::OfClient).number(client.bits());
        let rows = self.rows.prefix_iter(self.txn(), prefix.as_bytes())?;
        rows.map(|row| read_claim(row?.1)).collect()
    }

    fn is_finished(&self, claim: ClaimId) -> Result<bool, Failure> {
        Ok(self.get(self.key(What::Finished).claim(claim))?.is_some())
    }

    fn put_finished(&mut self, claim: ClaimId, until: Timestamp) -> Result<(), Failure> {
        self.remove_finished(claim)?;
        self.put(self.key(What::Finished).claim(claim), &until.micros().to_be_bytes())?;
        self.put(self.key(What::FinishedEnd).time(until).claim(claim), &[])?;
        self.summary.finished += 1;
        Ok(())
    }

    fn forget_finished(&mut self, now: Timestamp) -> Result<(), Failure> {
        while let Some((key, _)) = self.first_behind(What::FinishedEnd, self.key(What::FinishedEnd))? {
            let (until, claim) =
                key.split_first_chunk::<8>().ok_or(Failure::Damaged("an end cannot be read"))?;
            if u64::from_be_bytes(*until) > now.micros() {
                break;
            }
            let claim = read_claim(claim)?;
            self.remove_finished(claim)?;
        }
        Ok(())
    }

    fn finished_until(&self) -> Result<Option<Timestamp>, Failure> {
        let last = self.last_before(What::FinishedEnd, self.key(What::FreeSlot))?;
        last.map(|(key, _)| Ok(Timestamp::from_micros(read_number(key.get(..8).unwrap_or_default())?)))
            .transpose()
    }

    fn push_free_slot(&mut self, slot: u32) -> Result<(), Failure> {
        let key = self.key(What::FreeSlot).number(self.summary.next_free);
        let bytes = encode(&slot)?;
        self.put(key, &bytes)?;
        self.summary.next_free += 1;
        self.summary.free_slots += 1;
        Ok(())
    }

    fn pop_free_slot(&mut self) -> Result<Option<u32>, Failure> {
        let Some((number, slot)) = self.first_behind(What::FreeSlot, self.key(What::FreeSlot))? else {
            return Ok(None);
        };
        let (number, slot) = (read_number(number)?, decode(slot)?);
        self.delete(self.key(What::FreeSlot).number(number))?;
        self.summary.free_slots -= 1;
        Ok(Some(slot))
    }

    fn remove_free_slots(&mut self, from: u32) -> Result<(), Failure> {
        let mut removed = Vec::new();
        for row in self.all(What::FreeSlot)? {
            let (key, slot) = row?;
            if decode::<u32>(slot)? >= from {
                removed.push(read_number(&key[10..])?);
            }
        }
        self.summary.free_slots -= removed.len() as u64;
        for number in removed {
            self.delete(self.key(What::FreeSlot).number(number))?;
        }
        Ok(())
    }

    fn value(&self) -> Result<Option<Value>, Failure> {
        if let Some(value) = self.value.get() {
            return Ok(value.clone());
        }
        let value: Option<Value> = self.get(self.key(What::Value))?.map(decode).transpose()?;
        Ok(self.value.get_or_init(|| value).clone())
    }

    fn set_value(&mut self, value: Option<Value>) -> Result<(), Failure> {
        match &value {
            Some(value) => {
                let bytes = encode(value)?;
                self.put(self.key(What::Value), &bytes)?;
            }
            None if self.value()?.is_some() => self.delete(self.key(What::Value))?,
            None => {}
        }
        self.value = OnceCell::from(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
