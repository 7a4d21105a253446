//! What reads a URL, and the small rows of the store, for random bytes. A whole record is read by tenure-core.

use tenure_core::testing::fuzz::{Target, texts};

use crate::config::Config;
use crate::locks::rows::{read_claim, read_number};

/// The readers of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "local-row", read: row, seeds: || vec![vec![0; 9], vec![1; 9], vec![7; 16]] },
    Target { name: "local-url", read: url, seeds: urls },
];

fn row(bytes: &[u8]) {
    drop((read_number(bytes), read_claim(bytes)));
}

fn url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    drop(Config::parse(text));
}

fn urls() -> Vec<Vec<u8>> {
    texts(["local:", "local:/run/tenure?size=64MiB", "local://x"])
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
