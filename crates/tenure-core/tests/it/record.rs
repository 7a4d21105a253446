//! The stored form of a record: it comes back as it went, and nothing else is taken for one.
//!
//! Other versions of tenure read what this one writes. If the golden bytes change, the format needs a new
//! number and a reader for the old one.

use std::time::Duration;

use proptest::prelude::*;
use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{HoldLimits, Kind, Label};
use tenure_core::model::record::{DecodeError, Head, Hold, PlainRecord, Record, Value, Waiter};
use tenure_core::model::token::Token;

use crate::world::{World, client_of, id, shape, wild_moves};

/// Format 1, field by field: numbers are varints, and what may be missing begins with 00 or 01.
const GOLDEN: &str = "
    # the format
    01
    # a head: kind, capacity, last token, used, waiting, next place, fresh slots, idle since
    01 03 e807 8180f9c0c1c48203 02 01 2a ad02 fffff8c0c1c48203
    # two holds: claim, client, weight, slot, token, granted, expires, confirmed,
    # ttl, max_hold, min_hold, lock_delay, label
    02
    01ef9bafcdf8acd19101 03 01 0102 8080f9c0c1c48203 8080f9c0c1c48203 8087a0cfc1c48203 01
    1e00 015a80cab5ee01 0100 0200 16686f73742f31372f6261636b7570206e696768746c79
    00 03 01 01ac02 8180f9c0c1c48203 8080f9c0c1c48203 8087a0cfc1c48203 00
    1e00 00 0000 0000 00
    # one waiter: place, claim, client, weight, expires, ttl, max_hold, min_hold, lock_delay, label,
    # unless_fresh
    01
    29 02 02 01 c0c38cc8c1c48203 1400 00 0000 0000 0f68c3b673742f31382f6261636b7570 01
    # one finished claim, until
    01 ffffffffffffffffff01 808ec7ddc1c48203
    # one free slot
    01 05
    # a value: bytes, token, fresh until, keep until
    01 02cafe 8080f9c0c1c48203 808ec7ddc1c48203 01809c95fac1c48203
";

#[test]
fn format_1_is_written_and_read_as_it_always_was() {
    let lines = GOLDEN.lines().filter(|line| !line.trim_start().starts_with('#'));
    let digits: Vec<u8> = lines.flat_map(str::bytes).filter(|byte| !byte.is_ascii_whitespace()).collect();
    let bytes: Vec<u8> = digits.chunks(2).map(hex_pair).collect();
    let record = sample();
    assert_eq!(hex(&record.encode(Vec::new())), hex(&bytes));
    assert_eq!(PlainRecord::decode(&bytes), Ok(record));
}

#[test]
fn what_an_empty_record_is_stored_as() {
    let bytes = PlainRecord::default().encode(Vec::new());
    assert_eq!(hex(&bytes), "01000000000000");
    assert_eq!(PlainRecord::decode(&bytes), Ok(PlainRecord::default()));
}

#[test]
fn the_stored_form_is_appended_to_what_is_there() {
    let bytes = PlainRecord::default().encode(vec![0xaa, 0xbb]);
    assert_eq!(hex(&bytes), "aabb01000000000000");
}

#[test]
fn nothing_is_not_a_record() {
    assert_eq!(PlainRecord::decode(&[]), Err(DecodeError::Damaged));
}

