//! Lists of all that an engine has: as long as they are, and although one thing in them cannot be read.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::client::connection::{Connection, Shared};
use crate::engine::queue::{QueueLine, QueueStats};
use crate::error::{Error, ErrorKind, Result};
use crate::face::tenure::Tenure;
use crate::model::claim::Name;
use crate::model::inspect::View;

impl Tenure {
    /// Lists holders and waiters of the names that begin with `prefix` (empty: all), by name.
    ///
    /// `let views = tenure.inspect("billing/").await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time; of a resource that cannot be read, what is wrong with it:
    /// [`Tenure::inspect_each`] lists the others.
    ///
    /// # Cost
    /// One round trip for each page of up to 128 resources. On Redis also one for each 1000 keys of its keyspace.
    pub async fn inspect(&self, prefix: &str) -> Result<Vec<View>> {
        self.inspect_each(prefix).await?.into_iter().map(|(_, view)| view).collect()
    }

    /// As [`Tenure::inspect`], but a resource that cannot be read is an entry of its own, and no failure of the list.
    ///
    /// `let each = tenure.inspect_each("billing/").await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time.
    pub async fn inspect_each(&self, prefix: &str) -> Result<Vec<(Name, Result<View>)>> {
        self.inspect_some(prefix, usize::MAX).await
    }

    /// As [`Tenure::inspect_each`], of so many names: then the list ends, though there may be more.
    pub(crate) async fn inspect_some(&self, prefix: &str, most: usize) -> Result<Vec<(Name, Result<View>)>> {
        let (prefix, engine) = (prefix.to_owned(), self.engine());
        let shared = &self.connection.shared;
        let all = list(shared, most, move |shared| Ok(shared.engine.inspect_all(prefix))).await?;
        Ok(by_name(all.into_iter().map(|view| named(view, engine)).collect::<Result<_>>()?))
    }

    /// As [`Tenure::inspect_each`], but some at a time, as the engine lists them: for whoever shows the first before the last is
    /// known, or keeps none of them.
    ///
    /// `let mut pages = tenure.inspect_pages("billing/");`
    pub fn inspect_pages(&self, prefix: &str) -> Pages {
        Pages::new(&self.connection, prefix.to_owned())
    }

    /// Lists the queues whose names begin with `prefix` (empty: all), by name, and what is in them.
    ///
    /// `let queues = tenure.queues("").await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the engine has no queues; [`ErrorKind::Unavailable`] if it does not answer in time; of a queue
    /// that cannot be read, what is wrong with it: [`Tenure::queues_each`] lists the others.
    ///
    /// # Cost
    /// One round trip for each page of up to 128 queues. On Redis also one for each 1000 keys of its keyspace.
    pub async fn queues(&self, prefix: &str) -> Result<Vec<(Name, QueueStats)>> {
        let each = self.queues_each(prefix).await?;
        each.into_iter().map(|(name, stats)| stats.map(|stats| (name, stats))).collect()
    }

    /// As [`Tenure::queues`], but a queue that cannot be read is an entry of its own, and no failure of the list.
    ///
    /// `let each = tenure.queues_each("").await?;`
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the engine has no queues; [`ErrorKind::Unavailable`] if it does not answer in time.
    pub async fn queues_each(&self, prefix: &str) -> Result<Vec<QueueLine>> {
        self.queues_some(prefix, usize::MAX).await
    }

    /// As [`Tenure::queues_each`], of so many queues.
    pub(crate) async fn queues_some(&self, prefix: &str, most: usize) -> Result<Vec<QueueLine>> {
        let shared = &self.connection.shared;
        let (prefix, engine) = (prefix.to_owned(), self.engine());
        let all = list(shared, most, move |shared| Ok(shared.queues()?.queues_all(prefix))).await?;
        let named = |(name, stats): QueueLine| {
            let stats = stats.map_err(|error| error.named(engine, Some(&name)));
            (name, stats)
        };
        Ok(by_name(all.into_iter().map(named).collect()))
    }
}

