//! `tenure cache`: one process runs the program, the others get its output.
//!
//! The program is work under a lease as that of `tenure run` is (`supervise.rs`): a keeper has it, and ends all of it when the
//! lease is lost or this process dies. Invariant: no other process loads before nothing of the work is left.

mod collector;

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::{Error, ErrorKind, FetchedFrom, Tenure};

use crate::connect::connect_blocking;
use crate::counting::MetricsFlags;
use crate::duration::{TIME_HELP, parse_duration};
use crate::exit::{self, Ended, Failure, Outcome};
use crate::output::lines::{SHOW_FIRST, flush, write_line};
use crate::output::messages::Messages;
use crate::supervise::foreground::Foreground;
use crate::supervise::job::{Job, OnLoss};
use crate::supervise::keeper::{Streams, keeper_gone};
use crate::supervise::retry::Retry;
use crate::supervise::setup::Setup;
use crate::supervise::supervised::Rules;
use crate::supervise::supervisor::Supervisor;
use collector::{Collected, Collector};

const CACHE_HELP: &str = "\
Prints the output of CMD: that of an earlier run, if it is fresh; else CMD is run by one process, and all others \
that want the same KEY meanwhile wait for its output (or print the old one, with --stale).

If CMD fails, its output and exit code are passed on, nothing is kept, and one of those who wait runs it. An output of \
more than 256 KiB is printed and not kept. CMD finds in its environment: TENURE_NAME (the key), TENURE_TOKEN and TENURE_CLAIM.

CMD works under a lease as with `tenure run`: if `tenure` itself is killed (`kill -9`), CMD is killed, and another process runs it; if \
`tenure` is stopped for longer than --lease, or cannot renew, CMD is ended before the end of the lease.";

const CACHE_EXAMPLE: &str = "\
Examples:
  tenure cache rates --ttl 10m --stale 1h -- curl -sf https://example.org/rates
  tenure cache rates --refresh -- ./rates.sh    load them now
  tenure cache rates --forget                   after they have changed";

const CACHE_CODES: &str = "\
Exit codes: 0 if an output was printed, that of CMD if it failed, or
  64     wrong usage
  69     the engine is not available, or the address of --metrics
  76     the lease was lost while CMD ran
  126    CMD cannot be executed
  127    CMD is not found
  128+n  signal n ended CMD, or the waiting";

/// Run a program once for all who want its output, and share it
#[derive(Debug, Args)]
#[command(long_about = CACHE_HELP, after_help = format!("{CACHE_EXAMPLE}\n\n{TIME_HELP}\n\n{CACHE_CODES}"))]
pub(crate) struct Cache {
    /// The key: 1 to 255 bytes, no control characters
    pub(crate) key: String,
    /// How long an output is fresh
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,
    /// Print an output that has been fresh until this long ago while another process runs CMD
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) stale: Option<Duration>,
    /// How long a machine or a network that is gone keeps the others from running CMD
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) lease: Duration,
    /// Run CMD although there is a fresh output, after whoever runs it now
    #[arg(long, conflicts_with_all = ["stale", "forget"])]
    pub(crate) refresh: bool,
    /// Drop the output that is kept, after whoever runs CMD now; no CMD is needed
    #[arg(long, conflicts_with_all = ["stale", "json", "metrics", "command"])]
    pub(crate) forget: bool,
    /// Write to stderr, as one JSON object, whether the output is fresh, stale or loaded
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) metrics: MetricsFlags,
    /// The program and its arguments, after `--`
    #[arg(last = true, required_unless_present = "forget", value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// How long the program has between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// Where the value came from, in JSON. Field names are stable.
#[derive(Serialize)]
struct FoundJson<'a> {
    event: &'static str,
    key: &'a str,
    source: &'static str,
    bytes: usize,
    token: Option<u64>,
}

/// Why there is no value.
enum NotLoaded {
    Tenure(Error),
    Failure(Failure),
    /// The program ended with another code than 0.
    Declined(u8),
    /// Its output is more than can be shared.
    TooLarge,
}

impl From<Error> for NotLoaded {
    fn from(error: Error) -> NotLoaded {
        NotLoaded::Tenure(error)
    }
}

/// Prints the value of a key; runs the program for it if there is no fresh one.
pub(crate) fn cache(mut cache: Cache, engine: &str) -> Outcome {
    if cache.forget {
        let tenure = connect_blocking(engine)?;
        pollster::block_on(tenure.single_flight(&cache.key).ttl(cache.lease).forget())?;
        pollster::block_on(tenure.close());
        return Ok(0);
    }
    if cache.ttl.is_zero() && cache.stale.is_none_or(|stale| stale.is_zero()) {
        return Err(Failure::new(exit::USAGE, "an output that is fresh for `--ttl 0s` is kept for nobody")
            .with_hint("`--refresh` runs CMD now, and `--forget` drops what is kept"));
    }
    let job = Job::new(std::mem::take(&mut cache.command), GRACE, OnLoss::Terminate);
    let program = job.program_text();
    // For ever, as a process does that waits for the value while another loads it.
    let (messages, metrics) = (Messages::TEXT, &cache.metrics);
    let setup = Setup { job, engine, label: None, wait: None, messages, metrics };
    setup.with_keeper(|tenure, supervisor, retry| {
        Fetch { cache: &cache, program: &program, tenure, supervisor }.fetch_with_retries(retry)
    })
}

