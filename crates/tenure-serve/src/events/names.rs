//! Names that are followed: one watcher at the store for each, whoever many streams there are of it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use tenure_core::model::inspect::{View, at_first, changes};
use tenure_core::{Name, Tenure};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::events::frame::{away, push_changes};
use crate::pause::pause;

/// How long it rests before it follows a name anew that could not be followed.
const REST: Duration = Duration::from_secs(1);

#[derive(Clone)]
enum Seen {
    NotYet,
    View(Option<Arc<View>>),
    Away(Arc<str>),
}

pub(crate) struct Names {
    tenure: Tenure,
    runtime: Handle,
    followed: Mutex<HashMap<Name, watch::Sender<Seen>>>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("followed", &self.followed().len()).finish_non_exhaustive()
    }
}

impl Names {
    pub(crate) fn new(tenure: Tenure, runtime: Handle) -> Names {
        Names { tenure, runtime, followed: Mutex::default() }
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<Name, watch::Sender<Seen>>> {
        // A panic elsewhere cannot leave it half-changed.
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a name, together with all who do already.
    pub(crate) fn follow(self: &Arc<Names>, name: &Name) -> OfName {
        let mut followed = self.followed();
        let mut seen = match followed.get(name) {
            Some(sender) => sender.subscribe(),
            None => {
                let (sender, seen) = watch::channel(Seen::NotYet);
                followed.insert(name.clone(), sender.clone());
                self.runtime.spawn(self.clone().run(name.clone(), sender));
                seen
            }
        };
        // What the others have seen already is new to this one.
        seen.mark_changed();
        OfName { name: name.clone(), seen, before: None }
    }

    /// Follows a name while anybody wants it.
    async fn run(self: Arc<Names>, name: Name, sender: watch::Sender<Seen>) {
        loop {
            let following = async {
                if let Ok(mut observer) = self.tenure.observe(name.as_str()) {
                    while let Some(view) = observer.next().await {
                        sender.send_replace(match view {
                            Ok(view) => Seen::View(view.map(Arc::new)),
                            Err(error) => Seen::Away(error.to_string().into()),
                        });
                    }
                }
                pause(REST).await;
            };
            tokio::select! {
                biased;
                () = sender.closed() => {
                    let mut followed = self.followed();
                    // Somebody may have come meanwhile.
                    if sender.receiver_count() == 0 {
                        followed.remove(&name);
                        return;
                    }
                }
                () = following => {}
            }
        }
    }
}

/// One stream's place in what happens to a name.
pub(crate) struct OfName {
    name: Name,
    seen: watch::Receiver<Seen>,
    /// What it was told last; nothing yet.
    before: Option<Option<Arc<View>>>,
}

impl OfName {
    /// Waits for events. Nothing is lost by dropping it.
    pub(crate) async fn next(&mut self) -> Bytes {
        loop {
            if self.seen.changed().await.is_err() {
                // The watcher lives as long as this does.
                return std::future::pending().await;
            }
            let seen = self.seen.borrow_and_update().clone();
            let now = match seen {
                Seen::NotYet => continue,
                Seen::Away(detail) => return away(&detail),
                Seen::View(view) => view,
            };
            let changes = match &self.before {
                None => at_first(now.as_deref()),
                Some(before) => changes(before.as_deref(), now.as_deref()),
            };
            let mut frames = Vec::new();
            push_changes(&mut frames, self.name.as_str(), &changes);
            self.before = Some(now);
            if !frames.is_empty() {
                return frames.into();
            }
        }
    }
}
