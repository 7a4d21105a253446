//! The scripts as a bare client would call them: what the benchmarks compare the engine with.

use redis::Cmd;
use tenure_core::Result;
use tenure_core::claim::Claim;
use tenure_core::engine::Incarnation;

use crate::answer;
use crate::keys::Keys;
use crate::script::{CLAIM, RELEASE, Script, push_header};

/// Makes one call that claims and one that releases, on a single server under the prefix `bare:`.
///
/// `is_known` says that the server has the scripts; otherwise their text goes along.
///
/// # Errors
/// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for a name that the engine keeps for itself.
pub fn claim_and_release(claims: &[Claim], is_known: bool) -> Result<[Cmd; 2]> {
    let keys = Keys::new("bare:", false);
    let begin = |script: &Script| -> Result<Cmd> {
        let mut cmd = script.call(&keys, 0, claims.len(), is_known);
        for claim in claims {
            cmd.arg(keys.of(&claim.resource)?.text);
        }
        push_header(&mut cmd, &keys, 0, Incarnation(0), false);
        Ok(cmd)
    };
    let (mut claiming, mut releasing) = (begin(&CLAIM)?, begin(&RELEASE)?);
    for claim in claims {
        let id = claim.id.to_string();
        claiming.arg(&id).arg(answer::options(claim)).arg(claim.floor.to_string());
        claiming.arg(answer::terms(claim)).arg(answer::plain_life(claim));
        releasing.arg(&id).arg(0).arg(0);
    }
    Ok([claiming, releasing])
}
