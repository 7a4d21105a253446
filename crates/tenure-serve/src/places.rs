//! The connections that there may be at a time. What begins them, what ends with them, and what counts them share this.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The connections that there may be.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    most: usize,
}

impl Places {
    pub(crate) fn new(most: usize) -> Places {
        Places { free: Arc::new(Semaphore::new(most)), most }
    }

    /// Waits for a place of one connection.
    pub(crate) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.free.clone().acquire_owned().await.ok()
    }

    /// How many connections there are, and may be at most.
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.most - self.free.available_permits(), self.most)
    }

    /// Waits until all connections have ended.
    pub(crate) async fn are_free(&self) {
        // Never closed.
        drop(self.free.acquire_many(u32::try_from(self.most).unwrap_or(u32::MAX)).await);
    }
}
