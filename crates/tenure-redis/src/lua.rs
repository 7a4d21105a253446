//! The scripts: their text, and how they are called.
//!
//! One text serves twice. As a library of functions the server reads it once, and a call costs what it does: that is
//! how they are called. As a script it is read again by every call, which costs more than the common case itself; that
//! is left for servers and users that may not load functions.

pub(crate) mod answer;
pub(crate) mod mutants;

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use redis::{Cmd, RedisWrite};
use tenure_core::engine::{Incarnation, ReleaseRequest, RenewRequest, WithdrawRequest};
use tenure_core::model::claim::{Claim, ClaimId};
use tenure_core::mutants::in_scripts;

use crate::keys::Keys;

/// What every operation needs: it is made once in a library, and in front of the operation in a script.
const SHARED: &str = concat!(include_str!("lua/common.lua"), include_str!("lua/record.lua"));

/// In which form the server is to find an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A function of the library, which was loaded before.
    Function,
    /// A script that the server has in its cache.
    Known,
    /// A script whose text goes along.
    Text,
}

/// One operation as it runs inside the server.
#[derive(Debug)]
pub struct Script {
    function: String,
    text: String,
    sha: String,
}

/// All operations of one version of the texts.
#[derive(Debug)]
pub(crate) struct Library {
    text: String,
    pub(crate) claim: Script,
    pub(crate) renew: Script,
    pub(crate) release: Script,
    pub(crate) withdraw: Script,
    pub(crate) publish: Script,
    pub(crate) break_hold: Script,
    pub(crate) resize: Script,
    pub(crate) look: Script,
    pub(crate) observe: Script,
}

/// The library that the engine uses.
pub(crate) static LIBRARY: LazyLock<Library> = LazyLock::new(|| Library::new(str::to_owned));

impl Library {
    fn new(adapt: impl Fn(&str) -> String) -> Library {
        let names =
            ["claim", "renew", "release", "withdraw", "publish", "break", "resize", "look", "observe"];
        let texts = [
            SHARED,
            include_str!("lua/claim.lua"),
            include_str!("lua/renew.lua"),
            include_str!("lua/release.lua"),
            include_str!("lua/withdraw.lua"),
            include_str!("lua/publish.lua"),
            include_str!("lua/break.lua"),
            include_str!("lua/resize.lua"),
            include_str!("lua/look.lua"),
            include_str!("lua/observe.lua"),
        ];
        let [shared, of_operations @ ..] = in_scripts(texts, mutants::OF_LOCKS).map(|text| adapt(&text));
        let operations = std::array::from_fn(|at| (names[at], of_operations[at].clone()));
        let (text, scripts) = assemble("tenure_1", &shared, operations);
        let [claim, renew, release, withdraw, publish, break_hold, resize, look, observe] = scripts;
        Library { text, claim, renew, release, withdraw, publish, break_hold, resize, look, observe }
    }

    /// Makes the command that loads the library. A server that has it refuses.
    pub(crate) fn load(&self) -> Cmd {
        load(&self.text)
    }
}

/// Makes a library of operations behind what they share, and each of them as a script.
pub(crate) fn assemble<const N: usize>(
    name: &str,
    shared: &str,
    operations: [(&str, String); N],
) -> (String, [Script; N]) {
    let mut body = shared.to_owned();
    for (_, text) in &operations {
        // Each in a block of its own: they name what they alone need alike.
        let _ = write!(body, "do\n{text}end\n");
    }
    // Libraries of several versions lie side by side, so the name says which one it is.
    let library = format!("{name}_{}", &hash(&body)[..12]);
    let text = format!(
        "#!lua name={library}\n\
         local IS_SCRIPT = false\n\
         local function operation(name, flags, run)\n  \
         redis.register_function({{ function_name = '{library}_' .. name, callback = run, flags = flags }})\n\
         end\n{body}"
    );
    let scripts = operations.map(|(name, text)| {
        let text = format!(
            "local IS_SCRIPT, run = true\nlocal function operation(_, _, what) run = what end\n{shared}{text}return run(KEYS, ARGV)\n"
        );
        Script::new(format!("{library}_{name}"), text)
    });
    (text, scripts)
}

/// Makes the command that loads a library. A server that has it refuses.
pub fn load(text: &str) -> Cmd {
    let mut cmd = redis::cmd("FUNCTION");
    cmd.arg("LOAD").arg(text);
    cmd
}

