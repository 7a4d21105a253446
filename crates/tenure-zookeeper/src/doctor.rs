//! Whether the ensemble can be trusted: what `tenure doctor` prints.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::Result;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::finding::{Finding, Severity, middle_and_worst};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zookeeper_client::{Acl, CreateOptions, Permission};

use crate::client::session::Session;
use crate::config::Config;
use crate::error::{ANSWER_MAX, Fault};
use crate::locks::node::Layout;
use crate::quota::{self, Fullness};

/// How many answers the latency is taken of.
const PINGS: usize = 5;
/// What is slow for a server in the same place.
const SLOW: Duration = Duration::from_millis(50);
/// The oldest version that has containers, and removes watches.
const OLDEST: [u32; 3] = [3, 5, 3];

fn unseen(what: &'static str, fault: &Fault) -> Finding {
    let severity = if *fault == Fault::NoAuth { Severity::Warning } else { Severity::Bad };
    Finding::new(severity, what, format!("cannot be looked at: {fault}"))
}

/// Looks at the servers, the way to them, and what this client may do there. `make` is how it makes a container.
pub(crate) async fn check(
    config: &Config,
    session: Result<Arc<Session>>,
    make: CreateOptions<'static>,
) -> Vec<Finding> {
    let session = match session {
        Ok(session) => session,
        Err(error) => return vec![Finding::bad("servers", error.to_string()).hint_of(&error)],
    };
    let mut findings = servers(config).await;
    findings.push(timeouts(config, &session));
    findings.push(containers(config, &session, make).await);
    findings.push(access(config, &session).await);
    findings.push(quota(config, &session).await);
    findings.push(latency(&session).await);
    let why = "locks depend on none; queues go by the leader's, so the servers' must agree (NTP)";
    findings.push(Finding::good("clock", why));
    findings
}

/// What the servers say of themselves.
async fn servers(config: &Config) -> Vec<Finding> {
    if config.is_tls {
        let why = "servers are not asked what they are where TLS is used";
        return vec![
            Finding::warning("version", why).hint("ask one for `srvr`, for its version and its mode"),
        ];
    }
    let asked = config.hosts.iter().map(|host| async move { (host, ask(host).await) });
    let answers = join_all(asked).await;
    let mut versions = Vec::new();
    let (mut modes, mut silent) = (Vec::new(), Vec::new());
    for (host, answer) in &answers {
        let field = |name: &str| answer.as_deref()?.lines().find_map(|line| line.strip_prefix(name));
        match (field("Zookeeper version: "), field("Mode: ")) {
            (Some(version), Some(mode)) => {
                versions.push(version.split([',', '-', ' ']).next().unwrap_or_default().to_owned());
                modes.push(format!("{host} {mode}"));
            }
            // Others say only that they may not.
            _ if answer.as_deref().is_some_and(|text| text.contains("whitelist")) => {}
            _ => silent.push(host.to_string()),
        }
    }
    let mut findings = vec![judge_version(&versions)];
    findings.push(if !silent.is_empty() {
        let found = format!("{} do not serve; {}", silent.join(", "), modes.join(", "));
        Finding::warning("ensemble", found).hint("a majority is enough, and less is not: start them again")
    } else if modes.is_empty() {
        Finding::warning("ensemble", "the servers do not tell their modes").hint(ALLOW)
    } else if modes.iter().any(|mode| mode.ends_with("standalone")) {
        let found = format!("{}: nobody takes over when it fails", modes.join(", "));
        Finding::warning("ensemble", found).hint("three servers go on when one of them fails")
    } else {
        Finding::good("ensemble", modes.join(", "))
    });
    findings
}

const ALLOW: &str = "add `4lw.commands.whitelist=srvr` to their configuration to see it here";

