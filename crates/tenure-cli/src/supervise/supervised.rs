//! One lease and the work under it, as `tenure` looks after both: it sends the keeper each new deadline, and has the work ended
//! when the lease is lost.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use rustix::process::Pid;
use tenure::{Delivery, Instant, Lease, Tenure};

use super::countdown::Countdown;
use super::job::OnLoss;
use super::keeper::{Keeper, Streams, keeper_gone};
use crate::clock;
use crate::exit::Failure;
use crate::traces;

/// How soon a lease that is nearly over is checked again where its work goes on without it.
const CHECK_AGAIN: Duration = Duration::from_millis(10);

/// How much too late a process may look after its lease and still be said to run: it may be busy.
const STOOD_STILL: Duration = Duration::from_millis(250);

/// The times of a lease, and what happens at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) grace: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_loss: OnLoss,
}

/// Why a lease ended before its work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The engine said so.
    Broken,
    /// Its deadline has come or is near: the engine does not answer.
    NotRenewed,
    /// The same, and this process did not look in time.
    StoodStill,
    /// It has been held for as long as it may be.
    MaxHold,
}

impl Loss {
    /// Returns the text for people.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Loss::Broken => "the engine has ended it: somebody broke it, or the store has forgotten it",
            Loss::NotRenewed => "it was not renewed in time: the engine did not answer",
            Loss::StoodStill => {
                "`tenure` stood still: it was stopped, or the machine slept or had no processor for it"
            }
            Loss::MaxHold => "it has been held for as long as --max-hold allows",
        }
    }
}

/// What the work is under: the lease of a lock, or the delivery of an item.
pub(crate) trait Leased: Clone {
    fn lease(&self) -> &Lease;
}

impl Leased for &Lease {
    fn lease(&self) -> &Lease {
        self
    }
}

impl Leased for Arc<Delivery> {
    fn lease(&self) -> &Lease {
        Delivery::lease(self)
    }
}

/// What the work may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It works under its lease.
    Held,
    /// It goes on without its lease.
    LossIgnored,
    /// It is being ended: because the lease was lost, or because the command ends.
    Ending(Option<Loss>),
}

/// Work under a lease.
pub(crate) struct Supervised<'a, L> {
    leased: L,
    rules: Rules,
    countdown: Countdown,
    /// When it is to be looked at next.
    looks_at: Instant,
    /// Ready when the lease is lost; `None` after that.
    lost: Option<Pin<Box<dyn Future<Output = tenure::Error> + 'a>>>,
    state: State,
    /// The program, once it runs.
    pub(crate) program: Option<Pid>,
    /// A process of the work that cannot be ended: it belongs to another user.
    pub(crate) unkillable: Option<i32>,
}

