//! Whether a process is healthy, whatever its store does.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use serde_json::json;

use crate::http::{Serving, anywhere, until};

/// Wakes nobody, and keeps the thread that wakes it until the test ends.
struct Holds(Mutex<Receiver<()>>);

impl Wake for Holds {
    fn wake(self: Arc<Self>) {
        // It closes.
        self.0.lock().expect("no panic").recv().ok();
    }
}

/// Has the thread of a server's client stand still until what this returns is dropped.
fn hold_up(server: &Serving) -> SyncSender<()> {
    let (release, held) = sync_channel(0);
    let waker = Waker::from(Arc::new(Holds(Mutex::new(held))));
    // Whoever has the answer wakes it. One that was there at once has nobody to wake.
    let is_pending = || {
        let tenure = server.tenure.clone();
        let mut view = Box::pin(async move { tenure.view("a").await });
        let is_pending = view.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        std::mem::forget(view);
        is_pending
    };
    until("it waits for an answer", || is_pending().then_some(()));
    release
}

#[test]
fn a_process_whose_client_stands_still_is_not_healthy() {
    let server = Serving::memory(anywhere());
    let healthy = server.ask("GET /healthz");
    assert_eq!((healthy.status, &healthy.body), (200, &json!({"state": "turning"})));
    let release = hold_up(&server);
    let standing =
        until("it stands", || Some(server.ask("GET /healthz")).filter(|answer| answer.status != 200));
    assert_eq!((standing.status, &standing.body["state"]), (503, &json!("standing")));
    assert!(standing.body["why"][0].as_str().is_some_and(|why| why.contains("tenure-io")), "{standing:?}");
    drop(release);
    until("it turns again", || (server.ask("GET /healthz").status == 200).then_some(()));
}
