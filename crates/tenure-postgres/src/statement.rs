//! A statement whose plan the server keeps: prepared in a session that this client alone uses, elsewhere as a function.
//!
//! A pooler in transaction mode gives a session to one client after another, and none of them knows what another has prepared there.
//! A function is the same for all of them, and each session keeps the plan of what is in it: to plan the text of a claim anew takes the
//! server four times as long as to carry it out. What a function does is the text itself, so there is nothing that could differ.

use tokio_postgres::types::{ToSql, Type};

use crate::dialect::literal;

/// Which text the functions have: it ends their names. Other versions of tenure call the ones that they made, so whoever changes a
/// text makes new functions of all: see `functions-1.sql`.
const REVISION: u32 = 1;

/// What goes by while a function works, whoever called it: as in a session of one's own, and in a text.
const SETTINGS: [&str; 7] = [
    "search_path = pg_catalog, pg_temp",
    "plan_cache_mode = force_generic_plan",
    "jit = off",
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
];

/// Where the server keeps the plans of statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plans {
    /// In sessions that this client alone uses.
    Prepared,
    /// In functions.
    Functions,
    /// It makes each anew.
    Nowhere,
}

/// How long a function waits for a locked row, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// As long as any text: 1 s.
    Long,
    /// As little as the short path does, behind which the long one waits as well.
    Little,
}

impl Wait {
    const fn millis(self) -> u32 {
        match self {
            Wait::Long => 1000,
            Wait::Little => 50,
        }
    }
}

/// A statement with parameters.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) text: String,
    takes: Vec<Type>,
    function: Option<Function>,
}

/// The same as a function.
#[derive(Debug)]
pub(crate) struct Function {
    /// Its name and what it takes, by which the server finds it.
    pub(crate) signature: String,
    pub(crate) definition: String,
    call: String,
    /// Whether it locks one row at most, so that no transaction around it has to say for how long all of them are waited for.
    is_alone: bool,
}

/// A statement with values for its parameters.
pub(crate) type Bound<'a> = (&'a Statement, &'a [&'a (dyn ToSql + Sync)]);

impl Statement {
    /// One that is rare, or notifies somebody, and so is not worth a function.
    pub(crate) fn new(text: String, takes: &[Type]) -> Statement {
        Statement { text, takes: takes.to_vec(), function: None }
    }

    /// Makes a function for it. `place` is what its name begins with; `gives` are the types of its columns.
    pub(crate) fn function(
        mut self,
        place: &str,
        name: &str,
        gives: &[Type],
        wait: Wait,
        is_alone: bool,
    ) -> Statement {
        let takes: Vec<&str> = self.takes.iter().map(Type::name).collect();
        let numbers: Vec<String> = (1..=takes.len()).map(|at| format!("${at}")).collect();
        let (name, takes) = (format!("{place}{name}_{REVISION}"), takes.join(", "));
        let columns: Vec<String> =
            gives.iter().enumerate().map(|(at, kind)| format!("out_{at} {}", kind.name())).collect();
        let (returns, query) = match columns.is_empty() {
            true => ("void".to_owned(), ""),
            false => (format!("TABLE ({})", columns.join(", ")), "RETURN QUERY "),
        };
        let settings: Vec<String> = SETTINGS.iter().map(|setting| format!("SET {setting}")).collect();
        // A schema may be called anything, and whatever stands between dollars.
        let body = literal(&format!("BEGIN {query}{}; END", self.text).replace('\\', "\\\\"));
        self.function = Some(Function {
            signature: format!("{name}({takes})"),
            call: format!("SELECT * FROM {name}({})", numbers.join(", ")),
            definition: format!(
                "CREATE OR REPLACE FUNCTION {name}({takes}) RETURNS {returns} LANGUAGE plpgsql {} SET lock_timeout = {} AS E'{body}'",
                settings.join(" "),
                wait.millis()
            ),
            is_alone,
        });
        self
    }

    pub(crate) fn as_function(&self) -> Option<&Function> {
        self.function.as_ref()
    }

    pub(crate) fn takes(&self) -> &[Type] {
        &self.takes
    }
}

impl Function {
    /// The text that calls it.
    pub(crate) fn call(&self) -> &str {
        &self.call
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }
}
