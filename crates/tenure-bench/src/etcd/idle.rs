//! Waiters of one lock while nothing happens: what a server sends them.

use std::time::Duration;

use tenure::Tenure;
use tenure_testkit::etcd::{EtcdOptions, EtcdServer};

use super::{Any, Users, runtime, server_cpu};
use crate::measure::{Outcome, now};
use crate::report::{Report, Target};

/// How many wait, and in how many clients.
const WAITERS: usize = 1_000;
const CLIENTS: [usize; 2] = [1, 100];
/// How long the server is looked at: six heartbeats of each waiter, which sends one each 1.7 s.
const IDLE: Duration = Duration::from_secs(10);
/// Those who came while the line was short look within half a minute how long it is now, and read it once. After this pause they have.
const PAUSE: Duration = Duration::from_secs(20);
const NAME: &str = "line";

/// What the server did in a second.
struct Seen {
    sent: f64,
    transactions: f64,
    /// Of a processor.
    share: f64,
}

/// There is no peer: each waiter of `etcdctl lock` is a process with a lease of its own.
pub(crate) fn idle_waiters(report: &mut Report) -> Outcome {
    for clients in CLIENTS {
        let server = EtcdServer::start(&EtcdOptions::default());
        let seen = runtime()?.block_on(watch(&server, clients))?;
        for (when, Seen { sent, transactions, share }) in ["at first", "half a minute later"].iter().zip(seen)
        {
            report.add(
                &format!(
                    "etcd, one lock, {WAITERS} idle waiters in {clients} client(s): what the server sends, {when}"
                ),
                format!(
                    "{:.0} kB/s ({transactions:.0} transactions/s, {:.0} % of a processor of the server)",
                    sent / 1e3,
                    share * 100.0
                ),
                String::new(),
                sent / 1e3,
                Target::AtMost(200.0, "≤ 200 kB/s"),
            );
        }
    }
    Ok(())
}

/// Has so many clients wait, and looks as soon as they do, and later.
async fn watch(server: &EtcdServer, count: usize) -> Any<[Seen; 2]> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(tenure::connect(&server.url()).await?);
    }
    let holder = clients[0].mutex(NAME).acquire().await?;
    let mut waiters = Users::new();
    for waiter in 0..WAITERS {
        let mutex = clients[waiter % count].mutex(NAME);
        waiters
            .spawn(async move { Err(format!("somebody did not wait: {:?}", mutex.acquire().await).into()) });
    }
    while waiting(&clients[0]).await? < WAITERS {
        pause(Duration::from_millis(100)).await;
    }
    let at_first = look(server).await;
    pause(PAUSE).await;
    let seen = [at_first, look(server).await];
    if let Some(ended) = waiters.try_join_next() {
        return Err(format!("a waiter has ended: {ended:?}").into());
    }
    waiters.shutdown().await;
    holder.release().await?;
    for client in clients {
        client.close().await;
    }
    Ok(seen)
}

async fn look(server: &EtcdServer) -> Seen {
    let used = || {
        let count = |name| server.metric(name) as f64;
        (
            count("etcd_network_client_grpc_sent_bytes_total"),
            count("grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\""),
            server_cpu(server).as_secs_f64(),
        )
    };
    let (before, began) = (used(), now());
    pause(IDLE).await;
    let (after, seconds) = (used(), now().since(began).as_secs_f64());
    Seen {
        sent: (after.0 - before.0) / seconds,
        transactions: (after.1 - before.1) / seconds,
        share: (after.2 - before.2) / seconds,
    }
}

/// How many wait.
async fn waiting(client: &Tenure) -> Any<usize> {
    let view = client.view(NAME).await?;
    Ok(view.map_or(0, |view| view.waiting as usize))
}

#[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
fn pause(period: Duration) -> impl Future<Output = ()> {
    tokio::time::sleep(period)
}
