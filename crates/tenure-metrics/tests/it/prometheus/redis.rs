//! Clients of a real Redis, and what their pages say of what they did.
//!
//! Most alerts look at 10 minutes or a day. So what a client really did is told to promtool as if it took half an hour of it: each minute
//! brings what was counted between two real pages, and gauges stay as they were on the second. Names, labels, buckets and figures are
//! those of the pages; only thresholds that a test would have to wait for are lowered, in its copy of the rules.

mod scraped;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pollster::block_on;
use tenure_core::survey::Surveyor;
use tenure_core::{Lease, Settings, Tenure};
use tenure_metrics::{Address, Format, METRICS, MetricType, Server, render_store};
use tenure_testkit::prometheus::promtool;
use tenure_testkit::redis::{RedisOptions, RedisServer, Topology, shared};
use tenure_testkit::{Proxy, TestDirectory, wait_for};

use super::passes;
use crate::rules::{self, Rule};

const SECOND: Duration = Duration::from_secs(1);

/// A client that counts, and serves its page.
struct Program {
    tenure: Tenure,
    server: Server,
}

impl Program {
    fn start(url: &str) -> Program {
        let tenure = connect(url, Settings::new().counts(true));
        let counted = tenure.clone();
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = Server::start(&address, move || vec![counted.counts()]).expect("a free port");
        Program { tenure, server }
    }

    fn port(&self) -> u16 {
        let Address::Tcp(address) = self.server.address() else { panic!("it is by TCP") };
        address.port()
    }

    /// Reads its page, as Prometheus does.
    fn page(&self) -> Page {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).expect("it listens");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        Page::of(body)
    }

    /// Returns what a survey of its store says. (A surveyor would show the last one for a while.)
    fn store(&self) -> Page {
        let surveyor = Surveyor::new(&self.tenure);
        let counts = surveyor.count(&block_on(surveyor.latest()).expect("it answers"), &[]);
        Page::of(&render_store(&counts, &[], Duration::ZERO, Format::Prometheus))
    }

    /// Waits for a page with something.
    fn page_with(&self, what: &str, is_there: impl Fn(&Page) -> bool) -> Page {
        wait_for(what, || Some(self.page()).filter(|page| is_there(page)))
    }
}

fn connect(url: &str, settings: Settings) -> Tenure {
    let config = tenure_redis::Config::parse(url).expect("the kit's URLs are right");
    block_on(Tenure::connect_with(config.into(), settings)).expect("it is there")
}

/// What a page says, by series.
#[derive(Clone, Debug)]
struct Page(BTreeMap<String, f64>);

impl Page {
    fn of(text: &str) -> Page {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.filter_map(|line| line.rsplit_once(' '));
        Page(series.map(|(name, number)| (name.to_owned(), number.parse().expect("a number"))).collect())
    }

    /// A figure: a name and some labels after `engine`. What is not there yet is nothing.
    fn figure(&self, name: &str, labels: &str) -> f64 {
        let comma = if labels.is_empty() { "" } else { "," };
        self.0.get(&format!("{name}{{engine=\"redis\"{comma}{labels}}}")).copied().unwrap_or_default()
    }
}

/// How long one page stands, in minutes.
const STAGE: usize = 30;

