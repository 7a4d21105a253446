//! Looking at resources, once and again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tenure_core::Result;
use tenure_core::model::claim::Name;
use tenure_core::model::inspect::{VIEW_ENTRIES_MAX, View, inspect, shows_the_same};
use tenure_core::model::window::{Reach, Window};
use tokio::sync::Notify;

use crate::database::{Connection, Database};
use crate::fault::Fault;
use crate::locks::load::{Script, head_columns, moment, moment_asked, names, part, rows, stored};
use crate::pause::retried;
use crate::text::{Dialect, Values};

/// For how long an observer is notified of changes after it has been heard of.
const INTEREST: Duration = Duration::from_secs(60);
/// When an observer reads again at the latest. Where it cannot be notified of changes, it reads more often.
const REREAD_AFTER: Duration = Duration::from_secs(10);
const REREAD_WITHOUT_NOTICE: Duration = Duration::from_millis(200);
/// After an error.
const RETRY: Duration = Duration::from_millis(500);

/// Returns up to `most` resources whose names begin with `prefix` and come after `after`.
pub(crate) async fn page<D: Database>(
    database: &D,
    prefix: &str,
    after: Option<&Name>,
    most: usize,
) -> Result<Vec<View>, Fault> {
    retried(D::ENGINE, || page_once(database, prefix, after, most)).await
}

async fn page_once<D: Database>(
    database: &D,
    prefix: &str,
    after: Option<&Name>,
    most: usize,
) -> Result<Vec<View>, Fault> {
    let mut from = String::new();
    D::Dialect::push_bytes(&mut from, prefix.as_bytes());
    let mut conditions = format!("name >= {from}");
    // The first bytes that are no prefix's any more. Names are UTF-8, in which 0xff does not occur.
    let mut end = prefix.as_bytes().to_vec();
    end.push(0xff);
    let mut until = String::new();
    D::Dialect::push_bytes(&mut until, &end);
    conditions.push_str(&format!(" AND name < {until}"));
    if let Some(after) = after {
        conditions.push_str(&format!(" AND name > {}", names::<D::Dialect>([after])));
    }
    let (hex, table) = (D::Dialect::hex("name"), &database.tables().resource);
    let statement = format!(
        "SELECT {hex} FROM {table} WHERE {conditions} AND (entries > 0 OR value_token IS NOT NULL) ORDER BY name LIMIT {most}"
    );
    let mut connection = database.connection().await?;
    let answers = connection.run(statement).await?;
    let mut found = Vec::new();
    for row in rows(&answers, 0) {
        let bytes = crate::text::Columns::of(row).bytes()?;
        let name = std::str::from_utf8(&bytes).ok().and_then(|text| Name::new(text).ok());
        found.push(name.ok_or_else(|| Fault::internal("a stored name is none"))?);
    }
    let mut views = Vec::new();
    for name in &found {
        views.extend(read_view(database, &mut connection, name).await?);
    }
    connection.keep();
    // A page that shows nothing is not the end: its resources may all have ended meanwhile.
    if views.is_empty()
        && let Some(last) = found.last()
    {
        return Box::pin(page_once(database, prefix, Some(last), most)).await;
    }
    Ok(views)
}

/// Looks at one resource, in one trip.
pub(crate) async fn view<D: Database>(database: &D, name: &Name) -> Result<Option<View>, Fault> {
    retried(D::ENGINE, || view_once(database, name)).await
}

async fn view_once<D: Database>(database: &D, name: &Name) -> Result<Option<View>, Fault> {
    let mut connection = database.connection().await?;
    let view = read_view(database, &mut connection, name).await?;
    connection.keep();
    Ok(view)
}

