//! The file of tokens: read when the server begins, and again when it has changed.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;
use tenure_core::clock::Timestamp;
use toml::value::Datetime;

use super::rules::Rules;
use super::table::{Entry, Key, Table};

/// As it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    token: Vec<WrittenToken>,
    #[serde(default)]
    certificate: Vec<WrittenCertificate>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenToken {
    name: String,
    sha256: String,
    allow: Vec<String>,
    expires: Option<Datetime>,
    rate: Option<u32>,
    waiting: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCertificate {
    san: String,
    name: Option<String>,
    allow: Vec<String>,
    expires: Option<Datetime>,
    rate: Option<u32>,
    waiting: Option<usize>,
}

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64, i64, i64, u64);

/// Returns the version of a file; none where it cannot be looked at.
pub(crate) fn version(path: &Path) -> Option<Version> {
    let file = fs::metadata(path).ok()?;
    Some(Version(file.ino(), file.mtime(), file.mtime_nsec(), file.size()))
}

/// Whether only this process's user and root can have written a file, and only they and whom root lets read it. What root owns may be read by a
/// group: so does a service's file stand in `/etc`, and so does Kubernetes mount a secret.
fn is_private(mode: u32, owner: u32, user: u32) -> bool {
    let is_of_root = owner == 0 && user != 0;
    mode & if is_of_root { 0o037 } else { 0o077 } == 0
}

/// Reads a file, which must be [private](is_private).
pub(crate) fn load(path: &Path) -> Result<Table, String> {
    parse(&read_private(path)?).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads the text of a file, which must be [private](is_private).
pub(crate) fn read_private(path: &Path) -> Result<String, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut file =
        fs::File::open(path).map_err(|error| wrong(&tenure_core::error::plain(&error.to_string())))?;
    // Of the file that was opened, not of the one that has its name by now.
    let found = file.metadata().map_err(|error| wrong(&error))?;
    let mode = found.mode() & 0o7777;
    if !is_private(mode, found.uid(), rustix::process::geteuid().as_raw()) {
        return Err(format!("{}: others may read it (mode {mode:04o}): chmod 600", path.display()));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| wrong(&error))?;
    Ok(text)
}

/// Reads the text of a file.
pub(crate) fn parse(text: &str) -> Result<Table, String> {
    let written: Written = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
    let mut table = Table::default();
    for token in written.token {
        let name = token.name.clone();
        let key = Key::Token(sha256(&token.sha256).ok_or_else(|| {
            format!(
                "the token {name:?} has no SHA-256 of 64 hexadecimal digits: `tenure serve token` makes one"
            )
        })?);
        let rules = Rules::parse(token.allow.iter().map(String::as_str));
        let entry = Entry {
            rules: rules.map_err(|error| format!("the token {name:?}: {error}"))?,
            expires: expiry(token.expires).map_err(|error| format!("the token {name:?}: {error}"))?,
            rate: token.rate,
            waiting: token.waiting,
            name: token.name,
        };
        if !table.add(key, entry) {
            return Err(format!("the token {name:?} has the hash of another one"));
        }
    }
    for certificate in written.certificate {
        let san = certificate.san.clone();
        let rules = Rules::parse(certificate.allow.iter().map(String::as_str));
        let entry = Entry {
            rules: rules.map_err(|error| format!("the certificate {san:?}: {error}"))?,
            expires: expiry(certificate.expires)
                .map_err(|error| format!("the certificate {san:?}: {error}"))?,
            rate: certificate.rate,
            waiting: certificate.waiting,
            name: certificate.name.unwrap_or(certificate.san),
        };
        if !table.add(Key::Certificate(san.clone()), entry) {
            return Err(format!("the certificate {san:?} is there twice"));
        }
    }
    Ok(table)
}

