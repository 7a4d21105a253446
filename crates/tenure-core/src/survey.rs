//! What a store holds, of all processes: one look at everything, for whoever watches.
//!
//! A client counts what happens to itself. What is held and waited for altogether is in the store alone, and asking for it costs the
//! store something, the more the more there is. So a survey is taken only when somebody wants one; one that is
//! young is handed to all who ask; and after each the store rests for 20 times as long as it took, 2 s at least. It looks at 50,000
//! names at most, and says so if there are more.
//!
//! Rejected: a survey in the background, which goes on when nobody looks; and counting in the store, which each claim would pay for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::client::scopes::{Scopes, fits};
use crate::clock::{Clock, Instant};
use crate::counts::{Primitive, Scope};
use crate::engine::queue::{ItemState, QueueStats, Which};
use crate::error::{ErrorKind, Result};
use crate::face::tenure::Tenure;
use crate::model::claim::{Kind, Name};
use crate::model::inspect::{Change, View, changes};

/// The most names that a survey looks at. Their views take some 50 MB.
pub const NAMES_MAX: usize = 50_000;
/// How long after a survey the next one may begin, at least.
const REST_MIN: Duration = Duration::from_secs(2);
/// How many times as long as a survey took the store then has its rest: surveys take 5 % of the time at most.
const REST_TIMES: u32 = 20;
/// How long after a survey that failed the next one may begin, at most: what took long was to wait for an answer.
const REST_MAX_FAILED: Duration = Duration::from_secs(5);
/// How many items of a queue are looked at in one call. They come with their payloads, so they are few.
const ITEMS_PAGE: usize = 16;
/// How many items of a queue are looked at for the first that waits: more may be in flight before it.
const ITEMS_MAX: usize = 512;

/// Takes surveys, as often as it may.
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// use tenure_core::survey::Surveyor;
///
/// # let tenure = tenure_core::memory::connect("survey-example").await?;
/// # let _held = tenure.mutex("billing/4711").acquire().await?;
/// let surveyor = Surveyor::new(&tenure);
/// let survey = surveyor.latest().await?;
/// let counts = surveyor.count(&survey, &[]);
/// let billing = counts.scopes.iter().find(|scope| &*scope.label == "billing/*");
/// assert_eq!(billing.map(|scope| (scope.holds, scope.waiting)), Some((1, 0)));
/// # Ok(()) }) }
/// ```
pub struct Surveyor {
    tenure: Tenure,
    prefix: String,
    last: tokio::sync::Mutex<Last>,
    scopes: Mutex<Labels>,
}

/// The last survey, and when there may be another.
#[derive(Default)]
struct Last {
    survey: Option<Result<Arc<Survey>>>,
    next_at: Instant,
}

/// What a store holds, as it was when somebody looked. The store went on meanwhile: it is no snapshot of one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// What is held, rests or is waited for, by name; of a name that cannot be read, why.
    pub locks: Vec<(Name, Result<View>)>,
    /// The queues that have something, by name.
    pub queues: Vec<SurveyedQueue>,
    /// Whether that is all. If not, there are more than [`NAMES_MAX`] names, and which of them were looked at is the engine's choice.
    pub is_whole: bool,
    /// How long it took.
    pub took: Duration,
    /// When it was over.
    pub at: Instant,
}

/// A queue in a survey.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SurveyedQueue {
    /// Its name.
    pub name: Name,
    /// How much is in it, or why it cannot be read.
    pub stats: Result<QueueStats>,
    /// How long ago the first item was pushed that waits. `None`: none does, or more than 512 items in flight come before it.
    pub oldest_waiting: Option<Duration>,
    /// The same of what is in flight.
    pub oldest_in_flight: Option<Duration>,
    /// The same of dead letters.
    pub oldest_dead: Option<Duration>,
}

/// What has changed from one survey to a later one.
///
/// No example: [`Surveyor`] has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// How much later that was.
    pub over: Duration,
    /// How many names have come.
    pub appeared: usize,
    /// How many names have gone.
    pub vanished: usize,
    /// How many grants have been made at least: of those that ended before the later survey nothing is seen.
    pub grants: u64,
    /// How many more claims wait; negative: fewer.
    pub waiting: i64,
    /// How many more items wait or are in flight; negative: fewer.
    pub items: i64,
}

/// A survey in numbers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreCounts {
    /// The engine's one word.
    pub engine: &'static str,
    /// How many names were looked at.
    pub names: usize,
    /// Whether these are all.
    pub is_whole: bool,
    /// How many of them cannot be read.
    pub unreadable: usize,
    /// How long the survey took.
    pub took: Duration,
    /// When it was over.
    pub at: Instant,
    /// What is locked, by scope.
    pub scopes: Vec<ScopeInStore>,
    /// What is in line, by scope.
    pub queues: Vec<QueueInStore>,
}

