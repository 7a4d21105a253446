//! Events as they are written: `event`, and a line of JSON as `data`.

use hyper::body::Bytes;
use serde_json::{Value, json};
use tenure_core::model::inspect::{Change, HoldView};

use crate::holder::holder;
use crate::millis::millis;

/// What is sent where nothing happens: it shows both ends that the other one is there.
pub(crate) const COMMENT: Bytes = Bytes::from_static(b":\n\n");

/// Writes an event after others.
pub(crate) fn push(frames: &mut Vec<u8>, event: &str, data: &Value) {
    // JSON in one line: an end of line would end the field.
    frames.extend_from_slice(format!("event: {event}\ndata: {data}\n\n").as_bytes());
}

/// Writes what happened to a lock, in the fields of `tenure watch --json`. Without its moment: the clocks of two machines differ.
pub(crate) fn push_changes(frames: &mut Vec<u8>, name: &str, changes: &[Change<'_>]) {
    for change in changes {
        let (event, mut data) = match *change {
            Change::Held(hold) => {
                let mut data = of(hold);
                data["held_ms"] = json!(millis(hold.held_for));
                data["ends_in_ms"] = json!(millis(hold.ends_in));
                ("held", data)
            }
            Change::Granted(hold) => ("granted", ending(hold)),
            Change::Resting(hold) => ("resting", ending(hold)),
            Change::Ended(hold) => ("ended", of(hold)),
            Change::Waiting(waiting) => ("waiting", json!({"waiting": waiting})),
            Change::Idle => ("idle", json!({})),
            // Of a later version of the library.
            _ => continue,
        };
        data["event"] = json!(event);
        data["name"] = json!(name);
        push(frames, event, &data);
    }
}

fn of(hold: &HoldView) -> Value {
    let mut data = json!({"token": hold.token.get(), "holder": holder(&hold.label)});
    if let Some(slot) = hold.slot {
        data["slot"] = json!(slot);
    }
    data
}

fn ending(hold: &HoldView) -> Value {
    let mut data = of(hold);
    data["ends_in_ms"] = json!(millis(hold.ends_in));
    data
}

/// The last event of a stream. `why` is `ending`: the server does; or `revoked`: the token was changed or taken away.
pub(crate) fn bye(why: &str) -> Bytes {
    let mut frames = Vec::new();
    push(&mut frames, "bye", &json!({"why": why}));
    frames.into()
}

/// The store does not answer. The stream goes on when it does.
pub(crate) fn away(detail: &str) -> Bytes {
    let mut frames = Vec::new();
    push(&mut frames, "away", &json!({"detail": detail}));
    frames.into()
}

#[cfg(test)]
mod tests {
    use tenure_core::Label;
    use tenure_core::Token;

    use super::*;

    #[test]
    fn a_text_of_others_stays_in_its_line() {
        let label = Label::new("h", 1, "p", "a\n\nevent: ended\u{2028}");
        let hold = HoldView::new(Token::new(7), label, 1);
        let mut frames = Vec::new();
        push_changes(&mut frames, "a\r\nb", &[Change::Ended(&hold)]);
        let text = String::from_utf8(frames).expect("text");
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert!(!text.contains('\r') && text.ends_with("\n\n"), "{text:?}");
    }
}
