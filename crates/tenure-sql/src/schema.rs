//! The tables.
//!
//! Times are microseconds since 1970 by the database's clock, periods are microseconds, names and labels are bytes.

/// The version of the tables. A client refuses any other.
pub const VERSION: u32 = 1;

/// The names of the tables, as they stand in statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// A row for each resource: the head of its record, its value, and its lock.
    pub resource: String,
    /// A row for each hold, rest and waiter.
    pub claim: String,
    /// Claims that have ended and could still arrive.
    pub finished: String,
    /// Slots that are free again.
    pub slot: String,
    /// One row: the version of the tables.
    pub version: String,
    /// Whether rows that are not needed are deleted. Otherwise they are marked: a claim or slot that has gone by a
    /// negative `place` or `number`, which no statement but a purge reads.
    pub deletes: bool,
}

impl Tables {
    /// Names the tables with a prefix: `tenure_`, or `locks.tenure_` with a schema.
    pub fn new(prefix: &str) -> Tables {
        let table = |name: &str| format!("{prefix}{name}");
        Tables {
            resource: table("resource"),
            claim: table("claim"),
            finished: table("finished"),
            slot: table("slot"),
            version: table("version"),
            deletes: true,
        }
    }
}
