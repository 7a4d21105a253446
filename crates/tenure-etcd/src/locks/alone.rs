//! Names that one client uses alone, one claim after the other.
//!
//! etcd looks at all keys that a line has had since the last compaction, also at those that are deleted, when the line is read: a lock that
//! was taken 100,000 times takes it 80 ms to read. So a client that has found a line empty twice leaves a **mark** there, a key
//! beside the line. Whoever enters the line otherwise deletes or replaces it in the same transaction. While the mark is as this client has
//! written it, nobody else has entered since; and if what this client itself had in the line is gone, the line is empty: its next claim
//! compares the mark, and reads nothing.
//!
//! What is known here is no truth: each such claim is checked by etcd. Two things are not, and keep this right:
//! * A mark is believed only if the line was read in the transaction that wrote it, with nothing else in it.
//! * A claim goes by the mark only if the one before was seen to leave, with nothing that rests behind it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::model::claim::{Claim, ClaimId, Kind, Name};
use tenure_core::mutant;

/// How many names are known at most. Beyond it, the half that was used least lately is forgotten, with its marks.
const NAMES_MAX: usize = 1024;

/// How a claim enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Deletes the mark, whoever left it, and reads the line.
    Plain,
    /// Leaves a mark, and reads the line.
    Marking,
    /// If the mark is still the one of this revision. Else plainly.
    ByMark(i64),
}

/// What is known of a name.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The revision of this client's mark.
    mark: Option<i64>,
    /// What this client may have in the line.
    inside: Option<ClaimId>,
    /// Whether that has entered, and nothing else was there.
    is_alone: bool,
    used: u64,
}

/// The names of one client.
#[derive(Debug, Default)]
pub(crate) struct Alone(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    known: HashMap<Name, Known>,
    uses: u64,
}

/// Whether a claim leaves nothing behind but what its release takes away, and asks for nothing but the lock.
fn is_simple(claim: &Claim) -> bool {
    let limits = &claim.terms.limits;
    claim.terms.kind != Kind::SlotPool
        && !claim.terms.unless_fresh
        && !claim.may_be_known
        && limits.lock_delay.is_zero()
        && limits.min_hold.is_zero()
}

impl Alone {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim is about to enter. `is_repeated`: a copy of it may be under way.
    pub(crate) fn begin(&self, claim: &Claim, is_repeated: bool) -> Way {
        let mut names = self.names();
        names.uses += 1;
        let used = names.uses;
        let was = names.known.remove(&claim.resource);
        if is_repeated || !is_simple(claim) {
            return Way::Plain;
        }
        let was_left = was.filter(|was| was.inside.is_none() || mutant!("etcd-mark-while-inside"));
        let way = match was_left.map(|was| was.mark) {
            None => Way::Plain,
            Some(None) => Way::Marking,
            Some(Some(mark)) => Way::ByMark(mark),
        };
        let mark = if let Way::ByMark(mark) = way { Some(mark) } else { None };
        let known = Known { mark, inside: Some(claim.id), is_alone: false, used };
        names.known.insert(claim.resource.clone(), known);
        way
    }

    /// A claim has entered in this way at a revision. `is_alone`: the line was read then, or the mark compared, and nothing else was in it.
    pub(crate) fn entered(&self, claim: &Claim, way: Way, is_alone: bool, revision: i64) {
        let mut names = self.names();
        let Some(known) = names.known.get_mut(&claim.resource).filter(|known| known.inside == Some(claim.id))
        else {
            return;
        };
        if !is_alone && !mutant!("etcd-mark-in-company") {
            names.known.remove(&claim.resource);
            return;
        }
        known.is_alone = true;
        known.mark = match way {
            Way::Plain => None,
            Way::Marking => Some(revision),
            Way::ByMark(mark) => Some(mark),
        };
    }

