//! A million leases in one client: what they cost to hold and to renew.
//!
//! The engine is one that says yes to everything, so that what is measured is the client alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure::{Error, ErrorKind, Result, Settings, Tenure, Token, View};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::{
    BlockingEngine, BreakAnswer, Capability, ClaimAnswer, Connect, Engine, Finding, ReleaseAnswer,
    ReleaseRequest, RenewAnswer, RenewRequest, Wake,
};
use tenure_core::model::claim::{Claim, ClaimId, Grant, Keep, Name};

use crate::measure::{Outcome, cpu, now, resident};
use crate::report::{Report, Target};

const LEASES: usize = 1_000_000;
const TTL: Duration = Duration::from_secs(30);

pub(crate) fn a_million_leases(report: &mut Report) -> Outcome {
    let engine = Arc::new(SaysYes::new());
    let connect = {
        let engine = engine.clone();
        Connect::new("yes", async move |_| Ok(engine))
    };
    let tenure = pollster::block_on(Tenure::connect_with(connect, Settings::default()))?;
    let blocking = tenure::blocking::Tenure::from(tenure);
    let before = resident();
    let mut leases = Vec::with_capacity(LEASES);
    for number in 0..LEASES {
        leases.push(blocking.mutex(&format!("customer/{number:08}")).ttl(TTL).acquire()?);
    }
    let bytes = (resident() - before) as f64 / LEASES as f64;
    // Let the first round pass, in which the leases spread out, and then measure one period of a third.
    let renewed = |count: u64| engine.renewals.load(Ordering::Relaxed) >= count;
    wait_until("the first renewals", || renewed(LEASES as u64 / 2))?;
    let (cpu_before, renewals_before, start) = (cpu(), engine.renewals.load(Ordering::Relaxed), now());
    wait_until("a period of renewals", || renewed(renewals_before + LEASES as u64))?;
    let (used, took) = (cpu() - cpu_before, now().since(start));
    let lost = leases.iter().filter(|lease| lease.is_lost()).count();
    report.add(
        "1 M leases: client's processor time to renew each once",
        format!("{:.2} s in {:.1} s", used.as_secs_f64(), took.as_secs_f64()),
        "-".to_owned(),
        used.as_secs_f64(),
        Target::AtMost(0.4, "≤ 0.4 s"),
    );
    report.add(
        "1 M leases: client's memory a lease",
        format!("{bytes:.0} B"),
        "-".to_owned(),
        bytes,
        Target::AtMost(300.0, "≤ 300 B"),
    );
    report.add("1 M leases: lost", format!("{lost}"), "-".to_owned(), lost as f64, Target::AtMost(0.0, "0"));
    leases.into_iter().for_each(std::mem::forget);
    Ok(())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) -> Outcome {
    let give_up_at = now() + Duration::from_secs(120);
    while !is_so() {
        if now() > give_up_at {
            return Err(format!("no {what} within two minutes").into());
        }
        #[allow(clippy::disallowed_methods, reason = "a benchmark looks on from outside")]
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// An engine that grants everything and keeps nothing.
pub(crate) struct SaysYes {
    capability: Capability,
    tokens: AtomicU64,
    renewals: AtomicU64,
}

impl SaysYes {
    pub(crate) fn new() -> SaysYes {
        let tokens = AtomicU64::new(SystemClock.time_of_day().micros());
        SaysYes { capability: Capability::of_step(), tokens, renewals: AtomicU64::new(0) }
    }
}

fn no<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "ask", "this engine only says yes"))
}

impl Engine for SaysYes {
    fn name(&self) -> &'static str {
        "yes"
    }

    fn capability(&self) -> &Capability {
        &self.capability
    }

    async fn claim(&self, claims: Vec<Claim>) -> Vec<Result<ClaimAnswer>> {
        claims.iter().map(|claim| BlockingEngine::claim(self, claim)).collect()
    }

    async fn renew(&self, renewals: Vec<RenewRequest>) -> Vec<Result<RenewAnswer>> {
        self.renewals.fetch_add(renewals.len() as u64, Ordering::Relaxed);
        renewals.iter().map(|_| Ok(RenewAnswer::Renewed { ends_in: TTL })).collect()
    }

    async fn release(&self, releases: Vec<ReleaseRequest>) -> Vec<Result<ReleaseAnswer>> {
        releases.iter().map(|release| BlockingEngine::release(self, release)).collect()
    }

    async fn publish(&self, _: Name, _: ClaimId, _: Arc<[u8]>, _: Keep) -> Result<bool> {
        no()
    }

    async fn inspect(&self, _: String, _: Option<Name>, _: usize) -> Result<Vec<View>> {
        no()
    }

    fn observe(&self, _: Name) -> BoxStream<'static, Result<Option<View>>> {
        stream::empty().boxed()
    }

    async fn break_hold(&self, _: Name, _: Token, _: bool) -> Result<BreakAnswer> {
        no()
    }

    async fn resize(&self, _: Name, _: u32) -> Result<()> {
        no()
    }

    fn wakes(&self) -> BoxStream<'static, Wake> {
        stream::pending().boxed()
    }

    async fn check(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn blocking(&self) -> Option<&dyn BlockingEngine> {
        Some(self)
    }
}

impl BlockingEngine for SaysYes {
    fn claim(&self, _: &Claim) -> Result<ClaimAnswer> {
        let token = Token::new(self.tokens.fetch_add(1, Ordering::Relaxed));
        Ok(ClaimAnswer::Granted(Grant { token, slot: None, ends_in: TTL }))
    }

    fn release(&self, _: &ReleaseRequest) -> Result<ReleaseAnswer> {
        Ok(ReleaseAnswer::Released)
    }
}
