//! How much of what is random a run of the tests tries.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Says how many times as many cases are tried as in the ordinary suite: 4 in `cargo xtask check`, 16 under `--everything`.
const TIMES: &str = "TENURE_CASES_TIMES";
/// Names the first seed, so that others are tried than in every run.
const SEED: &str = "TENURE_SEED";

/// Returns how many random cases are tried where the ordinary suite tries `ordinary`, whose length is somebody's time: a multiple
/// before a change lands.
pub fn cases(ordinary: u32) -> u32 {
    ordinary * number(TIMES).map_or(1, |times| times as u32)
}

/// Returns `full` wherever more is tried than in the ordinary suite, and `ordinary` there: of what finds the same faults in smaller numbers, and
/// takes long.
pub fn more<T>(ordinary: T, full: T) -> T {
    if cases(1) > 1 { full } else { ordinary }
}

/// As [`cases`], as seeds, which are printed. They are the same in each run, unless `TENURE_SEED` names the first.
pub fn seeds(ordinary: u32) -> Range<u64> {
    let first = number(SEED).unwrap_or(0);
    let seeds = first..first + u64::from(cases(ordinary));
    println!("seeds {seeds:?}: {SEED}={first} repeats them");
    seeds
}

/// Returns another seed in each run and at each call, and prints it. `TENURE_SEED` names the one to repeat.
pub fn another_seed() -> u64 {
    let seed = number(SEED).or_else(of_this_run).unwrap_or_else(|| fastrand::u64(..));
    println!("{SEED}={seed} repeats it");
    seed
}

/// A test that failed and is tried again must fail again, so the seeds are those of the run, one for each call. (`cargo test` has no runs.)
fn of_this_run() -> Option<u64> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let run = std::env::var("NEXTEST_RUN_ID").ok()?;
    let first = run.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    Some(first.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_twice_tries_two_worlds() {
        let is_named = number(SEED).is_some();
        assert_eq!(another_seed() == another_seed(), is_named);
    }
}
