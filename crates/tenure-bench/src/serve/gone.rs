//! Clients that go away while they wait: how long whoever stands behind them waits for that.

use std::time::Duration;

use super::client::{Connection, granted, new_id, waiting};
use super::{Answer, Instance, Place, block_on, millis, pause};
use crate::measure::{Outcome, now};
use crate::report::{Report, Target};

const WAITERS: usize = 1_000;

pub(crate) fn gone(report: &mut Report) -> Outcome {
    let place = Place::start().map_err(|error| error as Box<dyn std::error::Error>)?;
    let instance = place.serve().map_err(|error| error as Box<dyn std::error::Error>)?;
    let (cut, withdrawn) = block_on(async {
        Answer::Ok((behind(&instance, "cut", false).await?, behind(&instance, "withdrawn", true).await?))
    })?;
    report.add(
        &format!(
            "serve, {WAITERS} waiters cut one after the other: from the last cut to the next one's answer"
        ),
        format!("{:.2} s", cut.as_secs_f64()),
        "of that `linger_ms`: 2 s".to_owned(),
        cut.as_secs_f64(),
        Target::AtMost(2.5, "≤ 2.5 s"),
    );
    report.add(
        &format!(
            "serve, {WAITERS} waiters withdrawn by DELETE: from the holder's release to the next one's answer"
        ),
        format!("{:.1} ms", millis(withdrawn)),
        "-".to_owned(),
        millis(withdrawn),
        Target::AtMost(50.0, "≤ 50 ms"),
    );
    Ok(())
}

/// How long somebody waits behind those who go, when the last of them has gone and the lock is released.
async fn behind(instance: &Instance, name: &str, is_told: bool) -> Answer<Duration> {
    let address = instance.address();
    let (mut holder, mut control) = (Connection::open(address).await?, Connection::open(address).await?);
    let id = new_id();
    granted(&mut holder, &[], &id, name).await?;
    let (mut crowd, body) = (Vec::new(), format!("{{\"name\":\"{name}\",\"poll_ms\":50000}}"));
    for _ in 0..WAITERS {
        let (id, mut connection) = (new_id(), Connection::open(address).await?);
        connection.send("PUT", &format!("/v1/claims/{id}"), &body).await?;
        crowd.push((id, connection));
    }
    until_waiting(&mut control, name, WAITERS).await?;
    let mut last = Connection::open(address).await?;
    last.send("PUT", &format!("/v1/claims/{}", new_id()), &body).await?;
    until_waiting(&mut control, name, WAITERS + 1).await?;
    for (id, connection) in crowd {
        if is_told {
            let path = format!("/v1/claims/{id}?name={name}");
            control.ask("DELETE", &path, "").await?.must_be(200)?;
        }
        drop(connection);
    }
    let began = now();
    holder.ask("DELETE", &format!("/v1/claims/{id}?name={name}"), "").await?.must_be(200)?;
    last.answer().await?.must_be(200)?;
    Ok(now().since(began))
}

async fn until_waiting(control: &mut Connection, name: &str, count: usize) -> Answer<()> {
    while waiting(control, name).await? < count as u64 {
        pause(Duration::from_millis(5)).await;
    }
    Ok(())
}
