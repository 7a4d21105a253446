//! `tenure queue push`: items from an argument, from stdin, or one for each line of it.

use std::future::{IntoFuture, poll_fn};
use std::io::{self, BufRead, IsTerminal, Read};
use std::os::unix::ffi::OsStringExt;
use std::task::Poll;

use serde::Serialize;
use tenure::Queue;
use tenure::queue::{PAYLOAD_BYTES_MAX, Pushed};

use super::arguments::Push;
use crate::connect::connect_blocking;
use crate::exit::{self, Failure, Outcome};
use crate::output::data::write_data;
use crate::output::messages::Messages;
use crate::traces;

/// How many lines are pushed together, at most: they share round trips.
const BATCH_MAX: usize = 128;
/// How many bytes of lines are pushed together, about.
const BATCH_BYTES: usize = 1024 * 1024;

/// An item in JSON. Field names are stable.
#[derive(Serialize)]
struct PushedJson<'a> {
    queue: &'a str,
    item: u64,
    is_duplicate: bool,
    /// With `--lines`: which line of stdin it is, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

/// Puts items in line.
pub(crate) fn push(mut push: Push, engine: &str) -> Outcome {
    let payload = if push.lines { None } else { Some(payload(&mut push)?) };
    let tenure = connect_blocking(engine)?;
    let queue = tenure.queue(&push.name);
    match payload {
        Some(payload) => {
            let pushed = pollster::block_on(with_settings(&push, queue.push(payload)).into_future())?;
            if let (true, Some(id)) = (pushed.is_duplicate, &push.dedup) {
                let text = format!("nothing was pushed: item {} was, under {id:?}", pushed.item);
                Messages::TEXT.message(&text);
            }
            write_pushed(&push, &pushed, None)?;
        }
        None => push_lines(&push, &queue)?,
    }
    pollster::block_on(tenure.close());
    Ok(0)
}

/// Returns what is pushed as one item.
fn payload(push: &mut Push) -> Result<Vec<u8>, Failure> {
    match push.payload.take() {
        Some(payload) if payload != "-" => return Ok(payload.into_vec()),
        None if io::stdin().is_terminal() => {
            return Err(Failure::new(exit::USAGE, "there is nothing to push, and stdin is a terminal")
                .with_hint("write the payload after the name, or `-` to type it"));
        }
        _ => {}
    }
    let mut payload = Vec::new();
    // One byte too many is enough to be refused.
    let most = PAYLOAD_BYTES_MAX as u64 + 1;
    let read = io::stdin().lock().take(most).read_to_end(&mut payload);
    read.map_err(|error| Failure::system("read stdin", error))?;
    if payload.is_empty() {
        // Under cron and the like stdin is empty because nobody has said what it should be.
        return Err(Failure::new(exit::USAGE, "there is nothing to push: stdin is empty")
            .with_hint("write the payload after the name; an empty one is `''`"));
    }
    Ok(payload)
}

/// Adds the settings of the flags.
fn with_settings(push: &Push, mut pushing: tenure::Push) -> tenure::Push {
    pushing = pushing.delay(push.delay);
    if let Some(group) = &push.group {
        pushing = pushing.group(group);
    }
    if let Some(id) = &push.dedup {
        pushing = pushing.dedup(id);
    }
    match push.context.as_deref() {
        None => pushing.context_with(traces::of_push),
        Some("") => pushing,
        Some(context) => pushing.context(context),
    }
}

fn write_pushed(push: &Push, pushed: &Pushed, line: Option<u64>) -> Result<(), Failure> {
    let (queue, item) = (push.name.as_str(), pushed.item.0);
    let text = match push.json {
        true => serde_json::to_string(&PushedJson { queue, item, is_duplicate: pushed.is_duplicate, line })
            .map_err(|error| Failure::system("write JSON", error))?,
        false => item.to_string(),
    };
    // A reader of the numbers that has gone away is no reason to push only some of the items.
    write_data(&format!("{text}\n")).map(drop)
}

/// What the next line of stdin is.
enum Line {
    Payload(Vec<u8>),
    TooLong,
    End,
}

/// Reads a line, and never more of it into memory than an item may have.
fn next_line(stdin: &mut impl BufRead) -> Result<Line, Failure> {
    let failed = |error| Failure::system("read stdin", error);
    let mut line = Vec::new();
    let most = PAYLOAD_BYTES_MAX as u64 + 1;
    if stdin.by_ref().take(most).read_until(b'\n', &mut line).map_err(failed)? == 0 {
        return Ok(Line::End);
    }
    let is_whole = line.pop_if(|last| *last == b'\n').is_some();
    // Without a line end within the limit: a whole line only if stdin ends here.
    Ok(if is_whole || line.len() <= PAYLOAD_BYTES_MAX { Line::Payload(line) } else { Line::TooLong })
}

