//! What happened: one clock, and a line for each event, which every process appends to a file of its own.
//!
//! A line is written by one call, so that a process that is killed loses no more than the line that it was about to write. Its parts
//! are separated by tabs, times are nanoseconds of the machine's clock. The clients write
//!
//! | line | meaning |
//! | --- | --- |
//! | `granted` hold kind resource weight token asked at task | asked for at `asked`, answered before `at` |
//! | `queued` kind resource asked at task | what was asked for at `asked` was in line before `at` |
//! | `seen` hold at deadline | not lost when it was asked after `at`; the deadline that it had after that |
//! | `refused` hold at | the resource refused a write that began after `at` |
//! | `exit` hold at | not lost when it was asked after `at`; then it was given back |
//! | `beyond` hold at | its deadline was later than a ttl after `at` |
//! | `lost` hold at deadline told reason | lost when it was asked before `at`; its last deadline; when the library told so by itself, 0 if it did not |
//! | `settled` hold answer | what came of giving it back |
//! | `pushed` item group asked at | an item and when its push was answered |
//! | `fetched` key source token asked at task | a value that was asked for, and the token under which it was loaded |
//! | `dispatched` asked at | an item of the queue with an interval |
//! | `told` what resource at | what the library told its user's log |
//! | `stalled` from until | the process did nothing |
//! | `usage` at kib files | its memory, and how many files it had open |
//! | `error` operation kind text | what a user would have been told |
//!
//! and the supervisor writes
//!
//! | line | meaning |
//! | --- | --- |
//! | `soak` engine seed clients semaphores queues counted | what the history is of |
//! | `terms` ttl grain interval values fifo slots | what the engine promises |
//! | `free` from until | clients worked and nothing had been broken yet |
//! | `fault` kind client from until | what was broken; no client: a server |
//! | `died` client incarnation at | killed after `at` |
//! | `access` key token item at accepted | what the resource did with a write |
//! | `healed` at | nothing was broken any more |
//! | `ended` at | clients were asked to end |

pub(crate) mod notes;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use notes::{Notes, Process, Terms};
use tenure_core::clock::{Clock, SystemClock};

use crate::promise::Promises;

/// The supervisor's file in the directory of a history.
const SUPERVISOR: &str = "supervisor";

/// The time by which all processes of this machine measure, in nanoseconds. It is the clock of the deadlines, which goes on while
/// the machine sleeps.
pub(crate) fn now() -> u64 {
    SystemClock.now().nanos()
}

/// Where one process writes.
pub(crate) struct Journal(Mutex<File>);

impl Journal {
    /// Begins that of a client's process.
    pub(crate) fn of_client(directory: &Path, client: usize, incarnation: usize) -> Journal {
        Journal::create(&Journal::path_of_client(directory, client, incarnation))
    }

    /// Where that is.
    pub(crate) fn path_of_client(directory: &Path, client: usize, incarnation: usize) -> PathBuf {
        directory.join(format!("{client}.{incarnation}"))
    }

    /// Begins that of the supervisor.
    pub(crate) fn of_supervisor(directory: &Path) -> Journal {
        Journal::create(&directory.join(SUPERVISOR))
    }

    fn create(path: &Path) -> Journal {
        Journal(Mutex::new(File::create(path).expect("a file for the history")))
    }

    /// Says what the history is of.
    pub(crate) fn begin(&self, subject: &Subject, terms: &Terms) {
        let Subject { engine, seed, clients, has_semaphores, has_queues, promises } = subject;
        let numbers = [seed.to_string(), clients.to_string()];
        let has = [has_semaphores, has_queues].map(bool::to_string);
        self.write(&["soak", engine, &numbers[0], &numbers[1], &has[0], &has[1], &promises.to_string()]);
        let [ttl, grain, interval, has_values, is_fifo, slots] = terms.parts();
        self.write(&["terms", &ttl, &grain, &interval, &has_values, &is_fifo, &slots]);
    }

    /// Appends a line.
    pub(crate) fn write(&self, parts: &[&str]) {
        // A text of an error must not look like a part or a line.
        let parts: Vec<String> = parts.iter().map(|part| part.replace(['\t', '\n'], " ")).collect();
        let line = parts.join("\t") + "\n";
        let mut file = self.0.lock().expect("no writer panics");
        file.write_all(line.as_bytes()).expect("a file for the history");
    }
}

