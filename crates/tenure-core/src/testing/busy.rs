//! What a busy machine costs: how long a test lets something take is said for an idle one.

use std::time::Duration;

/// Returns how long something may take now that takes `period` at most on an idle machine: longer by as much as tasks wait
/// for each processor or a disk (the load of the last minute). A test that asks less fails because others work beside it.
pub fn stretched(period: Duration) -> Duration {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Where the system does not say, it is taken for idle.
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|text| text.split(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0);
    period.mul_f64(1.0 + load / processors as f64)
}

/// Asserts that something took no longer than it may on an idle machine, [`stretched`] to what this one does now.
///
/// # Panics
/// If it took longer.
#[track_caller]
pub fn assert_in_time(took: Duration, most: Duration) {
    let stretched = stretched(most);
    assert!(
        took < stretched,
        "it took {took:?}, and may take {most:?}, {stretched:?} on a machine as busy as this"
    );
}
