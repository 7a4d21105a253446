//! The differences of surveys: one survey for all streams, and what changed is written once for all of them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tenure_core::Name;
use tenure_core::engine::queue::QueueStats;
use tenure_core::survey::{Survey, Surveyor};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::access::Caller;
use crate::access::rules::{Rules, Verb};
use crate::events::frame::{away, push, push_changes};
use crate::pause::pause;

/// How often it asks for a survey. How often there is one, the surveyor decides: each 2 s at most. Asking for one that is there costs
/// next to nothing, and a change is told so much later.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A survey in which something has changed.
struct Changed {
    /// One more than that of the one before.
    number: u64,
    survey: Arc<Survey>,
    /// What has happened since the one before.
    frames: Vec<(Name, Bytes)>,
    /// Totals, by prefix and by who may read: many streams want the same ones.
    totals: Mutex<HashMap<(String, Option<Rules>), Value>>,
}

#[derive(Clone)]
enum Seen {
    NotYet,
    Survey(Arc<Changed>),
    Away(Arc<str>),
}

pub(crate) struct Surveys {
    surveyor: Arc<Surveyor>,
    runtime: Handle,
    seen: watch::Sender<Seen>,
    is_looking: Mutex<bool>,
}

impl fmt::Debug for Surveys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surveys").field("streams", &self.seen.receiver_count()).finish_non_exhaustive()
    }
}

impl Surveys {
    pub(crate) fn new(surveyor: Arc<Surveyor>, runtime: Handle) -> Surveys {
        Surveys { surveyor, runtime, seen: watch::Sender::new(Seen::NotYet), is_looking: Mutex::new(false) }
    }

    /// Follows the names that begin with a prefix and that the caller may read.
    pub(crate) fn follow(self: &Arc<Surveys>, prefix: &str, caller: &Caller) -> OfPrefix {
        let mut is_looking = self.is_looking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = self.seen.subscribe();
        if !std::mem::replace(&mut *is_looking, true) {
            // What was seen when somebody last wanted it is old.
            self.seen.send_replace(Seen::NotYet);
            self.runtime.spawn(self.clone().run());
        }
        seen.mark_changed();
        OfPrefix {
            prefix: prefix.to_owned(),
            caller: caller.clone(),
            seen,
            before: None,
            totals: Value::Null,
        }
    }

    /// Looks while anybody wants it.
    async fn run(self: Arc<Surveys>) {
        let mut last: Option<Arc<Changed>> = None;
        let mut is_away = false;
        loop {
            match self.surveyor.latest().await {
                Ok(survey) => {
                    let changed = Changed::since(last.as_deref(), survey);
                    if changed.is_some() || is_away {
                        last = changed.map(Arc::new).or(last);
                        if let Some(last) = &last {
                            self.seen.send_replace(Seen::Survey(last.clone()));
                        }
                    }
                    is_away = false;
                }
                Err(_) if is_away => {}
                Err(error) => {
                    is_away = true;
                    self.seen.send_replace(Seen::Away(error.to_string().into()));
                }
            }
            tokio::select! {
                biased;
                () = self.seen.closed() => {
                    let mut is_looking = self.is_looking.lock().unwrap_or_else(PoisonError::into_inner);
                    // Somebody may have come meanwhile.
                    if self.seen.receiver_count() == 0 {
                        *is_looking = false;
                        return;
                    }
                }
                () = pause(LOOK_EVERY) => {}
            }
        }
    }
}

impl Changed {
    /// Writes what has happened. `None`: nothing.
    fn since(before: Option<&Changed>, survey: Arc<Survey>) -> Option<Changed> {
        let frames = match before {
            None => Vec::new(),
            Some(before) => {
                let frames = differences(&before.survey, &survey);
                if frames.is_empty() && before.survey.is_whole == survey.is_whole {
                    return None;
                }
                frames
            }
        };
        let number = before.map_or(0, |before| before.number) + 1;
        Some(Changed { number, survey, frames, totals: Mutex::default() })
    }

    /// What there is under a prefix, of what the caller may read.
    fn totals(&self, prefix: &str, caller: &Caller) -> Value {
        let key = (prefix.to_owned(), caller.rules().cloned());
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.entry(key).or_insert_with(|| sum(&self.survey, prefix, caller)).clone()
    }
}

