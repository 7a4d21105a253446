//! What a database must write so that an engine on it has locks, and that this is enough: SQLite, in the memory of the test.

mod locks;
mod sqlite;
