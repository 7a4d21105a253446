//! The request and its answer: names, ids, terms, claims, grants.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::model::token::Token;

/// The longest name of a resource, in bytes of UTF-8. LMDB's keys end at 511 bytes, MySQL's index at 255.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest label, in bytes. It is stored with every hold and shown to people.
pub const LABEL_BYTES_MAX: usize = 256;
/// The largest value that a holder may publish, in bytes.
pub const VALUE_BYTES_MAX: usize = 256 * 1024;
/// The shortest time to live: below it, the margins and one slow round trip eat the lease.
pub const TTL_MIN: Duration = Duration::from_millis(100);
/// The longest time to live: longer ones mean "for ever", which a lease must not.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// The default ttl: long enough for a store's failover, short enough to wait for after a crash.
pub const TTL_DEFAULT: Duration = Duration::from_secs(30);
/// The longest of the other periods (`max_hold`, `min_hold`, `lock_delay`): ten years.
pub const PERIOD_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The largest capacity of a resource. A writer of a read-write lock weighs this much.
pub const CAPACITY_MAX: u32 = 1_048_576;
/// The most waiters in the queue of one resource.
pub const WAITERS_MAX: u32 = 100_000;

/// The name of a resource: 1 to 255 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is empty, longer than [`NAME_BYTES_MAX`], or holds a control character.
    pub fn new(name: &str) -> Result<Name, Error> {
        Name::of_what(name, "name a resource", "name")
    }

    /// As [`Name::new`], for what else has the limits of a name; `what` is one word for it.
    pub(crate) fn of_what(name: &str, operation: &'static str, what: &str) -> Result<Name, Error> {
        let wrong = if name.is_empty() {
            format!("the {what} is empty")
        } else if name.len() > NAME_BYTES_MAX {
            format!("the {what} has {} bytes, {NAME_BYTES_MAX} are allowed", name.len())
        } else if name.chars().any(char::is_control) {
            format!("the {what} holds a control character")
        } else {
            return Ok(Name(name.into()));
        };
        let hint = format!("a {what} has 1 to {NAME_BYTES_MAX} bytes of UTF-8 without control characters");
        Err(Error::new(ErrorKind::Invalid, operation, wrong).with_hint(hint))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    /// Writes it for people (see [`Printable`]); [`Name::as_str`] is the name itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Printable(&self.0), f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(name: &str) -> Result<Name, Error> {
        Name::new(name)
    }
}

/// Text from elsewhere, for a terminal: what would steer it, or turn round what stands beside it, is written as `\u{202e}`.
///
/// Any user may have chosen a name, and a label is whatever a store gives back.
///
/// # Examples
/// ```
/// let shown = tenure_core::model::claim::Printable("a\u{202e}b").to_string();
/// assert_eq!(shown, "a\\u{202e}b");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(steers) {
            let (before, from) = rest.split_at(at);
            f.write_str(before)?;
            let mut chars = from.chars();
            for c in chars.next().into_iter().flat_map(char::escape_unicode) {
                f.write_char(c)?;
            }
            rest = chars.as_str();
        }
        f.write_str(rest)
    }
}

/// Whether a terminal or a reader is misled by a character: controls, ends of lines and paragraphs, marks and overrides of
/// the direction of writing, and what is not seen at all.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The identity of one acquisition: 128 random bits, known to the client before anything is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimId(u128);

impl ClaimId {
    /// Wraps 128 bits that must be random.
    pub const fn new(bits: u128) -> ClaimId {
        ClaimId(bits)
    }

    /// Returns the bits.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClaimId {
    type Err = Error;

    fn from_str(text: &str) -> Result<ClaimId, Error> {
        u128::from_str_radix(text, 16).map(ClaimId).map_err(|source| {
            Error::new(ErrorKind::Invalid, "read a claim id", "it is not a hexadecimal number")
                .with_source(source)
        })
    }
}

/// The identity of one connected client, so that an engine knows which one to wake: 64 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(u64);

impl ClientId {
    /// Wraps 64 bits that must be random.
    pub const fn new(bits: u64) -> ClientId {
        ClientId(bits)
    }

    /// Returns the bits.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClientId {
    type Err = Error;

    fn from_str(text: &str) -> Result<ClientId, Error> {
        u64::from_str_radix(text, 16).map(ClientId).map_err(|source| {
            Error::new(ErrorKind::Invalid, "read a client id", "it is not a hexadecimal number")
                .with_source(source)
        })
    }
}

/// What sort of resource a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time. Capacity 1, weight 1.
    Mutex,
    /// Many readers (weight 1) or one writer (weight [`CAPACITY_MAX`]).
    RwLock,
    /// Holders of any weight up to the capacity.
    Semaphore,
    /// As many holders as slots; each grant names its slot.
    SlotPool,
}

