//! Clients that want to cost much: slow ones, and large bodies.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use super::client::{Connection, new_id};
use super::{Answer, Instance, Place, block_on, mebibytes, millis, pause};
use crate::measure::{Outcome, now, percentile};
use crate::report::{Report, Target};

/// How many are slow: as many of each kind.
const SLOW: usize = 2_000;
/// How long a claim is measured without them.
const UNLOADED: Duration = Duration::from_secs(5);
/// How many large bodies come at once, and how deep JSON goes.
const BODIES: usize = 100;
const DEEP: usize = 10_000;
const BODY_MAX: usize = 1024 * 1024;

/// How a client is slow.
#[derive(Clone, Copy)]
enum Slow {
    Silent,
    /// A byte of the head each second.
    Drops,
    /// Headers without end.
    Headers,
    /// A body without end.
    Body,
    /// Asks, and reads no answer.
    Deaf,
}

const KINDS: [Slow; 5] = [Slow::Silent, Slow::Drops, Slow::Headers, Slow::Body, Slow::Deaf];

pub(crate) fn loris(report: &mut Report) -> Outcome {
    let place = Place::start().map_err(|error| error as Box<dyn std::error::Error>)?;
    let instance = place.serve().map_err(|error| error as Box<dyn std::error::Error>)?;
    let count = if report.is_short { SLOW / 10 } else { SLOW };
    let (unloaded, loaded, lasted) = block_on(beside_slow_clients(&instance, count))?;
    for (number, lasted) in lasted.iter().enumerate() {
        let kind =
            ["silent", "a byte a second", "headers without end", "a body without end", "reads nothing"]
                [number];
        let longest = percentile(lasted, 100).as_secs_f64();
        report.add(
            &format!("serve, {count} slow clients: the last connection, {kind}"),
            format!("{longest:.1} s"),
            "-".to_owned(),
            longest,
            Target::AtMost(11.0, "≤ 11 s"),
        );
    }
    let (before, meanwhile) = (millis(percentile(&unloaded, 99)), millis(percentile(&loaded, 99)));
    report.add(
        &format!("serve, {count} slow clients: a claim meanwhile, p99"),
        format!("{meanwhile:.2} ms"),
        format!("without them: {before:.2} ms"),
        meanwhile / before,
        Target::AtMost(2.0, "≤ 2.0"),
    );
    Ok(())
}

type Times = Vec<Duration>;

async fn beside_slow_clients(instance: &Instance, count: usize) -> Answer<(Times, Times, [Times; 5])> {
    let address = instance.address();
    let mut claimer = Connection::open(address).await?;
    let unloaded = claims(&mut claimer, UNLOADED).await?;
    let mut slow = JoinSet::new();
    for number in 0..count {
        let kind = number % KINDS.len();
        slow.spawn(async move { (kind, lasts(address, KINDS[kind]).await) });
    }
    let gone = async {
        let mut lasted: [Times; 5] = Default::default();
        while let Some(ended) = slow.join_next().await {
            let (kind, period) = ended?;
            lasted[kind].push(period?);
        }
        Answer::Ok(lasted)
    };
    let (lasted, loaded) = tokio::join!(gone, claims(&mut claimer, Duration::from_secs(10)));
    Ok((unloaded, loaded?, lasted?))
}

