//! Which keys and channels a resource has, and in which hash slot they are.
//!
//! A mutex is a plain string under `<prefix><name>`, as every client of the classic protocol has it. All else
//! lies beside it under `tenure.1.<letter>:<tag><prefix><name>`, where 1 is the version of this layout and the tag
//! (`{…}`, on Cluster only) puts it into the same slot. Names cannot hold control characters, but braces, so the
//! tag of a slot is looked up and not made of the name.

use std::borrow::Cow;
use std::sync::OnceLock;

use tenure_core::model::claim::{ClientId, Name};
use tenure_core::{Error, ErrorKind};

/// How many slots a cluster has.
const SLOTS: usize = 16384;
/// What every key and channel beside those of the resources begins with.
pub(crate) const OWN: &str = "tenure.1.";
/// What the channels begin with on which waiters hear of their grants.
pub const INBOX: &str = "tenure.1.inbox:";
/// What the channels begin with on which observers hear of changes.
pub const CHANGES: &str = "tenure.1.changes:";

/// The letters of a queue's keys.
const QUEUE_KEYS: [char; 16] =
    ['b', 'l', 'g', 'n', 'i', 'o', 'c', 'z', 'j', 'u', 'd', 't', 'y', 'm', 'p', 'f'];

/// The key of a resource and its slot (0 unless on Cluster).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// As the server knows it.
    pub text: String,
    pub(crate) slot: u16,
}

/// Names keys.
#[derive(Debug)]
pub struct Keys {
    prefix: String,
    has_slots: bool,
    /// What all resources share, where there are no slots: every call names these.
    shared: [String; 4],
}

impl Keys {
    /// Begins all keys with the prefix. On Cluster they need tags that put them into a slot.
    pub fn new(prefix: &str, has_slots: bool) -> Keys {
        Keys { prefix: prefix.to_owned(), has_slots, shared: shared("", prefix) }
    }

    /// Returns the key of a resource.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it would be taken for one of the engine's own.
    pub fn of(&self, name: &Name) -> Result<Key, Error> {
        let text = [self.prefix.as_str(), name.as_str()].concat();
        if text.starts_with(OWN) {
            let message = format!("the key {text:?} is kept for the engine itself");
            return Err(Error::new(ErrorKind::Invalid, "name a resource", message)
                .with_hint("use another name, or the default prefix")
                .with_no_effect());
        }
        let slot = if self.has_slots { slot_of(text.as_bytes()) } else { 0 };
        Ok(Key { text, slot })
    }

    /// Returns the name of the resource that a key belongs to, its own or one beside it.
    pub fn name_of(&self, key: &str) -> Option<Name> {
        let text = match key.strip_prefix(OWN) {
            // `q:{tag}key`
            Some(rest) => {
                let rest = rest.get(2..)?;
                if self.has_slots { rest.split_once('}')?.1 } else { rest }
            }
            None => key,
        };
        Name::new(text.strip_prefix(&self.prefix)?).ok()
    }

    /// Returns one pattern that matches every key by which a resource is found whose name begins with `names`, and
    /// others: a server visits all of its keys for each pattern. [`Keys::resource_of`] finds out which key it is.
    pub(crate) fn pattern(&self, names: &str) -> String {
        let plain = format!("{}{names}", self.prefix);
        let common = plain.chars().zip(OWN.chars()).take_while(|(one, other)| one == other);
        let common: String = common.map(|(one, _)| one).collect();
        let next = |text: &str| text[common.len()..].chars().next().filter(char::is_ascii);
        let class = match (next(&plain), next(OWN)) {
            (Some(one), Some(other)) => {
                format!("[{}{}]", quoted(&one.to_string()), quoted(&other.to_string()))
            }
            _ => String::new(),
        };
        format!("{}{class}*", quoted(&common))
    }

    /// Returns the name of the resource that a key shows to be in use: its own, or that of its queue or value, which may
    /// outlive its holds.
    pub(crate) fn resource_of(&self, key: &str) -> Option<Name> {
        match key.strip_prefix(OWN) {
            Some(rest) if !rest.starts_with("q:") && !rest.starts_with("v:") => None,
            _ => self.name_of(key),
        }
    }

