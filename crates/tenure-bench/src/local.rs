//! The local engine: pairs of acquire and release against bare LMDB, and hand-over between processes.

use std::time::Duration;

use heed::types::Bytes;
use heed::{CommitOrAbort, EnvFlags, EnvOpenOptions};
use tenure_core::clock::Instant;

use crate::measure::{Outcome, Part, median, now, part, percentile, timed, url};
use crate::report::{Report, Target};
use tenure_testkit::TestDirectory;

/// How many pairs one process makes.
const PAIRS: usize = 100_000;
/// How many measurements are made of each; the median counts.
const ROUNDS: usize = 5;
/// How many tasks share a client in the async measurement.
const TASKS: usize = 64;

/// Which side a part plays.
const SIDES: [&str; 3] = ["lmdb", "blocking", "tasks"];

pub(crate) fn uncontended(report: &mut Report) -> Outcome {
    for processes in [1, 4] {
        let mut rates = [const { Vec::new() }; SIDES.len()];
        for _ in 0..ROUNDS {
            for (side, rates) in SIDES.iter().zip(&mut rates) {
                if processes == 1 || *side != "tasks" {
                    rates.push(pairs_per_second(side, processes)?);
                }
            }
        }
        let [bare, blocking, tasks] = rates;
        let bare = median(&bare);
        let mut add = |what: String, ours: f64| {
            report.add(
                &what,
                format!("{:.0} k pairs/s", ours / 1000.0),
                format!("two LMDB write transactions: {:.0} k/s", bare / 1000.0),
                ours / bare,
                Target::AtLeast(0.5, "≥ 0.5"),
            );
        };
        add(format!("local, uncontended, blocking API, {processes} process(es)"), median(&blocking));
        if processes == 1 {
            add(format!("local, uncontended, {TASKS} async tasks, 1 process"), median(&tasks));
        }
    }
    Ok(())
}

fn pairs_per_second(side: &str, processes: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let directory = TestDirectory::new();
    let path = directory.path().join("place").to_string_lossy().into_owned();
    let mut parts = Vec::new();
    for number in 0..processes {
        parts.push(part(&["uncontended", side, &path, &number.to_string()])?);
    }
    parts.iter_mut().try_for_each(|part| part.line().map(drop))?;
    let took = timed(|| {
        parts.iter_mut().try_for_each(|part| part.tell("go"))?;
        Ok(parts.iter_mut().try_for_each(|part| part.line().map(drop))?)
    })?;
    Ok((PAIRS * processes) as f64 / took.as_secs_f64())
}

/// Makes the pairs of one process, between two lines of the other side.
pub(crate) fn uncontended_part(arguments: &[String]) -> Outcome {
    let [side, path, number] = arguments else { return Err("a side, a path and a number".into()) };
    let name = format!("bench/{number}");
    match side.as_str() {
        "lmdb" => bare_pairs(path, &name),
        "blocking" => {
            let mutex = tenure::blocking::connect(&format!("local:{path}"))?.mutex(&name);
            between_lines(|| {
                for _ in 0..PAIRS {
                    mutex.acquire()?.release()?;
                }
                Ok(())
            })
        }
        _ => tasks_pairs(path, &name),
    }
}

fn tasks_pairs(path: &str, name: &str) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let tenure = runtime.block_on(tenure::connect(&format!("local:{path}")))?;
    between_lines(|| {
        let work = (0..TASKS).map(|task| {
            let mutex = tenure.mutex(&format!("{name}/{task}"));
            runtime.spawn(async move {
                for _ in 0..PAIRS / TASKS {
                    mutex.acquire().await?.release().await?;
                }
                Ok(())
            })
        });
        let work: Vec<tokio::task::JoinHandle<tenure::Result<()>>> = work.collect();
        for task in work {
            runtime.block_on(task)??;
        }
        Ok(())
    })
}

