//! Counts what a client tells, and compares that with what it has counted itself: to the unit, and times to the nanosecond.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::counts::{
    CallEnd, ClaimEnd, DeliveryEnd, FoundIn, Histogram, LearnedBy, Loss, Primitive, PushEnd, ReleaseEnd,
    Renewal, Verb,
};
use tenure_core::{Counts, Event, Happened, Listener, Name, Token};

/// The numbers of one client, by what they are of. Those that are zero are left out.
type Numbers = BTreeMap<String, u64>;

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Tally(Mutex<Heard>);

#[derive(Default)]
struct Heard {
    events: u64,
    numbers: Numbers,
    /// Sums of times, in nanoseconds.
    sums: HashMap<String, u128>,
    /// What users have been given and have not lost or let go of.
    had: HashSet<(Name, Token)>,
}

impl Listener for Tally {
    fn on_event(&self, happened: &Happened) {
        self.heard().hear(happened);
    }
}

impl Heard {
    fn count(&mut self, what: String) {
        *self.numbers.entry(what).or_default() += 1;
    }

    fn add_time(&mut self, what: String, time: Duration) {
        *self.sums.entry(what.clone()).or_default() += time.as_nanos();
        self.count(what);
    }

    fn hear(&mut self, happened: &Happened) {
        self.events += 1;
        let scope = happened
            .scope
            .as_ref()
            .map_or(String::new(), |scope| format!("{} {}", scope.primitive.as_str(), scope.label));
        let of = |what: &str, word: &str| format!("{scope} {what} {word}");
        let is_queue = happened.scope.as_ref().is_some_and(|scope| scope.primitive == Primitive::Queue);
        match &happened.event {
            Event::Granted { resource, token, waited } => {
                self.count(of("claims", ClaimEnd::Granted.as_str()));
                self.add_time(of("wait", ""), *waited);
                self.had.insert((resource.clone(), *token));
            }
            Event::ClaimEnded { outcome, .. } => self.count(of("claims", outcome.as_str())),
            Event::Released { resource, token, outcome, held } => {
                self.count(format!("releases {}", outcome.as_str()));
                if self.had.remove(&(resource.clone(), *token)) {
                    self.add_time(of("hold", ""), *held);
                }
            }
            Event::Detached { resource, token, held } => {
                self.had.remove(&(resource.clone(), *token));
                self.count(of("detached", ""));
                self.add_time(of("hold", ""), *held);
            }
            Event::Attached { resource, token } => {
                self.had.insert((resource.clone(), *token));
                self.count(of("attached", ""));
            }
            Event::ReleaseFailed { resource, token } => {
                self.count(format!("releases {}", ReleaseEnd::GivenUp.as_str()));
                if self.had.remove(&(resource.clone(), *token)) {
                    // How long it was held is not told.
                    self.count(of("hold", ""));
                    self.sums.remove(&of("hold", ""));
                    self.count(of("hold without a time", ""));
                }
            }
            Event::Lost { resource, token, reason, held, noticed_after } => {
                if is_queue && !held.is_zero() {
                    self.count(of("deliveries", DeliveryEnd::Lost.as_str()));
                    self.add_time(of("hold", ""), *held);
                } else if self.had.remove(&(resource.clone(), *token)) {
                    self.count(of("lost", Loss::of(*reason, *noticed_after).as_str()));
                    self.add_time(of("hold", ""), *held);
                }
            }
            Event::Renewed { .. } => self.count(format!("renewals {}", Renewal::Kept.as_str())),
            Event::RenewalRefused { .. } => self.count(format!("renewals {}", Renewal::Refused.as_str())),
            Event::Repeated { verb: Verb::Renew, .. } => {
                self.count(format!("renewals {}", Renewal::Repeated.as_str()));
            }
            Event::HandedOver { by, .. } => self.count(format!("learned by {}", by.as_str())),
            Event::PlaceLost { .. } => self.count(of("places lost", "")),
            Event::StoreForgot => self.count("the store forgot".to_owned()),
            Event::TokenAhead { .. } => self.count("tokens ahead".to_owned()),
            Event::Late { by } => self.add_time("late".to_owned(), *by),
            event => self.hear_more(event, &of),
        }
    }

    /// The rest of [`Heard::hear`].
    fn hear_more(&mut self, event: &Event, of: &dyn Fn(&str, &str) -> String) {
        match event {
            Event::Called { verb, items, took, outcome } => {
                self.count(format!("{} {}", verb.as_str(), outcome.as_str()));
                self.add_time(format!("{} took", verb.as_str()), *took);
                *self.numbers.entry(format!("{} items", verb.as_str())).or_default() += *items as u64;
            }
            Event::Found { source, load, .. } => {
                self.count(of("found", source.as_str()));
                if let Some(load) = load {
                    self.add_time(of("load", ""), *load);
                }
            }
            Event::Pushed { outcome, .. } => self.count(of("pushes", outcome.as_str())),
            Event::Delivered { attempt: 1, age, .. } => self.add_time(of("delay", ""), *age),
            Event::Settled { outcome, took, .. } => {
                self.count(of("deliveries", outcome.as_str()));
                self.add_time(of("hold", ""), *took);
            }
            _ => {}
        }
    }
}

