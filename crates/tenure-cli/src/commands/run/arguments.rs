//! The flags of `tenure run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::counting::{HEADING, MetricsFlags};
use crate::duration::{TIME_HELP, parse_duration};
use crate::supervise::job::OnLoss;

const RUN_HELP: &str = "\
Waits for the lock NAME, runs CMD while it is held, releases it, and exits as CMD did.

The work is CMD and every process that it starts, but for those that begin a session of their own (`setsid`): \
start a daemon that is to outlive the lock that way. When CMD has ended and others of the work are left, they \
are ended too (SIGTERM, after --grace SIGKILL) before the lock is released.

If the lease cannot be renewed, the work gets SIGTERM at --grace (at most a third of --ttl, or of the time after which the store gives up a silent client) before the lease's \
end and SIGKILL just before it. If the lease is broken by somebody (`tenure release`), it gets SIGTERM at once. \
If `tenure` itself is killed (`kill -9`), the work is killed and then the lock is free; if it is stopped for \
longer than --ttl (SIGSTOP, Ctrl-Z without `fg`), the work is killed at the end of the lease.

Signals that `tenure` gets are passed on to CMD (INT TERM HUP QUIT USR1 USR2 TSTP CONT WINCH); while it still \
waits for the lock, INT, TERM, HUP and QUIT withdraw the claim and end it.

CMD finds in its environment: TENURE_NAME, TENURE_TOKEN (the fencing token: larger for each later grant, hand it \
to what you write to), TENURE_CLAIM (the id of this claim), and with --slots TENURE_SLOT (from 0).

Without a flag that says otherwise, NAME is a mutex: one at a time. Everyone who uses a name at the same time must use the same kind \
and number, or gets exit code 64. --shared and --exclusive are the two sides of a read-write lock: many with --shared together, or \
one with --exclusive alone.

With --leader, `tenure` campaigns for the leadership of NAME (`tenure elect NAME` shows who leads), starts CMD when it \
leads, and ends CMD when it loses its term; then it campaigns again, also while the engine does not answer, and starts \
CMD again, with a new TENURE_TOKEN. When CMD ends by itself, whatever its exit code, `tenure` resigns and exits as CMD \
did: have a service manager start `tenure` again if it is to go on. INT, TERM and QUIT are the end, too: if the term \
is lost while CMD still ends, it is not started again.";

const RUN_EXAMPLES: &str = "\
Examples:
  tenure run backup -- ./backup.sh                one at a time; the others wait
  tenure run backup --wait 0s -- ./backup.sh      now or not at all
  tenure run report --every 1h -- ./report.sh     once an hour, whichever machine's cron comes first
  tenure run api --slots 4 -- ./worker.sh         four at a time, numbered by TENURE_SLOT
  tenure run scheduler --leader -- ./scheduler    one leader, and another when it dies
  tenure run api --metrics 127.0.0.1:9184 -- ./api
                                                  served to Prometheus for as long as it runs
  tenure run report --metrics-file /var/lib/node_exporter --expected 26h -- ./report.sh
                                                  when it last succeeded, for node_exporter";

const RUN_CODES: &str = "\
Exit codes: that of CMD, or
  64     wrong usage, or NAME is in use as another kind or with another number
  69     the engine is not available, or what --metrics or --metrics-file names
  75     not acquired in time; with --every: it ran within that time
  76     the lease was lost while CMD ran
  126    CMD cannot be executed
  127    CMD is not found
  128+n  signal n ended CMD, or the waiting";

const KIND: &str = "What NAME is, if not a mutex";

const RUN_JSON_HELP: &str = "Write events to stderr as JSON, one object a line, instead of messages. \
`event` is one of metrics, waiting, granted, started, lingering, lost, ended, released, warning, error";

/// Run a program under a lock
#[derive(Debug, Args)]
#[command(long_about = RUN_HELP, after_help = format!("{RUN_EXAMPLES}\n\n{TIME_HELP}\n\n{RUN_CODES}"))]
pub(crate) struct Run {
    /// The lock: 1 to 255 bytes, no control characters
    pub(crate) name: String,
    /// Share the lock with others who say --shared; nobody says --exclusive meanwhile
    #[arg(long, group = "kind", help_heading = KIND)]
    pub(crate) shared: bool,
    /// Have the lock alone: nobody says --shared or --exclusive meanwhile
    #[arg(long, group = "kind", help_heading = KIND)]
    pub(crate) exclusive: bool,
    /// Run at most N at a time, of all who say --permits
    #[arg(long, value_name = "N", group = "kind", help_heading = KIND)]
    pub(crate) permits: Option<u32>,
    /// How many of the permits CMD takes [default: 1]
    #[arg(long, value_name = "W", requires = "permits", help_heading = KIND)]
    pub(crate) weight: Option<u32>,
    /// Take one of N slots; CMD finds its number, from 0 to N-1, in TENURE_SLOT
    #[arg(long, value_name = "N", group = "kind", help_heading = KIND)]
    pub(crate) slots: Option<u32>,
    #[arg(long, group = "kind", conflicts_with_all = ["every", "wait", "on_loss"], help_heading = KIND)]
    #[arg(help = "Run CMD only while this process leads the election NAME, and again after each loss")]
    pub(crate) leader: bool,
    /// How long the lock outlives a machine or a network that is gone
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,
    /// How long to wait for the lock; 0s: not at all [default: for ever, with --every 0s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// End the work this long after the lock was granted
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Run at most once in this time, counted from start to start, however many try
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) every: Option<Duration>,
    /// How long the work has between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) grace: Duration,
    /// What happens to CMD when the lease is lost
    #[arg(long, value_enum, default_value = "terminate")]
    pub(crate) on_loss: OnLoss,
    /// A note that `tenure status` shows as the holder [default: the name of CMD]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Keep the lock from others for this long after its holder vanished
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) lock_delay: Option<Duration>,
    #[arg(long, help = RUN_JSON_HELP)]
    pub(crate) json: bool,
    /// Show no messages but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Keep what is known of the job in a file in DIR, for node_exporter: when it last began, succeeded, was busy
    #[arg(long, value_name = "DIR", help_heading = HEADING)]
    pub(crate) metrics_file: Option<PathBuf>,
    /// How much time may pass between two successes, for the alert that one is missing
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "metrics_file", help_heading = HEADING)]
    pub(crate) expected: Option<Duration>,
    #[command(flatten)]
    pub(crate) metrics: MetricsFlags,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// Returns why nothing was granted, as it stands between the name and its longest holder.
    pub(crate) fn obstacle(&self) -> &'static str {
        match (self.slots, self.permits) {
            (Some(_), _) => "has no free slot; the longest is ",
            (_, Some(_)) => "has too few free permits; the longest is ",
            _ => "is ",
        }
    }
}
