//! The endpoints of a cluster, of which one is used at a time.
//!
//! A call that an endpoint does not answer, or that it cannot answer, makes the *next* call use another one: an endpoint that
//! does not answer may be stopped, cut off from the others, or on a host that is gone, and only the first costs no
//! time to find out. The call itself is not repeated, since it may have been executed, and only the client above knows
//! whether a copy does harm.
//!
//! To find one that can be used, endpoints are asked for their status, which each answers without the others: first
//! the one after the last that was used, and while it is silent, another one each [`STAGGER`]. A connection alone
//! would prove nothing: the system accepts it for a stopped process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::engine::see_through;
use tenure_core::error::Result;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::client::proto::{Call, StatusRequest, StatusResponse};
use crate::client::rpc::Wire;
use crate::config::Config;
use crate::error::{Fault, reason};

/// How long a call may take. Shorter than the client's patience, so that another endpoint can be tried within it.
const CALL_MAX: Duration = Duration::from_millis(1500);
/// How long an endpoint has to answer for its status before another one is asked as well: an order of magnitude more than
/// a server needs to which a packet takes 10 ms.
const STAGGER: Duration = Duration::from_millis(150);
/// How long one round of asking takes at most. It leaves time for a second one within the 2 s after which the client
/// gives a call up.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// How long an endpoint is searched for until a caller gets the error that there is none: long enough for a server
/// that is being restarted, and so short that a client that repeats its call is answered about when its 2 s are over.
const FIND_MAX: Duration = Duration::from_millis(500);
/// How long to wait before the endpoints are asked anew, of which none could be used.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns until when a call that begins now must be answered.
pub(crate) fn deadline() -> Instant {
    Instant::now() + CALL_MAX
}

/// The endpoints of a cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Endpoints(Arc<Shared>);

struct Shared {
    endpoints: Vec<(String, Endpoint)>,
    config: Config,
    state: Mutex<State>,
    /// Held by the task that searches for an endpoint.
    finding: tokio::sync::Mutex<()>,
    /// The number of the connection in use; 0 if none is.
    in_use: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    wire: Option<Wire>,
    /// Which endpoint is asked first the next time.
    next: usize,
    /// How many connections there were.
    count: u64,
    /// Why none could be made the last time.
    why: String,
}

/// A call under way. Whoever made it may bear less than a silent endpoint is borne here, and drops it before anybody knows.
struct Unanswered<'a> {
    endpoints: &'a Endpoints,
    wire: Option<&'a Wire>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(wire) = self.wire {
            self.endpoints.doubt(wire);
        }
    }
}

/// What an endpoint said of itself.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) endpoint: String,
    pub(crate) status: std::result::Result<StatusResponse, Fault>,
}

impl Endpoints {
    /// Makes them of the settings. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Unsupported`](tenure_core::error::ErrorKind::Unsupported) if a file with certificates cannot be used.
    pub(crate) fn new(config: &Config) -> Result<Endpoints> {
        let endpoints = make(config).map_err(|fault| fault.to_error("connect"))?;
        Ok(Endpoints(Arc::new(Shared {
            endpoints,
            config: config.clone(),
            state: Mutex::new(State::default()),
            finding: tokio::sync::Mutex::new(()),
            in_use: watch::Sender::new(0),
        })))
    }

    /// Calls a method at the endpoint in use. It must be called on a tokio runtime.
    ///
    /// It repeats nothing that may have been executed, see [`Fault::is_outcome_unknown`].
    pub(crate) async fn call<Q: Call>(
        &self,
        request: Q,
        deadline: Instant,
    ) -> std::result::Result<Q::Answer, Fault> {
        let wire = self.wire(deadline).await?;
        let mut unanswered = Unanswered { endpoints: self, wire: Some(&wire) };
        let result = wire.call(&request, deadline).await;
        unanswered.wire = None;
        if let Err(fault) = &result
            && fault.is_of_endpoint()
        {
            self.leave(&wire, fault);
        }
        result
    }

    /// Returns a connection with an endpoint that answers and knows a leader, as soon as there is one.
    pub(crate) async fn wire(&self, deadline: Instant) -> std::result::Result<Wire, Fault> {
        if let Some(wire) = self.current() {
            return Ok(wire);
        }
        let endpoints = self.clone();
        match see_through(async move { timeout_at(deadline, endpoints.find(deadline)).await }).await {
            Some(Ok(found)) => found,
            Some(Err(_)) | None => Err(Fault::Down { why: self.why() }),
        }
    }

