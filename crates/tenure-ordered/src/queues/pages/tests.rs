use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Pages in memory, and what should be on them.
#[derive(Default)]
struct Shelf {
    pages: Pages,
    stored: HashMap<u64, Vec<u8>>,
    expected: BTreeMap<Key, Value>,
    /// Every number that a page ever had.
    used: Vec<u64>,
}

impl Shelf {
    fn page(&self, id: u64) -> Option<Arc<Page>> {
        Some(Arc::new(Page::decode(self.stored.get(&id)?).expect("as it was written")))
    }

    fn change(&mut self, changes: BTreeMap<Key, Option<Value>>) {
        let changes: Vec<_> = changes.into_iter().collect();
        let load = self.pages.load(changes.iter().map(|(key, value)| (key, value.as_ref())));
        let plain = self.pages.rewrite(&changes, &|id| self.page(id), false).expect("all is known");
        let bytes: usize = plain.written.iter().map(|(_, page)| page.encode().len()).sum();
        let grown = plain.pages.encode(&[]).len().saturating_sub(self.pages.encode(&[]).len());
        assert!(bytes + grown <= load.bytes, "{bytes} and {grown} bytes, {load:?} were expected");
        assert!(plain.written.len() + plain.removed.len() <= load.nodes, "{load:?}");
        let rewritten = self.pages.rewrite(&changes, &|id| self.page(id), true).expect("all is known");
        for id in rewritten.removed {
            self.stored.remove(&id).expect("it was there");
        }
        for (id, page) in rewritten.written {
            assert!(!self.used.contains(&id), "a page has the number of another");
            self.used.push(id);
            assert!(page.encode().len() <= page.weight() + 3, "it is heavier than it says");
            assert!(page.weight() <= PAGE_MAX || page.rows.len() == 1, "a page is too large");
            self.stored.insert(id, page.encode());
        }
        let (pages, head) = Pages::decode(&rewritten.pages.encode(b"head")).expect("as it was written");
        assert_eq!((&pages, &*head), (&rewritten.pages, &b"head"[..]));
        self.pages = pages;
        for (key, value) in changes {
            match value {
                Some(value) => drop(self.expected.insert(key, value)),
                None => drop(self.expected.remove(&key)),
            }
        }
    }

    fn check(&self, wanted: &KeyRange) {
        let found = self.pages.find(wanted, &|id| self.page(id)).expect("all is known");
        let mut rows = self.expected.range(wanted.from.clone()..wanted.to.clone());
        let expected: Vec<Row> =
            rows.by_ref().take(wanted.most).map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(found.rows, expected);
        assert_eq!(found.has_more, rows.next().is_some());
        // A load of what is missing does not fetch much more, nor is it needed often.
        let mut loaded: Vec<u64> = Vec::new();
        let known = |id, loaded: &[u64]| self.page(id).filter(|_| loaded.contains(&id));
        let mut rounds = 0;
        while let Err(Missing(missing)) = self.pages.find(wanted, &|id| known(id, &loaded)) {
            assert!(missing.iter().all(|id| !loaded.contains(id)));
            loaded.extend(missing);
            rounds += 1;
        }
        assert!(rounds <= 3, "{rounds} rounds for {wanted:?}");
    }

    fn check_all(&self) {
        let all = KeyRange { from: Key::new(), to: vec![0xff], most: usize::MAX - 1 };
        let found = self.pages.find(&all, &|id| self.page(id)).expect("all is known");
        assert!(found.rows.iter().map(|(key, value)| (key, value)).eq(self.expected.iter()));
        let ids: Vec<u64> = self.pages.ids().collect();
        assert_eq!(ids.len(), self.stored.len(), "a page is left behind");
        assert!(ids.iter().all(|id| self.stored.contains_key(id)));
        assert!(self.pages.leaves.windows(2).all(|two| two[0].from < two[1].from));
        let weight: usize = self.expected.iter().map(|(key, value)| weight_of(key, value)).sum();
        assert!(ids.len() <= 1 + weight / (PAGE_MIN / 2), "{} pages for {weight} bytes", ids.len());
    }
}

fn value(size: usize, fill: u8) -> Value {
    vec![fill; size].into()
}

