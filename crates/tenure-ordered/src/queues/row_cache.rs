//! What a client knows of one queue's rows: a part of them, as they were at one version of the queue's head.
//!
//! Every change of a queue changes its head, so what was read once is good for as long as the head is the same, and a
//! transaction that asks for that head asks for all of it. What is not known is a [`NotLoaded`]: it is read, and the work is
//! begun anew.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tenure_core::model::claim::ClaimId;

/// A row's key within its queue.
pub type Key = Vec<u8>;
/// What is in a row.
pub type Value = Arc<[u8]>;

/// Which rows are asked for: from `from` on, before `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub from: Key,
    /// The first key behind them.
    pub to: Key,
    /// How many, at most.
    pub most: usize,
}

impl KeyRange {
    pub(crate) fn one(key: Key) -> KeyRange {
        let to = after(&key);
        KeyRange { from: key, to, most: 1 }
    }
}

/// The rows that were asked for.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// In the order of their keys.
    pub rows: Vec<(Key, Value)>,
    /// There are more than were asked for.
    pub has_more: bool,
}

/// Why a step cannot be done yet, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotLoaded {
    /// These rows are not known.
    Unknown(KeyRange),
    /// What became of this delivery is not known, and is in no row.
    Overdue(ClaimId),
    /// What is stored cannot be read.
    Damaged(&'static str),
    /// What so many requests change is too much for one transaction.
    TooMuch(usize),
}

/// The first key behind a key.
pub(crate) fn after(key: &[u8]) -> Key {
    [key, &[0]].concat()
}

/// Known rows, and changes of them that are not stored yet.
#[derive(Debug, Default)]
pub(crate) struct RowCache {
    rows: BTreeMap<Key, Value>,
    /// Between which keys all rows are known: from, to. They neither overlap nor touch.
    known: BTreeMap<Key, Key>,
    changes: BTreeMap<Key, Option<Value>>,
}

impl RowCache {
    /// Takes in what was read.
    pub(crate) fn learn(&mut self, wanted: &KeyRange, found: Found) {
        let to = match found.rows.last() {
            Some((last, _)) if found.has_more => after(last),
            _ => wanted.to.clone(),
        };
        self.rows.extend(found.rows);
        self.note(wanted.from.clone(), to);
    }

    fn note(&mut self, mut from: Key, mut to: Key) {
        let touching: Vec<Key> = self
            .known
            .range::<Key, _>(..=&to)
            .rev()
            .take_while(|(_, end)| **end >= from)
            .map(|(start, _)| start.clone())
            .collect();
        for start in touching {
            if let Some(end) = self.known.remove(&start) {
                from = from.min(start);
                to = to.max(end);
            }
        }
        self.known.insert(from, to);
    }

    /// Returns where what is known from a key on ends; the key itself if it is not known.
    fn known_to<'a>(&'a self, key: &'a Key) -> &'a Key {
        let around = self.known.range::<Key, _>(..=key).next_back();
        around.map(|(_, to)| to).filter(|to| *to > key).unwrap_or(key)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Value>, NotLoaded> {
        if let Some(change) = self.changes.get(key) {
            return Ok(change.clone());
        }
        let key = key.to_vec();
        if *self.known_to(&key) <= key {
            return Err(NotLoaded::Unknown(KeyRange::one(key)));
        }
        Ok(self.rows.get(&key).cloned())
    }

    /// Returns the first row from one key on and before another. `most`: so many are read if it is not known.
    pub(crate) fn first(&self, from: &Key, to: &Key, most: usize) -> Result<Option<(Key, Value)>, NotLoaded> {
        let range = (Bound::Included(from), Bound::Excluded(to));
        let stored = self.rows.range::<Key, _>(range).find(|(key, _)| !self.changes.contains_key(*key));
        let mut changed = self.changes.range::<Key, _>(range);
        let changed = changed.find_map(|(key, value)| value.as_ref().map(|value| (key, value)));
        let first = match (stored, changed) {
            (Some(stored), Some(changed)) => Some(if stored.0 < changed.0 { stored } else { changed }),
            (one, other) => one.or(other),
        };
        let known_to = self.known_to(from);
        // Whatever may be before it is known.
        let is_first = first.is_some_and(|(key, _)| key <= known_to) || known_to >= to;
        if !is_first {
            return Err(NotLoaded::Unknown(KeyRange { from: known_to.clone(), to: to.clone(), most }));
        }
        Ok(first.map(|(key, value)| (key.clone(), value.clone())))
    }

    /// Whether what would be read is known.
    pub(crate) fn knows(&self, wanted: &KeyRange) -> bool {
        let known_to = self.known_to(&wanted.from);
        *known_to >= wanted.to || self.known(wanted).count() >= wanted.most
    }

    /// Returns the rows of a range as far as they are known, as they will be stored, and no more than are asked for.
    pub(crate) fn known<'a>(&'a self, wanted: &'a KeyRange) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        let to = self.known_to(&wanted.from).min(&wanted.to);
        let is_kept = |(key, _): &(&Key, &Value)| !self.changes.contains_key(*key);
        // Nothing is between what begins where it ends.
        let to = to.max(&wanted.from);
        self.rows.range::<Key, _>(&wanted.from..to).filter(is_kept).take(wanted.most)
    }

