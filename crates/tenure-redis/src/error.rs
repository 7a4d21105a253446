//! What goes wrong between a command and its answer, and the error that a user gets.

use std::fmt;
use std::time::Duration;

use redis::RedisError;
use tenure_core::error::{Error, ErrorKind};

/// Why a command has no answer.
///
/// The one thing that a caller must know is whether the command may have been executed:
/// [`Fault::is_outcome_unknown`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "`server` names it, `why` and `detail` are for people")]
pub enum Fault {
    /// It was sent, and not answered in time. It may have been executed, or may still be.
    Silent { server: String, after: Duration },
    /// It was sent, and the connection broke. It may have been executed.
    Cut { server: String, why: String },
    /// It was not sent: there was no connection in time. This is why the last attempt to make one failed.
    Down { last: Box<Fault> },
    /// No connection could be made.
    Refused { server: String, why: String },
    /// The server answered with an error.
    Server { server: String, code: String, detail: String },
    /// The server is not a master, so it was sent nothing.
    NotMaster { server: String, role: String },
    /// No Sentinel, or no node of the cluster, names a master.
    Nobody { why: String },
    /// The settings cannot work: a file with certificates cannot be read, a server is too old.
    Setup { why: String, hint: &'static str },
}

impl Fault {
    /// Makes a fault of what redis-rs says about a command that was sent.
    pub(crate) fn of_command(error: &RedisError, server: &str) -> Fault {
        match error.code() {
            Some(code) => Fault::server(server, code, error.detail()),
            None => Fault::Cut { server: server.to_owned(), why: reason(error) },
        }
    }

    /// Makes a fault of what redis-rs says about an attempt to connect.
    pub(crate) fn of_connecting(error: &RedisError, server: &str) -> Fault {
        match (error.code(), error.kind()) {
            (Some(code), _) => Fault::server(server, code, error.detail()),
            (None, redis::ErrorKind::RESP3NotSupported) => Fault::Setup {
                why: format!("{server} does not know HELLO"),
                hint: "the engine needs Redis 7.0 or newer",
            },
            (None, _) => Fault::Refused { server: server.to_owned(), why: reason(error) },
        }
    }

    /// Makes a fault of a server's error: its first word is the code.
    pub(crate) fn server(server: &str, code: &str, detail: Option<&str>) -> Fault {
        Fault::Server {
            server: server.to_owned(),
            code: code.to_owned(),
            detail: detail.unwrap_or_default().to_owned(),
        }
    }

    /// Returns the code of a server's error: `NOSCRIPT`, `READONLY`.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Fault::Server { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Returns whether the script is not in the server's cache, so that nothing was executed.
    pub fn is_no_script(&self) -> bool {
        self.code() == Some("NOSCRIPT")
    }

    /// Returns whether the library is not on the server, so that nothing was executed.
    pub fn is_no_function(&self) -> bool {
        self.says("ERR", "Function not found")
    }

    /// Returns whether the library is on the server already.
    pub fn is_loaded_already(&self) -> bool {
        self.says("ERR", "already exists")
    }

    /// Returns whether it answers a probe with what does not exist, which only a user with the right for it learns.
    pub(crate) fn is_of_probe(&self) -> bool {
        self.is_no_script() || self.is_no_function() || self.says("ERR", "missing library metadata")
    }

    /// Returns whether the user or the server has no functions.
    pub fn refuses_functions(&self) -> bool {
        ["'fcall'", "'function"].iter().any(|command| self.says("NOPERM", command))
            || self.says("ERR", "unknown command")
    }

    fn says(&self, what: &str, words: &str) -> bool {
        matches!(self, Fault::Server { code, detail, .. }
            if code == what && detail.to_lowercase().contains(&words.to_lowercase()))
    }

    /// Returns whether the command may have been executed although no answer says so.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Fault::Silent { .. } | Fault::Cut { .. })
    }

    /// Returns whether only an operator can mend it, so that callers should not wait for it.
    pub fn is_permanent(&self) -> bool {
        match self {
            Fault::Server { .. } | Fault::Setup { .. } => self.advice().0 != ErrorKind::Unavailable,
            _ => false,
        }
    }

    /// Says to a user what failed and what to do.
    pub fn to_error(&self, operation: &'static str) -> Error {
        let fault = match self {
            Fault::Down { last } => last,
            fault => fault,
        };
        let (kind, hint) = fault.advice();
        let error = Error::new(kind, operation, fault.to_string()).with_hint(hint);
        if self.is_before_execution() { error.with_no_effect() } else { error }
    }

    /// Returns whether no server has begun to execute the command: it was not sent, the server does not know the
    /// user, or that user may not. A script may have done half of its work when it is not allowed the other half.
    fn is_before_execution(&self) -> bool {
        match self {
            Fault::Silent { .. } | Fault::Cut { .. } => false,
            Fault::Server { code, detail, .. } => match code.as_str() {
                "NOAUTH" | "WRONGPASS" => true,
                "NOPERM" => detail.contains("permissions to run the") && !detail.contains("script:"),
                _ => false,
            },
            Fault::Down { .. }
            | Fault::Refused { .. }
            | Fault::NotMaster { .. }
            | Fault::Nobody { .. }
            | Fault::Setup { .. } => true,
        }
    }

