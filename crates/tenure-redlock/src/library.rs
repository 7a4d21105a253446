//! The operations of a quorum's servers: their text, as a library of functions or as scripts.

use std::sync::LazyLock;

use redis::Cmd;
use tenure_core::mutants::in_scripts;
use tenure_core::mutants_of_scripts;
use tenure_redis::server::{Script, hash, load};

const TEXT: &str = include_str!("lua/redlock.lua");

mutants_of_scripts! { MUTANTS:
    "redlock-snapshots-believed", "  base, is_base_lost = top, true\n", "  base, is_base_lost = 0, true\n";
    "redlock-no-quarantine", "call('SET', WAIT, present, 'PX', ARGV[2])", "call('SET', WAIT, present, 'PX', 1)";
    "redlock-stamps-from-above", "    hold.number = known < token and token or known + 1\n    raise(key, hold.number)\n",
        "    hold.number = token\n    raise(key, max(known, token))\n";
    "redlock-stamps-anywhere", "  if not hold or token >= NUMBER_MAX then return 0 end\n",
        "  if not hold then\n    raise(key, max(counter(key), token))\n    return { digits(token), '1000' }\n  end\n";
    "redlock-release-of-any-hold", "if is_alone and is_plain(holds[at - first + 1], id_at(ids, at - 4)) then", "if is_alone then";
    "redlock-late-values-last-longer", "return min(t, tonumber(then_t) or 0)", "return t";
}

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
    let [ours] = in_scripts([TEXT], MUTANTS);
    let library = format!("tenure_quorum_1_{}", &hash(&ours)[..12]);
    let script = |name: &str| {
        // Of all operations in the text, a script runs one.
        let text = format!(
            "local IS_SCRIPT, run = true\n\
             local function operation(name, _, what) if name == '{name}' then run = what end end\n\
             {ours}return run(KEYS, ARGV)\n"
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
             end\n{ours}"
        ),
    }
});

impl Library {
    /// The text that a server loads.
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Makes the command that loads the library. A server that has it refuses.
    pub(crate) fn load(&self) -> Cmd {
        load(&self.text)
    }
}
