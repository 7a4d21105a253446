//! The tests of the core, in one binary.

mod client;
mod counts;
mod events;
mod examples;
mod face_docs;
mod fate;
mod faulty;
mod figures;
mod handover;
mod kinds;
mod line;
mod loss;
mod nameless;
mod names;
mod oracle;
mod queue;
mod record;
mod serve;
mod several;
mod shards;
mod shown;
mod simulation;
mod spans;
mod step;
mod window;
mod world;