    /// Returns patterns that match every key of the resources whose names begin with `names`, on a quorum's server.
    pub fn patterns_of_quorum(&self, names: &str) -> [String; 2] {
        let tail = format!("{}*", quoted(&format!("{}{names}", self.prefix)));
        [tail.clone(), format!("{OWN}[HQV]:{tail}")]
    }

    /// Returns the keys that the resources of a quorum's server share: the boot marker, the largest number, finished ids,
    /// observed. The first two belong to the server, whatever the prefix is.
    pub fn shared_of_quorum(&self) -> [String; 4] {
        let prefix = &self.prefix;
        [
            format!("{OWN}boot"),
            format!("{OWN}max"),
            format!("{OWN}ended:{prefix}"),
            format!("{OWN}followed:{prefix}"),
        ]
    }

    /// Returns the keys of a queue, in the order in which its scripts take them: the book, the lanes and their
    /// states, the numbers of the items and the items, those behind the first of their group, the claims, the groups
    /// that rest, the idle clients and how long they are, the dedup ids and how long, the numbers of the dead letters
    /// and the letters, what travels with either, and the numbers of those that have it.
    pub(crate) fn of_queue(&self, key: &Key) -> [String; QUEUE_KEYS.len()] {
        let tag = self.tag(key.slot);
        QUEUE_KEYS.map(|letter| format!("{OWN}{letter}:{tag}{}", key.text))
    }

    /// Returns a pattern that matches a key of every queue whose name begins with `names` and that holds anything.
    pub(crate) fn pattern_of_queues(&self, names: &str) -> String {
        let tag = if self.has_slots { "{*}" } else { "" };
        format!("{OWN}[ny]:{tag}{}*", quoted(&format!("{}{names}", self.prefix)))
    }

    /// Returns the tag that puts keys into a slot; empty unless on Cluster.
    pub(crate) fn tag(&self, slot: u16) -> &'static str {
        if self.has_slots { &tags()[usize::from(slot)] } else { "" }
    }

    /// Returns the keys that the resources of a slot share: the last token, finished ids, queues, observed.
    pub(crate) fn shared(&self, slot: u16) -> Cow<'_, [String; 4]> {
        match self.has_slots {
            true => Cow::Owned(shared(self.tag(slot), &self.prefix)),
            false => Cow::Borrowed(&self.shared),
        }
    }

    /// Returns what the inbox channels of a slot begin with, up to the client.
    pub(crate) fn inboxes(&self, slot: u16) -> String {
        format!("{INBOX}{}", self.tag(slot))
    }

    /// Returns the channel on which a client hears of grants in a slot.
    pub fn inbox(&self, slot: u16, client: ClientId) -> String {
        format!("{INBOX}{}{client}", self.tag(slot))
    }

    /// Returns the channel of the changes of a resource.
    pub fn changes(&self, key: &Key) -> String {
        format!("{CHANGES}{}{}", self.tag(key.slot), key.text)
    }
}

fn shared(tag: &str, prefix: &str) -> [String; 4] {
    ["token", "finished", "queues", "observed"].map(|what| format!("{OWN}{what}:{tag}{prefix}"))
}

/// A text as a glob pattern that matches only it.
fn quoted(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Returns the slot of a key: the part between the first `{` and the next `}` counts, if there is any.
///
/// Source: the Redis Cluster specification, "Key distribution model" and "Hash tags".
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let part = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let length = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open + 1..open + 1 + length])
    });
    crc16(part.unwrap_or(key)) % SLOTS as u16
}

/// CRC-16/XMODEM, as the specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc16_and(crc, *byte))
}

/// The CRC of what has this one and a byte after it.
fn crc16_and(crc: u16, byte: u8) -> u16 {
    (0..8).fold(
        crc ^ (u16::from(byte) << 8),
        |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        },
    )
}

