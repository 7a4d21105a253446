//! Looking at resources, once and again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::model::claim::Name;
use tenure_core::model::inspect::{View, shows_the_same};
use tenure_core::{Error, ErrorKind, Result};

use crate::locks::ordered::Shared;
use crate::locks::sweep::pause;
use crate::store::{Look, Store};

/// How long an observer waits after an error.
const RETRY: Duration = Duration::from_millis(500);

impl<S: Store> Shared<S> {
    pub(crate) async fn read_line(&self, name: &Name) -> Result<Look> {
        let mut looks = self.store.look(vec![name], true).await;
        looks.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "inspect", "a name was left out")))
    }

    pub(crate) async fn view(&self, name: &Name) -> Result<Option<View>> {
        Ok(self.read_line(name).await?.line.view(name, SystemClock.time_of_day()))
    }

    pub(crate) async fn page(&self, prefix: &str, mut after: Option<Name>, most: usize) -> Result<Vec<View>> {
        loop {
            let names = self.store.names(prefix, after.as_ref(), most).await?;
            let Some(last) = names.last() else { return Ok(Vec::new()) };
            let looks = self.store.look(names.iter().collect(), true).await;
            let mut views = Vec::new();
            for (name, look) in names.iter().zip(looks) {
                views.extend(look?.line.view(name, SystemClock.time_of_day()));
            }
            // A page that shows nothing is not the end: its resources may all have ended meanwhile.
            if !views.is_empty() {
                return Ok(views);
            }
            after = Some(last.clone());
        }
    }
}

struct Observer<S: Store> {
    shared: Arc<Shared<S>>,
    name: Name,
    changes: BoxStream<'static, Result<()>>,
    last: Option<Option<View>>,
}

/// Follows a resource: its present view first, then each later one that shows something else.
pub(crate) fn observe<S: Store>(
    shared: Arc<Shared<S>>,
    name: Name,
) -> BoxStream<'static, Result<Option<View>>> {
    let changes = shared.store.follow(&name);
    let observer = Observer { shared, name, changes, last: None };
    stream::unfold(observer, |mut observer| async move { Some((observer.next().await?, observer)) }).boxed()
}

impl<S: Store> Observer<S> {
    async fn next(&mut self) -> Option<Result<Option<View>>> {
        loop {
            if let Err(error) = self.changes.next().await? {
                self.follow_anew().await;
                return Some(Err(error));
            }
            let view = match self.shared.view(&self.name).await {
                Ok(view) => view,
                Err(error) => {
                    self.follow_anew().await;
                    return Some(Err(error));
                }
            };
            if !self.last.as_ref().is_some_and(|last| shows_the_same(last.as_ref(), view.as_ref())) {
                self.last = Some(view.clone());
                return Some(Ok(view));
            }
        }
    }

    async fn follow_anew(&mut self) {
        pause(RETRY).await;
        self.changes = self.shared.store.follow(&self.name);
    }
}
