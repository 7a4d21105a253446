//! The operations on queues: their text, as a library of functions or as scripts.

use std::sync::LazyLock;

use redis::Cmd;
use tenure_core::model::claim::Name;
use tenure_core::mutants::in_scripts;

use crate::lua::{self, Form, Script, mutants};

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
        let names = ["push", "take", "renew", "settle", "stats", "items", "replay", "purge"];
        let texts = [
            include_str!("../lua/queue_common.lua"),
            include_str!("../lua/queue_push.lua"),
            include_str!("../lua/queue_take.lua"),
            include_str!("../lua/queue_renew.lua"),
            include_str!("../lua/queue_settle.lua"),
            include_str!("../lua/queue_stats.lua"),
            include_str!("../lua/queue_items.lua"),
            include_str!("../lua/queue_replay.lua"),
            include_str!("../lua/queue_purge.lua"),
        ];
        let [shared, of_operations @ ..] = in_scripts(texts, mutants::OF_QUEUES).map(|text| adapt(&text));
        let operations = std::array::from_fn(|at| (names[at], of_operations[at].clone()));
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
