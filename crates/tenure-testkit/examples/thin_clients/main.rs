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
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
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
    let is_wanted =
        |name: &str| broken.as_deref().map_or(only.is_empty() || only.iter().any(|one| one == name), |one| one == name);
    let mut failed = Vec::new();
    let mut count = 0;
    for (name, case) in CASES.iter().filter(|(name, _)| is_wanted(name)) {
        let began = Instant::now();
        count += 1;
        let mut ended = Err("nothing was shown".to_owned());
        for attempt in 1..=ATTEMPTS {
            let run = || case(&mut World::new(&command, &redis.url(), &driver, &format!("{name}/{attempt}")));
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => ended = Ok(()),
                Ok(Err(Inconclusive(why))) if attempt < ATTEMPTS => {
                    println!("     again {name}: {why}");
                    continue;
                }
                Ok(Err(Inconclusive(why))) => ended = Err(why),
                Err(_) => ended = Err("see above".to_owned()),
            }
            break;
        }
        let took = began.elapsed().as_secs_f64();
        println!("{:>10} {name} ({took:.1} s)", if ended.is_ok() { "passed" } else { "FAILED" });
        if let Err(why) = ended {
            failed.push(format!("{name}: {why}"));
        }
    }
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
