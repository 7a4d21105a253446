//! `tenure cache`: one process runs the program, the others get its output.

use std::cell::RefCell;
use std::ffi::OsString;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use std::os::unix::process::ExitStatusExt;

use serde::Serialize;
use tenure::{Error, Source};

use crate::arguments::Cache;
use crate::exit::{self, Failure, Outcome};
use crate::output::Messages;

/// Where the value came from, in JSON. Field names are stable.
#[derive(Serialize)]
struct FoundJson<'a> {
    event: &'static str,
    key: &'a str,
    source: &'static str,
    bytes: usize,
    token: Option<u64>,
}

/// Why there is no value.
enum Failed {
    Tenure(Error),
    NotStarted(io::Error),
    Ended(ExitStatus),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Tenure(error)
    }
}

/// Prints the value of a key; runs the program for it if nobody has done so lately.
pub(crate) fn cache(cache: &Cache, engine: &str) -> Outcome {
    let tenure = crate::connect(engine, None)?;
    let mut flight = tenure.single_flight(&cache.key).fresh(cache.ttl).ttl(cache.lease);
    if let Some(stale) = cache.stale {
        flight = flight.serve_stale(stale);
    }
    // What the program wrote, even if it cannot be shared.
    let output = RefCell::new(None);
    let load = async |lease: &tenure::Lease| {
        let (bytes, status) = run(&cache.command, lease).await.map_err(Failed::NotStarted)?;
        output.replace(Some(bytes.clone()));
        if status.success() { Ok(bytes) } else { Err(Failed::Ended(status)) }
    };
    let found = pollster::block_on(flight.get_or_refresh(load));
    let code = match found {
        Ok(found) => {
            if cache.json {
                tell(cache, found.bytes.len(), found.source);
            }
            write_bytes(&found.bytes)?;
            0
        }
        Err(Failed::NotStarted(error)) => return Err(not_started(cache, &error)),
        Err(Failed::Ended(status)) => {
            write_bytes(output.borrow().as_deref().unwrap_or_default())?;
            let by_signal = status.signal().map(|signal| 128 + signal);
            u8::try_from(status.code().or(by_signal).unwrap_or(1)).unwrap_or(1)
        }
        Err(Failed::Tenure(error)) => match output.take() {
            // The program has done its work; that it cannot be shared is no reason to lose it.
            Some(bytes) => {
                Messages::TEXT.warning(&format!("the output is not shared: {error}"));
                write_bytes(&bytes)?;
                0
            }
            None => return Err(error.into()),
        },
    };
    pollster::block_on(tenure.close());
    Ok(code)
}

fn tell(cache: &Cache, bytes: usize, source: Source) {
    let (source, token) = match source {
        Source::Fresh(token) => ("fresh", Some(token.get())),
        Source::Stale => ("stale", None),
        Source::Loaded(token) => ("loaded", Some(token.get())),
    };
    let found = FoundJson { event: "found", key: &cache.key, source, bytes, token };
    // Nobody may be listening, and the value is what counts.
    let line = serde_json::to_string(&found).unwrap_or_default();
    drop(writeln!(io::stderr(), "{line}"));
}

fn write_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::system("write", error)),
        _ => Ok(()),
    }
}

fn not_started(cache: &Cache, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE };
    let program = cache.command.first().cloned().unwrap_or_default();
    Failure::new(code, format!("cannot run {}: {error}", program.display()))
}

/// A program that is killed when nobody waits for its output any more.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs the program and returns what it wrote. Dropping the future kills it.
async fn run(command: &[OsString], lease: &tenure::Lease) -> io::Result<(Vec<u8>, ExitStatus)> {
    let mut words = command.iter();
    let program = words.next().ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = std::process::Command::new(program);
    child.args(words).stdout(Stdio::piped());
    child.env("TENURE_NAME", lease.resource().as_str()).env("TENURE_TOKEN", lease.token().to_string());
    child.env("TENURE_CLAIM", lease.claim().to_string());
    let mut running = Running(child.spawn()?);
    let mut stdout = running.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let bytes = on_thread(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    })
    .await?;
    let status = running.0.wait()?;
    Ok((bytes, status))
}

/// Waits for blocking work on a thread of its own, which goes on if the future is dropped.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let shared: Arc<Mutex<(Option<T>, Option<Waker>)>> = Arc::new(Mutex::new((None, None)));
    let done = shared.clone();
    std::thread::spawn(move || {
        let result = work();
        let waker = {
            let mut shared = done.lock().unwrap_or_else(PoisonError::into_inner);
            shared.0 = Some(result);
            shared.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    });
    poll_fn(move |cx| {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.0.take() {
            Some(result) => Poll::Ready(result),
            None => {
                shared.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}
