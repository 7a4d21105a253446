//! Streams of events.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_core::testing::busy::assert_in_time;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::access::{Tokens, bearer, made};
use crate::http::{Serving, anywhere, ask, new_id, now, open, until};

/// A reader of a stream.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    pub(crate) fn open(server: &Serving, request: &str, headers: &str, body: Option<&Value>) -> Events {
        let mut events = Events(BufReader::new(open(server.address, request, headers, body)));
        let status = events.line().expect("an answer");
        assert!(status.starts_with("HTTP/1.1 200"), "{status}");
        let mut is_stream = false;
        while let Some(line) = events.line().filter(|line| !line.is_empty()) {
            is_stream |= line == "content-type: text/event-stream";
        }
        assert!(is_stream);
        events
    }

    fn get(server: &Serving, query: &str, headers: &str) -> Events {
        Events::open(server, &format!("GET /v1/events?{query}"), headers, None)
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.0.read_line(&mut line).expect("a line in time");
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event with what it says; none at the end.
    pub(crate) fn next(&mut self) -> Option<(String, Value)> {
        loop {
            let line = self.line()?;
            let Some(event) = line.strip_prefix("event: ") else { continue };
            let data = self.line().expect("its data");
            let data = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            return Some((event.to_owned(), data));
        }
    }

    /// Reads up to an event of that name.
    pub(crate) fn until(&mut self, event: &str) -> Value {
        loop {
            let (is, data) = self.next().unwrap_or_else(|| panic!("no {event} before the end"));
            if is == event {
                return data;
            }
        }
    }
}

fn claim(server: &Serving, name: &str) -> String {
    let id = new_id();
    let held = server.send(&format!("PUT /v1/claims/{id}"), &json!({"name": name, "label": "job"}));
    assert_eq!(held.status, 200, "{held:?}");
    id
}

fn release(server: &Serving, id: &str, name: &str) {
    let released = ask(server.address, &format!("DELETE /v1/claims/{id}?name={name}"), "", None);
    assert_eq!(released.body, json!({"released": true}));
}

#[test]
fn what_happens_to_a_lock_is_told_as_it_happens() {
    let server = Serving::memory(anywhere());
    let first = claim(&server, "a");
    let mut events = Events::get(&server, "name=a", "");
    let (event, held) = events.next().expect("an event");
    assert_eq!((&*event, &held["event"], &held["name"]), ("held", &json!("held"), &json!("a")), "{held}");
    assert_eq!(held["holder"]["text"], "job");
    assert!(held["held_ms"].is_u64() && held["ends_in_ms"].is_u64() && held["at"].is_null(), "{held}");
    let waits = server.begin(&format!("PUT /v1/claims/{}", new_id()), &json!({"name": "a"}));
    assert_eq!(
        events.next().expect("an event"),
        ("waiting".to_owned(), json!({"event": "waiting", "name": "a", "waiting": 1}))
    );
    let began = now();
    release(&server, &first, "a");
    let ended = events.until("ended");
    assert_eq!(ended["token"], held["token"]);
    let granted = events.until("granted");
    assert!(granted["token"].as_u64() > held["token"].as_u64());
    assert_in_time(began.elapsed(), Duration::from_secs(1));
    let next = waits.answer().body["claim"].as_str().expect("a claim").to_owned();
    release(&server, &next, "a");
    assert_eq!(events.until("idle"), json!({"event": "idle", "name": "a"}));
    // Another one begins with how it is now, whatever the first one has seen.
    assert_eq!(Events::get(&server, "name=a", "").next().expect("an event").0, "idle");
}