proptest! {
    #[test]
    fn a_record_comes_back_as_it_was_stored((kind, capacity) in shape(), moves in wild_moves(40)) {
        let record = played(kind, capacity, &moves);
        let bytes = record.encode(Vec::new());
        prop_assert_eq!(PlainRecord::decode(&bytes), Ok(record.clone()));
        let mut copy = PlainRecord::default();
        let Ok(()) = record.copy_to(&mut copy);
        prop_assert_eq!(copy, record);
    }

    #[test]
    fn another_format_is_refused(format in any::<u8>(), rest in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assume!(format != 1);
        let bytes = [&[format][..], &rest].concat();
        prop_assert_eq!(PlainRecord::decode(&bytes), Err(DecodeError::Format(format)));
    }

    #[test]
    fn a_record_that_was_cut_or_grew_is_refused(
        (kind, capacity) in shape(),
        moves in wild_moves(20),
        cut in any::<prop::sample::Index>(),
        more in prop::collection::vec(any::<u8>(), 1..4),
    ) {
        let bytes = played(kind, capacity, &moves).encode(Vec::new());
        prop_assert_eq!(PlainRecord::decode(&bytes[..cut.index(bytes.len())]), Err(DecodeError::Damaged));
        prop_assert_eq!(PlainRecord::decode(&[bytes, more].concat()), Err(DecodeError::Damaged));
    }

    #[test]
    fn no_bytes_are_too_strange_to_be_looked_at(
        (kind, capacity) in shape(),
        moves in wild_moves(20),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = played(kind, capacity, &moves).encode(Vec::new());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // Whatever it is taken for, it is taken for the same once more. A changed byte need not be noticed.
        for bytes in [bytes, [&[1][..], &noise].concat()] {
            if let Ok(record) = PlainRecord::decode(&bytes) {
                prop_assert_eq!(PlainRecord::decode(&record.encode(Vec::new())), Ok(record));
            }
        }
    }
}

fn played(kind: Kind, capacity: u32, moves: &[crate::world::Move]) -> PlainRecord {
    let mut world = World::new(kind, capacity);
    for next in moves {
        world.play(next);
    }
    world.record
}

/// A record with something in each of its fields.
fn sample() -> PlainRecord {
    let hold = Hold {
        claim: Some(id(0x0123_4567_89ab_cdef)),
        client: client_of(7),
        weight: 1,
        slot: Some(2),
        token: Token::new(1_700_000_000_000_000),
        granted_at: Timestamp::from_micros(1_700_000_000_000_000),
        expires_at: Timestamp::from_micros(1_700_000_030_000_000),
        is_confirmed: true,
        ttl: Duration::from_secs(30),
        limits: HoldLimits {
            max_hold: Some(Duration::from_millis(90_500)),
            min_hold: Duration::from_secs(1),
            lock_delay: Duration::from_secs(2),
        },
        label: Label::from_stored("host/17/backup nightly"),
    };
    let rest = Hold {
        claim: None,
        slot: Some(300),
        token: Token::new(1_700_000_000_000_001),
        is_confirmed: false,
        limits: HoldLimits::default(),
        label: Label::from_stored(""),
        ..hold.clone()
    };
    let waiter = Waiter {
        place: 41,
        claim: id(2),
        client: client_of(2),
        weight: 1,
        expires_at: Timestamp::from_micros(1_700_000_015_000_000),
        ttl: Duration::from_secs(20),
        limits: HoldLimits::default(),
        label: Label::from_stored("höst/18/backup"),
        unless_fresh: true,
    };
    let head = Head {
        kind: Kind::SlotPool,
        capacity: 1_000,
        last_token: rest.token,
        used: 2,
        waiting: 1,
        next_place: 42,
        fresh_slots: 301,
        idle_since: Timestamp::from_micros(1_699_999_999_999_999),
    };
    let value = Value {
        bytes: [0xca, 0xfe].into(),
        token: hold.token,
        fresh_until: Timestamp::from_micros(1_700_000_060_000_000),
        keep_until: Some(Timestamp::from_micros(1_700_000_120_000_000)),
    };
    let mut record = PlainRecord::default();
    let Ok(()) = record.set_head(head);
    let Ok(()) = record.put_hold(rest);
    let Ok(()) = record.put_hold(hold);
    let Ok(()) = record.put_waiter(waiter);
    let Ok(()) = record.put_finished(id(u64::MAX), Timestamp::from_micros(1_700_000_060_000_000));
    let Ok(()) = record.push_free_slot(5);
    let Ok(()) = record.set_value(Some(value));
    record
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hex_pair(pair: &[u8]) -> u8 {
    let text = str::from_utf8(pair).expect("hexadecimal is ASCII");
    u8::from_str_radix(text, 16).expect("two hexadecimal digits")
}
