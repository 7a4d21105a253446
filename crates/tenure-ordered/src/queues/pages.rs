//! The rows of a queue on pages, for a store that keeps nodes and no ranges: which rows are on which page, and which pages
//! a change writes.
//!
//! A *page* has the rows of a range of keys, in their order, and is never changed: a change writes what it touches as new pages, under
//! numbers that no page had before, and removes the old ones. Which pages there are says [`Pages`], which is stored with the queue's
//! head. So whatever a head names is the queue at one version, and a page that was read once is good for ever.
//!
//! Large payloads are not on pages ([`is_apart`]): each is asked for by its key alone, and so has a node of its own by that
//! key. Else ten thousand of them would be ten thousand entries in each head.
//!
//! A page is split when it is larger than [`PAGE_MAX`], and becomes part of a neighbour when it is smaller than [`PAGE_MIN`]. So a
//! small change writes some kilobytes, and a queue that was large once and is small now has few pages.
//!
//! Rejected: a node for each row, since ZooKeeper lists no more of a range than its names, and of ten thousand that
//! list is larger than an answer may be; and the queue as one value, of which a change of one item writes all.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::row_cache::{Found, Key, KeyRange, Value};

/// A heavier page is split.
const PAGE_MAX: usize = 8 * 1024;
/// A lighter page becomes part of a neighbour.
const PAGE_MIN: usize = 2 * 1024;
/// What a row weighs beside its key and its value: three lengths.
const ROW: usize = 8;
/// What a page weighs in the head beside its key: numbers.
const LEAF: usize = 24;
/// The number of the format of pages and heads.
const FORMAT: u8 = 1;

/// Whether a row is a node of its own, by its key.
pub fn is_apart(key: &[u8]) -> bool {
    key.first() == Some(&b'b')
}

fn weight_of(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ROW
}

/// One row: its key, and what is in it.
type Row = (Key, Value);

/// Some rows, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct StoredRow<'a> {
    /// How much of its key is that of the row before.
    shared: u16,
    #[serde(with = "serde_bytes")]
    rest: &'a [u8],
    #[serde(with = "serde_bytes")]
    value: &'a [u8],
}

fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count().min(usize::from(u16::MAX))
}

fn shared(one: &[u8], other: &[u8]) -> u16 {
    u16::try_from(common(one, other)).unwrap_or(u16::MAX)
}

/// Returns a key of which the first part is another's.
fn key_after(last: &[u8], shared: u16, rest: &[u8]) -> Result<Key, Unread> {
    let shared = last.get(..usize::from(shared)).ok_or(Unread::Damaged)?;
    Ok([shared, rest].concat())
}

/// Why a page or a head cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Another version of tenure wrote it, in a format of this number.
    Format(u8),
    /// It is nothing that tenure writes.
    Damaged,
}

fn body<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Unread> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => postcard::from_bytes(rest).map_err(|_| Unread::Damaged),
        Some((other, _)) => Err(Unread::Format(*other)),
        None => Err(Unread::Damaged),
    }
}

fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![FORMAT]).expect("bytes and numbers can be written into memory")
}

impl Page {
    /// Writes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut last: &[u8] = &[];
        let stored = self.rows.iter().map(|(key, value)| {
            let shared = shared(last, key);
            last = key;
            StoredRow { shared, rest: &key[usize::from(shared)..], value }
        });
        bytes(&stored.collect::<Vec<_>>())
    }

    /// Reads it.
    ///
    /// # Errors
    /// What it is instead.
    pub fn decode(bytes: &[u8]) -> Result<Page, Unread> {
        let stored: Vec<StoredRow<'_>> = body(bytes)?;
        let mut rows: Vec<Row> = Vec::with_capacity(stored.len());
        for StoredRow { shared, rest, value } in stored {
            let key = key_after(rows.last().map_or(&[][..], |(key, _)| key), shared, rest)?;
            rows.push((key, value.into()));
        }
        Ok(Page { rows })
    }

    /// How many bytes it is, at most.
    pub fn weight(&self) -> usize {
        weight(&self.rows)
    }
}

