//! `tenure run`: acquire the lock, run the program under it, release the lock, exit as the program did.
//!
//! Two processes share the duty. This one has the client: it acquires, passes signals on, does the terminal's
//! job control, and tells the keeper (`keeper.rs`) every new deadline. The keeper has the work, and ends it
//! whatever happens to this process. Invariant: the lease is released only after the keeper has said that
//! nothing of the work is left, or after this process has made sure of it in the keeper's place.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tenure::{Instant, Lease, Tenure};

use crate::arguments::Run;
use crate::clock;
use crate::countdown::Countdown;
use crate::events::{Events, News, Signals, Stopped, stop};
use crate::exit::{self, Failure, Outcome};
use crate::keeper::message::{Order, Report, Status};
use crate::keeper::{Job, Keeper, OnLoss};
use crate::output::{Event, Messages, duration, millis};
use crate::terminal::Terminal;
use crate::waiting::{Ended, Held, acquire, keeper_gone};
use crate::work::Work;

/// How soon what is left of the work is said to take its time.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a candidate waits before it asks a store again that did not answer: it has waited for the answer, too.
const CAMPAIGN_PAUSE: Duration = Duration::from_secs(1);

/// Runs a program under a lock.
pub(crate) fn run(mut arguments: Run, engine: &str, messages: Messages) -> Outcome {
    let began_at = clock::now();
    let signals = Signals::catch().map_err(|error| Failure::system("catch signals", error))?;
    let program = arguments.command.remove(0);
    let job = Job {
        program: program.clone(),
        arguments: std::mem::take(&mut arguments.command),
        grace: arguments.grace,
        on_loss: arguments.on_loss,
        is_repeated: arguments.leader,
    };
    // Before the client, which has threads.
    let keeper = Keeper::start(job, signals.before())
        .map_err(|error| Failure::system("start the keeper process", error))?;
    // If the keeper is killed, the work becomes a child of this process and can be waited for.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let events = Events::new(signals).map_err(|error| Failure::system("wait for events", error))?;
    // Without the arguments: they may hold a password.
    let program_name = std::path::Path::new(&program).file_name().unwrap_or(&program).to_string_lossy();
    let label = arguments.label.as_deref().unwrap_or(&program_name);
    let tenure = crate::connect(engine, Some(label))?;
    let program = program.to_string_lossy();
    let term = Term { tenure: &tenure, arguments: &arguments, events: &events, keeper: &keeper, messages };
    let outcome = term.serve_all(&program, began_at);
    // First the keeper: while it shares the client's life, the client cannot tidy up after itself.
    keeper.wait();
    // Waits for what is still to be withdrawn or released; bounded by the answer timeout.
    pollster::block_on(tenure.close());
    outcome
}

/// Acquires, works and releases: once, or with `--leader` again whenever the lease was lost.
struct Term<'a> {
    tenure: &'a Tenure,
    arguments: &'a Run,
    events: &'a Events,
    keeper: &'a Keeper,
    messages: Messages,
}

impl Term<'_> {
    fn serve_all(&self, program: &str, began_at: Instant) -> Outcome {
        let (mut began_at, mut is_silent) = (began_at, false);
        loop {
            let failure = match self.serve(program, began_at) {
                Ok(code) => return Ok(code),
                Err(Ended::Signal(signal)) => return Ok(Status::Signal(signal).code()),
                Err(Ended::Failure(failure)) => return Err(failure),
                Err(Ended::Lost(failure) | Ended::Silent(failure)) if !self.arguments.leader => {
                    return Err(failure);
                }
                Err(Ended::Lost(failure)) => {
                    is_silent = false;
                    self.messages.warning(&format!("{}; campaigning again", failure.message));
                    None
                }
                Err(Ended::Silent(failure)) => Some(failure),
            };
            // A store that cannot be reached is why most terms are lost, and it will come back.
            if let Some(failure) = failure {
                if !is_silent {
                    self.messages.warning(&format!("{}; campaigning until it is back", failure.message));
                }
                is_silent = true;
                if let Some(ended) = self.pause()? {
                    return Ok(Status::Signal(ended).code());
                }
            }
            began_at = clock::now();
        }
    }

    /// Acquires, works and releases.
    fn serve(&self, program: &str, began_at: Instant) -> Result<u8, Ended> {
        let Term { tenure, arguments, events, keeper, messages } = *self;
        let held = acquire(tenure, arguments, events, keeper, messages)?;
        let lease = held.lease();
        messages.event(&Event::Granted {
            name: &arguments.name,
            token: lease.token().get(),
            slot: lease.slot(),
            claim: lease.claim().to_string(),
            waited_ms: millis(clock::now().since(began_at)),
        });
        if arguments.leader {
            messages.message(&format!("leading {:?} under token {}", arguments.name, lease.token()));
        }
        let mut shift = Shift::new(arguments, events, keeper, messages, lease);
        let outcome = shift.work(tenure, program);
        let is_told_to_end = shift.is_told_to_end;
        release(held, arguments, messages);
        outcome.map_err(|failure| match failure.code {
            exit::LOST if !is_told_to_end => Ended::Lost(failure),
            _ => Ended::Failure(failure),
        })
    }

    /// Lets some time pass before it campaigns again. Returns the signal that ends it.
    fn pause(&self) -> Result<Option<i32>, Failure> {
        let until = clock::now() + CAMPAIGN_PAUSE;
        loop {
            let left = until.since(clock::now());
            if left.is_zero() {
                return Ok(None);
            }
            match self.events.next(self.keeper, Some(left)) {
                Ok(News::Signal(signal)) => match Signal::from_named_raw(signal) {
                    Some(Signal::TSTP) => stop(Stopped::Itself),
                    Some(Signal::HUP) => return Ok(Some(signal)),
                    _ if is_end(signal) => return Ok(Some(signal)),
                    _ => {}
                },
                Ok(News::KeeperGone) => return Err(keeper_gone()),
                Ok(_) => {}
                Err(error) => return Err(Failure::system("wait", error)),
            }
        }
    }
}

