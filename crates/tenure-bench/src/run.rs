//! `tenure run x -- true` against `flock f true`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::measure::{Outcome, median, timed, url};
use crate::report::{Report, Target};
use tenure_testkit::TestDirectory;

/// Runs in a row in one measurement.
const RUNS: usize = 100;
const ROUNDS: usize = 7;

pub(crate) fn against_flock(report: &mut Report) -> Outcome {
    let directory = TestDirectory::new();
    let tenure = command()?;
    let url = url(&directory);
    let file = directory.path().join("flock");
    let (mut ours, mut flock, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(millis(&tenure, &["run", "--engine", &url, "x", "--", "true"])?);
        flock.push(millis(Path::new("flock"), &[&file.to_string_lossy(), "true"])?);
        bare.push(millis(Path::new("true"), &[])?);
    }
    let (ours, flock, bare) = (median(&ours), median(&flock), median(&bare));
    report.add(
        "`tenure run x -- true` against `flock f true`",
        format!("{ours:.2} ms"),
        format!("flock: {flock:.2} ms (`true` alone: {bare:.2} ms)"),
        ours / flock,
        Target::AtMost(2.0, "≤ 2.0"),
    );
    Ok(())
}

/// The command as it was built beside this program.
pub(crate) fn command() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let path = std::env::current_exe()?.with_file_name("tenure");
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{} is missing: build tenure-cli", path.display()).into())
    }
}

fn millis(program: &Path, arguments: &[&str]) -> Result<f64, Box<dyn std::error::Error>> {
    let took = timed(|| {
        for _ in 0..RUNS {
            let status = Command::new(program).args(arguments).status()?;
            if !status.success() {
                return Err(format!("{} ended with {status}", program.display()).into());
            }
        }
        Ok(())
    })?;
    Ok(took.as_secs_f64() * 1000.0 / RUNS as f64)
}
