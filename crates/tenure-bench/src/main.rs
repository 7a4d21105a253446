//! Benchmarks: each runs our code and a baseline side by side on this machine and prints the ratio.
//!
//! `cargo xtask bench` runs them all; `cargo xtask bench NAME…` some, and `serve` those that begin with `serve-`; `--write FILE` also writes the table, with
//! the machine and the command, as Markdown; `--short` measures the long ones for a shorter time. Absolute figures belong to the machine; the ratios are the point.

mod counting;
mod etcd;
mod foreign;
mod local;
mod measure;
mod mysql;
mod postgres;
mod recovery;
mod redis;
mod redlock;
mod report;
mod run;
mod scheduler;
mod serve;
mod sql;
mod zookeeper;

use report::Report;

/// A benchmark: its name, and what it adds to the report.
type Bench = (&'static str, fn(&mut Report) -> measure::Outcome);

const BENCHES: &[Bench] = &[
    ("uncontended", local::uncontended),
    ("hand-over", local::hand_over),
    ("recovery", recovery::after_kill),
    ("run", run::against_flock),
    ("scheduler", scheduler::a_million_leases),
    ("counting", counting::on_and_off),
    ("redis-uncontended", redis::uncontended),
    ("redis-contended", redis::contended),
    ("redis-hand-over", redis::hand_over),
    ("redis-queue", redis::queue),
    ("redis-million", redis::a_million_leases),
    ("redlock-uncontended", redlock::uncontended),
    ("redlock-memory", redlock::memory),
    ("postgres-uncontended", postgres::uncontended),
    ("postgres-pooler", postgres::behind_a_pooler),
    ("postgres-hand-over", postgres::hand_over_behind_a_pooler),
    ("postgres-advisory", postgres::advisory),
    ("postgres-queue", postgres::queue),
    ("etcd-uncontended", etcd::uncontended),
    ("etcd-contended", etcd::contended),
    ("etcd-idle-waiters", etcd::idle_waiters),
    ("mysql-uncontended", mysql::uncontended),
    ("mysql-hand-over", mysql::hand_over_by_looks),
    ("mysql-queue", mysql::queue),
    ("zookeeper-uncontended", zookeeper::uncontended),
    ("zookeeper-queue", zookeeper::queue),
    ("serve-waiters", serve::waiters),
    ("serve-pairs", serve::pairs),
    ("serve-loris", serve::loris),
    ("serve-bodies", serve::bodies),
    ("serve-drain", serve::drain),
    ("serve-gone", serve::gone),
    ("serve-streams", serve::streams),
    ("serve-looks", serve::looks),
];

/// Whether an argument means a benchmark: by its name, or by what it begins with.
fn is_meant(name: &str, arg: &str) -> bool {
    name == arg || name.strip_prefix(arg).is_some_and(|rest| rest.starts_with('-'))
}

fn main() -> measure::Outcome {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    // A benchmark with several processes starts this program again in a part of its own.
    if args.first().is_some_and(|arg| arg == "--part") {
        return match args[1].as_str() {
            "uncontended" => local::uncontended_part(&args[2..]),
            "hand-over" => local::hand_over_part(&args[2..]),
            "holder" => recovery::holder_part(&args[2..]),
            part => Err(format!("no part {part:?}").into()),
        };
    }
    let is_short = args.iter().position(|arg| arg == "--short").map(|at| args.remove(at)).is_some();
    let mut file = None;
    if let Some(at) = args.iter().position(|arg| arg == "--write") {
        file = Some(args.get(at + 1).ok_or("--write needs a file")?.clone());
        args.drain(at..at + 2);
    }
    if let Some(unknown) = args.iter().find(|arg| !BENCHES.iter().any(|(name, _)| is_meant(name, arg))) {
        let known: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no benchmark {unknown:?}; there are {}", known.join(", ")).into());
    }
    let mut report = Report::new(is_short);
    for (name, bench) in BENCHES {
        if args.is_empty() || args.iter().any(|arg| is_meant(name, arg)) {
            eprintln!("bench: {name}");
            bench(&mut report)?;
        }
    }
    report.print();
    match file {
        Some(file) => Ok(report.write(std::path::Path::new(&file))?),
        None => Ok(()),
    }
}
