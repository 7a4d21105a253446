//! Work that goes on where its caller has given up.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// Sees work through, and returns what came of it. `None`: the runtime has ended, or the work has panicked.
///
/// The client drops a call of an engine when its user bears no more. Whatever the engine then begins anew with each call, and takes longer than
/// users bear, such as to connect or to make tables, would never be done.
///
/// # Cancel safety
/// Dropped, it goes on as a task of the runtime on which this is called, and what came of it is dropped in the end. So it must have a
/// limit of its own. What is done when it is first polled, as most is, is no task.
pub async fn see_through<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let mut work = Box::pin(work);
    match poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        Poll::Ready(done) => Some(done),
        Poll::Pending => tokio::spawn(work).await.ok(),
    }
}
