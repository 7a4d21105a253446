//! The tests of the engine on real servers.

mod conformance;
