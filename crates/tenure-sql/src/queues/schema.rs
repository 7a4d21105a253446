//! The tables of the queues.

/// The version of the queues' tables. It is not that of the locks: a client that knows no queues goes on with its locks beside
/// one that does.
pub const QUEUE_VERSION: u32 = 1;

/// The names of the queues' tables, as they stand in statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueTables {
    /// A row for each item that is not dead.
    pub item: String,
    /// A row for each group that has items, or rests. It is the group's lock.
    pub group: String,
    /// A row for each dead letter.
    pub dead: String,
    /// A row for each dedup id that is remembered.
    pub dedup: String,
    /// A row for each queue whose takers keep an interval.
    pub head: String,
    /// A row for each client that asked in vain, and each queue.
    pub idle: String,
    /// What the numbers of items come from.
    pub number: String,
    /// One row: the version of these tables.
    pub version: String,
}

impl QueueTables {
    /// Names the tables with a prefix, as [`Tables`](crate::Tables) does.
    pub fn new(prefix: &str) -> QueueTables {
        let table = |name: &str| format!("{prefix}queue_{name}");
        QueueTables {
            item: table("item"),
            group: table("group"),
            dead: table("dead"),
            dedup: table("dedup"),
            head: table("head"),
            idle: table("idle"),
            number: table("number"),
            version: table("version"),
        }
    }
}
