//! A million leases in one client: what they cost it and the server.

use std::time::Duration;

use super::{Done, Place, Users, one_worker, pause};
use crate::measure::{Outcome, resident};
use crate::report::{Report, Target};

const LEASES: usize = 1_000_000;
const TTL: Duration = Duration::from_secs(30);
/// How many claims are under way while the leases are taken.
const TASKS: usize = 1000;
/// The first renewals come while leases are still taken: they are not measured.
const SETTLE: Duration = Duration::from_secs(10);
const PERIOD: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(20);

pub(crate) fn a_million_leases(report: &mut Report) -> Outcome {
    let place = Place::start()?;
    let runtime = one_worker()?;
    let period = if report.is_short { SHORT } else { PERIOD };
    let memory = (resident(), place.usage().memory());
    let leases = runtime.block_on(take(&place))?;
    let bytes = |before: u64, after: u64| after.saturating_sub(before) as f64 / LEASES as f64;
    let (client_bytes, server_bytes) = (bytes(memory.0, resident()), bytes(memory.1, place.usage().memory()));
    runtime.block_on(async { pause(SETTLE).await });
    let before = place.usage();
    runtime.block_on(async { pause(period).await });
    let after = place.usage();
    let lost = leases.iter().filter(|lease| lease.is_lost()).count();
    // Nothing else calls this for a lease.
    let renewals = after.calls(&["pexpireat"]) - before.calls(&["pexpireat"]);
    let rounds = renewals as f64 / LEASES as f64;
    let client = (after.client - before.client).as_secs_f64() / rounds;
    let server = (after.server() - before.server()) / rounds;
    let took = period.as_secs_f64() / rounds;
    let mut add = |what: &str, ours: String, figure: f64, target: Target| {
        report.add(&format!("redis, 1 M leases: {what}"), ours, "-".to_owned(), figure, target);
    };
    add(
        "server's processor time to renew each once",
        format!("{server:.2} s in {took:.1} s"),
        server,
        Target::AtMost(1.8, "≤ 1.8 s"),
    );
    add(
        "client's processor time to renew each once",
        format!("{client:.2} s in {took:.1} s"),
        client,
        Target::AtMost(0.4, "≤ 0.4 s"),
    );
    add(
        "client's memory a lease",
        format!("{client_bytes:.0} B"),
        client_bytes,
        Target::AtMost(300.0, "≤ 300 B"),
    );
    add("server's memory a lease", format!("{server_bytes:.0} B"), server_bytes, Target::None);
    add(&format!("lost in {} s", period.as_secs()), format!("{lost}"), lost as f64, Target::AtMost(0.0, "0"));
    // The server goes away with its data.
    leases.into_iter().for_each(std::mem::forget);
    Ok(())
}

async fn take(place: &Place) -> Result<Vec<tenure::Lease>, Box<dyn std::error::Error>> {
    let tenure = tenure::connect(&place.url()).await?;
    let (sender, mut taken) = tokio::sync::mpsc::unbounded_channel();
    let mut users = Users::new();
    for task in 0..TASKS {
        let (tenure, sender) = (tenure.clone(), sender.clone());
        users.spawn(async move {
            for number in (task..LEASES).step_by(TASKS) {
                sender.send(tenure.mutex(&format!("customer/{number:08}")).ttl(TTL).acquire().await?)?;
            }
            Done::Ok(())
        });
    }
    drop(sender);
    let mut leases = Vec::with_capacity(LEASES);
    while let Some(lease) = taken.recv().await {
        leases.push(lease);
    }
    while let Some(done) = users.join_next().await {
        done?.map_err(|error| error.to_string())?;
    }
    Ok(leases)
}