    /// Looks for an endpoint, unless another task does already.
    async fn find(&self, deadline: Instant) -> std::result::Result<Wire, Fault> {
        let began = Instant::now();
        let _finding = self.0.finding.lock().await;
        // The task before may have found one.
        if let Some(wire) = self.current() {
            return Ok(wire);
        }
        loop {
            match self.find_endpoint(deadline).await {
                Ok((index, wire)) => {
                    let mut state = self.state();
                    state.next = index;
                    state.wire = Some(wire.clone());
                    state.why.clear();
                    self.0.in_use.send_replace(wire.number());
                    tracing::info!(endpoint = wire.endpoint(), "connected with etcd");
                    return Ok(wire);
                }
                Err(Fault::Down { why }) => {
                    self.state().why.clone_from(&why);
                    if began.elapsed() >= FIND_MAX {
                        return Err(Fault::Down { why });
                    }
                }
                // A user that is refused is refused everywhere.
                Err(fault) => return Err(fault),
            }
            sleep(PAUSE).await;
        }
    }

    /// Finds out whether an endpoint answers still, and leaves it if it does not.
    fn doubt(&self, wire: &Wire) {
        // Where the runtime has ended nobody asks any more.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Some(doubting) = wire.begin_doubting() else { return };
        let (endpoints, wire) = (self.clone(), wire.clone());
        runtime.spawn(async move {
            let asked = wire.call(&StatusRequest {}, deadline()).await;
            drop(doubting);
            if let Err(fault) = asked
                && fault.is_of_endpoint()
            {
                endpoints.leave(&wire, &fault);
            }
        });
    }

    /// Uses another connection from now on, if this one is still in use.
    pub(crate) fn leave(&self, wire: &Wire, fault: &Fault) {
        let mut state = self.state();
        if state.wire.as_ref().is_some_and(|current| current.number() == wire.number()) {
            tracing::info!(endpoint = wire.endpoint(), %fault, "leaving an endpoint of etcd");
            state.wire = None;
            state.next = (state.next + 1) % self.0.endpoints.len();
            self.0.in_use.send_replace(0);
        }
    }

    /// Returns the number of the connection in use, and hears when it changes: streams then move, too.
    pub(crate) fn in_use(&self) -> watch::Receiver<u64> {
        self.0.in_use.subscribe()
    }

    /// Asks each endpoint of the URL for its status.
    pub(crate) async fn ask_each(&self, deadline: Instant) -> Vec<Seen> {
        let mut asked = JoinSet::new();
        for index in 0..self.0.endpoints.len() {
            let (endpoints, name) = (self.clone(), self.0.endpoints[index].0.clone());
            asked.spawn(async move {
                let asked = timeout_at(deadline, endpoints.ask(index, deadline)).await;
                let silent = || Fault::Down { why: format!("no answer from {name}") };
                let status = asked.unwrap_or_else(|_| Err(silent())).map(|(_, status)| status);
                (index, Seen { endpoint: name, status })
            });
        }
        let mut seen = asked.join_all().await;
        seen.sort_by_key(|(index, _)| *index);
        seen.into_iter().map(|(_, seen)| seen).collect()
    }

    /// Looks for an endpoint once.
    async fn find_endpoint(&self, deadline: Instant) -> std::result::Result<(usize, Wire), Fault> {
        let deadline = deadline.min(Instant::now() + ROUND_MAX);
        let (first, count) = (self.state().next, self.0.endpoints.len());
        let mut left = (0..count).map(|step| (first + step) % count);
        let mut asked = JoinSet::new();
        let mut why = self.why();
        loop {
            let next = left.next();
            if let Some(index) = next {
                let endpoints = self.clone();
                asked.spawn(async move {
                    let wire = endpoints.try_endpoint(index, deadline).await?;
                    Ok((index, wire))
                });
            } else if asked.is_empty() {
                return Err(Fault::Down { why });
            }
            let until = if next.is_some() { deadline.min(Instant::now() + STAGGER) } else { deadline };
            match timeout_at(until, asked.join_next()).await {
                Ok(Some(Ok(Ok(found)))) => return Ok(found),
                Ok(Some(Ok(Err(Fault::Down { why: this })))) => why = this,
                Ok(Some(Ok(Err(fault)))) if fault.is_of_endpoint() => why = fault.to_string(),
                Ok(Some(Ok(Err(fault)))) => return Err(fault),
                // A task that panicked is as silent as one that waits.
                Ok(_) => {}
                Err(_) if next.is_none() => return Err(Fault::Down { why }),
                Err(_) => {}
            }
        }
    }