#[test]
fn what_happens_to_many_is_told_of_those_that_a_token_may_read() {
    let (all, entry) = made("all", &["read", "claim", "push"]);
    let (billing, second) = made("billing", &["read billing/"]);
    let (none, third) = made("none", &["claim"]);
    let tokens = Tokens::new(&format!("{entry}{second}{third}"));
    let server = Serving::memory(anywhere().tokens(tokens.file()));
    let put = |name: &str| {
        let held =
            server.send_with(&format!("PUT /v1/claims/{}", new_id()), &bearer(&all), &json!({"name": name}));
        assert_eq!(held.status, 200, "{held:?}");
    };
    put("billing/1");
    put("payroll/1");
    let mut whole = Events::get(&server, "prefix=", &bearer(&all));
    let mut part = Events::get(&server, "prefix=", &bearer(&billing));
    let mut narrow = Events::get(&server, "prefix=billing%2F2", &bearer(&all));
    assert_eq!(
        whole.until("totals"),
        json!({"event": "totals", "names": 2, "held": 2, "resting": 0, "waiting": 0, "queues": 0,
            "items": {"waiting": 0, "in_flight": 0, "dead": 0}, "is_whole": true})
    );
    assert_eq!(part.until("totals")["names"], 1, "it may not even know how many others there are");
    assert_eq!(narrow.until("totals")["names"], 0);
    put("billing/2");
    put("payroll/2");
    let push = json!({"queue": "refunds", "items": [{"payload": "x"}]});
    assert_eq!(server.send_with("POST /v1/queue/push", &bearer(&all), &push).status, 200);
    let told = |events: &mut Events, names: u64, items: u64| {
        let mut told = Vec::new();
        loop {
            let (event, data) = events.next().expect("an event");
            if event == "totals"
                && (&data["names"], &data["items"]["waiting"]) == (&json!(names), &json!(items))
            {
                told.sort();
                return told.join(" ");
            }
            if event != "totals" {
                let name = data["name"].as_str().or(data["queue"].as_str()).expect("a name");
                told.push(format!("{event}:{name}"));
            }
        }
    };
    assert_eq!(told(&mut whole, 4, 1), "granted:billing/2 granted:payroll/2 queue:refunds");
    assert_eq!(told(&mut part, 2, 0), "granted:billing/2");
    assert_eq!(told(&mut narrow, 1, 0), "granted:billing/2");
    for (query, who, status) in [
        ("prefix=", &none, 403),
        ("prefix=payroll/", &billing, 403),
        ("name=payroll/1", &billing, 403),
        ("name=a&prefix=b", &all, 400),
        ("", &all, 400),
        ("name=", &all, 400),
    ] {
        let refused = ask(server.address, &format!("GET /v1/events?{query}"), &bearer(who), None);
        assert_eq!(refused.status, status, "{query}: {refused:?}");
    }
}

#[test]
fn streams_end_with_the_server_and_with_their_token() {
    let (reader, entry) = made("reader", &["read"]);
    let (other, second) = made("other", &["read"]);
    let tokens = Tokens::new(&format!("{entry}{second}"));
    let mut server = Serving::memory(anywhere().tokens(tokens.file()));
    let follow = |query: &str, who| Events::get(&server, query, &bearer(who));
    let mut taken_away = [follow("name=a", &reader), follow("prefix=", &reader)];
    let mut stay = [follow("name=a", &other), follow("prefix=", &other)];
    for events in taken_away.iter_mut().chain(&mut stay) {
        events.next().expect("its beginning");
    }
    let began = now();
    // Nobody tells the server: it looks every 2 s.
    tokens.write(&second);
    for events in &mut taken_away {
        assert_eq!(events.next(), Some(("bye".to_owned(), json!({"why": "revoked"}))));
        assert_eq!(events.next(), None);
    }
    assert_in_time(began.elapsed(), Duration::from_millis(2500));
    server.control.drain();
    for events in &mut stay {
        assert_eq!(events.next(), Some(("bye".to_owned(), json!({"why": "ending"}))));
        assert_eq!(events.next(), None);
    }
    server.ended();
}

#[test]
fn there_are_so_many_streams_and_no_more() {
    let server = Serving::memory(anywhere().streams_max(2));
    let streams = [Events::get(&server, "name=a", ""), Events::get(&server, "prefix=", "")];
    let refused = server.ask("GET /v1/events?name=a");
    assert_eq!(
        (refused.status, refused.kind(), refused.header("retry-after")),
        (503, "overloaded", Some("1"))
    );
    drop(streams);
    until("a stream that is gone makes room", || {
        let mut stream = open(server.address, "GET /v1/events?name=a", "", None);
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("an answer");
        (&status == b"HTTP/1.1 200").then_some(())
    });
}

