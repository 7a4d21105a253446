//! One piece of work in the foreground: it is given the terminal, and the signals of `tenure`.

use std::io;
use std::task::Context;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tenure::{Instant, Lease, Tenure};

use super::events::Event;
use super::job::{OnLoss, not_started};
use super::keeper::message::{Order, Report, Status};
use super::keeper::{Streams, keeper_gone};
use super::signals::{Stopped, is_end, stop};
use super::supervised::{Loss, Rules, Supervised};
use super::supervisor::Supervisor;
use super::terminal::Terminal;
use super::work::Work;
use crate::clock;
use crate::exit::{self, Failure, Outcome};
use crate::output::lines;
use crate::output::messages::JsonEvent;

/// How long processes that the program left behind may take to end before the user is told.
const LINGERING_MAX: Duration = Duration::from_secs(1);

/// One piece of work under a lease.
pub(crate) struct Foreground<'a> {
    name: &'a str,
    program: &'a str,
    on_loss: OnLoss,
    supervisor: Supervisor<'a>,
    lease: &'a Lease,
    supervised: Supervised<'a, &'a Lease>,
    terminal: Option<Terminal>,
    /// Whether a signal has asked the program to end.
    pub(crate) was_asked_to_end: bool,
    /// Since when the program has ended and others of its work are left, and whether the user was told.
    lingers_since: Option<Instant>,
    has_said_lingering: bool,
    has_said_not_ended: bool,
}

