//! What the tests of tenure share: directories that go away, and processes that are watched and ended by pid.
//!
//! Servers, a network that can be cut, and their checkers come with the engines that need them. What a
//! third-party engine's tests need as well (a second process, recorded histories and who judges them) is in
//! `tenure-conformance`, since that is published and this is not.

mod directory;
mod process;

pub use directory::TestDirectory;
pub use process::{PATIENCE, finish, is_alive, signal, state, wait_for};
