//! The largest token that a client has seen of each resource: its claims ask for a larger one.

use std::collections::HashMap;

use crate::model::claim::Name;
use crate::model::token::Token;

/// How many floors are kept at least: those of the names that were used last. A floor that is forgotten costs a repair after a
/// store has lost both its memory and its time, nothing else. At most twice as many are kept, some 200 bytes each.
const FLOORS_MIN: usize = 32_768;

/// Two generations: when the young one is full, it becomes the old one, and the old one is forgotten.
#[derive(Default)]
pub(crate) struct Floors {
    young: HashMap<Name, Token>,
    old: HashMap<Name, Token>,
}

impl Floors {
    /// Returns the floor of a resource, zero if none is known.
    pub(crate) fn get(&mut self, resource: &Name) -> Token {
        if let Some(floor) = self.young.get(resource) {
            return *floor;
        }
        match self.old.remove(resource) {
            Some(floor) => {
                self.keep(resource, floor);
                floor
            }
            None => Token::ZERO,
        }
    }

    /// Raises the floor of a resource.
    pub(crate) fn raise(&mut self, resource: &Name, token: Token) {
        if let Some(floor) = self.young.get_mut(resource) {
            *floor = token.max(*floor);
            return;
        }
        let floor = token.max(self.get(resource));
        self.keep(resource, floor);
    }

    fn keep(&mut self, resource: &Name, floor: Token) {
        if let Some(kept) = self.young.get_mut(resource) {
            *kept = floor;
            return;
        }
        if self.young.len() >= FLOORS_MIN {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(resource.clone(), floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Name {
        Name::new(&format!("r{number}")).expect("a short name")
    }

    #[test]
    fn the_floors_of_the_names_that_were_used_last_are_kept() {
        let mut floors = Floors::default();
        floors.raise(&name(0), Token::new(9));
        floors.raise(&name(0), Token::new(7));
        for number in 1..FLOORS_MIN * 4 {
            floors.raise(&name(number), Token::new(number as u64));
            // It is in use all the time.
            assert_eq!(floors.get(&name(0)), Token::new(9), "after {number} others");
        }
        let last = FLOORS_MIN * 4 - 1;
        for number in last - FLOORS_MIN / 2..last {
            assert_eq!(floors.get(&name(number)), Token::new(number as u64));
        }
        assert!(floors.young.len() + floors.old.len() <= 2 * FLOORS_MIN);
        assert_eq!(floors.get(&name(1)), Token::ZERO, "the oldest are forgotten");
    }
}
