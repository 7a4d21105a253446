//! What the user sets of a client when it connects.

use std::sync::Arc;
use std::time::Duration;

use crate::client::scopes::{SCOPES_MAX_DEFAULT, Scopes};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Listener;

/// The shortest and the longest time that an answer may take.
const ANSWER_TIMEOUT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(24 * 3600));

/// The settings of a client. What is out of range is refused where the client connects.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tenure_core::Settings;
///
/// let settings = Settings::new().answer_timeout(Duration::from_secs(5)).label("night shift");
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) answer_timeout: Duration,
    pub(crate) label: String,
    pub(crate) listener: Option<Arc<dyn Listener>>,
    pub(crate) counts: bool,
    pub(crate) scopes: Vec<String>,
    pub(crate) scopes_max: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            answer_timeout: Duration::from_secs(2),
            label: String::new(),
            listener: None,
            counts: false,
            scopes: Vec::new(),
            scopes_max: SCOPES_MAX_DEFAULT,
        }
    }
}

impl Settings {
    /// Starts with the defaults.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Sets how long a request may stay unanswered before its user gets an error (default 2 s; 1 ms to 24 h). More: a
    /// store that is silent is reported later. Less: a slow store is taken for a silent one.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Settings {
        self.answer_timeout = timeout;
        self
    }

    /// Adds a free text to the label of every hold (default: none). Too long a text is cut.
    #[must_use]
    pub fn label(mut self, text: &str) -> Settings {
        text.clone_into(&mut self.label);
        self
    }

    /// Has a listener hear of every event (default: none). It is called without any lock, and never on the thread that renews leases.
    #[must_use]
    pub fn listener(mut self, listener: Arc<dyn Listener>) -> Settings {
        self.listener = Some(listener);
        self
    }

    /// Counts what happens, for [`Tenure::counts`](crate::Tenure::counts) (default: no). On, an acquire and its release cost less than
    /// 100 ns more (`cargo xtask bench counting`); off, a branch each. With a listener it is on.
    #[must_use]
    pub fn counts(mut self, counts: bool) -> Settings {
        self.counts = counts;
        self
    }

    /// Says which names are counted together: those that fit a pattern of 1 to 64 bytes, in which `*` stands for any text. The first that
    /// fits is the label (default: none). A name that fits none is counted by its form: `billing/4711` as `billing/*`, `order-4711`
    /// as `order-*`.
    #[must_use]
    pub fn scopes<S: Into<String>>(mut self, patterns: impl IntoIterator<Item = S>) -> Settings {
        self.scopes = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how many label values there may be for scopes, and as many for elections (default 100; 1 to 10,000). What is named after
    /// that is counted as `other`. A label value is up to 60 series.
    #[must_use]
    pub fn scopes_max(mut self, most: usize) -> Settings {
        self.scopes_max = most;
        self
    }

    /// Whether anything is counted.
    pub(crate) fn is_counting(&self) -> bool {
        self.counts || self.listener.is_some()
    }

    /// Refuses what is out of range, by the name of the setting.
    pub(crate) fn check(&self) -> Result<()> {
        let (timeout, (least, most)) = (self.answer_timeout, ANSWER_TIMEOUT);
        if timeout < least || timeout > most {
            let message = format!("an answer_timeout of {timeout:?} is out of range");
            return Err(Error::new(ErrorKind::Invalid, "connect", message)
                .with_hint("an answer_timeout is 1ms to 24h; the default is 2s"));
        }
        Scopes::check(&self.scopes, self.scopes_max)
    }
}
