//! How the process is: when it did nothing, and what it uses.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use super::pause;
use crate::history::{Journal, now};

/// How often it looks.
const BEAT: Duration = Duration::from_millis(10);
/// A beat that comes so much later was missed.
const STALLED: Duration = Duration::from_millis(40);
/// After how many beats it tells what the process uses.
const BEATS_PER_LOOK: usize = 100;

/// Looks, on a thread of its own, as long as the process lives.
pub(super) fn start(journal: &Arc<Journal>) {
    let journal = journal.clone();
    std::thread::spawn(move || {
        for beat in 0usize.. {
            let before = now();
            pause(BEAT);
            let after = now();
            if after - before > (BEAT + STALLED).as_nanos() as u64 {
                journal.write(&["stalled", &before.to_string(), &after.to_string()]);
            }
            if beat % BEATS_PER_LOOK == 0 {
                let [kib, files] = [memory_kib(), files()].map(|number| number.to_string());
                journal.write(&["usage", &after.to_string(), &kib, &files]);
            }
        }
    });
}

fn memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}

fn files() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}
