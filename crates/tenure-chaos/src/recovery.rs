//! Waits until everybody has been served again, without reading all that was written before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use crate::check::liveness::task;
use crate::history::now;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How far the files of clients were written when all was healed.
pub(crate) struct Recovery<'a> {
    directory: &'a Path,
    healed: u64,
    begins: BTreeMap<String, u64>,
}

impl<'a> Recovery<'a> {
    /// Begins to wait: all is healed.
    pub(crate) fn begin(directory: &'a Path, healed: u64) -> Recovery<'a> {
        let begins = clients(directory).into_iter().map(|name| {
            let length = fs::metadata(directory.join(&name)).map_or(0, |file| file.len());
            (name, length)
        });
        Recovery { directory, healed, begins: begins.collect() }
    }

    /// Waits until each of these tasks has been granted something, or is through, or for so long.
    pub(crate) fn wait(&self, tasks: &[String], within: Duration) {
        let until = self.healed + within.as_nanos() as u64;
        while !tasks.iter().collect::<BTreeSet<_>>().is_subset(&self.served().iter().collect()) {
            if now() > until {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn served(&self) -> BTreeSet<String> {
        let mut served = BTreeSet::new();
        for name in clients(self.directory) {
            let begin = self.begins.get(&name).copied().unwrap_or(0);
            let client = name.split_once('.').and_then(|(client, _)| client.parse().ok());
            let (Some(client), Ok(text)) = (client, self.read(&name, begin)) else { continue };
            for line in text.lines() {
                let parts: Vec<&str> = line.split('\t').collect();
                if let ["granted" | "fetched" | "through", .., at, name] = parts[..]
                    && at.parse().is_ok_and(|at: u64| at > self.healed)
                {
                    served.insert(task(client, name));
                }
            }
        }
        served
    }

    fn read(&self, name: &str, begin: u64) -> std::io::Result<String> {
        let mut file = File::open(self.directory.join(name))?;
        file.seek(SeekFrom::Start(begin))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        Ok(text)
    }
}

/// The files of clients.
fn clients(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains('.')).collect()
}
