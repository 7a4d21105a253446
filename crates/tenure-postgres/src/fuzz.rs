//! What reads a URL of PostgreSQL's, for random bytes. Its answers are read by tokio-postgres, and their rows by tenure-sql.

use tenure_core::testing::fuzz::{Target, read_url, texts};

use crate::config::Config;

/// The readers of this crate.
pub const TARGETS: &[Target] = &[Target { name: "postgres-url", read: url, seeds: urls }];

fn url(bytes: &[u8]) {
    read_url(bytes, Config::parse);
}

fn urls() -> Vec<Vec<u8>> {
    texts([
        "postgres://user:s3cret@a:5432,b:5432/db?tls=on&ca=/a.pem&prefix=x",
        "postgresql://user@/db?host=/run/postgresql&pooler=on",
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        tenure_core::testing::fuzz::replay(super::TARGETS);
    }
}
