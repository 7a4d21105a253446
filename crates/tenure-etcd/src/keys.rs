//! How keys are named, and what is in them.
//!
//! ```text
//! <prefix>line/<name> c<claim>     an entry: `Entry::encode`. Its create revision is its number, and its token
//! <prefix>line/<name> r<claim>     units that rest: `<number> <token> <slot or -> <entry>`
//! <prefix>line/<name> s<slot>      a slot that is taken: `<claim>`. Its create revision is the token of the claim that took it
//! <prefix>line/<name> z            a changed capacity: `<before> <held before> <capacity>`
//! <prefix>value/<name> h<claim>    what a holder published: `1 <token> <fresh for, ms>`, a line end, the bytes
//! <prefix>value/<name> k           the same, kept beyond the hold
//! <prefix>value/<name> l           it is fresh for as long as this is there
//! <prefix>done/<claim>             a claim that must not be let in any more
//! <prefix>alone/<name>             the mark of the client that alone has used the name since it was written: `locks/alone.rs`
//! <prefix>queue...                 queues: see `queues.rs`
//! ```
//!
//! What looks like a space is the control character 0x1f, below everything that a name may hold: keys stand in the order of
//! their names, and no name's keys are among those of another.

use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{ClaimId, ClientId, Kind, Label, Name, Published};
use tenure_core::model::line::{About, Entry, Line, Place, Resized, Rest, TakenSlot};
use tenure_core::model::token::Token;

use crate::client::proto::{KeyValue, RangeRequest, end_of_prefix};

/// Ends a name.
const END: u8 = 0x1f;

/// Whose recipe the keys follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Our own.
    #[default]
    Tenure,
    /// Entries as `etcdctl lock` makes them: `<name>/<anything>`.
    Etcdctl,
}

/// Names the keys of one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
    layout: Layout,
}

