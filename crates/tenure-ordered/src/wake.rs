//! News for the waiters of one client.

use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tenure_core::engine::Wake;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Where news come in, and who reads them.
#[derive(Debug)]
pub struct Wakes {
    tell: UnboundedSender<Wake>,
    wakes: Mutex<Option<UnboundedReceiver<Wake>>>,
}

impl Default for Wakes {
    fn default() -> Wakes {
        let (tell, wakes) = unbounded_channel();
        Wakes { tell, wakes: Mutex::new(Some(wakes)) }
    }
}

impl Wakes {
    /// Puts something in.
    pub fn put(&self, wake: Wake) {
        // Nobody reads any more when the client is being closed.
        self.tell.send(wake).ok();
    }

    /// Returns what is put in, once; empty the second time.
    pub(crate) fn stream(&self) -> BoxStream<'static, Wake> {
        let taken = self.wakes.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut wakes) = taken else { return futures_util::stream::empty().boxed() };
        futures_util::stream::poll_fn(move |cx| wakes.poll_recv(cx)).boxed()
    }
}