fn judge_version(versions: &[String]) -> Finding {
    let Some(oldest) = versions.iter().min_by_key(|version| numbers(version)) else {
        return Finding::warning("version", "the servers do not tell it").hint(ALLOW);
    };
    if numbers(oldest) < OLDEST.to_vec() {
        return Finding::bad("version", oldest.clone())
            .hint("use 3.5.3 or later: older servers keep the node of each name for ever");
    }
    Finding::good("version", oldest.clone())
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// Asks a server for `srvr`.
async fn ask(host: &str) -> Option<String> {
    let asked = async {
        let mut stream = TcpStream::connect(host).await?;
        stream.write_all(b"srvr").await?;
        let mut answer = String::new();
        stream.take(64 * 1024).read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    timeout(ANSWER_MAX, asked).await.ok()?.ok()
}

fn timeouts(config: &Config, session: &Session) -> Finding {
    let (asked, granted) = (config.session_timeout, session.timeout);
    if granted != asked {
        let found = format!("{granted:?}, though {asked:?} was asked for");
        return Finding::warning("session timeout", found).hint(
            "servers grant 2 to 20 of their ticks: set `session_timeout` to that, or their `maxSessionTimeout`",
        );
    }
    let found =
        format!("{granted:?}: what a dead client held is free then, and no sooner, however short its ttl");
    Finding::good("session timeout", found)
}

/// Makes a container and removes it.
async fn containers(config: &Config, session: &Session, make: CreateOptions<'static>) -> Finding {
    let path = format!("{}/%doctor-{:016x}", config.chroot, SystemClock.random());
    let made = session.client.create(&path, b"", &make).await;
    match made {
        Ok(_) => match session.client.delete(&path, None).await {
            Ok(()) if config.layout == Layout::Kazoo => {
                Finding::good("containers", "not used: the node of each name stays, as kazoo wants it to")
            }
            Ok(()) => Finding::good("containers", "idle names leave nothing behind"),
            Err(fault) => unseen("containers", &fault),
        },
        Err(Fault::Unimplemented) => {
            Finding::warning("containers", "there are none: the node of each name stays for ever")
                .hint("use servers of version 3.5.3 or later")
        }
        Err(Fault::NoAuth) => Finding::bad("containers", "this client may not make nodes below its path")
            .hint("let the URL's user read, write, create and delete there"),
        Err(fault) => unseen("containers", &fault),
    }
}

/// Which users may do what below the path of the URL.
async fn access(config: &Config, session: &Session) -> Finding {
    let path = if config.chroot.is_empty() { "/" } else { &config.chroot };
    let (list, _) = match session.client.get_acl(path).await {
        Ok(acl) => acl,
        Err(fault) => return unseen("access", &fault),
    };
    let is_open = |acl: &Acl| acl.scheme() == "world" && acl.permission().has(Permission::DELETE);
    if list.iter().any(is_open) {
        return Finding::warning("access", format!("everybody may remove what is below {path}"))
            .hint("give the URL a user and a path of its own, which is then made for that user alone");
    }
    Finding::good("access", format!("{path} is not everybody's"))
}

/// How much is used of what operators allow below the path of the URL.
async fn quota(config: &Config, session: &Session) -> Finding {
    let quota = match quota::read(&session.client, &config.chroot).await {
        Ok(Some(quota)) => quota,
        Ok(None) => return Finding::good("quota", "none is set for the path"),
        Err(fault) => return unseen("quota", &fault),
    };
    let found = format!("{}: {}", quota.path, quota.shown());
    match (quota.fullness(), quota.soft_fullness()) {
        (Fullness::Full, _) => Finding::bad("quota", found).hint(
            "where the servers have `enforceQuota`, nothing new is granted or pushed: raise it with `setquota -N` or `-B`",
        ),
        (Fullness::Near, _) => Finding::warning("quota", found)
            .hint("where the servers have `enforceQuota`, claims and pushes fail beyond it: raise it in time"),
        (Fullness::Room, Fullness::Room) => Finding::good("quota", found),
        (Fullness::Room, _) => {
            Finding::warning("quota", found).hint("servers log it, and refuse nothing: is something left behind?")
        }
    }
}

async fn latency(session: &Session) -> Finding {
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent = SystemClock.now();
        match timeout(ANSWER_MAX, session.client.sync("/")).await {
            Ok(Ok(())) => took.push(SystemClock.now().since(sent)),
            Ok(Err(fault)) => return unseen("latency", &fault),
            Err(_) => return unseen("latency", &Fault::Timeout),
        }
    }
    let (middle, _) = middle_and_worst(took);
    let found = format!("{:.1} ms to the leader and back", middle.as_secs_f64() * 1000.0);
    if middle > SLOW {
        return Finding::warning("latency", found)
            .hint("each claim takes at least that long; are the servers far away, or busy?");
    }
    Finding::good("latency", found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, severity) in [
            ("3.4.14", Severity::Bad),
            ("3.5.2", Severity::Bad),
            ("3.5.3", Severity::Good),
            ("3.10.0", Severity::Good),
        ] {
            assert_eq!(
                judge_version(&["3.11.0".to_owned(), version.to_owned()]).severity,
                severity,
                "{version}"
            );
        }
        assert_eq!(judge_version(&[]).severity, Severity::Warning);
    }
}
