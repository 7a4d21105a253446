//! The loop of `tenure queue work`: lanes that each take an item, have it worked on by a keeper, and settle it.
//!
//! One thread serves all lanes; it waits for signals, keepers, the client and time in one place (`events.rs`). Invariant: an item is
//! settled only after its keeper has said that nothing of the work is left, or after this process has made sure of it in the
//! keeper's place. What ends the work in time is the countdown that `tenure run` has, too.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::process::{Pid, Signal};
use tenure::queue::QueueStats;
use tenure::{Delivery, ErrorKind, Instant, Queue, Result, Tenure};

use crate::clock;
use crate::duration::{format_duration, millis};
use crate::exit::{self, Failure, Outcome};
use crate::output::lines;
use crate::output::messages::Messages;
use crate::output::status_line::{Line, SHOW_EVERY};
use crate::supervise::events::{Events, News, Stopped, stop};
use crate::supervise::foreground::{beyond_control, not_started};
use crate::supervise::job::OnLoss;
use crate::supervise::keeper::message::{Order, Report, Status};
use crate::supervise::keeper::{Keeper, Streams, keeper_gone};
use crate::supervise::supervised::{Loss, Rules, Supervised};
use crate::supervise::work::Work as Processes;

use super::arguments::Work;
use super::item::{ItemEvent, ItemOutcome};

/// How often the engine is asked what is left, for the line on a terminal.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it is asked that with `--drain` while nothing runs here.
const DRAIN_LOOK: Duration = Duration::from_millis(200);
/// How long a lane waits before it asks a store again that did not answer: it has waited for the answer, too.
const SILENCE: Duration = Duration::from_secs(1);

/// What the engine said of the queue.
enum Seen {
    Counted(QueueStats),
    IsEmpty(bool),
}

/// Something that is under way in the client.
type Soon<T> = Pin<Box<dyn Future<Output = Result<T>>>>;

/// An item that is worked on.
struct ItemInfo {
    delivery: Arc<Delivery>,
    told: ItemOutcome,
    supervised: Supervised<'static>,
}

/// What becomes of an item whose work is over.
#[derive(Clone, Debug)]
enum Verdict {
    Done,
    Retry { after: Duration, reason: String },
    Return,
    Lost(Loss),
}

/// A settlement that is under way. It says whether the item is a dead letter now.
struct Settling {
    told: ItemOutcome,
    verdict: Verdict,
    status: Option<Status>,
    took: Duration,
    answer: Soon<bool>,
}

/// What a lane is doing.
enum LaneState {
    Idle,
    /// The store did not answer; it is asked again then.
    Silent(Instant),
    Taking(Soon<Delivery>),
    Working(Box<ItemInfo>),
    Settling(Box<Settling>),
}

/// One item at a time, with a keeper of its own.
struct Lane {
    /// None: it is gone.
    keeper: Option<Keeper>,
    /// Whether the keeper shares the client's life. It does so from its first item on: an engine notes each sharer.
    has_life: bool,
    stand: LaneState,
}

/// All lanes.
pub(super) struct WorkerPool<'a> {
    tenure: &'a Tenure,
    queue: Queue,
    arguments: &'a Work,
    events: &'a Events,
    messages: Messages,
    program: &'a str,
    lanes: Vec<Lane>,
    /// Turns whose keeper is gone, and whose processes are ended when no other keeper is left; and the process of that keeper.
    forsaken: Vec<(ItemInfo, Pid)>,
    is_stopping: bool,
    /// By which signal the work was stopped.
    stopped_by: Option<i32>,
    failure: Option<Failure>,
    is_silent: bool,
    looking: Option<Soon<Seen>>,
    looks_at: Instant,
    /// When it is asked next how much is left.
    counts_at: Instant,
    /// Whether nothing has run here since the engine was asked what is left.
    is_quiet: bool,
    stats: QueueStats,
    done: u64,
    failed: u64,
    line: Line,
}

