//! The flags, from which `--help`, the man page and the shell completions are made.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};

use crate::exit::{self, Failure};
use crate::queue::Queue;
use crate::supervise::keeper::OnLoss;

/// Locks, leases and queues for programs, on the store you already run or on this machine alone.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The engine that grants the locks: `local:`, `redis://host`, …
    #[arg(long, global = true, value_name = "URL", env = "TENURE_ENGINE", hide_env_values = true)]
    #[arg(long_help = "The engine that grants the locks: `local:` (this machine, the default), \
        `local:/dir`, `redis://host`, `redis+sentinel://host,host,host/master-name`, \
        `redis+cluster://host,host`, …\n\nA URL with a password belongs into the environment variable, where other users of \
        the machine do not see it.")]
    pub(crate) engine: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program under a lock
    #[command(long_about = RUN_HELP, after_help = exit::HELP)]
    Run(Box<Run>),
    /// Put work in line, and do it in order
    #[command(subcommand)]
    Queue(Queue),
    /// Run a program once for all who want its output, and share it
    #[command(long_about = CACHE_HELP)]
    Cache(Box<Cache>),
    /// Show who leads an election; exit code 1: nobody does
    Elect(Elect),
    /// List what is held, by whom, and who waits
    Status(Status),
    /// Show each change of a lock, one line each, until interrupted
    Watch(Watch),
    /// Break somebody's hold
    #[command(long_about = RELEASE_HELP, after_help = "Exit code 1: the question was answered with no.")]
    Release(Release),
    /// Change how many units a semaphore or a slot pool has, while it is in use
    #[command(long_about = RESIZE_HELP, after_help = "Exit code 1: the question was answered with no.")]
    Resize(Resize),
    /// Look whether the engine can be trusted
    Doctor(Doctor),
    /// Refuse work whose lease is over, for scripts that write to files
    #[command(subcommand)]
    Fence(Fence),
    /// Write a completion script for a shell to stdout
    Completions(Completions),
    /// Write the manual page to stdout
    Man(Man),
}

const RUN_HELP: &str = "\
Waits for the lock NAME, runs CMD while it is held, releases it, and exits as CMD did.

The work is CMD and every process that it starts, but for those that begin a session of their own (`setsid`): \
start a daemon that is to outlive the lock that way. When CMD has ended and others of the work are left, they \
are ended too (SIGTERM, after --grace SIGKILL) before the lock is released.

If the lease cannot be renewed, the work gets SIGTERM at --grace (at most a third of --ttl) before the lease's \
end and SIGKILL just before it. If the lease is broken by somebody (`tenure release`), it gets SIGTERM at once. \
If `tenure` itself is killed (`kill -9`), the work is killed and then the lock is free; if it is stopped for \
longer than --ttl (SIGSTOP, Ctrl-Z without `fg`), the work is killed at the end of the lease.

Signals that `tenure` gets are passed on to CMD (INT TERM HUP QUIT USR1 USR2 TSTP CONT WINCH); while it still \
waits for the lock, INT, TERM, HUP and QUIT withdraw the claim and end it.

CMD finds in its environment: TENURE_NAME, TENURE_TOKEN (the fencing token: larger for each later grant, hand it \
to what you write to), TENURE_CLAIM (the id of this claim), and with --slots TENURE_SLOT (from 0).

Without a flag that says otherwise, NAME is a mutex: one at a time. Whoever uses a name must say the same kind and number as others who use it at that time, else the exit code is 64. --shared and --exclusive are the two sides of a read-write lock: many with --shared together, or one with --exclusive alone.

With --leader, `tenure` campaigns for the leadership of NAME (`tenure elect NAME` shows who leads), starts CMD when it \
leads, and ends CMD when it loses its term; then it campaigns again, also while the engine does not answer, and starts \
CMD again, with a new TENURE_TOKEN. When CMD ends by itself, whatever its exit code, `tenure` resigns and exits as CMD \
did: whoever wants it to go on has a service manager start `tenure` again. INT, TERM and QUIT are the end, too: if the term \
is lost while CMD still ends, it is not started again.";

