//! The scripts as a bare client would call them: what the benchmarks compare the engine with.

use redis::Cmd;
use tenure_core::Result;
use tenure_core::engine::{Incarnation, ReleaseRequest};
use tenure_core::model::claim::Claim;
use tenure_core::model::step::Release;

use crate::keys::Keys;
use crate::lua::{CLAIM_ARGUMENTS, Form, LIBRARY, RELEASE_ARGUMENTS, Script, push_header};

/// Makes the command that loads the library.
pub fn load() -> Cmd {
    LIBRARY.load()
}

/// Makes one call that claims and one that releases, on a single server that has the library, under the prefix `bare:`.
///
/// # Errors
/// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for a name that the engine keeps for itself.
pub fn claim_and_release(claims: &[Claim]) -> Result<[Cmd; 2]> {
    let keys = Keys::new("bare:", false);
    let begin = |script: &Script| -> Result<Cmd> {
        let mut cmd = script.command(&keys, 0, claims.len(), Form::Function);
        for claim in claims {
            cmd.arg(keys.of(&claim.resource)?.text);
        }
        push_header(&mut cmd, &keys, 0, Incarnation(0), false);
        Ok(cmd)
    };
    let (mut claiming, mut releasing) = (begin(&LIBRARY.claim)?, begin(&LIBRARY.release)?);
    CLAIM_ARGUMENTS.push(&mut claiming, &claims.iter().collect::<Vec<_>>());
    let releases: Vec<ReleaseRequest> = claims.iter().map(release).collect();
    RELEASE_ARGUMENTS.push(&mut releasing, &releases.iter().collect::<Vec<_>>());
    Ok([claiming, releasing])
}

fn release(claim: &Claim) -> ReleaseRequest {
    let release = Release { claim: claim.id, maybe_in_flight: false, is_unused: false };
    ReleaseRequest { resource: claim.resource.clone(), release }
}
