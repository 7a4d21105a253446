//! No token is granted twice, and each is larger than every token that was answered before its claim was sent.

use std::collections::BTreeMap;

use crate::history::Hold;

/// Describes the grants of one resource whose tokens break that.
pub(crate) fn bad(holds: &[&Hold]) -> Vec<String> {
    let mut found = Vec::new();
    let mut first: BTreeMap<u64, &Hold> = BTreeMap::new();
    for hold in holds {
        if let Some(other) = first.insert(hold.token, hold) {
            found.push(format!("given twice: {} and {}", told(other), told(hold)));
        }
    }
    let (mut by_asked, mut by_granted) = (holds.to_vec(), holds.to_vec());
    by_asked.sort_unstable_by_key(|hold| hold.asked);
    by_granted.sort_unstable_by_key(|hold| hold.granted);
    let mut answered = by_granted.into_iter().peekable();
    let mut largest: Option<&Hold> = None;
    for hold in by_asked {
        while let Some(other) = answered.next_if(|other| other.granted < hold.asked) {
            largest = largest.filter(|largest| largest.token > other.token).or(Some(other));
        }
        if let Some(other) = largest.filter(|largest| largest.token >= hold.token) {
            found.push(format!("not larger: {} was answered before {}", told(other), told(hold)));
        }
    }
    found
}

fn told(hold: &Hold) -> String {
    let Hold { resource, token, client, incarnation, asked, granted, .. } = hold;
    format!("{resource} token {token} of {client}.{incarnation} asked {asked} granted {granted}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::held;

    fn count(holds: &[Hold]) -> usize {
        bad(&holds.iter().collect::<Vec<_>>()).len()
    }

    #[test]
    fn tokens_that_grow_are_good_whatever_the_order_of_those_that_raced() {
        assert_eq!(count(&[held(1, 0, 10, 12), held(3, 5, 20, 21), held(2, 6, 19, 22)]), 0);
    }

    #[test]
    fn a_token_that_was_given_before_is_found() {
        assert_eq!(count(&[held(4, 0, 10, 12), held(4, 5, 11, 12)]), 1);
    }

    #[test]
    fn a_token_that_falls_is_found() {
        assert_eq!(count(&[held(5, 0, 10, 12), held(4, 20, 21, 22), held(6, 30, 31, 32)]), 1);
    }

    #[test]
    fn a_token_that_falls_behind_an_older_one_is_found() {
        assert_eq!(count(&[held(9, 0, 10, 12), held(4, 5, 11, 12), held(6, 30, 31, 32)]), 1);
    }
}
