//! What must not be: `held>1h`, `waiting>100`, `dead>0`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use tenure::queue::QueueStats;
use tenure::{Name, View};

use super::oldest;
use crate::duration::{millis, parse_duration};
use crate::output::holder::held;

/// What is said of an alert that cannot be read.
pub(crate) const ALERT_HINT: &str =
    "write 'held>1h', 'waiting>100' or 'dead>0', in quotes: a shell takes > for a file";
/// How many names are listed for an alert: it goes into a mail.
const SHOWN_MAX: usize = 10;

/// A threshold, and the text that says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alert {
    text: String,
    threshold: Threshold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threshold {
    /// How long a lock may be held.
    Held(Duration),
    /// How many may wait for a lock.
    Waiting(u64),
    /// How many dead letters a queue may have.
    Dead(u64),
}

impl FromStr for Alert {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Alert, &'static str> {
        let (what, most) = text.split_once('>').ok_or(ALERT_HINT)?;
        let (what, most) = (what.trim(), most.trim());
        let count = || most.parse().map_err(|_| ALERT_HINT);
        let threshold = match what {
            "held" => Threshold::Held(parse_duration(most).map_err(|_| ALERT_HINT)?),
            "waiting" => Threshold::Waiting(count()?),
            "dead" => Threshold::Dead(count()?),
            _ => return Err(ALERT_HINT),
        };
        Ok(Alert { text: format!("{what}>{most}"), threshold })
    }
}

impl Alert {
    /// Whether it is about queues.
    pub(crate) fn is_of_queues(&self) -> bool {
        matches!(self.threshold, Threshold::Dead(_))
    }

    /// Returns the breach, if a lock is one.
    fn of_lock<'a>(&'a self, view: &'a View) -> Option<Breach> {
        let hold = oldest(view);
        let (value, text) = match self.threshold {
            Threshold::Held(most) => {
                let hold = hold.filter(|hold| hold.held_for > most)?;
                (millis(hold.held_for), format!("is {}", held(&hold.label, hold.held_for)))
            }
            Threshold::Waiting(most) => {
                let waiting = u64::from(view.waiting);
                let holder =
                    hold.map_or("nobody holds it".to_owned(), |hold| held(&hold.label, hold.held_for));
                (waiting > most).then(|| (waiting, format!("has {waiting} waiting; {holder}")))?
            }
            Threshold::Dead(_) => return None,
        };
        Some(Breach { name: view.resource.clone(), value, text })
    }

    /// Returns the breach, if a queue is one.
    fn of_queue(&self, name: &Name, stats: &QueueStats) -> Option<Breach> {
        let Threshold::Dead(most) = self.threshold else { return None };
        let (value, noun) = (stats.dead, if stats.dead == 1 { "dead letter" } else { "dead letters" });
        (value > most).then(|| Breach { name: name.clone(), value, text: format!("has {value} {noun}") })
    }
}

/// A name that is beyond a threshold.
struct Breach {
    name: Name,
    /// By how much: the worst are shown.
    value: u64,
    text: String,
}

/// What was found out about the alerts.
pub(crate) struct Judgement<'a> {
    found: Vec<(&'a Alert, Vec<Breach>)>,
    /// Of what cannot be read nobody knows.
    pub(crate) unreadable: usize,
}

/// A breach in JSON. Field names are stable.
#[derive(Serialize)]
pub(crate) struct BreachJson<'a> {
    alert: &'a str,
    name: &'a str,
    /// Milliseconds, waiters or dead letters.
    value: u64,
}

impl<'a> Judgement<'a> {
    /// Begins to judge.
    pub(crate) fn new(alerts: &'a [Alert]) -> Judgement<'a> {
        Judgement { found: alerts.iter().map(|alert| (alert, Vec::new())).collect(), unreadable: 0 }
    }

    /// Judges a lock.
    pub(crate) fn add_lock(&mut self, view: &tenure::Result<View>) {
        match view {
            Ok(view) => self.found.iter_mut().for_each(|(alert, found)| found.extend(alert.of_lock(view))),
            Err(_) => self.unreadable += 1,
        }
    }

    /// Judges a queue.
    pub(crate) fn add_queue(&mut self, name: &Name, stats: &tenure::Result<QueueStats>) {
        match stats {
            Ok(stats) => {
                self.found.iter_mut().for_each(|(alert, found)| found.extend(alert.of_queue(name, stats)));
            }
            Err(_) => self.unreadable += 1,
        }
    }

    /// Whether one is breached.
    pub(crate) fn is_breached(&self) -> bool {
        self.found.iter().any(|(_, found)| !found.is_empty())
    }

    /// Sorts what was found, the worst first.
    pub(crate) fn sort(&mut self) {
        for (_, found) in &mut self.found {
            found.sort_by(|one, other| other.value.cmp(&one.value).then_with(|| one.name.cmp(&other.name)));
        }
    }

    /// Returns all that was found.
    pub(crate) fn json(&self) -> Vec<BreachJson<'_>> {
        let mut all = Vec::new();
        for (alert, found) in &self.found {
            all.extend(found.iter().map(|breach| BreachJson {
                alert: &alert.text,
                name: breach.name.as_str(),
                value: breach.value,
            }));
        }
        all
    }
}

