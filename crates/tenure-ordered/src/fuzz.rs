//! What reads the pages, heads and rows of queues, for random bytes.

use std::sync::Arc;

use tenure_core::testing::fuzz::Target;

use crate::{KeyRange, Page, Pages, clock_of_head};

/// The readers of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "queue-page", read: page, seeds: pages },
    Target { name: "queue-pages", read: head, seeds: heads },
];

fn page(bytes: &[u8]) {
    let Ok(page) = Page::decode(bytes) else { return };
    assert_eq!(Page::decode(&page.encode()), Ok(page));
}

/// Two pages as a queue gets them from nothing.
fn written() -> (Pages, Vec<Page>) {
    let row = |number| (vec![b'i', number], Some(vec![number; 200].into()));
    let rows: Vec<_> = (0..200).map(row).collect();
    let rewritten = Pages::default().rewrite(&rows, &|_| None, true).expect("nothing is missing");
    (rewritten.pages, rewritten.written.into_iter().map(|(_, page)| (*page).clone()).collect())
}

fn pages() -> Vec<Vec<u8>> {
    written().1.iter().map(Page::encode).collect()
}

fn head(bytes: &[u8]) {
    clock_of_head(bytes);
    let Ok((pages, head)) = Pages::decode(bytes) else { return };
    clock_of_head(&head);
    assert_eq!(
        Pages::decode(&pages.encode(&head)).map(|(pages, head)| pages.encode(&head)),
        Ok(pages.encode(&head))
    );
    let nothing = Arc::new(Page::default());
    for (from, to) in [(b"a", b"z"), (b"i", b"j")] {
        let wanted = KeyRange { from: from.to_vec(), to: to.to_vec(), most: 10 };
        drop(pages.find(&wanted, &|_| None));
        drop(pages.find(&wanted, &|_| Some(nothing.clone())));
    }
    let changes = [(b"i1".to_vec(), Some(vec![1].into())), (b"z".to_vec(), None)];
    pages.load(changes.iter().map(|(key, value)| (key, value.as_ref())));
    drop(pages.rewrite(&changes, &|_| Some(nothing.clone()), true));
}

fn heads() -> Vec<Vec<u8>> {
    // The model's head as it is at first: a clock, and numbers.
    vec![[1; 16].to_vec(), written().0.encode(&[1; 16])]
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