/// What an engine lists, some at a time (see [`Tenure::inspect_pages`]).
///
/// # Examples
/// ```
/// # fn main() -> tenure_core::Result<()> { pollster::block_on(async {
/// # let tenure = tenure_core::memory::connect("pages-example").await?;
/// # let _held = tenure.mutex("billing/4711").acquire().await?;
/// let mut pages = tenure.inspect_pages("billing/");
/// let mut names = 0;
/// while let Some(page) = pages.next().await { names += page?.len(); }
/// assert_eq!(names, 1);
/// # Ok(()) }) }
/// ```
pub struct Pages {
    pages: mpsc::Receiver<Result<Vec<Result<View>>>>,
    /// An engine may list one twice.
    seen: HashSet<Name>,
    connection: Arc<Connection>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("engine", &self.connection.engine()).finish_non_exhaustive()
    }
}

impl Pages {
    /// Reads on the client's thread, one page ahead, for as long as this is kept.
    fn new(connection: &Arc<Connection>, prefix: String) -> Pages {
        let (sender, pages) = mpsc::channel(1);
        let shared = connection.shared.clone();
        connection.shared.runtime.spawn(async move {
            let mut pages = shared.engine.inspect_all(prefix);
            // A reader that is gone ends this at once: a list may be long.
            let mut is_gone = std::pin::pin!(sender.closed());
            loop {
                let next = std::pin::pin!(shared.in_time(pages.next()));
                let page = match select(next, &mut is_gone).await {
                    Either::Left((Ok(Some(page)), _)) => page,
                    Either::Left((Err(error), _)) => Err(error),
                    Either::Left((Ok(None), _)) | Either::Right(_) => return,
                };
                let is_over = page.is_err();
                if sender.send(page).await.is_err() || is_over {
                    return;
                }
            }
        });
        Pages { pages, seen: HashSet::new(), connection: connection.clone() }
    }

    /// Waits for the next ones, in the engine's own order, none of them twice. `None`: that was all. They may be few, or none, before the end.
    ///
    /// `while let Some(page) = pages.next().await { names += page?.len(); }`
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the engine does not answer in time: the list is not whole, and ends.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping it.
    pub async fn next(&mut self) -> Option<Result<Vec<(Name, Result<View>)>>> {
        let (engine, seen) = (self.connection.engine(), &mut self.seen);
        let page = self.pages.recv().await?.map_err(|error| error.named(engine, None));
        let page = page.and_then(|page| page.into_iter().map(|view| named(view, engine)).collect());
        Some(page.map(|mut page: Vec<(Name, Result<View>)>| {
            page.retain(|(name, _)| seen.insert(name.clone()));
            page
        }))
    }
}

/// Adds its name to an entry of a list. One without a name is not one resource that cannot be read: the list itself has failed.
fn named(view: Result<View>, engine: &'static str) -> Result<(Name, Result<View>)> {
    match view.map_err(|error| error.named(engine, None)) {
        Ok(view) => Ok((view.resource.clone(), Ok(view))),
        Err(error) => match error.resource().cloned() {
            Some(name) => Ok((name, Err(error))),
            None => Err(error),
        },
    }
}

fn by_name<T>(mut all: Vec<(Name, T)>) -> Vec<(Name, T)> {
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    // An engine may list one twice.
    all.dedup_by(|(one, _), (other, _)| one == other);
    all
}

/// Puts together what an engine lists, on the client's thread. Not the list but each page of it is waited for no longer than the
/// answer timeout. It ends when it has so many.
async fn list<T: Send + 'static>(
    shared: &Arc<Shared>,
    most: usize,
    pages: impl for<'a> FnOnce(&'a Shared) -> Result<BoxStream<'a, Result<Vec<T>>>> + Send + 'static,
) -> Result<Vec<T>> {
    let asked = shared.clone();
    let mut task = JoinSet::new();
    // It ends with this future, if that is dropped: a list may be long.
    task.spawn_on(
        async move {
            let mut pages = pages(&asked)?;
            let mut all = Vec::new();
            while all.len() < most
                && let Some(page) = asked.in_time(pages.next()).await?
            {
                all.extend(page?);
            }
            all.truncate(most);
            Ok(all)
        },
        &shared.runtime,
    );
    let gone = || Error::new(ErrorKind::Internal, "use the client", "its thread has ended");
    let listed: Result<Vec<T>> = task.join_next().await.and_then(|listed| listed.ok()).ok_or_else(gone)?;
    listed.map_err(|error| error.named(shared.engine.name(), None))
}
