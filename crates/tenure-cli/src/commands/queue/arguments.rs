//! The flags of `tenure queue`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::counting::MetricsFlags;
use crate::duration::{TIME_HELP, parse_duration};
use crate::exit;

#[derive(Debug, Subcommand)]
pub(crate) enum Queue {
    /// Put an item in line, and print its number
    #[command(long_about = PUSH_HELP, after_help = format!("{PUSH_EXAMPLES}\n\n{TIME_HELP}\n\n{PUSH_CODES}"))]
    Push(Push),
    /// Run a program for each item, in order within each group
    #[command(long_about = WORK_HELP, after_help = format!("{WORK_EXAMPLES}\n\n{TIME_HELP}\n\n{WORK_CODES}"))]
    Work(Box<Work>),
    /// List queues and how much is in them
    #[command(after_help = exit::QUERY_HELP)]
    Ls(Ls),
    /// Show the items that wait or are with a consumer, in the order of their pushes
    #[command(after_help = exit::QUERY_HELP)]
    Peek(Peek),
    /// Show the dead letters: items that were given up, and why
    #[command(after_help = exit::QUERY_HELP)]
    Dead(Peek),
    /// Put dead letters in line again, at the end of their groups
    #[command(after_help = REPLAY_AFTER_HELP)]
    Replay(Replay),
    /// Remove items that wait, or dead letters; what a consumer has stays
    #[command(after_help = PURGE_AFTER_HELP)]
    Purge(Purge),
}

const PUSH_HELP: &str = "\
Puts an item in line, and prints its number. Its payload, up to 256 KiB of anything, is PAYLOAD, or stdin if PAYLOAD is `-` or is \
left out.

Items of one group are handed out one at a time, in the order of their pushes. Items without a group are independent.

If the answer is lost (exit code 69), it is not known whether the item is in line. With --dedup it can be pushed again without harm: \
the id is remembered while the item is in the queue and for five minutes at least, and a second push is answered with the \
number of the first.

A context travels with an item to whoever takes it: the `traceparent` of the push, so that a trace shows both, or the TRACEPARENT that this \
was given, or any TEXT.";

#[derive(Debug, Args)]
pub(crate) struct Push {
    /// The queue: 1 to 255 bytes, no control characters
    pub(crate) name: String,
    /// What is pushed; `-` or nothing: read from stdin
    #[arg(conflicts_with = "lines")]
    pub(crate) payload: Option<OsString>,
    /// The group, whose items are served strictly in order
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Hold the item back for so long, and what stands behind it in its group
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    pub(crate) delay: Duration,
    /// Push it once under this id
    #[arg(long, value_name = "ID", conflicts_with = "lines")]
    pub(crate) dedup: Option<String>,
    /// What travels with the item, up to 128 printable characters; empty: nothing [default: the span, or TRACEPARENT]
    #[arg(long, value_name = "TEXT")]
    pub(crate) context: Option<String>,
    /// Push each line of stdin as an item, without its line end; end at the first line that fails
    #[arg(long)]
    pub(crate) lines: bool,
    /// Write JSON objects with `queue`, `item` and `is_duplicate`, one a line; with --lines also `line`, from 1
    #[arg(long)]
    pub(crate) json: bool,
}

const PUSH_EXAMPLES: &str = "\
Examples:
  tenure queue push mails 'to: ada' --group ada    after the other items of the group ada
  tenure queue push orders --dedup 4711 < order    once, however often it is pushed
  tenure queue push orders --lines < orders        one item for each line";

const PUSH_CODES: &str = "\
Exit codes:
  0    the item is in line
  64   wrong usage, or the payload has more than 256 KiB
  69   the engine is not available: whether the item is in line is not known";

const REPLAY_AFTER_HELP: &str = "\
Examples:
  tenure queue replay mails 17       the dead letter 17
  tenure queue replay mails --all

Exit codes:
  0    done
  64   wrong usage, or there is no such dead letter
  69   the engine is not available";

const PURGE_AFTER_HELP: &str = "\
Examples:
  tenure queue purge mails --dead       all dead letters
  tenure queue purge mails 17 --force   one item, without a question

Exit codes:
  0    done
  1    the question was answered with no
  64   wrong usage, there is no terminal to ask on, or no such item
  69   the engine is not available";

const WORK_EXAMPLES: &str = "\
Examples:
  tenure queue work mails -- ./send.sh                             one item at a time, for ever
  tenure queue work mails --parallel 4 --drain -- ./send.sh        four at a time, to the end
  tenure queue work mails --interval 1s --per-group -- ./send.sh   a group once a second at most";