/// What was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Mutex,
    Semaphore,
    /// Either side of a read-write lock: a writer weighs as much as all readers may.
    ReadWrite,
    Slot,
    /// The leader of an election.
    Term,
    Delivery,
    /// Who loads a value for all.
    Load,
}

impl Kind {
    pub(crate) const ALL: [Kind; 7] =
        [Kind::Mutex, Kind::Semaphore, Kind::ReadWrite, Kind::Slot, Kind::Term, Kind::Delivery, Kind::Load];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Semaphore => "semaphore",
            Kind::ReadWrite => "read-write",
            Kind::Slot => "slot",
            Kind::Term => "term",
            Kind::Delivery => "delivery",
            Kind::Load => "load",
        }
    }

    fn parse(text: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|known| known.as_str() == text)
    }
}

/// A lease as its user saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) kind: Kind,
    /// What nobody else may hold meanwhile, but for shared units: of a slot pool the slot, of a queue the group.
    pub(crate) resource: String,
    pub(crate) client: usize,
    pub(crate) incarnation: usize,
    /// Which of the client's tasks it was.
    pub(crate) task: String,
    pub(crate) weight: u32,
    pub(crate) token: u64,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    /// Until when it was surely not lost.
    pub(crate) until: u64,
    /// Until when its user may have believed in it: until its last deadline, unless it died or was told otherwise before.
    pub(crate) until_deadline: u64,
    /// When a write of its was refused for the first time.
    pub(crate) refused: Option<u64>,
    /// By how much it was called valid after its deadline had passed.
    pub(crate) over_deadline: u64,
    /// When its deadline was later than a ttl after that.
    pub(crate) beyond: Option<u64>,
    /// What was last seen, and the deadline then.
    pub(crate) seen: Option<(u64, u64)>,
    pub(crate) lost: Option<Loss>,
    pub(crate) is_ended: bool,
}

/// How a user learned that a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// When it had asked.
    pub(crate) at: u64,
    pub(crate) deadline: u64,
    /// When it was told.
    pub(crate) told: Option<u64>,
    pub(crate) reason: String,
}

/// An item whose push was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) item: String,
    pub(crate) group: String,
    pub(crate) asked: u64,
    pub(crate) answered: u64,
}

/// A write to the resource, in the order in which it saw them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) key: String,
    pub(crate) token: u64,
    /// The item whose effect it was.
    pub(crate) item: Option<String>,
    pub(crate) is_accepted: bool,
}

/// What a history is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) engine: String,
    pub(crate) seed: u64,
    pub(crate) clients: usize,
    pub(crate) has_semaphores: bool,
    pub(crate) has_queues: bool,
    pub(crate) promises: Promises,
}

/// All that was recorded.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) subject: Option<Subject>,
    pub(crate) terms: Terms,
    pub(crate) holds: Vec<Hold>,
    pub(crate) pushes: Vec<Push>,
    pub(crate) accesses: Vec<Access>,
    /// How often which error was told.
    pub(crate) errors: BTreeMap<String, usize>,
    pub(crate) healed: Option<u64>,
    pub(crate) ended: Option<u64>,
    pub(crate) died: BTreeMap<Process, u64>,
    pub(crate) notes: Notes,
    pub(crate) lines_misread: usize,
}

