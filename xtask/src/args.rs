//! The command line of one chore: a few flags, no dependency.

use crate::run::Outcome;

/// The words after the chore's name; each question takes the words it understands.
pub(crate) struct Args(Vec<String>);

impl Args {
    /// Takes the words after the chore's name.
    pub(crate) fn new(words: impl Iterator<Item = String>) -> Self {
        Self(words.collect())
    }

    /// Whether the user asks what the chore does. A `--help` that is not first is an argument.
    pub(crate) fn asks_for_help(&self) -> bool {
        matches!(self.0.first().map(String::as_str), Some("--help" | "-h"))
    }

    /// Takes a flag without a value.
    pub(crate) fn flag(&mut self, flag: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|word| word != flag);
        self.0.len() < before
    }

    /// Takes a flag with a value: `--flag value` or `--flag=value`.
    pub(crate) fn value(&mut self, flag: &str) -> Outcome<Option<String>> {
        let Some(at) = self.0.iter().position(|word| {
            word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        }) else {
            return Ok(None);
        };
        let word = self.0.remove(at);
        if let Some((_, value)) = word.split_once('=') {
            return Ok(Some(value.to_owned()));
        }
        if at < self.0.len() { Ok(Some(self.0.remove(at))) } else { Err(format!("{flag} needs a value")) }
    }

    /// Takes the first word that is not a flag.
    pub(crate) fn word(&mut self) -> Option<String> {
        let at = self.0.iter().position(|word| !word.starts_with('-'))?;
        Some(self.0.remove(at))
    }

    /// Gives every word that nobody took.
    pub(crate) fn rest(self) -> Vec<String> {
        self.0
    }

    /// Refuses words that nobody took.
    pub(crate) fn finish(self) -> Outcome<()> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => Err(format!("unknown argument {word:?}\n\nhint: `cargo xtask` lists the chores")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Args;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_value_is_read_in_both_spellings() {
        for line in ["--engine a,b --all", "--all --engine=a,b"] {
            let mut args = args(line);
            assert_eq!(args.value("--engine"), Ok(Some("a,b".to_owned())));
            assert!(args.flag("--all"));
            assert_eq!(args.finish(), Ok(()));
        }
    }

    #[test]
    fn a_missing_value_and_an_unknown_word_are_refused() {
        assert!(args("--engine").value("--engine").is_err());
        assert!(args("--fxi").finish().is_err());
    }

    #[test]
    fn a_word_is_found_among_flags() {
        let mut args = args("--dry-run 1.2.3");
        assert_eq!(args.word().as_deref(), Some("1.2.3"));
        assert_eq!(args.rest(), ["--dry-run"]);
    }
}
