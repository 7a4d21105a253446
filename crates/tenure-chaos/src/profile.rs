//! Soaks of all engines, one after the other: before each change lands (`gate`), and for longer each night (`nightly`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::arguments::Arguments;
use crate::engines::ENGINES;
use crate::history::now;
use crate::soak::{CLIENTS, RECOVERY_SECONDS, Soak};
use crate::summary::{Ended, Summary};

/// Each engine is soaked for so long at the gate: all of them within 8 minutes on two processors.
const GATE_SECONDS: u64 = 20;
const NIGHTLY_MINUTES: u64 = 5;
/// Of how many parts of a profile one may be asked for, so that all engines have had their turn after some changes.
const PARTS: usize = 3;

/// Runs a profile as the command line says, prints a table, and returns whether all promises were kept.
///
/// # Errors
/// If the arguments are not understood, or a file cannot be written.
pub(crate) fn start(arguments: &mut Arguments) -> Result<bool, String> {
    let profile = arguments.word().ok_or("which profile: gate or nightly?")?;
    let soaks = match profile.as_str() {
        "gate" => {
            let lasts = Duration::from_secs(arguments.number_or("seconds", GATE_SECONDS)?);
            ENGINES.iter().map(|variant| (variant.name, None, lasts)).collect()
        }
        "nightly" => nightly(Duration::from_secs(60 * arguments.number_or("minutes", NIGHTLY_MINUTES)?)),
        _ => return Err(format!("there is no profile {profile:?}: gate or nightly")),
    };
    let third = arguments.optional("third").map(|third| part(&third)).transpose()?;
    let seed = arguments.number_or("seed", fastrand::u64(0..1_000_000))?;
    let clients = arguments.number_or("clients", CLIENTS)? as usize;
    let files = ["markdown", "json"].map(|name| arguments.optional(name).map(PathBuf::from));
    arguments.finish()?;
    let mut summary = Summary::default();
    for (_, (engine, with, lasts)) in
        soaks.into_iter().enumerate().filter(|(index, _)| third.is_none_or(|third| index % PARTS == third))
    {
        let soak = Soak {
            engine: engine.to_owned(),
            seed,
            clients,
            lasts,
            recovery: Duration::from_secs(RECOVERY_SECONDS),
            with: with.into_iter().map(str::to_owned).collect(),
        };
        summary.soaks.push(run(&soak));
    }
    print!("\n{summary}");
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let [markdown, json] = files;
    markdown.map_or(Ok(()), |path| write(&path, summary.markdown()))?;
    json.map_or(Ok(()), |path| write(&path, summary.json()))?;
    Ok(summary.is_good())
}

/// Each engine, and again with each fault that comes only if it is asked for. A disk of a server's own needs root.
fn nightly(lasts: Duration) -> Vec<(&'static str, Option<&'static str>, Duration)> {
    let can = |fault: &&str| *fault != "disk" || rustix::process::geteuid().is_root();
    let each = ENGINES.iter().flat_map(|variant| {
        let with = std::iter::once(None).chain(variant.extra.iter().copied().filter(can).map(Some));
        with.map(|with| (variant.name, with, lasts))
    });
    each.collect()
}

fn part(text: &str) -> Result<usize, String> {
    let part = text.parse().ok().filter(|part| *part < PARTS);
    part.ok_or_else(|| format!("--third: {text:?} is not one of 0, 1 and 2"))
}

/// Runs one soak. Servers that do not start, or do not come back, fail this one alone.
fn run(soak: &Soak) -> Ended {
    let name = soak.name();
    println!("{name}, seed {}, {} s", soak.seed, soak.lasts.as_secs());
    let began = now();
    let report = catch_unwind(AssertUnwindSafe(|| soak.whole()));
    let report = report.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    });
    // All that is known of it is needed at once, and not when the others are through.
    if let Ok(report) = &report
        && !report.is_good()
    {
        print!("{report}");
    }
    Ended::new(name, soak, report, Duration::from_nanos(now() - began))
}
