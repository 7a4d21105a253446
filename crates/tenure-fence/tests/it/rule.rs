//! The rule against its promise, said in another way: by looking at all that was accepted before.

use proptest::prelude::{prop_assert_eq, proptest};
use tenure_fence::Mark;

use crate::writes::{Access, accesses, expected};

/// Whether one of these is by a later grant, or by another claim with the same token.
fn overtakes(one: Mark, other: Mark) -> bool {
    one.token() > other.token() || (one.token() == other.token() && one.claim() != other.claim())
}

proptest! {
    #[test]
    fn an_access_is_refused_if_a_conflicting_one_of_a_later_grant_was_accepted(list in accesses()) {
        let answers = expected(&list);
        for (index, access) in list.iter().enumerate() {
            let before = list[..index].iter().zip(&answers);
            let accepted = |other: &&Access| other.key == access.key;
            let accepted: Vec<&Access> =
                before.filter(|(_, answer)| answer.is_ok()).map(|(other, _)| other).filter(accepted).collect();
            let conflicting = |other: &&&Access| !(access.is_read && other.is_read);
            // Of readers with one token only the first leaves its mark.
            let leaves_mark = |other: &&Access| {
                !other.is_read
                    || accepted
                        .iter()
                        .find(|first| first.is_read && first.mark.token() == other.mark.token())
                        .is_none_or(|first| first.mark == other.mark)
            };
            let is_overtaken = accepted
                .iter()
                .filter(conflicting)
                .any(|other| overtakes(other.mark, access.mark) && leaves_mark(other));
            prop_assert_eq!(answers[index].is_err(), is_overtaken, "{} of {:?}", index, list);
            if let Err(stale) = answers[index] {
                let max = accepted.iter().map(|other| other.mark.token()).max();
                prop_assert_eq!(Some(stale.max), max);
            }
        }
    }

    #[test]
    fn no_write_is_accepted_after_one_with_a_larger_token(list in accesses()) {
        let answers = expected(&list);
        let mut max = std::collections::HashMap::new();
        let writes = list.iter().zip(&answers).filter(|(access, _)| !access.is_read);
        for (access, answer) in writes {
            let max = max.entry(access.key).or_insert(access.mark);
            if answer.is_ok() {
                assert!(access.mark.token() >= max.token(), "{list:?}");
                *max = access.mark;
            }
        }
    }

    #[test]
    fn what_is_repeated_at_once_is_answered_alike(list in accesses()) {
        let twice: Vec<Access> = list.iter().flat_map(|access| [access.clone(), access.clone()]).collect();
        for pair in expected(&twice).chunks(2) {
            prop_assert_eq!(pair[0], pair[1]);
        }
    }
}