/// Whether a signal asks a program to end.
fn is_end(signal: i32) -> bool {
    matches!(Signal::from_named_raw(signal), Some(Signal::INT | Signal::TERM | Signal::QUIT))
}

/// Releases the lease.
fn release(held: Held, arguments: &Run, messages: Messages) {
    let token = held.lease().token().get();
    match held.release() {
        Ok(tenure::ReleaseAnswer::Released) => {
            messages.event(&Event::Released { name: &arguments.name, token });
        }
        // What there is to say about that has been said when it was lost.
        Ok(tenure::ReleaseAnswer::AlreadyLost) => {}
        Err(error) => {
            messages
                .warning(&format!("{error}; the lock is free in {} at the latest", duration(arguments.ttl)));
        }
    }
}

/// One turn of work under a lease, as this process looks after it.
struct Shift<'a> {
    arguments: &'a Run,
    events: &'a Events,
    keeper: &'a Keeper,
    messages: Messages,
    lease: &'a Lease,
    terminal: Option<Terminal>,
    program: Option<Pid>,
    countdown: Countdown,
    /// Why the work is being ended, once it is.
    loss: Option<Loss>,
    is_ignoring_loss: bool,
    /// Whether somebody has asked the program to end.
    is_told_to_end: bool,
    /// Since when only processes are left that the program left behind, and whether that has been said.
    lingers_since: Option<Instant>,
    has_said_lingering: bool,
}

/// Why a lease ended before its work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The engine said so.
    Broken,
    /// Its end has come or is near.
    NotRenewed,
    /// It has been held for as long as it may be.
    MaxHold,
}

impl Loss {
    /// Says it to people.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Loss::Broken => "the engine has ended it: somebody broke it, or the store has forgotten it",
            Loss::NotRenewed => {
                "it was not renewed in time: the engine did not answer, or `tenure` was stopped"
            }
            Loss::MaxHold => "it has been held for as long as --max-hold allows",
        }
    }
}

