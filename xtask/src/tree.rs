//! The files under version control, in memory: what the rules of tidy look at.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::run::{self, Outcome};

/// Paths relative to the root, with `/`, and the texts of the files. Of others, such as pictures, it is known that they are there.
#[derive(Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
    without_text: BTreeSet<String>,
}

impl Tree {
    /// Reads what git tracks or would add, as it is in the work tree.
    pub(crate) fn read(root: &Path) -> Outcome<Self> {
        let mut list = Command::new("git");
        list.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let mut tree = Self::default();
        for path in run::output(&mut list)?.split_terminator('\0') {
            // A file that was deleted but not yet committed has no bytes either, nor has a link to a folder.
            let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
            match String::from_utf8(bytes) {
                Ok(text) => drop(tree.files.insert(path.to_owned(), text)),
                Err(_) => drop(tree.without_text.insert(path.to_owned())),
            }
        }
        Ok(tree)
    }

    /// A tree of some files, for tests.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Self { files: files.collect(), ..Self::default() }
    }

    /// The text of a file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether the path is a file or a folder; the empty path is the root.
    pub(crate) fn has(&self, path: &str) -> bool {
        if path.is_empty() {
            return true;
        }
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.contains_key(path)
            || self.without_text.contains(path)
            || self.under(&folder).next().is_some()
    }

    /// Every file, by path.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The files whose paths start with `prefix`.
    pub(crate) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter(move |(path, _)| path.starts_with(prefix))
    }

    /// The files whose paths end with `suffix`.
    pub(crate) fn with_suffix<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter(move |(path, _)| path.ends_with(suffix))
    }
}

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The last part of a path without its ending.
pub(crate) fn file_stem(path: &str) -> &str {
    let name = file_name(path);
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_there_although_it_has_no_text() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root");
        let tree = Tree::read(root).expect("the tree");
        assert!(
            tree.has("docs/operating/dashboard.png") && tree.text("docs/operating/dashboard.png").is_none()
        );
    }
}