/// Returns the hash by which a server knows a text.
pub fn hash(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

impl Script {
    /// Makes the operation that is called so as a function, and has this text as a script.
    pub fn new(function: String, text: String) -> Script {
        Script { function, sha: hash(&text), text }
    }

    /// Begins a call with so many keys; they and the arguments are still to be appended.
    pub fn begin(&self, form: Form, keys: usize) -> Cmd {
        let (command, what) = match form {
            Form::Function => ("FCALL", &self.function),
            Form::Known => ("EVALSHA", &self.sha),
            Form::Text => ("EVAL", &self.text),
        };
        // A key and an id for each request, and some more for all: what is too little grows.
        let mut cmd = Cmd::with_capacity(2 * keys + 16, 96 * keys + 192);
        cmd.arg(command).arg(what).arg(keys);
        cmd
    }

    /// Begins a call for resources of one slot; their keys and arguments are still to be appended.
    pub(crate) fn command(&self, keys: &Keys, slot: u16, resources: usize, form: Form) -> Cmd {
        let mut cmd = self.begin(form, resources + 4);
        for key in keys.shared(slot).iter() {
            cmd.arg(key);
        }
        cmd
    }
}

/// Appends what every script takes before its own arguments.
pub(crate) fn push_header(cmd: &mut Cmd, keys: &Keys, slot: u16, incarnation: Incarnation, is_cluster: bool) {
    cmd.arg(keys.tag(slot)).arg(incarnation.0).arg(if is_cluster { "SPUBLISH" } else { "PUBLISH" });
}

/// How a script takes many requests: the id of each, and then what they ask for, once for each run of requests that
/// ask for the same. A batch has one or two runs: what would be said with every request costs more than its command.
pub(crate) struct Arguments<R> {
    id: fn(&R) -> ClaimId,
    is_alike: fn(&R, &R) -> bool,
    push: fn(&mut Cmd, &[&R]),
}

impl<R> Arguments<R> {
    /// Appends the arguments of a call.
    pub(crate) fn push(&self, cmd: &mut Cmd, requests: &[&R]) {
        for request in requests {
            cmd.write_arg(&hex((self.id)(request)));
        }
        for run in requests.chunk_by(|one, next| (self.is_alike)(one, next)) {
            cmd.arg(run.len());
            (self.push)(cmd, run);
        }
    }
}

/// An id as its `Display` shows it.
pub fn hex(id: ClaimId) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = id.bits().to_be_bytes();
    std::array::from_fn(|at| {
        let byte = usize::from(bytes[at / 2]);
        DIGITS[if at % 2 == 0 { byte >> 4 } else { byte & 15 }]
    })
}

pub(crate) const CLAIM_ARGUMENTS: Arguments<Claim> = Arguments {
    id: |claim| claim.id,
    is_alike: |one, next| {
        let terms_alike = Arc::ptr_eq(&one.terms, &next.terms) || one.terms == next.terms;
        let what = |claim: &Claim| (claim.client, claim.wait, claim.floor_forced);
        terms_alike && what(one) == what(next)
    },
    push: |cmd, run| {
        let (claim, floor) = (run[0], run[0].floor);
        cmd.arg(answer::options(claim));
        let is_floor_shared = run.iter().all(|claim| claim.floor == floor);
        if is_floor_shared {
            cmd.arg(floor.get())
        } else {
            cmd.arg("")
        };
        cmd.arg(answer::terms(claim)).arg(answer::plain_life(claim));
        if !is_floor_shared {
            for claim in run {
                cmd.arg(claim.floor.get());
            }
        }
    },
};

pub(crate) const RENEW_ARGUMENTS: Arguments<RenewRequest> = Arguments {
    id: |renewal| renewal.claim,
    is_alike: |one, next| one.is_waiter == next.is_waiter,
    push: |cmd, run| {
        cmd.arg(u8::from(run[0].is_waiter));
    },
};

pub(crate) const RELEASE_ARGUMENTS: Arguments<ReleaseRequest> = Arguments {
    id: |request| request.release.claim,
    is_alike: |one, next| {
        let (one, next) = (&one.release, &next.release);
        one.maybe_in_flight == next.maybe_in_flight && one.is_unused == next.is_unused
    },
    push: |cmd, run| {
        let release = &run[0].release;
        cmd.arg(u8::from(release.maybe_in_flight)).arg(u8::from(release.is_unused));
    },
};

pub(crate) const WITHDRAW_ARGUMENTS: Arguments<WithdrawRequest> = Arguments {
    id: |request| request.withdraw.claim,
    is_alike: |one, next| one.withdraw.client == next.withdraw.client,
    push: |cmd, run| {
        cmd.arg(run[0].withdraw.client.to_string());
    },
};

#[cfg(test)]
mod tests;
