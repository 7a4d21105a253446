//! Chaos around five servers: whatever happens to exclusion, tokens never repeat and never fall, and a fenced resource takes
//! no stale write. The same with the weaker form of the tokens finds what the strict one is for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_conformance::crew::{connect as connect_with, now, pause};
use tenure_core::Tenure;
use tenure_core::clock::Instant;
use tenure_core::engine::Connect;
use tenure_core::testing::random::cases;
use tenure_fence::Memory;
use tenure_redlock::{Config, Redlock};
use tenure_testkit::Proxy;
use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::servers_fail::start_with;

const SERVERS: usize = 5;
const CLIENTS: usize = 6;
/// A server that has started anew is soon let in again.
const SETTINGS: &str = "?max_ttl=1s";
const NAMES: [&str; 2] = ["one", "two"];
const TTL: Duration = Duration::from_millis(400);
/// Two faults a second and more.
const FAULT_EVERY: Duration = Duration::from_millis(250);
/// How many seconds the strict form bears it, unless the environment says for how many acquisitions; and the weaker one, if it is not found out.
const LASTS: u32 = 7;
const LASTS_WEAKER: Duration = Duration::from_secs(40);
const ACQUISITIONS: &str = "TENURE_CHAOS_ACQUISITIONS";

/// One acquisition.
#[derive(Clone, Copy, Debug)]
struct Taken {
    name: usize,
    asked: Instant,
    granted: Instant,
    token: u64,
}

#[derive(Default)]
struct Shared {
    taken: Mutex<Vec<Taken>>,
    /// What a fenced resource has accepted, in order.
    accepted: Mutex<[Vec<u64>; 2]>,
    refused: AtomicUsize,
    is_over: AtomicBool,
    /// Clients that are to die.
    dies: [AtomicBool; CLIENTS],
}

/// A client's way to the servers.
struct Way {
    proxies: Vec<Proxy>,
}

impl Way {
    fn new(ports: &[u16]) -> Way {
        Way { proxies: ports.iter().map(|port| Proxy::start(([127, 0, 0, 1], *port))).collect() }
    }

    fn connect(&self, is_plain: bool) -> Tenure {
        let hosts: Vec<String> =
            self.proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        let config = Config::parse(&format!("redlock://{}{SETTINGS}", hosts.join(","))).expect("a URL");
        let config = if is_plain { config.with_plain_tokens() } else { config };
        connect_with(Connect::new("redlock", async move |client| {
            Ok(Arc::new(Redlock::connect(config, client).await?))
        }))
    }
}