    fn advice(&self) -> (ErrorKind, &'static str) {
        match self {
            Fault::Server { code, detail, .. } => advice_on(code, detail),
            Fault::Setup { hint, .. } => (ErrorKind::Unsupported, hint),
            Fault::NotMaster { .. } => (
                ErrorKind::Unavailable,
                "name the master, or let `redis+sentinel://` find it; after a failover this passes",
            ),
            Fault::Nobody { .. } => (
                ErrorKind::Unavailable,
                "are the Sentinels or the nodes running, and is the master's name right? try `tenure doctor`",
            ),
            Fault::Silent { .. } | Fault::Cut { .. } | Fault::Down { .. } | Fault::Refused { .. } => {
                (ErrorKind::Unavailable, "is it running and reachable? try `tenure doctor`")
            }
        }
    }
}

/// What a server's error means, and what to do. Wrong credentials are `Invalid`: the caller's URL is wrong.
/// Missing permissions are `Unsupported`: the URL is right, and this environment does not allow it.
///
/// Whatever is not known to be a refusal before anything was executed is `Unavailable`: a script that fails, is killed or
/// is refused a command may have done half of its work, and what a proxy or a later version says may mean anything. The
/// client repeats such a request, and withdraws what it may have been granted.
fn advice_on(code: &str, detail: &str) -> (ErrorKind, &'static str) {
    let unavailable = ErrorKind::Unavailable;
    match code {
        "LOADING" => (unavailable, "the server reads its data after a start; this passes"),
        "READONLY" => (unavailable, "the server is a replica; after a failover this passes"),
        "MASTERDOWN" => (unavailable, "the server is a replica without its master; wait for a failover"),
        "MISCONF" => (unavailable, "the server cannot save to its disk: free some space, see its log"),
        "OOM" => (
            unavailable,
            "the server has reached `maxmemory`: raise it, and keep locks on a server that evicts nothing",
        ),
        "NOREPLICAS" => (unavailable, "the server has fewer replicas than `min-replicas-to-write`"),
        "TRYAGAIN" => (unavailable, "a hash slot moves to another node; this passes"),
        "CLUSTERDOWN" => (unavailable, "the cluster lacks nodes: see `redis-cli cluster info`"),
        "BUSY" => (unavailable, "a script of somebody blocks the server: see `redis-cli script kill`"),
        "MOVED" | "ASK" => (
            unavailable,
            "the cluster changes its shape faster than it can be followed; or the URL says `redis://` and the server is one of a cluster",
        ),
        "CROSSSLOT" => (ErrorKind::Invalid, "the server is one of a cluster: write `redis+cluster://`"),
        "NOPROTO" => (
            ErrorKind::Unsupported,
            "the engine needs RESP3, which Redis 6.0 and newer speaks: let a proxy in between pass it on",
        ),
        "NOAUTH" | "WRONGPASS" => (
            ErrorKind::Invalid,
            "check the user and the password of the URL: `redis://user:password@host` or `redis://:password@host`",
        ),
        "NOPERM" => (ErrorKind::Unsupported, MISSING_RIGHTS),
        "ERR" => advice_on_text(detail),
        _ => (unavailable, UNKNOWN),
    }
}

const MISSING_RIGHTS: &str = "let the user run scripts, subscribe, and run INFO and ROLE, on the keys of `prefix` and the channels `tenure.*`";
const UNKNOWN: &str = "see the server's log, and report it if the server is well";

/// What the errors mean that have no code of their own.
fn advice_on_text(detail: &str) -> (ErrorKind, &'static str) {
    let says = |words: &str| detail.contains(words);
    // Of a command inside a script, which may have done something before: unlike NOPERM.
    if says("ACL failure in script") || says("can't run this command") {
        (ErrorKind::Unavailable, MISSING_RIGHTS)
    } else if says("script:") || says("user_function") || says("user_script") {
        (ErrorKind::Unavailable, UNKNOWN)
    } else if says("without any password") {
        (ErrorKind::Invalid, "the server has no password: leave it out of the URL")
    } else if says("DB index") {
        (ErrorKind::Invalid, "the server has fewer databases than `db` says")
    } else if says("max number of clients") {
        (ErrorKind::Unavailable, "raise the server's `maxclients`, or end some of its clients")
    } else if says("unknown command") {
        (ErrorKind::Unsupported, "the engine needs Redis 7.0 or newer")
    } else if says("cluster support disabled") {
        (ErrorKind::Invalid, "the server is no cluster: write `redis://`")
    } else {
        (ErrorKind::Unavailable, UNKNOWN)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Silent { server, after } => write!(f, "no answer from {server} within {after:?}"),
            Fault::Cut { server, why } => write!(f, "the connection to {server} broke: {why}"),
            Fault::Down { last } => write!(f, "{last}"),
            Fault::Refused { server, why } => write!(f, "cannot connect to {server}: {why}"),
            Fault::Server { server, code, detail } => {
                write!(f, "{server} answered {code}")?;
                if detail.is_empty() { Ok(()) } else { write!(f, " ({detail})") }
            }
            Fault::NotMaster { server, role } => write!(f, "{server} is not a master but a {role}"),
            Fault::Nobody { why } | Fault::Setup { why, .. } => f.write_str(why),
        }
    }
}

/// The cause in a few words: redis-rs puts the number of the system's error and its own categories around it.
fn reason(error: &RedisError) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.to_lowercase().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
