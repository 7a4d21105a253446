//! The keeper process: it starts the work, and ends it when its time is up or `tenure` is gone.
//!
//! Everything happens in one loop over three descriptors: the socket to `tenure`, SIGCHLD, and the timer of the deadline. It
//! never allocates much, never logs, and has no thread.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{
    Pid, Signal, WaitStatus, geteuid, getpid, set_child_subreaper, set_parent_process_death_signal, setpgid,
    setsid,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use tenure::Instant;

use super::message::{Order, Report, Status, receive, send};
use crate::clock;
use crate::supervise::job::{Job, OnLoss};
use crate::supervise::work::Work;
use crate::sys::{self, SignalSet, read_signal};

/// The moment that never comes.
const NEVER: u64 = u64::MAX;
/// How soon the keeper checks again for processes whose end is not signalled to it, and how rarely at last.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(1);
const POLL_PAUSE_MAX: Duration = Duration::from_millis(20);
/// The same for processes that cannot be ended.
const POLL_PAUSE_UNKILLABLE: Duration = Duration::from_millis(200);
/// How soon after its start the work is checked for processes of other users; later it is checked at each renewal.
const FIRST_CHECK: Duration = Duration::from_millis(100);

/// Every signal that could end or stop the keeper by mistake.
const IGNORED_SIGNALS: &[Signal] = &[
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
];

/// The keeper's state.
struct KeeperProcess {
    job: Job,
    socket: OwnedFd,
    children: OwnedFd,
    timer: OwnedFd,
    /// For the work: the mask that `tenure` was started with.
    mask: SignalSet,
    work: Option<(Pid, Work)>,
    /// What is to be started as soon as all orders of `tenure` are read.
    start: Option<Start>,
    status: Option<Status>,
    /// The end of the lease.
    deadline: u64,
    /// When the work is killed although the lease goes on.
    kill_at: u64,
    armed: u64,
    poll_pause: Duration,
    is_tenure_gone: bool,
    is_overdue: bool,
    is_lingering: bool,
    /// When the work is checked for processes that cannot be ended.
    checks_unkillable_at: u64,
    has_unkillable: bool,
    /// Held until the keeper ends: while it is open, the engine knows that the work is alive.
    life: Option<OwnedFd>,
}

/// A program that is to be started.
struct Start {
    environment: Vec<(String, String)>,
    input: Option<OwnedFd>,
    output: Option<OwnedFd>,
    /// Signals that came for the work before it was started.
    signals: Vec<i32>,
}

/// Serves until the work is over.
pub(super) fn serve(job: Job, socket: OwnedFd, mask: SignalSet) -> Result<(), Errno> {
    // What is ignored does no harm, and the work is to inherit that. But where SIGCHLD is ignored, the system reaps
    // the children itself, and how they ended is lost.
    let caught = IGNORED_SIGNALS.iter().filter(|signal| !sys::is_ignored(**signal));
    for signal in caught.chain([&Signal::CHILD]) {
        sys::discard_signal(*signal).map_err(|_| Errno::INVAL)?;
    }
    mask.block_only();
    // A group of its own: what the terminal or a script sends to the group of `tenure` is not for the keeper.
    if job.is_detached {
        setsid()?;
    } else {
        setpgid(None, None)?;
    }
    // A keeper that was stopped goes on when `tenure` dies, and ends the work.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    set_child_subreaper(Some(getpid()))?;
    // The name in lists of processes; and `killall tenure` spares it.
    rustix::thread::set_name(c"tenure-keeper")?;
    let child = SignalSet::of(&[Signal::CHILD]);
    child.block();
    let children = child.descriptor().map_err(|_| Errno::MFILE)?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let keeper = KeeperProcess {
        job,
        socket,
        children,
        timer,
        mask,
        work: None,
        start: None,
        status: None,
        deadline: NEVER,
        kill_at: NEVER,
        armed: NEVER,
        poll_pause: POLL_PAUSE_MIN,
        is_tenure_gone: false,
        is_overdue: false,
        is_lingering: false,
        checks_unkillable_at: NEVER,
        has_unkillable: false,
        life: None,
    };
    keeper.run()
}

impl KeeperProcess {
    fn run(mut self) -> Result<(), Errno> {
        loop {
            self.watch()?;
            if let Some(status) = self.status {
                let report = Report::Ended { status, is_overdue: self.is_overdue };
                // The work is over, so the keeper may wait for a `tenure` that is stopped. If it is gone,
                // the send fails, and that does no harm.
                let _ = send(&self.socket, &report, &[], SendFlags::empty());
            }
            if self.is_tenure_gone || !self.job.is_repeated {
                return Ok(());
            }
            // As it was before the first start. It goes on sharing the client's life.
            (self.work, self.status) = (None, None);
            (self.deadline, self.kill_at, self.poll_pause) = (NEVER, NEVER, POLL_PAUSE_MIN);
            (self.is_overdue, self.is_lingering) = (false, false);
            (self.checks_unkillable_at, self.has_unkillable) = (NEVER, false);
        }
    }

