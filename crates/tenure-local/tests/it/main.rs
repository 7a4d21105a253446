//! What only the local engine has: two real processes, deaths, forks, damaged and foreign directories.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod child;
mod conformance;
mod death;
mod fleet;
mod news;
mod place;
mod presence;
mod queue;
mod users;
mod world;
