//! The tests of the core, in one binary.

mod client;
mod examples;
mod face_docs;
mod fate;
mod faulty;
mod handover;
mod kinds;
mod line;
mod loss;
mod nameless;
mod names;
mod oracle;
mod queue;
mod record;
mod several;
mod shards;
mod simulation;
mod step;
mod window;
mod world;
