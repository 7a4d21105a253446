//! What follows from what the servers say. Text in, findings out.

use std::time::Duration;

use tenure_core::engine::finding::{Finding, Severity, middle_and_worst};

use crate::client::endpoints::Seen;
use crate::client::proto::{AlarmMember, AlarmType, Member};
use crate::error::Fault;

/// The first version with which tenure may be used: older ones have no transactions in transactions that were tried.
const VERSION_MIN: (u32, u32) = (3, 4);
/// A database that fills more of its quota than this, in percent, is worth a warning: a full one takes no writes.
const SPACE_WARNING: i64 = 80;
/// A cluster that takes longer to write is worth a warning: a claim is one write, and each waits for the disks of most servers.
const LATENCY_WARNING: Duration = Duration::from_millis(50);

/// What a server refuses to say, or cannot.
pub(super) fn unseen(what: &'static str, fault: &Fault, severity: Severity) -> Finding {
    Finding::unseen(severity, what, &fault.to_error("look"))
}

pub(super) fn version(text: &str) -> Finding {
    let (what, found) = ("version", format!("etcd {text}"));
    let mut numbers = text.split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= VERSION_MIN => Finding::good(what, found),
        _ => Finding::bad(what, found).hint("use etcd 3.4 or newer; the tests run against 3.4"),
    }
}

/// The members of the cluster, and its leader.
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
        return Finding::bad(what, format!("{} and no leader", members.len())).hint(hint);
    };
    let voters = members.iter().filter(|member| !member.is_learner).count();
    let found = format!("{} ({voters} vote), led by {}", members.len(), name(leader));
    match voters {
        1 => Finding::good(what, format!("{found}: nothing is granted while it is down")),
        _ if voters % 2 == 0 => Finding::warning(what, found)
            .hint("use 3 or 5: an even number survives no more failures than one less"),
        _ => Finding::good(what, format!("{found}: it goes on without {}", (voters - 1) / 2)),
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
                Some(Finding::bad(what, found).hint("name servers of one cluster alone in the URL"))
            }
            Ok(status) if status.leader == 0 => {
                let hint = "see whether it reaches the others; the client uses another endpoint meanwhile";
                Some(Finding::warning(what, format!("{name} knows no leader")).hint(hint))
            }
            Ok(status) if status.is_learner => {
                let hint = "it cannot be used until it is promoted: `etcdctl member promote`";
                Some(Finding::warning(what, format!("{name} is a learner")).hint(hint))
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
        return Finding::bad(what, "CORRUPT: members disagree about the data")
            .hint("replace the member whose data is damaged: `etcdctl alarm list` names it");
    }
    if alarms.iter().any(is(AlarmType::NoSpace)) {
        return Finding::bad(what, "NOSPACE: nothing is granted, and holds end by their ttl")
            .hint("compact and defragment, then disarm it: `etcdctl alarm disarm`");
    }
    match alarms.len() {
        0 => Finding::good(what, "none"),
        count => Finding::bad(what, format!("{count} of an unknown kind")).hint("see `etcdctl alarm list`"),
    }
}

/// How full the fullest server is.
pub(super) fn space(seen: &[Seen]) -> Finding {
    let what = "space";
    let statuses = seen.iter().filter_map(|seen| seen.status.as_ref().ok());
    let Some(status) = statuses.max_by_key(|status| status.db_size) else {
        return Finding::warning(what, "not known");
    };
    let mib = |bytes: i64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let found = format!("{}, of which {} in use", mib(status.db_size), mib(status.db_size_in_use));
    let quota = status.db_size_quota;
    if quota == 0 {
        let what_is_known =
            "the quota is not told before etcd 3.6; it is 2 GiB unless the servers say otherwise";
        return Finding::good(what, format!("{found} ({what_is_known})"));
    }
    let found = format!("{found}; the quota is {}", mib(quota));
    if status.db_size.saturating_mul(100) > quota.saturating_mul(SPACE_WARNING) {
        return Finding::warning(what, found)
            .hint("compact and defragment, or raise `--quota-backend-bytes`: a full one takes no writes");
    }
    Finding::good(what, found)
}

pub(super) fn rights(prefix: &str) -> Finding {
    Finding::good("rights", format!("the keys under {prefix:?} may be read and written"))
}

/// Compares the URL's election timeout with that of the servers, which is not shown: but their shortest lease is one
/// and a half of it, rounded up to seconds.
pub(super) fn election_timeout(shortest: Duration, configured: Duration) -> Finding {
    let what = "election_timeout";
    let part = |seconds: u64| Duration::from_millis(seconds * 2000 / 3);
    let (above, most) = (part(shortest.as_secs().saturating_sub(1)), part(shortest.as_secs()));
    let found = format!(
        "{configured:?} in the URL; the servers' is above {above:?} and {most:?} at most, by their shortest lease ({shortest:?})"
    );
    if configured <= above {
        return Finding::warning(what, found).hint(
            "write the servers' `--election-timeout` as `?election_timeout=`: a server that was cut off may promise so \
             much too much",
        );
    }
    Finding::good(what, found)
}

pub(super) fn latency(took: Vec<Duration>) -> Finding {
    let (middle, worst) = middle_and_worst(took);
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    let found = format!("a write takes {:.1} ms, at worst {:.1} ms", millis(middle), millis(worst));
    if middle > LATENCY_WARNING {
        return Finding::warning("latency", found)
            .hint("each write waits for the disks of most servers: use faster disks, or long ttls");
    }
    Finding::good("latency", found)
}

/// No clock is compared with another.
pub(super) fn clock() -> Finding {
    Finding::good(
        "clock",
        "does not matter: the leader counts ttls by the time that has passed, and tokens are revisions",
    )
}
