//! An instance that is told to end while many wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::client::{Connection, granted, new_id, waiting};
use super::{Answer, Instance, Place, block_on, pause};
use crate::measure::{Outcome, now};
use crate::report::{Report, Target};

const WAITERS: usize = 1_000;
const WAVE: usize = 50;
const NAME: &str = "drained";

pub(crate) fn drain(report: &mut Report) -> Outcome {
    let place = Place::start().map_err(|error| error as Box<dyn std::error::Error>)?;
    let start = || place.serve().map_err(|error| error as Box<dyn std::error::Error>);
    let (mut one, other) = (start()?, start()?);
    let ended = block_on(end_one(&mut one, &other))?;
    let seconds = ended.as_secs_f64();
    report.add(
        &format!("serve, SIGTERM under {WAITERS} waiters, who keep their places at the other instance: exit"),
        format!("{seconds:.2} s"),
        "-".to_owned(),
        seconds,
        Target::AtMost(5.0, "≤ 5 s"),
    );
    Ok(())
}

async fn end_one(one: &mut Instance, other: &Instance) -> Answer<Duration> {
    let mut control = Connection::open(other.address()).await?;
    let mut holder = Connection::open(other.address()).await?;
    let id = new_id();
    granted(&mut holder, &[], &id, NAME).await?;
    let mut waiters = JoinSet::new();
    let addresses: Arc<[_]> = Arc::new([other.address()]);
    for wave in 0..WAITERS / WAVE {
        for _ in 0..WAVE {
            let (addresses, at) = (addresses.clone(), one.address());
            waiters.spawn(async move {
                let id = new_id();
                let mut connection = Connection::open(at).await?;
                let said = granted(&mut connection, &addresses, &id, NAME).await?;
                let token = said.number("token").ok_or("a grant without a token")?;
                let path = format!("/v1/claims/{id}?name={NAME}");
                connection.ask("DELETE", &path, "").await?.must_be(200)?;
                Answer::Ok((token, wave))
            });
        }
        while waiting(&mut control, NAME).await? < ((wave + 1) * WAVE) as u64 {
            pause(Duration::from_millis(5)).await;
        }
    }
    one.terminate()?;
    let began = now();
    let status = loop {
        if let Some(status) = one.ended()? {
            break status;
        }
        pause(Duration::from_millis(5)).await;
    };
    let took = now().since(began);
    if !status.success() || waiting(&mut control, NAME).await? != WAITERS as u64 {
        return Err(format!("it ended with {status}, and somebody has lost a place").into());
    }
    holder.ask("DELETE", &format!("/v1/claims/{id}?name={NAME}"), "").await?.must_be(200)?;
    let mut order = Vec::new();
    while let Some(granted) = waiters.join_next().await {
        order.push(granted??);
    }
    order.sort_unstable();
    if !order.is_sorted_by_key(|(_, wave)| *wave) {
        return Err("somebody was overtaken by who came later".into());
    }
    Ok(took)
}
