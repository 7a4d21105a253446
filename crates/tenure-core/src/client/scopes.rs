//! Which names are counted together, decided when something is named and not when it is used.
//!
//! A label for each name would be as many series as names, and a server of metrics falls over at a million of them. So
//! names that are alike are one scope, by patterns of the user or by their form, and what comes after the limit is `other`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::counts::{Primitive, Scope};
use crate::error::{Error, ErrorKind, Result};
use crate::model::claim::Name;

/// The longest label, in bytes.
const LABEL_BYTES_MAX: usize = 64;
/// How many label values there are for scopes, and as many for elections, if the user does not say otherwise.
pub(crate) const SCOPES_MAX_DEFAULT: usize = 100;
/// The most that a user may say: what is counted in a scope takes 1 kB, and an entry has two bytes for it.
const SCOPES_MAX: usize = 10_000;
/// The shortest run of hexadecimal digits, one of them decimal, that is taken for an id and not for a word.
const HEX_MIN: usize = 8;
/// The label of what came after the limit.
const OTHER: &str = "other";

/// See the top of the file.
pub(crate) struct Scopes {
    patterns: Vec<String>,
    max: usize,
    /// For each primitive, the labels in use. `None`: only of elections that have scopes of their own.
    by_label: Vec<HashMap<Box<str>, Option<u16>>>,
    by_election: HashMap<Box<str>, u16>,
    /// How many label values there are beside `other`.
    labels: usize,
    folded: u64,
    /// How many scopes there are.
    count: u16,
    /// Used again for each name.
    label: String,
}

impl Scopes {
    pub(crate) fn new(patterns: Vec<String>, max: usize) -> Scopes {
        Scopes {
            patterns,
            max,
            by_label: vec![HashMap::new(); Primitive::COUNT],
            by_election: HashMap::new(),
            labels: 0,
            folded: 0,
            count: 0,
            label: String::new(),
        }
    }

    /// Refuses what is out of range.
    pub(crate) fn check(patterns: &[String], max: usize) -> Result<()> {
        let invalid = |message: String, hint: &str| {
            Err(Error::new(ErrorKind::Invalid, "connect", message).with_hint(hint))
        };
        if let Some(pattern) = patterns.iter().find(|one| one.is_empty() || one.len() > LABEL_BYTES_MAX) {
            return invalid(
                format!("a scope of {} bytes is out of range", pattern.len()),
                "a scope has 1 to 64 bytes",
            );
        }
        if max == 0 || max > SCOPES_MAX {
            let hint = "scopes_max is 1 to 10000; the default is 100";
            return invalid(format!("a scopes_max of {max} is out of range"), hint);
        }
        Ok(())
    }

    /// Returns the label values in use, and how often something was named that has none.
    pub(crate) fn usage(&self) -> (u64, u64) {
        ((self.labels + self.by_election.len()) as u64, self.folded)
    }

    /// Returns the index of the scope of a name. `begin` is given each scope that is new, in the order of their indices.
    pub(crate) fn scope(
        &mut self,
        primitive: Primitive,
        name: Option<&Name>,
        begin: impl FnOnce(Scope),
    ) -> u16 {
        let mut label = std::mem::take(&mut self.label);
        label.clear();
        match name {
            Some(name) => write_label(&self.patterns, name.as_str(), &mut label),
            None => label.push_str(OTHER),
        }
        let elected = name.filter(|_| primitive == Primitive::Election).map(Name::as_str);
        let index = self.of_label(primitive, &mut label, elected, begin);
        self.label = label;
        index
    }

    fn of_label(
        &mut self,
        primitive: Primitive,
        label: &mut String,
        elected: Option<&str>,
        begin: impl FnOnce(Scope),
    ) -> u16 {
        if let Some(&index) = elected.and_then(|name| self.by_election.get(name)) {
            return index;
        }
        let by_label = &mut self.by_label[primitive as usize];
        let is_known = by_label.contains_key(label.as_str()) || label == OTHER;
        let is_within = is_known || self.labels < self.max;
        if !is_within {
            self.folded += 1;
            OTHER.clone_into(label);
        }
        let election = elected.filter(|_| is_within && self.by_election.len() < self.max);
        if election.is_none()
            && let Some(&Some(index)) = by_label.get(label.as_str())
        {
            return index;
        }
        let index = self.count;
        self.count += 1;
        let of_label = by_label.entry(label.as_str().into()).or_insert_with(|| {
            self.labels += usize::from(label != OTHER);
            None
        });
        match election {
            Some(election) => drop(self.by_election.insert(election.into(), index)),
            None => *of_label = Some(index),
        }
        begin(Scope { index, primitive, label: label.as_str().into(), election: election.map(Arc::from) });
        index
    }
}

