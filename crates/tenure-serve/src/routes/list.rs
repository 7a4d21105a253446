//! Which locks are listed, in which order: what `GET /v1/resources` asks of a survey.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Deserialize;
use tenure_core::Name;
use tenure_core::model::claim::Kind;
use tenure_core::model::inspect::View;
use tenure_core::survey::NAMES_MAX;

use crate::body::limited;
use crate::problem::{INVALID, Problem};

/// By what a list is ordered: what is unusual first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sort {
    #[default]
    Name,
    Held,
    Waiting,
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindName {
    Mutex,
    RwLock,
    Semaphore,
    SlotPool,
}

impl KindName {
    fn is(self, kind: Kind) -> bool {
        match self {
            KindName::Mutex => kind == Kind::Mutex,
            KindName::RwLock => kind == Kind::RwLock,
            KindName::Semaphore => kind == Kind::Semaphore,
            KindName::SlotPool => kind == Kind::SlotPool,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListQuery {
    pub(crate) prefix: String,
    kind: Option<KindName>,
    /// A text in the program, the host or the text of one who holds.
    holder: Option<String>,
    held_longer_ms: Option<u64>,
    sort: Sort,
    after: Option<String>,
    /// How many of the list are left out at its beginning.
    offset: usize,
    limit: Option<usize>,
    /// Without the waiters, and of the holds only the oldest.
    pub(crate) brief: bool,
}

/// What was asked for.
#[derive(Debug, Default)]
pub(crate) struct Listed<'a> {
    /// The page.
    pub(crate) page: Vec<&'a View>,
    /// How many there are, on all pages.
    pub(crate) count: usize,
    /// How many holds, rests and waiters they have together.
    pub(crate) held: u64,
    pub(crate) resting: u64,
    pub(crate) waiting: u64,
    /// Names that cannot be read: of those nothing else is known.
    pub(crate) unreadable: Vec<&'a str>,
}

impl ListQuery {
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let wrong = |detail: &str| Err(Problem::new(INVALID, detail));
        limited(self.limit)?;
        if self.after.is_some() && self.sort != Sort::Name {
            return wrong("`after` is for lists by name");
        }
        if self.after.is_some() && self.offset > 0 {
            return wrong("give either `after` or `offset`");
        }
        if self.offset > NAMES_MAX {
            return wrong("`offset` is beyond the end of every list");
        }
        Ok(())
    }

    /// Selects what is asked for of what may be read.
    pub(crate) fn select<'a>(
        &self,
        locks: &'a [(Name, tenure_core::Result<View>)],
        may_read: impl Fn(&Name) -> bool,
    ) -> Listed<'a> {
        let is_asked = |name: &Name| {
            name.as_str().starts_with(&self.prefix)
                && self.after.as_deref().is_none_or(|after| name.as_str() > after)
                && may_read(name)
        };
        let limit = limited(self.limit).unwrap_or(1);
        let (mut listed, mut views) = (Listed::default(), Vec::new());
        for (name, view) in locks.iter().filter(|(name, _)| is_asked(name)) {
            match view {
                Ok(view) if self.admits(view) => {
                    listed.add(view);
                    views.push(view);
                }
                Ok(_) => {}
                Err(_) if listed.unreadable.len() < limit => listed.unreadable.push(name.as_str()),
                Err(_) => {}
            }
        }
        self.order(&mut views);
        listed.page = views.into_iter().skip(self.offset).take(limit).collect();
        listed
    }

    fn admits(&self, view: &View) -> bool {
        let is_long = |ms| held_for(view).is_some_and(|held| held > Duration::from_millis(ms));
        self.kind.is_none_or(|kind| kind.is(view.kind))
            && self.held_longer_ms.is_none_or(is_long)
            && self.holder.as_deref().is_none_or(|text| has_holder(view, text))
    }

    /// They come by name, and stay so where they are alike: a page does not change while nothing does.
    fn order(&self, views: &mut [&View]) {
        match self.sort {
            Sort::Name => {}
            Sort::Held => views.sort_by_key(|view| Reverse(held_for(view))),
            Sort::Waiting => views.sort_by_key(|view| Reverse(view.waiting)),
            Sort::Ends => views.sort_by_key(|view| ends_in(view)),
        }
    }
}