fn sha256(digits: &str) -> Option<[u8; 32]> {
    let digits = Some(digits).filter(|text| text.len() == 64 && text.is_ascii())?;
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

/// When an entry ends: at the beginning of a day, or at a moment, of UTC.
fn expiry(written: Option<Datetime>) -> Result<Option<Timestamp>, String> {
    let Some(written) = written else { return Ok(None) };
    let wrong = || {
        format!(
            "`expires = {written}` is no day and no moment of UTC: write 2027-01-01, or 2027-01-01T12:00:00Z"
        )
    };
    let date = written.date.ok_or_else(wrong)?;
    let is_utc = written.offset.is_none_or(|offset| offset == toml::value::Offset::Z);
    if !is_utc {
        return Err(wrong());
    }
    let days = days_since_1970(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let of_day = written.time.map_or(0, |time| {
        let second = i64::from(time.second.unwrap_or(0));
        i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + second
    });
    let micros = u64::try_from((days * 86_400 + of_day) * 1_000_000).map_err(|_| wrong())?;
    Ok(Some(Timestamp::from_micros(micros)))
}

/// The days between 1970-01-01 and a day of the Gregorian calendar. Years begin in March, so that the leap day is the last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::super::rules::Verb;
    use super::*;

    #[test]
    fn an_entry_allows_what_it_says_until_its_day() {
        let Key::Token(hash) = Key::of_token("tnr_secret") else { panic!("a token has a hash") };
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "[[token]]\nname = \"billing\"\nsha256 = \"{hex}\"\nallow = [\"claim billing/\"]\nexpires = 2999-01-01\nrate = 7\n\
             [[token]]\nname = \"old\"\nsha256 = \"{}\"\nallow = [\"read\"]\nexpires = 2001-01-01\n\
             [[certificate]]\nsan = \"spiffe://shop/ops\"\nallow = [\"operate\"]\n",
            "0".repeat(64)
        );
        let table = parse(&text).expect("a good file");
        let entry = table.find(&Key::of_token("tnr_secret")).expect("its token");
        assert_eq!((&*entry.name, entry.rate), ("billing", Some(7)));
        assert!(entry.rules.allow(Verb::Claim, Some("billing/1")));
        assert!(table.find(&Key::of_token("tnr_other")).is_none());
        assert!(table.find(&Key::Token([0; 32])).is_none(), "its day is over");
        let names = ["spiffe://shop/dev".to_owned(), "spiffe://shop/ops".to_owned()];
        let key = table.key_of_certificate(&names).expect("the second name");
        assert_eq!(table.find(&key).expect("an entry").name, "spiffe://shop/ops");
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn a_group_may_read_what_root_owns_and_this_process_cannot_change() {
        const US: u32 = 65_532;
        for (mode, owner, user, is_good) in [
            (0o600, US, US, true),
            (0o400, US, US, true),
            (0o640, US, US, false),
            (0o440, 0, US, true),
            (0o640, 0, US, true),
            (0o660, 0, US, false),
            (0o644, 0, US, false),
            (0o600, 0, 0, true),
            (0o640, 0, 0, false),
            (0o640, 1000, US, false),
        ] {
            assert_eq!(is_private(mode, owner, user), is_good, "{mode:04o} of {owner} for {user}");
        }
    }

    #[test]
    fn a_slip_in_the_file_is_named() {
        let hash = "0".repeat(64);
        for (text, wrong) in [
            ("[[tokens]]\n".to_owned(), "unknown field `tokens`"),
            (
                format!("[[token]]\nname = \"a\"\nsha256 = \"{hash}\"\nallow = [\"claims x\"]\n"),
                "\"claims\" is no verb",
            ),
            ("[[token]]\nname = \"a\"\nsha256 = \"77\"\nallow = []\n".to_owned(), "64 hexadecimal digits"),
            (
                format!("[[token]]\nname = \"a\"\nsha256 = \"{hash}\"\nallow = []\nexpires = 12:00:00\n"),
                "2027-01-01",
            ),
            (
                format!("[[token]]\nname = \"a\"\nsha256 = \"{hash}\"\nallow = []\n").repeat(2),
                "the hash of another",
            ),
        ] {
            let error = parse(&text).expect_err("a slip");
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn days_are_counted_over_leap_years() {
        for ((year, month, day), days) in
            [((1970, 1, 1), 0), ((2000, 2, 29), 11_016), ((2000, 3, 1), 11_017), ((2027, 1, 1), 20_819)]
        {
            assert_eq!(days_since_1970(year, month, day), days, "{year}-{month}-{day}");
        }
    }
}
