//! What follows from what servers say. Text in, findings out.

use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::engine::finding::{Finding, Severity, clock_difference, middle_and_worst};

use crate::config::PREFIX;
use crate::error::Fault;

/// The first version whose commands the scripts use: PEXPIRETIME, SET with NX and GET; sharded channels.
const VERSION_MIN: u32 = 7;
/// More of `maxmemory` than this in use is worth a warning.
const USED_PERCENT_WARNING: u64 = 90;
/// A replica that is further behind is worth a warning. Servers report it in seconds, and each second.
const LAG_WARNING: u64 = 5;
/// A larger difference between the server's time and this machine's is worth a warning.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
/// A server that takes longer to answer is worth a warning: it is a third of the third of a second after which
/// the shortest holds are renewed.
const LATENCY_WARNING: Duration = Duration::from_millis(100);
/// How many hash slots a cluster has.
const SLOTS: u64 = 16384;

/// What a server said, or why it said nothing.
pub(super) type Said = Result<String, Fault>;

/// What one server says about itself.
pub(super) struct Facts {
    /// Sections of INFO.
    pub(super) server: Said,
    pub(super) memory: Said,
    pub(super) persistence: Said,
    pub(super) replication: Said,
    /// CLUSTER INFO. An error where there is no cluster.
    pub(super) cluster: Said,
    /// Settings; none where the server does not report them.
    pub(super) fsync: Option<String>,
    pub(super) save: Option<String>,
    pub(super) replicas_min: Option<String>,
    pub(super) full_coverage: Option<String>,
    /// How many replicas the URL wants to acknowledge.
    pub(super) replicas_wanted: u8,
    /// Whether the URL is that of a cluster.
    pub(super) is_cluster: bool,
    /// Whether it is one of a quorum's.
    pub(super) is_quorum: bool,
}

/// What the server refuses to say, or cannot.
pub(super) fn unseen(what: &'static str, fault: &Fault, severity: Severity) -> Finding {
    let hint = match fault.code() {
        Some("NOPERM") => "allow the user this command, or look at the server yourself".to_owned(),
        _ => fault.to_error("look").hint().unwrap_or_default().to_owned(),
    };
    Finding::new(severity, what, format!("cannot be looked at: {fault}")).hint(hint)
}

/// A field of INFO.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

fn number(text: &str, key: &str) -> Option<u64> {
    field(text, key)?.parse().ok()
}

impl Facts {
    /// Returns a finding for each thing that matters.
    pub(super) fn judge(&self) -> Vec<Finding> {
        let with = |what, said: &Said, judge: &dyn Fn(&str) -> Finding| match said {
            Ok(text) => judge(text),
            Err(fault) => unseen(what, fault, Severity::Warning),
        };
        let mut findings = vec![
            with("version", &self.server, &version),
            with("topology", &self.server, &|text| self.topology(text)),
            with("role", &self.replication, &role),
            with("memory", &self.memory, &memory),
            with("persistence", &self.persistence, &|text| self.persistence(text)),
        ];
        if !self.is_quorum {
            findings.insert(3, with("replicas", &self.replication, &|text| self.replicas(text)));
        }
        findings
    }

    fn topology(&self, server: &str) -> Finding {
        let what = "topology";
        match (field(server, "redis_mode"), self.is_cluster) {
            (Some("cluster"), false) => Finding::bad(what, "a node of a cluster, which refuses most keys")
                .hint(if self.is_quorum {
                    "name servers of their own: the masters of a cluster are not independent"
                } else {
                    "write `redis+cluster://` for `redis://`"
                }),
            (_, true) => match &self.cluster {
                Ok(text) => cluster(text, self.full_coverage.as_deref()),
                Err(fault) => unseen(what, fault, Severity::Warning),
            },
            (mode, false) => Finding::good(what, mode.unwrap_or("not said").to_owned()),
        }
    }

    fn replicas(&self, replication: &str) -> Finding {
        let what = "replicas";
        let lines: Vec<&str> =
            replication.lines().filter(|line| line.starts_with("slave") && line.contains("state=")).collect();
        let online = lines.iter().filter(|line| line.contains("state=online")).count() as u64;
        let lag = lines.iter().filter_map(|line| part(line, "lag")).max().unwrap_or(0);
        let needed = self.replicas_min.as_deref().and_then(|text| text.parse::<u64>().ok());
        let wanted = u64::from(self.replicas_wanted);
        let found = match online {
            0 => "none".to_owned(),
            _ => format!("{online}, the slowest was heard of {lag} s ago"),
        };
        if needed.is_some_and(|needed| online < needed) {
            let found = format!("{found}; `min-replicas-to-write` is {}", needed.unwrap_or_default());
            return Finding::bad(what, found).hint("the server refuses claims: bring its replicas back");
        }
        if online < wanted {
            let found = format!("{found}; the URL wants {wanted} to acknowledge");
            return Finding::warning(what, found).hint("bring them back, or lower `?replicas=`");
        }
        if lag > LAG_WARNING {
            return Finding::warning(what, found).hint(
                "see whether the network or the replica is slow; a failover to it forgets what it lacks",
            );
        }
        if online > 0 && needed == Some(0) && !self.is_cluster {
            let found = format!("{found}; `min-replicas-to-write` is 0");
            return Finding::warning(what, found).hint(
                "a master that is cut off goes on granting while another one is promoted: set \
                `min-replicas-to-write 1` and `min-replicas-max-lag 10` on all servers",
            );
        }
        Finding::good(what, found)
    }

