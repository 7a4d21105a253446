//! The tables.
//!
//! Times are microseconds since 1970 by the database's clock, periods are microseconds, names and labels are bytes.

/// The version of the tables in which each hold is a row. A client refuses versions that it does not know.
pub const VERSION: u32 = 1;
/// The version in which the only hold of a mutex is a part of its resource's row: [`Tables::with_holds`].
pub const VERSION_WITH_HOLDS: u32 = 2;

/// The names of the tables, as they stand in statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// A row for each resource: the head of its record, its value, and its lock.
    pub resource: String,
    /// A row for each hold, rest and waiter, but for holds that are a part of their resource's row.
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
    /// Whether a hold that is the only one of its mutex, and has no limits, is a part of its resource's row: one row is written to
    /// claim what is free, and not two.
    pub keeps_holds: bool,
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
            keeps_holds: false,
        }
    }

    /// Names the tables of [`VERSION_WITH_HOLDS`]. What is left of the table of claims has another name there, so that clients that
    /// know the older version alone are refused whatever they ask: they would believe that a mutex is free whose hold they do not see.
    pub fn with_holds(prefix: &str) -> Tables {
        Tables { claim: format!("{prefix}entry"), keeps_holds: true, ..Tables::new(prefix) }
    }
}