const WORK_HELP: &str = "\
Takes items of the queue NAME as they become ready, and runs CMD for each. CMD gets the payload on stdin, and in its environment \
TENURE_NAME (the queue), TENURE_ITEM (the item's number), TENURE_GROUP (empty: none), TENURE_ATTEMPT (1 for the first time), and \
TENURE_TOKEN and TENURE_CLAIM, by which what CMD writes to can refuse a write that comes too late. What travelled with the item is in \
TENURE_CONTEXT, and in TRACEPARENT if it is one and no span of the work is sent.

If CMD exits with 0, the item is done. Otherwise it is handed out again: after 1 s, 2 s, 4 s, up to 5 minutes, or after exit code 75 \
as --retry-after says; its group waits meanwhile. After --max-attempts it is a dead letter, with the exit code as its reason \
(`tenure queue dead`).

The item is renewed while CMD runs. If it cannot be, CMD gets SIGTERM at --grace (at most a third of --ttl, or of the time after which the store gives up a silent client) before the end and SIGKILL \
just before it, and the item is handed out to another. If `tenure` itself is killed (`kill -9`), CMD is killed; if it is stopped for \
longer than --ttl, CMD is killed at the end. An item can so be begun twice: let what CMD writes to check TENURE_TOKEN.

INT, TERM and HUP finish what runs, take nothing new, and end with 0. A second one, or QUIT, ends CMD, puts its item back as if it \
had not been handed out, and exits with 128+n.";

const WORK_CODES: &str = "\
Exit codes:
  0      asked to stop; with --drain: nothing waits and nothing is in flight
  64     wrong usage
  69     the engine is not available (without --drain: at the start), or the address of --metrics
  126    CMD cannot be executed: its item was put back
  127    CMD is not found: its item was put back
  128+n  stopped by signal n in the middle of an item";

#[derive(Debug, Args)]
pub(crate) struct Work {
    /// The queue
    pub(crate) name: String,
    /// The least time between two dispatches by the store, over all workers, which should all say the same
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) interval: Option<Duration>,
    /// Keep the interval between two items of the same group, not of the queue
    #[arg(long, requires = "interval")]
    pub(crate) per_group: bool,
    /// How many CMDs run at the same time
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) parallel: u16,
    /// End when nothing waits and nothing is in flight, here or with others
    #[arg(long)]
    pub(crate) drain: bool,
    /// How long an item waits when a machine or a network is gone
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) ttl: Duration,
    /// After so many attempts that failed an item is a dead letter; 0: never
    #[arg(long, value_name = "N", default_value = "10")]
    pub(crate) max_attempts: u32,
    /// How long an item waits after exit code 75 [default: as after others]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) retry_after: Option<Duration>,
    /// How long CMD has between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) grace: Duration,
    /// A note that `tenure queue peek` shows beside an item [default: the name of CMD]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    #[arg(
        long,
        help = "Write events to stderr as JSON, one object a line, instead of messages. \
        `event` is one of metrics, started, done, retried, dead, returned, lost, warning, error"
    )]
    pub(crate) json: bool,
    /// Show a message for each item, not only for those that failed
    #[arg(long, short, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Show no messages but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) metrics: MetricsFlags,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Write a JSON array: its fields are in docs/command.md; times are whole milliseconds (`_ms`)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Peek {
    /// The queue
    pub(crate) name: String,
    /// How many items, the first ones
    #[arg(short = 'n', long = "count", value_name = "N", default_value = "10")]
    pub(crate) count: usize,
    /// Write a JSON array with whole payloads: its fields are in docs/command.md; times are whole milliseconds (`_ms`)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The queue
    pub(crate) name: String,
    /// The number of the dead letter
    #[arg(required_unless_present = "all")]
    pub(crate) item: Option<u64>,
    /// Replay all dead letters that there are now
    #[arg(long, conflicts_with = "item")]
    pub(crate) all: bool,
    /// Write a JSON object with `queue` and `replayed`
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// The queue
    pub(crate) name: String,
    /// The number of one item
    pub(crate) item: Option<u64>,
    /// Remove dead letters
    #[arg(long)]
    pub(crate) dead: bool,
    /// Remove items that wait
    #[arg(long)]
    pub(crate) waiting: bool,
    /// Do not ask for a confirmation
    #[arg(long)]
    pub(crate) force: bool,
    /// Write a JSON object with `queue` and `removed`
    #[arg(long)]
    pub(crate) json: bool,
}