    fn persistence(&self, persistence: &str) -> Finding {
        let what = "persistence";
        let has_log = field(persistence, "aof_enabled") == Some("1");
        let has_snapshots = self.save.as_deref().map(|save| !save.is_empty());
        let is_failing = |key: &str| field(persistence, key).is_some_and(|status| status != "ok");
        if (has_log && is_failing("aof_last_write_status"))
            || (has_snapshots != Some(false) && is_failing("rdb_last_bgsave_status"))
        {
            return Finding::bad(what, "the server cannot write to its disk, and may refuse every claim")
                .hint("free some space, and see the server's log");
        }
        if self.is_quorum {
            return self.memory_of_numbers(has_log, has_snapshots);
        }
        if has_log {
            return log(self.fsync.as_deref());
        }
        let found = match has_snapshots {
            Some(true) => "snapshots only: a restart forgets what was granted since the last one",
            Some(false) => "none: a restart forgets every hold",
            None => "no log; whether there are snapshots is not known, since CONFIG GET is refused",
        };
        Finding::warning(what, found)
            .hint("set `appendonly yes`, or see to it that what is locked checks tokens")
    }

    /// What a server of a quorum keeps: it waits after every start, so what matters is only how far the numbers have come, should all
    /// servers start anew.
    fn memory_of_numbers(&self, has_log: bool, has_snapshots: Option<bool>) -> Finding {
        let what = "persistence";
        let waits = "a server that starts anew waits for the longest ttl in any case";
        let kept = match (has_log, self.fsync.as_deref(), has_snapshots) {
            (true, Some(fsync), _) => format!("log, `appendfsync {fsync}`"),
            (true, None, _) => "log".to_owned(),
            (false, _, Some(true)) => "snapshots".to_owned(),
            (false, _, Some(false)) => {
                let found =
                    "none: should all servers start anew at once, none knows how far tokens have come";
                return Finding::warning(what, found)
                    .hint("set `appendonly yes`, or rely on the clocks of all clients after that");
            }
            (false, _, None) => {
                return Finding::warning(
                    what,
                    "no log; whether there are snapshots is not known, since CONFIG GET is refused",
                )
                .hint("see that the server keeps something over a restart");
            }
        };
        Finding::good(what, format!("{kept}; {waits}"))
    }
}

/// What a log of changes promises.
fn log(fsync: Option<&str>) -> Finding {
    let what = "persistence";
    match fsync {
        Some("always") => Finding::good(what, "log, synced before each answer: a restart forgets nothing"),
        Some("everysec") => Finding::good(
            what,
            "log, synced every second: a killed server forgets nothing, a machine that loses its \
                power up to 2 s",
        ),
        Some(_) => Finding::warning(
            what,
            "log, synced when the system likes: a machine that loses its power forgets up to 30 s",
        )
        .hint("set `appendfsync everysec` or `always`"),
        None => Finding::warning(what, "log; when it is synced is not known, since CONFIG GET is refused")
            .hint("see that `appendfsync` is everysec or always"),
    }
}

fn version(server: &str) -> Finding {
    let what = "version";
    if let Some(version) = field(server, "valkey_version") {
        let found = format!("Valkey {version}, with which tenure has not been tested");
        return Finding::warning(what, found);
    }
    let Some(version) = field(server, "redis_version") else {
        return Finding::warning(what, "not said");
    };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let found = format!("Redis {version}");
    if major.is_some_and(|major| major < VERSION_MIN) {
        return Finding::bad(what, found)
            .hint("the scripts use commands that came with Redis 7.0: PEXPIRETIME, SET with NX and GET");
    }
    Finding::good(what, found)
}

fn role(replication: &str) -> Finding {
    match field(replication, "role") {
        Some("master") => Finding::good("role", "master"),
        other => Finding::bad("role", other.unwrap_or("not said").to_owned())
            .hint("name the master, or let `redis+sentinel://` find it"),
    }
}

