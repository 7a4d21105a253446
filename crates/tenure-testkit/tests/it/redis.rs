//! Redis servers.

mod run;
mod single;