/// What has changed from one survey to another, by name: of locks, then of queues.
fn differences(before: &Survey, after: &Survey) -> Vec<(Name, Bytes)> {
    let mut differences = Vec::new();
    for (name, changes) in after.changes(before) {
        let mut frames = Vec::new();
        push_changes(&mut frames, name.as_str(), &changes);
        differences.push((name.clone(), frames.into()));
    }
    let queues = |survey: &Survey| -> BTreeMap<Name, Option<QueueStats>> {
        survey.queues.iter().map(|queue| (queue.name.clone(), queue.stats.clone().ok())).collect()
    };
    let (old, mut new) = (queues(before), queues(after));
    for name in old.keys().filter(|_| after.is_whole) {
        // A queue that has nothing is not in a survey.
        new.entry(name.clone()).or_insert_with(|| Some(QueueStats::default()));
    }
    for (name, stats) in new {
        let Some(stats) = stats else { continue };
        if old.get(&name).is_some_and(|old| old.as_ref().is_none_or(|old| *old == stats)) {
            continue;
        }
        let mut frames = Vec::new();
        let QueueStats { waiting, in_flight, dead, .. } = stats;
        let data = json!({"event": "queue", "queue": name.as_str(), "waiting": waiting, "in_flight": in_flight, "dead": dead});
        push(&mut frames, "queue", &data);
        differences.push((name, frames.into()));
    }
    differences
}

fn is_asked(name: &Name, prefix: &str, caller: &Caller) -> bool {
    name.as_str().starts_with(prefix) && caller.allows(Verb::Read, name)
}

fn sum(survey: &Survey, prefix: &str, caller: &Caller) -> Value {
    let (mut names, mut held, mut resting, mut waiting) = (0_u64, 0_u64, 0_u64, 0_u64);
    for (_, view) in survey.locks.iter().filter(|(name, _)| is_asked(name, prefix, caller)) {
        names += 1;
        let Ok(view) = view else { continue };
        let rests = view.holds.iter().filter(|hold| hold.claim.is_none()).count() as u64;
        held += view.holds.len() as u64 - rests;
        resting += rests;
        waiting += u64::from(view.waiting);
    }
    let mut queues = 0_u64;
    let mut items = QueueStats::default();
    for queue in survey.queues.iter().filter(|queue| is_asked(&queue.name, prefix, caller)) {
        queues += 1;
        let Ok(stats) = &queue.stats else { continue };
        items.waiting += stats.waiting;
        items.in_flight += stats.in_flight;
        items.dead += stats.dead;
    }
    json!({
        "event": "totals",
        "names": names,
        "held": held,
        "resting": resting,
        "waiting": waiting,
        "queues": queues,
        "items": {"waiting": items.waiting, "in_flight": items.in_flight, "dead": items.dead},
        "is_whole": survey.is_whole,
    })
}

/// One stream's place in what happens to many names.
pub(crate) struct OfPrefix {
    prefix: String,
    caller: Caller,
    seen: watch::Receiver<Seen>,
    before: Option<Arc<Changed>>,
    /// What it was told last.
    totals: Value,
}

impl OfPrefix {
    /// Waits for events. Nothing is lost by dropping it.
    pub(crate) async fn next(&mut self) -> Bytes {
        loop {
            if self.seen.changed().await.is_err() {
                // The surveys live as long as the server.
                return std::future::pending().await;
            }
            let seen = self.seen.borrow_and_update().clone();
            let now = match seen {
                Seen::NotYet => continue,
                Seen::Away(detail) => return away(&detail),
                Seen::Survey(now) => now,
            };
            let frames = self.tell(&now);
            self.before = Some(now);
            if !frames.is_empty() {
                return frames.into();
            }
        }
    }

    fn tell(&mut self, now: &Changed) -> Vec<u8> {
        let behind;
        let differences = match &self.before {
            // The lists say how it was before.
            None => &[][..],
            Some(before) if before.number == now.number => &[],
            Some(before) if before.number + 1 == now.number => &now.frames,
            Some(before) => {
                behind = differences(&before.survey, &now.survey);
                &behind
            }
        };
        let mut frames = Vec::new();
        for (name, written) in differences {
            if is_asked(name, &self.prefix, &self.caller) {
                frames.extend_from_slice(written);
            }
        }
        let totals = now.totals(&self.prefix, &self.caller);
        if totals != self.totals {
            push(&mut frames, "totals", &totals);
            self.totals = totals;
        }
        frames
    }
}
