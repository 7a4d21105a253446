//! Reads what rustdoc wrote as JSON about a crate, and compares its public items with the list in the crate's folder.
//!
//! `cargo xtask api` starts it: `xtask-api [--fix] (JSON LIST)...`.

use std::collections::BTreeSet;
use std::process::ExitCode;

/// The only format of rustdoc's JSON that the crate `public-api` reads in the version that we use.
const FORMAT: &str = "\"format_version\":57";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let fix = words.first().is_some_and(|word| word == "--fix");
    words.drain(..usize::from(fix));
    let mut passed = true;
    for pair in words.chunks_exact(2) {
        if let Err(text) = look_at(&pair[0], &pair[1], fix) {
            eprintln!("{text}");
            passed = false;
        }
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks the list of one crate, or writes it.
fn look_at(json: &str, list: &str, fix: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(json).map_err(|error| format!("cannot read {json}: {error}"))?;
    if !text.contains(FORMAT) {
        let message = format!("{list}: not looked at: this rustdoc writes another format than {FORMAT}");
        eprintln!("{message}; xtask/api/Cargo.toml says which version of Rust is read");
        return if fix { Err("nothing is written".to_owned()) } else { Ok(()) };
    }
    let found = items(json)?;
    if fix {
        return std::fs::write(list, found).map_err(|error| format!("cannot write {list}: {error}"));
    }
    let listed = std::fs::read_to_string(list).unwrap_or_default();
    if listed == found {
        return Ok(());
    }
    let changes = changes(&listed, &found);
    Err(format!(
        "{list}: the public items are others:\n{changes}hint: `cargo xtask api --fix` writes the list"
    ))
}

/// The public items of a crate in the order of their paths, one a line.
fn items(json: &str) -> Result<String, String> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .map_err(|error| format!("cannot read {json}: {error}"))?;
    let mut listed = BTreeSet::new();
    let lines = api.items().map(|item| format!("{item}\n")).filter(|line| !goes_without_saying(line));
    // What can be named by two paths is in the JSON twice.
    Ok(lines.filter(|line| listed.insert(line.clone())).collect())
}

/// Whether the line before it, `impl core::clone::Clone for ..`, says it all.
fn goes_without_saying(line: &str) -> bool {
    ["clone", "eq", "cmp", "partial_cmp", "fmt", "hash"]
        .iter()
        .any(|name| line.contains(&format!("::{name}(&self")) || line.contains(&format!("::{name}<__H")))
}

/// The lines that are gone and those that are new.
fn changes(old: &str, new: &str) -> String {
    let (before, after): (BTreeSet<_>, BTreeSet<_>) = (old.lines().collect(), new.lines().collect());
    let gone = before.difference(&after).map(|line| format!("  - {line}\n"));
    let added = after.difference(&before).map(|line| format!("  + {line}\n"));
    gone.chain(added).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_shows_what_is_gone_and_what_is_new() {
        let shown = changes("pub fn a()\npub fn b()\n", "pub fn a()\npub fn c()\n");
        assert_eq!(shown, "  - pub fn b()\n  + pub fn c()\n");
    }

    #[test]
    fn what_is_derived_is_one_line() {
        assert!(goes_without_saying("pub fn a::B::clone(&self) -> a::B"));
        assert!(!goes_without_saying("impl core::clone::Clone for a::B"));
        assert!(!goes_without_saying("pub fn a::B::format(&self) -> a::B"));
    }

    #[test]
    fn the_json_of_another_rustdoc_is_not_judged_and_nothing_is_written() {
        let folder = std::env::temp_dir().join(format!("xtask-api-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (json, list) = (folder.join("x.json"), folder.join("x.txt"));
        std::fs::write(&json, "{\"format_version\":1}").expect("a file");
        let (json, list) = (json.to_string_lossy().into_owned(), list.to_string_lossy().into_owned());
        assert!(look_at(&json, &list, false).is_ok());
        assert!(look_at(&json, &list, true).is_err());
        assert!(!std::path::Path::new(&list).exists());
        std::fs::remove_dir_all(&folder).expect("the folder is gone");
    }
}