impl<'a> Shift<'a> {
    fn new(
        arguments: &'a Run,
        events: &'a Events,
        keeper: &'a Keeper,
        messages: Messages,
        lease: &'a Lease,
    ) -> Shift<'a> {
        Shift {
            arguments,
            events,
            keeper,
            messages,
            lease,
            terminal: Terminal::open(),
            program: None,
            countdown: Countdown::new(lease, arguments.ttl, arguments.grace),
            loss: None,
            is_ignoring_loss: false,
            is_told_to_end: false,
            lingers_since: None,
            has_said_lingering: false,
        }
    }

    /// Runs the program to its end, and says how the command ends.
    fn work(&mut self, tenure: &Tenure, program: &str) -> Outcome {
        let keeper_pid = self.keeper.pid().as_raw_nonzero().get().unsigned_abs();
        // Before the work begins: from then on the engine takes this client for alive while the keeper lives.
        let life = tenure.share_life(keeper_pid)?;
        let mut environment = vec![
            ("TENURE_NAME".to_owned(), self.arguments.name.clone()),
            ("TENURE_TOKEN".to_owned(), self.lease.token().to_string()),
            ("TENURE_CLAIM".to_owned(), self.lease.claim().to_string()),
        ];
        environment.extend(self.lease.slot().map(|slot| ("TENURE_SLOT".to_owned(), slot.to_string())));
        let deadline = self.countdown.kills_at();
        if self.keeper.start_work(deadline, environment, None, life.as_ref()).is_err() {
            return Err(keeper_gone());
        }
        drop(life);
        let waker = self.events.waker();
        let mut context = Context::from_waker(&waker);
        let lease = self.lease;
        let mut lost = pin!(lease.lost());
        let mut is_lost = false;
        loop {
            // What the keeper has said counts before what the clock says: the work may have ended in time while
            // this process was stopped.
            let timeout = if self.events.has_report(self.keeper) {
                Some(Duration::ZERO)
            } else {
                if !is_lost && matches!(lost.as_mut().poll(&mut context), Poll::Ready(_)) {
                    is_lost = true;
                    self.on_lost();
                }
                self.tell_deadline()
            };
            match self.events.next(self.keeper, timeout) {
                Ok(News::Report(Report::Ended { status, is_overdue })) => {
                    return self.ended(status, is_overdue);
                }
                Ok(News::Report(Report::NotStarted { errno })) => return Err(not_started(program, errno)),
                Ok(News::Report(report)) => self.on_report(&report),
                Ok(News::Signal(signal)) => self.on_signal(signal),
                Ok(News::Look) => {}
                Ok(News::KeeperGone) => {
                    self.end_work();
                    return Err(keeper_gone());
                }
                Err(error) => return Err(self.give_up(&error)),
            }
        }
    }

    fn on_report(&mut self, report: &Report) {
        let name = &self.arguments.name;
        match *report {
            Report::Started { pid } => {
                self.program = Pid::from_raw(pid);
                self.messages.event(&Event::Started { name, pid });
                self.offer_terminal();
            }
            Report::Stopped { signal } => self.on_stopped(signal),
            Report::Lingering => {
                self.lingers_since = Some(clock::now());
                self.messages.event(&Event::Lingering { name });
                self.take_terminal();
            }
            Report::NotStarted { .. } | Report::Ended { .. } => {}
        }
    }

    /// Tells the keeper of a new deadline, begins to end the work if there is none in time, and returns when to
    /// look again.
    fn tell_deadline(&mut self) -> Option<Duration> {
        self.say_lingering();
        if self.loss.is_some() {
            // Whatever is renewed now, the work is being ended. The keeper kills it in time; if it does not,
            // because somebody has stopped it, this process does.
            return Some(self.countdown.kill_if_overdue(self.program));
        }
        if self.is_ignoring_loss {
            return None;
        }
        let pause = self.countdown.follow(self.lease, self.keeper);
        if pause.is_none() && self.arguments.on_loss == OnLoss::Terminate {
            let is_held_out = self.is_held_out(self.lease.deadline());
            self.begin_end(if is_held_out { Loss::MaxHold } else { Loss::NotRenewed });
            return Some(self.countdown.kill_if_overdue(self.program));
        }
        let pause = pause.unwrap_or_default();
        let patience = self.lingers_since.filter(|_| !self.has_said_lingering).map(|_| PATIENCE);
        Some(pause.min(patience.unwrap_or(pause)).max(Duration::from_millis(1)))
    }

    /// Whether a deadline is the end that `--max-hold` sets. It is computed with a margin of about 1 %.
    fn is_held_out(&self, deadline: Instant) -> bool {
        self.arguments.max_hold.is_some_and(|max_hold| {
            deadline + max_hold / 50 + Duration::from_millis(20) >= self.countdown.granted_at + max_hold
        })
    }

    fn on_lost(&mut self) {
        let last = self.lease.deadline();
        if self.loss.is_some() {
            return;
        }
        let loss = match () {
            () if self.is_held_out(last) => Loss::MaxHold,
            () if clock::now() < last => Loss::Broken,
            () => Loss::NotRenewed,
        };
        self.begin_end(loss);
    }

    /// Begins to end the work, or says once why it should end.
    fn begin_end(&mut self, loss: Loss) {
        let (name, token) = (&self.arguments.name, self.lease.token().get());
        let slot = self.lease.slot();
        self.messages.event(&Event::Lost { name, token, slot, reason: loss.reason() });
        if self.arguments.on_loss == OnLoss::Ignore {
            self.is_ignoring_loss = true;
            let text = format!("the lease of {name:?} is lost, and CMD goes on: {}", loss.reason());
            if !self.messages.json {
                self.messages.warning(&text);
            }
            return;
        }
        self.loss = Some(loss);
        self.countdown.end_work(self.lease, self.keeper, loss == Loss::Broken);
    }

    fn say_lingering(&mut self) {
        let Some(since) = self.lingers_since.filter(|_| !self.has_said_lingering) else { return };
        if clock::now().since(since) >= PATIENCE {
            self.has_said_lingering = true;
            self.messages.message("CMD has ended; waiting for processes that it left behind to end");
        }
    }

    fn on_signal(&mut self, signal: i32) {
        if Signal::from_named_raw(signal) == Some(Signal::CONT) {
            self.offer_terminal();
        }
        self.is_told_to_end |= is_end(signal);
        self.keeper.order(&Order::Signal(signal));
    }

    /// The program was stopped. With a terminal, that is Ctrl-Z or an attempt to read from the terminal.
    fn on_stopped(&mut self, signal: i32) {
        let (Some(terminal), Some(program)) = (&self.terminal, self.program) else { return };
        let signal = Signal::from_named_raw(signal);
        let is_asking = matches!(signal, Some(Signal::TTIN | Signal::TTOU));
        if is_asking && (terminal.give(program) || terminal.is_with(program)) {
            return self.keeper.order(&Order::Signal(Signal::CONT.as_raw()));
        }
        let had_terminal = terminal.take_back(program);
        // In the background somebody may stop the program alone (`kill -STOP`): the lease stays held then.
        if !had_terminal && !is_asking && signal != Some(Signal::TSTP) {
            return;
        }
        stop(Stopped::Group);
        self.offer_terminal();
        self.keeper.order(&Order::Signal(Signal::CONT.as_raw()));
    }

    fn offer_terminal(&self) {
        if let (Some(terminal), Some(program)) = (&self.terminal, self.program)
            && terminal.offer(program)
        {
            // It may have been stopped for touching the terminal too early.
            self.keeper.order(&Order::Signal(Signal::CONT.as_raw()));
        }
    }

    fn take_terminal(&self) {
        if let (Some(terminal), Some(program)) = (&self.terminal, self.program) {
            terminal.take_back(program);
        }
    }

    /// The work is over: says how the command ends.
    fn ended(&mut self, status: Status, is_overdue: bool) -> Outcome {
        self.take_terminal();
        let name = &self.arguments.name;
        let (code, signal) = match status {
            Status::Code(code) => (Some(code), None),
            Status::Signal(signal) => (None, Some(signal)),
        };
        self.messages.event(&Event::Ended { name, code, signal });
        // The keeper killed it at the deadline while this process was stopped.
        let loss = self.loss.or(is_overdue.then_some(Loss::NotRenewed));
        match loss {
            None => Ok(status.code()),
            Some(loss) => {
                let token = self.lease.token();
                let slot = self.lease.slot().map_or(String::new(), |slot| format!("slot {slot}, "));
                let reason = loss.reason();
                let message =
                    format!("lost the lease of {name:?} ({slot}token {token}), CMD was ended: {reason}");
                Err(Failure::new(exit::LOST, message).with_hint(match loss {
                    Loss::Broken => "see who holds it now with `tenure status`",
                    Loss::NotRenewed => "try `tenure doctor`; a longer --ttl survives longer trouble",
                    Loss::MaxHold => "raise --max-hold, or make CMD shorter",
                }))
            }
        }
    }

    /// Ends the work in the keeper's place.
    fn end_work(&mut self) {
        let Some(program) = self.program else { return };
        self.take_terminal();
        Work::new(program).end();
    }

    /// The system fails this process: nothing can be watched any more.
    fn give_up(&mut self, error: &io::Error) -> Failure {
        self.end_work();
        Failure::system("wait for CMD", error)
    }
}

/// The program cannot be executed: the codes of shells.
pub(crate) fn not_started(program: &str, errno: i32) -> Failure {
    let error = io::Error::from_raw_os_error(errno);
    if error.kind() == io::ErrorKind::NotFound {
        let hint = "check its name, PATH, and the interpreter that its first line names";
        return Failure::new(exit::NOT_FOUND, format!("cannot find {program:?}: {error}")).with_hint(hint);
    }
    let hint = "is it executable (`chmod +x`), and does a script begin with `#!`?";
    Failure::new(exit::NOT_EXECUTABLE, format!("cannot execute {program:?}: {error}")).with_hint(hint)
}