/// Writes the label of a name: the first pattern that it fits, or its form.
fn write_label(patterns: &[String], name: &str, label: &mut String) {
    if let Some(pattern) = patterns.iter().find(|pattern| fits(pattern, name)) {
        label.push_str(pattern);
        return;
    }
    match name.find(['/', ':']) {
        Some(end) => {
            label.push_str(&name[..=end]);
            label.push('*');
        }
        None => write_form(name, label),
    }
    if label.len() > LABEL_BYTES_MAX {
        let mut end = LABEL_BYTES_MAX - 1;
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        label.truncate(end);
        label.push('*');
    }
}

/// Writes a name with `*` in place of numbers, UUIDs and long hexadecimal numbers.
fn write_form(name: &str, label: &mut String) {
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let hex = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        let is_id = hex >= HEX_MIN && rest.as_bytes()[..hex].iter().any(u8::is_ascii_digit);
        let skipped = match () {
            () if is_uuid(rest) => 36,
            () if is_id => hex,
            () => rest.bytes().take_while(u8::is_ascii_digit).count(),
        };
        if skipped == 0 {
            label.push(first);
        } else if !label.ends_with('*') {
            label.push('*');
        }
        rest = &rest[skipped.max(if skipped == 0 { first.len_utf8() } else { 0 })..];
    }
}

fn is_uuid(text: &str) -> bool {
    let is_fit = |(at, byte): (usize, &u8)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() >= 36 && text.as_bytes()[..36].iter().enumerate().all(is_fit)
}

/// Whether a name fits a pattern, in which `*` stands for any text.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(patterns: &[&str], name: &str) -> String {
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        let mut label = String::new();
        write_label(&patterns, name, &mut label);
        label
    }

    #[test]
    fn names_that_are_alike_have_one_label() {
        for (name, expected) in [
            ("billing/4711", "billing/*"),
            ("billing/4711/pdf", "billing/*"),
            ("thread_id_lock:0", "thread_id_lock:*"),
            ("/", "/*"),
            ("order-4711", "order-*"),
            ("order-4711-b-12", "order-*-b-*"),
            ("nightly-report", "nightly-report"),
            ("job-6f1c2a90-1d3e-4b7f-8a55-0123456789ab", "job-*"),
            ("job-6F1C2A901D3E", "job-*"),
            ("defaced-facade", "defaced-facade"),
            ("größe-1", "größe-*"),
            ("42", "*"),
        ] {
            assert_eq!(label(&[], name), expected, "{name}");
        }
        let long = "ö".repeat(100);
        assert_eq!(label(&[], &long), format!("{}*", "ö".repeat(31)));
    }

    #[test]
    fn the_first_pattern_that_fits_is_the_label() {
        let patterns = ["billing/eu/*", "billing/*", "*-report", "a*b*c"];
        for (name, expected) in [
            ("billing/eu/1", "billing/eu/*"),
            ("billing/us/1", "billing/*"),
            ("nightly-report", "*-report"),
            ("a1b2c", "a*b*c"),
            ("abc", "a*b*c"),
            ("acb", "acb"),
            ("report", "report"),
        ] {
            assert_eq!(label(&patterns, name), expected, "{name}");
        }
    }

    #[test]
    fn what_comes_after_the_limit_is_other_and_elections_have_a_limit_of_their_own() {
        let (mut scopes, mut begun) = (Scopes::new(Vec::new(), 2), Vec::new());
        let mut scope = |primitive, name: &str| {
            let name = Name::new(name).expect("a good name");
            scopes.scope(primitive, Some(&name), |scope| begun.push(scope))
        };
        let indices = ["a/1", "a/2", "b", "c", "d", "b"].map(|name| scope(Primitive::Mutex, name));
        assert_eq!(indices, [0, 0, 1, 2, 2, 1]);
        assert_eq!(["e-1", "e-2"].map(|name| scope(Primitive::Election, name)), [3, 3]);
        assert_eq!(scopes.usage(), (2, 4));
        let labels: Vec<&str> = begun.iter().map(|scope| &*scope.label).collect();
        assert_eq!(labels, ["a/*", "b", "other", "other"]);

        let (mut scopes, mut begun) = (Scopes::new(Vec::new(), 2), Vec::new());
        let mut scope = |name: &str| {
            let name = Name::new(name).expect("a good name");
            scopes.scope(Primitive::Election, Some(&name), |scope| begun.push(scope))
        };
        assert_eq!(["e-1", "e-2", "e-3", "e-1"].map(&mut scope), [0, 1, 2, 0]);
        assert_eq!(scopes.usage(), (3, 0), "one label and two elections");
        let named: Vec<Option<&str>> = begun.iter().map(|scope| scope.election.as_deref()).collect();
        assert_eq!(named, [Some("e-1"), Some("e-2"), None]);
    }
}
