//! How much of what is random a run of the tests tries.

use std::ops::Range;

/// Says that all there is is tried: `cargo xtask test --everything` sets it.
const EVERYTHING: &str = "TENURE_EVERYTHING";
/// Names the first seed, so that others are tried than in every run.
const SEED: &str = "TENURE_SEED";

/// Returns how many random cases are tried where the ordinary suite tries `ordinary`: four times as many under `--everything`.
pub fn cases(ordinary: u32) -> u32 {
    if std::env::var_os(EVERYTHING).is_some() { ordinary * 4 } else { ordinary }
}

/// As [`cases`], as seeds, which are printed. They are the same in each run, unless `TENURE_SEED` names the first.
pub fn seeds(ordinary: u32) -> Range<u64> {
    let first: u64 = named_seed().unwrap_or(0);
    let seeds = first..first + u64::from(cases(ordinary));
    println!("seeds {seeds:?}: {SEED}={first} repeats them");
    seeds
}

/// Returns another seed in each run, and prints it. `TENURE_SEED` names the one to repeat.
pub fn another_seed() -> u64 {
    let seed = named_seed().unwrap_or_else(|| fastrand::u64(..));
    println!("{SEED}={seed} repeats it");
    seed
}

fn named_seed() -> Option<u64> {
    std::env::var(SEED).ok().and_then(|seed| seed.parse().ok())
}