const KIND: &str = "What NAME is, if not a mutex";

const CACHE_HELP: &str = "\
Prints the output of CMD: that of an earlier run, if it is fresh; else CMD is run by one process, and all others \
that want the same KEY meanwhile wait for its output (or print the old one, with --stale).

If CMD fails, its output and exit code are passed on, nothing is kept, and one of those who wait runs it. An output of \
more than 256 KiB is printed and not kept. CMD finds TENURE_NAME, TENURE_TOKEN and TENURE_CLAIM in its environment.";

const RUN_JSON_HELP: &str = "Write events to stderr as JSON, one object a line, instead of messages. \
`event` is one of waiting, granted, started, lingering, lost, ended, released, warning, error";

#[derive(Debug, Args)]
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
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    pub(crate) ttl: Duration,
    /// How long to wait for the lock; 0s: not at all [default: for ever, with --every 0s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) wait: Option<Duration>,
    /// End the work this long after the lock was granted
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) max_hold: Option<Duration>,
    /// Run at most once in this time, counted from start to start, however many try
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) every: Option<Duration>,
    /// How long the work has between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub(crate) grace: Duration,
    /// What happens to CMD when the lease is lost
    #[arg(long, value_enum, default_value = "terminate")]
    pub(crate) on_loss: OnLoss,
    /// A text that others are shown with who holds the lock [default: the name of CMD]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Keep the lock from others for this long after its holder vanished
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) lock_delay: Option<Duration>,
    #[arg(long, help = RUN_JSON_HELP)]
    pub(crate) json: bool,
    /// No messages but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// Says what is wrong when others are in the way, before who has held it longest.
    pub(crate) fn in_the_way(&self) -> &'static str {
        match (self.slots, self.permits) {
            (Some(_), _) => "has no free slot; held longest by",
            (_, Some(_)) => "has too few free permits; held longest by",
            _ => "is held by",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Cache {
    /// The key: 1 to 255 bytes, no control characters
    pub(crate) key: String,
    /// How long an output is fresh
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    pub(crate) ttl: Duration,
    /// Print an output that has been fresh until this long ago while another process runs CMD
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) stale: Option<Duration>,
    /// How long a machine or a network that is gone keeps the others from running CMD
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    pub(crate) lease: Duration,
    /// Write to stderr, as one JSON object, whether the output is fresh, stale or loaded
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// The election
    pub(crate) name: String,
    /// Write a JSON object, or null
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Write a JSON array: see the documents for its fields; times are whole milliseconds (`_ms`)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The lock
    pub(crate) name: String,
    /// Write JSON objects, one a line
    #[arg(long)]
    pub(crate) json: bool,
}

const RELEASE_HELP: &str = "\
Breaks a hold, for an operator. Its holder learns of it at its next renewal, at the latest after a third of its \
ttl, and ends its work.

Until the hold would have ended, nobody else is granted the lock, so that the holder's work can end first. With \
--now the lock is free at once: then two may work at the same time, and only what checks tokens is safe.";

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The lock
    pub(crate) name: String,
    /// The token of the hold, as `tenure status` shows it
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: u64,
    /// Do not ask
    #[arg(long)]
    pub(crate) force: bool,
    /// Free the lock at once: its holder may still work while the next one does
    #[arg(long)]
    pub(crate) now: bool,
}

const RESIZE_HELP: &str = "\
Changes how many units a semaphore (`run --permits`) or a slot pool (`run --slots`) has while it is in use.

More units go to who waits. With fewer, nobody is ended: nobody is granted before enough units are released. \
Afterwards a program that says the old number is refused (exit code 64), so change them too. A name that is not in \
use has no capacity: whoever claims it next says it.";