impl Kind {
    /// Returns the glossary's word for the kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::RwLock => "read-write lock",
            Kind::Semaphore => "semaphore",
            Kind::SlotPool => "slot pool",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A label of a holder, for operators: `host/pid/program`, then a space and a free text if there is one.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Label(Arc<str>);

impl Label {
    /// Makes a label. What is too long is cut at a character, since a label only informs.
    pub fn new(host: &str, pid: u32, program: &str, text: &str) -> Label {
        let tidy = |part: &str| part.replace(|c: char| c.is_whitespace() || c.is_control() || c == '/', "_");
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut label = format!("{}/{pid}/{} {}", tidy(host), tidy(program), text.trim());
        let mut end = label.trim_end().len().min(LABEL_BYTES_MAX);
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        label.truncate(end);
        Label(label.into())
    }

    /// Reads a label as a store gave it back; any text will do.
    pub fn from_stored(text: &str) -> Label {
        Label(text.into())
    }

    /// Returns this label with another free text.
    pub fn with_text(&self, text: &str) -> Label {
        Label::new(self.host(), self.pid(), self.program(), text)
    }

    /// Returns the whole label as it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the host.
    pub fn host(&self) -> &str {
        self.place().split('/').next().unwrap_or_default()
    }

    /// Returns the process id, 0 if it is not known.
    pub fn pid(&self) -> u32 {
        self.place().split('/').nth(1).and_then(|pid| pid.parse().ok()).unwrap_or(0)
    }

    /// Returns the program's name.
    pub fn program(&self) -> &str {
        self.place().split('/').nth(2).unwrap_or_default()
    }

    /// Returns the free text, empty if there is none.
    pub fn text(&self) -> &str {
        self.0.split_once(' ').map(|(_, text)| text).unwrap_or_default()
    }

    fn place(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }
}

impl fmt::Display for Label {
    /// Writes `program (pid 17 on host): text`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid() == 0 {
            return fmt::Display::fmt(&Printable(&self.0), f);
        }
        let (program, host, text) = (Printable(self.program()), Printable(self.host()), self.text());
        write!(f, "{program} (pid {} on {host})", self.pid())?;
        if !text.is_empty() {
            write!(f, ": {}", Printable(text))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The limits of a hold beside its ttl. Each is off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldLimits {
    /// After this long the hold ends, renewed or not.
    pub max_hold: Option<Duration>,
    /// The units rest until this long after the grant, even if they are released sooner.
    pub min_hold: Duration,
    /// The units rest this long after the end of a hold whose holder vanished.
    pub lock_delay: Duration,
}

/// All of a claim that does not change from one acquisition to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What the resource is.
    pub kind: Kind,
    /// How many units it has.
    pub capacity: u32,
    /// How many of them are claimed.
    pub weight: u32,
    /// How long a hold lives without renewal.
    pub ttl: Duration,
    /// The other limits of the hold.
    pub limits: HoldLimits,
    /// The label of the client.
    pub label: Label,
    /// Answer with the published value, if it is fresh, in place of a grant.
    pub unless_fresh: bool,
}

impl Terms {
    /// The terms of a mutex with the default settings.
    pub fn of_mutex(label: Label) -> Terms {
        Terms {
            kind: Kind::Mutex,
            capacity: 1,
            weight: 1,
            ttl: TTL_DEFAULT,
            limits: HoldLimits::default(),
            label,
            unless_fresh: false,
        }
    }

    /// Checks every number against its limit.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] that names the setting, its value and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        let invalid = |message: String, hint: String| {
            Err(Error::new(ErrorKind::Invalid, "claim", message).with_hint(hint))
        };
        if self.ttl < TTL_MIN || self.ttl > TTL_MAX {
            return invalid(
                format!("a ttl of {} is out of range", Period(self.ttl)),
                format!("a ttl is {TTL_MIN:?} to 24h; the default is 30s"),
            );
        }
        if self.capacity == 0 || self.capacity > CAPACITY_MAX {
            return invalid(
                format!("a capacity of {} is out of range", self.capacity),
                format!("a capacity is 1 to {CAPACITY_MAX}"),
            );
        }
        let is_of_kind = match self.kind {
            Kind::Mutex => self.capacity == 1,
            Kind::RwLock => self.capacity == CAPACITY_MAX && [1, CAPACITY_MAX].contains(&self.weight),
            Kind::SlotPool => self.weight <= 1,
            Kind::Semaphore => true,
        };
        if !is_of_kind {
            return invalid(
                format!("a {} has no weight {} of {}", self.kind, self.weight, self.capacity),
                "a mutex has one unit, a reader weighs 1, a writer everything, a slot 1".to_owned(),
            );
        }
        if self.weight == 0 || self.weight > self.capacity {
            return invalid(
                format!("a weight of {} does not fit a capacity of {}", self.weight, self.capacity),
                format!("a weight is 1 to the capacity, {}", self.capacity),
            );
        }
        let HoldLimits { max_hold, min_hold, lock_delay } = self.limits;
        if max_hold.is_some_and(|max_hold| max_hold < TTL_MIN) {
            return invalid(
                format!("a max_hold of {:?} is too short", max_hold.unwrap_or_default()),
                format!("the shortest is {TTL_MIN:?}"),
            );
        }
        for (what, period) in
            [("max_hold", max_hold.unwrap_or_default()), ("min_hold", min_hold), ("lock_delay", lock_delay)]
        {
            if period > PERIOD_MAX {
                return invalid(
                    format!("a {what} of {} is out of range", Period(period)),
                    "the longest is ten years".to_owned(),
                );
            }
        }
        Ok(())
    }
}

