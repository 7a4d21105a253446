use std::time::Duration;

use tenure_core::model::claim::Terms;

use super::*;

const NAMES: [&str; 9] = ["a", "a ", "a b", "a!", "a/b", "a/b/c", "ab", "b", "schlüssel 鍵/🔑"];

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn keys() -> Keys {
    Keys::new("tenure/", Layout::Tenure)
}

fn entry(claim: u128, kind: Kind, capacity: u32) -> Entry {
    let terms = Terms { kind, capacity, ..Terms::of_mutex(Label::from_stored("us v1")) };
    Entry::of_terms(
        ClaimId::new(claim),
        ClientId::new(9),
        &terms,
        Timestamp::from_micros(5000),
        Duration::from_secs(3),
    )
}

fn stored(key: Vec<u8>, value: Vec<u8>, revision: i64) -> KeyValue {
    KeyValue { key, value, create_revision: revision, mod_revision: revision, version: 1, lease: 1 }
}

fn within(range: &RangeRequest, key: &[u8]) -> bool {
    range.key[..] <= *key && *key < range.range_end[..]
}

#[test]
fn no_names_keys_are_among_those_of_another() {
    let claim = ClaimId::new(7);
    let of = |keys: &Keys, name: &Name| {
        let in_line =
            [keys.place(name, claim), keys.rest(name, claim), keys.slot(name, 3), keys.resized(name)];
        let in_value = [keys.held_value(name, claim), keys.kept_value(name), keys.fresh_value(name)];
        (in_line, in_value)
    };
    for one in NAMES {
        for other in NAMES {
            let (in_line, in_value) = of(&keys(), &name(other));
            let line = in_line.iter().all(|key| within(&range(keys().line(&name(one))), key));
            let value = in_value.iter().all(|key| within(&range(keys().value(&name(one))), key));
            assert_eq!((line, value), (one == other, one == other), "{one:?} {other:?}");
            let any = in_line.iter().chain(&in_value).any(|key| within(&range(keys().line(&name(one))), key));
            assert_eq!(any, one == other, "{one:?} {other:?}");
        }
        assert!(!within(&range(keys().line(&name(one))), &keys().done(claim)));
    }
}

#[test]
fn keys_stand_in_the_order_of_their_names() {
    let mut names = NAMES.map(name);
    names.sort_unstable();
    let lines: Vec<Vec<u8>> = names.iter().map(|name| keys().place(name, ClaimId::new(u128::MAX))).collect();
    assert!(lines.is_sorted(), "{lines:?}");
}

#[test]
fn a_name_is_read_off_each_of_its_keys() {
    for text in NAMES {
        let (of, claim) = (name(text), ClaimId::new(1));
        for key in
            [keys().place(&of, claim), keys().rest(&of, claim), keys().slot(&of, 9), keys().resized(&of)]
        {
            assert_eq!(keys().name_in("line", &key), Some(of.clone()));
            assert_eq!(keys().name_in("value", &key), None);
        }
        for key in [keys().held_value(&of, claim), keys().kept_value(&of), keys().fresh_value(&of)] {
            assert_eq!(keys().name_in("value", &key), Some(of.clone()));
        }
    }
    for key in ["", "tenure/", "tenure/line/", "tenure/line/a", "other/line/a\x1fc1", "tenure/line/\x1fc1"] {
        assert_eq!(keys().name_in("line", key.as_bytes()), None, "{key:?}");
    }
    assert_eq!(keys().name_in("line", b"tenure/line/\xff\x1fc1"), None);
}

#[test]
fn names_of_etcdctl_are_all_before_the_last_slash() {
    let keys = Keys::new("", Layout::Etcdctl);
    assert_eq!(keys.place(&name("a/b"), ClaimId::new(1)), format!("a/b/{}", ClaimId::new(1)).into_bytes());
    assert_eq!(keys.name_in("line", b"a/b/694d"), Some(name("a/b")));
    assert_eq!(keys.name_in("line", b"no-slash"), None);
    // As with `etcdctl lock`: a client that locks `a` waits for those that lock `a/b`.
    assert!(within(&range(keys.line(&name("a"))), &keys.place(&name("a/b"), ClaimId::new(1))));
    let prefixed = Keys::new("locks/", Layout::Etcdctl);
    assert_eq!(prefixed.line(&name("a")), b"locks/a/");
    assert_eq!(prefixed.name_in("line", b"locks/a/1"), Some(name("a")));
}

