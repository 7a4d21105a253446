//! What it costs to count: pairs of acquire and release on an engine that only says yes, so that nothing else is measured, and on two that
//! users have.

use std::sync::Arc;

use tenure_core::engine::Connect;
use tenure_core::{Settings, Tenure, blocking};
use tenure_testkit::TestDirectory;

use crate::measure::{Outcome, median, timed};
use crate::report::{Report, Target};
use crate::scheduler::SaysYes;

/// How many pairs are made in one measurement.
const PAIRS: u32 = 200_000;
/// How many measurements are made of each, in turns; the median counts.
const ROUNDS: usize = 15;

pub(crate) fn on_and_off(report: &mut Report) -> Outcome {
    let (off, on) = (connect(Settings::new())?, connect(Settings::new().counts(true))?);
    let pairs = if report.is_short { PAIRS / 10 } else { PAIRS };
    let (mut without, mut with, mut named) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(nanoseconds(&off, pairs, false)?);
        with.push(nanoseconds(&on, pairs, false)?);
        named.push(nanoseconds(&on, pairs, true)? - nanoseconds(&off, pairs, true)?);
    }
    let (without, with, named) = (median(&without), median(&with), median(&named));
    report.add(
        "counts on: a pair of acquire and release",
        format!("{with:.0} ns, {:+.0} ns", with - without),
        format!("counts off: {without:.0} ns"),
        with - without,
        Target::AtMost(100.0, "≤ 100 ns more"),
    );
    report.add(
        "counts on: a pair, and the mutex named for each",
        format!("{named:+.0} ns"),
        "counts off".to_owned(),
        named,
        Target::None,
    );
    local(report, pairs)?;
    crate::redis::counted(report)
}

/// What it costs a thread on the engine of one machine.
fn local(report: &mut Report, pairs: u32) -> Outcome {
    let directory = TestDirectory::new();
    let url = format!("local:{}", directory.path().join("place").display());
    let connect = |is_on| tenure::blocking::connect_with(&url, Settings::new().counts(is_on));
    let (off, on) = (connect(false)?, connect(true)?);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(nanoseconds(&off, pairs / 4, false)?);
        with.push(nanoseconds(&on, pairs / 4, false)?);
    }
    let (without, with) = (median(&without), median(&with));
    report.add(
        "counts on: local, blocking",
        format!("{:.0} k pairs/s", 1e6 / with),
        format!("counts off: {:.0} k pairs/s", 1e6 / without),
        without / with,
        Target::AtLeast(0.93, "≥ 0.93"),
    );
    Ok(())
}

fn connect(settings: Settings) -> Result<blocking::Tenure, tenure_core::Error> {
    let connect = Connect::new("yes", async |_| Ok(Arc::new(SaysYes::new())));
    pollster::block_on(Tenure::connect_with(connect, settings)).map(blocking::Tenure::from)
}

/// Returns how long a pair takes.
fn nanoseconds(
    tenure: &blocking::Tenure,
    pairs: u32,
    is_named: bool,
) -> Result<f64, Box<dyn std::error::Error>> {
    let mutex = tenure.mutex("billing/4711");
    let took = timed(|| {
        for _ in 0..pairs {
            let lease = if is_named { tenure.mutex("billing/4711").acquire()? } else { mutex.acquire()? };
            lease.release()?;
        }
        Ok(())
    })?;
    Ok(took.as_nanos() as f64 / f64::from(pairs))
}
