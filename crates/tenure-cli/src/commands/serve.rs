//! `tenure serve`: locks over HTTP, for programs in any language.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::{Args, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::Settings;
use tenure_metrics::Address;
use tenure_serve::{Control, Network, Options, Server, Tls};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use crate::connect::connect_server;
use crate::counting::{HEADING, not_served, parse_address};
use crate::duration::parse_duration;
use crate::exit::{self, Failure, Outcome, of_signal};
use crate::output::data::write_data;
use crate::output::lines;
use crate::output::messages::Messages;
use crate::{sys, traces};

const SERVE_HELP: &str = "\
Offers the engine's locks over HTTP: a program in any language takes, renews and releases them, and the store keeps all that is true. \
More than one of it may serve a store.

Without --tokens whoever reaches it may take every lock, so it listens at this machine alone.";

const SERVE_AFTER_HELP: &str = "\
Examples:
  tenure serve                                            at 127.0.0.1:7070, for this machine
  tenure serve --listen unix:/run/tenure.sock             for this user
  tenure serve token billing --allow 'claim billing/'     a token, and its entry for tokens.toml
  tenure serve --listen 0.0.0.0:7070 --tokens tokens.toml --tls-cert cert.pem --tls-key key.pem

Signals:
  TERM, INT  say so at /readyz, let nobody new in, finish what is open, end; the second one ends it at once
  HUP        read the file of tokens again

Exit codes:
  0    ended as it was told to
  64   wrong usage, or the file of tokens or a certificate is no good
  69   the engine or the address is not available";

/// What is logged where `TENURE_LOG` does not say what: a line for each request, and what operators do.
const LOG: &str = "tenure::http=info,tenure::audit=warn,tenure_core=warn";
/// The files that a process has open beside its connections: the store's connections, timers, the log.
const FILES_BESIDE: u64 = 500;
/// The connections of a server that has as many files as it may use.
const CONNECTIONS: u64 = 12_000;
/// How often free memory goes back to the system.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);

/// Offer the locks over HTTP, for programs in any language
#[derive(Debug, Args)]
#[command(long_about = SERVE_HELP, after_help = SERVE_AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Serve {
    #[command(subcommand)]
    action: Option<Action>,
    /// Listen at ADDR: 127.0.0.1:7070, or unix:/run/tenure.sock
    #[arg(long, value_name = "ADDR", value_parser = parse_address, default_value = "127.0.0.1:7070")]
    listen: Address,
    /// Let in who has a token of FILE (mode 0600), which is read again when it changes
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Speak TLS with the certificate in FILE (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Know clients by certificates of the authorities in FILE; the others need tokens
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// A name by which clients reach it, beside localhost and its addresses; may be given again
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Believe the header Forwarded of proxies at CIDR (10.0.0.0/8) about their clients' addresses; may be given again
    #[arg(long, value_name = "CIDR")]
    trusted_proxy: Vec<Network>,
    /// Show no dashboard at /
    #[arg(long)]
    no_dashboard: bool,
    /// Prove who is signed in to the dashboard by the key in FILE (mode 0600): over restarts, and at all instances
    #[arg(long, value_name = "FILE", conflicts_with = "no_dashboard")]
    cookie_key: Option<PathBuf>,
    /// How long open requests may take when it ends
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "20s")]
    drain: Duration,
    /// Change nothing: show only
    #[arg(long)]
    read_only: bool,
    #[arg(long, value_name = "ADDR", value_parser = parse_address, help_heading = HEADING)]
    #[arg(
        help = "Serve /metrics at ADDR as well, to whoever reaches it: 127.0.0.1:9184, or unix:/run/metrics.sock"
    )]
    metrics: Option<Address>,
    /// Count together what fits PATTERN, in which `*` is any text; give it again for others
    #[arg(long, value_name = "PATTERN", help_heading = HEADING)]
    scope: Vec<String>,
    /// How many scopes there may be; what is named after that is `other` [default: 100]
    #[arg(long, value_name = "N", help_heading = HEADING)]
    scopes_max: Option<usize>,
    /// What fits PATTERN is held for long, and does not count as oldest; give it again for others
    #[arg(long, value_name = "PATTERN", help_heading = HEADING)]
    long_held: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a token, and its entry for the file of tokens
    Token(Token),
}

#[derive(Debug, Args)]
struct Token {
    /// Whose it is: shown as the program that holds a lock
    name: String,
    /// What it may do: `claim billing/` (a prefix), `claim =nightly` (one name), `read` (everything); give it again for more
    #[arg(long, value_name = "RULE", required = true)]
    allow: Vec<String>,
}

impl Serve {
    /// Whether it asks the engine.
    pub(crate) fn needs_engine(&self) -> bool {
        self.action.is_none()
    }

    fn settings(&self) -> Settings {
        let settings = Settings::new().counts(true).scopes(self.scope.iter().cloned());
        self.scopes_max.map_or(settings.clone(), |most| settings.scopes_max(most))
    }