async fn read_view<D: Database>(
    database: &D,
    connection: &mut D::Connection,
    name: &Name,
) -> Result<Option<View>, Fault> {
    let tables = database.tables();
    let reach = Reach { entries: Some(VIEW_ENTRIES_MAX + 1), free_slots: 0, finished: false };
    let mut script = Script::default();
    // One moment for all of it.
    for statement in D::Dialect::BEGIN_LOOK {
        script.add(statement);
    }
    let (columns, list) = (head_columns::<D::Dialect>(tables, true), names::<D::Dialect>([name]));
    let heads = script.add(&format!("SELECT {columns} FROM {} WHERE name = {list}", tables.resource));
    let part = part::<D::Dialect>(&mut script, tables, name, reach, &[], &[], "");
    let time = script.add(&moment_asked::<D::Dialect>());
    script.add("COMMIT");
    let answers = connection.run(script.text).await?;
    let Some(row) = rows(&answers, heads).first() else { return Ok(None) };
    let (_, stored) = stored(row)?;
    let window = Window::new(part.read(&answers)?.loaded(&stored, reach), reach, [], []);
    // The hold of a value may lie beyond what is listed; then the value is as good as gone from this view.
    inspect(name, &window, moment(&answers, time)?.0)
        .map_err(|miss| Fault::internal(format!("a view looks too far: {miss:?}")))
}

struct Observer<D: Database> {
    database: Arc<D>,
    resource: Name,
    changed: Arc<Notify>,
    last: Option<Option<View>>,
}

/// Follows a resource: its present view first, then each later one that shows something else.
pub(crate) fn observe<D: Database>(
    database: Arc<D>,
    resource: Name,
) -> BoxStream<'static, Result<Option<View>>> {
    let changed = database.inbox().follow(&resource);
    let observer = Observer { database, resource, changed, last: None };
    stream::unfold((observer, Duration::ZERO), |(mut observer, wait)| async move {
        let (view, wait) = observer.next(wait).await;
        Some((view, (observer, wait)))
    })
    .boxed()
}

impl<D: Database> Observer<D> {
    async fn next(&mut self, mut wait: Duration) -> (Result<Option<View>>, Duration) {
        loop {
            // A change in between leaves a permit, so that none is missed.
            if tokio::time::timeout(wait, self.changed.notified()).await.is_err() {
                tracing::trace!(resource = %self.resource, "an observer looks by itself");
            }
            let view = match self.subscribe_and_read().await {
                Ok(view) => view,
                Err(fault) => {
                    return (Err(fault.to_error("observe")), RETRY);
                }
            };
            let most = if self.database.hears() { REREAD_AFTER } else { REREAD_WITHOUT_NOTICE };
            wait = view.as_ref().map_or(most, |view| {
                let next = view.holds.iter().map(|hold| hold.ends_in).min().unwrap_or(most);
                // An end by itself makes no event.
                (next + Duration::from_millis(1)).min(most)
            });
            let is_known =
                self.last.as_ref().is_some_and(|last| shows_the_same(last.as_ref(), view.as_ref()));
            if !is_known {
                self.last = Some(view.clone());
                return (Ok(view), wait);
            }
        }
    }

    /// Subscribes to changes, and only then reads.
    async fn subscribe_and_read(&self) -> Result<Option<View>, Fault> {
        if self.database.hears() {
            let mut values = String::new();
            Values::new(&mut values).bytes::<D::Dialect>(self.resource.as_str().as_bytes());
            let table = &self.database.tables().resource;
            let until = format!("{} + {}", D::Dialect::CLOCK, INTEREST.as_micros());
            let end = D::Dialect::or_replace("name", &["name", "observed_until"]);
            let mut connection = self.database.connection().await?;
            connection
                .run(format!("INSERT INTO {table} (name, observed_until) VALUES ({values}, {until}) {end}"))
                .await?;
            connection.keep();
        }
        view(&*self.database, &self.resource).await
    }
}

impl<D: Database> Drop for Observer<D> {
    fn drop(&mut self) {
        self.database.inbox().unfollow(&self.resource, &self.changed);
    }
}
