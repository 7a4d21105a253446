//! `tenure metrics`: what the store holds, of all processes, for Prometheus.
//!
//! With `--listen` a survey is taken when somebody reads the page, by the main thread: a reader has 5 s, and a survey of a large
//! store takes longer. So a reader waits for the next survey for a moment, and is shown the last one otherwise, with its age.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use tenure::{Finding, Instant, Settings, Tenure};
use tenure_core::survey::{NAMES_MAX, StoreCounts, Surveyor};
use tenure_metrics::{Address, Format, Server, TextFile, render_store};

use crate::clock;
use crate::connect::connect;
use crate::counting::{not_served, parse_address};
use crate::exit::{Failure, Outcome};
use crate::output::data::write_data;
use crate::output::messages::Messages;

const METRICS_HELP: &str = "\
Looks at all locks and queues of the store once, and writes for Prometheus how many are held and waited for, how old the oldest hold \
is, what is in the queues, and what `tenure doctor` finds. Names are counted together, as `billing/*`.

One of it is enough for a store: the programs that use it count for themselves (`tenure run --metrics`).";

const METRICS_AFTER_HELP: &str = "\
Examples:
  tenure metrics --file /var/lib/node_exporter    each minute by cron, for node_exporter
  tenure metrics --listen 127.0.0.1:9185          a survey when Prometheus asks
  tenure metrics --long-held 'leader/*'           a leader is no lock that is stuck

Exit codes:
  0    done
  64   wrong usage
  69   the engine is not available, or what --file or --listen names";

/// The file's name in the directory.
const FILE: &str = "tenure_store.prom";
/// How long a reader waits for a survey. Prometheus waits for 10 s, and the server closes a connection after 5 s.
const READER_MAX: Duration = Duration::from_secs(2);
/// How often the doctor looks.
const CHECK_EVERY: Duration = Duration::from_secs(300);

/// Write what the store holds, for Prometheus
#[derive(Debug, Args)]
#[command(long_about = METRICS_HELP, after_help = METRICS_AFTER_HELP)]
pub(crate) struct Metrics {
    /// Write DIR/tenure_store.prom, for node_exporter, in place of stdout
    #[arg(long, value_name = "DIR")]
    pub(crate) file: Option<PathBuf>,
    /// Serve /metrics at ADDR, 127.0.0.1:9185 or unix:/run/tenure.sock, and look when it is read
    #[arg(long, value_name = "ADDR", value_parser = parse_address, conflicts_with = "file")]
    pub(crate) listen: Option<Address>,
    /// What fits PATTERN is held for long, and does not count as oldest; may be given again
    #[arg(long, value_name = "PATTERN")]
    pub(crate) long_held: Vec<String>,
    /// Count together what fits PATTERN, in which `*` is any text; may be given again
    #[arg(long, value_name = "PATTERN")]
    pub(crate) scope: Vec<String>,
    /// How many scopes there may be; what is named after that is `other` [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) scopes_max: Option<usize>,
}

/// Writes one survey, or serves one after the other.
pub(crate) fn metrics(metrics: &Metrics, engine: &str) -> Outcome {
    let settings = Settings::new().scopes(metrics.scope.iter().cloned());
    let settings = metrics.scopes_max.map_or(settings.clone(), |most| settings.scopes_max(most));
    let tenure = pollster::block_on(connect(engine, settings))?;
    let mut watch = Watch::new(tenure, &metrics.long_held);
    let seen = watch.look()?;
    watch.warn(&seen);
    if let Some(address) = &metrics.listen {
        return watch.serve(address, seen);
    }
    let page = seen.page(Format::Prometheus);
    match &metrics.file {
        Some(directory) => {
            let file = TextFile::new(directory, FILE);
            file.write(&page)
                .map_err(|error| Failure::system(&format!("write {}", file.path().display()), error))?;
        }
        None => drop(write_data(&page)?),
    }
    pollster::block_on(watch.tenure.close());
    Ok(0)
}

/// What was seen.
#[derive(Clone)]
struct Seen {
    counts: StoreCounts,
    findings: Arc<[Finding]>,
}

