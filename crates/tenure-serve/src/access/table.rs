//! The entries of the file of tokens, found by the hash of what was sent: nothing is compared secret by secret.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tenure_core::clock::{Clock, SystemClock, Timestamp};

use super::rules::Rules;

/// What an entry is found by: the SHA-256 of a token, or the name of a certificate.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Token([u8; 32]),
    Certificate(String),
}

impl Key {
    pub(crate) fn of_token(token: &str) -> Key {
        Key::Token(Sha256::digest(token.as_bytes()).into())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Key::Token(_) => "Token",
            Key::Certificate(_) => "Certificate",
        })
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) rules: Rules,
    pub(crate) expires: Option<Timestamp>,
    /// The most requests a second.
    pub(crate) rate: Option<u32>,
    /// The most requests that wait.
    pub(crate) waiting: Option<usize>,
}

impl Entry {
    fn is_over(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| now >= expires)
    }
}

/// All entries.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: HashMap<Key, Arc<Entry>>,
}

impl Table {
    /// Adds an entry. Returns false if there is one with this key.
    pub(crate) fn add(&mut self, key: Key, entry: Entry) -> bool {
        self.entries.insert(key, Arc::new(entry)).is_none()
    }

    /// Finds an entry that has not expired.
    pub(crate) fn find(&self, key: &Key) -> Option<&Arc<Entry>> {
        let now = SystemClock.time_of_day();
        self.entries.get(key).filter(|entry| !entry.is_over(now))
    }

    /// The first of the names of a certificate that has an entry.
    pub(crate) fn key_of_certificate(&self, names: &[String]) -> Option<Key> {
        let keys = names.iter().map(|name| Key::Certificate(name.clone()));
        keys.into_iter().find(|key| self.entries.contains_key(key))
    }

    /// All that have not expired.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let now = SystemClock.time_of_day();
        self.entries.values().filter(move |entry| !entry.is_over(now))
    }

    /// How many entries it has.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