impl fmt::Display for Judgement<'_> {
    /// Writes a line for each breach, of each alert the worst ten.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (alert, found) in &self.found {
            for breach in found.iter().take(SHOWN_MAX) {
                writeln!(f, "{}: \"{}\" {}", alert.text, breach.name, breach.text)?;
            }
            if let Some(more) = found.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
                writeln!(f, "{}: and {more} more", alert.text)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::tests::{held, unreadable};

    fn alerts(texts: &[&str]) -> Vec<Alert> {
        texts.iter().map(|text| text.parse().expect("an alert")).collect()
    }

    #[test]
    fn an_alert_is_a_word_a_sign_and_a_threshold() {
        for text in ["held>1h30m", "waiting>0", "dead>100", " held > 5m "] {
            assert!(text.parse::<Alert>().is_ok(), "{text}");
        }
        for text in [
            "",
            "held",
            "held>",
            "held>5",
            "held>=5m",
            "held<5m",
            "waiting>1h",
            "waiting>-1",
            "dead>x",
            "old>1h",
        ] {
            assert_eq!(text.parse::<Alert>(), Err(ALERT_HINT), "{text}");
        }
    }

    #[test]
    fn a_threshold_is_breached_beyond_it_and_the_worst_come_first() {
        let alerts = alerts(&["held>1h", "waiting>2", "dead>0"]);
        let mut judgement = Judgement::new(&alerts);
        for (_, view) in [held("at", 3600, 2), held("old", 3601, 0), held("older", 9000, 3)] {
            judgement.add_lock(&view);
        }
        let stats = |dead| {
            let mut stats = QueueStats::default();
            stats.dead = dead;
            Ok(stats)
        };
        judgement.add_queue(&Name::new("jobs").expect("a name"), &stats(0));
        assert!(judgement.is_breached());
        judgement.add_queue(&Name::new("mails").expect("a name"), &stats(1));
        judgement.sort();
        let text = "held>1h: \"older\" is held by backup.sh (pid 17 on host) for 2h 30m\n\
                    held>1h: \"old\" is held by backup.sh (pid 17 on host) for 1h 0m\n\
                    waiting>2: \"older\" has 3 waiting; held by backup.sh (pid 17 on host) for 2h 30m\n\
                    dead>0: \"mails\" has 1 dead letter\n";
        assert_eq!(judgement.to_string(), text);
        let json: Vec<_> = judgement.json().iter().map(|one| (one.alert, one.name, one.value)).collect();
        let expected = [
            ("held>1h", "older", 9_000_000),
            ("held>1h", "old", 3_601_000),
            ("waiting>2", "older", 3),
            ("dead>0", "mails", 1),
        ];
        assert_eq!(json, expected);
    }

    #[test]
    fn what_rests_is_not_held_and_what_cannot_be_read_is_counted() {
        let alerts = alerts(&["held>1s"]);
        let mut judgement = Judgement::new(&alerts);
        let (_, mut view) = held("x", 600, 0);
        view.as_mut().expect("a view").holds[0].claim = None;
        judgement.add_lock(&view);
        judgement.add_lock(&unreadable("y").1);
        assert!(!judgement.is_breached());
        assert_eq!((judgement.unreadable, judgement.to_string()), (1, String::new()));
    }

    #[test]
    fn a_mail_lists_ten_names_of_an_alert() {
        let alerts = alerts(&["waiting>0"]);
        let mut judgement = Judgement::new(&alerts);
        (0..12).for_each(|number| judgement.add_lock(&held(&format!("n{number}"), 1, 1 + number).1));
        judgement.sort();
        let text = judgement.to_string();
        assert_eq!(text.lines().count(), 11);
        assert!(
            text.starts_with("waiting>0: \"n11\" has 12 ") && text.ends_with("waiting>0: and 2 more\n"),
            "{text}"
        );
        assert_eq!(judgement.json().len(), 12);
    }
}
