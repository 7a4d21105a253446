//! The suite for thin clients: whether a client of `tenure serve`, in any language, believes only what it may.
//!
//! A client comes with a *driver*: a program that reads commands in lines, does them with the client, and answers in lines (`driver.rs`
//! has the protocol). Between it and a real server with a real store stands a proxy that cuts, delays and doubles (`proxy.rs`). The
//! cases (`cases.rs`) break one thing each, and compare what the client says with what the store says.
//!
//! `thin_clients TENURE [--case NAME]... [--broken NAME] -- DRIVER ARGUMENTS...`. With `--broken NAME` the client is known to be wrong, and
//! that case must find it.
#![allow(clippy::disallowed_methods, reason = "processes have no clock that a test could move")]

mod cases;
mod driver;
mod proxy;
mod soak;
mod world;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tenure_testkit::redis::{RedisOptions, RedisServer};

use crate::cases::CASES;
use crate::world::World;

/// How often a case may go on before its time: a machine that is busy may keep a client from what the case is about.
const ATTEMPTS: usize = 3;

/// Why a case has shown nothing: what it is about did not come to pass.
#[derive(Debug)]
pub(crate) struct Inconclusive(pub(crate) String);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().expect("the path of `tenure`");
    let (mut only, mut broken, mut driver) = (Vec::new(), None, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--case" => only.extend(arguments.next()),
            "--broken" => broken = arguments.next(),
            "--" => driver.extend(arguments.by_ref()),
            other => panic!("{other:?} is no argument"),
        }
    }
    let redis = RedisServer::start(RedisOptions::default());
    let is_wanted = |name: &str| {
        broken.as_deref().map_or(only.is_empty() || only.iter().any(|one| one == name), |one| one == name)
    };
    let wanted: Mutex<VecDeque<_>> = Mutex::new(CASES.iter().filter(|(name, _)| is_wanted(name)).collect());
    let count = locked(&wanted).len();
    let failed = Mutex::new(Vec::new());
    // They mostly wait.
    let lanes = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some((name, case)) = next(&wanted) {
                    let began = Instant::now();
                    let ended = ended(name, broken.is_some(), |name| {
                        case(&mut World::new(&command, &redis.url(), &driver, name))
                    });
                    let word = if ended.is_ok() { "passed" } else { "FAILED" };
                    println!("{word:>10} {name} ({:.1} s)", began.elapsed().as_secs_f64());
                    if let Err(why) = ended {
                        locked(&failed).push(format!("{name}: {why}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(count > 0, "no such case");
    match broken {
        Some(_) if failed.is_empty() => {
            println!("a client that is broken has passed");
            ExitCode::FAILURE
        }
        Some(_) => ExitCode::SUCCESS,
        None if failed.is_empty() => {
            println!("{count} cases passed");
            ExitCode::SUCCESS
        }
        None => {
            println!("{} of {count} cases failed:\n{}", failed.len(), failed.join("\n"));
            ExitCode::FAILURE
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn next<T>(wanted: &Mutex<VecDeque<T>>) -> Option<T> {
    locked(wanted).pop_front()
}

/// How a case ends.
fn ended(name: &str, is_broken: bool, case: impl Fn(&str) -> Result<(), Inconclusive>) -> Result<(), String> {
    let mut shown = Err("nothing was shown".to_owned());
    for attempt in 1..=ATTEMPTS {
        shown = match catch_unwind(AssertUnwindSafe(|| case(&format!("{name}/{attempt}")))) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(Inconclusive(why))) => Err(why),
            Err(_) => return Err("see above".to_owned()),
        };
    }
    // It has found nothing wrong.
    if is_broken { Ok(()) } else { shown }
}
