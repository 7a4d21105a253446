//! Ways in which the product is broken on purpose, so that it is seen that the checks find each of them.
//!
//! Only with the feature `mutants`, which no other crate turns on: `cargo xtask mutants` does. Then `TENURE_MUTANT=NAME` breaks what
//! bears that name; without the variable nothing is broken. Without the feature the macros leave nothing behind, neither code nor
//! names. The table of all mutants, and of what catches each, is in `xtask/src/mutants/table.rs`: it is compared with the code.
//!
//! A mutant is the code without one rule, at the place where the rule is: `if is_over(now) && !mutant!("late-grants-used")`.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` breaks promises on purpose: a release never has it");

/// What a place is that has no mutant in it.
#[cfg(not(feature = "mutants"))]
pub const NONE: bool = false;

/// Whether the product is broken in this way: never without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[macro_export]
#[doc(hidden)]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::NONE
    };
}

/// Whether the product is broken in this way, as `TENURE_MUTANT` says.
#[cfg(feature = "mutants")]
#[macro_export]
#[doc(hidden)]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::is($name)
    };
}

/// Defines mutants of scripts, each a name, a text that stands in one of them, and what takes its place. Without the feature there are none,
/// but in unit tests, so that it is seen at once when a script has changed and its mutant has not.
#[cfg(not(feature = "mutants"))]
#[macro_export]
#[doc(hidden)]
macro_rules! mutants_of_scripts {
    ($which:ident: $($name:literal, $old:literal, $new:literal;)*) => {
        #[cfg(not(test))]
        pub(crate) const $which: &[$crate::mutants::Replacement] = &[];
        #[cfg(test)]
        pub(crate) const $which: &[$crate::mutants::Replacement] = &[$(($name, $old, $new)),*];
    };
}

/// Defines mutants of scripts, each a name, a text that stands in one of them, and what takes its place.
#[cfg(feature = "mutants")]
#[macro_export]
#[doc(hidden)]
macro_rules! mutants_of_scripts {
    ($which:ident: $($name:literal, $old:literal, $new:literal;)*) => {
        pub(crate) const $which: &[$crate::mutants::Replacement] = &[$(($name, $old, $new)),*];
    };
}

/// The name of a mutant, the text that it takes away, and what it puts in its place.
pub type Replacement = (&'static str, &'static str, &'static str);

/// Returns the texts of scripts as they are to be loaded, with the mutant among these that is chosen.
///
/// # Panics
/// If any of the mutants does not stand in one of the texts: a text has changed, and its mutant has not.
pub fn in_scripts<const N: usize>(texts: [&str; N], mutants: &[Replacement]) -> [String; N] {
    for (name, old, _) in mutants {
        assert!(texts.iter().any(|text| text.contains(old)), "mutant {name}: no script says {old:?}");
    }
    let chosen = mutants.iter().filter(|(name, ..)| is(name));
    chosen.fold(texts.map(str::to_owned), |texts, (_, old, new)| texts.map(|text| text.replace(old, new)))
}

#[cfg(not(feature = "mutants"))]
fn is(_: &str) -> bool {
    NONE
}

/// Whether the environment chooses this mutant. Says so the first time.
#[cfg(feature = "mutants")]
pub fn is(name: &str) -> bool {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static CHOSEN: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("TENURE_MUTANT").ok());
    static IS_REACHED: AtomicBool = AtomicBool::new(false);
    let is_chosen = CHOSEN.as_deref() == Some(name);
    if is_chosen && !IS_REACHED.swap(true, Ordering::Relaxed) {
        eprintln!("the mutant {name} is reached");
    }
    is_chosen
}