/// Takes turns until it is over.
fn work(
    shared: &Shared,
    ways: &[Mutex<Way>; CLIENTS],
    ports: &[u16],
    at: usize,
    is_plain: bool,
    fence: &Memory,
) {
    let mut client = ways[at].lock().expect("no client panics").connect(is_plain);
    let name = at % NAMES.len();
    while !shared.is_over.load(Ordering::Relaxed) {
        let asked = now();
        let acquired =
            pollster::block_on(client.mutex(NAMES[name]).ttl(TTL).acquire_within(Duration::from_secs(1)));
        let Ok(lease) = acquired else { continue };
        let (granted, token) = (now(), lease.token().get());
        shared.taken.lock().expect("no client panics").push(Taken { name, asked, granted, token });
        pause(Duration::from_millis(fastrand::u64(0..3)));
        if shared.dies[at].swap(false, Ordering::Relaxed) {
            // Nothing that it says reaches anybody any more.
            let mut way = ways[at].lock().expect("no client panics");
            way.proxies.iter().for_each(Proxy::black_hole);
            drop((lease, client));
            *way = Way::new(ports);
            client = way.connect(is_plain);
            continue;
        }
        if fastrand::u32(0..20) == 0 {
            // A holder that was paused for longer than its ttl, and goes on as if nothing were.
            let way = ways[at].lock().expect("no client panics");
            way.proxies.iter().for_each(Proxy::black_hole);
            pause(TTL * 3 / 2);
            way.proxies.iter().for_each(Proxy::heal);
        }
        let mut accepted = shared.accepted.lock().expect("no client panics");
        match fence.check(NAMES[name], &lease) {
            Ok(()) => accepted[name].push(token),
            Err(_) => drop(shared.refused.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// A server that has forgotten waits, and learns. Were a majority to forget, only an operator could let it in again.
const RESTART_EVERY: Duration = Duration::from_secs(5);

/// Breaks something.
fn disturb(servers: &[RedisServer], ways: &[Mutex<Way>; CLIENTS], shared: &Shared, restarted: &mut Instant) {
    let (server, client) = (fastrand::usize(0..SERVERS), fastrand::usize(0..CLIENTS));
    let on_way = |fault: fn(&Proxy)| {
        if let Ok(way) = ways[client].try_lock() {
            fault(&way.proxies[server]);
            pause(Duration::from_millis(60));
            way.proxies[server].heal();
        }
    };
    match fastrand::u32(0..12) {
        0 if now().since(*restarted) > RESTART_EVERY => {
            servers[server].restart();
            *restarted = now();
        }
        0..=2 => servers[server].clock().advance(Duration::from_secs(1)),
        3 | 4 => servers[server].clock().step_back(Duration::from_secs(1)),
        5 => shared.dies[client].store(true, Ordering::Relaxed),
        6 | 7 => on_way(Proxy::drop_requests),
        8 | 9 => on_way(Proxy::drop_replies),
        10 => on_way(Proxy::cut),
        _ => {
            servers[server].stop();
            pause(Duration::from_millis(100));
            servers[server].cont();
        }
    }
}

#[derive(Debug, Default)]
struct Report {
    acquisitions: usize,
    faults: usize,
    refused: usize,
    duplicates: usize,
    smaller: usize,
    stale: usize,
}

impl Report {
    fn is_found_out(&self) -> bool {
        self.duplicates + self.smaller > 0
    }
}

fn judge(shared: &Shared, faults: usize) -> Report {
    let taken = shared.taken.lock().expect("no client panics");
    let refused = shared.refused.load(Ordering::Relaxed);
    let mut report = Report { acquisitions: taken.len(), faults, refused, ..Report::default() };
    for name in 0..NAMES.len() {
        let of_name: Vec<Taken> = taken.iter().filter(|taken| taken.name == name).copied().collect();
        let tokens: std::collections::BTreeSet<u64> = of_name.iter().map(|taken| taken.token).collect();
        report.duplicates += of_name.len() - tokens.len();
        // Whoever asked after another was granted has a larger token.
        let (mut by_grant, mut by_asking) = (of_name.clone(), of_name);
        by_grant.sort_by_key(|taken| taken.granted);
        by_asking.sort_by_key(|taken| taken.asked);
        let mut granted = by_grant.iter().peekable();
        let mut largest = 0;
        for taken in &by_asking {
            while let Some(before) = granted.next_if(|before| before.granted < taken.asked) {
                largest = largest.max(before.token);
            }
            report.smaller += usize::from(taken.token <= largest);
        }
        let accepted = &shared.accepted.lock().expect("no client panics")[name];
        report.stale += accepted.windows(2).filter(|pair| pair[1] <= pair[0]).count();
    }
    report
}

fn chaos(is_plain: bool, lasts: Duration) -> Report {
    let (servers, _) = start_with(SERVERS, &RedisOptions::default().clock(), SETTINGS);
    let ports: Vec<u16> = servers.iter().map(RedisServer::port).collect();
    let ways: [Mutex<Way>; CLIENTS] = std::array::from_fn(|_| Mutex::new(Way::new(&ports)));
    let (shared, fence) = (Shared::default(), Memory::new());
    let wanted: Option<usize> = std::env::var(ACQUISITIONS).ok().and_then(|count| count.parse().ok());
    let mut faults = 0;
    std::thread::scope(|scope| {
        for at in 0..CLIENTS {
            let (shared, ways, ports, fence) = (&shared, &ways, &ports, &fence);
            scope.spawn(move || work(shared, ways, ports, at, is_plain, fence));
        }
        let began = now();
        let mut restarted = began;
        let is_over = |faults| match wanted.filter(|_| !is_plain) {
            Some(wanted) => shared.taken.lock().expect("no client panics").len() >= wanted,
            None => now().since(began) > lasts || is_plain && judge(&shared, faults).is_found_out(),
        };
        while !is_over(faults) {
            disturb(&servers, &ways, &shared, &mut restarted);
            faults += 1;
            pause(FAULT_EVERY);
        }
        shared.is_over.store(true, Ordering::Relaxed);
    });
    judge(&shared, faults)
}

#[test]
fn tokens_never_repeat_and_never_fall_whatever_happens() {
    let seconds = cases(LASTS);
    let report = chaos(false, Duration::from_secs(seconds.into()));
    eprintln!("{report:?}");
    let (acquisitions, faults) = (8 * seconds as usize, 2 * seconds as usize);
    let is_much = report.acquisitions > acquisitions && report.faults > faults;
    assert!(is_much, "too little happened: {report:?}");
    assert!(report.refused > 0, "no holder was ever late: {report:?}");
    assert_eq!((report.duplicates, report.smaller, report.stale), (0, 0, 0), "{report:?}");
}

#[test]
fn tokens_that_are_not_written_back_repeat_or_fall() {
    let report = chaos(true, LASTS_WEAKER);
    eprintln!("{report:?}");
    assert!(report.is_found_out(), "the weaker form was not found out: {report:?}");
}