/// What is held under names that are alike.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScopeInStore {
    /// What the store knows it as: an election and a single-flight are mutexes there.
    pub primitive: Primitive,
    /// A pattern that the names fit, as in [`Scope`].
    pub label: Arc<str>,
    /// How many holds there are, of each name 1,024 at most.
    pub holds: u64,
    /// How many grants rest: nobody holds them, and nobody can be granted their units.
    pub resting: u64,
    /// How many claims wait.
    pub waiting: u64,
    /// The age of the oldest hold.
    pub oldest_hold: Duration,
}

/// What is in queues whose names are alike.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueInStore {
    /// A pattern that the names fit.
    pub label: Arc<str>,
    /// How many items wait.
    pub waiting: u64,
    /// How many are with a consumer.
    pub in_flight: u64,
    /// How many dead letters there are.
    pub dead: u64,
    /// How long ago the first item was pushed that waits; zero if none does, `None` if it is not known.
    pub oldest_waiting: Option<Duration>,
    /// The same of what is in flight.
    pub oldest_in_flight: Option<Duration>,
    /// The same of dead letters.
    pub oldest_dead: Option<Duration>,
}

/// Which names are counted together, the same way in each survey.
struct Labels {
    scopes: Scopes,
    begun: Vec<Arc<str>>,
}

impl fmt::Debug for Surveyor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surveyor").field("engine", &self.tenure.engine()).finish_non_exhaustive()
    }
}

/// A survey that is under way. However it ends, the store has its rest.
struct UnderWay<'a> {
    last: tokio::sync::MutexGuard<'a, Last>,
    clock: Arc<dyn Clock>,
    began: Instant,
    has_failed: bool,
}

impl UnderWay<'_> {
    fn took(&self) -> Duration {
        self.clock.now().since(self.began)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let rest = self.took().saturating_mul(REST_TIMES).max(REST_MIN);
        let rest = if self.has_failed { rest.min(REST_MAX_FAILED) } else { rest };
        self.last.next_at = self.clock.now() + rest;
    }
}

impl Surveyor {
    /// Surveys the store of a client, with the [scopes](crate::Settings::scopes) of its settings. Nothing is asked yet.
    pub fn new(tenure: &Tenure) -> Surveyor {
        let settings = &tenure.shared().settings;
        let scopes = Scopes::new(settings.scopes.clone(), settings.scopes_max);
        Surveyor {
            tenure: tenure.clone(),
            prefix: String::new(),
            last: tokio::sync::Mutex::default(),
            scopes: Mutex::new(Labels { scopes, begun: Vec::new() }),
        }
    }

