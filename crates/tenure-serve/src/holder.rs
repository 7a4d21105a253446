//! A holder, as the answers show it.

use serde_json::{Value, json};
use tenure_core::Label;

/// The parts of a label. The process is one of this server, so its number is not shown.
pub(crate) fn holder(label: &Label) -> Value {
    json!({"program": label.program(), "host": label.host(), "text": label.text()})
}
