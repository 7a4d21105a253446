//! The arguments of a command: `--name value`, and flags without a value.

use std::collections::BTreeMap;

/// What was said, until it is asked for.
pub(crate) struct Arguments {
    words: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Arguments {
    /// Sorts words into names with values, and others. A name before another name, or at the end, is a flag.
    pub(crate) fn new(words: impl Iterator<Item = String>) -> Arguments {
        let mut arguments = Arguments { words: Vec::new(), values: BTreeMap::new() };
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            match word.strip_prefix("--") {
                Some(name) => {
                    let value = words.next_if(|next| !next.starts_with("--")).unwrap_or_default();
                    arguments.values.insert(name.to_owned(), value);
                }
                None => arguments.words.push(word),
            }
        }
        arguments
    }

    /// Takes the next word that belongs to no name.
    pub(crate) fn word(&mut self) -> Option<String> {
        (!self.words.is_empty()).then(|| self.words.remove(0))
    }

    /// Takes a flag.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.values.remove(name).is_some()
    }

    /// Takes a value, if there is one.
    pub(crate) fn optional(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    /// Takes a value.
    pub(crate) fn text(&mut self, name: &str) -> Result<String, String> {
        self.optional(name).ok_or_else(|| format!("--{name} is missing"))
    }

    /// Takes a number.
    pub(crate) fn number(&mut self, name: &str) -> Result<u64, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("--{name}: {text:?} is not a number"))
    }

    /// Takes a number, or another one where there is none.
    pub(crate) fn number_or(&mut self, name: &str, without: u64) -> Result<u64, String> {
        if self.values.contains_key(name) { self.number(name) } else { Ok(without) }
    }

    /// Refuses what nobody asked for.
    pub(crate) fn finish(&self) -> Result<(), String> {
        match (self.words.first(), self.values.keys().next()) {
            (None, None) => Ok(()),
            (Some(word), _) => Err(format!("{word:?} is not understood")),
            (_, Some(name)) => Err(format!("--{name} is not understood")),
        }
    }
}
