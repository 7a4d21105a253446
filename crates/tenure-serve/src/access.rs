//! Who may do what: a token or a certificate, and what its entry in the file of tokens allows.
//!
//! The id of a claim is no secret, since it is in the store: each verb is checked against the *name*.

pub(crate) mod cookie;
pub(crate) mod file;
pub(crate) mod forwarded;
pub(crate) mod origin;
pub(crate) mod rate;
pub(crate) mod rules;
pub(crate) mod table;
pub(crate) mod uses;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use tenure_core::Name;
use tenure_core::clock::{Clock, SystemClock};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::limits::{ADDRESSES_MAX, GUESSES_OF_ADDRESS, RATE_OF_TOKEN, WAITING_OF_TOKEN_MAX};
use crate::pace::Pace;
use crate::problem::{FORBIDDEN, Problem, RATE, UNAUTHORIZED};
use cookie::{Cookies, Way};
use rate::Rates;
use rules::{Rules, Verb};
use table::{Entry, Key, Table};
use uses::Uses;

/// Who sent a request, as far as it is verified.
#[derive(Clone)]
pub(crate) struct Caller {
    access: Arc<Access>,
    /// `None`: nobody is asked who they are.
    known: Option<(Key, Arc<Entry>)>,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Caller").field(&self.name()).finish()
    }
}

impl Caller {
    /// The name in the file of tokens; none where there is no file.
    pub(crate) fn name(&self) -> Option<&str> {
        self.known.as_ref().map(|(_, entry)| &*entry.name)
    }

    /// What it may do; none where everybody may do everything.
    pub(crate) fn rules(&self) -> Option<&Rules> {
        self.known.as_ref().map(|(_, entry)| &entry.rules)
    }

    /// Refuses what is not allowed.
    pub(crate) fn may(&self, verb: Verb, name: &Name) -> Result<(), Problem> {
        if self.access.is_read_only && verb.changes() {
            return Err(Problem::new(FORBIDDEN, "this server is read-only"));
        }
        let Some((_, entry)) = &self.known else { return Ok(()) };
        if entry.rules.allow(verb, Some(name.as_str())) {
            return Ok(());
        }
        let (verb, who) = (verb.as_str(), &entry.name);
        Err(Problem::new(FORBIDDEN, format!("{who:?} may not {verb} {:?}", name.as_str()))
            .with_hint(format!("an operator adds `{verb} …` to `allow` of its entry in the file of tokens"))
            .about(name.as_str()))
    }