impl History {
    /// Reads all files of a directory.
    ///
    /// # Errors
    /// As the system reports them; and a text if a line cannot be read that is not the last one of a process that was killed.
    pub(crate) fn read(directory: &Path) -> Result<History, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        let mut history = History::default();
        history.read_supervisor(&fs::read_to_string(directory.join(SUPERVISOR)).map_err(failed)?);
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some((client, incarnation)) = name.split_once('.') else { continue };
            if let (Ok(client), Ok(incarnation)) = (client.parse(), incarnation.parse()) {
                history.read_client(&fs::read_to_string(&path).map_err(failed)?, client, incarnation);
            }
        }
        match history.lines_misread {
            0 => Ok(history),
            count => Err(format!("{count} lines of the history cannot be read")),
        }
    }

    fn read_supervisor(&mut self, text: &str) {
        for line in text.lines() {
            let parts: Vec<&str> = line.split('\t').collect();
            let is_read = match parts[..] {
                ["soak", engine, seed, clients, semaphores, queues, counted] => numbers([seed, clients])
                    .map(|[seed, clients]| {
                        let has = |told| told == "true";
                        self.subject = Some(Subject {
                            engine: engine.to_owned(),
                            seed,
                            clients: clients as usize,
                            has_semaphores: has(semaphores),
                            has_queues: has(queues),
                            promises: Promises::parse(counted),
                        });
                    })
                    .is_some(),
                ["died", client, incarnation, at] => numbers([client, incarnation, at])
                    .map(|[client, incarnation, at]| {
                        self.died.insert((client as usize, incarnation as usize), at);
                    })
                    .is_some(),
                ["access", key, token, item, _, is_accepted] => numbers([token])
                    .map(|[token]| {
                        let item = Some(item).filter(|item| !item.is_empty()).map(str::to_owned);
                        let is_accepted = is_accepted == "accepted";
                        self.accesses.push(Access { key: key.to_owned(), token, item, is_accepted });
                    })
                    .is_some(),
                ["healed", at] => numbers([at]).map(|[at]| self.healed = Some(at)).is_some(),
                ["ended", at] => numbers([at]).map(|[at]| self.ended = Some(at)).is_some(),
                ["terms", ref rest @ ..] => Terms::read(rest).map(|terms| self.terms = terms).is_some(),
                _ => self.notes.read_supervisor(&parts).is_some(),
            };
            self.lines_misread += usize::from(!is_read);
        }
    }

    /// The errors that no fault explains: a client that is told `invalid`, `conflict`, `unsupported` or `internal` has found a mistake.
    pub(crate) fn unexplained(&self) -> Vec<String> {
        let is_explained = |error: &str| {
            [": unavailable: ", ": timeout: ", ": lost: "].iter().any(|kind| error.contains(kind))
        };
        self.errors.keys().filter(|error| !is_explained(error)).cloned().collect()
    }

    /// Reads what a client's process wrote.
    fn read_client(&mut self, text: &str, client: usize, incarnation: usize) {
        let first = self.holds.len();
        let mut indexes = BTreeMap::new();
        for line in text.split_inclusive('\n') {
            // It was killed as it wrote.
            let Some(line) = line.strip_suffix('\n') else { continue };
            let parts: Vec<&str> = line.split('\t').collect();
            let is_read = match parts[..] {
                ["granted", number, ref rest @ ..] => hold(rest, client, incarnation)
                    .map(|hold| {
                        indexes.insert(number.to_owned(), self.holds.len());
                        self.holds.push(hold);
                    })
                    .is_some(),
                ["pushed", item, group, asked, answered] => numbers([asked, answered])
                    .map(|[asked, answered]| {
                        let (item, group) = (item.to_owned(), group.to_owned());
                        self.pushes.push(Push { item, group, asked, answered });
                    })
                    .is_some(),
                ["error", ..] => {
                    *self.errors.entry(parts[1..].join(": ")).or_default() += 1;
                    true
                }
                ["settled" | "through", ..] => true,
                [event, ..] if Notes::OF_CLIENTS.contains(&event) => {
                    self.notes.read_client(&parts, (client, incarnation)).is_some()
                }
                [event, number, ref times @ ..] => {
                    indexes.get(number).and_then(|index| self.holds[*index].take(event, times)).is_some()
                }
                _ => false,
            };
            self.lines_misread += usize::from(!is_read);
        }
        let died = self.died.get(&(client, incarnation)).copied();
        self.holds[first..].iter_mut().for_each(|hold| hold.end(died));
    }
}

impl Hold {
    /// Whether it is a lock: neither the delivery of an item nor the load of a value.
    pub(crate) fn is_lock(&self) -> bool {
        !matches!(self.kind, Kind::Delivery | Kind::Load)
    }

    /// Notes what happened to it.
    fn take(&mut self, event: &str, times: &[&str]) -> Option<()> {
        match (event, times) {
            ("seen", [at, deadline]) => {
                let [at, deadline] = numbers([at, deadline])?;
                self.until = at;
                self.over_deadline = self.over_deadline.max(at.saturating_sub(deadline));
                self.seen = Some((at, deadline));
            }
            ("refused", [at]) => self.refused = self.refused.or(Some(numbers([at])?[0])),
            ("exit", [at]) => {
                let [at] = numbers([at])?;
                (self.until, self.until_deadline, self.is_ended) = (at, at, true);
            }
            ("beyond", [at]) => self.beyond = self.beyond.or(Some(numbers([at])?[0])),
            ("lost", [at, deadline, told, reason]) => {
                let [at, deadline, told] = numbers([at, deadline, told])?;
                self.until_deadline = self.seen.map_or(self.granted, |(_, deadline)| deadline.min(at));
                let told = Some(told).filter(|told| *told > 0);
                self.lost = Some(Loss { at, deadline, told, reason: (*reason).to_owned() });
                self.is_ended = true;
            }
            _ => return None,
        }
        Some(())
    }