fn weight(rows: &[Row]) -> usize {
    rows.iter().map(|(key, value)| weight_of(key, value)).sum()
}

/// A page as the head knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leaf {
    /// It has all rows from this key on; the first one from the first key there can be.
    from: Key,
    id: u64,
    weight: usize,
    rows: usize,
}

#[derive(Serialize, Deserialize)]
struct StoredHead<'a> {
    #[serde(borrow, with = "serde_bytes")]
    head: &'a [u8],
    next: u64,
    #[serde(borrow)]
    leaves: Vec<StoredLeaf<'a>>,
}

#[derive(Serialize, Deserialize)]
struct StoredLeaf<'a> {
    shared: u16,
    #[serde(with = "serde_bytes")]
    rest: &'a [u8],
    id: u64,
    weight: u32,
    rows: u32,
}

/// Which pages a queue has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    leaves: Vec<Leaf>,
    /// The number of the next page.
    next: u64,
}

/// What a change makes of the pages.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// Which there are now.
    pub pages: Pages,
    /// The new ones.
    pub written: Vec<(u64, Arc<Page>)>,
    /// Those that are not there any more.
    pub removed: Vec<u64>,
}

/// What a change weighs, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// How many bytes of rows are written, and what they add to the head.
    pub bytes: usize,
    /// How many nodes are made or removed.
    pub nodes: usize,
}

/// These pages have to be known first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Vec<u64>);

/// A page that stays, or what becomes of some.
enum Part<'a> {
    Kept(&'a Leaf),
    New { from: Key, rows: Vec<Row>, weight: usize },
}

impl Part<'_> {
    fn weight(&self) -> usize {
        match self {
            Part::Kept(leaf) => leaf.weight,
            Part::New { weight, .. } => *weight,
        }
    }
}

impl Pages {
    /// Writes them, with the queue's head.
    pub fn encode(&self, head: &[u8]) -> Vec<u8> {
        let mut last: &[u8] = &[];
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let leaves = self.leaves.iter().map(|leaf| {
            let shared = shared(last, &leaf.from);
            last = &leaf.from;
            let rest = &leaf.from[usize::from(shared)..];
            StoredLeaf { shared, rest, id: leaf.id, weight: small(leaf.weight), rows: small(leaf.rows) }
        });
        bytes(&StoredHead { head, next: self.next, leaves: leaves.collect() })
    }

    /// Reads them, and the queue's head.
    ///
    /// # Errors
    /// What it is instead.
    pub fn decode(bytes: &[u8]) -> Result<(Pages, Value), Unread> {
        let stored: StoredHead<'_> = body(bytes)?;
        let mut leaves: Vec<Leaf> = Vec::with_capacity(stored.leaves.len());
        for StoredLeaf { shared, rest, id, weight, rows } in stored.leaves {
            let from = key_after(leaves.last().map_or(&[][..], |leaf| &leaf.from), shared, rest)?;
            let large = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
            leaves.push(Leaf { from, id, weight: large(weight), rows: large(rows) });
        }
        Ok((Pages { leaves, next: stored.next }, stored.head.into()))
    }