    /// A claim was seen to leave. `is_clean`: its entry was there until then, and nothing of it rests.
    pub(crate) fn left(&self, name: &Name, claim: ClaimId, is_clean: bool) {
        let mut names = self.names();
        let Some(known) = names.known.get_mut(name).filter(|known| known.inside == Some(claim)) else {
            return;
        };
        if is_clean && known.is_alone {
            known.inside = None;
        } else {
            names.known.remove(name);
        }
    }

    /// Forgets names if there are too many. Returns those whose marks are to be deleted, and the marks.
    pub(crate) fn forget(&self) -> Vec<(Name, i64)> {
        let mut names = self.names();
        if names.known.len() <= NAMES_MAX {
            return Vec::new();
        }
        let mut uses: Vec<u64> = names.known.values().map(|known| known.used).collect();
        let (_, median, _) = uses.select_nth_unstable(NAMES_MAX / 2);
        let median = *median;
        let forgotten = names.known.extract_if(|_, known| known.used <= median);
        forgotten.filter_map(|(name, known)| Some((name, known.mark?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::model::claim::{ClientId, Label, Terms};
    use tenure_core::model::token::Token;

    use super::*;

    fn claim(name: &str, id: u128) -> Claim {
        Claim {
            resource: Name::new(name).unwrap(),
            id: ClaimId::new(id),
            client: ClientId::new(1),
            terms: Arc::new(Terms::of_mutex(Label::from_stored("us"))),
            wait: true,
            floor: Token::ZERO,
            floor_forced: false,
            may_be_known: false,
        }
    }

    fn used(alone: &Alone, id: u128) -> Way {
        let claim = claim("m", id);
        let way = alone.begin(&claim, false);
        alone.entered(&claim, way, true, 100 + id as i64);
        alone.left(&claim.resource, claim.id, true);
        way
    }

    #[test]
    fn the_third_claim_in_turn_goes_by_the_mark_of_the_second() {
        let alone = Alone::default();
        let ways: Vec<Way> = (1..5).map(|id| used(&alone, id)).collect();
        assert_eq!(ways, [Way::Plain, Way::Marking, Way::ByMark(102), Way::ByMark(102)]);
    }

    /// An answer that did not come, a copy, company, and whatever was not seen to leave.
    #[test]
    fn whatever_is_not_certain_ends_it() {
        let breaks: [fn(&Alone, &Claim); 5] = [
            |alone, claim| assert_eq!(alone.begin(claim, false), Way::ByMark(102)),
            |alone, claim| assert_eq!(alone.begin(claim, true), Way::Plain),
            |alone, claim| {
                let way = alone.begin(claim, false);
                alone.entered(claim, way, false, 200);
                alone.left(&claim.resource, claim.id, true);
            },
            |alone, claim| {
                let way = alone.begin(claim, false);
                alone.entered(claim, way, true, 200);
                alone.left(&claim.resource, claim.id, false);
            },
            |alone, claim| {
                // It left, and its entrance was never answered.
                alone.begin(claim, false);
                alone.left(&claim.resource, claim.id, true);
            },
        ];
        for (case, end) in breaks.iter().enumerate() {
            let alone = Alone::default();
            for id in 1..4 {
                used(&alone, id);
            }
            end(&alone, &claim("m", 9));
            assert_eq!(used(&alone, 10), Way::Plain, "case {case}");
            assert_eq!(used(&alone, 11), Way::Marking, "case {case}");
        }
    }

    #[test]
    fn the_names_that_were_used_least_lately_are_forgotten_with_their_marks() {
        let alone = Alone::default();
        for id in 0..3 {
            used(&alone, id);
        }
        for at in 0..NAMES_MAX {
            alone.begin(&claim(&at.to_string(), 1000 + at as u128), false);
        }
        assert_eq!(alone.forget(), [(Name::new("m").unwrap(), 101)]);
        assert!(alone.names().known.len() <= NAMES_MAX / 2 + 1);
        assert_eq!(alone.forget(), []);
        assert_eq!(used(&alone, 5), Way::Plain);
    }
}
