//! The tests of the engine against real servers.

mod conformance;
