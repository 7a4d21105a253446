//! Whether the servers can be trusted: what `tenure doctor` prints.
//!
//! What is asked is here, and what follows from the answers in `judge`. A server that refuses a question is not an
//! error: the finding says that it could not be checked.

mod judge;

use std::time::Duration;

use redis::{Cmd, Value};
use tenure_core::Error;
use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::Incarnation;
use tenure_core::engine::finding::{Finding, Severity, merged};
use tenure_core::model::claim::Name;
use tokio::time::Instant;

use crate::doctor::judge::{Facts, Said};
use crate::error::Fault;
use crate::keys::Keys;
use crate::net::dial::text_of;
use crate::net::link::Link;
use crate::net::topology::{CALL_TIMEOUT, Servers};

/// How many PINGs the latency is taken of.
const PINGS: usize = 5;
/// A resource to read, whether it exists or not: that shows whether the scripts may read the keys.
pub(crate) const PROBE: &str = "tenure-doctor";

/// Checks every master, and what they have in common. `probe` reads the resource [`PROBE`].
pub(crate) async fn check(
    servers: &Servers,
    keys: &Keys,
    probe: impl Future<Output = Result<(), Error>>,
) -> Vec<Finding> {
    let masters = match servers.masters().await {
        Ok(masters) => masters,
        Err(fault) => return vec![judge::unseen("server", &fault, Severity::Bad)],
    };
    let mut found = Vec::new();
    for link in masters {
        found.push(of_server(servers, &link).await);
    }
    let mut findings = merged(found);
    findings.push(match probe.await {
        Ok(()) => Finding::good("keys", "a script may read them"),
        Err(error) => {
            let hint = error.hint().unwrap_or("see what the server's log says");
            Finding::bad("keys", error.to_string()).hint(hint)
        }
    });
    findings.extend(prefix(keys));
    findings
}

/// Returns the name of a server and what is found there.
async fn of_server(servers: &Servers, link: &Link) -> (String, Vec<Finding>) {
    let wire = match link.up(Instant::now() + CALL_TIMEOUT).await {
        Ok(wire) => wire,
        Err(fault) => return ("a master".to_owned(), vec![judge::unseen("server", &fault, Severity::Bad)]),
    };
    let server = wire.server().to_owned();
    let pings = match pings(link).await {
        Ok(pings) => pings,
        Err(fault) => return (server, vec![judge::unseen("server", &fault, Severity::Bad)]),
    };
    let facts = Facts {
        replicas_wanted: servers.replicas(),
        is_cluster: servers.is_cluster(),
        cluster: ask(link, &["CLUSTER", "INFO"]).await,
        full_coverage: setting(link, "cluster-require-full-coverage").await,
        ..facts(link).await
    };
    let mut findings = facts.judge();
    findings.push(clock(link).await);
    findings.push(judge::latency(pings));
    findings.push(scripts(link).await);
    (server, findings)
}

/// As `of_server`, for one of a quorum, which has no replicas, and whose clock is checked elsewhere.
pub async fn of_quorum(link: &Link) -> Vec<Finding> {
    let pings = match pings(link).await {
        Ok(pings) => pings,
        Err(fault) => return vec![judge::unseen("server", &fault, Severity::Bad)],
    };
    let facts = Facts { is_quorum: true, ..facts(link).await };
    let mut findings = facts.judge();
    findings.push(judge::latency(pings));
    findings.push(scripts(link).await);
    findings
}

/// What a server says that is alone.
async fn facts(link: &Link) -> Facts {
    Facts {
        server: ask(link, &["INFO", "server"]).await,
        memory: ask(link, &["INFO", "memory"]).await,
        persistence: ask(link, &["INFO", "persistence"]).await,
        replication: ask(link, &["INFO", "replication"]).await,
        cluster: Ok(String::new()),
        fsync: setting(link, "appendfsync").await,
        save: setting(link, "save").await,
        replicas_min: setting(link, "min-replicas-to-write").await,
        full_coverage: None,
        replicas_wanted: 0,
        is_cluster: false,
        is_quorum: false,
    }
}

/// Whether functions, or scripts in their place, can be called.
async fn scripts(link: &Link) -> Finding {
    let unknown = "0".repeat(40);
    let known = ask(link, &["EVALSHA", &unknown, "0"]).await;
    let text = ask(link, &["EVAL", "return 'yes'", "0"]).await;
    // A function that does not exist, and a library that cannot be: refused for that, or for want of rights.
    let function = ask(link, &["FCALL", &unknown, "0"]).await;
    let library = ask(link, &["FUNCTION", "LOAD", ""]).await;
    judge::scripts([&function, &library], [&known, &text])
}

async fn run_command(link: &Link, words: &[&str]) -> Result<Value, Fault> {
    let build = |_: Incarnation| {
        let mut cmd = Cmd::new();
        for word in words {
            cmd.arg(*word);
        }
        cmd
    };
    Ok(link.call(Instant::now() + CALL_TIMEOUT, &build).await?.0)
}

async fn ask(link: &Link, words: &[&str]) -> Said {
    text_of(run_command(link, words).await?, "the server")
}

/// Returns a setting of the server; none where it refuses to show it.
async fn setting(link: &Link, name: &str) -> Option<String> {
    let answer = run_command(link, &["CONFIG", "GET", name]).await.ok()?;
    let pairs: Vec<(String, String)> = redis::from_redis_value(answer).ok()?;
    pairs.into_iter().find_map(|(key, value)| (key == name).then_some(value))
}

/// How long the server took to answer, several times.
async fn pings(link: &Link) -> Result<Vec<Duration>, Fault> {
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent_at = Instant::now();
        run_command(link, &["PING"]).await?;
        took.push(sent_at.elapsed());
    }
    Ok(took)
}

async fn clock(link: &Link) -> Finding {
    let sent_at = Instant::now();
    let answer = run_command(link, &["TIME"]).await;
    let (took, received) = (sent_at.elapsed(), SystemClock.time_of_day());
    let answer = match answer {
        Ok(answer) => answer,
        Err(fault) => return judge::unseen("clock", &fault, Severity::Warning),
    };
    match redis::from_redis_value::<(u64, u64)>(answer) {
        Ok((seconds, micros)) => {
            let server = Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros));
            // The server read its clock half-way, as far as can be known.
            judge::clock(server + took / 2, received)
        }
        Err(error) => Finding::warning("clock", format!("the answer to TIME is strange: {error}")),
    }
}

fn prefix(keys: &Keys) -> Option<Finding> {
    let key = keys.of(&Name::new(PROBE).ok()?).ok()?;
    judge::prefix(key.text.strip_suffix(PROBE)?)
}

#[cfg(test)]
mod tests;
