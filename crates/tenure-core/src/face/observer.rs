//! The views of a resource, one after the other.

use std::fmt;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use tokio::sync::mpsc;

use crate::client::connection::Connection;
use crate::error::Result;
use crate::model::claim::Name;
use crate::model::inspect::View;

/// The later views of a resource (see [`Tenure::observe`](crate::Tenure::observe)).
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("observer-example").await?;
/// let mut changes: tenure_core::Observer = tenure.observe("billing/4711")?;
/// // The present view is the first.
/// while let Some(view) = changes.next().await {
///     println!("{} wait", view?.map_or(0, |view| view.waiting));
///     # break;
/// }
/// # Ok(()) }) }
/// ```
pub struct Observer {
    views: mpsc::Receiver<Result<Option<View>>>,
    connection: Arc<Connection>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("engine", &self.connection.engine()).finish_non_exhaustive()
    }
}

impl Observer {
    /// Follows a resource, on the client's thread, for as long as this is kept.
    pub(crate) fn new(connection: &Arc<Connection>, name: Name) -> Observer {
        // Small: what a slow reader has not taken yet, the engine keeps down to the latest.
        let (sender, views) = mpsc::channel(1);
        let shared = connection.shared.clone();
        connection.shared.runtime.spawn(async move {
            let mut changes = shared.engine.observe(name.clone());
            // A reader that is gone ends this at once, not at the next change, which may never come.
            let mut is_gone = std::pin::pin!(sender.closed());
            while let Either::Left((Some(view), _)) = select(changes.next(), &mut is_gone).await {
                let view = view.map_err(|error| error.named(shared.engine.name(), Some(&name)));
                if sender.send(view).await.is_err() {
                    return;
                }
            }
        });
        Observer { views, connection: connection.clone() }
    }

    /// Waits for the next view; none for a resource that is idle. The end means that the client is closed.
    ///
    /// `while let Some(view) = changes.next().await { println!("{:?}", view?); }`
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping it.
    pub async fn next(&mut self) -> Option<Result<Option<View>>> {
        self.views.recv().await
    }
}
