//! What operators allow below a path: the quota that servers of 3.7 and later keep to where `enforceQuota` is set.
//!
//! A server refuses what makes a node, or more bytes, beyond a hard limit, and never a deletion. It compares each operation with what was
//! committed before its transaction, so a transaction cannot make the room that it needs.

use futures_util::future::{join, join_all};
use zookeeper_client::Client;

use crate::error::Fault;

/// Above what share of a limit it is nearly used up, in percent.
const NEAR: i64 = 80;

/// A quota of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) path: String,
    nodes: Limit,
    bytes: Limit,
}

/// What is used of one limit, and how much that may be. `None`: as much as it wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limit {
    used: i64,
    soft: Option<i64>,
    hard: Option<i64>,
}

/// How much of a quota is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fullness {
    Room,
    Near,
    Full,
}

impl Limit {
    fn fullness(self, limit: Option<i64>) -> Fullness {
        match limit {
            Some(limit) if self.used >= limit => Fullness::Full,
            Some(limit) if self.used.saturating_mul(100) >= limit.saturating_mul(NEAR) => Fullness::Near,
            _ => Fullness::Room,
        }
    }

    fn shown(self, what: &str) -> Option<String> {
        let limit = self.hard.or(self.soft)?;
        let kind = if self.hard.is_some() { "" } else { " (a limit that servers only log)" };
        Some(format!("{} of {limit} {what}{kind}", self.used))
    }
}

impl Quota {
    /// Whether servers that enforce quotas refuse what is beyond it.
    pub(crate) fn is_hard(&self) -> bool {
        self.nodes.hard.is_some() || self.bytes.hard.is_some()
    }

    /// How much is used of what is refused beyond.
    pub(crate) fn fullness(&self) -> Fullness {
        self.nodes.fullness(self.nodes.hard).max(self.bytes.fullness(self.bytes.hard))
    }

    /// How much is used of what is only logged beyond.
    pub(crate) fn soft_fullness(&self) -> Fullness {
        self.nodes.fullness(self.nodes.soft).max(self.bytes.fullness(self.bytes.soft))
    }

    /// Returns what is used: `19 of 20 nodes`.
    pub(crate) fn shown(&self) -> String {
        let parts = [self.nodes.shown("nodes"), self.bytes.shown("bytes")];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Reads a line such as `count=5,bytes=-1=;byteHardLimit=-1;countHardLimit=20`. What is not there, or -1, is no limit.
fn number(text: &[u8], name: &str) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number = text.split([',', ';']).find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    number.trim_end_matches('=').parse().ok().filter(|number| *number >= 0)
}

/// Reads the quota that holds for what is below a path: its own, or that of a node above it.
pub(crate) async fn read(client: &Client, path: &str) -> Result<Option<Quota>, Fault> {
    let above = path.match_indices('/').map(|(at, _)| &path[..at]);
    let paths: Vec<&str> = above.chain([path]).collect();
    let read = |path: &str| {
        let quota = format!("/zookeeper/quota{path}");
        let path = if path.is_empty() { "/".to_owned() } else { path.to_owned() };
        async move {
            let (limits, stats) = (format!("{quota}/zookeeper_limits"), format!("{quota}/zookeeper_stats"));
            match join(client.get_data(&limits), client.get_data(&stats)).await {
                (Ok((limits, _)), Ok((stats, _))) => Ok(Some(parse(path, &limits, &stats))),
                (Err(Fault::NoNode), _) | (_, Err(Fault::NoNode)) => Ok(None),
                (Err(fault), _) | (_, Err(fault)) => Err(fault),
            }
        }
    };
    let found: Result<Vec<Option<Quota>>, Fault> =
        join_all(paths.into_iter().map(read)).await.into_iter().collect();
    Ok(found?.into_iter().flatten().next_back())
}

fn parse(path: String, limits: &[u8], stats: &[u8]) -> Quota {
    let limit = |soft: &str, hard: &str| Limit {
        used: number(stats, soft).unwrap_or_default(),
        soft: number(limits, soft),
        hard: number(limits, hard),
    };
    Quota { path, nodes: limit("count", "countHardLimit"), bytes: limit("bytes", "byteHardLimit") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(limits: &str, stats: &str) -> Quota {
        parse("/locks".to_owned(), limits.as_bytes(), stats.as_bytes())
    }

    #[test]
    fn a_quota_says_what_is_left() {
        let limits = "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=20";
        for (used, fullness) in
            [(15, Fullness::Room), (16, Fullness::Near), (20, Fullness::Full), (23, Fullness::Full)]
        {
            let quota = quota(limits, &format!("count={used},bytes=1000"));
            assert!(quota.is_hard());
            assert_eq!((quota.fullness(), quota.soft_fullness()), (fullness, Fullness::Room), "{used}");
            assert_eq!(quota.shown(), format!("{used} of 20 nodes"));
        }
        let both = quota("count=-1,bytes=900=;byteHardLimit=2000;countHardLimit=20", "count=2,bytes=1000");
        assert_eq!((both.fullness(), both.soft_fullness()), (Fullness::Room, Fullness::Full));
        assert_eq!(both.shown(), "2 of 20 nodes, 1000 of 2000 bytes");
    }

    #[test]
    fn a_quota_of_before_hard_limits_is_only_logged() {
        let quota = quota("count=10,bytes=-1", "count=10,bytes=7");
        assert!(!quota.is_hard());
        assert_eq!((quota.fullness(), quota.soft_fullness()), (Fullness::Room, Fullness::Full));
        assert!(quota.shown().starts_with("10 of 10 nodes ("), "{}", quota.shown());
    }

    #[test]
    fn what_is_no_quota_limits_nothing() {
        for text in ["", "count", "count=,bytes=x", "\u{e4}=1;;countHardLimit=-1"] {
            assert_eq!(quota(text, text), quota("", ""), "{text}");
        }
    }
}