/// A tag for each slot, the shortest numbers that hash to it.
fn tags() -> &'static [String] {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    TAGS.get_or_init(|| {
        let mut tags = vec![String::new(); SLOTS];
        // A short run pays for all of them, so each number goes on from that without its last digit.
        let mut crcs: Vec<u16> = Vec::new();
        let mut missing = SLOTS;
        while missing > 0 {
            let number = crcs.len();
            let before = if number < 10 { 0 } else { crcs[number / 10] };
            let crc = crc16_and(before, b'0' + (number % 10) as u8);
            crcs.push(crc);
            let tag = &mut tags[usize::from(crc) % SLOTS];
            if tag.is_empty() {
                *tag = format!("{{{number}}}");
                missing -= 1;
            }
        }
        tags
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // Figures from the specification and from `CLUSTER KEYSLOT`.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, same) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
        ] {
            let whole = crc16(same.as_bytes()) % SLOTS as u16;
            assert_eq!(slot_of(key.as_bytes()), whole, "{key}");
        }
    }

    /// Clients of all versions have the same ones.
    #[test]
    fn the_tag_of_a_slot_is_the_first_number_in_it() {
        let mut first = HashMap::new();
        let mut tags_of_numbers = (0_u32..).map(|number| format!("{{{number}}}"));
        while first.len() < SLOTS {
            let tag = tags_of_numbers.next().unwrap();
            first.entry(slot_of(tag.as_bytes())).or_insert(tag);
        }
        assert!((0_u16..).zip(tags()).all(|(slot, tag)| first[&slot] == *tag));
    }

    #[test]
    fn all_keys_of_a_resource_are_in_its_slot() {
        let keys = Keys::new("tenure:", true);
        for name in ["billing", "a{b}c", "{", "}{", "{}", "x{}y{z}"] {
            let key = keys.of(&Name::new(name).unwrap()).unwrap();
            let mut all = keys.shared(key.slot).to_vec();
            all.push(keys.inbox(key.slot, ClientId::new(7)));
            all.push(keys.changes(&key));
            all.push(format!("{OWN}q:{}{}", keys.tag(key.slot), key.text));
            all.extend(keys.of_queue(&key));
            for other in all {
                assert_eq!(slot_of(other.as_bytes()), key.slot, "{other} of {name}");
            }
        }
    }

    #[test]
    fn a_key_leads_back_to_its_name() {
        for has_slots in [false, true] {
            let keys = Keys::new("t:", has_slots);
            let name = Name::new("a{b}:c").unwrap();
            let key = keys.of(&name).unwrap();
            assert_eq!(keys.name_of(&key.text), Some(name.clone()));
            let queue = format!("{OWN}q:{}{}", keys.tag(key.slot), key.text);
            assert_eq!(keys.name_of(&queue), Some(name));
            assert_eq!(keys.name_of("other"), None);
        }
    }

    #[test]
    fn the_engines_own_keys_are_no_names() {
        let error = Keys::new("", false).of(&Name::new("tenure.1.token:").unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn one_pattern_finds_every_resource_and_its_keys_are_told_from_others() {
        for (prefix, names, pattern) in [
            ("tenure:", "b[", "tenure[:.]*"),
            ("a*", "b", "[at]*"),
            ("]", "", "[\\]t]*"),
            ("", "", "*"),
            ("ten", "", "ten*"),
            ("té", "", "t*"),
            ("tenure.1", "", "tenure.1*"),
        ] {
            assert_eq!(Keys::new(prefix, false).pattern(names), pattern, "{prefix} {names}");
        }
        let queues = Keys::new("a*", false).pattern_of_queues("b[");
        assert_eq!(queues, "tenure.1.[ny]:a\\*b\\[*");
        let keys = Keys::new("", false);
        for (key, name) in [
            ("n", Some("n")),
            ("tenure.1.q:n", Some("n")),
            ("tenure.1.v:n", Some("n")),
            ("tenure.1.e:n", None),
        ] {
            assert_eq!(keys.resource_of(key), name.map(|name| Name::new(name).unwrap()), "{key}");
        }
        for key in ["tenure.1.token:", "tenure.1.queues:", "tenure.1.observed:"] {
            assert_eq!(keys.resource_of(key), None);
        }
    }
}