    /// Says how long a hold lasted that was not seen to end.
    fn end(&mut self, died: Option<u64>) {
        if !self.is_ended {
            let deadline = self.seen.map_or(self.granted, |(_, deadline)| deadline);
            self.until_deadline = deadline.min(died.unwrap_or(u64::MAX));
        }
        self.until_deadline = self.until_deadline.max(self.until);
    }

    /// Whether it was refused, and was not lost later: then another held it meanwhile.
    pub(crate) fn is_refused_while_held(&self) -> bool {
        self.refused.is_some_and(|refused| refused < self.until)
    }
}

/// Reads a grant.
fn hold(parts: &[&str], client: usize, incarnation: usize) -> Option<Hold> {
    let &[kind, resource, weight, token, asked, granted, task] = parts else { return None };
    let [weight, token, asked, granted] = numbers([weight, token, asked, granted])?;
    Some(Hold {
        kind: Kind::parse(kind)?,
        resource: resource.to_owned(),
        client,
        incarnation,
        task: task.to_owned(),
        weight: u32::try_from(weight).ok()?,
        token,
        asked,
        granted,
        until: granted,
        until_deadline: granted,
        refused: None,
        over_deadline: 0,
        beyond: None,
        seen: None,
        lost: None,
        is_ended: false,
    })
}

fn numbers<const N: usize>(parts: [&str; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, part) in numbers.iter_mut().zip(parts) {
        *number = part.parse().ok()?;
    }
    Some(numbers)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A hold of a mutex for the tests of checkers.
    pub(crate) fn held(token: u64, asked: u64, granted: u64, until: u64) -> Hold {
        let parts = ["mutex", "m", "1", &token.to_string(), &asked.to_string(), &granted.to_string(), "t"];
        let mut hold = hold(&parts, 0, 0).expect("it is a hold");
        hold.take("exit", &[&until.to_string()]).expect("it is an event");
        hold
    }

    fn read(lines: &str, died: Option<u64>) -> Hold {
        let mut history = History::default();
        died.map(|at| history.died.insert((0, 0), at));
        history.read_client(&lines.replace(' ', "\t"), 0, 0);
        assert_eq!(history.lines_misread, 0);
        history.holds.remove(0)
    }

    const GRANTED: &str = "granted 1 mutex m 1 7 10 20 t\nseen 1 30 100\n";

    #[test]
    fn a_hold_lasts_until_it_is_given_back() {
        let hold = read(&format!("{GRANTED}seen 1 40 100\nexit 1 50\nsettled 1 released\n"), None);
        assert_eq!(
            (hold.token, hold.asked, hold.granted, hold.until, hold.until_deadline),
            (7, 10, 20, 50, 50)
        );
    }

    #[test]
    fn what_was_lost_lasts_surely_until_it_was_last_seen_and_at_most_until_its_deadline() {
        let hold = read(&format!("{GRANTED}lost 1 500 100 99 x\n"), None);
        assert_eq!((hold.until, hold.until_deadline), (30, 100));
        let hold = read(&format!("{GRANTED}lost 1 60 100 0 x\n"), None);
        assert_eq!((hold.until, hold.until_deadline), (30, 60));
    }

    #[test]
    fn a_killed_holder_believes_in_nothing_any_more() {
        let hold = read(&format!("{GRANTED}seen 1 4"), Some(55));
        assert_eq!((hold.until, hold.until_deadline), (30, 55));
    }

    #[test]
    fn a_refusal_before_it_was_seen_to_hold_is_noted() {
        assert!(read(&format!("{GRANTED}refused 1 35\nseen 1 40 100\n"), None).is_refused_while_held());
        assert!(!read(&format!("{GRANTED}refused 1 35\nlost 1 40 100 0 x\n"), None).is_refused_while_held());
    }

    #[test]
    fn an_error_that_no_fault_explains_is_found() {
        let mut history = History::default();
        history.read_client("error\tmutex\tunavailable\tx\nerror\tmutex\tinternal\ty\n", 0, 0);
        assert_eq!(history.unexplained(), ["mutex: internal: y"]);
    }

    #[test]
    fn validity_after_the_deadline_is_noted() {
        assert_eq!(read(&format!("{GRANTED}seen 1 130 100\n"), None).over_deadline, 30);
    }
}