/// `full_coverage`: the setting, where the server reports it.
fn cluster(text: &str, full_coverage: Option<&str>) -> Finding {
    let what = "topology";
    let count = |key| number(text, key).unwrap_or(0);
    let state = field(text, "cluster_state").unwrap_or("unknown");
    let slots = count("cluster_slots_ok");
    let (masters, nodes) = (count("cluster_size"), count("cluster_known_nodes"));
    let found = format!(
        "cluster, state {state}: {slots} of {SLOTS} slots served, {masters} masters of {nodes} nodes"
    );
    if state == "ok" && slots == SLOTS && full_coverage == Some("yes") {
        let found = format!("{found}; `cluster-require-full-coverage` is yes");
        return Finding::warning(what, found).hint(
            "while one master is away, all others refuse every claim and renewal: set \
            `cluster-require-full-coverage no` on all nodes",
        );
    }
    if state == "ok" && slots == SLOTS {
        return Finding::good(what, found);
    }
    let severity = if state == "ok" { Severity::Warning } else { Severity::Bad };
    Finding::new(severity, what, found)
        .hint("claims on slots that are not served fail: see `redis-cli --cluster check`")
}

fn memory(memory: &str) -> Finding {
    let what = "memory";
    let policy = field(memory, "maxmemory_policy").unwrap_or("not said");
    let (used, most) = (number(memory, "used_memory").unwrap_or(0), number(memory, "maxmemory").unwrap_or(0));
    let found = match most {
        0 => format!("{} MiB used, no limit, policy {policy}", used >> 20),
        _ => format!("{} of at most {} MiB used, policy {policy}", used >> 20, most >> 20),
    };
    if policy != "noeviction" {
        return Finding::warning(what, found).hint(
            "set `maxmemory-policy noeviction`, or give the locks a server of their own: a hold that is \
            evicted is granted to another while its holder works",
        );
    }
    if most > 0 && used >= most {
        return Finding::bad(what, found).hint("the server refuses claims: raise `maxmemory`");
    }
    if most > 0 && used.saturating_mul(100) >= most.saturating_mul(USED_PERCENT_WARNING) {
        return Finding::warning(what, found)
            .hint("raise `maxmemory`: at the limit the server refuses claims");
    }
    Finding::good(what, found)
}

/// A number in `slave0:ip=127.0.0.1,port=6380,state=online,offset=42,lag=0`.
fn part(line: &str, key: &str) -> Option<u64> {
    line.split(['=', ',', ':']).skip_while(|word| *word != key).nth(1)?.trim().parse().ok()
}

/// What the server's clock says, and what this machine's said at the same time.
pub(super) fn clock(server: Timestamp, here: Timestamp) -> Finding {
    let (difference, which) = clock_difference(server, here);
    let found = format!("{difference:.1?} {which} this machine's");
    if difference <= CLOCK_WARNING {
        return Finding::good("clock", found);
    }
    Finding::warning("clock", found).hint(
        "no lease depends on it, but tokens do: let all servers and machines keep the time, so that they \
        grow over a restart or a failover too",
    )
}

/// How long several answers took.
pub(super) fn latency(took: Vec<Duration>) -> Finding {
    let count = took.len();
    let (middle, worst) = middle_and_worst(took);
    let found = format!("{middle:.1?}, at worst {worst:.1?} of {count} PINGs");
    if worst <= LATENCY_WARNING {
        return Finding::good("latency", found);
    }
    Finding::warning("latency", found)
        .hint("choose a ttl of many times this, and see `redis-cli --latency` and SLOWLOG")
}

/// Whether functions can be called and loaded, and whether scripts can in their place: by their hash, which the server
/// does not know here, and by their text.
pub(super) fn scripts(functions: [&Said; 2], scripts: [&Said; 2]) -> Finding {
    let what = "scripts";
    let refused = |said: [&Said; 2]| {
        said.into_iter().find_map(|said| said.as_ref().err().filter(|fault| !fault.is_of_probe()).cloned())
    };
    match (refused(functions), refused(scripts)) {
        (None, None) => Finding::good(what, "functions are allowed, and scripts too"),
        (None, Some(_)) => Finding::good(what, "functions are allowed"),
        (Some(fault), None) => {
            Finding::good(what, format!("scripts are allowed; functions are not: {fault}"))
                .hint("allow the user FCALL and FUNCTION LOAD: each call costs the server less with them")
        }
        (Some(_), Some(fault)) => Finding::bad(what, format!("refused: {fault}"))
            .hint("allow the user FCALL and FUNCTION LOAD, or EVALSHA and EVAL"),
    }
}

/// What is worth saying about the prefix of all keys, if it is not the usual one.
pub(super) fn prefix(prefix: &str) -> Option<Finding> {
    if prefix == PREFIX {
        return None;
    }
    let found = match prefix {
        "" => "none: every plain string key is a lock to tenure".to_owned(),
        _ => format!("{prefix:?}: only clients with the same one share locks"),
    };
    Some(Finding::good("prefix", found))
}
