//! What follows from what the server says. Text in, findings out.

use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::engine::{Finding, Severity};
use tenure_sql::{Fault, Row, VERSION};

/// The first version with which tenure may be used: older ones are not maintained any more, and were not tried.
const VERSION_MIN: u32 = 120_000;
/// The version that the tests run against.
const VERSION_TESTED: u32 = 150_000;
/// Fewer connections than this left are worth a warning: two clients need them.
const CONNECTIONS_LEFT_WARNING: u64 = 10;
/// More rows of idle resources than this are worth a warning where nobody removes them.
const IDLE_WARNING: u64 = 100_000;
/// A larger difference between the server's time and this machine's is worth a warning.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
/// A server that takes longer to answer is worth a warning: a claim takes two round trips, and the shortest holds are
/// renewed after a third of a second's third.
const LATENCY_WARNING: Duration = Duration::from_millis(50);

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
    /// How many of the rows nobody needs any more.
    pub(super) idle: u64,
    /// Whether this client removes them.
    pub(super) purges: bool,
    /// The tables that the user may not work with.
    pub(super) missing: Vec<String>,
}

/// Who else could change what the tables do.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    pub(super) schema: String,
    pub(super) user: String,
    /// Who owns tables and is not trusted with that.
    pub(super) owners: Option<String>,
    /// Who may make things in the schema, and is not trusted with that.
    pub(super) makers: Option<String>,
}

pub(super) fn finding(severity: Severity, what: &'static str, found: String) -> Finding {
    Finding { severity, what, found, hint: None }
}

fn hinted(severity: Severity, what: &'static str, found: impl Into<String>, hint: &str) -> Finding {
    Finding { hint: Some(hint.to_owned()), ..finding(severity, what, found.into()) }
}

/// What the server refuses to say, or cannot.
pub(super) fn unseen(what: &'static str, fault: &Fault, severity: Severity) -> Finding {
    let error = fault.to_error("look");
    hinted(severity, what, format!("cannot be looked at: {error}"), error.hint().unwrap_or_default())
}

impl Facts {
    /// Reads the row of the answer. What is not told is empty, or none.
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
            findings.push(hinted(Severity::Warning, "vacuum", "autovacuum is off", hint));
        }
        findings
    }

    fn version(&self) -> Finding {
        let (what, found) = ("version", format!("PostgreSQL {}", self.version));
        if self.version_number < VERSION_MIN {
            return hinted(
                Severity::Bad,
                what,
                found,
                "use PostgreSQL 12 or newer; the tests run against 15",
            );
        }
        if self.version_number < VERSION_TESTED {
            return hinted(Severity::Warning, what, found, "the tests run against PostgreSQL 15");
        }
        finding(Severity::Good, what, found)
    }

    fn role(&self) -> Finding {
        let what = "role";
        if self.is_in_recovery {
            let hint = "name the primary, or all servers with `?target_session_attrs=read-write`";
            return hinted(Severity::Bad, what, "a standby, which grants nothing", hint);
        }
        if self.is_read_only {
            let hint = "set `default_transaction_read_only = off` for this user and database";
            return hinted(Severity::Bad, what, "read-only: it grants nothing", hint);
        }
        finding(Severity::Good, what, "primary".to_owned())
    }

    fn durability(&self) -> Finding {
        let what = "durability";
        if self.fsync == "off" {
            let found =
                "fsync is off: a machine that loses its power may forget holds, or all of the database";
            return hinted(Severity::Warning, what, found, "set `fsync = on`");
        }
        match self.synchronous_commit.as_str() {
            "off" => {
                let found = "synchronous_commit is off: a server that is killed forgets up to 0.6 s of what it granted";
                let hint = "set `synchronous_commit = on`, at least for the user of the locks";
                hinted(Severity::Warning, what, found, hint)
            }
            level => {
                let found = format!(
                    "synced before each answer (synchronous_commit {level}): a restart forgets nothing"
                );
                finding(Severity::Good, what, found)
            }
        }
    }

    fn standbys(&self) -> Finding {
        let (what, count) = ("standbys", self.standbys);
        if !self.synchronous_standbys.is_empty() {
            let names = &self.synchronous_standbys;
            return match self.synchronous_commit.as_str() {
                "off" | "local" => {
                    let hint = "set `synchronous_commit = on` for the user of the locks";
                    let found = format!("{names} would be synchronous, but commits do not wait for them");
                    hinted(Severity::Warning, what, found, hint)
                }
                _ => finding(
                    Severity::Good,
                    what,
                    format!(
                        "{count} connected; commits wait for {names}: a failover to one of those forgets nothing"
                    ),
                ),
            };
        }
        if count == 0 {
            return finding(Severity::Good, what, "none".to_owned());
        }
        let found =
            format!("{count} connected, none synchronous: a failover forgets what it has not received");
        let hint = "set `synchronous_standby_names`, or see to it that what is locked checks tokens";
        hinted(Severity::Warning, what, found, hint)
    }

    fn connections(&self) -> Finding {
        let what = "connections";
        let most = self.connections_max.saturating_sub(self.connections_reserved);
        let found = format!("{} of {most} in use", self.connections);
        if most.saturating_sub(self.connections) < CONNECTIONS_LEFT_WARNING {
            let hint =
                "raise `max_connections`, use a pooler, or lower `?connections=` (5, and 1 that listens)";
            return hinted(Severity::Warning, what, found, hint);
        }
        finding(Severity::Good, what, found)
    }
}