/// Claims and releases for a while, with a rest between, and says how long each claim took.
async fn claims(connection: &mut Connection, period: Duration) -> Answer<Times> {
    let (began, mut took) = (now(), Vec::new());
    while now().since(began) < period {
        let (id, at) = (new_id(), now());
        connection.ask("PUT", &format!("/v1/claims/{id}"), r#"{"name":"beside"}"#).await?.must_be(200)?;
        took.push(now().since(at));
        connection.ask("DELETE", &format!("/v1/claims/{id}?name=beside"), "").await?.must_be(200)?;
        pause(Duration::from_millis(2)).await;
    }
    Ok(took)
}

/// How long a connection lasts.
async fn lasts(address: SocketAddr, slow: Slow) -> Answer<Duration> {
    let socket = TcpSocket::new_v4()?;
    if matches!(slow, Slow::Deaf) {
        // Little room, so that its answers stay at the server.
        socket.set_recv_buffer_size(4096)?;
    }
    let mut connection = Connection::over(socket.connect(address).await?);
    let began = now();
    let head = format!("PUT /v1/claims/{} HTTP/1.1\r\nhost: localhost\r\n", new_id());
    let late = format!("{head}content-type: application/json\r\ncontent-length: 1000\r\n\r\n");
    let (begin, each, rest): (&str, &[u8], _) = match slow {
        Slow::Silent => ("", b"", Duration::from_secs(1)),
        Slow::Drops => ("GET", b"a", Duration::from_secs(1)),
        Slow::Headers => (&head, b"x: 1\r\n", Duration::from_secs(1)),
        Slow::Body => (&late, b"a", Duration::from_secs(1)),
        Slow::Deaf => ("", b"GET /v1/problems/busy HTTP/1.1\r\nhost: localhost\r\n\r\n", Duration::ZERO),
    };
    connection.write(begin.as_bytes()).await.ok();
    if matches!(slow, Slow::Deaf) {
        // Until nothing more is taken, and then until the server has had enough.
        while connection.write(each).await.is_ok() {}
        return Ok(now().since(began));
    }
    loop {
        tokio::select! {
            // An answer may come before the end: 408, say.
            is_over = connection.ends() => if is_over { return Ok(now().since(began)) },
            () = pause(rest) => {
                if !each.is_empty() && connection.write(each).await.is_err() {
                    return Ok(now().since(began));
                }
            }
        }
    }
}

pub(crate) fn bodies(report: &mut Report) -> Outcome {
    let place = Place::start().map_err(|error| error as Box<dyn std::error::Error>)?;
    let instance = place.serve().map_err(|error| error as Box<dyn std::error::Error>)?;
    let head = "PUT /v1/claims/6f00000000000000000000000000000a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let mut chunked = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..BODY_MAX / 0x1_0000 {
        chunked.extend(format!("10000\r\n{}\r\n", " ".repeat(0x1_0000)).as_bytes());
    }
    chunked.extend(b"1\r\n \r\n0\r\n\r\n");
    let said =
        format!("{head}content-length: {}\r\n\r\n{}", BODY_MAX + 1, " ".repeat(BODY_MAX + 1)).into_bytes();
    let deep = format!("{head}content-length: {DEEP}\r\n\r\n{}", "[".repeat(DEEP)).into_bytes();
    for (what, request, status) in [
        ("1 MiB + 1, and its length is said", said, 413),
        ("1 MiB + 1, in chunks", chunked, 413),
        ("JSON 10,000 deep", deep, 400),
    ] {
        let more = block_on(at_once(&instance, &request, status))?;
        report.add(
            &format!("serve, {BODIES} bodies at once, {what}: {status}, and more memory"),
            format!("{:.1} MiB", mebibytes(more)),
            "-".to_owned(),
            mebibytes(more),
            Target::AtMost(16.0, "≤ 16 MiB"),
        );
    }
    Ok(())
}

/// Sends a request on many connections at once, and says how much more memory the instance had at most.
async fn at_once(instance: &Instance, request: &[u8], status: u16) -> Answer<u64> {
    let before = instance.resident();
    instance.forget_peak()?;
    let mut sent = JoinSet::new();
    for _ in 0..BODIES {
        let (mut connection, request) = (Connection::open(instance.address()).await?, request.to_vec());
        sent.spawn(async move {
            // It may be refused before all is sent.
            connection.write(&request).await.ok();
            connection.answer().await
        });
    }
    let mut reset = 0;
    while let Some(answered) = sent.join_next().await {
        match answered? {
            Ok(said) => drop(said.must_be(status)?),
            // The refusal was overtaken by the reset for what was sent behind it.
            Err(_) => reset += 1,
        }
    }
    if reset > BODIES / 2 {
        return Err(format!("{reset} of {BODIES} saw no answer").into());
    }
    Ok(instance.peak().saturating_sub(before))
}
