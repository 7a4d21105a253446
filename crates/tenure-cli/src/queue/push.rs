//! `tenure queue push`: items from an argument, from stdin, or one for each line of it.

use std::future::{IntoFuture, poll_fn};
use std::io::{self, BufRead, IsTerminal, Read};
use std::os::unix::ffi::OsStringExt;
use std::task::Poll;

use serde::Serialize;
use tenure::queue::{PAYLOAD_BYTES_MAX, Pushed};
use tenure::{Pushing, Queue};

use super::arguments::Push;
use crate::exit::{self, Failure, Outcome};
use crate::output::{Messages, write_data};

/// How many lines are pushed together, at most: they share round trips.
const TOGETHER_MAX: usize = 128;
/// How many bytes of lines are pushed together, about.
const TOGETHER_BYTES: usize = 1024 * 1024;

/// An item in JSON. Field names are stable.
#[derive(Serialize)]
struct PushedJson<'a> {
    queue: &'a str,
    item: u64,
    is_duplicate: bool,
}

/// Puts items in line.
pub(crate) fn push(mut push: Push, engine: &str) -> Outcome {
    let payload = if push.lines { None } else { Some(payload(&mut push)?) };
    let tenure = crate::connect(engine, None)?;
    let queue = tenure.queue(&push.name);
    match payload {
        Some(payload) => {
            let pushed = pollster::block_on(settled(&push, queue.push(payload)).into_future())?;
            if let (true, Some(id)) = (pushed.is_duplicate, &push.dedup) {
                let text = format!("nothing was pushed: item {} was, under {id:?}", pushed.item);
                Messages::TEXT.message(&text);
            }
            tell(&push, &pushed)?;
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
    Ok(payload)
}

fn settled(push: &Push, mut pushing: Pushing) -> Pushing {
    pushing = pushing.delay(push.delay);
    if let Some(group) = &push.group {
        pushing = pushing.group(group);
    }
    if let Some(id) = &push.dedup {
        pushing = pushing.dedup(id);
    }
    pushing
}

fn tell(push: &Push, pushed: &Pushed) -> Result<(), Failure> {
    let (queue, item) = (push.name.as_str(), pushed.item.0);
    let line = match push.json {
        true => serde_json::to_string(&PushedJson { queue, item, is_duplicate: pushed.is_duplicate })
            .map_err(|error| Failure::system("write JSON", error))?,
        false => item.to_string(),
    };
    // That nobody reads the numbers is no reason to push only some of the items.
    write_data(&format!("{line}\n")).map(drop)
}

/// Pushes each line. Those before one that fails are in line.
fn push_lines(push: &Push, queue: &Queue) -> Result<(), Failure> {
    let mut stdin = io::stdin().lock();
    let mut count = 0_u64;
    let mut is_end = false;
    while !is_end {
        let (mut together, mut bytes) = (Vec::new(), 0);
        while together.len() < TOGETHER_MAX && bytes < TOGETHER_BYTES {
            let mut line = Vec::new();
            let most = PAYLOAD_BYTES_MAX as u64 + 2;
            let read = stdin.by_ref().take(most).read_until(b'\n', &mut line);
            if read.map_err(|error| Failure::system("read stdin", error))? == 0 {
                is_end = true;
                break;
            }
            line.pop_if(|last| *last == b'\n');
            bytes += line.len();
            together.push(settled(push, queue.push(line)).into_future());
        }
        for pushed in all(together) {
            let pushed = pushed.map_err(|error| {
                let failure = Failure::from(error);
                let message = format!("{}; {count} lines before it were pushed", failure.message);
                Failure { message, ..failure }
            })?;
            count += 1;
            tell(push, &pushed)?;
        }
    }
    Ok(())
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
