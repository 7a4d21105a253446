//! What follows from what the servers say. Text in, findings out.

use std::time::Duration;

use tenure_core::engine::{Finding, Severity};

use crate::client::endpoints::Seen;
use crate::client::proto::{AlarmMember, AlarmType, Member};
use crate::error::Fault;

/// The first version with which tenure may be used: older ones have no transactions in transactions that were tried.
const VERSION_MIN: (u32, u32) = (3, 4);
/// A database that fills more of its quota than this, in percent, is worth a warning: a full one takes no writes.
const SPACE_WARNING: i64 = 80;
/// A cluster that takes longer to write is worth a warning: a claim is one write, and each waits for the disks of most servers.
const LATENCY_WARNING: Duration = Duration::from_millis(50);

pub(super) fn finding(severity: Severity, what: &'static str, found: impl Into<String>) -> Finding {
    Finding { severity, what, found: found.into(), hint: None }
}

fn hinted(severity: Severity, what: &'static str, found: impl Into<String>, hint: &str) -> Finding {
    Finding { hint: Some(hint.to_owned()), ..finding(severity, what, found) }
}

/// What a server refuses to say, or cannot.
pub(super) fn unseen(what: &'static str, fault: &Fault, severity: Severity) -> Finding {
    let error = fault.to_error("look");
    hinted(severity, what, format!("cannot be looked at: {error}"), error.hint().unwrap_or_default())
}

pub(super) fn version(text: &str) -> Finding {
    let (what, found) = ("version", format!("etcd {text}"));
    let mut numbers = text.split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= VERSION_MIN => finding(Severity::Good, what, found),
        _ => hinted(Severity::Bad, what, found, "use etcd 3.4 or newer; the tests run against 3.4"),
    }
}

/// Who is in the cluster, and who leads.
pub(super) fn members(seen: &[Seen], members: &[Member]) -> Finding {
    let what = "members";
    let statuses: Vec<_> = seen.iter().filter_map(|seen| seen.status.as_ref().ok()).collect();
    let newest = statuses.iter().max_by_key(|status| status.raft_term);
    let leader = newest.map_or(0, |status| status.leader);
    let name = |member: &Member| {
        if member.name.is_empty() { format!("{:x}", member.id) } else { member.name.clone() }
    };
    let Some(leader) = members.iter().find(|member| member.id == leader) else {
        let hint = "most members must run and reach one another; see `etcdctl endpoint status`";
        return hinted(Severity::Bad, what, format!("{} and no leader", members.len()), hint);
    };
    let voters = members.iter().filter(|member| !member.is_learner).count();
    let found = format!("{} ({voters} vote), led by {}", members.len(), name(leader));
    match voters {
        1 => finding(Severity::Good, what, format!("{found}: nothing is granted while it is down")),
        _ if voters % 2 == 0 => {
            let hint = "use 3 or 5: an even number survives no more failures than one less";
            hinted(Severity::Warning, what, found, hint)
        }
        _ => finding(Severity::Good, what, format!("{found}: it goes on without {}", (voters - 1) / 2)),
    }
}

/// Which of the URL's endpoints cannot be used.
pub(super) fn endpoints(seen: &[Seen]) -> Vec<Finding> {
    let what = "endpoint";
    let cluster = |seen: &Seen| seen.status.as_ref().ok()?.header.map(|header| header.cluster_id);
    let first = seen.iter().find_map(cluster);
    let judge = |seen: &Seen| {
        let name = &seen.endpoint;
        match &seen.status {
            Err(fault) => Some(unseen(what, fault, Severity::Warning)),
            Ok(_) if cluster(seen) != first => {
                let found = format!("{name} is of another cluster than the first that answered");
                Some(hinted(Severity::Bad, what, found, "name servers of one cluster alone in the URL"))
            }
            Ok(status) if status.leader == 0 => {
                let hint = "see whether it reaches the others; the client uses another endpoint meanwhile";
                Some(hinted(Severity::Warning, what, format!("{name} knows no leader"), hint))
            }
            Ok(status) if status.is_learner => {
                let hint = "it cannot be used until it is promoted: `etcdctl member promote`";
                Some(hinted(Severity::Warning, what, format!("{name} is a learner"), hint))
            }
            Ok(_) => None,
        }
    };
    seen.iter().filter_map(judge).collect()
}