    /// Looks only at the locks and queues whose names begin with `prefix` (default: empty, at all).
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Surveyor {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Returns a survey: a new one if there may be one, else the last one, or the error that came in its place. A caller that asks while one
    /// is under way waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time.
    ///
    /// # Cancel safety
    /// A survey whose future is dropped is given up, and the next one waits as if it had been whole.
    ///
    /// # Cost
    /// As [`Tenure::inspect`] and [`Tenure::queues`], and for each queue that has something a round trip or two.
    pub async fn latest(&self) -> Result<Arc<Survey>> {
        let last = self.last.lock().await;
        let clock = self.tenure.shared().clock.clone();
        if let Some(survey) = last.survey.as_ref().filter(|_| clock.now() < last.next_at) {
            return survey.clone();
        }
        let mut under_way = UnderWay { last, began: clock.now(), clock, has_failed: false };
        let survey = self.look().await;
        let (took, at) = (under_way.took(), under_way.clock.now());
        let survey = survey.map(|survey| Arc::new(Survey { took, at, ..survey }));
        under_way.has_failed = survey.is_err();
        under_way.last.survey = Some(survey.clone());
        survey
    }

    /// Looks at everything.
    async fn look(&self) -> Result<Survey> {
        // One more than are shown tells whether there are more.
        let mut lines = match self.tenure.queue_capability() {
            Some(_) => self.tenure.queues_some(&self.prefix, NAMES_MAX + 1).await?,
            None => Vec::new(),
        };
        let room = NAMES_MAX.saturating_sub(lines.len());
        let mut locks = self.tenure.inspect_some(&self.prefix, room + 1).await?;
        let is_whole = lines.len() <= NAMES_MAX && locks.len() <= room;
        lines.truncate(NAMES_MAX);
        locks.truncate(room);
        let mut queues = Vec::new();
        for (name, stats) in lines {
            queues.push(self.look_at_queue(name, stats).await?);
        }
        Ok(Survey { locks, queues, is_whole, took: Duration::ZERO, at: Instant::default() })
    }

    /// Looks for the first item in each state.
    async fn look_at_queue(&self, name: Name, stats: Result<QueueStats>) -> Result<SurveyedQueue> {
        let (oldest_waiting, oldest_in_flight, oldest_dead) = (None, None, None);
        let mut queue = SurveyedQueue { name, stats, oldest_waiting, oldest_in_flight, oldest_dead };
        let Ok(stats) = &queue.stats else { return Ok(queue) };
        let (waits, flies, is_dead) = (stats.waiting > 0, stats.in_flight > 0, stats.dead > 0);
        match self.ages(&mut queue, (waits, flies, is_dead)).await {
            // The store is away, and not this queue alone.
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            Err(error) => queue.stats = Err(error),
            Ok(()) => {}
        }
        Ok(queue)
    }

    async fn ages(
        &self,
        queue: &mut SurveyedQueue,
        (mut waits, mut flies, is_dead): (bool, bool, bool),
    ) -> Result<()> {
        let shared = &self.tenure.connection.shared;
        if is_dead {
            let name = queue.name.clone();
            let ask = shared.on_queues(&queue.name, move |queues| queues.items(name, Which::Dead, None, 1));
            queue.oldest_dead = ask.await?.first().map(|item| item.age);
        }
        let (mut after, mut looked_at) = (None, 0);
        while (waits || flies) && looked_at < ITEMS_MAX {
            let name = queue.name.clone();
            let ask = shared
                .on_queues(&queue.name, move |queues| queues.items(name, Which::Live, after, ITEMS_PAGE));
            let page = ask.await?;
            let Some(last) = page.last() else { break };
            (after, looked_at) = (Some(last.item), looked_at + page.len());
            for item in &page {
                let (wanted, oldest) = match item.state {
                    ItemState::InFlight { .. } => (&mut flies, &mut queue.oldest_in_flight),
                    _ => (&mut waits, &mut queue.oldest_waiting),
                };
                if std::mem::take(wanted) {
                    *oldest = Some(item.age);
                }
            }
        }
        Ok(())
    }

    /// Counts what a survey has seen, by scopes. What fits a pattern of `long_held` does not count as oldest: a leader, or the
    /// number of a worker, is held for as long as a program runs.
    pub fn count(&self, survey: &Survey, long_held: &[String]) -> StoreCounts {
        // A panic in it would leave it whole.
        let mut labels = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = StoreCounts {
            engine: self.tenure.engine(),
            names: survey.locks.len() + survey.queues.len(),
            is_whole: survey.is_whole,
            unreadable: 0,
            took: survey.took,
            at: survey.at,
            scopes: Vec::new(),
            queues: Vec::new(),
        };
        let mut places: HashMap<u16, usize> = HashMap::new();
        for (name, view) in &survey.locks {
            let Ok(view) = view else {
                counts.unreadable += 1;
                continue;
            };
            let (primitive, scopes) = (primitive(view.kind), &mut counts.scopes);
            let (index, label) = labels.of(primitive, name);
            let place = *places.entry(index).or_insert_with(|| {
                scopes.push(ScopeInStore::new(primitive, label));
                scopes.len() - 1
            });
            let is_long = long_held.iter().any(|pattern| fits(pattern, name.as_str()));
            scopes[place].add(view, is_long);
        }
        places.clear();
        for queue in &survey.queues {
            let Ok(stats) = &queue.stats else {
                counts.unreadable += 1;
                continue;
            };
            let (queues, (index, label)) = (&mut counts.queues, labels.of(Primitive::Queue, &queue.name));
            let place = *places.entry(index).or_insert_with(|| {
                queues.push(QueueInStore::new(label));
                queues.len() - 1
            });
            queues[place].add(queue, stats);
        }
        counts
    }
}

impl Labels {
    /// Returns the number of a scope, and its label.
    fn of(&mut self, primitive: Primitive, name: &Name) -> (u16, Arc<str>) {
        let begun = &mut self.begun;
        let index = self.scopes.scope(primitive, Some(name), |scope: Scope| begun.push(scope.label));
        (index, self.begun[usize::from(index)].clone())
    }
}

impl ScopeInStore {
    fn new(primitive: Primitive, label: Arc<str>) -> ScopeInStore {
        ScopeInStore { primitive, label, holds: 0, resting: 0, waiting: 0, oldest_hold: Duration::ZERO }
    }

