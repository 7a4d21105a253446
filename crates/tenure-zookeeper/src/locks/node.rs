//! The nodes of a line: their names, and what is in them.
//!
//! | node | name | data |
//! | --- | --- | --- |
//! | a claim's entry | `m-1-1-<claim>-<client>-<sequence>`: kind, capacity, weight | [`Entry::encode`], and after a newline what it published |
//! | a taken slot | `slot-<number>` | the claim |
//! | the resource | [`crate::name`] | empty, or an operator's change of the capacity |
//!
//! A list of names is all that the rule needs, and the one thing that ZooKeeper answers in one piece. With a foreign layout
//! an entry is named as Curator's `InterProcessMutex` or kazoo's `Lock` name theirs, and is a mutex's.

use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{Claim, ClaimId, ClientId, Kind, Label};
use tenure_core::model::line::{About, Entry, Line, Place, Resized, TakenSlot, kind_of, letter};
use tenure_core::model::token::Token;
use zookeeper_client::Stat;

/// What the name of a slot's node begins with.
const SLOT: &str = "slot-";
/// The format of what a resource's node says.
const FORMAT: &str = "1";

/// Whose names the nodes of entries have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Layout {
    /// tenure's.
    #[default]
    Tenure,
    /// Curator's `InterProcessMutex`.
    Curator,
    /// kazoo's `Lock`.
    Kazoo,
}

/// The node of an entry, as its name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) sequence: i32,
    pub(crate) entry: Entry,
}

/// What a list of names shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The oldest first.
    pub(crate) children: Vec<Child>,
    pub(crate) slots: Vec<TakenSlot>,
    /// As stored: sequences, not numbers of a line.
    resized: Option<(u32, u32, u32)>,
    frame: Frame,
}

/// How sequences become numbers that grow.
///
/// A node's sequence is a counter of 32 bits with a sign in its container, so after 2,147,483,647 comes -2,147,483,648, and much
/// later 0 again. Bit by bit that is a counter of 32 bits without a sign. It counts what is made in one container; no
/// two entries that live at one time are 2^31 apart, so where a line has such a gap, it lies across the counter's end,
/// and the small numbers are the later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    is_across: bool,
}

const HALF: u32 = 1 << 31;

impl Frame {
    fn of(sequences: impl Iterator<Item = i32> + Clone) -> Frame {
        let unsigned = sequences.map(i32::cast_unsigned);
        let (least, most) = (unsigned.clone().min().unwrap_or(0), unsigned.max().unwrap_or(0));
        Frame { is_across: most - least > HALF }
    }

    fn order(self, sequence: u32) -> u64 {
        let turn = if self.is_across && sequence < HALF { 1 << 32 } else { 0 };
        u64::from(sequence) + turn
    }
}

impl Layout {
    /// Returns the name of a claim's node, to which the server appends the sequence.
    pub(crate) fn prefix(self, claim: &Claim) -> String {
        let id = claim.id;
        match self {
            Layout::Tenure => {
                let terms = &claim.terms;
                prefix(terms.kind, terms.capacity, terms.weight, id, claim.client)
            }
            Layout::Curator => {
                let hex = format!("{:032x}", id.bits());
                let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
                format!("_c_{a}-{b}-{c}-{d}-{e}-lock-")
            }
            Layout::Kazoo => format!("{:032x}__lock__", id.bits()),
        }
    }

    /// Returns the name of the node of an entry that has a number in its line. `None`: in this layout it has to be looked for.
    pub(crate) fn name(self, entry: &Entry, order: u64) -> Option<String> {
        if self != Layout::Tenure {
            return None;
        }
        // A turn of the counter is in the number, and not in the name.
        let sequence = u32::try_from(order & u64::from(u32::MAX)).ok()?.cast_signed();
        let prefix = prefix(entry.kind, entry.capacity, entry.weight, entry.claim, entry.client);
        Some(format!("{prefix}{sequence:010}"))
    }

    /// Reads the name of an entry's node, or returns `None` if it is no entry's.
    fn read(self, name: &str) -> Option<Child> {
        let foreign = |id: &str, sequence: &str| {
            let digits: String = id.chars().filter(|c| *c != '-').collect();
            // A client that does not name a node by a UUID is recognized by the sequence.
            let claim = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
            let sequence: i32 = sequence.parse().ok()?;
            let claim = claim.unwrap_or_else(|| u128::from(sequence.cast_unsigned()));
            let (kind, capacity, weight) = (Kind::Mutex, 1, 1);
            let (claim, client, about) = (ClaimId::new(claim), ClientId::new(0), None);
            let entry = Entry { claim, client, kind, capacity, weight, about };
            Some(Child { name: name.to_owned(), sequence, entry })
        };
        match self {
            Layout::Tenure => {
                let mut parts = name.splitn(6, '-');
                let kind = kind_of(parts.next()?)?;
                let (capacity, weight) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                let (claim, client) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                let sequence = parts.next()?.parse().ok()?;
                let entry = Entry { claim, client, kind, capacity, weight, about: None };
                Some(Child { name: name.to_owned(), sequence, entry })
            }
            Layout::Curator => {
                let (id, sequence) =
                    name.rsplit_once("lock-").map(|(id, sequence)| (id.trim_end_matches('-'), sequence))?;
                foreign(id.strip_prefix("_c_").unwrap_or(id), sequence)
            }
            Layout::Kazoo => {
                let (id, sequence) = name.rsplit_once("__lock__")?;
                foreign(id, sequence)
            }
        }
    }

