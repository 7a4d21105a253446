//! The scripts: their text, and how they are called.

use std::sync::{Arc, LazyLock};

use redis::{Cmd, RedisWrite};
use tenure_core::claim::{Claim, ClaimId};
use tenure_core::engine::{Incarnation, ReleaseRequest, RenewRequest};

use crate::answer;
use crate::keys::Keys;

const COMMON: &str = include_str!("scripts/common.lua");
const RECORD: &str = include_str!("scripts/record.lua");

/// One operation as it runs inside the server.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
}

impl Script {
    fn new(operation: &str) -> Script {
        match operation.split_once("-- Above: what is made when first needed.\n") {
            Some((uncommon, common)) => Script::with_common_case(uncommon, common),
            None => Script::of_text(format!("{COMMON}{RECORD}{operation}")),
        }
    }

    /// A script that defines what it needs beside the common case only when it meets another one.
    fn with_common_case(uncommon: &str, common: &str) -> Script {
        let open = format!("local uncommon\nlocal function open()\n{RECORD}{uncommon}end\n");
        Script::of_text(format!("{COMMON}{open}{common}"))
    }

    fn of_text(text: String) -> Script {
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
fn hex(id: ClaimId) -> [u8; 32] {
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
