//! The operations on queues: their text, as a library of functions or as scripts.

use std::sync::LazyLock;

use redis::Cmd;
use tenure_core::model::claim::Name;

use crate::lua::{self, Form, Script};

/// All operations of one version of the texts.
#[derive(Debug)]
pub(crate) struct Library {
    text: String,
    pub(crate) push: Script,
    pub(crate) take: Script,
    pub(crate) renew: Script,
    pub(crate) settle: Script,
    pub(crate) stats: Script,
    pub(crate) items: Script,
    pub(crate) replay: Script,
    pub(crate) purge: Script,
}

/// The library that the engine uses.
pub(crate) static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::new(str::to_owned));

impl Library {
    pub(super) fn new(adapt: impl Fn(&str) -> String) -> Library {
        let shared = adapt(include_str!("../lua/queue_common.lua"));
        let operations = [
            ("push", include_str!("../lua/queue_push.lua")),
            ("take", include_str!("../lua/queue_take.lua")),
            ("renew", include_str!("../lua/queue_renew.lua")),
            ("settle", include_str!("../lua/queue_settle.lua")),
            ("stats", include_str!("../lua/queue_stats.lua")),
            ("items", include_str!("../lua/queue_items.lua")),
            ("replay", include_str!("../lua/queue_replay.lua")),
            ("purge", include_str!("../lua/queue_purge.lua")),
        ]
        .map(|(name, text)| (name, adapt(text)));
        let (text, scripts) = lua::assemble("tenure_queue_1", &shared, operations);
        let [push, take, renew, settle, stats, items, replay, purge] = scripts;
        Library { text, push, take, renew, settle, stats, items, replay, purge }
    }

    /// Makes the command that loads the library. A server that has it refuses.
    pub(crate) fn load(&self) -> Cmd {
        lua::load(&self.text)
    }
}

/// Begins a call; the arguments of the operation are still to be appended.
pub(crate) fn begin(
    script: &Script,
    form: Form,
    keys: &[String],
    queue: &Name,
    inboxes: &str,
    publish: &str,
) -> Cmd {
    let mut cmd = script.begin(form, keys.len());
    for key in keys {
        cmd.arg(key);
    }
    cmd.arg(queue.as_str()).arg(inboxes).arg(publish);
    cmd
}
