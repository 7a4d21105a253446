//! What follows from what the server says. Text in, findings out.

use tenure_core::engine::Finding;
use tenure_sql::doctor::{UPGRADE, connections, missing_rights, no_tables, other_version};
use tenure_sql::{Row, VERSION, VERSION_WITH_HOLDS};

use crate::statement::Plans;

/// The first version with which tenure may be used: older ones are not maintained any more, and were not tried.
const VERSION_MIN: u32 = 120_000;
/// The version that the tests run against.
const VERSION_TESTED: u32 = 150_000;
/// More rows of idle resources than this are worth a warning where they are not removed.
const IDLE_WARNING: u64 = 100_000;

/// What the server says about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) version: String,
    pub(super) version_number: u32,
    pub(super) is_read_only: bool,
    pub(super) synchronous_commit: String,
    pub(super) fsync: String,
    pub(super) synchronous_standbys: String,
    pub(super) autovacuum: String,
    pub(super) connections_max: u64,
    /// How many of them are for superusers only.
    pub(super) connections_reserved: u64,
    pub(super) is_in_recovery: bool,
    /// How many standbys are connected, of either kind.
    pub(super) standbys: u64,
    pub(super) connections: u64,
}

/// What was found of the tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub(super) prefix: String,
    pub(super) version: Option<u64>,
    pub(super) rows: u64,
    /// How many of the rows are not needed any more.
    pub(super) idle: u64,
    /// Whether this client removes them.
    pub(super) purges: bool,
    /// The tables that the user may not work with.
    pub(super) missing: Vec<String>,
}

/// Other roles that could change what the tables do.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    pub(super) schema: String,
    pub(super) user: String,
    /// The owners of tables that are not trusted with that.
    pub(super) owners: Option<String>,
    /// The roles that may make things in the schema, and are not trusted with that.
    pub(super) makers: Option<String>,
}

impl Facts {
    /// Reads the row of the answer. What is not shown is empty, or none.
    pub(super) fn read(row: &Row) -> Facts {
        let text = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let number = |at: usize| text(at).parse::<u64>().unwrap_or(0);
        Facts {
            version: text(0),
            version_number: number(1).try_into().unwrap_or(0),
            is_read_only: text(2) == "on",
            synchronous_commit: text(3),
            fsync: text(4),
            synchronous_standbys: text(5),
            autovacuum: text(6),
            connections_max: number(7),
            connections_reserved: number(8),
            is_in_recovery: text(9) == "t",
            standbys: number(10),
            connections: number(11),
        }
    }

    /// Returns a finding for each thing that matters.
    pub(super) fn judge(&self) -> Vec<Finding> {
        let mut findings =
            vec![self.version(), self.role(), self.durability(), self.standbys(), self.connections()];
        if self.autovacuum == "off" {
            let hint = "set `autovacuum = on`: each renewal leaves a dead row behind";
            findings.push(Finding::warning("vacuum", "autovacuum is off").hint(hint));
        }
        findings
    }

    fn version(&self) -> Finding {
        let (what, found) = ("version", format!("PostgreSQL {}", self.version));
        if self.version_number < VERSION_MIN {
            return Finding::bad(what, found).hint("use PostgreSQL 12 or newer; the tests run against 15");
        }
        if self.version_number < VERSION_TESTED {
            return Finding::warning(what, found).hint("the tests run against PostgreSQL 15");
        }
        Finding::good(what, found)
    }

    fn role(&self) -> Finding {
        let what = "role";
        if self.is_in_recovery {
            return Finding::bad(what, "a standby, which grants nothing")
                .hint("name the primary, or all servers with `?target_session_attrs=read-write`");
        }
        if self.is_read_only {
            return Finding::bad(what, "read-only: it grants nothing")
                .hint("set `default_transaction_read_only = off` for this user and database");
        }
        Finding::good(what, "primary")
    }

    fn durability(&self) -> Finding {
        let what = "durability";
        if self.fsync == "off" {
            return Finding::warning(
                what,
                "fsync is off: a machine that loses its power may forget holds, or all of the database",
            )
            .hint("set `fsync = on`");
        }
        match self.synchronous_commit.as_str() {
            "off" => {
                let found = "synchronous_commit is off: a server that is killed forgets up to 0.6 s of what it granted";
                Finding::warning(what, found)
                    .hint("set `synchronous_commit = on`, at least for the user of the locks")
            }
            level => {
                let found = format!(
                    "synced before each answer (synchronous_commit {level}): a restart forgets nothing"
                );
                Finding::good(what, found)
            }
        }
    }

