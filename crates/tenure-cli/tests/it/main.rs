//! The command from outside: real processes on an engine of their own.
#![allow(clippy::zombie_processes, reason = "the world ends what a test has started, however the test ends")]

mod browser;
mod cache;
mod dashboard;
mod death;
mod etcd;
mod fence;
mod kinds;
mod leader;
mod look;
mod metrics;
mod mutants;
mod mysql;
mod newcomer;
mod others;
mod packaging;
mod pages;
mod patience;
mod postgres;
mod queue;
mod redis;
mod restarts;
mod run;
mod serve;
mod servers;
mod snapshots;
mod stalled;
mod status;
mod survey;
mod terminal;
mod top;
mod traces;
mod world;
mod zookeeper;