/// What a client has counted, under the same names.
#[derive(Default)]
struct Counted {
    numbers: Numbers,
    sums: HashMap<String, f64>,
}

impl Counted {
    fn add(&mut self, what: String, count: u64) {
        if count > 0 {
            *self.numbers.entry(what).or_default() += count;
        }
    }

    fn words(&mut self, what: &str, words: impl Iterator<Item = &'static str>, counts: &[u64]) {
        words.zip(counts).for_each(|(word, count)| self.add(format!("{what} {word}"), *count));
    }

    fn histogram(&mut self, what: String, histogram: &Histogram) {
        self.sums.insert(what.clone(), histogram.sum());
        self.add(what, histogram.count());
    }

    fn of(counts: &Counts) -> Counted {
        let mut counted = Counted::default();
        for scope in &counts.scopes {
            let of = |what: &str| format!("{} {} {what}", scope.scope.primitive.as_str(), scope.scope.label);
            counted.words(&of("claims"), ClaimEnd::ALL.iter().map(|end| end.as_str()), &scope.claims);
            counted.words(&of("lost"), Loss::ALL.iter().map(|loss| loss.as_str()), &scope.lost);
            counted.words(&of("found"), FoundIn::ALL.iter().map(|found| found.as_str()), &scope.found);
            counted.words(&of("pushes"), PushEnd::ALL.iter().map(|end| end.as_str()), &scope.pushes);
            let ends = DeliveryEnd::ALL.iter().map(|end| end.as_str());
            counted.words(&of("deliveries"), ends, &scope.deliveries);
            counted.add(of("places lost "), scope.places_lost);
            counted.add(of("detached "), scope.detached);
            counted.add(of("attached "), scope.attached);
            counted.histogram(of("wait "), &scope.wait);
            counted.histogram(of("hold "), &scope.hold);
            counted.histogram(of("load "), &scope.load);
            counted.histogram(of("delay "), &scope.delay);
        }
        counted.words("releases", ReleaseEnd::ALL.iter().map(|end| end.as_str()), &counts.releases);
        counted.words("renewals", Renewal::ALL.iter().map(|end| end.as_str()), &counts.renewals);
        counted.words("learned by", LearnedBy::ALL.iter().map(|by| by.as_str()), &counts.learned_by);
        for (verb, calls) in Verb::ALL.iter().zip(&counts.calls) {
            let verb = verb.as_str();
            counted.words(verb, CallEnd::ALL.iter().map(|end| end.as_str()), &calls.ended);
            counted.histogram(format!("{verb} took"), &calls.took);
            counted.add(format!("{verb} items"), calls.items.sum() as u64);
        }
        counted.add("the store forgot".to_owned(), counts.store_forgot);
        counted.add("tokens ahead".to_owned(), counts.tokens_ahead);
        counted.histogram("late".to_owned(), &counts.late);
        counted
    }
}

impl Tally {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares what was told with what was counted, and returns how many events that were. `is_over`: all that was begun has ended.
    ///
    /// # Panics
    /// If they differ.
    pub(crate) fn compare(&self, counts: &Counts, is_over: bool) -> u64 {
        let heard = self.heard();
        let mut counted = Counted::of(counts);
        let mut told = heard.numbers.clone();
        told.retain(|what, _| !what.contains("without a time"));
        if !is_over {
            // What its user has let go of is counted then, and told when the store has answered.
            told.retain(|what, _| !what.ends_with(" hold "));
            counted.numbers.retain(|what, _| !what.ends_with(" hold "));
        }
        assert_eq!(told, counted.numbers, "told and counted");
        for (what, nanos) in &heard.sums {
            let is_known = is_over || !what.ends_with(" hold ");
            if is_known && !heard.numbers.contains_key(&what.replace("hold", "hold without a time"))
                || !what.ends_with(" hold ")
            {
                assert_eq!(Some(&(*nanos as f64 / 1e9)), counted.sums.get(what), "seconds of {what:?}");
            }
        }
        let (leases, waiting) = counts
            .scopes
            .iter()
            .fold((0, 0), |(leases, waiting), scope| (leases + scope.leases, waiting + scope.waiting));
        assert!(!is_over || (leases, waiting) == (0, 0), "{leases} leases and {waiting} waiters are left");
        assert_eq!(counts.events_dropped, 0);
        heard.events
    }
}