impl Others {
    pub(super) fn judge(&self) -> Vec<Finding> {
        let Others { schema, user, owners, makers } = self;
        let owner = match owners {
            None => finding(
                Severity::Good,
                "owner",
                "the tables belong to nobody who could harm by them".to_owned(),
            ),
            Some(owners) => hinted(
                Severity::Warning,
                "owner",
                format!(
                    "{owners} owns tables, and so decides what they do: a trigger on them runs as {user}"
                ),
                "ALTER TABLE … OWNER TO a role that you trust, or let another `?schema=` be made",
            ),
        };
        let schema = match makers {
            None => finding(Severity::Good, "schema", format!("{schema}, where no stranger makes anything")),
            Some(makers) => hinted(
                Severity::Warning,
                "schema",
                format!(
                    "in {schema} tables can be made by {makers}: before a first client, those would be used"
                ),
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
            let found = format!("this user may not work with {}", self.missing.join(", "));
            let hint = match self.purges {
                true => {
                    "GRANT SELECT, INSERT, UPDATE, DELETE on them to the user; without DELETE, use `?purge=off`"
                }
                false => "GRANT SELECT, INSERT, UPDATE on them to the user",
            };
            return hinted(Severity::Bad, what, found, hint);
        }
        match self.version {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                let found = format!("{prefix}… are of version {version}; this program knows {VERSION}");
                return hinted(Severity::Bad, what, found, "use the same version of tenure everywhere");
            }
            None => {
                let found = format!("{prefix}… have no version");
                return hinted(Severity::Bad, what, found, "make them: `tenure doctor --migrate`");
            }
        }
        let found = format!(
            "{prefix}… of version {VERSION}, {} resource(s), {} of them idle and due to go",
            self.rows, self.idle
        );
        if !self.purges && self.idle > IDLE_WARNING {
            let hint = "nobody removes them (`?purge=off`): run `tenure doctor --purge` now and then";
            return hinted(Severity::Warning, what, found, hint);
        }
        finding(Severity::Good, what, found)
    }
}

/// How waiters hear of their grants.
pub(super) fn wakes(listens: bool, hears: bool) -> Finding {
    let what = "wakes";
    match (listens, hears) {
        (true, true) => finding(Severity::Good, what, "a notification came back at once".to_owned()),
        (true, false) => {
            let found = "no notification comes back: a pooler in transaction mode lies between. Waiters ask for \
                themselves, each third of their confirm window (1.7 s at most)";
            let hint = "connect with the server itself if they should hear at once; else `?listen=off` says that you know";
            hinted(Severity::Warning, what, found, hint)
        }
        (false, _) => {
            let found = "nobody listens (`?listen=off`, or a pool without a URL): waiters ask for themselves, each third of their confirm window (1.7 s at most)";
            finding(Severity::Good, what, found.to_owned())
        }
    }
}

pub(super) fn clock(server: Timestamp, here: Timestamp) -> Finding {
    let (ahead, behind) = (server.since(here), here.since(server));
    let (difference, which) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    let found = format!("the server's is {} ms {which} this machine's", difference.as_millis());
    if difference > CLOCK_WARNING {
        let hint =
            "set both by NTP: leases are right without, but tokens and times in `status` are the server's";
        return hinted(Severity::Warning, "clock", found, hint);
    }
    finding(Severity::Good, "clock", found)
}

pub(super) fn latency(mut pings: Vec<Duration>) -> Finding {
    pings.sort_unstable();
    let (middle, worst) = (pings.get(pings.len() / 2), pings.last());
    let (middle, worst) = (middle.copied().unwrap_or_default(), worst.copied().unwrap_or_default());
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    let found = format!("{:.1} ms, at worst {:.1} ms", millis(middle), millis(worst));
    if middle > LATENCY_WARNING {
        let hint = "a claim takes two round trips: use long ttls, or a server that is nearer";
        return hinted(Severity::Warning, "latency", found, hint);
    }
    finding(Severity::Good, "latency", found)
}
