//! The settings of the engine, and its URL.

use std::path::{Path, PathBuf};

use tenure_core::engine::url::UrlSyntax;
use tenure_core::error::Result;

const URL: UrlSyntax =
    UrlSyntax { engine: "local", hint: "write `local:` for the default place, or `local:/some/directory`" };

/// How large the store may grow: a sparse file, so it takes only the space that is used. A hold takes about
/// 150 bytes, so this is room for some five million.
const MAP_BYTES: usize = 1 << 30;

/// How large the store of the queues may grow, sparse as well. An item of 100 bytes takes about 500, so this is room for
/// some fifteen million of those, or for 30,000 of the largest.
const QUEUE_MAP_BYTES: usize = if usize::BITS >= 64 { (8u64 << 30) as usize } else { 512 << 20 };

/// A record with more entries than this is stored in rows. `benches/local.rs`: a pair costs as much either way
/// beside 4 to 8 holders, 12 against 10 us beside 16, 33 against 16 beside 64.
pub(crate) const ROWS_ABOVE: usize = 16;

/// How to connect to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) map_bytes: usize,
    pub(crate) rows_above: usize,
    pub(crate) queue_map_bytes: usize,
    pub(crate) boot_id: Option<String>,
}

impl Default for Config {
    /// The default place, decided once for each boot: `/run/tenure` or `/run/tenure-<uid>` if it exists and belongs to
    /// this user, else `/tmp/tenure-<uid>`.
    fn default() -> Config {
        Config {
            directory: None,
            map_bytes: MAP_BYTES,
            rows_above: ROWS_ABOVE,
            queue_map_bytes: QUEUE_MAP_BYTES,
            boot_id: None,
        }
    }
}

impl Config {
    /// Reads `local:` or `local:/directory`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for anything else.
    pub fn parse(url: &str) -> Result<Config> {
        // Nothing in it is percent-encoded. Errors do not show it: the URL of another engine may have got here.
        let Some(place) = url.strip_prefix("local:") else {
            return Err(URL.invalid("it does not begin with `local:`"));
        };
        if place.is_empty() {
            return Ok(Config::default());
        }
        if place.starts_with("//") {
            return Err(URL.invalid("it names a host, and this engine knows only its own machine"));
        }
        if !place.starts_with('/') {
            return Err(URL.invalid("its path is not absolute"));
        }
        if place.contains('?') {
            return Err(URL.invalid("it has settings, and this engine has none"));
        }
        if place.contains('\0') {
            return Err(URL.invalid("the path holds a zero byte"));
        }
        Ok(Config::in_directory(place))
    }

    /// Uses a directory of the caller's choice. It is created if its parent exists.
    pub fn in_directory(path: impl AsRef<Path>) -> Config {
        Config { directory: Some(path.as_ref().to_owned()), ..Config::default() }
    }

    /// Sets how large the store may grow, so that a test can fill it.
    #[doc(hidden)]
    #[must_use]
    pub fn with_map_bytes(mut self, map_bytes: usize) -> Config {
        self.map_bytes = map_bytes;
        self
    }

    /// Sets how large the store of the queues may grow, so that a test can fill it.
    #[doc(hidden)]
    #[must_use]
    pub fn with_queue_map_bytes(mut self, map_bytes: usize) -> Config {
        self.queue_map_bytes = map_bytes;
        self
    }

    /// Sets the id of the boot, so that a test can reboot.
    #[doc(hidden)]
    #[must_use]
    pub fn with_boot_id(mut self, id: &str) -> Config {
        self.boot_id = Some(id.to_owned());
        self
    }

    /// Sets how many entries a record may have in one row, so that a test can have rows at once.
    #[doc(hidden)]
    #[must_use]
    pub fn with_rows_above(mut self, rows_above: usize) -> Config {
        self.rows_above = rows_above;
        self
    }
}