    /// Returns the numbers of all pages.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.leaves.iter().map(|leaf| leaf.id)
    }

    /// Returns which page a key is on. There must be one.
    fn place(&self, key: &[u8]) -> usize {
        self.leaves.partition_point(|leaf| leaf.from.as_slice() <= key).saturating_sub(1)
    }

    /// Returns the rows that are wanted. `page`: what is known of a page.
    ///
    /// # Errors
    /// Which pages are missing: all that may be needed, and few more.
    pub fn find(
        &self,
        wanted: &KeyRange,
        page: &impl Fn(u64) -> Option<Arc<Page>>,
    ) -> Result<Found, Missing> {
        let (mut rows, mut missing, mut expected) = (Vec::new(), Vec::new(), 0);
        let first = self.place(&wanted.from);
        for (at, leaf) in self.leaves.iter().enumerate().skip(first) {
            if (at > first && leaf.from >= wanted.to) || rows.len() + expected > wanted.most {
                break;
            }
            match page(leaf.id) {
                Some(page) if missing.is_empty() => {
                    let from = page.rows.partition_point(|(key, _)| *key < wanted.from);
                    let to = page.rows.partition_point(|(key, _)| *key < wanted.to).max(from);
                    let room = wanted.most + 1 - rows.len();
                    rows.extend_from_slice(&page.rows[from..to.min(from + room)]);
                }
                known => {
                    missing.extend(known.is_none().then_some(leaf.id));
                    // How many of the first one's rows are before what is wanted is not known.
                    expected += if at == first { 0 } else { leaf.rows };
                }
            }
        }
        if !missing.is_empty() {
            return Err(Missing(missing));
        }
        let has_more = rows.len() > wanted.most;
        rows.truncate(wanted.most);
        Ok(Found { rows, has_more })
    }

    /// Returns what a change weighs, at most, if no pages are merged. In the order of their keys, and none that is apart.
    pub fn load<'a>(&self, changes: impl Iterator<Item = (&'a Key, Option<&'a Value>)>) -> Load {
        let (mut load, mut last) = (Load::default(), None);
        for (key, value) in changes {
            load.bytes += value.map_or(0, |value| weight_of(key, value));
            let place = self.place(key);
            if last != Some(place) {
                last = Some(place);
                let leaf = self.leaves.get(place).map_or(0, |leaf| leaf.weight);
                load.bytes += leaf + LEAF + key.len();
                load.nodes += 2;
            }
        }
        // No two parts of what is split are together lighter than a page, so it becomes no more than this.
        let split = 2 * load.bytes / PAGE_MAX + 1;
        load.nodes += split;
        load.bytes += split * (LEAF + 64);
        load
    }

    /// Applies changes, in the order of their keys, none of which is apart. `merges`: pages that became small become part of others.
    ///
    /// # Errors
    /// Which pages are missing.
    pub fn rewrite(
        &self,
        changes: &[(Key, Option<Value>)],
        page: &impl Fn(u64) -> Option<Arc<Page>>,
        merges: bool,
    ) -> Result<Rewritten, Missing> {
        let mut touched: BTreeMap<usize, Vec<&(Key, Option<Value>)>> = BTreeMap::new();
        for change in changes {
            debug_assert!(!is_apart(&change.0), "it has a node of its own");
            touched.entry(self.place(&change.0)).or_default().push(change);
        }
        let mut missing = Vec::new();
        let mut parts = Vec::with_capacity(self.leaves.len() + 1);
        for (at, leaf) in self.leaves.iter().enumerate() {
            let Some(changes) = touched.get(&at) else {
                parts.push(Part::Kept(leaf));
                continue;
            };
            match page(leaf.id) {
                Some(page) => parts.push(changed(leaf, &page, changes)),
                None => missing.push(leaf.id),
            }
        }
        if !missing.is_empty() {
            return Err(Missing(missing));
        }
        if self.leaves.is_empty() {
            let rows = apply(&[], &touched.into_values().flatten().collect::<Vec<_>>());
            parts.push(Part::New { from: Key::new(), weight: weight(&rows), rows });
        }
        parts.retain(|part| !matches!(part, Part::New { rows, .. } if rows.is_empty()));
        if merges {
            parts = merge(parts, page)?;
        }
        Ok(self.number(parts))
    }

    /// Gives numbers to what is new.
    fn number(&self, parts: Vec<Part<'_>>) -> Rewritten {
        let (mut pages, mut written) = (Pages { leaves: Vec::new(), next: self.next }, Vec::new());
        for part in parts {
            match part {
                Part::Kept(leaf) => pages.leaves.push(leaf.clone()),
                Part::New { from, rows, weight } => {
                    let mut last: Option<Key> = None;
                    for rows in split(rows, weight) {
                        let from =
                            last.as_ref().map_or_else(|| from.clone(), |last| between(last, &rows[0].0));
                        last = rows.last().map(|(key, _)| key.clone());
                        let page = Page { rows };
                        let (id, weight, rows) = (pages.next, page.weight(), page.rows.len());
                        pages.leaves.push(Leaf { from, id, weight, rows });
                        written.push((id, Arc::new(page)));
                        pages.next += 1;
                    }
                }
            }
        }
        if let Some(first) = pages.leaves.first_mut() {
            first.from.clear();
        }
        let kept: std::collections::BTreeSet<u64> = pages.ids().collect();
        let removed = self.ids().filter(|id| !kept.contains(id)).collect();
        Rewritten { pages, written, removed }
    }
}