    fn options(&self) -> Options {
        let mut options = Options::new(self.listen.clone()).drain(self.drain).read_only(self.read_only);
        options = options.dashboard(!self.no_dashboard).below(traces::put_below);
        if let Some(key) = &self.cookie_key {
            options = options.cookie_key(key);
        }
        for name in &self.host {
            options = options.host(name);
        }
        for network in &self.trusted_proxy {
            options = options.trusted_proxy(*network);
        }
        for pattern in &self.long_held {
            options = options.long_held(pattern);
        }
        if let Some(tokens) = &self.tokens {
            options = options.tokens(tokens);
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => options.tls(Tls {
                certificate: certificate.clone(),
                key: key.clone(),
                client_authorities: self.tls_client_ca.clone(),
            }),
            _ => options,
        }
    }
}

/// Serves until a signal ends it.
pub(crate) fn serve(serve: Serve, engine: &str) -> Outcome {
    if let Some(Action::Token(token)) = &serve.action {
        return make_token(token);
    }
    sys::join_free_memory();
    // Who does not read the log keeps nobody from being answered. This process forks no more.
    lines::write_in_background();
    raise_files();
    let shown: Shown = Arc::default();
    let _page = serve.metrics.as_ref().map(|address| serve_page(address, shown.clone())).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("start the server", error))?;
    runtime.block_on(async {
        let tenure = connect_server(engine, serve.settings(), LOG).await?;
        // Before anybody can find the server there: a signal that comes at once ends it in order, too.
        let signals = Signals::listen()?;
        let server = Server::bind(tenure, serve.options())?;
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(server.control());
        Messages::TEXT.message(&format!("serving at {}", server.address()));
        tokio::spawn(give_memory_back());
        run(server, signals).await
    })
}

/// Gives what requests have had back to the system when they have gone, for as long as the server runs. See
/// `docs/adr/0059-serve-gives-memory-back.md`.
async fn give_memory_back() {
    let mut due = tokio::time::interval(GIVE_BACK_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        // It takes some 20 ms where there is much to give back, so it is not for a thread that answers.
        drop(tokio::task::spawn_blocking(sys::give_memory_back).await);
    }
}

/// The server whose page is shown, once there is one.
type Shown = Arc<Mutex<Option<Control>>>;

/// Begins to serve the page of metrics, by a thread of its own, before a thread of the server begins.
fn serve_page(address: &Address, shown: Shown) -> Result<tenure_metrics::Server, Failure> {
    let source = move |format| {
        let control = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        control?.metrics(format)
    };
    let page = tenure_metrics::Server::start_with(address, source);
    let page = page.map_err(|error| not_served(address, &error))?;
    Messages::TEXT.message(&format!("metrics are served at {}", page.address()));
    Ok(page)
}

/// The signals that a server hears.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::system("wait for signals", error));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }
}

/// Runs a server, and tells it of signals.
async fn run(server: Server, signals: Signals) -> Outcome {
    let Signals { mut terminate, mut interrupt, mut hang_up } = signals;
    let control = server.control();
    let mut serving = tokio::spawn(server.run());
    let mut is_ending = false;
    loop {
        let ends = async |signal: &mut Signal, kind: SignalKind| {
            // It never ends.
            signal.recv().await;
            kind
        };
        let kind = tokio::select! {
            done = &mut serving => {
                return done.map(|()| 0).map_err(|error| Failure::system("serve", error));
            }
            _ = hang_up.recv() => {
                control.reload();
                continue;
            }
            kind = ends(&mut terminate, SignalKind::terminate()) => kind,
            kind = ends(&mut interrupt, SignalKind::interrupt()) => kind,
        };
        if is_ending {
            return Ok(of_signal(kind.as_raw_value()));
        }
        is_ending = true;
        Messages::TEXT.message("ending: nobody new is let in");
        control.drain();
    }
}

/// The token goes to stdout first and alone on its line, so that a script can keep it; the entry follows.
fn make_token(token: &Token) -> Outcome {
    let secret = tenure_serve::secret(&token.allow).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::new(exit::USAGE, error.to_string())
            .with_hint("a rule is a verb and names: `claim billing/`, `claim =nightly`, `read`"),
        _ => Failure::system("make a token", error),
    })?;
    write_data(&format!("{}\n\n{}", secret.token(), secret.entry(&token.name, &token.allow)))?;
    Ok(0)
}

/// Lets this process have as many files open as the system allows it.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let has = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    if has.is_some_and(|files| files < CONNECTIONS + FILES_BESIDE) {
        let files = has.unwrap_or_default();
        Messages::TEXT.warning(&format!(
            "this process may have {files} files open, and {} are needed for {CONNECTIONS} connections: raise LimitNOFILE",
            CONNECTIONS + FILES_BESIDE
        ));
    }
}