#[test]
fn a_line_is_read_as_it_was_written() {
    let (of, pool) = (name("a/b"), |claim| entry(claim, Kind::SlotPool, 4));
    let resized = Resized { before: 40, held_before: 21, capacity: 2 };
    let found = [
        stored(keys().place(&of, ClaimId::new(1)), pool(1).encode().into_bytes(), 20),
        stored(keys().place(&of, ClaimId::new(2)), pool(2).encode().into_bytes(), 30),
        stored(keys().rest(&of, ClaimId::new(3)), write_rest(10, Token::new(11), Some(1), &pool(3)), 31),
        stored(keys().rest(&of, ClaimId::new(4)), write_rest(12, Token::new(12), None, &pool(4)), 32),
        stored(keys().slot(&of, 3), ClaimId::new(1).to_string().into_bytes(), 21),
        stored(keys().resized(&of), write_resized(&resized), 33),
    ];
    let line = keys().read_line(&of, &found);
    assert_eq!(line.kind_and_capacity(), Some((Kind::SlotPool, 2)));
    let orders: Vec<u64> = line.places().iter().map(|place| place.order).collect();
    let rests: Vec<_> = line.rests().iter().map(|rest| (rest.order, rest.slot, rest.entry.claim)).collect();
    assert_eq!(
        (orders, line.slots()),
        (vec![20, 30], &[TakenSlot { number: 3, claim: ClaimId::new(1), token: Token::new(21) }][..])
    );
    assert_eq!(rests, [(10, Some(1), ClaimId::new(3)), (12, None, ClaimId::new(4))]);
    let tokens: Vec<_> = line.rests().iter().map(|rest| rest.entry.token()).collect();
    assert_eq!(tokens, [Token::new(11), Token::new(12)]);
    let mut expected = pool(1);
    if let Some(about) = &mut expected.about {
        // It has been so since it took its slot.
        about.token = Token::new(21);
    }
    assert_eq!(line.places()[0].entry, expected);
}

#[test]
fn what_somebody_else_put_there_is_in_the_way_as_a_mutex() {
    let of = name("a");
    for (key, value) in [(b"a/694d".to_vec(), Vec::new()), (b"a/b/1".to_vec(), b"\xff\x00".to_vec())] {
        let keys = Keys::new("", Layout::Etcdctl);
        let line = keys.read_line(&of, &[stored(key, value, 5)]);
        assert_eq!(line.kind_and_capacity(), Some((Kind::Mutex, 1)));
        let busy = line.busy(Timestamp::from_micros(9));
        assert!(busy.holder.is_some_and(|label| label.to_string().contains("another client")));
    }
    // Damaged entries hold until they go; other damage is passed over.
    let damaged = [
        stored(keys().place(&of, ClaimId::new(1)), b"?".to_vec(), 1),
        stored(keys().rest(&of, ClaimId::new(2)), b"x".to_vec(), 2),
        stored(keys().slot(&of, 1), b"x".to_vec(), 3),
        stored(keys().resized(&of), b"1 2".to_vec(), 4),
    ];
    let line = keys().read_line(&of, &damaged);
    assert_eq!((line.places().len(), line.rests().len(), line.slots().len()), (1, 0, 0));
}

#[test]
fn a_value_is_read_as_it_was_written() {
    let (of, fresh) = (name("a"), Duration::from_secs(7));
    let held = stored(
        keys().held_value(&of, ClaimId::new(1)),
        write_value(Token::new(5), Duration::ZERO, b"x\ny"),
        8,
    );
    let kept = stored(keys().kept_value(&of), write_value(Token::new(4), fresh, b""), 7);
    let mark = stored(keys().fresh_value(&of), Vec::new(), 7);
    let read = |keys_found: &[KeyValue]| keys().read_value(&of, keys_found);
    let newest = read(&[held.clone(), kept.clone(), mark.clone()]).unwrap();
    assert_eq!(
        (&newest.bytes[..], newest.token, newest.fresh_for),
        (&b"x\ny"[..], Token::new(5), Duration::ZERO)
    );
    let fresh_one = read(&[kept.clone(), mark.clone()]).unwrap();
    assert_eq!((&fresh_one.bytes[..], fresh_one.fresh_for), (&b""[..], fresh));
    assert_eq!(read(&[kept]).unwrap().fresh_for, Duration::ZERO, "the mark of freshness has gone");
    assert_eq!(read(&[mark]), None);
    let unknown = KeyValue { value: b"2 5 0\nx".to_vec(), ..held };
    assert_eq!(read(&[unknown]), None, "a format of the future");
}

/// What is stored is an API: other versions read it.
#[test]
fn stored_texts_stay_as_they_are() {
    let of = name("a/b");
    let claim = ClaimId::new(0xab);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let id = "000000000000000000000000000000ab";
    assert_eq!(text(keys().place(&of, claim)), format!("tenure/line/a/b\x1fc{id}"));
    assert_eq!(text(keys().rest(&of, claim)), format!("tenure/line/a/b\x1fr{id}"));
    assert_eq!(text(keys().slot(&of, 12)), "tenure/line/a/b\x1fs0000012");
    assert_eq!(text(keys().resized(&of)), "tenure/line/a/b\x1fz");
    assert_eq!(text(keys().held_value(&of, claim)), format!("tenure/value/a/b\x1fh{id}"));
    assert_eq!(text(keys().kept_value(&of)), "tenure/value/a/b\x1fk");
    assert_eq!(text(keys().fresh_value(&of)), "tenure/value/a/b\x1fl");
    assert_eq!(text(keys().done(claim)), format!("tenure/done/{id}"));
    assert_eq!(text(write_value(Token::new(5), Duration::from_millis(1500), b"x")), "1 5 1500\nx");
    assert_eq!(text(write_resized(&Resized { before: 3, held_before: 2, capacity: 1 })), "3 2 1");
    let rest = text(write_rest(10, Token::new(11), Some(1), &entry(0xab, Kind::Mutex, 1)));
    assert_eq!(rest.split(' ').take(3).collect::<Vec<_>>(), ["10", "11", "1"]);
    assert!(text(write_rest(10, Token::new(10), None, &entry(0xab, Kind::Mutex, 1))).starts_with("10 10 - "));
}
