//! `--metrics`: what this process counts, and the page on which it is read.
//!
//! A thread of its own serves the page (`tenure-metrics`), from before the client connects until the work is over. It copies numbers and
//! is waited for by nobody: the thread that renews leases does not know of it. Its socket is opened after the keepers are forked
//! and closed on exec, so that CMD never has it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use tenure::{Settings, Tenure};
use tenure_metrics::{Address, Server};

use crate::exit::Failure;
use crate::output::messages::{JsonEvent, Messages};

pub(crate) const HEADING: &str = "Metrics";
pub(crate) const ADDRESS_HINT: &str = "write 127.0.0.1:9184, or unix:/run/job.sock";

/// The flags of commands that run for long.
#[derive(Debug, Default, Args)]
pub(crate) struct MetricsFlags {
    #[arg(long, value_name = "ADDR", value_parser = parse_address, help_heading = HEADING)]
    #[arg(help = "Count, and serve /metrics to Prometheus at 127.0.0.1:9184, say, or at unix:/run/job.sock")]
    metrics: Option<Address>,
    /// Count together what fits PATTERN, in which `*` is any text; give it again for others
    #[arg(long, value_name = "PATTERN", requires = "metrics", help_heading = HEADING)]
    scope: Vec<String>,
    /// How many scopes there may be; what is named after that is `other` [default: 100]
    #[arg(long, value_name = "N", requires = "metrics", help_heading = HEADING)]
    scopes_max: Option<usize>,
}

pub(crate) fn parse_address(text: &str) -> Result<Address, &'static str> {
    text.parse().map_err(|_| ADDRESS_HINT)
}

impl MetricsFlags {
    /// Has a client count if that is asked for.
    pub(crate) fn set(&self, settings: Settings) -> Settings {
        let settings = settings.counts(self.metrics.is_some()).scopes(self.scope.iter().cloned());
        self.scopes_max.map_or(settings.clone(), |most| settings.scopes_max(most))
    }

    /// Begins to serve the page if that is asked for. For a process that forks no more.
    ///
    /// # Errors
    /// The address cannot be had.
    pub(crate) fn serve(&self, messages: Messages) -> Result<Option<Page>, Failure> {
        let Some(address) = &self.metrics else { return Ok(None) };
        let counted: Arc<Mutex<Option<Tenure>>> = Arc::default();
        let source = counted.clone();
        let server = Server::start(address, move || {
            let counted = source.lock().unwrap_or_else(PoisonError::into_inner).clone();
            counted.iter().map(Tenure::counts).collect()
        });
        let server = server.map_err(|error| not_served(address, &error))?;
        let served = server.address().to_string();
        messages.event(&JsonEvent::Metrics { address: &served });
        messages.message(&format!("metrics are served at {served}"));
        Ok(Some(Page { counted, _server: server }))
    }
}

pub(crate) fn not_served(address: &Address, error: &io::Error) -> Failure {
    let failure = Failure::system(&format!("serve metrics at {address}"), error);
    match error.kind() {
        io::ErrorKind::AddrInUse if matches!(address, Address::Tcp(_)) => {
            failure.with_hint("another process has that port: choose another, or 0 for one that is free")
        }
        io::ErrorKind::AddrInUse => {
            failure.with_hint("another process serves there, or it is a file of another sort")
        }
        io::ErrorKind::AddrNotAvailable => failure.with_hint("it is no address of this machine"),
        _ => failure,
    }
}

/// The page, until it is dropped.
pub(crate) struct Page {
    counted: Arc<Mutex<Option<Tenure>>>,
    _server: Server,
}

impl Page {
    /// Shows what this client counts.
    pub(crate) fn show(&self, tenure: &Tenure) {
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = Some(tenure.clone());
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // A client ends when nobody has it any more.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
