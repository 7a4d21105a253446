//! What a client knows of one queue's nodes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tenure_ordered::{Found, Key, KeyRange, Missing, Page, Pages, Rewritten, Unread, Value, is_apart};
use zookeeper_client::Stat;

use super::transaction::QueueTransaction;
use super::{OPERATION, TOP_MAX};

/// The pages of a queue are forgotten when they are heavier, in bytes: a client may use many queues.
const KNOWN_MAX: usize = 4 << 20;

/// A queue's head, and the pages that are known.
#[derive(Debug, Default)]
pub(super) struct PageCache {
    /// When the head's node was made; 0: there is none. One that is made anew has other pages by the same numbers.
    pub(super) czxid: i64,
    /// When it was changed last.
    pub(super) mzxid: i64,
    pub(super) version: i32,
    /// The model's head.
    pub(super) head: Value,
    /// How large the node is.
    size: usize,
    pages: Pages,
    known: HashMap<u64, Arc<Page>>,
}

impl PageCache {
    /// Reads a head. What is known of pages is kept.
    pub(super) fn open(known: Option<PageCache>, data: &[u8], stat: &Stat) -> Result<PageCache, Unread> {
        let mut page_cache = known.filter(|page_cache| page_cache.czxid == stat.czxid).unwrap_or_default();
        if page_cache.mzxid != stat.mzxid {
            let (pages, head) = Pages::decode(data)?;
            let there: BTreeSet<u64> = pages.ids().collect();
            page_cache.known.retain(|page, _| there.contains(page));
            (page_cache.czxid, page_cache.mzxid, page_cache.version) = (stat.czxid, stat.mzxid, stat.version);
            (page_cache.pages, page_cache.head, page_cache.size) = (pages, head, data.len());
        }
        Ok(page_cache)
    }

    /// Takes in a change that was made.
    pub(super) fn follow(&mut self, transaction: QueueTransaction, stat: &Stat) {
        let QueueTransaction { head, data, rewritten: Rewritten { pages, written, removed }, .. } =
            transaction;
        for page in removed {
            self.known.remove(&page);
        }
        self.known.extend(written);
        (self.czxid, self.mzxid, self.version) = (stat.czxid, stat.mzxid, stat.version);
        (self.pages, self.head, self.size) = (pages, head, data.len());
    }

    /// Takes in a page that was read.
    pub(super) fn learn(&mut self, page: u64, data: &[u8]) -> Result<(), Unread> {
        self.known.insert(page, Arc::new(Page::decode(data)?));
        Ok(())
    }

    /// Forgets pages if they are too many.
    pub(super) fn shrink(&mut self) {
        if self.known.values().map(|page| page.weight()).sum::<usize>() > KNOWN_MAX {
            self.known.clear();
        }
    }

    pub(super) fn find(&self, wanted: &KeyRange) -> Result<Found, Missing> {
        self.pages.find(wanted, &|page| self.known.get(&page).cloned())
    }

    pub(super) fn rewrite(&self, rows: &[(Key, Option<Value>)], merges: bool) -> Result<Rewritten, Missing> {
        self.pages.rewrite(rows, &|page| self.known.get(&page).cloned(), merges)
    }

    /// Returns how heavy a transaction is that changes rows, at most. `path`: how long the path of a node is.
    pub(super) fn weigh<'a>(
        &self,
        rows: &mut dyn Iterator<Item = (&'a Key, Option<&'a Value>)>,
        path: usize,
    ) -> usize {
        let (mut bytes, mut nodes) = (0, 0);
        let on_pages = rows.filter(|(key, value)| {
            if is_apart(key) {
                (bytes, nodes) = (bytes + value.map_or(0, |value| value.len()), nodes + 1);
            }
            !is_apart(key)
        });
        let load = self.pages.load(on_pages);
        // Two operations more for the head.
        self.size + TOP_MAX + bytes + load.bytes + (nodes + load.nodes + 2) * (path + OPERATION)
    }
}
