//! What reads the rows of a database, for random bytes.

use tenure_core::testing::fuzz::Target;

use crate::database::Row;
use crate::locks::load::{entry, moment, stored};

/// The readers of this crate.
pub const TARGETS: &[Target] = &[Target { name: "sql-row", read: row, seeds: rows }];

/// A row for each line, its columns between tabs; `-` is NULL.
fn row(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        let row: Row = line.split('\t').map(|column| (column != "-").then(|| column.to_owned())).collect();
        drop(entry(&row));
        drop(stored(&row));
        drop(moment(&[vec![row]], 0));
    }
}

fn rows() -> Vec<Vec<u8>> {
    let claim = format!("{:032x}", 1);
    let hold = [
        "72",
        "0",
        "17",
        &claim,
        "7",
        "1",
        "-",
        "1800000000000000",
        "1800000010000000",
        "1",
        "10000000",
        "-",
        "0",
        "0",
        "686f7374",
        "0",
    ];
    let waiter = [
        "72",
        "3",
        "0",
        &claim,
        "7",
        "1",
        "-",
        "0",
        "1800000010000000",
        "0",
        "10000000",
        "5000000",
        "0",
        "0",
        "686f7374",
        "1",
    ];
    let head = [
        "72",
        "0",
        "1",
        "17",
        "1",
        "2",
        "5",
        "0",
        "1800000000000000",
        "3",
        "-",
        "0",
        "-",
        "17",
        "1800000000000000",
        "1800000000000000",
        "76616c7565",
        &claim,
        "17",
        "7",
        "1800000000000000",
        "1800000010000000",
        "1",
        "10000000",
        "686f7374",
    ];
    let rows = [hold.join("\t"), waiter.join("\t"), head.join("\t"), "1800000000000000\t-77".to_owned()];
    vec![rows.join("\n").into_bytes()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
