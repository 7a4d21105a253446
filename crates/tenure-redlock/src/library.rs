//! The operations of a quorum's servers: their text, as a library of functions or as scripts.

use std::sync::LazyLock;

use redis::Cmd;
use tenure_redis::server::{Script, hash, load};

const TEXT: &str = include_str!("lua/redlock.lua");

/// All operations of one version of the text.
#[derive(Debug)]
pub(crate) struct Library {
    text: String,
    pub(crate) claim: Script,
    pub(crate) stamp: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) publish: Script,
    pub(crate) mend: Script,
    pub(crate) break_hold: Script,
    pub(crate) look: Script,
    pub(crate) observe: Script,
    pub(crate) settle: Script,
    pub(crate) mark: Script,
    pub(crate) admit: Script,
}

/// The library that the engine uses.
pub(crate) static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let library = format!("tenure_quorum_1_{}", &hash(TEXT)[..12]);
    let script = |name: &str| {
        // Of all operations in the text, a script runs one.
        let text = format!(
            "local IS_SCRIPT, run = true\n\
             local function operation(name, _, what) if name == '{name}' then run = what end end\n\
             {TEXT}return run(KEYS, ARGV)\n"
        );
        Script::new(format!("{library}_{name}"), text)
    };
    Library {
        claim: script("claim"),
        stamp: script("stamp"),
        renew: script("renew"),
        release: script("release"),
        publish: script("publish"),
        mend: script("mend"),
        break_hold: script("break"),
        look: script("look"),
        observe: script("observe"),
        settle: script("settle"),
        mark: script("mark"),
        admit: script("admit"),
        text: format!(
            "#!lua name={library}\n\
             local IS_SCRIPT = false\n\
             local function operation(name, flags, run)\n  \
             redis.register_function({{ function_name = '{library}_' .. name, callback = run, flags = flags }})\n\
             end\n{TEXT}"
        ),
    }
});

impl Library {
    /// Makes the command that loads the library. A server that has it refuses.
    pub(crate) fn load(&self) -> Cmd {
        load(&self.text)
    }
}