#[test]
fn a_reader_that_reads_nothing_loses_its_stream() {
    let server = Serving::memory(anywhere().streams_max(1));
    let mut stalled = open(server.address, "GET /v1/events?name=a", "", None);
    stalled.read_exact(&mut [0; 12]).expect("it has the only place");
    let began = now();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let work = async {
                // Its events fill the buffers of both ends.
                let lock = server.tenure.mutex("a").label(&"x".repeat(200));
                while !has_ended.load(Ordering::Relaxed) {
                    let lease = lock.acquire().await.expect("a lease");
                    lease.release().await.expect("its end");
                }
            };
            pollster::block_on(work);
        });
        until("its end", || {
            let mut stream = open(server.address, "GET /v1/events?prefix=x", "", None);
            let mut status = [0; 12];
            stream.read_exact(&mut status).expect("an answer");
            (&status == b"HTTP/1.1 200").then_some(())
        });
        has_ended.store(true, Ordering::Relaxed);
    });
    assert!(began.elapsed() > Duration::from_secs(9), "{:?}", began.elapsed());
    drop(stalled);
}

mod alone {
    use super::*;

    /// The processor time of this process: the server's, as the readers wait.
    fn worked() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    }

    /// How often the store was asked: scans and scripts.
    fn asked(redis: &RedisServer) -> u64 {
        let stats = redis.command(&["INFO", "commandstats"]);
        let is_asked = |line: &&str| line.starts_with("cmdstat_f") || line.starts_with("cmdstat_scan");
        let calls = |line: &str| line.split(['=', ',']).nth(1).and_then(|calls| calls.parse::<u64>().ok());
        stats.lines().filter(is_asked).map(|line| calls(line).expect("a number of calls")).sum()
    }

    /// How often a loop may ask that looks no more often than that, however late it is: a busy machine only makes it look less often.
    fn looks(elapsed: Duration, every: Duration) -> u64 {
        elapsed.div_duration_f64(every) as u64 + 1
    }

    #[test]
    fn a_thousand_streams_ask_redis_no_more_than_one_loop_can_and_cost_the_server_next_to_nothing() {
        // A survey of one lock asks for keys of locks and of queues, and looks at that lock.
        const SURVEY: (Duration, u64) = (Duration::from_secs(2), 3);
        // Who follows a lock says so, and looks at it.
        const FOLLOWED: (Duration, u64) = (Duration::from_secs(10), 2);
        let redis = RedisServer::start(RedisOptions::default());
        let server = Serving::url(&redis.url(), anywhere());
        // Held for longer than the test takes: an end would be a look more.
        let held = json!({"name": "a", "ttl_ms": 600_000});
        assert_eq!(server.send(&format!("PUT /v1/claims/{}", new_id()), &held).status, 200);
        let mut streams: Vec<_> = (0..1000)
            .map(|at| Events::get(&server, if at % 2 == 0 { "name=a" } else { "prefix=" }, ""))
            .collect();
        for stream in &mut streams {
            stream.next().expect("its beginning");
        }
        let (began, before, worked_before) = (now(), asked(&redis), worked());
        until("a while", || (began.elapsed() > Duration::from_secs(10)).then_some(()));
        let (asked, work, elapsed) = (asked(&redis) - before, worked() - worked_before, began.elapsed());
        let most: u64 = [SURVEY, FOLLOWED].iter().map(|(every, calls)| looks(elapsed, *every) * calls).sum();
        eprintln!("{asked} calls of {most} that may be, {work:?} of work in {elapsed:?}");
        assert!(
            asked <= most,
            "{asked} calls with 1,000 streams in {elapsed:?}, and one of each makes {most}"
        );
        assert!(asked >= 2, "nobody looks");
        assert!(work < elapsed / 50, "{work:?} in {elapsed:?}");
        // Nothing has happened on it for more than 15 s but that both ends have seen that the other one is there.
        let mut first = streams.remove(0);
        while first.line().as_deref() != Some(":") {}
    }
}