    /// Watches over the work once, from before its start until nothing of it is left.
    fn watch(&mut self) -> Result<(), Errno> {
        loop {
            self.reap();
            if self.is_over() {
                return Ok(());
            }
            self.enforce()?;
            self.wait()?;
            self.receive_orders();
        }
    }

    /// Whether nothing of the work is left, or it has never been started and never will be.
    fn is_over(&mut self) -> bool {
        let Some((_, work)) = &self.work else { return self.is_tenure_gone };
        if self.is_tenure_gone && self.job.on_loss == OnLoss::Ignore {
            // Renewals have ended, and the work may go on: it keeps what is left of the lease.
            return self.status.is_some() || clock::now().nanos() >= self.deadline;
        }
        if self.status.is_none() || work.is_left() {
            return false;
        }
        true
    }

    fn reap(&mut self) {
        let Some((program, work)) = &mut self.work else { return };
        let program = *program;
        let mut stopped = None;
        work.reap(|pid, status| {
            if pid == program {
                match ended(status) {
                    Some(status) => self.status = Some(status),
                    None => stopped = status.stopping_signal(),
                }
            }
        });
        if let Some(signal) = stopped {
            self.report(&Report::Stopped { signal });
        }
    }

    /// Kills the work if its time is up, and ends what the program left behind.
    fn enforce(&mut self) -> Result<(), Errno> {
        let Some((_, work)) = &mut self.work else { return Ok(()) };
        let now = clock::now();
        if self.status.is_some() && !self.is_lingering {
            self.is_lingering = true;
            work.terminate();
            self.kill_at = self.kill_at.min((now + self.job.grace).nanos());
            self.report(&Report::Lingering);
        }
        let Some((_, work)) = &mut self.work else { return Ok(()) };
        let ends_at = if self.job.on_loss == OnLoss::Ignore { NEVER } else { self.deadline };
        let is_abandoned = self.is_tenure_gone && self.job.on_loss == OnLoss::Terminate;
        if now.nanos() >= ends_at.min(self.kill_at) || is_abandoned {
            self.is_overdue |= self.status.is_none();
            work.kill();
            // Processes that are left after a second try may be such that cannot be ended.
            if self.poll_pause > POLL_PAUSE_MIN * 2 {
                self.checks_unkillable_at = 0;
            }
        }
        self.check_unkillable(now.nanos());
        let wakes_at = if self.is_tenure_gone { self.deadline } else { ends_at };
        self.arm(wakes_at.min(self.kill_at).min(self.checks_unkillable_at))
    }

    /// Reports once if a process of the work cannot be ended.
    fn check_unkillable(&mut self, now: u64) {
        let Some((_, work)) = &mut self.work else { return };
        if now < self.checks_unkillable_at {
            return;
        }
        self.checks_unkillable_at = NEVER;
        if self.has_unkillable || self.job.on_loss == OnLoss::Ignore {
            return;
        }
        if let Some(pid) = work.find_unkillable() {
            self.has_unkillable = true;
            self.report(&Report::Unkillable { pid: pid.as_raw_nonzero().get() });
        }
    }

