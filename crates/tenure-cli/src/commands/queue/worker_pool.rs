//! The loop of `tenure queue work`: lanes that each take an item, have it worked on by a keeper, and settle it.
//!
//! One thread serves all lanes; it waits for signals, keepers, the client and time in one place (`events.rs`). Invariant: an item
//! is settled only after its keeper has reported that nothing of the work is left, or after this process has made sure of it in
//! the keeper's place. What ends the work in time is the countdown that `tenure run` has, too.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::process::{Pid, Signal};
use tenure::{Delivery, ErrorKind, Instant, Queue, Result, Tenure};

use super::arguments::Work;
use super::item_info::{Details, ItemEvent, ItemInfo};
use super::progress::Progress;
use super::settlement::{Settlement, Verdict};
use crate::clock;
use crate::exit::{self, Failure, Outcome};
use crate::output::lines;
use crate::output::messages::Messages;
use crate::output::status_line::SHOW_EVERY;
use crate::supervise::events::{Event, Events};
use crate::supervise::foreground::unkillable_warning;
use crate::supervise::job::{OnLoss, not_started};
use crate::supervise::keeper::message::{Order, Report, Status};
use crate::supervise::keeper::{Keeper, Streams, keeper_gone};
use crate::supervise::signals::{Stopped, stop};
use crate::supervise::supervised::{Rules, Supervised};
use crate::supervise::work::Work as Processes;
use crate::traces;

/// How long a lane waits before it asks a store again that did not answer: it has waited for the answer, too.
const PAUSE: Duration = Duration::from_secs(1);

/// An item that is worked on.
struct RunningItem {
    info: ItemInfo,
    supervised: Supervised<'static, Arc<Delivery>>,
}

impl RunningItem {
    /// Returns the delivery when the work is over, or when its processes are ended in a keeper's place.
    fn into_delivery(self) -> (ItemInfo, Delivery) {
        let delivery = Arc::into_inner(self.supervised.into_leased());
        (self.info, delivery.expect("only the future that was just dropped had another"))
    }
}

/// What a lane is doing.
enum LaneState {
    Idle,
    /// The store did not answer; it is asked again then.
    Pausing(Instant),
    Taking(Pin<Box<dyn Future<Output = Result<Delivery>>>>),
    Working(Box<RunningItem>),
    Settling(Box<Settlement>),
}

/// One item at a time, with a keeper of its own.
struct Lane {
    /// `None` if it is gone.
    keeper: Option<Keeper>,
    /// Whether the keeper shares the client's life. It does so from its first item on: an engine notes each sharer.
    has_life: bool,
    state: LaneState,
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
    /// Items whose keeper is gone, and the process of that keeper. What is left of their work is ended when no other keeper is
    /// left.
    orphaned: Vec<(RunningItem, Pid)>,
    is_stopping: bool,
    /// By which signal the work was stopped.
    stopped_by: Option<i32>,
    failure: Option<Failure>,
    has_warned_no_answer: bool,
    progress: Progress,
}