/// How one value is got.
struct Fetch<'a> {
    cache: &'a Cache,
    program: &'a str,
    tenure: &'a Tenure,
    supervisor: Supervisor<'a>,
}

impl Fetch<'_> {
    /// Asks again for as long as the store does not answer, unless the program has run.
    fn fetch_with_retries(&self, mut retry: Retry) -> Outcome {
        loop {
            let ended = match self.fetch() {
                Ok(code) => return Ok(code),
                Err(Ended::NoAnswer(failure)) => retry.pause(failure, self.supervisor),
                Err(ended) => Err(ended),
            };
            if let Err(ended) = ended {
                return ended.outcome();
            }
        }
    }

    fn fetch(&self) -> Result<u8, Ended> {
        let Fetch { cache, program, tenure, supervisor } = *self;
        let events = supervisor.events;
        let mut flight = tenure.single_flight(&cache.key).fresh(cache.ttl).ttl(cache.lease);
        if let Some(stale) = cache.stale {
            flight = flight.serve_stale(stale);
        }
        // What the program wrote, even if it cannot be shared.
        let output: RefCell<Option<Collector>> = RefCell::new(None);
        // From then on the keeper ends when the work does.
        let has_begun = Cell::new(false);
        let load = async |lease: &tenure::Lease| {
            has_begun.set(true);
            let failed = |error| NotLoaded::Failure(Failure::system("read what CMD writes", error));
            let (mut collector, pipe) = Collector::start(events.waker()).map_err(failed)?;
            let rules = Rules { grace: GRACE, max_hold: None, on_loss: OnLoss::Terminate };
            let mut work = Foreground::new(&cache.key, program, rules, supervisor, lease);
            let variables = vec![("TENURE_NAME", cache.key.clone())];
            let streams = Streams { input: None, output: Some(&pipe) };
            // It blocks this thread until nothing of the work is left, and follows the lease itself meanwhile.
            let code = work.run(tenure, variables, streams);
            drop((work, pipe));
            collector.finish();
            // If the lease was lost, the output is not waited for.
            let code = code.map_err(NotLoaded::Failure)?;
            let collected = collector.collected().await;
            output.replace(Some(collector));
            match (code, collected) {
                (0, Collected::Whole(bytes)) => Ok(bytes),
                (0, Collected::TooLarge) => Err(NotLoaded::TooLarge),
                (code, _) => Err(NotLoaded::Declined(code)),
            }
        };
        let keeper = || (!has_begun.get()).then_some(supervisor.keeper);
        let found = match cache.refresh {
            true => events.until_ready(flight.refresh(load), keeper, None)?,
            false => events.until_ready(flight.get_or_refresh(load), keeper, None)?,
        };
        let Some(found) = found else { return Err(keeper_gone().into()) };
        let rest = || output.take().map_or(Ok(()), |output| self.write_out(output));
        match found {
            Ok(found) => {
                if cache.json {
                    self.write_source(found.bytes.len(), found.source);
                }
                write_bytes(&found.bytes)?;
                Ok(0)
            }
            Err(NotLoaded::Failure(failure)) => Err(failure.into()),
            Err(NotLoaded::Declined(code)) => rest().map(|()| code),
            Err(NotLoaded::TooLarge) => {
                Messages::TEXT.warning("the output is not shared: it has more than 256 KiB");
                rest().map(|()| 0)
            }
            // The program has done its work; that it cannot be shared is no reason to lose it.
            Err(NotLoaded::Tenure(error)) if has_begun.get() && error.kind() != ErrorKind::Lost => {
                Messages::TEXT.warning(&format!("the output is not shared: {error}"));
                rest().map(|()| 0)
            }
            Err(NotLoaded::Tenure(error)) => Err(Ended::of(error)),
        }
    }

    /// Writes what was not shared, and waits until the rest of what is too large is written.
    fn write_out(&self, mut output: Collector) -> Result<(), Ended> {
        let events = self.supervisor.events;
        let collected = events.until_ready(output.collected(), || None, None)?;
        if let Some(Collected::Whole(bytes)) = collected {
            write_bytes(&bytes)?;
        }
        events.until_ready(output.written(), || None, None).map(drop)
    }

    fn write_source(&self, bytes: usize, source: FetchedFrom) {
        let (source, token) = match source {
            FetchedFrom::Fresh(token) => ("fresh", Some(token.get())),
            FetchedFrom::Stale => ("stale", None),
            FetchedFrom::Loaded(token) => ("loaded", Some(token.get())),
        };
        let found = FoundJson { event: "found", key: &self.cache.key, source, bytes, token };
        // If it cannot be written, the value is still printed.
        write_line(&serde_json::to_string(&found).unwrap_or_default());
    }
}

fn write_bytes(bytes: &[u8]) -> Result<(), Failure> {
    // Messages about them come first.
    flush(SHOW_FIRST);
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::system("write", error)),
        _ => Ok(()),
    }
}
