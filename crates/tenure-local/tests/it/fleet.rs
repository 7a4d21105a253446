//! A fleet of workers on a pool of slots, some of them killed, stopped and started anew: no slot has two.
//!
//! Each worker is a process. While it may believe that it holds its slot, it writes lines that say so; from
//! these the test makes sections, which must not overlap within a slot, however their workers ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_conformance::history::{Section, by_slot, overlaps, stale_tokens};
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::Connect;
use tenure_core::{Settings, Tenure, Token, blocking};
use tenure_local::{Config, Local};

use crate::world::TestPlace;

/// The place of the fleet, for a worker.
const PLACE: &str = "TENURE_TEST_FLEET";
/// How many workers there are, and slots.
const WORKERS: u32 = 100;
/// Short, so that a worker that is stopped soon loses its slot.
const TTL: Duration = Duration::from_millis(600);
/// How often a worker says that it still holds its slot.
const LOOK: Duration = Duration::from_millis(50);
/// How many misfortunes there are, and how long it takes from one to the next.
const MISFORTUNES: u32 = 80;
const PACE: Duration = Duration::from_millis(40);
/// How long what must come may take.
const PATIENCE: Duration = Duration::from_secs(8);

fn connector(place: &std::path::Path) -> Connect {
    let config = Config::in_directory(place);
    Connect::new("local", async move |client| {
        Ok(Arc::new(Local::connect(config, client, Arc::new(SystemClock)).await?))
    })
}

fn connect(place: &std::path::Path) -> blocking::Tenure {
    pollster::block_on(Tenure::connect_with(connector(place), Settings::default())).unwrap().into()
}

fn sleep(period: Duration) {
    #[allow(clippy::disallowed_methods, reason = "misfortunes and looks come at their own pace")]
    std::thread::sleep(period);
}

/// What a worker said: it held a slot under a token, from one time to another at least.
struct Said {
    slot: u32,
    token: u64,
    from: u64,
    until: u64,
}

/// Not a test: what a worker runs. It does nothing when it is run as a test.
#[test]
fn main_of_a_worker() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let tenure = connect(place.as_ref());
    let pool = tenure.slot_pool("fleet", WORKERS).ttl(TTL);
    loop {
        // Who is stopped in the midst of a transaction holds up the others: then nothing is granted.
        let Ok(slot) = pool.acquire() else { continue };
        let from = SystemClock.now();
        loop {
            let now = SystemClock.now();
            if slot.is_lost() {
                break;
            }
            println!("> {} {} {} {}", slot.number(), slot.token(), from.nanos(), now.nanos());
            sleep(LOOK);
        }
    }
}

struct Worker {
    child: Child,
    number: usize,
}

impl Worker {
    fn start(place: &std::path::Path, number: usize, said: &Sender<(usize, Said)>) -> Worker {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "fleet::main_of_a_worker", "--nocapture", "--test-threads=1"])
            .env(PLACE, place)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let said = said.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Some((_, words)) = line.split_once("> ") else { continue };
                let words: Vec<u64> = words.split(' ').map_while(|word| word.parse().ok()).collect();
                if let [slot, token, from, until] = words[..] {
                    // The test may be over.
                    drop(said.send((number, Said { slot: slot as u32, token, from, until })));
                }
            }
        });
        Worker { child, number }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What was said, as sections: each grant once, with the last time at which it was believed in.
#[derive(Default)]
struct Log(BTreeMap<u64, Section>);

impl Log {
    fn note(&mut self, (client, said): (usize, Said)) {
        let (token, from) = (Token::new(said.token), Instant::from_nanos(said.from));
        let until = Instant::from_nanos(said.until);
        let section = Section { client, token, slot: Some(said.slot), from, until };
        let noted = *self.0.entry(said.token).or_insert(section);
        assert_eq!((noted.client, noted.slot), (client, section.slot), "two grants have one token");
        self.0.insert(said.token, section);
    }

    fn drain(&mut self, heard: &Receiver<(usize, Said)>) {
        heard.try_iter().for_each(|said| self.note(said));
    }

    /// How many of the workers that live have said after `since` that they hold a slot.
    fn holding(&self, workers: &[Worker], since: Instant) -> usize {
        let living: BTreeSet<usize> = workers.iter().map(|worker| worker.number).collect();
        let holding = self.0.values().filter(|section| section.until > since);
        holding
            .map(|section| section.client)
            .filter(|client| living.contains(client))
            .collect::<BTreeSet<_>>()
            .len()
    }

    fn wait_for_all(&mut self, workers: &[Worker], heard: &Receiver<(usize, Said)>) {
        let start = SystemClock.now();
        while self.holding(workers, start) < workers.len() {
            let holding = self.holding(workers, start);
            assert!(SystemClock.now() < start + PATIENCE, "{holding} of {} hold a slot", workers.len());
            sleep(LOOK);
            self.drain(heard);
        }
    }
}

mod alone {
    use super::*;

    /// A hundred workers on a hundred slots, of which every now and then one is killed and started anew or stopped for
    /// a while, never hold a slot twice; and in the end each has one.
    #[test]
    fn a_hundred_workers_never_share_a_slot() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let directory = TestPlace::new();
        let place = directory.place();
        let (said, heard) = channel();
        let mut numbers = 0..;
        let mut start = || Worker::start(&place, numbers.next().unwrap(), &said);
        let mut workers: Vec<Worker> = (0..WORKERS).map(|_| start()).collect();
        let mut log = Log::default();
        log.wait_for_all(&workers, &heard);
        let mut stopped: Vec<(Instant, usize)> = Vec::new();
        for _ in 0..MISFORTUNES {
            let unlucky = random.usize(..workers.len());
            if random.bool() {
                // Killed and waited for, and another one starts in its place.
                workers[unlucky] = start();
            } else {
                workers[unlucky].signal(Signal::STOP);
                let until = SystemClock.now() + TTL.mul_f64(random.f64() * 2.5);
                stopped.push((until, workers[unlucky].number));
            }
            sleep(PACE);
            let now = SystemClock.now();
            stopped.retain(|&(until, number)| {
                let worker = workers.iter().find(|worker| worker.number == number);
                let goes_on = now >= until || worker.is_none();
                if let Some(worker) = worker.filter(|_| goes_on) {
                    worker.signal(Signal::CONT);
                }
                !goes_on
            });
            log.drain(&heard);
        }
        workers.iter().for_each(|worker| worker.signal(Signal::CONT));
        log.wait_for_all(&workers, &heard);
        drop(workers);
        judge(&log);
        every_slot_is_free(&place);
    }

    fn judge(log: &Log) {
        let sections: Vec<Section> = log.0.values().copied().collect();
        let slots = by_slot(&sections);
        assert_eq!(slots.len(), WORKERS as usize, "every slot was held");
        for sections in &slots {
            assert_eq!(overlaps(sections), [], "two workers held one slot at once");
            assert_eq!(stale_tokens(sections), [], "a later holder of a slot had no larger token");
        }
        let passed_on = slots.iter().filter(|sections| sections.len() > 1).count();
        assert!(passed_on >= 20, "only {passed_on} slots had a second holder: nothing was tried");
    }

    fn every_slot_is_free(place: &std::path::Path) {
        let pool = connect(place).slot_pool("fleet", WORKERS);
        let slots: Vec<_> = (0..WORKERS).map(|_| pool.acquire_within(PATIENCE).unwrap()).collect();
        let numbers: BTreeSet<u32> = slots.iter().map(|slot| slot.number()).collect();
        assert_eq!(numbers.len(), WORKERS as usize);
    }
}
