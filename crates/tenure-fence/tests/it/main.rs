//! The forms of the rule against the rule, and what each promises beside it.

mod file;
mod memory;
mod redis;
mod rule;
mod sqlite;
mod writes;