impl Listed<'_> {
    fn add(&mut self, view: &View) {
        let resting = view.holds.iter().filter(|hold| hold.claim.is_none()).count();
        self.count += 1;
        self.held += (view.holds.len() - resting) as u64;
        self.resting += resting as u64;
        self.waiting += u64::from(view.waiting);
    }
}

/// How long the longest of its holds has been held; what rests is held by nobody.
fn held_for(view: &View) -> Option<Duration> {
    view.holds.iter().filter(|hold| hold.claim.is_some()).map(|hold| hold.held_for).max()
}

fn ends_in(view: &View) -> Duration {
    view.holds.iter().map(|hold| hold.ends_in).min().unwrap_or(Duration::MAX)
}

/// Whether a text is in what is shown of one who holds, whichever case it has.
fn has_holder(view: &View, text: &str) -> bool {
    let text = text.to_lowercase();
    view.holds.iter().filter(|hold| hold.claim.is_some()).any(|hold| {
        let label = &hold.label;
        [label.program(), label.host(), label.text()].iter().any(|part| part.to_lowercase().contains(&text))
    })
}

#[cfg(test)]
mod tests {
    use tenure_core::model::inspect::HoldView;
    use tenure_core::{ClaimId, Label, Token};

    use super::*;

    fn view(name: &str, waiting: u32, holds: &[(u64, u64, bool)]) -> View {
        let mut view = View::new(Name::new(name).expect("a name"), Kind::Mutex, 1);
        view.waiting = waiting;
        view.holds = holds
            .iter()
            .map(|&(held, ends, rests)| {
                let label = Label::new("web-3", 1, "invoice", &format!("of {name}"));
                let mut hold = HoldView::new(Token::new(1), label, 1);
                hold.claim = (!rests).then_some(ClaimId::new(1));
                (hold.held_for, hold.ends_in) = (Duration::from_secs(held), Duration::from_secs(ends));
                hold
            })
            .collect();
        view
    }

    fn locks() -> Vec<(Name, tenure_core::Result<View>)> {
        let mut pool = view("c", 0, &[(99, 5, true)]);
        pool.kind = Kind::SlotPool;
        let views = [view("a", 3, &[(1, 9, false)]), view("b", 9, &[(5, 2, false)]), pool];
        views.into_iter().map(|view| (view.resource.clone(), Ok(view))).collect()
    }

    fn names(query: &ListQuery) -> String {
        let locks = locks();
        query.select(&locks, |_| true).page.iter().map(|view| view.resource.as_str()).collect()
    }

    #[test]
    fn what_is_unusual_is_first() {
        // What rests is held by nobody, however long ago it was granted.
        let orders = [Sort::Name, Sort::Held, Sort::Waiting, Sort::Ends]
            .map(|sort| names(&ListQuery { sort, ..ListQuery::default() }));
        assert_eq!(orders, ["abc", "bac", "bac", "bca"]);
    }

    #[test]
    fn what_is_asked_for_is_listed_and_counted_before_it_is_cut_into_pages() {
        let ask = |query: &str| {
            let uri = format!("http://host/?{query}").parse().expect("a query");
            let axum::extract::Query(query) =
                axum::extract::Query::<ListQuery>::try_from_uri(&uri).expect("a query");
            query
        };
        for (query, shown) in [
            ("kind=mutex", "ab"),
            ("kind=slot_pool", "c"),
            ("kind=rw_lock", ""),
            ("holder=OF+B", "b"),
            ("holder=web-3", "ab"),
            ("holder=of+c", ""),
            ("sort=held&limit=1&offset=1", "a"),
            ("offset=3", ""),
            ("held_longer_ms=4999", "b"),
            ("after=a&limit=1", "b"),
        ] {
            assert_eq!(names(&ask(query)), shown, "{query}");
        }
        let locks = locks();
        let listed = ask("limit=1&kind=mutex").select(&locks, |name| name.as_str() != "a");
        assert_eq!((listed.page.len(), listed.count, listed.held, listed.waiting), (1, 1, 1, 9));
        let all = ask("").select(&locks, |_| true);
        assert_eq!((all.count, all.held, all.resting, all.waiting), (3, 2, 1, 12));
        for wrong in ["after=a&offset=1", "sort=held&after=a", "limit=501", "offset=50001"] {
            assert!(ask(wrong).check().is_err(), "{wrong}");
        }
    }
}
