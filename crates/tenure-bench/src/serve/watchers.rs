//! Those who only look: streams of events on which nothing happens, and what `tenure top` and the dashboard cost the store.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::client::Connection;
use super::instance::cpu_of;
use super::{Answer, Instance, Place, block_on, mebibytes, pause};
use crate::measure::{Outcome, now};
use crate::report::{Report, Target};
use crate::run::command;

const STREAMS: usize = 1_000;
/// Half of the streams are of these names, and half are of all names.
const NAMES_OF_STREAMS: usize = 50;
const NAMES: usize = 10_000;
/// How long nothing happens while the processor time is measured.
const PERIOD: Duration = Duration::from_secs(30);
const SETTLING: Duration = Duration::from_secs(5);
/// Longer than a measurement: nothing is renewed meanwhile.
const TTL: Duration = Duration::from_secs(3600);

fn failed(error: super::Failure) -> Box<dyn std::error::Error> {
    error
}

pub(crate) fn streams(report: &mut Report) -> Outcome {
    let place = Place::start().map_err(failed)?;
    let instance = place.serve().map_err(failed)?;
    let before = instance.resident();
    let (busy, resident) = block_on(idle_streams(&place, &instance))?;
    report.add(
        &format!("serve, {STREAMS} streams of events on which nothing happens: idle"),
        format!("{busy:.2} % of a processor"),
        format!("resident: {:.0} MiB, before: {:.0} MiB", mebibytes(resident), mebibytes(before)),
        busy,
        Target::AtMost(2.0, "< 2 %"),
    );
    Ok(())
}

async fn idle_streams(place: &Place, instance: &Instance) -> Answer<(f64, u64)> {
    let tenure = tenure::connect(&place.redis.url()).await?;
    let held = hold(&tenure, NAMES_OF_STREAMS).await?;
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let of = match number % 2 {
            0 => "prefix=".to_owned(),
            _ => format!("name=watched/{}", number / 2 % NAMES_OF_STREAMS),
        };
        let mut connection = Connection::open(instance.address()).await?;
        connection.send("GET", &format!("/v1/events?{of}"), "").await?;
        if connection.ends().await {
            return Err(format!("stream {number} has ended").into());
        }
        streams.push(connection);
    }
    pause(SETTLING).await;
    let (cpu, began) = (instance.cpu(), now());
    pause(PERIOD).await;
    let busy = (instance.cpu() - cpu).as_secs_f64() * 100.0 / now().since(began).as_secs_f64();
    drop((streams, held));
    Ok((busy, instance.resident()))
}

/// Holds names by the library.
async fn hold(tenure: &tenure::Tenure, count: usize) -> Answer<Vec<tenure::Lease>> {
    let mut held = Vec::new();
    for number in 0..count {
        held.push(tenure.mutex(&format!("watched/{number}")).ttl(TTL).acquire().await?);
    }
    Ok(held)
}

pub(crate) fn looks(report: &mut Report) -> Outcome {
    let place = Place::start().map_err(failed)?;
    let instance = place.serve().map_err(failed)?;
    let seen = block_on(looked_at(&place, &instance))?;
    for (who, store, own) in seen {
        report.add(
            &format!("{who} with {NAMES} names: processor time of the store"),
            format!("{store:.2} % of a processor"),
            format!("its own: {own:.2} %"),
            store,
            Target::AtMost(5.0, "≤ 5 %"),
        );
    }
    Ok(())
}

/// Who looks, what that costs the store more than nothing, and what it costs whoever shows it.
type Looked = (&'static str, f64, f64);

async fn looked_at(place: &Place, instance: &Instance) -> Answer<[Looked; 2]> {
    let tenure = tenure::connect(&place.redis.url()).await?;
    let held = hold(&tenure, NAMES).await?;
    let (nothing, _) = measured(place, || Duration::ZERO).await;
    let top = Top::start(&place.redis.url())?;
    let (by_top, own_of_top) = measured(place, || cpu_of(top.0.id())).await;
    drop(top);
    // What the page of locks does: it follows all names, and asks for what it shows when they have changed.
    let mut stream = Connection::open(instance.address()).await?;
    stream.send("GET", "/v1/events?prefix=", "").await?;
    let mut page = Connection::open(instance.address()).await?;
    let asking = async {
        loop {
            let shown = page.ask("GET", "/v1/resources?sort=held&limit=100&brief=true", "").await;
            if shown.and_then(|said| said.must_be(200)).is_err() {
                return;
            }
            pause(Duration::from_secs(2)).await;
        }
    };
    let (by_page, own_of_page) = tokio::select! {
        () = asking => return Err("the page has ended".into()),
        measured = measured(place, || instance.cpu()) => measured,
    };
    drop((stream, held));
    Ok([("top", by_top - nothing, own_of_top), ("dashboard", by_page - nothing, own_of_page)])
}

/// What the store uses, and what somebody else does, in percent of a processor.
async fn measured(place: &Place, cpu: impl Fn() -> Duration) -> (f64, f64) {
    pause(SETTLING).await;
    let (store, other, began) = (cpu_of(place.redis.pid()), cpu(), now());
    pause(PERIOD).await;
    let percent = |used: Duration| used.as_secs_f64() * 100.0 / now().since(began).as_secs_f64();
    (percent(cpu_of(place.redis.pid()) - store), percent(cpu() - other))
}

/// `tenure top`, whose screens go nowhere.
struct Top(Child);

impl Top {
    fn start(url: &str) -> Answer<Top> {
        let mut top = Command::new(command().map_err(|error| error.to_string())?);
        top.args(["top", "--json"]).env("TENURE_ENGINE", url);
        let child = top.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Top(child))
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
