//! Has clients of tenure work while their processes, connections and servers fail, and judges what they recorded.
//!
//! `soak` starts an engine with servers of its own, client processes that use the library as programs do, and a resource that
//! fences what they write ([`resource`]). A schedule that a seed determines ([`schedule`]) says what is broken when, and [`nemesis`]
//! does it. All processes write down what they see by one clock ([`history`]); in the end [`check`] judges that. The seed determines
//! the schedule, and not how threads and packets interleave. `judge` judges again what a soak has kept; `--shrink` leaves out faults
//! of a schedule that broke a promise, as long as it still does ([`shrink`]). `--classic` has the same faults done to the locks that
//! people write by hand ([`comparison`]). `profile` soaks all engines and prints one table ([`profile`]).
//!
//! What more there is to break is a variant of `Fault`; what more there is to hold, a `Kind`; another engine, a row of `ENGINES`, which also
//! says what its faults may cost ([`promise`]), and a `Store`.
#![allow(clippy::disallowed_methods, reason = "processes and servers have no clock that could be moved")]
#![allow(clippy::cast_possible_truncation, reason = "times of a run, in nanoseconds, and numbers of clients")]

mod arguments;
mod check;
mod client;
mod comparison;
mod crew;
mod engines;
mod history;
mod nemesis;
mod profile;
mod promise;
mod recovery;
mod report;
mod resource;
mod schedule;
mod shrink;
mod soak;
mod summary;

use std::process::ExitCode;

use arguments::Arguments;

const USAGE: &str = "tenure-chaos soak ENGINE [--seconds 600] [--seed N] [--clients 6] [--recovery 30] \
[--only KINDS] [--with KINDS] [--keep DIRECTORY] [--shrink] [--classic] [--quiet]
       tenure-chaos profile gate|nightly [--seconds 20 | --minutes 5] [--third 0|1|2] [--seed N] [--clients 6] \
[--markdown FILE] [--json FILE]
       tenure-chaos judge DIRECTORY";

fn main() -> ExitCode {
    let mut arguments = Arguments::new(std::env::args().skip(1));
    let ended = match arguments.word().as_deref() {
        Some("soak") => soak::start(&mut arguments),
        Some("profile") => profile::start(&mut arguments),
        Some("judge") => soak::judge_again(&mut arguments),
        // The process of a client, which `soak` starts.
        Some("client") => client::play(&mut arguments).map(|()| true),
        _ => Err(format!(
            "usage: {USAGE}\n\nengines: {}\nfaults: {}",
            engines::names().join(", "),
            schedule::KINDS.join(", ")
        )),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("error: {text}");
            ExitCode::from(2)
        }
    }
}