    /// Refuses what is about no name in particular, unless it is allowed for all of them.
    pub(crate) fn may_for_all(&self, verb: Verb) -> Result<(), Problem> {
        match &self.known {
            Some((_, entry)) if !entry.rules.allow(verb, None) => {
                let (verb, who) = (verb.as_str(), &entry.name);
                Err(Problem::new(FORBIDDEN, format!("{who:?} may not {verb} everything")).with_hint(format!(
                    "an operator adds `{verb}` to `allow` of its entry in the file of tokens"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether it is allowed, where something is left out otherwise and nothing refused.
    pub(crate) fn allows(&self, verb: Verb, name: &Name) -> bool {
        self.known.as_ref().is_none_or(|(_, entry)| entry.rules.allow(verb, Some(name.as_str())))
    }

    /// Refuses what is about the names with a prefix, if it is allowed for none of them.
    pub(crate) fn may_some(&self, verb: Verb, prefix: &str) -> Result<(), Problem> {
        match &self.known {
            Some((_, entry)) if !entry.rules.allow_some(verb, prefix) => {
                let (verb, who) = (verb.as_str(), &entry.name);
                Err(Problem::new(
                    FORBIDDEN,
                    format!("{who:?} may {verb} nothing that begins with {prefix:?}"),
                )
                .with_hint(format!(
                    "an operator adds `{verb} …` to `allow` of its entry in the file of tokens"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Waits until the entry of this caller has been changed or taken away, or has expired.
    pub(crate) async fn changed(&self) {
        let Some((key, entry)) = &self.known else { return std::future::pending().await };
        let mut tables = self.access.tables.subscribe();
        let is_another = |table: &Arc<Table>| table.find(key).is_none_or(|now| now != entry);
        if tables.wait_for(is_another).await.is_err() {
            // The sender lives as long as the server.
            std::future::pending().await
        }
    }

    /// Waits until this caller may no more do what it could.
    pub(crate) async fn revoked(&self, verb: Verb, name: &Name) -> Problem {
        let Some((key, _)) = &self.known else { return std::future::pending().await };
        let mut tables = self.access.tables.subscribe();
        loop {
            let allowed = {
                let table = tables.borrow_and_update();
                let entry = table.find(key);
                entry.is_some_and(|entry| entry.rules.allow(verb, Some(name.as_str())))
            };
            if !allowed {
                return Problem::new(UNAUTHORIZED, "the token was taken away or has expired")
                    .about(name.as_str());
            }
            // The sender lives as long as the server.
            if tables.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The most requests of this caller that may wait, with the key under which they are counted; none where nobody is asked who they are.
    pub(crate) fn waiting_max(&self) -> Option<(&str, usize)> {
        let (_, entry) = self.known.as_ref()?;
        Some((&entry.name, entry.waiting.unwrap_or(WAITING_OF_TOKEN_MAX)))
    }
}

/// What is known of the other end of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// `None`: it came by a socket of the file system.
    pub(crate) address: Option<IpAddr>,
    /// The names that its certificate was given, if it has one that was verified.
    pub(crate) names: Vec<String>,
    /// How its connection goes on.
    pub(crate) pace: Arc<Pace>,
    /// Whether nobody reads on the way.
    pub(crate) is_tls: bool,
}

/// Who may do what now.
pub(crate) struct Access {
    tables: watch::Sender<Arc<Table>>,
    /// Without a file everybody who reaches the server may do everything.
    is_open: bool,
    is_read_only: bool,
    /// `None`: there is no dashboard, and nobody signs in.
    cookies: Option<Cookies>,
    rates: Mutex<Rates<String>>,
    guesses: Mutex<Rates<IpAddr>>,
    uses: Uses,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("is_open", &self.is_open).finish_non_exhaustive()
    }
}

impl Access {
    pub(crate) fn new(table: Option<Table>, cookies: Option<Cookies>, is_read_only: bool) -> Access {
        let is_open = table.is_none();
        Access {
            tables: watch::Sender::new(Arc::new(table.unwrap_or_default())),
            is_open,
            is_read_only,
            cookies,
            rates: Mutex::new(Rates::new(usize::MAX)),
            guesses: Mutex::new(Rates::new(ADDRESSES_MAX)),
            uses: Uses::default(),
        }
    }

    /// From now on this table is in force.
    pub(crate) fn replace(&self, table: Table) {
        self.tables.send_replace(Arc::new(table));
    }

    /// Has everything that is open look whether it still may: the time of a token may be over.
    pub(crate) fn look_again(&self) {
        self.tables.send_modify(|_| {});
    }

    /// Finds out who sends a request: by a token, else by the cookie of the dashboard, else by a certificate.
    pub(crate) fn caller(self: &Arc<Access>, request: &Parts, peer: &Peer) -> Result<Caller, Problem> {
        if self.is_open {
            return Ok(Caller { access: self.clone(), known: None });
        }
        let headers = &request.headers;
        if let Some(sent) = headers.get(AUTHORIZATION) {
            let known = self.known(sent.to_str().ok().and_then(bearer), peer)?;
            return self.counted(known);
        }
        let table = self.tables.borrow().clone();
        let by = |key: Key| table.find(&key).map(|entry| (key, entry.clone()));
        if let Some(known) = self.cookie(headers, peer).map(Key::Token).and_then(by) {
            cookie::may_change(&request.method, headers)?;
            return self.counted(known);
        }
        match table.key_of_certificate(&peer.names).and_then(by) {
            Some(known) => self.counted(known),
            None => Err(unknown("no token was sent")),
        }
    }

    fn cookie(&self, headers: &HeaderMap, peer: &Peer) -> Option<[u8; 32]> {
        self.cookies.as_ref()?.sent(headers, peer.is_tls, SystemClock.time_of_day())
    }

    /// The entry of a token that somebody sends, who may be guessing.
    fn known(&self, token: Option<&str>, peer: &Peer) -> Result<(Key, Arc<Entry>), Problem> {
        let now = Instant::now();
        // Somebody who guesses learns nothing more, be it right by now.
        if let Some(address) = peer.address
            && lock(&self.guesses).is_used_up(&address, GUESSES_OF_ADDRESS, now)
        {
            return Err(Problem::new(RATE, "too many tokens of this address were wrong")
                .with_retry_after(std::time::Duration::from_secs(1)));
        }
        let table = self.tables.borrow().clone();
        let key = token.map(Key::of_token);
        if let Some(known) = key.and_then(|key| table.find(&key).map(|entry| (key, entry.clone()))) {
            return Ok(known);
        }
        if let Some(address) = peer.address {
            lock(&self.guesses).take(address, GUESSES_OF_ADDRESS, now);
        }
        Err(unknown("the token is not known, or has expired"))
    }

    /// Lets somebody in who is known, as often as its entry allows it.
    fn counted(self: &Arc<Access>, (key, entry): (Key, Arc<Entry>)) -> Result<Caller, Problem> {
        let (now, most) = (Instant::now(), entry.rate.unwrap_or(RATE_OF_TOKEN));
        self.uses.note(&entry.name, now);
        if !lock(&self.rates).take(entry.name.clone(), most, now) {
            return Err(Problem::new(RATE, format!("{:?} may send {most} requests a second", entry.name))
                .with_retry_after(std::time::Duration::from_secs(1)));
        }
        Ok(Caller { access: self.clone(), known: Some((key, entry)) })
    }

    /// Takes a token for a cookie. Returns the header that has a browser keep it, and who has signed in.
    pub(crate) fn sign_in(
        self: &Arc<Access>,
        token: &str,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> Result<(String, Caller), Problem> {
        let (Some(cookies), Some(way)) = (&self.cookies, Way::of(headers, peer.is_tls)) else {
            return Err(Problem::new(FORBIDDEN, "without TLS others could read the cookie on its way").with_hint(
                "an operator gives --tls-cert and --tls-key, or puts a proxy with TLS in front; localhost needs none",
            ));
        };
        let (key, entry) = self.known(Some(token), peer)?;
        let Key::Token(hash) = &key else { return Err(unknown("that is no token")) };
        let cookie = cookies.seal(way, hash, SystemClock.time_of_day());
        Ok((way.set(Some(&cookie)), self.counted((key, entry))?))
    }

    /// Whether everybody may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether nothing may be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The entries in force, and their uses.
    pub(crate) fn table(&self) -> (Arc<Table>, &Uses) {
        (self.tables.borrow().clone(), &self.uses)
    }
}

fn unknown(detail: &str) -> Problem {
    Problem::new(UNAUTHORIZED, detail).with_hint("send a token of this server: Authorization: Bearer tnr_…")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere cannot leave it half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The token in a header, `Bearer tnr_…`.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
