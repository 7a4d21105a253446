//! The primitives of tenure over HTTP: one process in front of the store that a team runs, for every language.
//!
//! A [`Server`] keeps nothing but open requests. A claim's id is made by its client, and the store knows what became of it: a request that
//! was not answered is repeated, here or at another instance, and what one process granted another one renews. The routes are in
//! `docs/operating/serve.md`, and `tenure serve` is the command.
//!
//! # Examples
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
//! use tenure_serve::{Options, Server};
//!
//! // In a program: `tenure::connect("redis://127.0.0.1").await?`
//! let tenure = tenure_core::memory::connect("serve-example").await?;
//! let server = Server::bind(tenure, Options::new("127.0.0.1:0".parse()?))?;
//! println!("listening at {}", server.address());
//! let control = server.control();
//! let serving = tokio::spawn(server.run());
//! control.drain();
//! serving.await?;
//! # Ok(()) }) }
//! ```

mod accept;
mod access;
mod answer;
mod app;
mod audit;
mod body;
mod counting;
mod dashboard;
mod drain;
mod events;
mod front;
mod health;
mod holder;
mod limits;
mod millis;
mod multiplexed;
mod open_claims;
mod options;
mod pace;
mod page;
mod pause;
mod places;
mod problem;
mod reload;
mod routes;
mod tls;
mod trace;
mod unread;
mod waiting;
mod withdrawal;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock};
use tenure_core::survey::Surveyor;
use tenure_core::{Error, ErrorKind, Result, Tenure};
use tenure_metrics::{Address, Format, Listener};
use tokio::runtime::Handle as Runtime;
use tokio::sync::Notify;

use places::Places;

pub use access::forwarded::Network;
pub use options::{Options, Tls};
pub use secret::{Secret, secret};
pub use trace::Below;

mod secret;

use access::cookie::Cookies;
use access::{Access, file};
use app::App;
use audit::Audit;
use counting::Counting;
use drain::{Drain, Stage};
use events::Events;
use front::Front;
use health::Health;
use open_claims::OpenClaims;
use page::Pages;
use tls::Acceptor;
use waiting::Waiting;

/// A server that listens, and answers once it is [run](Server::run).
pub struct Server {
    app: Arc<App>,
    listener: Listener,
    address: Address,
    options: Options,
    tls: Option<Acceptor>,
    reload: Arc<Notify>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Tells a server what to do, from a task of its own.
///
/// No example: [`Server`] has one.
#[derive(Clone)]
pub struct Control {
    app: Arc<App>,
    reload: Arc<Notify>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("stage", &self.app.drain.stage()).finish_non_exhaustive()
    }
}

impl Control {
    /// Has the server end: `/readyz` says no from now on, 3 s later nobody new is let in and who waits is told to come again, and
    /// [`Server::run`] returns when the rest is answered.
    ///
    /// `control.drain();`
    pub fn drain(&self) {
        self.app.drain.reach(Stage::Announced);
    }

    /// Writes the page of metrics: what this process counts, its requests, and what the store holds. None: it cannot be made in time. It
    /// blocks for 2 s at most where the store is slow, so it is for a thread of its own.
    ///
    /// `let page = control.metrics(Format::Prometheus);`
    pub fn metrics(&self, format: Format) -> Option<String> {
        let (sender, page) = std::sync::mpsc::channel();
        let app = self.app.clone();
        self.app.pages.runtime.spawn(async move {
            // Its reader may have given up.
            sender.send(app.page(format).await).ok();
        });
        page.recv_timeout(limits::CALL_MAX).ok()
    }

    /// Has the file of tokens read again now.
    ///
    /// `control.reload();`
    pub fn reload(&self) {
        self.reload.notify_one();
    }
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Invalid, "serve", message)
}

/// What proves who has signed in to the dashboard, where there is one.
fn cookies(options: &Options) -> Result<Option<Cookies>> {
    match (&options.cookie_key, options.has_dashboard) {
        (_, false) => Ok(None),
        (Some(path), true) => Cookies::load(path).map(Some).map_err(refused),
        (None, true) => Cookies::new().map(Some).map_err(|error| refused(error.to_string())),
    }
}