/// Pushes each line. Nothing is read behind a line that fails; other lines of the same batch may
/// have been pushed, and the failure names each one that was not.
fn push_lines(push: &Push, queue: &Queue) -> Result<(), Failure> {
    let mut stdin = io::stdin().lock();
    let mut pushed_count = 0;
    loop {
        let (mut batch, mut bytes, mut end) = (Vec::new(), 0, None);
        while end.is_none() && batch.len() < BATCH_MAX && bytes < BATCH_BYTES {
            match next_line(&mut stdin)? {
                Line::Payload(line) => {
                    bytes += line.len();
                    batch.push(with_settings(push, queue.push(line)).into_future());
                }
                other => end = Some(other),
            }
        }
        pushed_count += push_batch(push, pushed_count, batch)?;
        match end {
            None => {}
            Some(Line::TooLong) => {
                let number = pushed_count + 1;
                let message = format!(
                    "line {number} has more than {PAYLOAD_BYTES_MAX} bytes; the {pushed_count} lines before it were \
                     pushed, and nothing behind it"
                );
                return Err(Failure::new(exit::USAGE, message)
                    .with_hint("keep large data elsewhere, and push where it is"));
            }
            Some(_) => return Ok(()),
        }
    }
}

/// Pushes lines together, the first of which follows `before` others, and returns how many they are.
fn push_batch<F>(push: &Push, before: u64, batch: Vec<F>) -> Result<u64, Failure>
where
    F: Future<Output = tenure::Result<Pushed>> + Unpin,
{
    let (mut count, mut failed, mut first_error) = (0, Vec::new(), None);
    for result in all(batch) {
        count += 1;
        match result {
            Ok(pushed) => write_pushed(push, &pushed, Some(before + count))?,
            Err(error) => {
                failed.push(before + count);
                first_error.get_or_insert(error);
            }
        }
    }
    let Some(error) = first_error else { return Ok(count) };
    let is_unknown = error.kind() == tenure::ErrorKind::Unavailable;
    let failure = Failure::from(error);
    let fate = if is_unknown { "may or may not be in line" } else { "were not pushed" };
    let pushed = before + count - failed.len() as u64;
    let message = format!(
        "{}: {} {fate}; {pushed} others were pushed, and nothing behind them",
        failure.message,
        ranges(&failed)
    );
    Err(Failure { message, ..failure })
}

/// Names lines by their numbers, which grow: `line 3`, `lines 3 to 5 and 9`.
fn ranges(numbers: &[u64]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let word = if numbers.len() == 1 { "line" } else { "lines" };
    let name = |&(first, last): &(u64, u64)| {
        if first == last { first.to_string() } else { format!("{first} to {last}") }
    };
    format!("{word} {}", ranges.iter().map(name).collect::<Vec<_>>().join(" and "))
}

/// Waits for all, begun in their order.
fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<(F, Option<F::Output>)> = futures.into_iter().map(|future| (future, None)).collect();
    pollster::block_on(poll_fn(|context| {
        let mut is_ready = true;
        for (future, output) in &mut futures {
            if output.is_none() {
                match std::pin::Pin::new(future).poll(context) {
                    Poll::Ready(done) => *output = Some(done),
                    Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    }));
    futures.into_iter().filter_map(|(_, output)| output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_named_by_their_numbers() {
        assert_eq!(ranges(&[3]), "line 3");
        assert_eq!(ranges(&[3, 4, 5, 9]), "lines 3 to 5 and 9");
    }

    #[test]
    fn a_line_is_read_whole_or_not_at_all() {
        let read = |text: &[u8]| {
            let mut stdin = text;
            let line = next_line(&mut stdin).unwrap();
            match line {
                Line::Payload(line) => Some(line.len()),
                Line::TooLong => None,
                Line::End => Some(usize::MAX),
            }
        };
        let most = vec![b'x'; PAYLOAD_BYTES_MAX];
        assert_eq!(read(b""), Some(usize::MAX));
        assert_eq!(read(b"\nx"), Some(0));
        assert_eq!(read(&most), Some(most.len()));
        assert_eq!(read(&[&most[..], b"\n"].concat()), Some(most.len()));
        assert_eq!(read(&[&most[..], b"x"].concat()), None);
        assert_eq!(read(&[&most[..], b"x\n"].concat()), None);
    }
}