    fn standbys(&self) -> Finding {
        let (what, count) = ("standbys", self.standbys);
        if !self.synchronous_standbys.is_empty() {
            let names = &self.synchronous_standbys;
            return match self.synchronous_commit.as_str() {
                "off" | "local" => {
                    let found = format!("{names} would be synchronous, but commits do not wait for them");
                    Finding::warning(what, found)
                        .hint("set `synchronous_commit = on` for the user of the locks")
                }
                _ => Finding::good(
                    what,
                    format!(
                        "{count} connected; commits wait for {names}: a failover to one of those forgets nothing"
                    ),
                ),
            };
        }
        if count == 0 {
            return Finding::good(what, "none");
        }
        let found =
            format!("{count} connected, none synchronous: a failover forgets what it has not received");
        Finding::warning(what, found)
            .hint("set `synchronous_standby_names`, or see to it that what is locked checks tokens")
    }

    fn connections(&self) -> Finding {
        let most = self.connections_max.saturating_sub(self.connections_reserved);
        let hint = "raise `max_connections`, use a pooler, or lower `?connections=` (5, and 1 that listens)";
        connections(self.connections, most, hint)
    }
}

impl Others {
    pub(super) fn judge(&self) -> Vec<Finding> {
        let Others { schema, user, owners, makers } = self;
        let owner = match owners {
            None => Finding::good("owner", "the tables belong to nobody who could harm by them"),
            Some(owners) => Finding::warning(
                "owner",
                format!(
                    "{owners} owns tables, and so decides what they do: a trigger on them runs as {user}"
                ),
            )
            .hint("ALTER TABLE … OWNER TO a role that you trust, or let another `?schema=` be made"),
        };
        let schema = match makers {
            None => Finding::good("schema", format!("{schema}, where no stranger makes anything")),
            Some(makers) => Finding::warning(
                "schema",
                format!("in {schema} tables can be made by {makers}: before a first client, those would be used"),
            )
            .hint(
                "REVOKE CREATE ON SCHEMA … FROM them (PUBLIC has it until PostgreSQL 14), or use a `?schema=` of its own",
            ),
        };
        vec![owner, schema]
    }
}

impl Tables {
    pub(super) fn judge(&self) -> Finding {
        let (what, prefix) = ("tables", &self.prefix);
        if !self.missing.is_empty() {
            let missing: Vec<&str> = self.missing.iter().map(String::as_str).collect();
            return missing_rights(what, &missing, self.purges);
        }
        let Some(version) = self.version else { return no_tables(prefix, "have no version") };
        let [old, new] = [VERSION, VERSION_WITH_HOLDS].map(u64::from);
        if ![old, new].contains(&version) {
            return other_version(prefix, version, format!("{old} and {new}"));
        }
        let found = format!(
            "{prefix}… of version {version}, {} resource(s), {} of them idle and due to go",
            self.rows, self.idle
        );
        if !self.purges && self.idle > IDLE_WARNING {
            return Finding::warning(what, found)
                .hint("nobody removes them (`?purge=off`): run `tenure doctor --purge` now and then");
        }
        if version == old {
            return Finding::good(what, found).hint(UPGRADE);
        }
        Finding::good(what, found)
    }
}

/// How waiters hear of their grants.
pub(super) fn wakes(listens: bool, hears: bool) -> Finding {
    let what = "wakes";
    match (listens, hears) {
        (true, true) => Finding::good(what, "a notification came back at once"),
        (true, false) => {
            let found = "no notification comes back: a pooler in transaction mode lies between. A client looks for \
                its waiters by itself, at the head of a line every 20 to 200 ms";
            Finding::warning(what, found).hint(
                "connect with the server itself if they should hear at once; else `?listen=off` says that you know",
            )
        }
        (false, _) => Finding::good(
            what,
            "nobody listens (`?listen=off`, or a pool without a URL): a client looks for its waiters \
             by itself, at the head of a line every 20 to 200 ms",
        ),
    }
}

/// Whether the server plans each statement anew.
pub(super) fn plans(plans: Plans) -> Finding {
    let what = "plans";
    match plans {
        Plans::Prepared => Finding::good(what, "kept in sessions that this client alone uses"),
        Plans::Functions => Finding::good(what, "kept in functions, for a session may be another client's next"),
        Plans::Nowhere => Finding::warning(
            what,
            "a session may be another client's next, and the tables have no functions: each statement is planned anew, which \
             is more than half of what a lock costs the server",
        )
        .hint("run `tenure doctor --migrate` once as the owner of the tables, who must be allowed to make functions"),
    }
}
