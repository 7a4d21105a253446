//! What a consumer says of its delivery: that it goes on, and how it ends.

use std::time::Duration;

use futures_util::future::{join, join_all};
use tenure_core::Result;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::queue::{Settle, SettleAnswer, Settlement};
use tenure_core::engine::{RenewAnswer, RenewRequest};
use tenure_core::model::claim::ClaimId;
use tenure_core::model::claim::Name;
use tenure_core::model::queue::record::LaneId;
use tenure_core::model::queue::step::{self, Calls};

use super::engine::{Errand, Queues, lock};
use super::row_cache::{KeyRange, RowCache};
use super::rows::ahead;
use super::signs::Own;
use super::store::QueueStore;

impl<S: QueueStore> Queues<S> {
    pub(super) async fn renew_all(
        &self,
        queue: &Name,
        requests: &[RenewRequest],
    ) -> Vec<Result<RenewAnswer>> {
        let hints = |_: &RowCache, request: &RenewRequest| vec![ahead::claim(request.claim)];
        // What is stored lasts longer, by what was not known of the time: no caller may rely on that.
        let asked = |claim| lock(&self.own).get(&claim).map_or(Duration::MAX, |own| own.ttl);
        let began = SystemClock.now();
        let kept = self.keep(requests.iter().map(|request| request.claim));
        let errand = Errand { operation: Errand::RENEW, queue, ttl: None };
        let served = self.serve(errand, requests, hints, |context, request| {
            // By the latest that it may be: what is renewed must last from now on.
            let now = context.now.max(context.moment.latest);
            let renewed = step::renew(&mut context.rows, request.claim, now)?;
            let promised = |ends_in: Duration| ends_in.min(asked(request.claim));
            let answer = renewed
                .map_or(RenewAnswer::Lost, |ends_in| RenewAnswer::Renewed { ends_in: promised(ends_in) });
            Ok((answer, Calls::new()))
        });
        let (answers, kept) = join(served, kept).await;
        let kept = &kept;
        let answers = requests.iter().zip(answers).map(|(request, answer)| async move {
            match answer {
                Err(error) => self.last(queue, request.claim, kept, began, error).await,
                answer => answer,
            }
        });
        join_all(answers).await
    }

    /// The rows of a delivery of this client.
    fn around(&self, row_cache: &RowCache, claim: ClaimId) -> Vec<KeyRange> {
        let mut wanted = vec![ahead::claim(claim)];
        if let Some(Own { lane, item, .. }) = lock(&self.own).get(&claim).cloned() {
            wanted.extend([ahead::lane(&lane), ahead::item(item), ahead::places(2)]);
            if let LaneId::Group(group) = &lane {
                wanted.extend(ahead::next_in_group(row_cache, group, item));
            }
        }
        wanted
    }

    pub(super) async fn settle_all(&self, queue: &Name, settlements: &[Settle]) -> Vec<Result<SettleAnswer>> {
        let hints = |row_cache: &RowCache, settle: &Settle| self.around(row_cache, settle.claim);
        let errand = Errand { operation: Errand::SETTLE, queue, ttl: None };
        let answers = self.serve(errand, settlements, hints, |context, settle| {
            let mut settlement = settle.settlement.clone();
            if let Settlement::Retry { after, .. } = &mut settlement
                && !after.is_zero()
            {
                *after += context.doubt();
            }
            step::settle(&mut context.rows, settle.claim, &settlement, context.now)
        });
        let answers = settlements.iter().zip(answers.await).map(|(settle, answer)| async move {
            match answer {
                Err(error) if settle.settlement == Settlement::Ack => {
                    self.take_out(queue, settle.claim, error).await
                }
                answer => answer,
            }
        });
        let answers = join_all(answers).await;
        let mut own = lock(&self.own);
        for (settle, answer) in settlements.iter().zip(&answers) {
            if answer.is_ok() {
                own.remove(&settle.claim);
            }
        }
        answers
    }
}
