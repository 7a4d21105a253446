//! The tests of the engine against real servers.

mod alone;
mod classic;
mod conformance;
mod crew;
mod damage;
mod faults;
mod foreign;
mod listing;
mod queues;
mod replicas;
mod round_trips;
mod single_flight;
mod sizes;
mod take_turns;