    /// Returns what a list of names shows. `data`: of the resource's node.
    pub(crate) fn seen(self, names: Vec<String>, data: Option<&[u8]>) -> Seen {
        // Which claim took them, and when, is not in their names.
        let (claim, token) = (ClaimId::new(0), Token::ZERO);
        let slot =
            |name: &String| Some(TakenSlot { number: name.strip_prefix(SLOT)?.parse().ok()?, claim, token });
        let slots = names.iter().filter_map(slot).collect();
        let mut children: Vec<Child> = names.iter().filter_map(|name| self.read(name)).collect();
        let frame = Frame::of(children.iter().map(|child| child.sequence));
        children.sort_unstable_by_key(|child| frame.order(child.sequence.cast_unsigned()));
        Seen { children, slots, resized: data.and_then(read_resized), frame }
    }
}

/// Returns what the name of an entry's node begins with.
fn prefix(kind: Kind, capacity: u32, weight: u32, claim: ClaimId, client: ClientId) -> String {
    format!("{}-{capacity}-{weight}-{claim}-{client}-", letter(kind))
}

impl Seen {
    /// Returns the child of a claim.
    pub(crate) fn child(&self, claim: ClaimId) -> Option<&Child> {
        self.children.iter().find(|child| child.entry.claim == claim)
    }

    /// Returns the number of a sequence in this line.
    pub(crate) fn order(&self, sequence: i32) -> u64 {
        self.frame.order(sequence.cast_unsigned())
    }

    /// Returns the line.
    pub(crate) fn line(&self) -> Line {
        let place = |child: &Child| Place { order: self.order(child.sequence), entry: child.entry.clone() };
        let places = self.children.iter().map(place).collect();
        let resized = self.resized.map(|(before, held_before, capacity)| {
            // Zero: before everything.
            let order = |sequence| if sequence == 0 { 0 } else { self.frame.order(sequence) };
            Resized { before: order(before), held_before: order(held_before), capacity }
        });
        Line::new(places, Vec::new(), resized, self.slots.clone())
    }
}

/// Returns the token of the claim that made a node: an entry, or a slot.
pub(crate) fn token_of(stat: &Stat) -> Token {
    Token::new(stat.czxid.cast_unsigned())
}

/// Returns the name of a slot's node.
pub(crate) fn slot_name(slot: u32) -> String {
    format!("{SLOT}{slot}")
}

/// Writes an operator's change of the capacity for a resource's node.
pub(crate) fn write_resized(resized: &Resized) -> String {
    // A turn of the counter is not stored: a reader knows it from the line.
    let sequence = |order: u64| (order & u64::from(u32::MAX)).to_string();
    let (before, held_before) = (sequence(resized.before), sequence(resized.held_before));
    format!("{FORMAT} resized {before} {held_before} {}", resized.capacity)
}

fn read_resized(data: &[u8]) -> Option<(u32, u32, u32)> {
    let mut parts = std::str::from_utf8(data).ok()?.split(' ');
    if parts.next()? != FORMAT || parts.next()? != "resized" {
        return None;
    }
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// What is in the node of an entry.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    /// As [`Entry::encode`] wrote it. `None`: another client's lock.
    pub(crate) entry: Option<Entry>,
    /// What was published.
    pub(crate) value: Option<Vec<u8>>,
}

impl Content {
    pub(crate) fn read(data: &[u8]) -> Content {
        let (text, value) = match data.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&data[..end], Some(data[end + 1..].to_vec())),
            None => (data, None),
        };
        let entry = std::str::from_utf8(text).ok().and_then(Entry::decode);
        Content { value: value.filter(|_| entry.is_some()), entry }
    }

    pub(crate) fn write(entry: &Entry, value: Option<&[u8]>) -> Vec<u8> {
        let mut data = entry.encode().into_bytes();
        if let Some(value) = value {
            data.push(b'\n');
            data.extend_from_slice(value);
        }
        data
    }

    pub(crate) fn is_broken(&self) -> bool {
        let about = self.entry.as_ref().and_then(|entry| entry.about.as_ref());
        about.is_some_and(|about| about.is_broken)
    }

    /// Returns what people ask for. `data`: what was read, for locks of others; `lasts`: how long those last, as far as is known.
    pub(crate) fn about(&self, stat: &Stat, data: &[u8], lasts: Duration) -> About {
        let token = token_of(stat);
        match self.entry.as_ref().and_then(|entry| entry.about.clone()) {
            Some(about) => About { token, ..about },
            None => About {
                token,
                label: Label::from_stored(&printable(data)),
                since: Timestamp::from_micros(stat.ctime.cast_unsigned().saturating_mul(1000)),
                lasts,
                is_broken: false,
            },
        }
    }
}

fn printable(data: &[u8]) -> String {
    const MOST: usize = 64;
    String::from_utf8_lossy(data).chars().filter(|c| !c.is_control()).take(MOST).collect()
}

#[cfg(test)]
mod tests;