impl<'a> WorkerPool<'a> {
    /// Makes a crew of one lane for each keeper.
    pub(super) fn new(
        tenure: &'a Tenure,
        queue: Queue,
        arguments: &'a Work,
        events: &'a Events,
        keepers: Vec<Keeper>,
        messages: Messages,
        program: &'a str,
    ) -> WorkerPool<'a> {
        let lane = |keeper| Lane { keeper: Some(keeper), has_life: false, stand: LaneState::Idle };
        WorkerPool {
            tenure,
            queue,
            arguments,
            events,
            messages,
            program,
            lanes: keepers.into_iter().map(lane).collect(),
            forsaken: Vec::new(),
            is_stopping: false,
            stopped_by: None,
            failure: None,
            is_silent: false,
            looking: None,
            looks_at: clock::now(),
            counts_at: clock::now(),
            is_quiet: false,
            stats: QueueStats::default(),
            done: 0,
            failed: 0,
            line: Line::new(messages),
        }
    }

    /// Takes items and has them worked on until told to stop, or until nothing is left with `--drain`.
    pub(super) fn serve(&mut self) -> Outcome {
        let waker = self.events.waker();
        let mut context = Context::from_waker(&waker);
        loop {
            // What the keepers have said counts before what the clock says: the work may have ended in time while this
            // process was stopped.
            let mut timeout = Some(Duration::ZERO);
            if !self.lanes.iter().filter_map(|lane| lane.keeper.as_ref()).any(|k| self.events.has_report(k)) {
                timeout = self.advance(&mut context);
                if self.is_over() {
                    break;
                }
            }
            let numbered = self.lanes.iter().enumerate();
            let keepers: Vec<_> =
                numbered.filter_map(|(number, lane)| Some((number, lane.keeper.as_ref()?))).collect();
            match self.events.next_of(&keepers, timeout) {
                Ok((number, News::Report(report))) => self.on_report(number, &report),
                Ok((number, News::KeeperGone)) => self.on_keeper_gone(number),
                Ok((_, News::Signal(signal))) => self.on_signal(signal),
                Ok((_, News::Look)) => {}
                Err(error) => {
                    // The keepers end the work when this process does.
                    return Err(Failure::system("wait for CMD", error));
                }
            }
        }
        self.line.clear();
        match (self.failure.take(), self.stopped_by) {
            (Some(failure), _) => Err(failure),
            (None, Some(signal)) => Ok(Status::Signal(signal).code()),
            (None, None) => Ok(0),
        }
    }

    /// Waits for the keepers, and ends what a keeper that was killed left behind.
    pub(super) fn dismiss(&mut self) {
        for lane in &mut self.lanes {
            if let Some(keeper) = lane.keeper.take() {
                keeper.wait();
            }
        }
        for (turn, keeper) in self.forsaken.drain(..) {
            let ItemInfo { delivery, told, supervised } = turn;
            let messages = self.messages;
            // The keeper may have died before it could say which process it had started. The session was its own.
            Processes::of_keeper(supervised.program, Some(keeper)).end(|pid| {
                messages.warning(&beyond_control(&told.to_string(), pid.as_raw_nonzero().get()));
            });
            drop(supervised);
            let Some(delivery) = Arc::into_inner(delivery) else { continue };
            // It counts as an attempt: an item whose CMD kills its keeper would otherwise be handed out for ever.
            let after = delivery.retry_delay();
            let again = pollster::block_on(delivery.retry_because(after, "its keeper process was killed"));
            if let Err(error) = again {
                self.messages.warning(&format!("{error}; it is handed out again when its time is over"));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_stopping && self.lanes.iter().all(|lane| matches!(lane.stand, LaneState::Idle))
    }

    /// Does what there is to do now, and returns when there may be more.
    fn advance(&mut self, context: &mut Context<'_>) -> Option<Duration> {
        let mut timeout: Option<Duration> = None;
        for number in 0..self.lanes.len() {
            let again = self.advance_lane(number, context);
            timeout = [timeout, again].into_iter().flatten().min();
        }
        let again = self.look(context);
        [timeout, again].into_iter().flatten().min()
    }

    fn advance_lane(&mut self, number: usize, context: &mut Context<'_>) -> Option<Duration> {
        loop {
            let lane = &mut self.lanes[number];
            let is_taking = !self.is_stopping && lane.keeper.is_some();
            match &mut lane.stand {
                LaneState::Idle if !is_taking => return None,
                LaneState::Silent(_) | LaneState::Taking(_) if !is_taking => {
                    // What was on its way goes back, as if it had never been handed out.
                    lane.stand = LaneState::Idle;
                    return None;
                }
                LaneState::Silent(until) => {
                    let left = until.since(clock::now());
                    if !left.is_zero() {
                        return Some(left);
                    }
                    lane.stand = LaneState::Idle;
                }
                LaneState::Idle => {
                    let queue = self.queue.clone();
                    lane.stand = LaneState::Taking(Box::pin(async move { queue.next().await }));
                }
                LaneState::Taking(next) => match next.as_mut().poll(context) {
                    Poll::Pending => return None,
                    Poll::Ready(Ok(delivery)) => self.begin(number, delivery),
                    Poll::Ready(Err(error)) => self.on_take_failed(number, error),
                },
                LaneState::Working(turn) => {
                    let keeper = lane.keeper.as_ref()?;
                    let (pause, loss) = turn.supervised.follow(turn.delivery.lease(), keeper, context);
                    if let Some(loss) = loss {
                        let text = format!("{} is lost, CMD is ended: {}", turn.told, loss.reason());
                        self.messages.warning(&text);
                    }
                    return pause;
                }
                LaneState::Settling(settling) => match settling.answer.as_mut().poll(context) {
                    Poll::Pending => return None,
                    Poll::Ready(answer) => {
                        if let LaneState::Settling(settling) =
                            std::mem::replace(&mut lane.stand, LaneState::Idle)
                        {
                            self.settled(&settling, answer);
                        }
                    }
                },
            }
        }
    }

    /// Has a keeper begin to work on an item.
    fn begin(&mut self, number: usize, delivery: Delivery) {
        self.is_silent = false;
        self.is_quiet = false;
        let told = ItemOutcome::of(&delivery);
        let Work { ttl, grace, .. } = *self.arguments;
        let rules = Rules { ttl, grace, max_hold: None, on_loss: OnLoss::Terminate };
        let delivery = Arc::new(delivery);
        let watched = delivery.clone();
        let lost = async move { watched.lease().lost().await };
        let supervised = Supervised::new(delivery.lease(), lost, rules);
        let lane = &mut self.lanes[number];
        let started = match &lane.keeper {
            Some(keeper) => {
                let tenure = (!lane.has_life).then_some(self.tenure);
                start(tenure, keeper, &self.arguments.name, &delivery, &supervised)
            }
            None => Err(keeper_gone()),
        };
        lane.has_life |= started.is_ok();
        lane.stand = LaneState::Working(Box::new(ItemInfo { delivery, told, supervised }));
        if let Err(failure) = started {
            self.failure.get_or_insert(failure);
            self.is_stopping = true;
            self.settle(number, Verdict::Return, None);
        }
    }

    fn on_take_failed(&mut self, number: usize, error: tenure::Error) {
        if error.kind() != ErrorKind::Unavailable || self.arguments.drain {
            self.is_stopping = true;
            self.failure.get_or_insert(error.into());
            self.lanes[number].stand = LaneState::Idle;
            return;
        }
        // A worker that runs for months outlives a store that is away for minutes.
        if !self.is_silent {
            self.messages.warning(&format!("{error}; trying again until it is back"));
        }
        self.is_silent = true;
        self.lanes[number].stand = LaneState::Silent(clock::now() + SILENCE);
    }

    fn on_report(&mut self, number: usize, report: &Report) {
        let lane = &mut self.lanes[number];
        let LaneState::Working(turn) = &mut lane.stand else { return };
        match *report {
            Report::Started { pid } => {
                turn.supervised.program = Pid::from_raw(pid);
                let event = ItemEvent { pid: Some(pid), ..turn.told.event("started", &self.arguments.name) };
                self.messages.event(&event);
            }
            Report::Ended { status, is_overdue } => {
                let verdict = match turn.supervised.loss(is_overdue) {
                    Some(loss) => Verdict::Lost(loss),
                    None => self.verdict(number, status),
                };
                self.settle(number, verdict, Some(status));
            }
            Report::TooLate => {
                let loss = turn.supervised.loss(true);
                self.settle(number, loss.map_or(Verdict::Return, Verdict::Lost), None);
            }
            Report::NotStarted { errno } => {
                // This keeper has ended.
                if let Some(keeper) = lane.keeper.take() {
                    keeper.wait();
                }
                self.failure.get_or_insert(not_started(self.program, errno));
                self.is_stopping = true;
                self.settle(number, Verdict::Return, None);
            }
            Report::BeyondControl { pid } => {
                turn.supervised.beyond_control = Some(pid);
                let text = beyond_control(&format!("CMD of {}", turn.told), pid);
                self.line.clear();
                self.messages.warning(&text);
            }
            // That is Ctrl-Z, which has stopped this process as well.
            Report::Stopped { signal } if signal == Signal::TSTP.as_raw() => {}
            Report::Stopped { signal } => {
                let program = turn.supervised.program.map_or(0, |pid| pid.as_raw_nonzero().get());
                let text = format!(
                    "CMD of {} was stopped by signal {signal}; the item stays with it until `kill -CONT {program}`, or its end",
                    turn.told
                );
                self.line.clear();
                self.messages.warning(&text);
            }
            Report::Lingering => {}
        }
    }

    fn verdict(&self, number: usize, status: Status) -> Verdict {
        let LaneState::Working(turn) = &self.lanes[number].stand else { return Verdict::Return };
        if turn.supervised.is_stopped() {
            // Whatever it says: it was told to end, and nobody knows how much it has done.
            return Verdict::Return;
        }
        let growing = turn.delivery.retry_delay();
        let later = i32::from(exit::BUSY);
        match status {
            Status::Code(0) => Verdict::Done,
            Status::Code(code) if code == later => {
                let after = self.arguments.retry_after.unwrap_or(growing);
                Verdict::Retry { after, reason: format!("exit code {code}: to be tried again later") }
            }
            Status::Code(code) => Verdict::Retry { after: growing, reason: format!("exit code {code}") },
            Status::Signal(signal) => Verdict::Retry { after: growing, reason: format!("signal {signal}") },
        }
    }

    /// Begins to settle what a lane has worked on.
    fn settle(&mut self, number: usize, verdict: Verdict, status: Option<Status>) {
        let lane = &mut self.lanes[number];
        let LaneState::Working(turn) = std::mem::replace(&mut lane.stand, LaneState::Idle) else { return };
        let ItemInfo { delivery, told, supervised } = *turn;
        let took = clock::now().since(supervised.granted_at());
        drop(supervised);
        let delivery = Arc::into_inner(delivery).expect("only the future that was just dropped had another");
        let asked = verdict.clone();
        let answer: Soon<bool> = Box::pin(async move {
            match asked {
                Verdict::Done => delivery.ack().await.map(|()| false),
                Verdict::Retry { after, reason } => delivery.retry_because(after, &reason).await,
                Verdict::Return => delivery.put_back().await.map(|()| false),
                // Another has it or will have it soon. If its time is not quite over, it can be had a little sooner.
                Verdict::Lost(loss) => delivery.retry_because(Duration::ZERO, loss.reason()).await,
            }
        });
        lane.stand = LaneState::Settling(Box::new(Settling { told, verdict, status, took, answer }));
    }

    /// Tells what became of an item.
    fn settled(&mut self, settling: &Settling, answer: Result<bool>) {
        let Settling { told, verdict, status, took, .. } = settling;
        let name = &self.arguments.name;
        let (code, signal) = match status {
            Some(Status::Code(code)) => (Some(*code), None),
            Some(Status::Signal(signal)) => (None, Some(*signal)),
            None => (None, None),
        };
        let took_ms = Some(millis(*took));
        let tell = |event, retry_in: Option<Duration>, reason: Option<&str>| {
            let retry_in_ms = retry_in.map(millis);
            let event = ItemEvent { code, signal, took_ms, retry_in_ms, reason, ..told.event(event, name) };
            self.messages.event(&event);
        };
        let took = format_duration(*took);
        if let Verdict::Lost(loss) = verdict {
            // What there is to say about that to people has been said when it was lost.
            self.failed += 1;
            return tell("lost", None, Some(loss.reason()));
        }
        let text = match (verdict, answer) {
            (_, Err(error)) => {
                self.failed += 1;
                tell("lost", None, Some(&error.to_string()));
                self.line.clear();
                return self.messages.warning(&format!("{told} was not settled: {error}"));
            }
            (Verdict::Retry { reason, .. }, Ok(true)) => {
                self.failed += 1;
                tell("dead", None, Some(reason));
                format!("{told} is a dead letter now: {reason}")
            }
            (Verdict::Retry { after, reason }, Ok(false)) => {
                self.failed += 1;
                tell("retried", Some(*after), Some(reason));
                format!("{told} failed: {reason}; it is tried again in {}", format_duration(*after))
            }
            (Verdict::Done, Ok(_)) => {
                self.done += 1;
                tell("done", None, None);
                if !self.arguments.verbose {
                    return;
                }
                format!("{told} is done after {took}")
            }
            (Verdict::Return | Verdict::Lost(_), Ok(_)) => {
                tell("returned", None, None);
                format!("{told} was put back")
            }
        };
        self.line.clear();
        self.messages.message(&text);
    }

    fn on_signal(&mut self, signal: i32) {
        match Signal::from_named_raw(signal) {
            Some(Signal::INT | Signal::TERM | Signal::HUP) if !self.is_stopping => {
                self.is_stopping = true;
                let running = self.turns().count();
                if running > 0 {
                    self.line.clear();
                    let what = if running == 1 {
                        "the item that runs".to_owned()
                    } else {
                        format!("{running} items")
                    };
                    self.messages.message(&format!("finishing {what}; once more puts back what runs"));
                }
            }
            Some(Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT) => {
                self.is_stopping = true;
                if self.turns().count() > 0 {
                    self.stopped_by.get_or_insert(signal);
                }
                self.stop_work();
            }
            Some(Signal::TSTP) => {
                self.line.clear();
                lines::flush(SHOW_EVERY);
                self.order_all(Signal::TSTP);
                stop(Stopped::Itself);
                self.order_all(Signal::CONT);
            }
            _ => {}
        }
    }

    fn turns(&mut self) -> impl Iterator<Item = (&Keeper, &mut ItemInfo)> {
        self.lanes.iter_mut().filter_map(|lane| match &mut lane.stand {
            LaneState::Working(turn) => Some((lane.keeper.as_ref()?, &mut **turn)),
            _ => None,
        })
    }

    fn order_all(&mut self, signal: Signal) {
        for (keeper, _) in self.turns() {
            keeper.order(&Order::Signal(signal.as_raw()));
        }
    }

    /// Ends all work; its items go back.
    fn stop_work(&mut self) {
        for (keeper, turn) in self.turns() {
            turn.supervised.stop(turn.delivery.lease(), keeper);
        }
    }

    /// A keeper has ended without having been told to. What it kept is ended when the others are gone: until then this process
    /// could not tell their work from what that one left behind.
    fn on_keeper_gone(&mut self, number: usize) {
        let lane = &mut self.lanes[number];
        let Some(keeper) = lane.keeper.take() else { return };
        let pid = keeper.pid();
        keeper.wait();
        if let LaneState::Working(turn) = std::mem::replace(&mut lane.stand, LaneState::Idle) {
            if let Some(program) = turn.supervised.program {
                Processes::new(program).signal(Signal::KILL);
            }
            self.forsaken.push((*turn, pid));
        }
        self.failure.get_or_insert(keeper_gone());
        self.is_stopping = true;
        self.stop_work();
    }

    /// Asks the engine what is left, where that is to be known, and shows it.
    fn look(&mut self, context: &mut Context<'_>) -> Option<Duration> {
        let is_busy = self
            .lanes
            .iter()
            .any(|lane| matches!(lane.stand, LaneState::Working(_) | LaneState::Settling(_)));
        let is_draining = self.arguments.drain && !is_busy && !self.is_stopping;
        if !is_draining && !self.line.is_shown || self.is_stopping {
            return None;
        }
        if let Some(looking) = &mut self.looking
            && let Poll::Ready(seen) = looking.as_mut().poll(context)
        {
            self.looking = None;
            self.on_seen(seen, is_busy);
        }
        let now = clock::now();
        if self.looking.is_none() && now >= self.looks_at && !self.is_stopping {
            self.looks_at = now + if is_draining { DRAIN_LOOK } else { LOOK_EVERY };
            self.is_quiet = !is_busy;
            let queue = self.queue.clone();
            // To count is dear where the queue is long: that is for people, who need it less often.
            let is_counted = self.line.is_shown && now >= self.counts_at;
            if is_counted {
                self.counts_at = now + LOOK_EVERY;
            }
            self.looking = Some(Box::pin(async move {
                match is_counted {
                    true => queue.stats().await.map(Seen::Counted),
                    false => queue.is_empty().await.map(Seen::IsEmpty),
                }
            }));
            // It is polled at once, or nothing would be asked.
            return Some(Duration::ZERO);
        }
        if self.line.is_shown {
            let QueueStats { waiting, in_flight, .. } = self.stats;
            let (name, done, failed) = (&self.arguments.name, self.done, self.failed);
            let text = format!("{name}: {done} done, {failed} failed; {waiting} wait, {in_flight} in flight");
            self.line.show(&text);
        }
        let pause = if self.looking.is_some() { SHOW_EVERY } else { self.looks_at.since(now) };
        Some(pause.max(Duration::from_millis(1)))
    }

    fn on_seen(&mut self, seen: Result<Seen>, is_busy: bool) {
        match seen {
            Ok(seen) => {
                let is_empty = match seen {
                    Seen::Counted(stats) => {
                        self.stats = stats;
                        stats.waiting == 0 && stats.in_flight == 0
                    }
                    Seen::IsEmpty(is_empty) => is_empty,
                };
                // If something was handed out here meanwhile, it is asked again.
                self.is_stopping |= self.arguments.drain && self.is_quiet && !is_busy && is_empty;
            }
            Err(error) if self.arguments.drain => {
                self.is_stopping = true;
                self.failure.get_or_insert(error.into());
            }
            // The line informs only: without an answer it keeps what it says.
            Err(_) => {}
        }
    }
}

/// Gives a keeper an item to work on, and a share of the life of `tenure`, if it has none yet.
fn start(
    tenure: Option<&Tenure>,
    keeper: &Keeper,
    name: &str,
    delivery: &Delivery,
    supervised: &Supervised<'_>,
) -> std::result::Result<(), Failure> {
    let variables = vec![
        ("TENURE_NAME", name.to_owned()),
        ("TENURE_ITEM", delivery.item().to_string()),
        ("TENURE_GROUP", delivery.group().unwrap_or_default().to_owned()),
        ("TENURE_ATTEMPT", delivery.attempt().to_string()),
    ];
    let input = input(delivery.payload()).map_err(|error| Failure::system("hand over a payload", error))?;
    let streams = Streams { input: Some(&input), output: None };
    supervised.start(delivery.lease(), keeper, tenure, variables, streams)
}

/// Makes a file in memory of a payload. A pipe would need somebody to fill it, and would break where CMD does not read it.
fn input(payload: &[u8]) -> std::result::Result<OwnedFd, rustix::io::Errno> {
    let file = memfd_create("tenure-item", MemfdFlags::CLOEXEC)?;
    let mut rest = payload;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
        rest = &rest[written..];
    }
    seek(&file, SeekFrom::Start(0))?;
    Ok(file)
}
