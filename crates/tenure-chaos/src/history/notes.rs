//! What is written down beside holds: waits, values, dispatches, faults, and how the processes were.

use std::time::Duration;

use super::{Kind, numbers};

/// A client's process: its number, and how many there were of that client before it.
pub(crate) type Process = (usize, usize);

/// A claim that was seen in the line of its resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) process: Process,
    pub(crate) kind: Kind,
    pub(crate) resource: String,
    pub(crate) asked: u64,
    /// It was in line before.
    pub(crate) queued: u64,
    pub(crate) task: String,
}

/// Where a value came from, as its user was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Fresh,
    Stale,
    Loaded,
}

impl Source {
    const ALL: [Source; 3] = [Source::Fresh, Source::Stale, Source::Loaded];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Source::Fresh => "fresh",
            Source::Stale => "stale",
            Source::Loaded => "loaded",
        }
    }
}

/// A value that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) process: Process,
    pub(crate) key: String,
    pub(crate) source: Source,
    /// Under which it was loaded.
    pub(crate) token: u64,
    pub(crate) asked: u64,
    pub(crate) at: u64,
    pub(crate) task: String,
}

/// A dispatch of the queue with an interval: between these times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dispatch {
    pub(crate) asked: u64,
    pub(crate) at: u64,
}

/// What the library told its user's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) process: Process,
    pub(crate) what: String,
    pub(crate) resource: String,
    pub(crate) at: u64,
}

/// What was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) kind: String,
    /// The client whose process or network it was. `None`: a server's.
    pub(crate) client: Option<usize>,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// How much a process used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) process: Process,
    pub(crate) at: u64,
    pub(crate) kib: u64,
    pub(crate) files: u64,
}

/// A time in which a process did nothing: it was stopped, or the machine was busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    pub(crate) process: Process,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// What is promised, as far as it differs among engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// By how much longer the store may count a period.
    pub(crate) grain: Duration,
    /// The least time between two dispatches of the queue that has one; zero without queues.
    pub(crate) interval: Duration,
    pub(crate) has_values: bool,
    pub(crate) is_fifo: bool,
    /// Whether slots are handed out by the store, in the order of the line, and not taken by each client that has come to its head.
    pub(crate) hands_out_slots: bool,
}

impl Terms {
    /// Its parts in a line.
    pub(crate) fn parts(&self) -> [String; 6] {
        let [ttl, grain, interval] =
            [self.ttl, self.grain, self.interval].map(|period| period.as_nanos().to_string());
        let [has_values, is_fifo, hands_out_slots] =
            [self.has_values, self.is_fifo, self.hands_out_slots].map(|is| is.to_string());
        [ttl, grain, interval, has_values, is_fifo, hands_out_slots]
    }

    pub(super) fn read(parts: &[&str]) -> Option<Terms> {
        let &[ttl, grain, interval, has_values, is_fifo, hands_out_slots] = parts else { return None };
        let [ttl, grain, interval] = numbers([ttl, grain, interval])?.map(Duration::from_nanos);
        Some(Terms {
            ttl,
            grain,
            interval,
            has_values: has_values == "true",
            is_fifo: is_fifo == "true",
            hands_out_slots: hands_out_slots == "true",
        })
    }
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) waits: Vec<Wait>,
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) dispatches: Vec<Dispatch>,
    pub(crate) told: Vec<Told>,
    pub(crate) stalls: Vec<Stall>,
    pub(crate) usages: Vec<Usage>,
    pub(crate) broken: Vec<Broken>,
    /// When clients worked and nothing had been broken yet.
    pub(crate) free: Option<(u64, u64)>,
}

impl Notes {
    /// The lines of clients that are not of a hold.
    pub(super) const OF_CLIENTS: [&str; 6] = ["queued", "fetched", "dispatched", "told", "stalled", "usage"];

    /// Reads a line of a client's process.
    pub(super) fn read_client(&mut self, parts: &[&str], process: Process) -> Option<()> {
        match *parts {
            ["queued", kind, resource, asked, queued, task] => {
                let (kind, [asked, queued]) = (Kind::parse(kind)?, numbers([asked, queued])?);
                let (resource, task) = (resource.to_owned(), task.to_owned());
                self.waits.push(Wait { process, kind, resource, asked, queued, task });
            }
            ["fetched", key, source, token, asked, at, task] => {
                let source = Source::ALL.into_iter().find(|known| known.as_str() == source)?;
                let [token, asked, at] = numbers([token, asked, at])?;
                let (key, task) = (key.to_owned(), task.to_owned());
                self.fetches.push(Fetch { process, key, source, token, asked, at, task });
            }
            ["dispatched", asked, at] => {
                let [asked, at] = numbers([asked, at])?;
                self.dispatches.push(Dispatch { asked, at });
            }
            ["told", what, resource, at] => {
                let (what, resource, [at]) = (what.to_owned(), resource.to_owned(), numbers([at])?);
                self.told.push(Told { process, what, resource, at });
            }
            ["stalled", from, until] => {
                let [from, until] = numbers([from, until])?;
                self.stalls.push(Stall { process, from, until });
            }
            ["usage", at, kib, files] => {
                let [at, kib, files] = numbers([at, kib, files])?;
                self.usages.push(Usage { process, at, kib, files });
            }
            _ => return None,
        }
        Some(())
    }

    /// Reads a line of the supervisor.
    pub(super) fn read_supervisor(&mut self, parts: &[&str]) -> Option<()> {
        match *parts {
            ["fault", kind, client, from, until] => {
                let client = if client.is_empty() { None } else { Some(client.parse().ok()?) };
                let [from, until] = numbers([from, until])?;
                self.broken.push(Broken { kind: kind.to_owned(), client, from, until });
            }
            ["free", from, until] => {
                let [from, until] = numbers([from, until])?;
                self.free = Some((from, until));
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_as_they_are_written() {
        let terms = Terms { ttl: Duration::from_secs(2), has_values: true, ..Terms::default() };
        let parts = terms.parts();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        assert_eq!(Terms::read(&parts), Some(terms));
    }

    #[test]
    fn a_line_that_is_not_understood_is_not_passed_over() {
        let mut notes = Notes::default();
        assert_eq!(notes.read_client(&["told", "what", "m", "soon"], (0, 0)), None);
        assert_eq!(notes.read_client(&["fetched", "k", "stolen", "1", "2", "3", "t"], (0, 0)), None);
        assert_eq!(notes.read_supervisor(&["fault", "stop", "x", "1", "2"]), None);
        assert_eq!(notes.read_supervisor(&["fault", "hang", "", "1", "2"]), Some(()));
    }
}
