//! Tests of `tenure-core`: one module per subject.

mod handover;