impl Server {
    /// Begins to listen, in a runtime of tokio.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an address that others reach without a file of tokens, for a file that cannot be read, for a certificate;
    /// [`ErrorKind::Unsupported`] if the address cannot be had, or for TLS that was left out.
    pub fn bind(tenure: Tenure, options: Options) -> Result<Server> {
        if let Address::Tcp(address) = &options.listen
            && options.tokens.is_none()
            && !address.ip().to_canonical().is_loopback()
        {
            return Err(refused(format!(
                "without tokens everybody who reaches {address} could take every lock"
            ))
            .with_hint("give --tokens FILE, or listen at 127.0.0.1 or at unix:/path"));
        }
        let table = options.tokens.as_deref().map(file::load).transpose().map_err(|error| {
            refused(error).with_hint("`tenure serve token NAME --allow 'claim PREFIX'` makes an entry")
        })?;
        let cookies = cookies(&options)?;
        let tls = options.tls.as_ref().map(Acceptor::new).transpose()?;
        let (listener, address) = options.listen.listen().map_err(|error| {
            let why = tenure_core::error::plain(&error.to_string());
            Error::new(ErrorKind::Unsupported, "serve", format!("cannot listen at {}: {why}", options.listen))
        })?;
        let surveyor = Arc::new(Surveyor::new(&tenure));
        let app = App {
            events: Events::new(&tenure, surveyor.clone(), &Runtime::current()),
            pages: Arc::new(Pages::new(&tenure, surveyor.clone(), options.long_held.clone())),
            counting: Arc::new(Counting::new()),
            surveyor,
            tenure,
            access: Arc::new(Access::new(table, cookies, options.is_read_only)),
            drain: Drain::new(),
            health: Health::new(),
            open_claims: Arc::new(OpenClaims::new(Runtime::current())),
            waiting: Arc::new(Waiting::new("requests wait", options.waiting_max)),
            streams: Arc::new(Waiting::new("streams are open", options.streams_max)),
            findings: tokio::sync::Mutex::default(),
            places: Places::new(options.connections_max),
            audit: Audit::default(),
            began: SystemClock.now(),
        };
        Ok(Server { app: Arc::new(app), listener, address, options, tls, reload: Arc::default() })
    }

    /// Returns where it listens. A port that was not chosen is the one that the system has.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns what tells it to end.
    pub fn control(&self) -> Control {
        Control { app: self.app.clone(), reload: self.reload.clone() }
    }

    /// Answers until it is [told to end](Control::drain), and then finishes what is under way, for as long as [`Options::drain`] says.
    ///
    /// # Cancel safety
    /// Dropping it lets nobody new in. Requests that are under way go on until the runtime ends.
    pub async fn run(self) {
        let Server { app, listener, address, options, tls, reload } = self;
        let front = Arc::new(Front::new(app.clone(), &options));
        let following = options.tokens.map(|path| tokio::spawn(reload::follow(path, app.clone(), reload)));
        let places = app.places.clone();
        let leaving = async {
            app.drain.reached(Stage::Announced).await;
            pause::pause(limits::NOTICE).await;
            app.drain.reach(Stage::Leaving);
        };
        let serving = async {
            tokio::join!(leaving, accept::serve(listener, front, tls, places.clone()));
        };
        let health = app.clone();
        tokio::select! {
            () = serving => {}
            () = health.health.follow(&health.tenure) => {}
        }
        if let Address::Unix(path) = &address {
            // Somebody may have removed it.
            std::fs::remove_file(path).ok();
        }
        finish(&places, options.drain).await;
        if let Some(following) = following {
            following.abort();
        }
        // What lingers, and what is released in the background.
        app.tenure.clone().close().await;
    }
}

async fn finish(places: &Places, within: Duration) {
    if tokio::time::timeout(within, places.are_free()).await.is_err() {
        tracing::warn!(target: "tenure::http", "requests are cut off that were not answered in time");
    }
}