pub(super) fn alarms(alarms: &[AlarmMember]) -> Finding {
    let what = "alarms";
    let is = |kind: AlarmType| move |alarm: &AlarmMember| alarm.alarm == i32::from(kind);
    if alarms.iter().any(is(AlarmType::Corrupt)) {
        let hint = "replace the member whose data is damaged: `etcdctl alarm list` names it";
        return hinted(Severity::Bad, what, "CORRUPT: members disagree about the data", hint);
    }
    if alarms.iter().any(is(AlarmType::NoSpace)) {
        let hint = "compact and defragment, then disarm it: `etcdctl alarm disarm`";
        return hinted(Severity::Bad, what, "NOSPACE: nothing is granted, and holds end by their ttl", hint);
    }
    match alarms.len() {
        0 => finding(Severity::Good, what, "none"),
        count => {
            hinted(Severity::Bad, what, format!("{count} of an unknown kind"), "see `etcdctl alarm list`")
        }
    }
}

/// How full the fullest server is.
pub(super) fn space(seen: &[Seen]) -> Finding {
    let what = "space";
    let statuses = seen.iter().filter_map(|seen| seen.status.as_ref().ok());
    let Some(status) = statuses.max_by_key(|status| status.db_size) else {
        return finding(Severity::Warning, what, "not known");
    };
    let mib = |bytes: i64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let found = format!("{}, of which {} in use", mib(status.db_size), mib(status.db_size_in_use));
    let quota = status.db_size_quota;
    if quota == 0 {
        let what_is_known =
            "the quota is not told before etcd 3.6; it is 2 GiB unless the servers say otherwise";
        return finding(Severity::Good, what, format!("{found} ({what_is_known})"));
    }
    let found = format!("{found}; the quota is {}", mib(quota));
    if status.db_size.saturating_mul(100) > quota.saturating_mul(SPACE_WARNING) {
        let hint = "compact and defragment, or raise `--quota-backend-bytes`: a full one takes no writes";
        return hinted(Severity::Warning, what, found, hint);
    }
    finding(Severity::Good, what, found)
}

pub(super) fn rights(prefix: &str) -> Finding {
    finding(Severity::Good, "rights", format!("the keys under {prefix:?} may be read and written"))
}

/// Compares the URL's election timeout with that of the servers, which nobody tells: but their shortest lease is one and a
/// half of it, rounded up to seconds.
pub(super) fn election_timeout(shortest: Duration, configured: Duration) -> Finding {
    let what = "election_timeout";
    let part = |seconds: u64| Duration::from_millis(seconds * 2000 / 3);
    let (above, most) = (part(shortest.as_secs().saturating_sub(1)), part(shortest.as_secs()));
    let found = format!(
        "{configured:?} in the URL; the servers' is above {above:?} and {most:?} at most, by their shortest lease ({shortest:?})"
    );
    if configured <= above {
        let hint = "write the servers' `--election-timeout` as `?election_timeout=`: a server that was cut off may promise so much too much";
        return hinted(Severity::Warning, what, found, hint);
    }
    finding(Severity::Good, what, found)
}

pub(super) fn latency(mut took: Vec<Duration>) -> Finding {
    took.sort_unstable();
    let (middle, worst) = (took.get(took.len() / 2), took.last());
    let (middle, worst) = (middle.copied().unwrap_or_default(), worst.copied().unwrap_or_default());
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    let found = format!("a write takes {:.1} ms, at worst {:.1} ms", millis(middle), millis(worst));
    if middle > LATENCY_WARNING {
        let hint = "each write waits for the disks of most servers: use faster disks, or long ttls";
        return hinted(Severity::Warning, "latency", found, hint);
    }
    finding(Severity::Good, "latency", found)
}

/// No clock is compared with another.
pub(super) fn clock() -> Finding {
    let found =
        "does not matter: the leader counts ttls by the time that has passed, and tokens are revisions";
    finding(Severity::Good, "clock", found)
}
