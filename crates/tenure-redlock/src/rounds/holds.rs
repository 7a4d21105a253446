//! Renewing and releasing, as a majority answers.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::engine::{ReleaseAnswer, ReleaseRequest, RenewAnswer, RenewRequest};
use tenure_core::model::claim::Grant;
use tenure_core::{Error, ErrorKind, Result};
use tenure_redis::server::number;
use tokio::sync::mpsc::unbounded_channel;

use super::Quorum;
use super::claims::{patience, reached_by_most};
use super::node::Request;
use super::own::{Own, Servers};
use super::text::{self, Ending};
use crate::library::LIBRARY;
use crate::quorum::majority;

/// How long one server is waited for when something is released: it is not in a hurry, and worth a reconnect.
pub(crate) const RELEASE_WITHIN: Duration = Duration::from_secs(1);

/// What is released: a claim of this client's, if it is known, and how.
struct Leaving {
    own: Option<Own>,
    ending: Ending,
}

impl Quorum {
    /// Extends holds. Each is this client's, as far as it knows.
    pub(crate) async fn renew_holds(
        self: &Arc<Self>,
        holds: &[(Own, &RenewRequest)],
    ) -> Vec<Result<RenewAnswer>> {
        if holds.is_empty() {
            return Vec::new();
        }
        let start = self.clock.now();
        let mut request = Request::new(&LIBRARY.renew);
        for (own, _) in holds {
            // Without anything that is asked, there is no run.
            request.ask_alike(self.key_text(&own.claim.resource), own.claim.id);
        }
        let within = patience(holds.iter().map(|(own, _)| own.claim.terms.ttl));
        let most = majority(self.nodes.len());
        let mut ends: Vec<Vec<u64>> = vec![Vec::new(); holds.len()];
        let mut lost = vec![0; holds.len()];
        let mut heard = self.ask_all(within, request);
        let is_open = |ends: &[Vec<u64>], lost: &[usize]| {
            ends.iter().zip(lost).any(|(ends, lost)| ends.len() < most && *lost < most)
        };
        while is_open(&ends, &lost)
            && let Some((_, answer)) = heard.recv().await
        {
            let Ok(said) = answer else { continue };
            if !said.counts {
                continue;
            }
            for (at, item) in said.items.iter().enumerate().take(holds.len()) {
                match number(item) {
                    Ok(0) => lost[at] += 1,
                    Ok(ends_in) => ends[at].push(ends_in),
                    Err(_) => {}
                }
            }
        }
        let passed = self.clock.now().since(start);
        let mut answers = Vec::new();
        let mut forsaken = Vec::new();
        for (at, (own, request)) in holds.iter().enumerate() {
            let mut known = std::mem::take(&mut ends[at]);
            // The end of a hold is when no majority has it any more.
            known.sort_unstable_by(|one, other| other.cmp(one));
            let ends_in =
                known.get(most - 1).map(|millis| Duration::from_millis(*millis).saturating_sub(passed));
            answers.push(match (ends_in, own.held) {
                (Some(ends_in), Some(held)) => {
                    if let Some(own) = self.owned().get_mut(own.claim.id) {
                        own.heard_at = start;
                    }
                    Ok(if request.is_waiter {
                        RenewAnswer::Granted(Grant { token: held.token, slot: held.slot, ends_in })
                    } else {
                        RenewAnswer::Renewed { ends_in }
                    })
                }
                _ if lost[at] >= most => {
                    self.owned().remove(own.claim.id);
                    // A minority may still keep others out.
                    forsaken.push((own.reached(), own.clone()));
                    Ok(RenewAnswer::Lost)
                }
                _ => Err(self.silence("renew", known.len() + lost[at])),
            });
        }
        forget_on_all(self, forsaken, Ending::Released { is_unused: true, is_finished: false });
        answers
    }

    fn silence(&self, operation: &'static str, heard: usize) -> Error {
        let (all, most) = (self.nodes.len(), majority(self.nodes.len()));
        let message = format!("{heard} of {all} servers answer, and {most} that agree are needed");
        Error::new(ErrorKind::Unavailable, operation, message)
            .with_hint("are the servers running and reachable? try `tenure doctor`")
    }

