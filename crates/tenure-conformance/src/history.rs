//! What several clients recorded, and the checkers that look for broken promises in it.
//!
//! All of them are on one machine, so all times are on one clock.

use std::collections::BTreeMap;

use tenure_core::Token;
use tenure_core::clock::Instant;

/// One time that one client worked under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Whose it was.
    pub client: usize,
    /// The token of the lease.
    pub token: Token,
    /// The slot, for a slot pool.
    pub slot: Option<u32>,
    /// After the lease had been granted.
    pub from: Instant,
    /// Before it was released, seen not to be lost.
    pub until: Instant,
}

/// Returns the pairs of sections of which the second began before the first had ended.
pub fn overlaps(sections: &[Section]) -> Vec<(Section, Section)> {
    let mut sorted = sections.to_vec();
    sorted.sort_by_key(|section| (section.from, section.until));
    let mut overlaps = Vec::new();
    let mut longest: Option<Section> = None;
    for section in sorted {
        if let Some(before) = longest.filter(|before| section.from < before.until) {
            overlaps.push((before, section));
        }
        longest = longest.filter(|before| before.until >= section.until).or(Some(section));
    }
    overlaps
}

/// Returns the pairs of sections of which the second came later and had no larger token.
pub fn stale_tokens(sections: &[Section]) -> Vec<(Section, Section)> {
    let mut sorted = sections.to_vec();
    sorted.sort_by_key(|section| (section.from, section.until));
    sorted.windows(2).filter(|pair| pair[0].token >= pair[1].token).map(|pair| (pair[0], pair[1])).collect()
}

/// Returns the sections at whose beginning more units were in use than the capacity.
pub fn over_capacity(sections: &[Section], capacity: u32, weight: impl Fn(&Section) -> u32) -> Vec<Section> {
    let used_at = |at: Instant| -> u64 {
        let running = sections.iter().filter(|section| section.from <= at && at < section.until);
        running.map(|section| u64::from(weight(section))).sum()
    };
    sections.iter().copied().filter(|section| used_at(section.from) > u64::from(capacity)).collect()
}

/// Returns the sections of each slot by itself, for the checkers above.
pub fn by_slot(sections: &[Section]) -> Vec<Vec<Section>> {
    let mut slots: BTreeMap<Option<u32>, Vec<Section>> = BTreeMap::new();
    sections.iter().for_each(|section| slots.entry(section.slot).or_default().push(*section));
    slots.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(token: u64, from: u64, until: u64) -> Section {
        let (from, until) = (Instant::from_nanos(from), Instant::from_nanos(until));
        Section { client: 0, token: Token::new(token), slot: None, from, until }
    }

    #[test]
    fn sections_that_touch_do_not_overlap() {
        let sections = [section(2, 20, 30), section(1, 10, 20), section(3, 30, 40)];
        assert_eq!(overlaps(&sections), []);
        assert_eq!(stale_tokens(&sections), []);
    }

    #[test]
    fn a_long_section_overlaps_all_that_begin_in_it() {
        let (long, short, late) = (section(1, 0, 100), section(2, 10, 20), section(3, 30, 40));
        assert_eq!(overlaps(&[late, short, long]), [(long, short), (long, late)]);
    }

    #[test]
    fn more_units_than_the_capacity_are_found_where_they_begin() {
        let sections = [section(1, 0, 100), section(2, 10, 50), section(3, 50, 60), section(4, 55, 70)];
        assert_eq!(over_capacity(&sections, 2, |_| 1), [sections[3]]);
        assert_eq!(over_capacity(&sections, 3, |_| 1), []);
        assert_eq!(
            over_capacity(&sections, 3, |section| if section.token.get() == 2 { 3 } else { 1 }),
            [sections[1]]
        );
    }

    #[test]
    fn a_token_that_repeats_or_goes_back_is_stale() {
        let (first, second, third) = (section(5, 0, 1), section(5, 1, 2), section(4, 2, 3));
        assert_eq!(stale_tokens(&[first, second, third]), [(first, second), (second, third)]);
    }
}
