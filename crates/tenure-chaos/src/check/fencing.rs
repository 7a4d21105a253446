//! What the resource accepted: never a write after one of a later grant.

use std::collections::BTreeMap;

use crate::history::Access;

/// Returns the writes that were accepted and should not have been, in words.
pub(crate) fn stale_accepted(accesses: &[Access]) -> Vec<String> {
    let mut largest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut found = Vec::new();
    for Access { key, token, .. } in accesses.iter().filter(|access| access.is_accepted) {
        let before = largest.entry(key).or_default();
        if token < before {
            found.push(format!("{key}: token {token} accepted after {before}"));
        }
        *before = (*before).max(*token);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(key: &str, token: u64, is_accepted: bool) -> Access {
        Access { key: key.to_owned(), token, item: None, is_accepted }
    }

    #[test]
    fn a_refused_write_is_no_harm() {
        assert!(
            stale_accepted(&[access("a", 2, true), access("a", 1, false), access("b", 1, true)]).is_empty()
        );
    }

    #[test]
    fn a_late_write_that_was_accepted_is_found() {
        assert_eq!(
            stale_accepted(&[access("a", 2, true), access("a", 1, true), access("a", 2, true)]).len(),
            1
        );
    }
}