    fn add(&mut self, view: &View, is_long: bool) {
        self.waiting += u64::from(view.waiting);
        for hold in &view.holds {
            if hold.claim.is_none() {
                self.resting += 1;
                continue;
            }
            self.holds += 1;
            if !is_long {
                self.oldest_hold = self.oldest_hold.max(hold.held_for);
            }
        }
    }
}

impl QueueInStore {
    fn new(label: Arc<str>) -> QueueInStore {
        let none = Some(Duration::ZERO);
        QueueInStore {
            label,
            waiting: 0,
            in_flight: 0,
            dead: 0,
            oldest_waiting: none,
            oldest_in_flight: none,
            oldest_dead: none,
        }
    }

    fn add(&mut self, queue: &SurveyedQueue, stats: &QueueStats) {
        self.waiting += stats.waiting;
        self.in_flight += stats.in_flight;
        self.dead += stats.dead;
        // What is not known of one of them is not known of all.
        let fold = |oldest: &mut Option<Duration>, count: u64, age: Option<Duration>| {
            let age = if count == 0 { Some(Duration::ZERO) } else { age };
            *oldest = oldest.zip(age).map(|(oldest, age)| oldest.max(age));
        };
        fold(&mut self.oldest_waiting, stats.waiting, queue.oldest_waiting);
        fold(&mut self.oldest_in_flight, stats.in_flight, queue.oldest_in_flight);
        fold(&mut self.oldest_dead, stats.dead, queue.oldest_dead);
    }
}

impl Survey {
    /// Tells what has changed since an earlier survey.
    pub fn since(&self, before: &Survey) -> Changes {
        let names = |survey: &Survey| -> HashMap<Name, Option<View>> {
            let readable = |(name, view): &(Name, Result<View>)| (name.clone(), view.clone().ok());
            survey.locks.iter().map(readable).collect()
        };
        let (earlier, later) = (names(before), names(self));
        let is_new = |(name, _): &(&Name, &Option<View>)| !earlier.contains_key(*name);
        let grants = |(name, view): (&Name, &Option<View>)| {
            let had = earlier.get(name).and_then(Option::as_ref).map(|view| view.last_token);
            let holds = view.iter().flat_map(|view| &view.holds);
            holds.filter(|hold| had.is_none_or(|had| hold.token > had)).count() as u64
        };
        let waiting = |views: &HashMap<Name, Option<View>>| -> i64 {
            views.values().flatten().map(|view| i64::from(view.waiting)).sum()
        };
        let items = |survey: &Survey| -> u64 {
            let stats = survey.queues.iter().filter_map(|queue| queue.stats.as_ref().ok());
            stats.map(|stats| stats.waiting + stats.in_flight).sum()
        };
        let appeared = later.iter().filter(is_new).count();
        Changes {
            over: self.at.since(before.at),
            appeared,
            vanished: earlier.len() - (later.len() - appeared),
            grants: later.iter().map(grants).sum(),
            waiting: waiting(&later) - waiting(&earlier),
            items: items(self) as i64 - items(before) as i64,
        }
    }
}

impl Survey {
    /// Tells what has happened to each name since an earlier survey, by name. Of a name that could not be read then or cannot be now, and of
    /// one that a survey which is not whole has left out, nothing is known.
    pub fn changes<'a>(&'a self, before: &'a Survey) -> Vec<(&'a Name, Vec<Change<'a>>)> {
        let names = |survey: &'a Survey| -> BTreeMap<&'a Name, Option<&'a View>> {
            survey.locks.iter().map(|(name, view)| (name, view.as_ref().ok())).collect()
        };
        let (old, new) = (names(before), names(self));
        // `None`: it is not known how it was. `Some(None)`: it was idle.
        let look = |names: &BTreeMap<&'a Name, Option<&'a View>>, is_whole: bool, name: &Name| match names
            .get(name)
        {
            Some(view) => view.map(Some),
            None => is_whole.then_some(None),
        };
        let gone = old.keys().filter(|name| !new.contains_key(*name));
        let all: BTreeSet<&Name> = new.keys().chain(gone).copied().collect();
        let changes = all.into_iter().filter_map(|name| {
            let one = look(&old, before.is_whole, name)?;
            let changes = changes(one, look(&new, self.is_whole, name)?);
            (!changes.is_empty()).then_some((name, changes))
        });
        changes.collect()
    }
}

impl Changes {
    /// Returns how often a second something happened that happened so often; zero if no time has passed.
    pub fn rate(&self, count: u64) -> f64 {
        let seconds = self.over.as_secs_f64();
        if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
    }
}

/// What a kind is called where it is counted.
fn primitive(kind: Kind) -> Primitive {
    match kind {
        Kind::Mutex => Primitive::Mutex,
        Kind::RwLock => Primitive::RwLock,
        Kind::Semaphore => Primitive::Semaphore,
        Kind::SlotPool => Primitive::SlotPool,
    }
}
