//! The command line, from which `--help`, the man page and the shell completions are made.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::commands::cache::Cache;
use crate::commands::completions::{Completions, Man};
use crate::commands::doctor::Doctor;
use crate::commands::elect::Elect;
use crate::commands::fence::Fence;
use crate::commands::metrics::Metrics;
use crate::commands::queue::arguments::Queue;
use crate::commands::release::Release;
use crate::commands::resize::Resize;
use crate::commands::run::arguments::Run;
use crate::commands::serve::Serve;
use crate::commands::status::Status;
use crate::commands::top::Top;
use crate::commands::watch::Watch;
use crate::counting;
use crate::duration;
use crate::exit::{self, Failure};
use crate::listing::alert;

/// Locks, leases and queues for programs, on the store you already run or on this machine alone.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = format!("{ENVIRONMENT_HELP}\n\n{}", exit::HELP), max_term_width = 100)]
pub(crate) struct CommandLine<C: Subcommand> {
    /// The engine that grants the locks: `local:`, `redis://host`, `postgres://host/db`, `etcd://host`, …
    #[arg(long, global = true, value_name = "URL", env = "TENURE_ENGINE", hide_env_values = true)]
    #[arg(long_help = ENGINE_HELP)]
    pub(crate) engine: Option<String>,
    #[command(subcommand)]
    pub(crate) command: C,
}

/// A command line of any command.
pub(crate) type Arguments = CommandLine<Command>;

const ENGINE_HELP: &str = "\
The engine that grants the locks:
  local: or local:/dir                 this machine alone, no server (the default)
  redis://host                         Redis
  redis+sentinel://host,host/master    Redis: the master that the Sentinels name
  redis+cluster://host,host            a Redis Cluster
  redlock://host,host,host             a majority of independent Redis servers
  postgres://host/database             PostgreSQL
  mysql://host/database                MySQL or MariaDB
  etcd://host,host,host                etcd
  zookeeper://host,host,host           ZooKeeper
With a login and settings: scheme://user:password@host:port/…?setting=value

Put a URL with a password in the environment variable TENURE_ENGINE: other users can read command lines.";

pub(crate) const ENVIRONMENT_HELP: &str = "\
Environment:
  TENURE_ENGINE      the engine, where --engine is not given
  TENURE_LOG         what is logged to stderr: debug, tenure_core=trace, tenure::audit=warn
  TENURE_LOG_FORMAT  how: text (the default), or json, one object a line
  NO_COLOR           set to anything: no colour";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    /// Put work in line, and do it in order
    #[command(subcommand)]
    Queue(Queue),
    Cache(Box<Cache>),
    Elect(Elect),
    Status(Status),
    Top(Top),
    Watch(Watch),
    Release(Release),
    Resize(Resize),
    Doctor(Doctor),
    Metrics(Metrics),
    Serve(Box<Serve>),
    /// Refuse work whose lease is over, for scripts that write to files
    #[command(subcommand)]
    Fence(Fence),
    Completions(Completions),
    Man(Man),
}

/// The command that starts most often, and is to start fast.
#[derive(Debug, Subcommand)]
enum RunAlone {
    Run(Box<Run>),
}

/// Reads the command line of this process.
pub(crate) fn read() -> Result<Arguments, clap::Error> {
    // To put all commands together costs `tenure run` more than to read its own line. What is wrong is told, and help is shown, by all of them.
    if std::env::args_os().nth(1).is_some_and(|word| word == "run")
        && let Ok(CommandLine { engine, command: RunAlone::Run(run) }) = CommandLine::try_parse()
    {
        return Ok(CommandLine { engine, command: Command::Run(run) });
    }
    Arguments::try_parse()
}

/// Returns whether a command line that cannot be parsed asks for its messages as JSON: a program reads them, also when a flag is
/// wrong.
pub(crate) fn wants_json_messages(arguments: impl Iterator<Item = OsString>) -> bool {
    let ours: Vec<OsString> = arguments.take_while(|argument| argument != "--").collect();
    let is_there = |word: &str| ours.iter().any(|argument| argument == word);
    is_there("--json") && (is_there("run") || (is_there("queue") && is_there("work")))
}

