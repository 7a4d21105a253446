//! News for the waiters of one client.

use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tenure_core::engine::Wake;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Where news come in, and where they are read.
#[derive(Debug)]
pub struct Wakes {
    sender: UnboundedSender<Wake>,
    wakes: Mutex<Option<UnboundedReceiver<Wake>>>,
}

impl Default for Wakes {
    fn default() -> Wakes {
        let (sender, wakes) = unbounded_channel();
        Wakes { sender, wakes: Mutex::new(Some(wakes)) }
    }
}

impl Wakes {
    /// Puts something in.
    pub fn put(&self, wake: Wake) {
        // The receiver was dropped: the client is being closed.
        self.sender.send(wake).ok();
    }

    /// Returns what is put in, once; empty the second time.
    pub(crate) fn stream(&self) -> BoxStream<'static, Wake> {
        let taken = self.wakes.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut wakes) = taken else { return futures_util::stream::empty().boxed() };
        futures_util::stream::poll_fn(move |cx| wakes.poll_recv(cx)).boxed()
    }
}