fn key() -> impl Strategy<Value = Key> {
    // As the rows': a letter and a number, a name, or both.
    let number = (0u64..400).prop_map(|number| format!("i{number:016x}"));
    let name = "[clnp][ab]{0,3}[0-9]{0,2}";
    prop_oneof![number, name].prop_map(String::into_bytes)
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0usize..80, 2 => 80usize..1300]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn pages_have_the_rows_that_a_map_has(
        rounds in prop::collection::vec(
            (
                prop::collection::btree_map(key(), prop::option::weighted(0.6, (size(), any::<u8>())), 1..60),
                (key(), key(), 0usize..40),
            ),
            1..40,
        )
    ) {
        let mut shelf = Shelf::default();
        for (changes, (from, to, most)) in rounds {
            let changes = changes.into_iter();
            shelf.change(changes.map(|(key, new)| (key, new.map(|(size, fill)| value(size, fill)))).collect());
            let (from, to) = (from.clone().min(to.clone()), from.max(to));
            shelf.check(&KeyRange { from: from.clone(), to, most });
            shelf.check(&KeyRange::one(from));
            shelf.check_all();
        }
        let all = shelf.expected.keys().map(|key| (key.clone(), None)).collect();
        shelf.change(all);
        prop_assert_eq!(shelf.pages.leaves.len(), 0, "an empty queue has pages");
    }

    #[test]
    fn what_is_no_page_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        // Whatever it is, nothing panics.
        drop((Page::decode(&bytes), Pages::decode(&bytes)));
    }
}

#[test]
fn a_small_change_of_a_large_queue_writes_little_and_asks_for_little() {
    let mut shelf = Shelf::default();
    for part in 0..100u64 {
        let rows =
            (0..100).map(|row| (format!("i{:016x}", part * 100 + row).into_bytes(), Some(value(60, 7))));
        shelf.change(rows.collect());
    }
    shelf.check_all();
    assert!(shelf.pages.leaves.len() > 100, "{}", shelf.pages.leaves.len());
    let head = shelf.pages.encode(&[]).len();
    assert!(head < 30 * shelf.pages.leaves.len(), "{head} bytes for {} pages", shelf.pages.leaves.len());
    let change = [(format!("i{:016x}", 5000).into_bytes(), Some(value(60, 8)))];
    let missing = shelf.pages.rewrite(&change, &|_| None, true).expect_err("nothing is known");
    assert_eq!(missing.0.len(), 1);
    let rewritten = shelf.pages.rewrite(&change, &|id| shelf.page(id), true).expect("all is known");
    assert_eq!((rewritten.written.len(), rewritten.removed), (1, missing.0));
    let same = [(change[0].0.clone(), Some(value(60, 7)))];
    let rewritten = shelf.pages.rewrite(&same, &|id| shelf.page(id), true).expect("all is known");
    assert_eq!(
        (rewritten.written.len(), rewritten.removed.len()),
        (0, 0),
        "what is as it was is not written"
    );
}

#[test]
fn a_row_that_is_larger_than_a_page_is_alone_on_one() {
    let mut shelf = Shelf::default();
    let rows = [("i1", 10), ("i2", 20_000), ("i3", 10)];
    shelf.change(rows.map(|(key, size)| (key.into(), Some(value(size, 1)))).into());
    let on = |key: &str| shelf.pages.leaves[shelf.pages.place(key.as_bytes())].rows;
    assert_eq!((shelf.pages.leaves.len(), on("i2")), (3, 1));
}

#[test]
fn another_format_is_told_from_what_is_damaged() {
    let mut head = Pages::default().encode(b"head");
    assert!(Pages::decode(&head).is_ok());
    head[0] = 9;
    assert_eq!(Pages::decode(&head).map(|_| ()), Err(Unread::Format(9)));
    assert_eq!(Pages::decode(&[]).map(|_| ()), Err(Unread::Damaged));
    assert_eq!(Pages::decode(&[1, 200]).map(|_| ()), Err(Unread::Damaged));
    let key =
        postcard::to_extend(&vec![StoredRow { shared: 3, rest: b"a", value: b"" }], vec![FORMAT]).unwrap();
    assert_eq!(Page::decode(&key), Err(Unread::Damaged), "a key before which there is none");
}

/// Both formats, byte by byte: other versions of us read them.
#[test]
fn what_is_stored_can_be_read_by_other_versions() {
    let rows: Vec<(Key, Option<Value>)> =
        [("i1", "one"), ("i2", "two")].map(|(key, value)| (key.into(), Some(value.as_bytes().into()))).into();
    let rewritten = Pages::default().rewrite(&rows, &|_| None, true).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        hex(&rewritten.written[0].1.encode()),
        "01020002693103".to_owned() + "6f6e65" + "01013203" + "74776f"
    );
    assert_eq!(hex(&rewritten.pages.encode(b"top")), "0103746f7001010000001a02");
}
