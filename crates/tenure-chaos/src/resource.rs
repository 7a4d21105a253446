//! What the leases protect: a server of one process, behind a fence, which writes down what it accepts in which order.

use std::io::{BufRead, BufReader, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use tenure::fence::{Mark, Memory};

use crate::history::{Journal, now};

/// What is answered to a write.
const ACCEPTED: &str = "accepted";

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
        let Ok(mark) = Mark::parse(token, claim) else { return Ok(()) };
        let note = |answer| {
            journal.write(&["access", key, token, item, &now().to_string(), answer]);
            answer
        };
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
        let line = format!("{key}\t{}\t{}\t{item}\n", mark.token(), mark.claim());
        self.0.get_mut().write_all(line.as_bytes()).expect("the resource is there as long as its clients");
        let mut answer = String::new();
        self.0.read_line(&mut answer).expect("the resource is there as long as its clients");
        answer.trim_end() == ACCEPTED
    }
}
