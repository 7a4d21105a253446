//! What the leases protect: a server of one process, behind a fence, which writes down what it accepts in which order.

use std::io::{BufRead, BufReader, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use tenure::fence::{Mark, Memory};

use crate::history::{Journal, now};

/// What is answered to a write.
const ACCEPTED: &str = "accepted";
/// The claim of a write that nothing is compared with.
const UNFENCED: &str = "unfenced";

/// Serves at a socket, on threads of its own, until the process ends.
pub(crate) fn serve(path: &Path, journal: &Arc<Journal>) {
    let listener = UnixListener::bind(path).expect("a socket in a directory of its own");
    let (journal, fences) = (journal.clone(), Arc::new(Memory::new()));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (journal, fences) = (journal.clone(), fences.clone());
            // A client that dies ends its stream.
            std::thread::spawn(move || answer(&stream, &journal, &fences).ok());
        }
    });
}

fn answer(stream: &UnixStream, journal: &Journal, fences: &Memory) -> Result<()> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let parts: Vec<&str> = line.split('\t').collect();
        let [key, token, claim, item] = parts[..] else { return Ok(()) };
        let note = |answer| {
            journal.write(&["access", key, token, item, &now().to_string(), answer]);
            answer
        };
        if claim == UNFENCED {
            note(ACCEPTED);
            (&*stream).write_all(format!("{ACCEPTED}\n").as_bytes())?;
            continue;
        }
        let Ok(mark) = Mark::parse(token, claim) else { return Ok(()) };
        // Within the step of the fence, so that the order of the lines is that of the writes.
        let answer = fences.run(key, mark, || note(ACCEPTED)).unwrap_or_else(|_| note("stale"));
        (&*stream).write_all(format!("{answer}\n").as_bytes())?;
    }
    Ok(())
}

/// A client's way to it.
pub(crate) struct Resource(BufReader<UnixStream>);

impl Resource {
    /// Connects.
    pub(crate) fn connect(path: &Path) -> Resource {
        Resource(BufReader::new(
            UnixStream::connect(path).expect("the resource is there as long as its clients"),
        ))
    }

    /// Writes under a token; returns whether that was accepted.
    pub(crate) fn write(&mut self, key: &str, mark: Mark, item: &str) -> bool {
        self.send(key, &mark.token().to_string(), &mark.claim().to_string(), item)
    }

    /// Writes under the time of a grant, without a fence.
    pub(crate) fn write_unfenced(&mut self, key: &str, granted: u64) {
        self.send(key, &granted.to_string(), UNFENCED, "");
    }

    fn send(&mut self, key: &str, token: &str, claim: &str, item: &str) -> bool {
        let line = format!("{key}\t{token}\t{claim}\t{item}\n");
        self.0.get_mut().write_all(line.as_bytes()).expect("the resource is there as long as its clients");
        let mut answer = String::new();
        self.0.read_line(&mut answer).expect("the resource is there as long as its clients");
        answer.trim_end() == ACCEPTED
    }
}