impl<'a> WorkerPool<'a> {
    /// Makes one lane for each keeper.
    pub(super) fn new(
        tenure: &'a Tenure,
        queue: Queue,
        arguments: &'a Work,
        events: &'a Events,
        keepers: Vec<Keeper>,
        messages: Messages,
        program: &'a str,
    ) -> WorkerPool<'a> {
        let progress = Progress::new(queue.clone(), &arguments.name, arguments.drain, messages);
        let lane = |keeper| Lane { keeper: Some(keeper), has_life: false, state: LaneState::Idle };
        WorkerPool {
            tenure,
            queue,
            arguments,
            events,
            messages,
            program,
            lanes: keepers.into_iter().map(lane).collect(),
            orphaned: Vec::new(),
            is_stopping: false,
            stopped_by: None,
            failure: None,
            has_warned_no_answer: false,
            progress,
        }
    }

    /// Takes items and has them worked on until a signal stops it, or until nothing is left with `--drain`.
    pub(super) fn serve(&mut self) -> Outcome {
        let waker = self.events.waker();
        let mut context = Context::from_waker(&waker);
        loop {
            // Reports of the keepers count before the clock: the work may have ended in time while this process was stopped.
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
                Ok((number, Event::Report(report))) => self.on_report(number, &report),
                Ok((number, Event::KeeperGone)) => self.on_keeper_gone(number),
                Ok((_, Event::Signal(signal))) => self.on_signal(signal),
                Ok((_, Event::Woken)) => {}
                Err(error) => {
                    // The keepers end the work when this process does.
                    return Err(Failure::system("wait for CMD", error));
                }
            }
        }
        self.progress.line.clear();
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
        for (item, keeper) in self.orphaned.drain(..) {
            let messages = self.messages;
            // The keeper may have died before it could report which process it had started. The session was its own.
            Processes::of_keeper(item.supervised.program, Some(keeper)).end(|pid| {
                messages.warning(&unkillable_warning(&item.info.to_string(), pid.as_raw_nonzero().get()));
            });
            let (_, delivery) = item.into_delivery();
            // It counts as an attempt: an item whose CMD kills its keeper would otherwise be handed out for ever.
            let after = delivery.retry_delay();
            let again = pollster::block_on(delivery.retry_because(after, "its keeper process was killed"));
            if let Err(error) = again {
                self.messages.warning(&format!("{error}; it is handed out again when its time is over"));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_stopping && self.lanes.iter().all(|lane| matches!(lane.state, LaneState::Idle))
    }

    /// Does what there is to do now, and returns when there may be more.
    fn advance(&mut self, context: &mut Context<'_>) -> Option<Duration> {
        let mut timeout: Option<Duration> = None;
        for number in 0..self.lanes.len() {
            let again = self.advance_lane(number, context);
            timeout = [timeout, again].into_iter().flatten().min();
        }
        if self.is_stopping {
            return timeout;
        }
        let is_busy = self
            .lanes
            .iter()
            .any(|lane| matches!(lane.state, LaneState::Working(_) | LaneState::Settling(_)));
        match self.progress.poll(is_busy, context) {
            Ok((false, again)) => return [timeout, again].into_iter().flatten().min(),
            Ok((true, _)) => {}
            Err(error) => {
                self.failure.get_or_insert(error.into());
            }
        }
        self.is_stopping = true;
        Some(Duration::ZERO)
    }

    fn advance_lane(&mut self, number: usize, context: &mut Context<'_>) -> Option<Duration> {
        loop {
            let lane = &mut self.lanes[number];
            let is_taking = !self.is_stopping && lane.keeper.is_some();
            match &mut lane.state {
                LaneState::Idle if !is_taking => return None,
                LaneState::Pausing(_) | LaneState::Taking(_) if !is_taking => {
                    // What was on its way goes back, as if it had never been handed out.
                    lane.state = LaneState::Idle;
                    return None;
                }
                LaneState::Pausing(until) => {
                    let left = until.since(clock::now());
                    if !left.is_zero() {
                        return Some(left);
                    }
                    lane.state = LaneState::Idle;
                }
                LaneState::Idle => {
                    let queue = self.queue.clone();
                    lane.state = LaneState::Taking(Box::pin(async move { queue.next().await }));
                }
                LaneState::Taking(next) => match next.as_mut().poll(context) {
                    Poll::Pending => return None,
                    Poll::Ready(Ok(delivery)) => self.begin(number, delivery),
                    Poll::Ready(Err(error)) => self.on_take_failed(number, error),
                },
                LaneState::Working(item) => {
                    let keeper = lane.keeper.as_ref()?;
                    let (pause, loss) = item.supervised.follow(keeper, context);
                    if let Some(loss) = loss {
                        let text = format!("{} is lost, CMD is ended: {}", item.info, loss.reason());
                        self.messages.warning(&text);
                    }
                    return pause;
                }
                LaneState::Settling(settlement) => match settlement.poll(context) {
                    Poll::Pending => return None,
                    Poll::Ready(answer) => {
                        if let LaneState::Settling(settlement) =
                            std::mem::replace(&mut lane.state, LaneState::Idle)
                        {
                            settlement.report(answer, self.arguments, self.messages, &mut self.progress);
                        }
                    }
                },
            }
        }
    }

    /// Has a keeper begin to work on an item.
    fn begin(&mut self, number: usize, delivery: Delivery) {
        self.has_warned_no_answer = false;
        self.progress.on_item();
        let info = ItemInfo::of(&delivery);
        if let Some(context) = delivery.context() {
            traces::link(delivery.lease(), context);
        }
        let grace = self.arguments.grace;
        let rules = Rules { grace, max_hold: None, on_loss: OnLoss::Terminate };
        let supervised = Supervised::new(Arc::new(delivery), rules);
        let lane = &mut self.lanes[number];
        let started = match &lane.keeper {
            Some(keeper) => {
                let tenure = (!lane.has_life).then_some(self.tenure);
                start(tenure, keeper, &self.arguments.name, &supervised)
            }
            None => Err(keeper_gone()),
        };
        lane.has_life |= started.is_ok();
        lane.state = LaneState::Working(Box::new(RunningItem { info, supervised }));
        if let Err(failure) = started {
            self.failure.get_or_insert(failure);
            self.is_stopping = true;
            self.settle(number, Verdict::PutBack, None);
        }
    }

    fn on_take_failed(&mut self, number: usize, error: tenure::Error) {
        if error.kind() != ErrorKind::Unavailable || self.arguments.drain {
            self.is_stopping = true;
            self.failure.get_or_insert(error.into());
            self.lanes[number].state = LaneState::Idle;
            return;
        }
        // A worker that runs for months outlives a store that is away for minutes.
        if !self.has_warned_no_answer {
            self.messages.warning(&format!("{error}; trying again until it is back"));
        }
        self.has_warned_no_answer = true;
        self.lanes[number].state = LaneState::Pausing(clock::now() + PAUSE);
    }

    fn on_report(&mut self, number: usize, report: &Report) {
        let lane = &mut self.lanes[number];
        let LaneState::Working(item) = &mut lane.state else { return };
        match *report {
            Report::Started { pid } => {
                item.supervised.program = Pid::from_raw(pid);
                let (queue, details) =
                    (self.arguments.name.as_str(), Details { pid: Some(pid), ..Details::default() });
                self.messages.event(&ItemEvent { event: "started", queue, item: &item.info, details });
            }
            Report::Ended { status, is_overdue } => {
                let verdict = match item.supervised.loss(is_overdue) {
                    Some(loss) => Verdict::Lost(loss),
                    None => self.verdict(number, status),
                };
                self.settle(number, verdict, Some(status));
            }
            Report::TooLate => {
                let loss = item.supervised.loss(true);
                self.settle(number, loss.map_or(Verdict::PutBack, Verdict::Lost), None);
            }
            Report::NotStarted { errno } => {
                // This keeper has ended.
                if let Some(keeper) = lane.keeper.take() {
                    keeper.wait();
                }
                self.failure.get_or_insert(not_started(self.program, errno));
                self.is_stopping = true;
                self.settle(number, Verdict::PutBack, None);
            }
            Report::Unkillable { pid } => {
                item.supervised.unkillable = Some(pid);
                let text = unkillable_warning(&format!("CMD of {}", item.info), pid);
                self.progress.line.clear();
                self.messages.warning(&text);
            }
            // That is Ctrl-Z, which has stopped this process as well.
            Report::Stopped { signal } if signal == Signal::TSTP.as_raw() => {}
            Report::Stopped { signal } => {
                let program = item.supervised.program.map_or(0, |pid| pid.as_raw_nonzero().get());
                let text = format!(
                    "CMD of {} was stopped by signal {signal}; the item stays with it until `kill -CONT {program}`, or its end",
                    item.info
                );
                self.progress.line.clear();
                self.messages.warning(&text);
            }
            Report::Lingering => {}
        }
    }

    fn verdict(&self, number: usize, status: Status) -> Verdict {
        let LaneState::Working(item) = &self.lanes[number].state else { return Verdict::PutBack };
        if item.supervised.is_stopped() {
            // Whatever its exit code: it was asked to end, and it is not known how much it has done.
            return Verdict::PutBack;
        }
        let growing = item.supervised.leased().retry_delay();
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
        let LaneState::Working(item) = std::mem::replace(&mut lane.state, LaneState::Idle) else { return };
        let took = clock::now().since(item.supervised.granted_at());
        let (info, delivery) = item.into_delivery();
        let settlement = Settlement::new(info, delivery, verdict, status, took);
        lane.state = LaneState::Settling(Box::new(settlement));
    }

    fn on_signal(&mut self, signal: i32) {
        match Signal::from_named_raw(signal) {
            Some(Signal::INT | Signal::TERM | Signal::HUP) if !self.is_stopping => {
                self.is_stopping = true;
                let running = self.running().count();
                if running > 0 {
                    self.progress.line.clear();
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
                if self.running().count() > 0 {
                    self.stopped_by.get_or_insert(signal);
                }
                self.stop_work();
            }
            Some(Signal::TSTP) => {
                self.progress.line.clear();
                lines::flush(SHOW_EVERY);
                self.order_all(Signal::TSTP);
                stop(Stopped::Itself);
                self.order_all(Signal::CONT);
            }
            _ => {}
        }
    }

    fn running(&mut self) -> impl Iterator<Item = (&Keeper, &mut RunningItem)> {
        self.lanes.iter_mut().filter_map(|lane| match &mut lane.state {
            LaneState::Working(item) => Some((lane.keeper.as_ref()?, &mut **item)),
            _ => None,
        })
    }

    fn order_all(&mut self, signal: Signal) {
        for (keeper, _) in self.running() {
            keeper.send(&Order::Signal(signal.as_raw()));
        }
    }

    /// Ends all work; its items go back.
    fn stop_work(&mut self) {
        for (keeper, item) in self.running() {
            item.supervised.stop(keeper);
        }
    }

    /// A keeper has ended without an order. Its work is ended when the others are gone: until then this process
    /// could not distinguish their work from what that one left behind.
    fn on_keeper_gone(&mut self, number: usize) {
        let lane = &mut self.lanes[number];
        let Some(keeper) = lane.keeper.take() else { return };
        let pid = keeper.pid();
        keeper.wait();
        if let LaneState::Working(item) = std::mem::replace(&mut lane.state, LaneState::Idle) {
            if let Some(program) = item.supervised.program {
                Processes::new(program).signal(Signal::KILL);
            }
            self.orphaned.push((*item, pid));
        }
        self.failure.get_or_insert(keeper_gone());
        self.is_stopping = true;
        self.stop_work();
    }
}

/// Gives a keeper an item to work on, and a share of the life of `tenure`, if it has none yet.
fn start(
    tenure: Option<&Tenure>,
    keeper: &Keeper,
    name: &str,
    supervised: &Supervised<'static, Arc<Delivery>>,
) -> std::result::Result<(), Failure> {
    let delivery = supervised.leased();
    let mut variables = vec![
        ("TENURE_NAME", name.to_owned()),
        ("TENURE_ITEM", delivery.item().to_string()),
        ("TENURE_GROUP", delivery.group().unwrap_or_default().to_owned()),
        ("TENURE_ATTEMPT", delivery.attempt().to_string()),
    ];
    variables.extend(traces::of_item(delivery.context()));
    let input = input(delivery.payload()).map_err(|error| Failure::system("hand over a payload", error))?;
    let streams = Streams { input: Some(&input), output: None };
    supervised.start(keeper, tenure, variables, streams)
}

/// Makes a file in memory of a payload. A pipe would need a thread that fills it, and would break where CMD does not read it.
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