impl Keys {
    pub(crate) fn new(prefix: &str, layout: Layout) -> Keys {
        Keys { prefix: prefix.to_owned(), layout }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn of(&self, room: &str, name: &str) -> Vec<u8> {
        format!("{}{room}/{name}", self.prefix).into_bytes()
    }

    /// What all keys of a room (`line`, `value`) begin with whose names begin so.
    pub(crate) fn room(&self, room: &str, prefix: &str) -> Vec<u8> {
        match self.layout {
            Layout::Etcdctl if room == "line" => format!("{}{prefix}", self.prefix).into_bytes(),
            _ => self.of(room, prefix),
        }
    }

    /// What all keys of a name's line begin with.
    pub(crate) fn line(&self, name: &Name) -> Vec<u8> {
        let mut key = self.room("line", name.as_str());
        key.push(if self.layout == Layout::Etcdctl { b'/' } else { END });
        key
    }

    /// What all keys of a name's value begin with.
    pub(crate) fn value(&self, name: &Name) -> Vec<u8> {
        let mut key = self.of("value", name.as_str());
        key.push(END);
        key
    }

    fn in_line(&self, name: &Name, rest: &str) -> Vec<u8> {
        let mut key = self.line(name);
        key.extend_from_slice(rest.as_bytes());
        key
    }

    fn in_value(&self, name: &Name, rest: &str) -> Vec<u8> {
        let mut key = self.value(name);
        key.extend_from_slice(rest.as_bytes());
        key
    }

    pub(crate) fn place(&self, name: &Name, claim: ClaimId) -> Vec<u8> {
        match self.layout {
            Layout::Tenure => self.in_line(name, &format!("c{claim}")),
            Layout::Etcdctl => self.in_line(name, &claim.to_string()),
        }
    }

    /// What the keys of all entries of a line begin with.
    pub(crate) fn places(&self, name: &Name) -> Vec<u8> {
        self.in_line(name, if self.layout == Layout::Tenure { "c" } else { "" })
    }

    /// What the keys of all that rests begin with.
    pub(crate) fn rests(&self, name: &Name) -> Vec<u8> {
        self.in_line(name, "r")
    }

    pub(crate) fn rest(&self, name: &Name, claim: ClaimId) -> Vec<u8> {
        self.in_line(name, &format!("r{claim}"))
    }

    pub(crate) fn slot(&self, name: &Name, slot: u32) -> Vec<u8> {
        self.in_line(name, &format!("s{slot:07}"))
    }

    pub(crate) fn resized(&self, name: &Name) -> Vec<u8> {
        self.in_line(name, "z")
    }

    pub(crate) fn held_value(&self, name: &Name, claim: ClaimId) -> Vec<u8> {
        self.in_value(name, &format!("h{claim}"))
    }

    pub(crate) fn kept_value(&self, name: &Name) -> Vec<u8> {
        self.in_value(name, "k")
    }

    pub(crate) fn fresh_value(&self, name: &Name) -> Vec<u8> {
        self.in_value(name, "l")
    }

    pub(crate) fn done(&self, claim: ClaimId) -> Vec<u8> {
        self.of("done", &claim.to_string())
    }

    /// The mark of a client that uses a name alone.
    pub(crate) fn alone(&self, name: &Name) -> Vec<u8> {
        self.of("alone", name.as_str())
    }

    /// The head of a queue.
    pub(crate) fn queue_head(&self, queue: &Name) -> Vec<u8> {
        self.of("queues", queue.as_str())
    }

    /// What the heads of all queues begin with whose names begin so.
    pub(crate) fn queue_heads(&self, prefix: &str) -> Vec<u8> {
        self.of("queues", prefix)
    }

    /// A row of a queue.
    pub(crate) fn queue_row(&self, queue: &Name, row: &[u8]) -> Vec<u8> {
        let mut key = self.of("queue", queue.as_str());
        key.push(END);
        key.extend_from_slice(row);
        key
    }

    pub(crate) fn queue_clock(&self) -> Vec<u8> {
        format!("{}queue-clock", self.prefix).into_bytes()
    }

    /// A sign of the lease of a client that has an item.
    pub(crate) fn queue_sign(&self, claim: ClaimId) -> Vec<u8> {
        self.of("queue-sign", &claim.to_string())
    }

    pub(crate) fn queue_called(&self, client: ClientId) -> Vec<u8> {
        self.of("queue-called", &client.to_string())
    }

    /// Reads the name off a key of a room.
    pub(crate) fn name_in(&self, room: &str, key: &[u8]) -> Option<Name> {
        let rest = key.strip_prefix(&self.room(room, "")[..])?;
        let end = match self.layout {
            Layout::Etcdctl if room == "line" => rest.iter().rposition(|byte| *byte == b'/')?,
            _ => rest.iter().position(|byte| *byte == END)?,
        };
        Name::new(std::str::from_utf8(&rest[..end]).ok()?).ok()
    }

    /// Reads a line off its keys.
    pub(crate) fn read_line(&self, name: &Name, keys: &[KeyValue]) -> Line {
        let (mut places, mut rests, mut slots, mut resized) = (Vec::new(), Vec::new(), Vec::new(), None);
        let prefix = self.line(name);
        for key in keys {
            let rest = key.key.strip_prefix(&prefix[..]).unwrap_or_default();
            let text = std::str::from_utf8(&key.value).unwrap_or_default();
            match (self.layout, rest.first()) {
                (Layout::Tenure, Some(b'r')) => rests.extend(read_rest(text)),
                (Layout::Tenure, Some(b's')) => slots.extend(read_slot(key, rest, text)),
                (Layout::Tenure, Some(b'z')) => resized = read_resized(text),
                _ => places.push(read_place(key, text)),
            }
        }
        Line::new(places, rests, resized, slots)
    }

    /// Reads a value off its keys: the newest of what was published.
    pub(crate) fn read_value(&self, name: &Name, keys: &[KeyValue]) -> Option<Published> {
        let prefix = self.value(name);
        let first = |key: &KeyValue| key.key.strip_prefix(&prefix[..]).and_then(|rest| rest.first().copied());
        let is_fresh = keys.iter().any(|key| first(key) == Some(b'l'));
        let newest = keys
            .iter()
            .filter(|key| matches!(first(key), Some(b'h' | b'k')))
            .max_by_key(|key| key.mod_revision)?;
        let end = newest.value.iter().position(|byte| *byte == b'\n')?;
        let head = std::str::from_utf8(&newest.value[..end]).ok()?;
        let mut parts = head.split(' ');
        if parts.next()? != "1" {
            return None;
        }
        let token = Token::new(parts.next()?.parse().ok()?);
        let fresh_for = std::time::Duration::from_millis(parts.next()?.parse().ok()?);
        let is_kept = first(newest) == Some(b'k');
        let fresh_for = if is_kept && is_fresh { fresh_for } else { std::time::Duration::ZERO };
        Some(Published { bytes: newest.value[end + 1..].into(), token, fresh_for })
    }
}

/// Writes a value.
pub(crate) fn write_value(token: Token, fresh: std::time::Duration, bytes: &[u8]) -> Vec<u8> {
    let mut value = format!("1 {token} {}\n", fresh.as_millis()).into_bytes();
    value.extend_from_slice(bytes);
    value
}

/// Writes units that rest.
pub(crate) fn write_rest(order: u64, token: Token, slot: Option<u32>, entry: &Entry) -> Vec<u8> {
    let slot = slot.map_or("-".to_owned(), |slot| slot.to_string());
    format!("{order} {token} {slot} {}", entry.encode()).into_bytes()
}

/// Writes a changed capacity.
pub(crate) fn write_resized(resized: &Resized) -> Vec<u8> {
    format!("{} {} {}", resized.before, resized.held_before, resized.capacity).into_bytes()
}

/// Asks for all keys that begin so.
pub(crate) fn range(prefix: Vec<u8>) -> RangeRequest {
    RangeRequest { range_end: end_of_prefix(&prefix), key: prefix, ..RangeRequest::default() }
}

/// Asks for one key.
pub(crate) fn get(key: Vec<u8>) -> RangeRequest {
    RangeRequest { key, ..RangeRequest::default() }
}

fn read_place(key: &KeyValue, text: &str) -> Place {
    let order = u64::try_from(key.create_revision).unwrap_or_default();
    let mut entry = Entry::decode(text).unwrap_or_else(|| foreign(key));
    if let Some(about) = &mut entry.about {
        about.token = Token::new(order);
    }
    Place { order, entry }
}

/// A foreign key there counts as a mutex that is claimed.
fn foreign(key: &KeyValue) -> Entry {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (&key.key, key.create_revision).hash(&mut hasher);
    let label = Label::from_stored(&format!("another client, key {}", String::from_utf8_lossy(&key.key)));
    let about = About {
        token: Token::ZERO,
        label,
        since: Timestamp::from_micros(0),
        lasts: std::time::Duration::ZERO,
        is_broken: false,
    };
    Entry {
        claim: ClaimId::new(u128::from(hasher.finish())),
        client: ClientId::new(0),
        kind: Kind::Mutex,
        capacity: 1,
        weight: 1,
        about: Some(about),
    }
}

fn read_rest(text: &str) -> Option<Rest> {
    let (order, text) = text.split_once(' ')?;
    let (token, text) = text.split_once(' ')?;
    let (slot, text) = text.split_once(' ')?;
    let (order, token) = (order.parse().ok()?, token.parse().ok()?);
    let mut entry = Entry::decode(text)?;
    if let Some(about) = &mut entry.about {
        about.token = Token::new(token);
    }
    Some(Rest { order, entry, slot: slot.parse().ok() })
}

/// Reads for how long the units of a hold rest if its client vanishes.
pub(crate) fn delay_of(value: &[u8]) -> Option<std::time::Duration> {
    Some(read_rest(std::str::from_utf8(value).ok()?)?.entry.about?.lasts)
}

fn read_slot(key: &KeyValue, rest: &[u8], text: &str) -> Option<TakenSlot> {
    let number = std::str::from_utf8(rest.get(1..)?).ok()?.parse().ok()?;
    let token = Token::new(u64::try_from(key.create_revision).ok()?);
    Some(TakenSlot { number, claim: text.parse().ok()?, token })
}

fn read_resized(text: &str) -> Option<Resized> {
    let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
    let (before, held_before, capacity) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some(Resized { before, held_before, capacity: u32::try_from(capacity).ok()? })
}

#[cfg(test)]
mod tests;
