//! The client's session in ZooKeeper: one connection, and what is known of how long it goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tenure_core::clock::{Clock, Instant, SystemClock};
use tenure_core::engine::url::Login;
use tenure_core::engine::{Wake, see_through};
use tenure_core::error::{Error, ErrorKind, Result};
use tenure_ordered::{SessionId, Wakes};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{timeout, timeout_at};
use zookeeper_client::{Client, SaslOptions, SessionState, TlsOptions};

use crate::client::heartbeat::Heartbeats;
use crate::config::Config;
use crate::error::{ANSWER_MAX, Fault, is_dead, no_answer, pause, to_error};

/// After how long the next server is tried, too.
const NEXT_SERVER: Duration = Duration::from_millis(300);
/// How long a server may take to say which timeout it agrees to.
const AGREED_MAX: Duration = Duration::from_secs(1);
/// The bounds of how long a server may be silent before another one is tried.
const SILENCE: (Duration, Duration) = (Duration::from_millis(400), Duration::from_secs(3));
/// How soon holders have been told that their session is given up: it is closed, and their claims are others', only then.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// The most often that is asked whether the session goes on.
const BEAT_MIN: Duration = Duration::from_millis(100);

/// One session.
pub(crate) struct Session {
    pub(crate) session_id: SessionId,
    pub(crate) client: Client,
    /// As the servers granted it.
    pub(crate) timeout: Duration,
    heartbeats: Mutex<Heartbeats>,
    is_over: watch::Sender<bool>,
    /// The present connection's timeout is known not to be shorter than `timeout`.
    is_agreed: AtomicBool,
    /// A heartbeat is wanted now.
    wanted: Notify,
    /// Counts the heartbeats that were answered or failed.
    beaten: watch::Sender<u64>,
}

/// The sessions of one client, one after the other.
pub(crate) struct Sessions {
    config: Config,
    wakes: Arc<Wakes>,
    now: Mutex<Option<(Arc<Session>, Tasks)>>,
    connecting: Arc<tokio::sync::Mutex<()>>,
}

struct Tasks([AbortHandle; 2]);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

fn now() -> Instant {
    SystemClock.now()
}

impl Sessions {
    pub(crate) fn new(config: Config, wakes: Arc<Wakes>) -> Arc<Sessions> {
        Arc::new(Sessions { config, wakes, now: Mutex::default(), connecting: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Arc<Session>, Tasks)>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a session that goes on, as far as is known.
    pub(crate) fn session(&self, session_id: SessionId) -> Option<Arc<Session>> {
        self.any().filter(|session| session.session_id == session_id)
    }

    fn any(&self) -> Option<Arc<Session>> {
        let mut now = self.lock();
        now.take_if(|(session, _)| session.is_over());
        now.as_ref().map(|(session, _)| session.clone())
    }

    /// Returns the session that goes on, and begins one if there is none.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<Arc<Session>> {
        if let Some(session) = self.any() {
            return Ok(session);
        }
        let until = tokio::time::Instant::now() + ANSWER_MAX;
        let turn = timeout_at(until, self.connecting.clone().lock_owned()).await;
        let turn = turn.map_err(|_| self.no_server_answers())?;
        let sessions = self.clone();
        let begun = see_through(async move {
            let _turn = turn;
            match sessions.any() {
                Some(session) => Ok(session),
                None => timeout_at(until, sessions.connect())
                    .await
                    .unwrap_or_else(|_| Err(sessions.no_server_answers())),
            }
        });
        begun.await.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Unavailable, "connect", "the client's runtime has ended"))
        })
    }

    fn no_server_answers(&self) -> Error {
        let servers = self.config.servers();
        let why = format!("no server answers within {ANSWER_MAX:?}: {servers}");
        Error::new(ErrorKind::Unavailable, "connect", why)
            .with_hint("see whether a majority of the servers runs and is reached")
    }

    /// A session has ended for its client. The servers may know it still, with all its entries: without its last user it is closed. So
    /// whoever holds is told, and then it is let go of, and not when somebody asks for something, which may be never.
    fn end(sessions: &Weak<Sessions>, session: &Arc<Session>) {
        let Some(sessions) = sessions.upgrade() else { return };
        if session.is_over.send_replace(true) {
            return;
        }
        tracing::warn!(session_id = %session.client.session_id(), "the client's session in the store has ended");
        session.beaten.send_modify(|count| *count += 1);
        sessions.wakes.put(Wake::RenewAll);
        let session = session.clone();
        tokio::spawn(async move {
            pause(TOLD_WITHIN).await;
            drop(session);
        });
        drop(sessions.any());
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Session>> {
        let (client, begun) = dial(&self.config).await?;
        let timeout = client.session_timeout();
        let heartbeats = Heartbeats::new(begun, timeout, self.config.tick);
        let session = Arc::new(Session {
            session_id: SessionId(client.session_id().0.cast_unsigned()),
            client,
            timeout,
            heartbeats: Mutex::new(heartbeats),
            is_over: watch::Sender::new(false),
            is_agreed: AtomicBool::new(true),
            wanted: Notify::new(),
            beaten: watch::Sender::new(0),
        });
        tracing::info!(session_id = %session.client.session_id(), ?timeout, "connected");
        let path = if self.config.chroot.is_empty() { "/".to_owned() } else { self.config.chroot.clone() };
        // Held until it is there: a session that ends at once is let go of, too.
        let mut now = self.lock();
        let heartbeat = tokio::spawn(heartbeat(session.clone(), path, Arc::downgrade(self)));
        let listen = tokio::spawn(listen(session.clone(), self.config.clone(), Arc::downgrade(self)));
        *now = Some((session.clone(), Tasks([heartbeat.abort_handle(), listen.abort_handle()])));
        drop(now);
        Ok(session)
    }
}