/// One request for `weight` units of a resource.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The resource.
    pub resource: Name,
    /// The claim's own id.
    pub id: ClaimId,
    /// The client that asks and will be woken.
    pub client: ClientId,
    /// What is asked for.
    pub terms: Arc<Terms>,
    /// Queue if it cannot be granted at once.
    pub wait: bool,
    /// The largest token that the client has seen for this resource.
    pub floor: Token,
    /// Take the floor even if it lies far ahead of the store's clock (an operator's override).
    pub floor_forced: bool,
    /// Its id is not this client's own, but was given by a user: another client may have made the claim before.
    pub may_be_known: bool,
}

/// An engine's yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The fencing token.
    pub token: Token,
    /// The slot, for a slot pool.
    pub slot: Option<u32>,
    /// How long the hold lives, counted from when the engine answered.
    pub ends_in: Duration,
}

/// The answer to a claim that waits in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its place, 1 for the head; an upper bound beyond [`crate::model::record::POSITION_EXACT_MAX`].
    pub position: u32,
    /// The largest token that the resource had given when this was answered, or a larger number. The claim's own token lies beyond.
    pub horizon: Token,
    /// For the head of the queue: when the next hold ends by itself, since an expiry makes no event.
    pub look_in: Option<Duration>,
}

/// The answer to a claim that was refused because others hold the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// The label of the oldest holder; if its units only rest, of the hold they belonged to.
    pub holder: Option<Label>,
    /// The token of that hold; [`Token::ZERO`] if it is not known.
    pub token: Token,
    /// How long that hold has lasted.
    pub held_for: Duration,
    /// When the units of the hold that ends first come free if it is neither renewed nor released.
    pub free_in: Option<Duration>,
    /// Whether the units only rest, without a holder.
    pub is_resting: bool,
    /// The largest token that the resource has given.
    pub last_token: Token,
    /// How many claims wait.
    pub waiting: u32,
}

impl Busy {
    /// An answer that says nothing but that the resource is busy; fill in what is known.
    pub fn new(last_token: Token, waiting: u32) -> Busy {
        Busy {
            holder: None,
            token: Token::ZERO,
            held_for: Duration::ZERO,
            free_in: None,
            is_resting: false,
            last_token,
            waiting,
        }
    }
}

/// Bytes that the holder published on the resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The bytes.
    pub bytes: Arc<[u8]>,
    /// The token under which they were published.
    pub token: Token,
    /// How much longer they are fresh; zero if they are not.
    pub fresh_for: Duration,
}

/// A duration as people write one: `25h`, and not `90000s`.
pub(crate) struct Period(pub(crate) Duration);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            _ if self.0.subsec_nanos() > 0 => write!(f, "{:?}", self.0),
            0 => f.write_str("0s"),
            _ if seconds.is_multiple_of(3600) => write!(f, "{}h", seconds / 3600),
            _ if seconds.is_multiple_of(60) => write!(f, "{}m", seconds / 60),
            _ => write!(f, "{seconds}s"),
        }
    }
}

/// How long a published value lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As long as the hold under which it was published.
    WhileHeld,
    /// It outlives the hold: fresh for a while, and then stale for another. With no time for either, what was kept before is gone from
    /// everywhere, and nothing takes its place.
    For {
        /// How long it counts as fresh.
        fresh: Duration,
        /// How long it is kept after that.
        stale: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_steer_a_terminal_is_not_written_to_it() {
        let name = Name::new("pay\u{202e}lor\u{200b}").expect("a name");
        assert_eq!(name.to_string(), "pay\\u{202e}lor\\u{200b}");
        assert_eq!(name.as_str().chars().count(), 8, "the name itself is as it was");
        for (stored, shown) in [
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("h\u{1b}/17/p\u{9b}2J te\u{2066}xt", "p\\u{9b}2J (pid 17 on h\\u{1b}): te\\u{2066}xt"),
            ("host/1/tenure größer 東京 e\u{301}", "tenure (pid 1 on host): größer 東京 e\u{301}"),
        ] {
            assert_eq!(Label::from_stored(stored).to_string(), shown);
        }
    }
}