impl<'a> Foreground<'a> {
    /// Begins when the lease is granted.
    pub(crate) fn new(
        name: &'a str,
        program: &'a str,
        rules: Rules,
        supervisor: Supervisor<'a>,
        lease: &'a Lease,
    ) -> Foreground<'a> {
        Foreground {
            name,
            program,
            on_loss: rules.on_loss,
            supervisor,
            lease,
            supervised: Supervised::new(lease, rules),
            terminal: Terminal::open(),
            was_asked_to_end: false,
            lingers_since: None,
            has_said_lingering: false,
            has_said_not_ended: false,
        }
    }

    /// Runs the program to its end, and returns how the command ends.
    pub(crate) fn run(
        &mut self,
        tenure: &Tenure,
        variables: Vec<(&str, String)>,
        streams: Streams<'_>,
    ) -> Outcome {
        lines::flush(lines::SHOW_FIRST);
        let Supervisor { events, keeper, .. } = self.supervisor;
        self.supervised.start(keeper, Some(tenure), variables, streams)?;
        let waker = events.waker();
        let mut context = Context::from_waker(&waker);
        loop {
            // A report of the keeper counts before the clock: the work may have ended in time while this process was stopped.
            let timeout =
                if events.has_report(keeper) { Some(Duration::ZERO) } else { self.follow(&mut context) };
            match events.next(keeper, timeout) {
                Ok(Event::Report(Report::Ended { status, is_overdue })) => {
                    return self.ended(status, is_overdue);
                }
                Ok(Event::Report(Report::TooLate)) => return Err(self.too_late()),
                Ok(Event::Report(Report::NotStarted { errno })) => {
                    return Err(not_started(self.program, errno));
                }
                Ok(Event::Report(report)) => self.on_report(&report),
                Ok(Event::Signal(signal)) => self.on_signal(signal),
                Ok(Event::Woken) => {}
                Ok(Event::KeeperGone) => {
                    self.end_work();
                    return Err(keeper_gone());
                }
                Err(error) => return Err(self.give_up(&error)),
            }
        }
    }

    fn on_report(&mut self, report: &Report) {
        let name = self.name;
        match *report {
            Report::Started { pid } => {
                self.supervised.program = Pid::from_raw(pid);
                self.supervisor.messages.event(&JsonEvent::Started { name, pid });
                self.offer_terminal();
            }
            Report::Stopped { signal } => self.on_stopped(signal),
            Report::Unkillable { pid } => self.on_unkillable(pid),
            Report::Lingering => {
                self.lingers_since = Some(clock::now());
                self.supervisor.messages.event(&JsonEvent::Lingering { name });
                self.take_terminal();
            }
            Report::NotStarted { .. } | Report::TooLate | Report::Ended { .. } => {}
        }
    }

    /// Follows the lease, and returns when to do so again.
    fn follow(&mut self, context: &mut Context<'_>) -> Option<Duration> {
        self.report_lingering();
        let (pause, loss) = self.supervised.follow(self.supervisor.keeper, context);
        if let Some(loss) = loss {
            self.on_lost(loss);
        }
        self.warn_if_not_ended();
        let until_said = self.lingers_since.filter(|_| !self.has_said_lingering).map(|_| LINGERING_MAX);
        [pause, until_said].into_iter().flatten().min()
    }

    /// Reports once that the work is being ended, or that it goes on without its lease.
    fn on_lost(&self, loss: Loss) {
        let (name, token, slot) = (self.name, self.lease.token().get(), self.lease.slot());
        self.supervisor.messages.event(&JsonEvent::Lost { name, token, slot, reason: loss.reason() });
        if self.on_loss == OnLoss::Ignore && !self.supervisor.messages.json {
            let text = format!("the lease of {name:?} is lost, and CMD goes on: {}", loss.reason());
            self.supervisor.messages.warning(&text);
        }
    }

    fn on_unkillable(&mut self, pid: i32) {
        self.supervised.unkillable = Some(pid);
        self.supervisor.messages.warning(&unkillable_warning("CMD", pid));
    }

    /// Warns once if the lease is over and the work could not be ended.
    fn warn_if_not_ended(&mut self) {
        let Some(pid) = self.supervised.unkillable.filter(|_| !self.has_said_not_ended) else { return };
        if self.supervised.loss(false).is_some() && clock::now() >= self.lease.deadline() {
            self.has_said_not_ended = true;
            let name = self.name;
            self.supervisor.messages.warning(&format!(
                "the lease of {name:?} is over, and CMD could not be ended: pid {pid} belongs to another user; waiting for it"
            ));
        }
    }

    fn report_lingering(&mut self) {
        let Some(since) = self.lingers_since.filter(|_| !self.has_said_lingering) else { return };
        if clock::now().since(since) >= LINGERING_MAX {
            self.has_said_lingering = true;
            self.supervisor
                .messages
                .message("CMD has ended; waiting for processes that it left behind to end");
        }
    }

    fn on_signal(&mut self, signal: i32) {
        if Signal::from_named_raw(signal) == Some(Signal::CONT) {
            self.offer_terminal();
        }
        self.was_asked_to_end |= is_end(signal);
        self.supervisor.keeper.send(&Order::Signal(signal));
    }

    /// The program was stopped. With a terminal, that is Ctrl-Z or an attempt to read from the terminal.
    fn on_stopped(&mut self, signal: i32) {
        let (Some(terminal), Some(program)) = (&self.terminal, self.supervised.program) else { return };
        let signal = Signal::from_named_raw(signal);
        let is_asking = matches!(signal, Some(Signal::TTIN | Signal::TTOU));
        if is_asking && (terminal.give(program) || terminal.is_with(program)) {
            return self.supervisor.keeper.send(&Order::Signal(Signal::CONT.as_raw()));
        }
        let had_terminal = terminal.take_back(program);
        // A `kill -STOP` of the program alone: the lease stays held.
        if !had_terminal && !is_asking && signal != Some(Signal::TSTP) {
            return;
        }
        stop(Stopped::Group);
        self.offer_terminal();
        self.supervisor.keeper.send(&Order::Signal(Signal::CONT.as_raw()));
    }

    fn offer_terminal(&self) {
        if let (Some(terminal), Some(program)) = (&self.terminal, self.supervised.program)
            && terminal.offer(program)
        {
            // It may have been stopped for touching the terminal too early.
            self.supervisor.keeper.send(&Order::Signal(Signal::CONT.as_raw()));
        }
    }

    fn take_terminal(&self) {
        if let (Some(terminal), Some(program)) = (&self.terminal, self.supervised.program) {
            terminal.take_back(program);
        }
    }

    /// Returns how the command ends when the work is over.
    fn ended(&mut self, status: Status, is_overdue: bool) -> Outcome {
        self.take_terminal();
        let name = self.name;
        let (code, signal) = match status {
            Status::Code(code) => (Some(code), None),
            Status::Signal(signal) => (None, Some(signal)),
        };
        self.supervisor.messages.event(&JsonEvent::Ended { name, code, signal });
        let Some(loss) = self.supervised.loss(is_overdue) else { return Ok(status.code()) };
        let end = match self.supervised.unkillable {
            Some(pid) if clock::now() > self.lease.deadline() => {
                format!("CMD could not be ended, and went on without it: pid {pid} belongs to another user")
            }
            _ => "CMD was ended".to_owned(),
        };
        Err(self.lost(loss, &end))
    }

    fn too_late(&self) -> Failure {
        let loss = self.supervised.loss(true).unwrap_or(Loss::NotRenewed);
        if self.supervised.is_held() {
            self.on_lost(loss);
        }
        self.lost(loss, "CMD was not started")
    }

    fn lost(&self, loss: Loss, end: &str) -> Failure {
        let (name, token) = (self.name, self.lease.token());
        let slot = self.lease.slot().map_or(String::new(), |slot| format!("slot {slot}, "));
        let reason = loss.reason();
        let message = format!("lost the lease of {name:?} ({slot}token {token}), {end}: {reason}");
        Failure::new(exit::LOST, message).with_hint(match loss {
            Loss::Broken => "see who holds it now with `tenure status`",
            Loss::NotRenewed => "try `tenure doctor`; a longer --ttl survives longer trouble",
            Loss::StoodStill => "a longer --ttl survives a longer pause",
            Loss::MaxHold => "raise --max-hold, or make CMD shorter",
        })
    }

    /// Ends the work in the keeper's place. The keeper may have died before it could report which process it has started.
    fn end_work(&mut self) {
        self.take_terminal();
        self.supervisor.keeper.wait_for_end();
        let messages = self.supervisor.messages;
        Work::of_keeper(self.supervised.program, None)
            .end(|pid| messages.warning(&unkillable_warning("CMD", pid.as_raw_nonzero().get())));
    }

    /// Ends the work because this process cannot wait for events any more.
    fn give_up(&mut self, error: &io::Error) -> Failure {
        self.take_terminal();
        if let Some(program) = self.supervised.program {
            Work::new(program).end(|_| {});
        }
        Failure::system("wait for CMD", error)
    }
}

/// Returns the warning that a process of the work cannot be ended. `whose` work it is: that of CMD, or of an item.
pub(crate) fn unkillable_warning(whose: &str, pid: i32) -> String {
    format!(
        "{whose} runs a process of another user (pid {pid}), which `tenure` may not signal: it goes on if the lease is lost"
    )
}
