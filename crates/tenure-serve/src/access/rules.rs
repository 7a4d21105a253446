//! What an entry of the file of tokens allows.

/// What can be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    /// Claim, renew, release, publish.
    Claim,
    /// Look at locks and queues.
    Read,
    /// Break, resize, replay, purge.
    Operate,
    /// Put items into queues.
    Push,
    /// Take items of queues and settle them.
    Take,
    /// See the payloads of items.
    Payload,
    /// Read the metrics.
    Metrics,
}

impl Verb {
    const ALL: [Verb; 7] =
        [Verb::Claim, Verb::Read, Verb::Operate, Verb::Push, Verb::Take, Verb::Payload, Verb::Metrics];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verb::Claim => "claim",
            Verb::Read => "read",
            Verb::Operate => "operate",
            Verb::Push => "push",
            Verb::Take => "take",
            Verb::Payload => "payload",
            Verb::Metrics => "metrics",
        }
    }

    /// Whether it changes what is in the store.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Verb::Claim | Verb::Operate | Verb::Push | Verb::Take)
    }
}

/// Which names a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Names {
    All,
    Prefix(String),
    Whole(String),
}

/// The rules of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rules(Vec<(Verb, Names)>);

impl Rules {
    /// Reads `claim billing/`, `claim =nightly-report`, `read`.
    pub(crate) fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Rules, String> {
        let mut rules = Vec::new();
        for line in lines {
            let (verb, names) = line.split_once(' ').unwrap_or((line, ""));
            let known = Verb::ALL.into_iter().find(|known| known.as_str() == verb);
            let Some(verb) = known else {
                let all: Vec<_> = Verb::ALL.iter().map(|verb| verb.as_str()).collect();
                return Err(format!("{verb:?} is no verb: it is one of {}", all.join(", ")));
            };
            let names = match (names.strip_prefix('='), names) {
                (Some(""), _) => return Err(format!("{line:?} names nothing behind the `=`")),
                (Some(whole), _) => Names::Whole(whole.to_owned()),
                // A space too many would allow everything.
                (None, "") if line.contains(' ') => return Err(format!("{line:?} ends with a space")),
                (None, "") => Names::All,
                (None, prefix) => Names::Prefix(prefix.to_owned()),
            };
            rules.push((verb, names));
        }
        Ok(Rules(rules))
    }

    /// The lines of which they were read.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |(verb, names): &(Verb, Names)| match names {
            Names::All => verb.as_str().to_owned(),
            Names::Prefix(prefix) => format!("{} {prefix}", verb.as_str()),
            Names::Whole(whole) => format!("{} ={whole}", verb.as_str()),
        };
        self.0.iter().map(line).collect()
    }

    /// Whether a verb is allowed for a name, or without one for every name. Prefixes are compared byte by byte.
    pub(crate) fn allow(&self, verb: Verb, name: Option<&str>) -> bool {
        self.0.iter().any(|(allowed, names)| {
            *allowed == verb
                && match (names, name) {
                    (Names::All, _) => true,
                    (_, None) => false,
                    (Names::Prefix(prefix), Some(name)) => name.as_bytes().starts_with(prefix.as_bytes()),
                    (Names::Whole(whole), Some(name)) => whole == name,
                }
        })
    }

    /// Whether a verb is allowed for any name that begins with a prefix.
    pub(crate) fn allow_some(&self, verb: Verb, prefix: &str) -> bool {
        let prefix = prefix.as_bytes();
        self.0.iter().any(|(allowed, names)| {
            *allowed == verb
                && match names {
                    Names::All => true,
                    Names::Prefix(own) => {
                        own.as_bytes().starts_with(prefix) || prefix.starts_with(own.as_bytes())
                    }
                    Names::Whole(whole) => whole.as_bytes().starts_with(prefix),
                }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_allows_what_begins_with_it_and_nothing_else() {
        let lines = ["claim billing/", "claim =nightly-report", "read", "push refunds"];
        let rules = Rules::parse(lines).expect("rules");
        assert_eq!(rules.lines(), lines);
        for (verb, name, is_allowed) in [
            (Verb::Claim, Some("billing/4711"), true),
            (Verb::Claim, Some("billing"), false),
            (Verb::Claim, Some("Billing/4711"), false),
            (Verb::Claim, Some("nightly-report"), true),
            (Verb::Claim, Some("nightly-report2"), false),
            (Verb::Claim, None, false),
            (Verb::Read, Some("anything"), true),
            (Verb::Read, None, true),
            (Verb::Push, Some("refunds-eu"), true),
            (Verb::Take, Some("refunds"), false),
            (Verb::Operate, Some("billing/4711"), false),
        ] {
            assert_eq!(rules.allow(verb, name), is_allowed, "{verb:?} {name:?}");
        }
    }

    #[test]
    fn a_prefix_has_names_that_are_allowed_where_it_and_a_rule_meet() {
        let rules = Rules::parse(["read billing/", "read =nightly-report"]).expect("rules");
        for (prefix, is_allowed) in [
            ("", true),
            ("bil", true),
            ("billing/4", true),
            ("payroll/", false),
            ("nightly-", true),
            ("nightly-report", true),
            ("nightly-report2", false),
        ] {
            assert_eq!(rules.allow_some(Verb::Read, prefix), is_allowed, "{prefix:?}");
            assert!(!rules.allow_some(Verb::Claim, prefix), "{prefix:?}");
        }
    }

    #[test]
    fn a_slip_is_refused_and_allows_nothing() {
        for bad in ["", "claims billing/", "claim ", "claim =", "Claim x"] {
            assert!(Rules::parse([bad]).is_err(), "{bad:?}");
        }
    }
}
