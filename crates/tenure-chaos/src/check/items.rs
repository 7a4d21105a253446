//! Items of queues: each has its effect, and those of a group in the order of their pushes.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Access, Push};

/// What became of items.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Items {
    /// How many there were whose push was answered.
    pub(crate) pushed: usize,
    /// How many had an effect more than once, under different tokens, as work that is begun twice may.
    pub(crate) repeated: usize,
    /// Those that had no effect.
    pub(crate) lost: Vec<String>,
    /// Those whose effect came after that of an item that was pushed later.
    pub(crate) out_of_order: Vec<String>,
}

/// Judges which items had an effect, and when. An item whose push was not answered may have one, and may be anywhere.
pub(crate) fn judge(pushes: &[Push], accesses: &[Access]) -> Items {
    let known: BTreeMap<&str, &Push> = pushes.iter().map(|push| (push.item.as_str(), push)).collect();
    let mut tokens: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    // Of each group the item with an effect that was pushed last.
    let mut latest: BTreeMap<&str, &Push> = BTreeMap::new();
    let mut out_of_order = Vec::new();
    for access in accesses.iter().filter(|access| access.is_accepted) {
        let Some(item) = &access.item else { continue };
        tokens.entry(item).or_default().insert(access.token);
        let Some(push) = known.get(item.as_str()).copied() else { continue };
        let latest = latest.entry(&push.group).or_insert(push);
        if push.answered < latest.asked {
            out_of_order.push(format!("{} of {} after {}", push.item, push.group, latest.item));
        }
        if push.asked > latest.asked {
            *latest = push;
        }
    }
    let lost = known.keys().filter(|item| !tokens.contains_key(*item)).map(|item| (*item).to_owned());
    let repeated = tokens.values().filter(|tokens| tokens.len() > 1).count();
    Items { pushed: known.len(), repeated, lost: lost.collect(), out_of_order }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(item: &str, group: &str, asked: u64, answered: u64) -> Push {
        Push { item: item.to_owned(), group: group.to_owned(), asked, answered }
    }

    fn effect(item: &str, token: u64) -> Access {
        Access { key: "q".to_owned(), token, item: Some(item.to_owned()), is_accepted: true }
    }

    #[test]
    fn effects_in_order_are_good_also_twice_and_of_pushes_that_raced() {
        let pushes = [push("a", "g", 0, 1), push("b", "g", 2, 9), push("c", "g", 3, 8), push("d", "h", 0, 1)];
        let effects =
            [effect("a", 1), effect("a", 2), effect("c", 3), effect("b", 4), effect("d", 5), effect("x", 6)];
        let items = judge(&pushes, &effects);
        assert_eq!(items, Items { pushed: 4, repeated: 1, ..Items::default() });
    }

    #[test]
    fn an_item_without_effect_is_found() {
        let refused = Access { is_accepted: false, ..effect("b", 2) };
        let items = judge(&[push("a", "g", 0, 1), push("b", "g", 2, 3)], &[effect("a", 1), refused]);
        assert_eq!(items.lost, ["b"]);
    }

    #[test]
    fn an_item_that_comes_after_a_later_one_is_found() {
        let pushes = [push("a", "g", 0, 1), push("b", "g", 2, 3)];
        assert_eq!(judge(&pushes, &[effect("b", 1), effect("a", 2)]).out_of_order.len(), 1);
        assert_eq!(judge(&pushes, &[effect("a", 1), effect("b", 2), effect("a", 3)]).out_of_order.len(), 1);
    }
}
