use tenure_core::engine::Severity::{Bad, Good, Warning};

use super::*;
use crate::client::endpoints::Seen;
use crate::client::proto::{AlarmMember, AlarmType, Member, ResponseHeader, StatusResponse};

fn status(leader: u64) -> StatusResponse {
    let header = Some(ResponseHeader { cluster_id: 7, ..ResponseHeader::default() });
    StatusResponse { header, leader, raft_term: 3, ..StatusResponse::default() }
}

fn seen(statuses: impl IntoIterator<Item = StatusResponse>) -> Vec<Seen> {
    let seen = |status| Seen { endpoint: "h:1".to_owned(), status: Ok(status) };
    statuses.into_iter().map(seen).collect()
}

fn member(id: u64) -> Member {
    Member { id, name: format!("n{id}"), ..Member::default() }
}

#[test]
fn old_versions_are_bad() {
    for (text, severity) in
        [("3.4.23", Good), ("3.5.0-rc.1", Good), ("4.0", Good), ("3.3.27", Bad), ("", Bad)]
    {
        assert_eq!(judge::version(text).severity, severity, "{text}");
    }
}

#[test]
fn who_votes_and_who_leads_is_told() {
    let all = [member(1), member(2), member(3)];
    let found = judge::members(&seen([status(2)]), &all);
    assert_eq!((found.severity, found.found.as_str()), (Good, "3 (3 vote), led by n2: it goes on without 1"));
    assert_eq!(judge::members(&seen([status(2)]), &all[..2]).severity, Warning);
    assert_eq!(judge::members(&seen([status(1)]), &all[..1]).severity, Good);
    assert_eq!(judge::members(&seen([status(0)]), &all).severity, Bad);
    // One that was cut off believes in a leader of an earlier term.
    let late = StatusResponse { raft_term: 2, ..status(1) };
    assert!(judge::members(&seen([late, status(3)]), &all).found.contains("n3"));
    let learner = Member { is_learner: true, ..member(4) };
    let found = judge::members(&seen([status(2)]), &[&all[..], &[learner]].concat());
    assert_eq!((found.severity, found.found.starts_with("4 (3 vote)")), (Good, true));
}

#[test]
fn endpoints_that_cannot_be_used_are_named() {
    assert_eq!(judge::endpoints(&seen([status(1), status(1)])), []);
    let other = StatusResponse {
        header: Some(ResponseHeader { cluster_id: 8, ..ResponseHeader::default() }),
        ..status(1)
    };
    let learner = StatusResponse { is_learner: true, ..status(1) };
    let down = Fault::Down { why: "cannot connect to h:2: refused".to_owned() };
    let mut all = seen([status(1), other, status(0), learner]);
    all.push(Seen { endpoint: "h:2".to_owned(), status: Err(down) });
    let found = judge::endpoints(&all);
    let severities: Vec<Severity> = found.iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Bad, Warning, Warning, Warning]);
    assert!(found[3].found.contains("refused"), "{found:?}");
}

#[test]
fn alarms_are_bad() {
    let of = |kind: AlarmType| AlarmMember { member_id: 1, alarm: kind.into() };
    assert_eq!(judge::alarms(&[]).severity, Good);
    assert!(judge::alarms(&[of(AlarmType::NoSpace)]).found.starts_with("NOSPACE"));
    let both = judge::alarms(&[of(AlarmType::NoSpace), of(AlarmType::Corrupt)]);
    assert_eq!((both.severity, both.found.starts_with("CORRUPT")), (Bad, true));
    assert_eq!(judge::alarms(&[AlarmMember { member_id: 1, alarm: 9 }]).severity, Bad);
}

#[test]
fn a_database_that_is_nearly_full_is_worth_a_warning() {
    let of = |size: i64, quota: i64| StatusResponse { db_size: size, db_size_quota: quota, ..status(1) };
    assert_eq!(judge::space(&seen([of(81, 100)])).severity, Warning);
    assert_eq!(judge::space(&seen([of(80, 100)])).severity, Good);
    assert!(judge::space(&seen([of(80, 0)])).found.contains("not told"));
    // The fullest counts.
    assert_eq!(judge::space(&seen([of(1, 100), of(90, 100)])).severity, Warning);
}

#[test]
fn the_shortest_lease_tells_the_election_timeout() {
    let secs = Duration::from_secs;
    let millis = Duration::from_millis;
    for (shortest, configured, severity) in [
        (secs(1), millis(100), Good),
        (secs(2), secs(1), Good),
        (secs(2), millis(666), Warning),
        (secs(8), secs(1), Warning),
        (secs(8), secs(5), Good),
        (secs(75), secs(50), Good),
        (secs(1), secs(5), Good),
    ] {
        let found = judge::election_timeout(shortest, configured);
        assert_eq!(found.severity, severity, "{found:?}");
    }
}

#[test]
fn slow_writes_are_worth_a_warning() {
    let took = |millis: [u64; 3]| judge::latency(millis.map(Duration::from_millis).to_vec());
    assert_eq!(took([1, 200, 2]).severity, Good);
    assert_eq!(took([60, 2, 70]).severity, Warning);
    assert_eq!(took([60, 2, 70]).found, "a write takes 60.0 ms, at worst 70.0 ms");
}
