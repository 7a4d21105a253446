//! Values that one loads for all: never older than promised, never of a loader that had lost its lease.

use std::collections::BTreeMap;
use std::time::Duration;

use super::found::{Excuse, Found};
use crate::client::values::{FRESH, STALE};
use crate::history::notes::{Fetch, Source};
use crate::history::{Hold, Kind};

/// By how much a store and a client may differ in counting the same period: both count milliseconds.
const ROUNDING_MAX: Duration = Duration::from_millis(5);

/// Judges what was served: how old it was, and who had loaded it. `grain`: by how much longer than asked the store may count a period.
pub(super) fn judge(holds: &[Hold], fetches: &[Fetch], grain: Duration) -> [Found; 2] {
    let loads: BTreeMap<(&str, u64), &Hold> = holds
        .iter()
        .filter(|hold| hold.kind == Kind::Load)
        .map(|hold| ((hold.resource.as_str(), hold.token), hold))
        .collect();
    // A loader writes this down when it was answered, so the value was published before. Of one that was killed in between nothing is known,
    // and the age of its value is not judged.
    let mut published: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for fetch in fetches.iter().filter(|fetch| fetch.source == Source::Loaded) {
        published.insert((&fetch.key, fetch.token), fetch.at);
    }
    let (mut ages, mut loaders) = (Vec::new(), Vec::new());
    for fetch in fetches {
        let load = (fetch.key.as_str(), fetch.token);
        match loads.get(&load) {
            None => loaders.push(format!("nobody loaded it: {}", described(fetch))),
            Some(hold) if hold.lost.is_some() => {
                loaders.push(format!("its loader had lost its lease: {}", described(fetch)));
            }
            Some(_) => {}
        }
        let lasts = match fetch.source {
            Source::Loaded => continue,
            Source::Fresh => FRESH,
            Source::Stale => FRESH + STALE,
        };
        let ends = |published: &u64| published + (lasts + grain + ROUNDING_MAX).as_nanos() as u64;
        if let Some(ended) = published.get(&load).map(ends).filter(|ends| *ends < fetch.asked) {
            ages.push(format!(
                "older than promised by {} µs: {}",
                (fetch.asked - ended) / 1000,
                described(fetch)
            ));
        }
    }
    ages.extend(behind(fetches));
    let count = |source| fetches.iter().filter(|fetch| fetch.source == source).count();
    let [fresh, stale, loaded] = [Source::Fresh, Source::Stale, Source::Loaded].map(count);
    let seen = format!("{fresh} fresh, {stale} stale, {loaded} loaded");
    [
        Found { name: "values too old", findings: ages, seen: seen.clone(), excuse: Excuse::Ages },
        // Not excused by what only makes a value last for longer.
        Found { name: "values of a wrong loader", findings: loaders, seen, excuse: Excuse::Overlaps },
    ]
}

/// Finds values with a smaller token than one that somebody was served before they were asked for.
fn behind(fetches: &[Fetch]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut by_key: BTreeMap<&str, Vec<&Fetch>> = BTreeMap::new();
    fetches.iter().for_each(|fetch| by_key.entry(&fetch.key).or_default().push(fetch));
    for mut by_asked in by_key.into_values() {
        let mut by_served = by_asked.clone();
        by_asked.sort_unstable_by_key(|fetch| fetch.asked);
        by_served.sort_unstable_by_key(|fetch| fetch.at);
        let (mut served, mut newest) = (by_served.into_iter().peekable(), 0);
        for fetch in by_asked {
            while let Some(before) = served.next_if(|before| before.at < fetch.asked) {
                newest = newest.max(before.token);
            }
            if fetch.token < newest {
                findings.push(format!("one of token {newest} was served before: {}", described(fetch)));
            }
        }
    }
    findings
}

fn described(fetch: &Fetch) -> String {
    let Fetch { process: (client, incarnation), key, source, token, asked, at, task } = fetch;
    format!(
        "{key} {} of token {token} to {client}.{incarnation} {task}, asked {asked}, served {at}",
        source.as_str()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Loss;
    use crate::history::tests::held;
    use crate::promise::Promises;

    const MS: u64 = 1_000_000;

    fn load(token: u64, granted: u64, until: u64) -> Hold {
        Hold { kind: Kind::Load, ..held(token, granted, granted, until) }
    }

    fn fetch(source: Source, token: u64, asked: u64, at: u64) -> Fetch {
        let (key, task) = ("m".to_owned(), "t".to_owned());
        Fetch { process: (0, 0), key, source, token, asked: asked * MS, at: at * MS, task }
    }

    fn found(holds: &[Hold], fetches: &[Fetch]) -> usize {
        judge(holds, fetches, Duration::ZERO).iter().map(|found| found.findings.len()).sum()
    }

    #[test]
    fn a_value_is_served_as_long_as_it_is_fresh_and_then_the_next_one() {
        let loads = [load(1, 1, 5), load(2, 400, 405)];
        let fetches = [
            fetch(Source::Loaded, 1, 1, 10),
            fetch(Source::Fresh, 1, 2, 11),
            fetch(Source::Fresh, 1, 309, 500),
            fetch(Source::Stale, 1, 350, 351),
            fetch(Source::Loaded, 2, 390, 410),
        ];
        assert_eq!(found(&loads, &fetches), 0);
    }

    #[test]
    fn a_value_that_is_too_old_is_found() {
        let fetches = |source, asked| [fetch(Source::Loaded, 1, 1, 10), fetch(source, 1, asked, asked + 1)];
        assert_eq!(found(&[load(1, 1, 5)], &fetches(Source::Fresh, 330)), 1);
        assert_eq!(found(&[load(1, 1, 5)], &fetches(Source::Stale, 330)), 0);
        assert_eq!(found(&[load(1, 1, 5)], &fetches(Source::Stale, 930)), 1);
    }

    #[test]
    fn a_value_of_a_loader_that_had_lost_its_lease_is_found() {
        let loss = Loss { at: 6, deadline: 6, told: Some(6), reason: "x".to_owned() };
        let lost = Hold { lost: Some(loss), ..load(1, 1, 5) };
        let [ages, loaders] = judge(&[lost], &[fetch(Source::Fresh, 1, 2, 11)], Duration::ZERO);
        assert_eq!((ages.findings.len(), loaders.findings.len()), (0, 1));
        assert!(!loaders.keeps(Promises::BUT_AGES), "that it lasts for longer makes it no better");
    }

    #[test]
    fn a_value_that_nobody_loaded_is_found() {
        assert_eq!(found(&[load(1, 1, 5)], &[fetch(Source::Stale, 2, 2, 11)]), 1);
    }

    #[test]
    fn an_older_value_after_a_newer_one_is_found() {
        let loads = [load(1, 1, 5), load(2, 40, 45)];
        let fetches = [fetch(Source::Fresh, 2, 50, 60), fetch(Source::Fresh, 1, 61, 62)];
        assert_eq!(found(&loads, &fetches), 1);
        let raced = [fetch(Source::Fresh, 2, 50, 60), fetch(Source::Fresh, 1, 59, 62)];
        assert_eq!(found(&loads, &raced), 0);
    }
}
