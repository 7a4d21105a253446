//! The forms of the rule against the rule, and what each promises beside it.

mod database;
mod file;
mod memory;
mod mysql;
mod postgres;
mod redis;
mod rule;
mod sqlite;
mod users;
mod writes;