    fn arm(&mut self, at: u64) -> Result<(), Errno> {
        if at == self.armed {
            return Ok(());
        }
        // A time in the past fires at once, and zero would disarm the timer.
        let value = Timespec {
            tv_sec: i64::try_from(at / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (at % 1_000_000_000).max(1) as i64,
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        self.armed = at;
        Ok(())
    }

    /// Waits for an order, the end of a child, or the time.
    fn wait(&mut self) -> Result<(), Errno> {
        let is_abandoned = self.is_tenure_gone && self.job.on_loss == OnLoss::Terminate;
        let ends_at =
            if self.job.on_loss == OnLoss::Ignore && !self.is_tenure_gone { NEVER } else { self.deadline };
        let is_killing = clock::now().nanos() >= ends_at.min(self.kill_at) || is_abandoned;
        let timeout = (self.work.is_some() && (is_killing || self.status.is_some())).then(|| {
            let timeout = self.poll_pause;
            let most = if self.has_unkillable { POLL_PAUSE_UNKILLABLE } else { POLL_PAUSE_MAX };
            self.poll_pause = (timeout * 2).min(most);
            Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as i64 }
        });
        let mut polled = [
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::IN),
        ];
        // A socket whose other side is gone is always readable: nothing more is to come from it.
        let count = if self.is_tenure_gone { 2 } else { 3 };
        match poll(&mut polled[..count], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        while read_signal(&self.children).is_some() {}
        // The clock says what the time is; the timer only wakes.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        Ok(())
    }

    /// Receives and executes the orders of `tenure`. A program is started only when everything is read: a keeper that was stopped
    /// knows then whether the lease was renewed meanwhile, and whether `tenure` still lives.
    fn receive_orders(&mut self) {
        while !self.is_tenure_gone {
            match receive::<Order>(&self.socket) {
                Ok(Some((order, descriptors))) => self.execute(order, descriptors),
                Err(Errno::AGAIN) => break,
                // Whatever is wrong with the socket: no renewal can be received any more.
                Ok(None) | Err(_) => self.is_tenure_gone = true,
            }
        }
        if let Some(start) = self.start.take().filter(|_| !self.is_tenure_gone) {
            self.start(start);
        }
    }

    fn execute(&mut self, order: Order, descriptors: Vec<OwnedFd>) {
        match (order, &self.work, &mut self.start) {
            (Order::Start { deadline, environment, has_input, has_output }, None, None) => {
                let mut descriptors = descriptors.into_iter();
                let input = if has_input { descriptors.next() } else { None };
                let output = if has_output { descriptors.next() } else { None };
                self.life = self.life.take().or(descriptors.next());
                self.deadline = deadline;
                self.start = Some(Start { environment, input, output, signals: Vec::new() });
            }
            // Renewals only ever put the deadline off.
            (Order::Deadline(deadline), work, _) => {
                // Root may signal every process.
                if work.is_some() && !geteuid().is_root() {
                    self.checks_unkillable_at = 0;
                }
                self.deadline = self.deadline.max(deadline);
            }
            (Order::Signal(signal), Some((_, work)), _) => {
                if let Some(signal) = Signal::from_named_raw(signal)
                    && !work.signal(signal)
                {
                    self.checks_unkillable_at = 0;
                }
            }
            (Order::Signal(signal), None, Some(start)) => start.signals.push(signal),
            (Order::Terminate { kill_at }, Some((_, work)), _) => {
                self.kill_at = self.kill_at.min(kill_at);
                work.terminate();
            }
            // It would be ended at once.
            (Order::Terminate { .. }, None, Some(_)) => self.deadline = 0,
            (Order::Start { .. }, ..) | (Order::Signal(_) | Order::Terminate { .. }, None, None) => {}
        }
    }

    fn start(&mut self, start: Start) {
        let mut command = Command::new(&self.job.program);
        command.args(&self.job.arguments).envs(start.environment).process_group(0);
        if let Some(input) = start.input {
            command.stdin(input);
        }
        if let Some(output) = start.output {
            command.stdout(output);
        }
        // Where the work may go on without its lease, it may go on without its keeper.
        let parent = (self.job.on_loss == OnLoss::Terminate).then(getpid);
        sys::begin_before(&mut command, Instant::from_nanos(self.deadline), parent);
        // The work gets the mask that `tenure` was given. A SIGCHLD that is missed meanwhile is made up for: the
        // keeper reaps before it waits.
        let own_mask = self.mask.block_only();
        let spawned = command.spawn();
        own_mask.block_only();
        let started = match &spawned {
            Ok(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::CHILD),
            Err(error) => Err(Errno::from_io_error(error).unwrap_or(Errno::IO)),
        };
        match started {
            Ok(pid) => {
                let work = Work::new(pid);
                for signal in start.signals.into_iter().filter_map(Signal::from_named_raw) {
                    work.signal(signal);
                }
                self.work = Some((pid, work));
                if !geteuid().is_root() {
                    self.checks_unkillable_at = (clock::now() + FIRST_CHECK).nanos();
                }
                self.report(&Report::Started { pid: pid.as_raw_nonzero().get() });
            }
            Err(Errno::TIME) => self.report(&Report::TooLate),
            Err(errno) => {
                self.report(&Report::NotStarted { errno: errno.raw_os_error() });
                self.is_tenure_gone = true;
            }
        }
    }

    /// Sends `tenure` a report, unless it is gone, or is stopped and has a full socket.
    fn report(&self, report: &Report) {
        let _ = send(&self.socket, report, &[], SendFlags::DONTWAIT);
    }
}

fn ended(status: WaitStatus) -> Option<Status> {
    let by_itself = status.exit_status().map(Status::Code);
    by_itself.or_else(|| status.terminating_signal().map(Status::Signal))
}