impl Seen {
    fn page(&self, format: Format) -> String {
        let age = clock::now().since(self.counts.at);
        render_store(&self.counts, &self.findings, age, format)
    }
}

/// Looks at the store again and again.
struct Watch<'a> {
    tenure: Tenure,
    surveyor: Surveyor,
    long_held: &'a [String],
    findings: Option<(Instant, Arc<[Finding]>)>,
    has_warned: bool,
}

/// What readers and the main thread share.
#[derive(Default)]
struct Page {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `None`: the store does not answer.
    seen: Option<Seen>,
    /// How many readers have come, and up to which of them have had an answer.
    asked: u64,
    answered: u64,
}

impl Page {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the page for a reader: of a survey that it has waited for, or else of the last one.
    fn read(&self, format: Format) -> Option<String> {
        let mut state = self.state();
        state.asked += 1;
        let own = state.asked;
        self.changed.notify_all();
        let is_waiting = |state: &mut State| state.answered < own;
        let waited = self.changed.wait_timeout_while(state, READER_MAX, is_waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.seen.as_ref().map(|seen| seen.page(format))
    }

    /// Waits for a reader. Returns up to which it is.
    fn wait(&self) -> u64 {
        let is_idle = |state: &mut State| state.asked == state.answered;
        let waited = self.changed.wait_while(self.state(), is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).asked
    }

    fn show(&self, seen: Option<Seen>, answered: u64) {
        let mut state = self.state();
        (state.seen, state.answered) = (seen, answered);
        drop(state);
        self.changed.notify_all();
    }
}

impl<'a> Watch<'a> {
    fn new(tenure: Tenure, long_held: &'a [String]) -> Watch<'a> {
        let surveyor = Surveyor::new(&tenure);
        Watch { tenure, surveyor, long_held, findings: None, has_warned: false }
    }

    /// Takes a survey, or returns the last one if there may be none now.
    fn look(&mut self) -> Result<Seen, Failure> {
        let survey = pollster::block_on(self.surveyor.latest())?;
        let counts = self.surveyor.count(&survey, self.long_held);
        let now = clock::now();
        let known = self.findings.as_ref().filter(|(since, _)| now.since(*since) < CHECK_EVERY);
        let findings = match known {
            Some((_, findings)) => findings.clone(),
            None => {
                let findings: Arc<[Finding]> = pollster::block_on(self.tenure.check())?.into();
                self.findings = Some((now, findings.clone()));
                findings
            }
        };
        Ok(Seen { counts, findings })
    }

    /// Warns once of what the numbers leave out.
    fn warn(&mut self, seen: &Seen) {
        let StoreCounts { is_whole, unreadable, .. } = seen.counts;
        if self.has_warned || (is_whole && unreadable == 0) {
            return;
        }
        self.has_warned = true;
        if !is_whole {
            let text = format!("there are more than {NAMES_MAX} names, and the rest of them is not counted");
            Messages::TEXT.warning(&text);
        }
        if unreadable > 0 {
            let text = format!(
                "{unreadable} of the names cannot be read: see `tenure status` and `tenure queue ls`"
            );
            Messages::TEXT.warning(&text);
        }
    }

    /// Serves a page until a signal ends this process.
    fn serve(mut self, address: &Address, seen: Seen) -> Outcome {
        let page = Arc::new(Page::default());
        page.show(Some(seen), 0);
        let read = page.clone();
        let server = Server::start_with(address, move |format| read.read(format));
        let server = server.map_err(|error| not_served(address, &error))?;
        Messages::TEXT.message(&format!("metrics are served at {}", server.address()));
        let mut is_away = false;
        loop {
            let reader = page.wait();
            let seen = self.look();
            match &seen {
                Ok(seen) => self.warn(seen),
                Err(failure) if !is_away => {
                    Messages::TEXT
                        .warning(&format!("{}; looking again when the page is read", failure.message));
                }
                Err(_) => {}
            }
            is_away = seen.is_err();
            page.show(seen.ok(), reader);
        }
    }
}