    /// Ends holds and withdraws waiters, on all servers. A majority's answer is enough; the others hear of it as long as it
    /// can matter.
    pub(crate) async fn release_all(
        self: &Arc<Self>,
        releases: &[ReleaseRequest],
    ) -> Vec<Result<ReleaseAnswer>> {
        let mut request = Request::new(&LIBRARY.release);
        let mut leaving = Vec::with_capacity(releases.len());
        for ReleaseRequest { resource, release } in releases {
            let own = self.owned().get(release.claim).cloned();
            self.notices.forget(release.claim);
            let is_finished = release.maybe_in_flight || own.as_ref().is_some_and(Own::has_stray_copy);
            let ending = Ending::Released { is_unused: release.is_unused, is_finished };
            request.ask(self.key_text(resource), release.claim, vec![text::ending(own.as_ref(), ending)]);
            leaving.push(Leaving { own, ending });
        }
        let (request, leaving) = (Arc::new(request), Arc::new(leaving));
        let (sender, mut heard) = unbounded_channel();
        for node in 0..self.nodes.len() {
            let (quorum, request, leaving, sender) =
                (self.clone(), request.clone(), leaving.clone(), sender.clone());
            tokio::spawn(async move {
                // A server that none of them has reached is not worth waiting for.
                let is_patient = leaving.iter().any(|leaving| leaving.may_be_on(node));
                let answer = quorum.ask(node, RELEASE_WITHIN, is_patient, &request).await;
                quorum.repeat_releases(node, &leaving, answer.is_ok());
                // The receiver was dropped: the others were enough.
                drop(sender.send(answer.ok().map(|said| said.items)));
            });
        }
        drop(sender);
        let (all, most) = (self.nodes.len(), majority(self.nodes.len()));
        let mut ended = vec![0; releases.len()];
        let mut answered = 0;
        let decided = |ended: &[usize], answered: usize| {
            ended.iter().all(|ended| *ended >= most || answered - ended > all - most)
        };
        while !(answered >= most && decided(&ended, answered))
            && let Some(items) = heard.recv().await
        {
            let Some(items) = items else { continue };
            answered += 1;
            for (count, item) in ended.iter_mut().zip(&items) {
                *count += usize::from(matches!(number(item), Ok(1)));
            }
        }
        let answers = releases.iter().zip(&ended).map(|(request, ended)| {
            if answered < most {
                return Err(self.silence("release", answered));
            }
            self.owned().remove(request.release.claim);
            let may_have_held = *ended >= 1 && ended + (all - answered) >= most;
            Ok(if may_have_held { ReleaseAnswer::Released } else { ReleaseAnswer::AlreadyLost })
        });
        answers.collect()
    }
}

impl Leaving {
    fn may_be_on(&self, node: usize) -> bool {
        self.own.as_ref().is_none_or(|own| own.reached() & 1 << node != 0)
    }
}

impl Quorum {
    /// Notes which releases are still to be sent to a server: all, if it has not answered; or those that their claims
    /// may yet follow.
    fn repeat_releases(&self, node: usize, leaving: &[Leaving], is_answered: bool) {
        for Leaving { own, ending } in leaving {
            // The caller repeats the release of a claim that is not known any more until a majority has answered.
            let Some(own) = own else { continue };
            let Ending::Released { is_unused, is_finished } = *ending else { continue };
            if is_answered && (is_finished || !own.may_follow(node)) || own.reached() & 1 << node == 0 {
                continue;
            }
            let ending = Ending::Released { is_unused, is_finished: is_finished || own.may_follow(node) };
            self.send_later(node, own, ending);
        }
    }

    fn send_later(&self, node: usize, own: &Own, ending: Ending) {
        let node = &self.nodes[node];
        node.pending.add(
            self.clock.now(),
            self.key_text(&own.claim.resource),
            own,
            ending,
            node.incarnation(),
        );
    }
}

/// Ends claims that are not wanted on servers that may hold them, in the background: their ids are finished only
/// where a copy may be under way.
pub(crate) fn forget_on_all(quorum: &Quorum, forsaken: Vec<(Servers, Own)>, how: Ending) {
    for (servers, own) in &forsaken {
        let ending = match how {
            Ending::Released { is_unused, is_finished } => {
                Ending::Released { is_unused, is_finished: is_finished && own.has_stray_copy() }
            }
            how => how,
        };
        for node in (0..quorum.nodes.len()).filter(|node| servers & 1 << node != 0) {
            quorum.send_later(node, own, ending);
        }
    }
}

/// Returns when most of these have come, in ms.
pub(crate) fn most_have_come(ends: Vec<u64>, most: usize) -> Option<Duration> {
    reached_by_most(ends, most).map(Duration::from_millis)
}