/// Flags of `flock` and of others, and what is meant by them here.
const FOREIGN_FLAGS: [(&str, &str); 8] = [
    ("-n", "without waiting is `--wait 0s`"),
    ("-w", "how long to wait is `--wait 5s`"),
    ("-E", "a lock that is held by others ends it with exit code 75"),
    ("-c", "have a shell run a line: `tenure run NAME -- sh -c 'LINE'`"),
    ("-s", "shared is `--shared`"),
    ("-x", "a lock is exclusive unless it is `--shared`"),
    ("-o", "CMD never inherits the lock, whatever it starts"),
    ("-v", "what the library does is shown by the environment variable TENURE_LOG=debug"),
];

/// What other tools call a command, and what it is called here.
const FOREIGN_COMMANDS: [(&[&str], &str); 8] = [
    (&["list", "ls", "ps", "locks", "show", "who"], "status"),
    (&["lock", "acquire", "exec", "with", "flock", "try"], "run"),
    (&["unlock", "free", "break", "kill", "del", "rm"], "release"),
    (&["leader", "campaign", "observe"], "elect"),
    (&["push", "enqueue"], "queue push"),
    (&["work", "worker", "consume"], "queue work"),
    (&["check", "ping", "test"], "doctor"),
    (&["server", "http", "daemon", "listen"], "serve"),
];

/// Returns what was meant by what other tools have.
fn foreign_hint(error: &clap::Error, wrong: &str) -> Option<String> {
    if let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand) {
        let meant = FOREIGN_COMMANDS.iter().find(|(others, _)| others.contains(&command.as_str()));
        let similar = match error.get(ContextKind::SuggestedSubcommand) {
            Some(ContextValue::Strings(similar)) => similar.first().map(String::as_str),
            Some(ContextValue::String(similar)) => Some(similar.as_str()),
            _ => None,
        };
        let meant = meant.map(|(_, meant)| *meant).or(similar)?;
        return Some(format!("did you mean `tenure {meant}`?"));
    }
    // As in `-w5`, which clap reports as `-w`.
    let flag = FOREIGN_FLAGS.iter().find(|(flag, _)| wrong == *flag)?;
    Some(flag.1.to_owned())
}

/// What parsers of values say in place of an error.
const HINTS: [&str; 3] = [duration::PARSE_HINT, counting::ADDRESS_HINT, alert::ALERT_HINT];

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
    // The usage line that clap adds names the command that was meant.
    let is_of = |command: &str| text.contains(&format!("tenure {command} "));
    let runs = ["queue work", "run", "cache"].into_iter().find(|command| is_of(command));
    let is_extra = error.kind() == ErrorKind::UnknownArgument && !wrong.starts_with('-');
    if let Some(hint) = foreign_hint(error, &wrong) {
        return Failure::new(exit::USAGE, message).with_hint(hint);
    }
    let lacks = |what: &str| error.kind() == ErrorKind::MissingRequiredArgument && wrong.contains(what);
    let (message, hint) = match (tip, runs) {
        _ if lacks("ITEM") => {
            (message, "say which item, as `tenure queue dead NAME` shows it, or `--all`".to_owned())
        }
        (Some(tip), _) => (message, tip.to_owned()),
        (None, Some(command)) if is_extra || lacks("CMD") => {
            let name = if command == "cache" { "KEY" } else { "NAME" };
            (message, format!("write the program after `--`: tenure {command} {name} -- CMD…"))
        }
        (None, None) if is_extra && is_of("queue push") => (
            message,
            "an item is one argument: quote it, or push each line of stdin with `--lines`".to_owned(),
        ),
        (None, None) if is_extra => {
            (message, "quote what has spaces; `tenure help COMMAND` says what a command takes".to_owned())
        }
        _ => match HINTS.iter().find_map(|hint| Some((message.split_once(hint)?.0, hint))) {
            Some((message, hint)) => (message.trim_end_matches(": ").to_owned(), (*hint).to_owned()),
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
        CommandLine::<RunAlone>::command().debug_assert();
    }

    #[test]
    fn json_is_wanted_only_before_the_program_and_where_messages_can_be_json() {
        let wants = |line: &str| wants_json_messages(line.split(' ').map(OsString::from));
        assert!(wants("tenure run x --json --ttl soon -- true"));
        assert!(wants("tenure --json queue work x"));
        assert!(!wants("tenure run x -- curl --json"));
        assert!(!wants("tenure status --json --wrong"), "its JSON is data, on stdout");
    }
}