fn changed<'a>(leaf: &'a Leaf, page: &Page, changes: &[&(Key, Option<Value>)]) -> Part<'a> {
    let rows = apply(&page.rows, changes);
    if rows == page.rows {
        return Part::Kept(leaf);
    }
    Part::New { from: leaf.from.clone(), weight: weight(&rows), rows }
}

/// Applies changes to rows; both in the order of their keys.
fn apply(rows: &[Row], changes: &[&(Key, Option<Value>)]) -> Vec<Row> {
    let mut all: BTreeMap<&Key, &Value> = rows.iter().map(|(key, value)| (key, value)).collect();
    for (key, value) in changes.iter().copied() {
        match value {
            Some(value) => drop(all.insert(key, value)),
            None => drop(all.remove(key)),
        }
    }
    all.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Makes what became small a part of the lighter neighbour.
fn merge<'a>(
    mut parts: Vec<Part<'a>>,
    page: &impl Fn(u64) -> Option<Arc<Page>>,
) -> Result<Vec<Part<'a>>, Missing> {
    let mut missing = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let is_small = matches!(&parts[at], Part::New { weight, .. } if *weight < PAGE_MIN);
        if !is_small || parts.len() == 1 {
            at += 1;
            continue;
        }
        let weigh = |at: usize| parts.get(at).map_or(usize::MAX, Part::weight);
        let left = match at.checked_sub(1) {
            Some(before) if weigh(before) <= weigh(at + 1) => before,
            _ => at,
        };
        let is_unknown = |part: &Part<'_>| match part {
            Part::Kept(leaf) => page(leaf.id).is_none().then_some(leaf.id),
            Part::New { .. } => None,
        };
        let unknown: Vec<u64> = parts[left..left + 2].iter().filter_map(is_unknown).collect();
        if !unknown.is_empty() {
            missing.extend(unknown);
            at += 1;
            continue;
        }
        let two: Vec<Part<'a>> = parts.drain(left..left + 2).collect();
        let from = match &two[0] {
            Part::Kept(leaf) => leaf.from.clone(),
            Part::New { from, .. } => from.clone(),
        };
        let rows: Vec<Row> = two
            .into_iter()
            .flat_map(|part| match part {
                Part::Kept(leaf) => page(leaf.id).map_or(Vec::new(), |page| page.rows.clone()),
                Part::New { rows, .. } => rows,
            })
            .collect();
        parts.insert(left, Part::New { from, weight: weight(&rows), rows });
        at = left;
    }
    if missing.is_empty() { Ok(parts) } else { Err(Missing(missing)) }
}

/// Splits rows into pages of about one weight.
fn split(rows: Vec<Row>, mut left: usize) -> Vec<Vec<Row>> {
    let mut pages: Vec<Vec<Row>> = Vec::new();
    let (mut page, mut has) = (Vec::new(), 0);
    // What one page should have of what is left.
    let fair = |left: usize| left.div_ceil(left.div_ceil(PAGE_MAX).max(1));
    let mut share = fair(left);
    for row in rows {
        let weight = weight_of(&row.0, &row.1);
        if !page.is_empty() && (has + weight > PAGE_MAX || has >= share) {
            pages.push(std::mem::take(&mut page));
            left -= has;
            has = 0;
            share = fair(left);
        }
        has += weight;
        page.push(row);
    }
    pages.extend((!page.is_empty()).then_some(page));
    pages
}

/// Returns the shortest key that is larger than one, and not larger than another.
fn between(last: &[u8], first: &[u8]) -> Key {
    first[..(common(last, first) + 1).min(first.len())].to_vec()
}

#[cfg(test)]
mod tests;