#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// The semaphore or slot pool
    pub(crate) name: String,
    /// How many units or slots it shall have
    pub(crate) capacity: u32,
    /// Do not ask
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit code 69 if a finding is bad.")]
pub(crate) struct Doctor {
    /// Make the tables first, where the engine needs some (PostgreSQL, MySQL), as a user who may; the same as `--init`
    #[arg(long)]
    pub(crate) migrate: bool,
    /// Let the servers of a new quorum in first (Redlock), or those of one that has forgotten everything
    #[arg(long)]
    pub(crate) init: bool,
    /// Then remove the rows of idle resources, where they stay behind (with `?purge=off`)
    #[arg(long)]
    pub(crate) purge: bool,
    /// Write a JSON array of objects with `severity` (good, warning, bad), `what`, `found` and `hint`
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Fence {
    /// Ask a file whether a later lease has been here, and leave a mark there
    #[command(long_about = FENCE_CHECK_HELP, after_help = FENCE_CHECK_CODES)]
    Check(FenceCheck),
}

const FENCE_CHECK_HELP: &str = "\
Accepts a write if no later lease has been seen in FILE, and keeps its token there; a holder may repeat it. \
FILE is made when it is first used, and must not be removed while a holder with an old token may still come.

Check just before each write, under a lock of the file system that the write is under as well:

  flock data.lock sh -c 'tenure fence check --file data.fence && cp new data'

Needs no engine.";

const FENCE_CHECK_CODES: &str = "\
Exit codes:
  0    accepted: write
  64   wrong usage
  69   FILE cannot be used, or is damaged: do not write
  76   refused: a later lease has been seen; the lease of this token is over";

#[derive(Debug, Args)]
pub(crate) struct FenceCheck {
    /// The file that keeps the largest token
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The fencing token of the lease
    #[arg(long, value_name = "TOKEN", env = "TENURE_TOKEN", hide_env_values = true)]
    pub(crate) token: String,
    /// The id of its claim
    #[arg(long, value_name = "CLAIM", env = "TENURE_CLAIM", hide_env_values = true)]
    pub(crate) claim: String,
    /// What is written to: FILE keeps a token for each name
    #[arg(long, value_name = "NAME", env = "TENURE_NAME", hide_env_values = true)]
    pub(crate) name: String,
    /// Check a read under a lock that readers share: only a later writer refuses it
    #[arg(long)]
    pub(crate) read: bool,
    /// Write a JSON object with `name`, `token`, `accepted` and `max`, the largest token seen
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The command; without it, the page of `tenure` itself
    pub(crate) command: Option<String>,
}

const PARSE_TIME_HINT: &str = "write a time as 250ms, 30s, 5m or 1h30m";

/// Reads `30s`, `5m`, `1h30m`, `250ms`.
pub(crate) fn parse_time(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| PARSE_TIME_HINT)
}

/// Turns what clap says about wrong usage into an error with a hint.
pub(crate) fn usage_failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let message = paragraphs.next().unwrap_or_default().trim_start_matches("error: ").trim_end();
    let message = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    // clap may give several tips; the first one is about what was most likely meant.
    let tip = paragraphs.find_map(|paragraph| paragraph.trim().strip_prefix("tip: ")?.lines().next());
    let wrong = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(wrong)) => wrong.clone(),
        Some(ContextValue::Strings(wrong)) => wrong.join(" "),
        _ => String::new(),
    };
    let is_about_program = match error.kind() {
        ErrorKind::MissingRequiredArgument => wrong.contains("CMD"),
        ErrorKind::UnknownArgument => !wrong.starts_with('-'),
        _ => false,
    };
    let (message, hint) = match tip {
        Some(tip) => (message, tip.to_owned()),
        None if is_about_program => {
            let command = if text.contains("tenure queue work") { "queue work" } else { "run" };
            (message, format!("write the program after `--`: tenure {command} NAME -- CMD…"))
        }
        None => match message.split_once(PARSE_TIME_HINT) {
            Some((message, _)) => (message.trim_end_matches(": ").to_owned(), PARSE_TIME_HINT.to_owned()),
            None => (message, "see `tenure --help`, and `tenure help COMMAND`".to_owned()),
        },
    };
    Failure::new(exit::USAGE, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_time("0s"), Ok(Duration::ZERO));
        for wrong in ["", "5", "-1s", "soon", "1x", "99999999999999999999s"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
