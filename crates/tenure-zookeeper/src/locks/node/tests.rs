use std::sync::Arc;

use proptest::prelude::*;
use tenure_core::model::claim::Terms;

use super::*;

fn claim(id: u128) -> Claim {
    Claim {
        id: ClaimId::new(id),
        client: ClientId::new(7),
        resource: "r".parse().expect("a name"),
        terms: Arc::new(Terms::of_mutex(Label::from_stored("h/1/p x"))),
        wait: true,
        floor: Token::ZERO,
        floor_forced: false,
        may_be_known: false,
    }
}

fn name(layout: Layout, id: u128, sequence: i32) -> String {
    format!("{}{sequence:010}", layout.prefix(&claim(id)))
}

#[test]
fn a_nodes_name_says_all_that_the_rule_needs() {
    let mine = claim(0xabc);
    let node = name(Layout::Tenure, 0xabc, 12);
    assert_eq!(node, "m-1-1-00000000000000000000000000000abc-0000000000000007-0000000012");
    let seen = Layout::Tenure.seen(vec![node.clone(), "slot-3".to_owned(), "other".to_owned()], None);
    let entry = Entry { about: None, ..Entry::new(&mine, Timestamp::default(), Duration::ZERO) };
    assert_eq!(seen.children, [Child { name: node, sequence: 12, entry }]);
    assert_eq!(seen.slots.iter().map(|slot| slot.number).collect::<Vec<_>>(), [3]);
}

#[test]
fn an_entry_and_its_number_give_the_nodes_name_wherever_the_counter_is() {
    for in_order in [[0, 1, i32::MAX], [i32::MAX, i32::MIN, i32::MIN + 5], [i32::MIN, -1, 0]] {
        let names: Vec<String> =
            in_order.iter().map(|at| name(Layout::Tenure, at.unsigned_abs().into(), *at)).collect();
        let line = Layout::Tenure.seen(names.clone(), None).line();
        let given = |place: &Place| Layout::Tenure.name(&place.entry, place.order).expect("it is ours");
        assert_eq!(line.places().iter().map(given).collect::<Vec<_>>(), names);
        assert_eq!(Layout::Curator.name(&line.places()[0].entry, 1), None, "it may have any prefix");
    }
}

#[test]
fn foreign_names_are_those_of_the_others() {
    let id = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
    let curator = name(Layout::Curator, id, 3);
    assert_eq!(curator, "_c_01234567-89ab-cdef-0123-456789abcdef-lock-0000000003");
    let kazoo = name(Layout::Kazoo, id, 4);
    assert_eq!(kazoo, "0123456789abcdef0123456789abcdef__lock__0000000004");
    for (layout, node) in [(Layout::Curator, curator), (Layout::Kazoo, kazoo)] {
        let seen = layout.seen(vec![node, "something-else".to_owned()], None);
        assert_eq!(seen.children.len(), 1);
        assert!(seen.child(ClaimId::new(id)).is_some());
    }
    // Curator without protection, as its older versions and others have it.
    let plain = vec!["lock-0000000002".to_owned(), "lock-0000000001".to_owned()];
    let seen = Layout::Curator.seen(plain, None);
    let sequences: Vec<i32> = seen.children.iter().map(|child| child.sequence).collect();
    assert_eq!(sequences, [1, 2]);
    assert_ne!(seen.children[0].entry.claim, seen.children[1].entry.claim);
}

#[test]
fn sequences_keep_their_order_where_the_counter_overflows() {
    let in_order = [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1];
    let names = in_order.iter().rev().map(|sequence| name(Layout::Tenure, 1, *sequence)).collect();
    let seen = Layout::Tenure.seen(names, None);
    assert_eq!(seen.children.iter().map(|child| child.sequence).collect::<Vec<_>>(), in_order);
}

#[test]
fn a_change_of_the_capacity_is_about_the_entries_that_were_there() {
    let names = || [5, 6, 7].map(|sequence| name(Layout::Tenure, sequence, sequence as i32)).to_vec();
    let resized = Resized { before: 7, held_before: 6, capacity: 3 };
    let text = write_resized(&resized);
    assert_eq!(text, "1 resized 7 6 3");
    let line = Layout::Tenure.seen(names(), Some(text.as_bytes())).line();
    assert_eq!(line.kind_and_capacity(), Some((Kind::Mutex, 3)));
    for data in ["", "x", "2 resized 7 6 3", "1 resized 7 6"] {
        let line = Layout::Tenure.seen(names(), Some(data.as_bytes())).line();
        assert_eq!(line.kind_and_capacity(), Some((Kind::Mutex, 1)), "{data:?}");
    }
}

#[test]
fn what_is_in_a_node_is_read_as_it_was_written() {
    let mut entry = Entry::new(&claim(3), Timestamp::from_micros(5_000_000), Duration::from_secs(9));
    for value in [None, Some(&b""[..]), Some(&b"a\nb\0"[..])] {
        let content = Content::read(&Content::write(&entry, value));
        assert_eq!(content.entry.as_ref(), Some(&entry));
        assert_eq!(content.value.as_deref(), value);
        assert!(!content.is_broken());
    }
    if let Some(about) = entry.about.as_mut() {
        about.is_broken = true;
    }
    assert!(Content::read(&Content::write(&entry, None)).is_broken());
    let foreign = Content::read(b"192.0.2.1\nx");
    assert!(foreign.entry.is_none() && foreign.value.is_none());
}

proptest! {
    #[test]
    fn whatever_the_counter_is_the_order_is_the_order_of_making(
        start: u32,
        gaps in prop::collection::vec(1_u32..1_000_000, 1..50),
    ) {
        let mut sequence = start;
        let mut sequences = vec![start.cast_signed()];
        for gap in gaps {
            sequence = sequence.wrapping_add(gap);
            sequences.push(sequence.cast_signed());
        }
        let names = sequences.iter().rev().map(|sequence| name(Layout::Tenure, 1, *sequence)).collect();
        let seen = Layout::Tenure.seen(names, None);
        let orders: Vec<u64> = sequences.iter().map(|sequence| seen.order(*sequence)).collect();
        prop_assert!(orders.is_sorted_by(|a, b| a < b), "{orders:?}");
        let read: Vec<i32> = seen.children.iter().map(|child| child.sequence).collect();
        prop_assert_eq!(read, sequences);
    }
}