impl Session {
    pub(crate) fn is_over(&self) -> bool {
        *self.is_over.borrow()
    }

    /// Waits until it has ended for its client. Whoever waits long for something else with a session in hand waits for this, too: it
    /// would keep the session going.
    pub(crate) async fn over(&self) {
        let mut is_over = self.is_over.subscribe();
        drop(is_over.wait_for(|is_over| *is_over).await);
    }

    fn heartbeats(&self) -> MutexGuard<'_, Heartbeats> {
        self.heartbeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn period(&self) -> Duration {
        (self.timeout / 10).max(BEAT_MIN)
    }

    /// Makes sure that it goes on, and returns until when at least, or `None` if it has ended.
    pub(crate) async fn heartbeat(&self) -> Result<Option<Instant>> {
        let mut beaten = self.beaten.subscribe();
        let deadline = now() + ANSWER_MAX;
        loop {
            if self.is_over() {
                return Ok(None);
            }
            let (until, last) = {
                let heartbeats = self.heartbeats();
                (heartbeats.until(), heartbeats.last())
            };
            // After a long silence it takes a tick until something is known again.
            let is_agreed = self.is_agreed.load(Ordering::Acquire);
            if is_agreed && now().since(last) < self.period() * 2 && until > now() {
                return Ok(Some(until));
            }
            self.wanted.notify_one();
            let left = deadline.since(now());
            if left.is_zero() || timeout(left, beaten.changed()).await.is_err() {
                return if self.is_over() { Ok(None) } else { Err(no_answer("heartbeat")) };
            }
        }
    }
}

/// Asks again and again, through the leader, whether the session goes on.
async fn heartbeat(session: Arc<Session>, path: String, sessions: Weak<Sessions>) {
    loop {
        let sent = now();
        match timeout(ANSWER_MAX, session.client.sync(&path)).await {
            Ok(Ok(())) => {
                session.heartbeats().answered(sent);
                session.beaten.send_modify(|count| *count += 1);
            }
            Ok(Err(fault)) if is_dead(&fault) => return Sessions::end(&sessions, &session),
            Ok(Err(fault)) => tracing::debug!(%fault, "a heartbeat was not answered"),
            Err(_) => tracing::debug!("a heartbeat was not answered"),
        }
        let rest = session.period().saturating_sub(now().since(sent));
        tokio::select! {
            () = pause(rest) => {}
            () = session.wanted.notified() => pause(rest.min(BEAT_MIN / 4)).await,
        }
    }
}

/// Hears what happens to the connection.
async fn listen(session: Arc<Session>, config: Config, sessions: Weak<Sessions>) {
    let mut states = session.client.state_watcher();
    let mut state = states.changed().await;
    loop {
        match state {
            SessionState::Disconnected => tracing::debug!("the connection is lost"),
            SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                session.is_agreed.store(false, Ordering::Release);
                session.wanted.notify_one();
                if let Some(sessions) = sessions.upgrade() {
                    sessions.wakes.put(Wake::LookAtAll);
                }
                tokio::select! {
                    biased;
                    next = states.changed() => {
                        state = next;
                        continue;
                    }
                    shortest = shortest_timeout(&config, session.timeout) => {
                        if shortest < session.timeout {
                            tracing::warn!(?shortest, before = ?session.timeout, "a server allows a shorter session");
                            return Sessions::end(&sessions, &session);
                        }
                        session.is_agreed.store(true, Ordering::Release);
                        session.beaten.send_modify(|count| *count += 1);
                    }
                }
            }
            _ => return Sessions::end(&sessions, &session),
        }
        state = states.changed().await;
    }
}

