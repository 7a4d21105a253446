//! What reads the file of fences, for random bytes.

use tenure_core::testing::fuzz::Target;

use crate::{Fence, File, Mark};

/// The readers of this crate.
pub const TARGETS: &[Target] = &[Target { name: "fence-file", read: file, seeds: files }];

fn file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(fences) = File::new("fences").parse(text) {
        for fence in fences.values() {
            let again: Fence = fence.to_string().parse().expect("what was written can be read");
            assert_eq!(again.max(), fence.max());
        }
    }
    if let Ok(mark) = text.parse::<Mark>() {
        assert_eq!(mark.to_string().parse::<Mark>().ok(), Some(mark));
    }
}

fn files() -> Vec<Vec<u8>> {
    let mark = format!("17/{:032x}", 1);
    let mut fence = Fence::default();
    fence.check(mark.parse::<Mark>().expect("a mark")).expect("the first is accepted");
    vec![format!("{fence} billing\n{fence} a b c\n").into_bytes(), mark.into_bytes()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
