//! What follows from what the server says. Text in, findings out.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::engine::{Finding, Severity};
use tenure_sql::{Fault, VERSION};

use crate::error::BINLOG_HINT;

/// Fewer connections than this left are worth a warning: two clients need them.
const CONNECTIONS_LEFT_WARNING: u64 = 10;
/// A value of 256 KiB is a text of 512 KiB, and many small claims come together in one text.
const PACKET_WARNING: u64 = 2 * 1024 * 1024;
/// A larger difference between the server's time and this machine's is worth a warning.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
/// A server that takes longer to answer is worth a warning: a claim takes two round trips.
const LATENCY_WARNING: Duration = Duration::from_millis(50);

/// What the server says about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Its variables and its status, those that it has.
    pub(super) variables: BTreeMap<String, String>,
    /// Whether SYSDATE() stands still while a statement runs.
    pub(super) sysdate_stands: bool,
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
    fn text(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn is_on(&self, name: &str) -> bool {
        ["ON", "1"].contains(&self.text(name))
    }

    /// Returns a finding for each thing that matters.
    pub(super) fn judge(&self) -> Vec<Finding> {
        let mut findings = vec![self.version(), self.role(), self.durability()];
        findings.extend([self.statement_clock(), self.packet(), self.connections()]);
        if self.is_on("log_bin") && self.text("binlog_format") == "STATEMENT" {
            let found = "STATEMENT: the server refuses every claim";
            findings.push(hinted(Severity::Bad, "binlog_format", found, BINLOG_HINT));
        }
        if self.is_on("wsrep_on") {
            let hint = "send all claims to one node; what is locked must check tokens";
            let found = "a Galera cluster: rows are locked on one node, and others object only when a transaction commits";
            findings.push(hinted(Severity::Warning, "cluster", found, hint));
        }
        findings
    }

    fn version(&self) -> Finding {
        let version = self.text("version");
        if version.contains("MariaDB") {
            return finding(Severity::Good, "version", format!("MariaDB {version}"));
        }
        let found = format!("MySQL {version} ({})", self.text("version_comment"));
        hinted(
            Severity::Warning,
            "version",
            found,
            "the tests run against MariaDB 10.11; MySQL gets the same statements",
        )
    }

    fn role(&self) -> Finding {
        if self.is_on("read_only") || self.is_on("super_read_only") {
            let hint = "name the primary";
            return hinted(Severity::Bad, "role", "read-only, as replicas are: it grants nothing", hint);
        }
        finding(Severity::Good, "role", "it takes writes".to_owned())
    }

    fn durability(&self) -> Finding {
        let (what, flush) = ("durability", self.text("innodb_flush_log_at_trx_commit"));
        if flush != "1" {
            let found = format!(
                "innodb_flush_log_at_trx_commit is {flush}: a server or a machine that dies forgets a second of what it granted"
            );
            return hinted(Severity::Warning, what, found, "set `innodb_flush_log_at_trx_commit = 1`");
        }
        if self.is_on("log_bin") && self.text("sync_binlog") != "1" {
            let found = format!(
                "sync_binlog is {}: after a loss of power, replicas may know more or less than this server",
                self.text("sync_binlog")
            );
            return hinted(Severity::Warning, what, found, "set `sync_binlog = 1`");
        }
        finding(Severity::Good, what, "synced before each answer: a restart forgets nothing".to_owned())
    }

    fn statement_clock(&self) -> Finding {
        let what = "sysdate";
        if self.sysdate_stands || self.is_on("sysdate_is_now") {
            let found = "SYSDATE() is NOW() here: a claim that waited for a row's lock counts from before it had it, and \
                may end a second early";
            return hinted(Severity::Warning, what, found, "start the server without `--sysdate-is-now`");
        }
        finding(Severity::Good, what, "it goes on while a statement runs".to_owned())
    }

    fn packet(&self) -> Finding {
        let (what, bytes) = ("max_allowed_packet", self.number("max_allowed_packet"));
        let found = format!("{} KiB", bytes / 1024);
        if bytes < PACKET_WARNING {
            return hinted(
                Severity::Warning,
                what,
                found,
                "set `max_allowed_packet = 16M`: large values and batches need 2 MiB",
            );
        }
        finding(Severity::Good, what, found)
    }

    fn connections(&self) -> Finding {
        let (used, most) = (self.number("threads_connected"), self.number("max_connections"));
        let found = format!("{used} of {most} in use");
        if most.saturating_sub(used) < CONNECTIONS_LEFT_WARNING {
            let hint = "raise `max_connections`, or lower `?connections=` (5)";
            return hinted(Severity::Warning, "connections", found, hint);
        }
        finding(Severity::Good, "connections", found)
    }
}

pub(super) fn tables(prefix: &str, version: Option<&str>) -> Finding {
    let what = "tables";
    match version {
        Some(found) if found == VERSION.to_string() => {
            finding(Severity::Good, what, format!("{prefix}… of version {VERSION}"))
        }
        Some(found) => {
            let found = format!("{prefix}… are of version {found}; this program knows {VERSION}");
            hinted(Severity::Bad, what, found, "use the same version of tenure everywhere")
        }
        None => hinted(
            Severity::Bad,
            what,
            format!("{prefix}… cannot be read, or have no version"),
            "make them: `tenure doctor --migrate`",
        ),
    }
}

pub(super) fn rights(missing: &[&str], deletes: bool) -> Finding {
    if missing.is_empty() {
        return finding(Severity::Good, "rights", "this user may work with all tables".to_owned());
    }
    let found = format!("this user may not work with {}", missing.join(", "));
    let hint = match deletes {
        true => "GRANT SELECT, INSERT, UPDATE, DELETE on them to the user; without DELETE, use `?purge=off`",
        false => "GRANT SELECT, INSERT, UPDATE on them to the user",
    };
    hinted(Severity::Bad, "rights", found, hint)
}

/// How waiters hear of their grants.
pub(super) fn wakes() -> Finding {
    let found = "a waiter asks for itself, each third of its confirm window (1.7 s at most): the server cannot tell it";
    finding(Severity::Good, "wakes", found.to_owned())
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
