//! What chores need to know of a `Cargo.toml`: sections, keys and dependencies.
//!
//! Reads the subset of TOML that our manifests use, line by line. A parser crate was rejected: it would be
//! the only dependency of xtask.

use crate::tree::Tree;

/// The keys of a manifest with the sections they stand in.
pub(crate) struct Manifest {
    entries: Vec<Entry>,
}

struct Entry {
    section: String,
    key: String,
    value: String,
}

impl Manifest {
    /// Reads the text of a `Cargo.toml`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut section = String::new();
        let mut entries = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
                // `[dependencies.redis]` counts as the key `redis` of `[dependencies]`, even without lines.
                header.trim_start_matches('[').clone_into(&mut section);
                if let Some((parent, key)) = section.rsplit_once("dependencies.") {
                    let section = format!("{parent}dependencies");
                    entries.push(Entry { section, key: key.to_owned(), value: String::new() });
                }
            } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
                let (key, value) = (key.trim().trim_matches('"').to_owned(), value.trim().to_owned());
                entries.push(Entry { section: section.clone(), key, value });
            }
        }
        Self { entries }
    }

    /// The keys and values of a section.
    pub(crate) fn section<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let entries = self.entries.iter().filter(move |entry| entry.section == name);
        entries.map(|entry| (entry.key.as_str(), entry.value.as_str()))
    }

    /// The value of a key, without quotes.
    pub(crate) fn value<'a>(&'a self, section: &'a str, key: &str) -> Option<&'a str> {
        let found = self.section(section).find(|(name, _)| *name == key);
        found.map(|(_, value)| value.trim_matches('"'))
    }

    /// The names of all packages that the manifest depends on, those of tests and build scripts as well.
    pub(crate) fn dependencies(&self) -> Vec<&str> {
        let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
        let depends = |section: &str| {
            kinds.contains(&section) || (section.starts_with("target.") && section.ends_with("dependencies"))
        };
        let entries = self.entries.iter().filter(|entry| depends(&entry.section));
        entries.map(|entry| renamed(&entry.value).unwrap_or_else(|| package(&entry.key))).collect()
    }
}

/// `redis.workspace` is the package `redis`.
fn package(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}

/// The package behind `name = { package = "redis" }`.
fn renamed(value: &str) -> Option<&str> {
    let (_, rest) = value.split_once("package")?;
    rest.trim_start().strip_prefix('=')?.split('"').nth(1)
}

/// The crates of the tree: folder and manifest.
pub(crate) fn crates(tree: &Tree) -> Vec<(&str, Manifest)> {
    let manifests = tree.with_suffix("/Cargo.toml");
    manifests.map(|(path, text)| (path.trim_end_matches("/Cargo.toml"), Manifest::parse(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_depend_on_a_package_is_seen() {
        let manifest = Manifest::parse(
            "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb = { version = \"1\" }\n\
             alias = { version = \"1\", package = \"c\" }\n# no = 1\n[dependencies.d]\nversion = \"1\"\n\
             [dev-dependencies]\ne = \"1\"\n[target.'cfg(unix)'.dependencies]\nf = \"1\"\n",
        );
        assert_eq!(manifest.dependencies(), ["a", "b", "c", "d", "e", "f"]);
        assert_eq!(manifest.value("package", "name"), Some("x"));
    }
}
