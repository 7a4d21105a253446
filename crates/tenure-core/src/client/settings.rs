//! What the user sets of a client when it connects.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

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
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { answer_timeout: Duration::from_secs(2), label: String::new() }
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

    /// Refuses what is out of range, by the name of the setting.
    pub(crate) fn check(&self) -> Result<()> {
        let (timeout, (least, most)) = (self.answer_timeout, ANSWER_TIMEOUT);
        if timeout < least || timeout > most {
            let message = format!("an answer_timeout of {timeout:?} is out of range");
            return Err(Error::new(ErrorKind::Invalid, "connect", message)
                .with_hint("an answer_timeout is 1ms to 24h; the default is 2s"));
        }
        Ok(())
    }
}