impl<'a, L: Leased + 'a> Supervised<'a, L> {
    /// Begins when the lease is granted.
    pub(crate) fn new(leased: L, rules: Rules) -> Supervised<'a, L> {
        let watched = leased.clone();
        Supervised {
            rules,
            countdown: Countdown::new(leased.lease(), rules.grace),
            looks_at: clock::now(),
            lost: Some(Box::pin(async move { watched.lease().lost().await })),
            leased,
            state: State::Held,
            program: None,
            unkillable: None,
        }
    }

    /// Returns what the work is under.
    pub(crate) fn leased(&self) -> &L {
        &self.leased
    }

    /// Returns what the work was under, when the work is over.
    pub(crate) fn into_leased(self) -> L {
        self.leased
    }

    /// Since when the work has the lease.
    pub(crate) fn granted_at(&self) -> Instant {
        self.countdown.granted_at
    }

    /// Has the keeper start the program, which finds the lease in its environment. With `tenure` the keeper shares that client's
    /// life.
    pub(crate) fn start(
        &self,
        keeper: &Keeper,
        tenure: Option<&Tenure>,
        variables: Vec<(&str, String)>,
        streams: Streams<'_>,
    ) -> Result<(), Failure> {
        let keeper_pid = keeper.pid().as_raw_nonzero().get().unsigned_abs();
        // Before the work begins: from then on the engine takes this client for alive while the keeper lives.
        let life = tenure.map(|tenure| tenure.share_life(keeper_pid)).transpose()?.flatten();
        let lease = self.leased.lease();
        let lease =
            [("TENURE_TOKEN", lease.token().to_string()), ("TENURE_CLAIM", lease.claim().to_string())];
        let traced = traces::variables(self.leased.lease());
        let environment = variables.into_iter().chain(traced).chain(lease);
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).collect();
        keeper
            .start_work(self.countdown.kills_at(), environment, streams, life.as_ref())
            .map_err(|_| keeper_gone())
    }

    /// Sends the keeper a new deadline, and begins to end the work if there is none in time. Returns when to call this again
    /// (`None`: when something happens), and why the lease is over if that has just been noticed.
    pub(crate) fn follow(
        &mut self,
        keeper: &Keeper,
        context: &mut Context<'_>,
    ) -> (Option<Duration>, Option<Loss>) {
        let lease = self.leased.lease();
        let is_lost = self.lost.as_mut().is_none_or(|lost| lost.as_mut().poll(context).is_ready());
        if is_lost {
            self.lost = None;
        }
        let loss = match self.state {
            // Whatever is renewed now, the work is being ended. The keeper kills it in time; if it does not, because it was
            // stopped, this process does.
            State::Ending(_) => return (Some(self.countdown.kill_if_overdue(self.program)), None),
            State::LossIgnored => return (None, None),
            State::Held if is_lost => self.cause_of_loss(),
            State::Held => match self.countdown.follow(lease, keeper) {
                None if self.rules.on_loss != OnLoss::Ignore => self.cause_by_clock(),
                pause => {
                    let pause = pause.map_or(CHECK_AGAIN, |pause| pause.max(Duration::from_millis(1)));
                    self.looks_at = clock::now() + pause;
                    return (Some(pause), None);
                }
            },
        };
        if self.rules.on_loss == OnLoss::Ignore {
            self.state = State::LossIgnored;
            return (None, Some(loss));
        }
        self.state = State::Ending(Some(loss));
        self.countdown.end_work(lease, keeper, loss == Loss::Broken);
        (Some(self.countdown.kill_if_overdue(self.program)), Some(loss))
    }

    fn cause_of_loss(&self) -> Loss {
        let last = self.leased.lease().deadline();
        if clock::now() < last && !self.has_reached_max_hold(last) {
            Loss::Broken
        } else {
            self.cause_by_clock()
        }
    }

    /// Why a lease is over whose deadline has come or is near.
    fn cause_by_clock(&self) -> Loss {
        match () {
            () if self.has_reached_max_hold(self.leased.lease().deadline()) => Loss::MaxHold,
            () if clock::now() > self.looks_at + STOOD_STILL => Loss::StoodStill,
            () => Loss::NotRenewed,
        }
    }

    /// Whether a deadline is the end that `--max-hold` sets. It is computed with a margin of about 1 %.
    fn has_reached_max_hold(&self, deadline: Instant) -> bool {
        self.rules.max_hold.is_some_and(|max_hold| {
            deadline + max_hold / 50 + Duration::from_millis(20) >= self.countdown.granted_at + max_hold
        })
    }

    /// Asks the work to end although its lease goes on.
    pub(crate) fn stop(&mut self, keeper: &Keeper) {
        if self.state == State::Held {
            self.state = State::Ending(None);
            self.countdown.end_work(self.leased.lease(), keeper, true);
        }
    }

    /// Whether no loss and no end of the command has been noticed.
    pub(crate) fn is_held(&self) -> bool {
        self.state == State::Held
    }

    /// Whether the work is being ended because the command is.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state == State::Ending(None)
    }

    /// Returns why the lease was over before the work was, if it was. `is_overdue`: the keeper killed the work at the deadline, or
    /// did not even start it, while this process was stopped.
    pub(crate) fn loss(&self, is_overdue: bool) -> Option<Loss> {
        match self.state {
            State::Ending(loss) => loss,
            State::Held | State::LossIgnored => is_overdue.then(|| self.cause_by_clock()),
        }
    }
}
