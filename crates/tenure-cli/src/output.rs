//! What people and programs are shown.
//!
//! stdout is data, stderr is messages. Colour only repeats what the text says.

pub(crate) mod audit;
pub(crate) mod data;
pub(crate) mod holder;
pub(crate) mod lines;
pub(crate) mod messages;
pub(crate) mod question;
pub(crate) mod status_line;
