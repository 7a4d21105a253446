//! Readers of bytes that others have written, and bytes for them.
//!
//! A crate lists its readers as [`Target`]s. [`replay`] gives them their seeds, what was found before, and random changes of both;
//! `cargo xtask fuzz` has libFuzzer look for more. A reader may refuse whatever it likes, and may not panic: the thread that reads
//! is the one that renews. `fuzz.rs` of each crate is an example, and `fuzz/target.rs` reads them all.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::random::cases;

/// Where findings are kept, from the folder of a crate.
const CORPUS: &str = "../../fuzz/corpus";
/// How many random inputs a target gets in an ordinary run.
const CASES: u32 = 1_000;
/// Bytes that mean something to one reader or another.
const MEANINGFUL: &[u8] = b"\0\x01\x02\x08\x10\x7f\x80\xfe\xff 019-_:;,./%?&=#[]@\n\r\t\x1fAEGmrsp*$+";
/// Numbers that something may be added to, or made room for.
const NUMBERS: [&str; 7] =
    ["0", "-1", "65536", "4294967296", "9223372036854775807", "18446744073709551615", "99999999999999999999"];

/// A reader.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Names it, and the folder of what was found for it.
    pub name: &'static str,
    /// Reads, and asserts of what it has read what must be true.
    pub read: fn(&[u8]),
    /// Bytes as they should be, from which random ones are made.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The password in the URLs of seeds, of the user `user` or of none, or of the setting `password`.
const PASSWORD: &str = "s3cret";

/// Reads a URL, and asserts that what was made of it does not show its password.
pub fn read_url<C: Debug, E>(bytes: &[u8], parse: impl FnOnce(&str) -> Result<C, E>) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(config) = parse(text)
        && has_password(text)
    {
        assert!(!format!("{config:?}").contains(PASSWORD), "a password is shown");
    }
}

/// Whether the password still is one, and not a part of a path or of a name.
fn has_password(text: &str) -> bool {
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    let user = rest.split_once('@').and_then(|(user, _)| user.split_once(':'));
    let of_user = user.is_some_and(|(user, word)| ["", "user"].contains(&user) && word.starts_with(PASSWORD));
    let settings = rest.split_once('?').map_or("", |(_, settings)| settings);
    let word = settings.split('&').find_map(|setting| setting.strip_prefix("password="));
    let is_set = word.is_some_and(|word| word.starts_with(PASSWORD));
    text.matches(PASSWORD).count() == 1 && (of_user || is_set)
}

/// Returns seeds that are texts.
pub fn texts<const N: usize>(seeds: [&str; N]) -> Vec<Vec<u8>> {
    seeds.map(|seed| seed.as_bytes().to_vec()).into()
}

/// Gives each target its seeds, what was found before, and random changes of both.
///
/// # Panics
/// If a reader panics.
pub fn replay(targets: &[Target]) {
    // A panic is shown with the bytes that made it.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    for target in targets {
        let mut known = (target.seeds)();
        assert!(!known.is_empty(), "{} has no seeds", target.name);
        known.extend(files(&here.join(CORPUS).join(target.name)));
        known.iter().for_each(|bytes| read(target, bytes));
        let mut random = fastrand::Rng::with_seed(0);
        for _ in 0..cases(CASES) {
            read(target, &changed(&known, &mut random));
        }
    }
}

fn read(target: &Target, bytes: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.read)(bytes))).is_err() {
        panic!("{} panics at \"{}\"", target.name, bytes.escape_ascii());
    }
}

/// Finds what was kept in a folder; there may be none.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus")).collect()
}

/// Changes some bytes here and there.
fn changed(known: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = known[random.usize(..known.len())].clone();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..=bytes.len());
        let end = random.usize(at..=bytes.len().min(at + 16));
        match random.u8(..8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.insert(at, random.u8(..)),
            3 => drop(bytes.splice(at..at, NUMBERS[random.usize(..NUMBERS.len())].bytes())),
            4 => {
                let other = &known[random.usize(..known.len())];
                let from = random.usize(..=other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            5 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            6 if at < bytes.len() => bytes[at] ^= 1 << random.u8(..8),
            _ if at < bytes.len() => bytes[at] = MEANINGFUL[random.usize(..MEANINGFUL.len())],
            _ => bytes.push(MEANINGFUL[random.usize(..MEANINGFUL.len())]),
        }
    }
    bytes
}

