//! What the findings of a checker mean: on most engines none may be found, and where an engine's page says that a fault may cost it,
//! they are counted.
//!
//! Never excused are a stale write that was accepted, a lease that is called valid after its deadline, who is not served any more, what is
//! left in the store, and an error that no fault explains.

use std::fmt;

/// What some faults may cost on an engine. Whatever is not counted must not be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promises {
    /// Two hold at once, or one is refused by the resource while it holds.
    pub(crate) counts_overlaps: bool,
    /// The token of a delivery is given twice, or is not larger than an earlier one. Those of locks always grow.
    pub(crate) counts_delivery_tokens: bool,
    /// An item is forgotten.
    pub(crate) counts_items: bool,
    /// A value is served as fresh, or as stale, for longer than it is.
    pub(crate) counts_ages: bool,
    /// An item of a group has its effect after that of one that was pushed later.
    pub(crate) counts_order: bool,
}

impl Promises {
    /// Nothing may be found.
    pub(crate) const ALL: Promises = Promises {
        counts_overlaps: false,
        counts_delivery_tokens: false,
        counts_items: false,
        counts_ages: false,
        counts_order: false,
    };
    /// The store may forget what it answered, and its tokens still grow, since its clock does.
    pub(crate) const BUT_MEMORY: Promises =
        Promises { counts_overlaps: true, counts_items: true, counts_order: true, ..Promises::ALL };
    /// What is fresh for a while may be so for longer.
    pub(crate) const BUT_AGES: Promises = Promises { counts_ages: true, ..Promises::ALL };
    /// What is kept for a while may end early or late.
    pub(crate) const BUT_TIME: Promises =
        Promises { counts_overlaps: true, counts_ages: true, counts_order: true, ..Promises::ALL };
    /// The same, and a group of a queue that was empty forgets its last token: the resource refuses the write of an item then, which its
    /// consumer acknowledges here nevertheless.
    pub(crate) const BUT_TIME_AND_GROUPS: Promises =
        Promises { counts_delivery_tokens: true, counts_items: true, ..Promises::BUT_TIME };

    /// What is left of two.
    pub(crate) fn and(self, other: Promises) -> Promises {
        Promises {
            counts_overlaps: self.counts_overlaps || other.counts_overlaps,
            counts_delivery_tokens: self.counts_delivery_tokens || other.counts_delivery_tokens,
            counts_items: self.counts_items || other.counts_items,
            counts_ages: self.counts_ages || other.counts_ages,
            counts_order: self.counts_order || other.counts_order,
        }
    }

    /// Reads what [`fmt::Display`] wrote.
    pub(crate) fn parse(text: &str) -> Promises {
        let counts = |name| text.split(',').any(|counted| counted == name);
        Promises {
            counts_overlaps: counts("overlaps"),
            counts_delivery_tokens: counts("delivery tokens"),
            counts_items: counts("items"),
            counts_ages: counts("ages"),
            counts_order: counts("order"),
        }
    }
}

/// What is counted: `overlaps,items`.
impl fmt::Display for Promises {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = [
            (self.counts_overlaps, "overlaps"),
            (self.counts_delivery_tokens, "delivery tokens"),
            (self.counts_items, "items"),
            (self.counts_ages, "ages"),
            (self.counts_order, "order"),
        ];
        let names: Vec<&str> =
            counted.into_iter().filter(|(counts, _)| *counts).map(|(_, name)| name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for promises in
            [Promises::ALL, Promises::BUT_MEMORY, Promises { counts_delivery_tokens: true, ..Promises::ALL }]
        {
            assert_eq!(Promises::parse(&promises.to_string()), promises);
        }
    }
}
