//! Whether the cluster can be trusted: what `tenure doctor` prints.
//!
//! What is asked is here, and what follows from the answers in `judge`.

mod judge;

use std::time::Duration;

use tenure_core::engine::{Finding, Severity};
use tenure_core::model::claim::{ClaimId, Name};
use tokio::time::Instant;

use crate::client::endpoints::{Endpoints, deadline};
use crate::client::etcd_leases::EtcdLeases;
use crate::client::proto::{
    AlarmRequest, Compare, CompareResult, DeleteRangeRequest, MemberListRequest, Operation, PutRequest,
    Target, TxnRequest,
};
use crate::error::Fault;
use crate::keys::{Keys, get, range};

/// How many writes the latency is taken of.
const WRITES: usize = 5;
/// A name whose keys the rights are tried on. Nothing is written.
const NAME: &str = "tenure-doctor";

/// Looks at the servers.
pub(crate) async fn check(endpoints: &Endpoints, keys: &Keys, etcd_leases: &EtcdLeases) -> Vec<Finding> {
    let seen = endpoints.ask_each(deadline()).await;
    let Some(any) = seen.iter().find_map(|seen| seen.status.as_ref().ok()) else {
        let faults = seen.into_iter().filter_map(|seen| seen.status.err());
        return faults.map(|fault| judge::unseen("server", &fault, Severity::Bad)).collect();
    };
    let mut findings = vec![judge::version(&any.version)];
    findings.push(match endpoints.call(MemberListRequest::default(), deadline()).await {
        Ok(answer) => judge::members(&seen, &answer.members),
        Err(fault) => judge::unseen("members", &fault, Severity::Warning),
    });
    findings.extend(judge::endpoints(&seen));
    findings.push(match endpoints.call(AlarmRequest::default(), deadline()).await {
        Ok(answer) => judge::alarms(&answer.alarms),
        Err(fault) => judge::unseen("alarms", &fault, Severity::Warning),
    });
    findings.push(judge::space(&seen));
    findings.push(match rights(endpoints, keys).await {
        Ok(()) => judge::rights(keys.prefix()),
        Err(fault) => judge::unseen("rights", &fault, Severity::Bad),
    });
    match writes(etcd_leases).await {
        Ok((shortest, took)) => {
            findings.push(judge::election_timeout(shortest, etcd_leases.margin()));
            findings.push(judge::latency(took));
        }
        Err(fault) => findings.push(judge::unseen("writes", &fault, Severity::Bad)),
    }
    findings.push(judge::clock());
    findings
}

/// Has the server check the rights for all that the engine does, in a transaction whose condition is never true: it
/// checks those of both branches before it evaluates the condition.
async fn rights(endpoints: &Endpoints, keys: &Keys) -> Result<(), Fault> {
    let Ok(name) = Name::new(NAME) else { return Ok(()) };
    let claim = ClaimId::new(0);
    let place = keys.place(&name, claim);
    let written = [place.clone(), keys.held_value(&name, claim), keys.done(claim)];
    let put = |key: &Vec<u8>| Operation::Put(PutRequest { key: key.clone(), ..PutRequest::default() }).into();
    let delete = |key: &Vec<u8>| {
        Operation::DeleteRange(DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() })
            .into()
    };
    let read = [range(keys.line(&name)), range(keys.value(&name)), get(keys.done(claim))];
    let read = read.map(|request| Operation::Range(request).into());
    // No key is made before revision 0. A transaction may change a key once, so there are two.
    let compare = vec![Compare::of(place, CompareResult::Less, Target::Create(0))];
    let puts = TxnRequest {
        compare: compare.clone(),
        success: written.iter().map(put).collect(),
        failure: read.to_vec(),
    };
    endpoints.call(puts, deadline()).await?;
    let deletes = TxnRequest { compare, success: written.iter().map(delete).collect(), failure: Vec::new() };
    endpoints.call(deletes, deadline()).await.map(drop)
}

/// Begins the shortest leases that the cluster grants, and ends them: each is a write that most servers have synced.
async fn writes(etcd_leases: &EtcdLeases) -> Result<(Duration, Vec<Duration>), Fault> {
    let (mut shortest, mut took) = (Duration::ZERO, Vec::with_capacity(WRITES));
    for _ in 0..WRITES {
        let sent_at = Instant::now();
        let granted = etcd_leases.shortest().await?;
        took.push(sent_at.elapsed());
        shortest = granted.ttl;
        etcd_leases.revoke(granted.id).await?;
    }
    Ok((shortest, took))
}

#[cfg(test)]
mod tests;