/// What no engine on LMDB can beat: one key written, one key removed, each in a transaction.
#[allow(unsafe_code, reason = "LMDB maps a file; the benchmark's own directory is changed by nobody else")]
fn bare_pairs(path: &str, name: &str) -> Outcome {
    std::fs::create_dir_all(path)?;
    // SAFETY: the file in this fresh directory is only used through LMDB, by processes of this benchmark.
    let env =
        unsafe { EnvOpenOptions::new().map_size(1 << 28).max_dbs(1).flags(EnvFlags::NO_SYNC).open(path)? };
    let write = env.write_txn()?;
    let database = env
        .create_databases_and_commit(write, |opener, write| {
            let database = opener.create_database::<Bytes, Bytes>(write, Some("bench"))?;
            heed::Result::Ok(CommitOrAbort::<_, ()>::Commit(database))
        })?
        .unwrap_commit();
    let value = [7; 120];
    between_lines(|| {
        for _ in 0..PAIRS {
            let mut write = env.write_txn()?;
            database.put(&mut write, name.as_bytes(), &value)?;
            write.commit()?;
            let mut write = env.write_txn()?;
            database.delete(&mut write, name.as_bytes())?;
            write.commit()?;
        }
        Ok(())
    })
}

/// Says that it is ready, waits to be told to begin, works, and says that it is done.
fn between_lines(work: impl FnOnce() -> Outcome) -> Outcome {
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    work()?;
    println!("done");
    Ok(())
}

/// How many times the lock changes hands in the hand-over benchmark.
const HAND_OVERS: usize = 1_000;

pub(crate) fn hand_over(report: &mut Report) -> Outcome {
    let directory = TestDirectory::new();
    let mut parts: Vec<Part> = Vec::new();
    for _ in 0..2 {
        parts.push(part(&["hand-over", &url(&directory)])?);
    }
    // Each part prints its moments of release and of grant; the pairs in order are the hand-overs.
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for part in &mut parts {
        part.line()?;
    }
    parts.iter_mut().try_for_each(|part| part.tell("go"))?;
    for (number, part) in parts.iter_mut().enumerate() {
        for _ in 0..HAND_OVERS {
            let line = part.line()?;
            let (granted, released) = line.split_once(' ').ok_or("two moments a line")?;
            moments.push((granted.parse()?, true, number));
            moments.push((released.parse()?, false, number));
        }
    }
    moments.sort_unstable();
    // Only a change of holders is a hand-over.
    let hand_overs = moments.windows(2).filter(|pair| !pair[0].1 && pair[1].1 && pair[0].2 != pair[1].2);
    let micros: Vec<f64> = hand_overs.map(|pair| (pair[1].0 - pair[0].0) as f64 / 1000.0).collect();
    if micros.len() < HAND_OVERS {
        return Err(format!("only {} hand-overs between {HAND_OVERS} holds of each", micros.len()).into());
    }
    let (p50, p99) = (median(&micros), percentile(&micros, 99));
    report.add(
        "local, hand-over between processes: release to next running",
        format!("p50 {p50:.0} µs, p99 {p99:.0} µs"),
        "-".to_owned(),
        p50,
        Target::AtMost(80.0, "p50 ≤ 80 µs"),
    );
    Ok(())
}

/// Takes turns with another process on one lock.
pub(crate) fn hand_over_part(arguments: &[String]) -> Outcome {
    let [url] = arguments else { return Err("a URL".into()) };
    let mutex = tenure::blocking::connect(url)?.mutex("bench");
    let mut moments: Vec<(Instant, Instant)> = Vec::with_capacity(HAND_OVERS);
    between_lines_without_end(|| {
        for _ in 0..HAND_OVERS {
            let lease = mutex.acquire()?;
            let granted = now();
            // Long enough that the other side is waiting again, and its processor is idle.
            #[allow(clippy::disallowed_methods, reason = "a benchmark holds for a while")]
            std::thread::sleep(Duration::from_millis(1));
            moments.push((granted, now()));
            lease.release()?;
        }
        Ok(())
    })?;
    for (granted, released) in moments {
        println!("{} {}", granted.nanos(), released.nanos());
    }
    Ok(())
}

fn between_lines_without_end(work: impl FnOnce() -> Outcome) -> Outcome {
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    work()
}