    /// Connects with an endpoint, if it can be used.
    async fn try_endpoint(&self, index: usize, deadline: Instant) -> std::result::Result<Wire, Fault> {
        let (wire, status) = self.ask(index, deadline).await?;
        let name = wire.endpoint();
        if status.leader == 0 {
            return Err(Fault::Down { why: format!("{name} knows no leader") });
        }
        if status.is_learner {
            return Err(Fault::Down { why: format!("{name} is a learner") });
        }
        wire.renew_token(None, deadline).await?;
        Ok(wire)
    }

    async fn ask(
        &self,
        index: usize,
        deadline: Instant,
    ) -> std::result::Result<(Wire, StatusResponse), Fault> {
        let (name, endpoint) = &self.0.endpoints[index];
        let down = |error| Fault::Down { why: format!("cannot connect to {name}: {}", reason(&error)) };
        let silent = |_| Fault::Down { why: format!("no answer from {name}") };
        let channel = timeout_at(deadline, endpoint.connect()).await.map_err(silent)?.map_err(down)?;
        let number = {
            let mut state = self.state();
            state.count += 1;
            state.count
        };
        let wire = Wire::new(channel, name, number, self.0.config.login.clone());
        match wire.call(&StatusRequest {}, deadline).await {
            Ok(status) => Ok((wire, status)),
            Err(fault @ (Fault::Silent { .. } | Fault::Cut { .. })) => {
                Err(Fault::Down { why: fault.to_string() })
            }
            Err(fault) => Err(fault),
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.0.endpoints.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }

    /// Why there is no connection: what the last attempt to make one found, if one is over.
    fn why(&self) -> String {
        let why = self.state().why.clone();
        if why.is_empty() { format!("no answer from {}", self.names()) } else { why }
    }

    fn current(&self) -> Option<Wire> {
        self.state().wire.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits.
pub(crate) async fn sleep(period: Duration) {
    sleep_until(Instant::now() + period).await;
}

/// The endpoints of the settings, with their names.
fn make(config: &Config) -> std::result::Result<Vec<(String, Endpoint)>, Fault> {
    let tls = if config.is_tls { Some(tls(config)?) } else { None };
    let scheme = if config.is_tls { "https" } else { "http" };
    let wrong = |name: &str, error: &(dyn std::error::Error + 'static)| Fault::Setup {
        why: format!("cannot use {name}: {}", reason(error)),
        hint: "the files that the URL names must have certificates in the PEM format",
    };
    let mut endpoints = Vec::new();
    for address in &config.addresses {
        let name = address.to_string();
        let endpoint =
            Endpoint::from_shared(format!("{scheme}://{name}")).map_err(|error| wrong(&name, &error))?;
        let mut endpoint =
            endpoint.tcp_nodelay(true).user_agent("tenure").map_err(|error| wrong(&name, &error))?;
        if let Some(tls) = &tls {
            let tls = tls.clone().domain_name(address.host.clone());
            endpoint = endpoint.tls_config(tls).map_err(|error| wrong(&name, &error))?;
        }
        endpoints.push((name, endpoint));
    }
    Ok(endpoints)
}

fn tls(config: &Config) -> std::result::Result<ClientTlsConfig, Fault> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| Fault::Setup {
            why: format!("cannot read {}: {error}", path.display()),
            hint: "`ca`, `cert` and `key` name files in the PEM format",
        })
    };
    let mut tls = ClientTlsConfig::new();
    tls = match &config.ca {
        Some(path) => tls.ca_certificate(Certificate::from_pem(read(path)?)),
        None => tls.with_webpki_roots(),
    };
    if let Some(identity) = &config.identity {
        let identity =
            tonic::transport::Identity::from_pem(read(&identity.certificate)?, read(&identity.key)?);
        tls = tls.identity(identity);
    }
    Ok(tls)
}

#[cfg(test)]
mod tests;