/// Returns the shortest timeout that a server agrees to if it is asked for this one.
///
/// Servers agree on a session's timeout anew at each connection, by their own bounds, and the client library shows
/// only that of the first one. If the session has moved to a server with a lower `maxSessionTimeout`, it ends sooner
/// than its client believes, and another holds beside it. Which server it is on is not shown either: so each is
/// asked, on a session of its own that ends at once. A server that does not answer soon is not the one that has just
/// answered.
async fn shortest_timeout(config: &Config, wanted: Duration) -> Duration {
    let config = Config { session_timeout: wanted, ..config.clone() };
    loop {
        let asked = now();
        let ask = async |host: &String| {
            let client = dial_in_turn(&config, std::slice::from_ref(host), tls(&config).ok()?).await.ok()?;
            Some(client.session_timeout())
        };
        let asks = config.hosts.iter().map(|host| timeout(AGREED_MAX, ask(host)));
        let agreed = join_all(asks).await.into_iter().flatten().flatten().min();
        match agreed {
            Some(shortest) => return shortest,
            None => pause(BEAT_MIN.max(NEXT_SERVER.saturating_sub(now().since(asked)))).await,
        }
    }
}

/// Connects with whichever server answers first, and says when that was asked for.
async fn dial(config: &Config) -> Result<(Client, Instant)> {
    let first = usize::try_from(SystemClock.random() % config.hosts.len() as u64).unwrap_or(0);
    let tls = tls(config)?;
    let attempt = |turn: usize| {
        let mut hosts = config.hosts.clone();
        hosts.rotate_left((first + turn) % config.hosts.len());
        let tls = tls.clone();
        async move {
            pause(NEXT_SERVER * u32::try_from(turn).unwrap_or(0)).await;
            let asked = now();
            dial_in_turn(config, &hosts, tls).await.map(|client| (client, asked))
        }
    };
    let mut attempts: FuturesUnordered<_> = (0..config.hosts.len()).map(attempt).collect();
    let mut last = Fault::NoHosts;
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(connected) => return Ok(connected),
            Err(Fault::AuthFailed) => return Err(to_error("connect", &Fault::AuthFailed)),
            Err(fault) => last = fault,
        }
    }
    Err(to_error("connect", &last))
}

async fn dial_in_turn(config: &Config, hosts: &[String], tls: Option<TlsOptions>) -> Result<Client, Fault> {
    let silence = (config.session_timeout / 5).clamp(SILENCE.0, SILENCE.1);
    let mut connector =
        Client::connector().with_session_timeout(config.session_timeout).with_connection_timeout(silence);
    if let Some(Login { user, password }) = &config.login {
        connector = if config.is_sasl {
            connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone()))
        } else {
            connector.with_auth("digest", format!("{user}:{password}").as_bytes())
        };
    }
    let hosts = hosts.join(",");
    match tls {
        Some(tls) => connector.with_tls(tls).secure_connect(&hosts).await,
        None => connector.connect(&hosts).await,
    }
}

fn tls(config: &Config) -> Result<Option<TlsOptions>> {
    let Some(ca) = &config.ca else { return Ok(None) };
    use_some_cryptography();
    let read = |path: &std::path::Path| {
        std::fs::read_to_string(path).map_err(|error| {
            Error::new(ErrorKind::Invalid, "connect", format!("cannot read {}: {error}", path.display()))
        })
    };
    let wrong = |fault: Fault| {
        Error::new(ErrorKind::Invalid, "connect", format!("the files for TLS: {fault}"))
            .with_hint("`ca`, `cert` and `key` are PEM files")
    };
    let mut options = TlsOptions::new().with_pem_ca(&read(ca)?).map_err(wrong)?;
    if let Some((cert, key)) = &config.identity {
        options = options.with_pem_identity(&read(cert)?, &read(key)?).map_err(wrong)?;
    }
    Ok(Some(options))
}

/// rustls chooses its cryptography by itself only if the whole program has compiled in exactly one, and panics
/// otherwise. A program may have a second one, and the client offers no way to name one, so this sets the default of the
/// process, if it has none.
fn use_some_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error says that other code was quicker, and then there is one.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    }
}
