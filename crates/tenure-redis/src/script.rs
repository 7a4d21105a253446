//! The scripts: their text, and how they are called.

use std::sync::LazyLock;

use redis::Cmd;
use tenure_core::engine::Incarnation;

use crate::keys::Keys;

/// One operation as it runs inside the server.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
}

impl Script {
    fn new(operation: &str) -> Script {
        let text = format!("{}{operation}", include_str!("scripts/record.lua"));
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Script { text, sha }
    }

    /// Begins a call for resources of one slot; their keys and arguments are still to be appended.
    ///
    /// `is_known` says that the server has the script; otherwise its text goes along.
    pub(crate) fn call(&self, keys: &Keys, slot: u16, resources: usize, is_known: bool) -> Cmd {
        let mut cmd = if is_known { redis::cmd("EVALSHA") } else { redis::cmd("EVAL") };
        cmd.arg(if is_known { &self.sha } else { &self.text }).arg(resources + 4);
        for key in keys.shared(slot) {
            cmd.arg(key);
        }
        cmd
    }
}

/// Appends what every script takes before its own arguments.
pub(crate) fn push_header(cmd: &mut Cmd, keys: &Keys, slot: u16, incarnation: Incarnation, is_cluster: bool) {
    cmd.arg(keys.tag(slot)).arg(incarnation.0).arg(if is_cluster { "SPUBLISH" } else { "PUBLISH" });
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file))));)*
    };
}

scripts! {
    CLAIM = "claim.lua";
    RENEW = "renew.lua";
    RELEASE = "release.lua";
    PUBLISH = "publish.lua";
    BREAK = "break.lua";
    RESIZE = "resize.lua";
    LOOK = "look.lua";
    OBSERVE = "observe.lua";
}

#[cfg(test)]
mod tests;