    /// Changes or removes a row.
    pub(crate) fn set(&mut self, key: Key, value: Option<Value>) {
        self.changes.insert(key, value);
    }

    /// Leaves a row as it is stored.
    pub(crate) fn leave(&mut self, key: &[u8]) {
        self.changes.remove(key);
    }

    /// Returns what is to be stored, in the order of the keys.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (&Key, Option<&Value>)> {
        let is_new = |(key, value): &(&Key, &Option<Value>)| {
            let is_known = *self.known_to(key) > **key;
            !is_known || self.rows.get(*key) != value.as_ref()
        };
        self.changes.iter().filter(is_new).map(|(key, value)| (key, value.as_ref()))
    }

    /// Returns a copy of what is to be stored.
    pub(crate) fn changes(&self) -> Vec<(Key, Option<Value>)> {
        self.changed().map(|(key, value)| (key.clone(), value.cloned())).collect()
    }

    /// The changes are not to be stored.
    pub(crate) fn forget_changes(&mut self) {
        self.changes.clear();
    }

    /// The changes are stored.
    pub(crate) fn commit_changes(&mut self) {
        for (key, value) in std::mem::take(&mut self.changes) {
            self.note(key.clone(), after(&key));
            match value {
                Some(value) => drop(self.rows.insert(key, value)),
                None => drop(self.rows.remove(&key)),
            }
        }
    }

    /// How many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        self.rows.iter().map(|(key, value)| 2 * key.len() + value.len() + 64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        text.as_bytes().into()
    }

    fn wanted(from: &str, to: &str, most: usize) -> KeyRange {
        KeyRange { from: from.into(), to: to.into(), most }
    }

    fn found(keys: &[&str], has_more: bool) -> Found {
        Found { rows: keys.iter().map(|key| ((*key).into(), value(key))).collect(), has_more }
    }

    fn first(row_cache: &RowCache, from: &str, to: &str) -> Result<Option<String>, NotLoaded> {
        let first = row_cache.first(&from.into(), &to.into(), 2)?;
        Ok(first.map(|(key, _)| String::from_utf8(key).unwrap()))
    }

    #[test]
    fn what_is_not_known_is_asked_for_from_where_knowledge_ends() {
        let mut row_cache = RowCache::default();
        assert_eq!(row_cache.get(b"a1"), Err(NotLoaded::Unknown(KeyRange::one("a1".into()))));
        assert_eq!(first(&row_cache, "a", "b"), Err(NotLoaded::Unknown(wanted("a", "b", 2))));
        row_cache.learn(&wanted("a", "b", 2), found(&["a1", "a2"], true));
        assert_eq!(first(&row_cache, "a", "b"), Ok(Some("a1".into())));
        row_cache.set("a1".into(), None);
        assert_eq!(first(&row_cache, "a", "b"), Ok(Some("a2".into())));
        row_cache.set("a2".into(), None);
        assert_eq!(first(&row_cache, "a", "b"), Err(NotLoaded::Unknown(wanted("a2\0", "b", 2))));
        row_cache.set("a3".into(), Some(value("new")));
        // Something may be stored before it.
        assert_eq!(first(&row_cache, "a", "b"), Err(NotLoaded::Unknown(wanted("a2\0", "b", 2))));
        row_cache.learn(&wanted("a2\0", "b", 2), found(&["a4"], false));
        assert_eq!(first(&row_cache, "a", "b"), Ok(Some("a3".into())));
        row_cache.set("a3".into(), None);
        assert_eq!(first(&row_cache, "a", "b"), Ok(Some("a4".into())));
        assert_eq!(row_cache.get(b"a0"), Ok(None));
    }

    #[test]
    fn what_is_stored_is_known_afterwards_and_what_is_not_is_forgotten() {
        let mut row_cache = RowCache::default();
        row_cache.learn(&wanted("a", "b", 9), found(&["a1"], false));
        row_cache.set("a1".into(), None);
        row_cache.set("c".into(), Some(value("c")));
        assert_eq!(row_cache.changes().len(), 2);
        row_cache.forget_changes();
        assert_eq!(first(&row_cache, "a", "b"), Ok(Some("a1".into())));
        row_cache.set("a1".into(), None);
        row_cache.set("c".into(), Some(value("c")));
        row_cache.commit_changes();
        assert_eq!(first(&row_cache, "a", "b"), Ok(None));
        assert_eq!(row_cache.get(b"c"), Ok(Some(value("c"))));
        // What is as it was need not be written.
        row_cache.set("c".into(), Some(value("c")));
        assert_eq!(row_cache.changes(), []);
    }
}