/// Returns the values of a series at each minute: the first page's, and then for each other page half an hour that goes on as it did
/// between the page before and that one.
fn values(series: &str, pages: &[&Page]) -> String {
    let of = |page: &Page| page.0.get(series).copied().unwrap_or_default();
    let name = series.split('{').next().expect("a name");
    let name =
        ["_bucket", "_sum", "_count"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    let metric = METRICS.iter().find(|metric| metric.name == name).expect("a metric of ours");
    let mut values = vec![of(pages[0])];
    for pair in pages.windows(2) {
        let grown = of(pair[1]) - of(pair[0]);
        for _ in 0..STAGE {
            values.push(match metric.of {
                MetricType::Gauge => of(pair[1]),
                _ => values[values.len() - 1] + grown,
            });
        }
    }
    values.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")
}

/// Asserts in which halves of an hour an alert is firing in the end, and with which labels beside its severity.
fn assert_fires(alert: &str, lowered: &[(&str, f64)], pages: &[&Page], fires: &[bool], labels: &str) {
    let all = rules::rules();
    let lower = |mut rule: Rule| {
        rule.annotations.clear();
        if rule.name == alert {
            for (threshold, to) in lowered {
                let lower = rule.expression.replace(threshold, &format!("> {to}"));
                assert_ne!(lower, rule.expression, "{alert} has no {threshold}");
                rule.expression = lower;
            }
        }
        rule
    };
    let needed: Vec<Rule> =
        all.into_iter().filter(|rule| !rule.is_alert || rule.name == alert).map(lower).collect();
    let severity = needed.iter().find(|rule| rule.is_alert).expect("there is such an alert").labels.clone();
    let severity = severity.lines().nth(1).expect("a severity").trim().to_owned();
    let mut names: Vec<&String> = pages.iter().flat_map(|page| page.0.keys()).collect();
    names.sort();
    names.dedup();
    let series: String = names
        .iter()
        .filter(|name| !name.starts_with("tenure_info"))
        .map(|name| {
            let labelled = name.replacen('{', "{instance=\"test\",", 1);
            format!("      - series: '{labelled}'\n        values: {}\n", values(name, pages))
        })
        .collect();
    let checks: String = fires
        .iter()
        .enumerate()
        .map(|(stage, fires)| {
            let expected = format!("[{{exp_labels: {{{severity}, {labels}}}}}]");
            let expected = if *fires { &expected } else { "[]" };
            let at = STAGE * (stage + 1);
            format!("      - {{eval_time: {at}m, alertname: {alert}, exp_alerts: {expected}}}\n")
        })
        .collect();
    let directory = TestDirectory::new();
    let text = format!(
        "rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{series}    alert_rule_test:\n{checks}"
    );
    std::fs::write(directory.path().join("rules.yml"), rules::file(&needed)).expect("a file");
    std::fs::write(directory.path().join("test.yml"), text).expect("a file");
    passes(promtool(directory.path()).args(["test", "rules", "test.yml"]));
}

#[allow(clippy::disallowed_methods, reason = "how long a claim took is what is tested")]
fn now() -> Instant {
    Instant::now()
}

fn acquire(tenure: &Tenure, name: &str) -> Lease {
    block_on(tenure.mutex(name).acquire()).expect("it is granted")
}

fn release(lease: Lease) {
    block_on(lease.release()).expect("it is answered");
}

#[test]
fn a_success_rate_is_that_of_the_claims() {
    let url = shared(Topology::Single);
    let (program, other) = (Program::start(&url), connect(&url, Settings::new()));
    let mutex = program.tenure.mutex("rate/1");
    let before = program.page();
    let claim = |granted: usize, timed_out: usize| {
        let held = acquire(&other, "rate/1");
        for _ in 0..timed_out {
            block_on(mutex.acquire_within(Duration::from_millis(300))).expect_err("another one holds");
        }
        assert!(block_on(mutex.try_acquire()).expect("answered").is_none());
        release(held);
        (0..granted).for_each(|_| release(block_on(mutex.acquire()).expect("free")));
    };
    claim(20, 0);
    let well = program.page();
    claim(17, 3);
    let badly = program.page();
    let claims = |outcome: &str| {
        let labels = format!(r#"kind="mutex",scope="rate/*",outcome="{outcome}""#);
        badly.figure("tenure_claims_total", &labels) - well.figure("tenure_claims_total", &labels)
    };
    let (granted, wanted) = (claims("granted"), claims("granted") + claims("timeout") + claims("failed"));
    assert_eq!((granted, claims("timeout"), claims("busy")), (17.0, 3.0, 1.0));
    assert_eq!(granted / wanted, 0.85);
    let pages = [&before, &well, &badly];
    assert_fires("TenureNotAcquired", &[], &pages, &[false, true], r#"engine: redis, scope: "rate/*""#);
}

/// Returns the bound of the bucket that a time is in.
fn bound(of: &str, page: &Page, time: Duration) -> f64 {
    let prefix = format!("{of}_bucket{{");
    let bounds = page.0.keys().filter(|series| series.starts_with(&prefix));
    let bounds = bounds.filter_map(|series| series.rsplit("le=\"").next()?.strip_suffix("\"}")?.parse().ok());
    let mut bounds: Vec<f64> = bounds.filter(|bound: &f64| *bound >= time.as_secs_f64()).collect();
    bounds.sort_by(f64::total_cmp);
    bounds[0]
}

#[test]
fn the_waits_of_contention_are_those_of_the_waiters() {
    const WAITERS: usize = 4;
    let url = shared(Topology::Single);
    let (program, other) = (Program::start(&url), connect(&url, Settings::new()));
    let labels = r#"kind="mutex",scope="contended/*""#;
    let before = program.page();
    let alone = (0..20).map(|_| {
        let asked = now();
        release(acquire(&program.tenure, "contended/1"));
        asked.elapsed()
    });
    let longest = alone.max().expect("there are some");
    let well = program.page();
    let usual = bound("tenure_wait_seconds", &well, longest);
    let held = acquire(&other, "contended/1");
    let waits: Vec<(Duration, Duration)> = std::thread::scope(|scope| {
        let wait = || {
            let asked = now();
            let lease = acquire(&program.tenure, "contended/1");
            let granted = now();
            release(lease);
            (asked, granted)
        };
        let waiters: Vec<_> = (0..WAITERS).map(|_| scope.spawn(wait)).collect();
        let all = |page: &Page| page.figure("tenure_waiting", labels) == WAITERS as f64;
        let waiting = program.page_with("waiters", all);
        let all_wait = now();
        let oldest = |page: &Page| page.figure("tenure_waiting_oldest_seconds", labels);
        let long = oldest(&waiting) + 2.0 * usual;
        program.page_with("long wait", |page| oldest(page) > long);
        let let_go = now();
        release(held);
        let of = |(asked, granted): (Instant, Instant)| (let_go - all_wait, granted - asked);
        waiters.into_iter().map(|waiter| of(waiter.join().expect("it was granted"))).collect()
    });
    let busy = program.page_with("end of all waits", |page| page.figure("tenure_waiting", labels) == 0.0);
    let grown = |name: &str| busy.figure(name, labels) - well.figure(name, labels);
    let count = grown("tenure_wait_seconds_count");
    let mean = Duration::from_secs_f64(grown("tenure_wait_seconds_sum") / count);
    let least: Duration = waits.iter().map(|(least, _)| *least).sum::<Duration>() / waits.len() as u32;
    let most: Duration = waits.iter().map(|(_, most)| *most).sum::<Duration>() / waits.len() as u32;
    assert_eq!(count, WAITERS as f64);
    assert!(
        least <= mean && mean <= most,
        "the mean wait was {least:?} to {most:?}, and is shown as {mean:?}"
    );
    let pages = [&before, &well, &busy];
    let labels = r#"engine: redis, scope: "contended/*""#;
    assert_fires("TenureContended", &[("> 30", usual)], &pages, &[false, true], labels);
}

#[test]
fn a_lock_that_is_held_for_four_times_its_usual_time_is_noticed() {
    let program = Program::start(&shared(Topology::Single));
    let labels = r#"kind="mutex",scope="held/*""#;
    let before = program.page();
    let hold = |_| {
        let asked = now();
        let lease = acquire(&program.tenure, "held/1");
        #[allow(clippy::disallowed_methods, reason = "so long it is held usually")]
        std::thread::sleep(Duration::from_millis(20));
        release(lease);
        asked.elapsed()
    };
    let longest = (0..20).map(hold).max().expect("there are some");
    let asked = now();
    let lease = acquire(&program.tenure, "held/1");
    let granted = now();
    let oldest = |page: &Page| page.figure("tenure_leases_oldest_seconds", labels);
    let early = program.page();
    let usual = bound("tenure_hold_seconds", &early, longest);
    let late = program.page_with("long hold", |page| oldest(page) > 4.0 * usual);
    let (shown, most) = (oldest(&late), asked.elapsed().as_secs_f64());
    assert!(shown <= most, "held for {most} s at most, and shown as {shown}");
    let least = granted.elapsed().as_secs_f64();
    let again = oldest(&program.page());
    assert!(least <= again + 0.0001, "held for {least} s at least, and shown as {again}");
    assert_eq!(late.figure("tenure_hold_seconds_count", labels), 20.0);
    release(lease);
    let labels = r#"engine: redis, scope: "held/*""#;
    assert_fires("TenureHeldTooLong", &[("> 900", 0.0)], &[&before, &early, &late], &[false, true], labels);
}

#[test]
fn renewals_are_those_that_redis_has_seen_and_late_ones_are_noticed() {
    let server = RedisServer::start(RedisOptions::default());
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()));
    let program = Program::start(&format!("redis://127.0.0.1:{}", proxy.port()));
    let calls = || server.calls("fcall") + server.calls("evalsha");
    let lease = block_on(program.tenure.mutex("renewed/1").ttl(3 * SECOND).acquire()).expect("free");
    let kept = |page: &Page| page.figure("tenure_renewals_total", r#"outcome="kept""#);
    let seen = [calls(), 0, 0, 0];
    let before = program.page();
    let seen = [seen[0], calls(), 0, 0];
    program.page_with("renewals", |page| kept(page) >= kept(&before) + 2.0);
    let seen = [seen[0], seen[1], calls(), 0];
    let well = program.page();
    let seen = [seen[0], seen[1], seen[2], calls()];
    let renewed = kept(&well) - kept(&before);
    // Nothing else calls this Redis meanwhile. One of them may be under way while one asks.
    let (least, most) = ((seen[2] - seen[1]).saturating_sub(1) as f64, (seen[3] - seen[0]) as f64);
    assert!(least <= renewed && renewed <= most, "{renewed} renewals, and Redis has seen {seen:?} calls");
    release(lease);
    // A renewal is sent after a third of the ttl, and answered after nearly another half.
    let (ttl, each_way) = (Duration::from_millis(1800), Duration::from_millis(423));
    let mutex = program.tenure.mutex("renewed/2").ttl(ttl);
    let slowly = || {
        proxy.heal();
        let lease = block_on(mutex.acquire()).expect("free");
        proxy.delay(each_way);
        lease
    };
    let lease = RefCell::new(slowly());
    let late = |page: &Page| page.figure("tenure_renewal_slack_ratio_bucket", r#"le="0.25""#);
    let badly = program.page_with("late renewal", |page| {
        if lease.borrow().is_lost() {
            // The second renewal comes too late, and on a busy machine the first one.
            lease.replace(slowly());
        }
        late(page) > late(&well)
    });
    let labels = "engine: redis, instance: test";
    assert_fires("TenureRenewalsLate", &[], &[&before, &well, &badly], &[false, true], labels);
}

#[test]
fn a_lease_that_redis_forgets_is_lost_once() {
    let server = RedisServer::start(RedisOptions::default());
    let program = Program::start(&server.url());
    let before = program.page();
    release(acquire(&program.tenure, "lost/1"));
    let mutex = program.tenure.mutex("lost/1").ttl(3 * SECOND);
    let lease = block_on(mutex.acquire()).expect("free");
    let well = program.page();
    server.command(&["FLUSHALL"]);
    block_on(lease.lost());
    let badly = program.page();
    let lost = |page: &Page| {
        page.figure("tenure_leases_lost_total", r#"kind="mutex",scope="lost/*",reason="refused""#)
    };
    assert_eq!((lost(&before), lost(&well), lost(&badly)), (0.0, 0.0, 1.0));
    let held = |page: &Page| page.figure("tenure_hold_seconds_count", r#"kind="mutex",scope="lost/*""#);
    assert_eq!((held(&well), held(&badly)), (1.0, 2.0), "the loss has ended a hold");
    let labels = r#"engine: redis, scope: "lost/*", reason: refused"#;
    assert_fires("TenureLeaseLost", &[], &[&before, &well, &badly], &[false, true], labels);
}

#[test]
fn a_redis_that_is_killed_is_down() {
    let server = RedisServer::start(RedisOptions::default());
    let program = Program::start(&server.url());
    let before = program.page();
    release(acquire(&program.tenure, "down/1"));
    let well = program.page();
    assert_eq!(well.figure("tenure_store_up", ""), 1.0);
    server.kill();
    let mutex = program.tenure.mutex("down/1");
    block_on(mutex.acquire_within(Duration::from_millis(100))).expect_err("nobody answers");
    let badly = program.page_with("failure", |page| page.figure("tenure_store_up", "") == 0.0);
    assert_fires("TenureStoreDown", &[], &[&before, &well, &badly], &[false, true], "engine: redis");
}

#[test]
fn items_that_nobody_takes_are_seen_in_the_store() {
    let server = RedisServer::start(RedisOptions::default());
    let program = Program::start(&server.url());
    let queue = program.tenure.queue("refunds");
    let before = program.store();
    for item in ["one", "two"] {
        block_on(queue.push(item).into_future()).expect("pushed");
    }
    let delivery = block_on(queue.next()).expect("there is one");
    let well = program.store();
    block_on(delivery.ack()).expect("done");
    let badly = program.store();
    let items = |page: &Page, state: &str| {
        page.figure("tenure_store_queue_items", &format!("queue=\"refunds\",state=\"{state}\""))
    };
    assert_eq!((items(&well, "waiting"), items(&well, "in_flight")), (1.0, 1.0));
    assert_eq!((items(&badly, "waiting"), items(&badly, "in_flight")), (1.0, 0.0));
    let labels = "engine: redis, queue: refunds";
    assert_fires("TenureQueueUnserved", &[], &[&before, &well, &badly], &[false, true], labels);
}