/// The readers of this crate.
pub const TARGETS: &[Target] = &[
    Target { name: "record", read: own::record, seeds: own::records },
    Target { name: "line-entry", read: own::entry, seeds: own::entries },
    Target {
        name: "claim-id",
        read: own::claim_id,
        seeds: || vec![b"00000000000000000000000000000001".to_vec()],
    },
    Target { name: "label", read: own::label, seeds: || vec![b"host/17/program some text".to_vec()] },
];

mod own {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::clock::Timestamp;
    use crate::model::claim::{Claim, ClaimId, ClientId, Kind, Label, Name, Terms};
    use crate::model::inspect::inspect;
    use crate::model::line::Entry;
    use crate::model::record::PlainRecord;
    use crate::model::step::{Release, Renew, step};
    use crate::model::token::Token;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn claim(id: u128, kind: Kind, capacity: u32) -> Claim {
        let terms = Terms { kind, capacity, ..Terms::of_mutex(Label::new("host", 1, "program", "text")) };
        Claim {
            id: ClaimId::new(id),
            client: ClientId::new(7),
            resource: Name::new("r").expect("a good name"),
            terms: Arc::new(terms),
            wait: true,
            floor: Token::ZERO,
            floor_forced: false,
            may_be_known: false,
        }
    }

    pub(super) fn record(bytes: &[u8]) {
        let Ok(record) = PlainRecord::decode(bytes) else { return };
        assert_eq!(PlainRecord::decode(&record.encode(Vec::new())).as_ref(), Ok(&record));
        let name = Name::new("r").expect("a good name");
        let Ok(_view) = inspect(&name, &record, NOW);
        let mut record = record;
        let Ok(_) = step(&mut record, &claim(9, Kind::Mutex, 1), NOW);
        let Ok(_) = step(&mut record, &Renew(ClaimId::new(1)), NOW);
        let release = Release { claim: ClaimId::new(1), maybe_in_flight: false, is_unused: false };
        let Ok(_) = step(&mut record, &release, NOW + Duration::from_secs(3600));
    }

    pub(super) fn records() -> Vec<Vec<u8>> {
        let kinds = [(Kind::Mutex, 1), (Kind::Semaphore, 3), (Kind::SlotPool, 2), (Kind::RwLock, 1 << 20)];
        let record = |(kind, capacity)| {
            let mut record = PlainRecord::default();
            for id in 1..5 {
                let Ok(_) = step(&mut record, &claim(id, kind, capacity), NOW);
            }
            let release = Release { claim: ClaimId::new(2), maybe_in_flight: true, is_unused: false };
            let Ok(_) = step(&mut record, &release, NOW);
            record.encode(Vec::new())
        };
        kinds.into_iter().map(record).collect()
    }

    pub(super) fn entry(bytes: &[u8]) {
        let Some(entry) = std::str::from_utf8(bytes).ok().and_then(Entry::decode) else { return };
        let again = Entry::decode(&entry.encode()).expect("what was written can be read");
        assert_eq!(again.encode(), entry.encode());
    }

    pub(super) fn entries() -> Vec<Vec<u8>> {
        let entry = Entry::new(&claim(1, Kind::SlotPool, 2), NOW, Duration::from_secs(10));
        vec![entry.encode().into_bytes(), Entry { about: None, ..entry }.encode().into_bytes()]
    }

    pub(super) fn claim_id(bytes: &[u8]) {
        let Some(id) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<ClaimId>().ok()) else {
            return;
        };
        assert_eq!(id.to_string().parse().ok(), Some(id));
    }

    pub(super) fn label(bytes: &[u8]) {
        let label = Label::from_stored(&String::from_utf8_lossy(bytes));
        let shown = format!("{label} {} {} {} {}", label.host(), label.pid(), label.program(), label.text());
        assert!(shown.len() < 100_000 + 8 * bytes.len());
        assert!(!label.to_string().contains(char::is_control), "{label:?}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn readers_bear_any_bytes() {
        super::replay(super::TARGETS);
    }

    #[test]
    fn a_password_that_is_shown_is_found() {
        let is_found = |url: &str| {
            std::panic::catch_unwind(|| super::read_url(url.as_bytes(), |text| Ok::<_, ()>(text.to_owned())))
                .is_err()
        };
        for url in
            ["a://user:s3cret@h", "a://:s3cret@h/b?c=d", "a://h?b=c&password=s3cret", "a://user:s3cret%2Fx@h"]
        {
            assert!(is_found(url), "{url}");
        }
        for url in
            ["a://users3cret@h", "a://h/s3cret", "a://user:s3cret@h?prefix=s3cret", "a://h?prefix=s3cret"]
        {
            assert!(!is_found(url), "{url}");
        }
    }
}
