//! Programs of others, in other languages, with the clients that `cargo xtask setup` installs.

use std::path::PathBuf;
use std::process::Command;

/// Returns Python, which finds redis-py and kazoo.
pub fn python() -> Command {
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", clients().join("python"));
    python
}

/// Returns Node, which finds node-redlock and BullMQ.
pub fn node() -> Command {
    let mut node = Command::new("node");
    node.env("NODE_PATH", clients().join("node_modules"));
    node
}

/// Returns the script that looks for what keeps people from using a page: axe-core.
///
/// # Panics
/// If `cargo xtask setup` has not put it there.
pub fn axe() -> String {
    let path = clients().join("node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: cargo xtask setup", path.display()))
}

/// Where `cargo xtask setup` puts them.
fn clients() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    cache.unwrap_or_else(|| home.join(".cache")).join("tenure-xtask/foreign-clients")
}
