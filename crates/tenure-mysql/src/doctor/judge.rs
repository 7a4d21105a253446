//! What follows from what the server says. Text in, findings out.

use std::collections::BTreeMap;

use tenure_core::engine::Finding;
use tenure_sql::doctor::{UPGRADE, connections, missing_rights, no_tables, other_version};
use tenure_sql::{VERSION, VERSION_WITH_HOLDS, VERSIONS};

use crate::error::BINLOG_HINT;

/// A value of 256 KiB is a text of 512 KiB, and many small claims come together in one text.
const PACKET_WARNING: u64 = 2 * 1024 * 1024;

/// What the server says about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Its variables and its status, those that it has.
    pub(super) variables: BTreeMap<String, String>,
    /// Whether SYSDATE() stands still while a statement runs.
    pub(super) sysdate_stands: bool,
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
            findings.push(Finding::bad("binlog_format", found).hint(BINLOG_HINT));
        }
        if self.is_on("wsrep_on") {
            let hint = "send all claims to one node; what is locked must check tokens";
            let found = "a Galera cluster: rows are locked on one node, and others object only when a transaction commits";
            findings.push(Finding::warning("cluster", found).hint(hint));
        }
        findings
    }

    fn version(&self) -> Finding {
        let version = self.text("version");
        if version.contains("MariaDB") {
            return Finding::good("version", format!("MariaDB {version}"));
        }
        let found = format!("MySQL {version} ({})", self.text("version_comment"));
        Finding::warning("version", found)
            .hint("the tests run against MariaDB 10.11; MySQL gets the same statements")
    }

    fn role(&self) -> Finding {
        if self.is_on("read_only") || self.is_on("super_read_only") {
            return Finding::bad("role", "read-only, as replicas are: it grants nothing")
                .hint("name the primary");
        }
        Finding::good("role", "it takes writes")
    }

    fn durability(&self) -> Finding {
        let (what, flush) = ("durability", self.text("innodb_flush_log_at_trx_commit"));
        if flush != "1" {
            let found = format!(
                "innodb_flush_log_at_trx_commit is {flush}: a server or a machine that dies forgets a second of what it granted"
            );
            return Finding::warning(what, found).hint("set `innodb_flush_log_at_trx_commit = 1`");
        }
        if self.is_on("log_bin") && self.text("sync_binlog") != "1" {
            let found = format!(
                "sync_binlog is {}: after a loss of power, replicas may know more or less than this server",
                self.text("sync_binlog")
            );
            return Finding::warning(what, found).hint("set `sync_binlog = 1`");
        }
        Finding::good(what, "synced before each answer: a restart forgets nothing")
    }

    fn statement_clock(&self) -> Finding {
        let what = "sysdate";
        if self.sysdate_stands || self.is_on("sysdate_is_now") {
            let found = "SYSDATE() is NOW() here: a claim that waited for a row's lock counts from before it had it, and \
                may end a second early";
            return Finding::warning(what, found).hint("start the server without `--sysdate-is-now`");
        }
        Finding::good(what, "it goes on while a statement runs")
    }

    fn packet(&self) -> Finding {
        let (what, bytes) = ("max_allowed_packet", self.number("max_allowed_packet"));
        let found = format!("{} KiB", bytes / 1024);
        if bytes < PACKET_WARNING {
            return Finding::warning(what, found)
                .hint("set `max_allowed_packet = 16M`: large values and batches need 2 MiB");
        }
        Finding::good(what, found)
    }

    fn connections(&self) -> Finding {
        let (used, most) = (self.number("threads_connected"), self.number("max_connections"));
        connections(used, most, "raise `max_connections`, or lower `?connections=` (5)")
    }
}

pub(super) fn tables(prefix: &str, version: Option<&str>) -> Finding {
    match version {
        Some(found) if VERSIONS.iter().any(|version| version.to_string() == found) => {
            let good = Finding::good("tables", format!("{prefix}… of version {found}"));
            if found == VERSION.to_string() { good.hint(UPGRADE) } else { good }
        }
        Some(found) => other_version(prefix, found, VERSION_WITH_HOLDS),
        None => no_tables(prefix, "cannot be read, or have no version"),
    }
}

pub(super) fn rights(missing: &[&str], deletes: bool) -> Finding {
    if missing.is_empty() {
        return Finding::good("rights", "this user may work with all tables");
    }
    missing_rights("rights", missing, deletes)
}

/// How waiters hear of their grants.
pub(super) fn wakes() -> Finding {
    Finding::good(
        "wakes",
        "a client looks for its waiters by itself, at the head of a line every 20 to 200 ms: the server cannot tell it",
    )
}
