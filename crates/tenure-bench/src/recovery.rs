//! How soon the next waiter runs after the holder was killed.

use crate::measure::{Outcome, median, now, part, percentile, url};
use crate::report::{Report, Target};
use tenure_testkit::TestDirectory;

const ROUNDS: usize = 30;

pub(crate) fn after_kill(report: &mut Report) -> Outcome {
    let directory = TestDirectory::new();
    let url = url(&directory);
    let mut millis = Vec::new();
    for _ in 0..ROUNDS {
        let mut holder = part(&["holder", &url])?;
        holder.line()?;
        let mut waiter = part(&["holder", &url])?;
        let tenure = tenure::blocking::connect(&url)?;
        while !pollster::block_on(tenure.as_async().inspect("bench"))?.iter().any(|view| view.waiting == 1) {
            std::thread::yield_now();
        }
        let killed = now();
        holder.0.kill()?;
        let granted: u64 = waiter.line()?.parse()?;
        millis.push((granted.saturating_sub(killed.nanos())) as f64 / 1e6);
    }
    let (p50, p99) = (median(&millis), percentile(&millis, 99));
    report.add(
        "local, holder killed (SIGKILL): next waiter running",
        format!("p50 {p50:.1} ms, worst {p99:.1} ms"),
        "its ttl, 30 s, without death detection".to_owned(),
        p99,
        Target::AtMost(20.0, "≤ 20 ms"),
    );
    Ok(())
}

/// Takes the lock, says when, and holds it until it is killed.
pub(crate) fn holder_part(arguments: &[String]) -> Outcome {
    let [url] = arguments else { return Err("a URL".into()) };
    let lease = tenure::blocking::connect(url)?.mutex("bench").acquire()?;
    println!("{}", now().nanos());
    std::io::stdin().read_line(&mut String::new())?;
    lease.release()?;
    Ok(())
}
