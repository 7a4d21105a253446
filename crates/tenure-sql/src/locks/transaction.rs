//! The transaction around `step`: lock, load, step, write, commit, notify.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tenure_core::clock::Timestamp;
use tenure_core::engine::Incarnation;
use tenure_core::model::claim::{ClaimId, Kind, Name};
use tenure_core::model::record::Record;
use tenure_core::model::step::{Command, Transition, step};
use tenure_core::model::token::Token;
use tenure_core::model::window::{Reach, Window};
use tokio::time::timeout;

use crate::database::{Connection, Database};
use crate::fault::Fault;
use crate::locks::load::{
    ENTRIES_WHOLE, Entries, Script, Stored, claim_columns, entry, head_columns, moment, moment_asked, names,
    part, rows, stored,
};
use crate::locks::write::{Written, write};
use crate::pause::retried;
use crate::text::{Dialect, Values};
use crate::wake::Notification;

/// How long locking may take. The database's own limit counts for each lock, and a row that several wait for has two of them.
const LOCK_MAX: Duration = Duration::from_millis(1100);
/// How many resources are tried at once when a batch is tried one by one. One connection is left for others.
const ONE_BY_ONE: usize = 3;
/// How long that may take. With the wait for a lock before it, this is less than the 2 s that callers wait.
const ONE_BY_ONE_MAX: Duration = Duration::from_millis(700);
/// Locks the rows that are read.
const LOCK: &str = "FOR UPDATE";

/// What became of a command.
#[derive(Debug)]
pub(crate) struct Done<A> {
    pub(crate) transition: Transition<A>,
    /// Whose answer it is.
    pub(crate) incarnation: Incarnation,
}

/// The commands for one resource, and what is known of it.
struct Resource<'a> {
    name: &'a Name,
    /// Which of the batch's commands are for it, in order.
    commands: Vec<usize>,
    claims: Vec<ClaimId>,
    tokens: Vec<Token>,
    reach: Reach,
    stored: Stored,
    entries: Entries,
    now: Timestamp,
    incarnation: Incarnation,
    window: Option<Window>,
}

/// Carries out commands, one after the other for each resource, and returns what became of each: in one transaction, or
/// else, if that could not lock all of its rows in time, in one for each resource.
pub(crate) async fn run_commands<D: Database, C: Command>(
    database: &D,
    batch: &[(&Name, &C)],
) -> Vec<Result<Done<C::Answer>, Fault>> {
    let fault = match run_transaction(database, batch).await {
        Ok(done) => return done.into_iter().map(Ok).collect(),
        Err(fault) => fault,
    };
    let mut by_name: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
    for (at, (name, _)) in batch.iter().enumerate() {
        by_name.entry(name).or_default().push(at);
    }
    let mut done: Vec<Result<Done<C::Answer>, Fault>> = batch.iter().map(|_| Err(fault.clone())).collect();
    if !matches!(fault, Fault::Locked(_)) || by_name.len() == 1 {
        return done;
    }
    tracing::debug!(engine = D::ENGINE, resources = by_name.len(), "somebody keeps rows locked: one by one");
    // A resource that is locked must not keep the others waiting, whose caller does not wait for ever either.
    let one_by_one = by_name.into_values().map(|commands| async {
        let part: Vec<_> = commands.iter().map(|at| batch[*at]).collect();
        let outcome = run_transaction(database, &part).await;
        (commands, outcome)
    });
    let mut one_by_one = std::pin::pin!(stream::iter(one_by_one).buffer_unordered(ONE_BY_ONE));
    let until = tokio::time::Instant::now() + ONE_BY_ONE_MAX;
    while let Ok(Some((commands, outcome))) = tokio::time::timeout_at(until, one_by_one.next()).await {
        match outcome {
            Ok(outcomes) => {
                commands.into_iter().zip(outcomes).for_each(|(at, outcome)| done[at] = Ok(outcome));
            }
            Err(fault) => commands.into_iter().for_each(|at| done[at] = Err(fault.clone())),
        }
    }
    done
}

/// Carries out one command.
pub(crate) async fn run_command<D: Database, C: Command>(
    database: &D,
    name: &Name,
    command: &C,
) -> Result<C::Answer, Fault> {
    let done = run_commands(database, &[(name, command)]).await.pop();
    Ok(done.unwrap_or_else(|| Err(Fault::internal("a command was left out")))?.transition.answer)
}

/// Carries out commands in one transaction, which is tried again if the database gives it up.
async fn run_transaction<D: Database, C: Command>(
    database: &D,
    batch: &[(&Name, &C)],
) -> Result<Vec<Done<C::Answer>>, Fault> {
    retried(D::ENGINE, || run_transaction_once(database, batch)).await
}

async fn run_transaction_once<D: Database, C: Command>(
    database: &D,
    batch: &[(&Name, &C)],
) -> Result<Vec<Done<C::Answer>>, Fault> {
    let mut connection = database.connection().await?;
    let mut resources = resources(batch);
    let locked = timeout(LOCK_MAX, lock_and_load(database, &mut connection, &mut resources, batch)).await;
    locked.map_err(|_| Fault::Locked(format!("rows were not locked within {LOCK_MAX:?}")))??;
    let mut done: Vec<Option<Done<C::Answer>>> = batch.iter().map(|_| None).collect();
    for resource in &mut resources {
        loop {
            let mut window = Window::new(
                resource.entries.loaded(&resource.stored, resource.reach),
                resource.reach,
                resource.claims.iter().copied(),
                resource.tokens.iter().copied(),
            );
            let steps: Result<Vec<_>, _> =
                resource.commands.iter().map(|at| step(&mut window, batch[*at].1, resource.now)).collect();
            match steps {
                Ok(transitions) => {
                    for (at, transition) in resource.commands.iter().zip(transitions) {
                        done[*at] = Some(Done { transition, incarnation: resource.incarnation });
                    }
                    resource.window = Some(window);
                    break;
                }
                Err(miss) => {
                    let wider = resource.reach.beyond(miss);
                    if wider == resource.reach {
                        return Err(Fault::internal(format!("{miss:?} leads nowhere")));
                    }
                    resource.reach = wider;
                    load_more(database, &mut connection, resource).await?;
                }
            }
        }
    }
    let notifications = notifications(&resources, &done);
    finish(database, connection, &resources, &notifications).await?;
    done.into_iter().collect::<Option<_>>().ok_or_else(|| Fault::internal("a command was left out"))
}

/// Sorts commands by resource, and resources by name: that is the order in which they are locked.
fn resources<'a, C: Command>(batch: &[(&'a Name, &C)]) -> Vec<Resource<'a>> {
    let mut sorted: BTreeMap<&Name, Resource<'a>> = BTreeMap::new();
    for (at, (name, command)) in batch.iter().enumerate() {
        let resource = sorted.entry(name).or_insert_with(|| Resource {
            name,
            commands: Vec::new(),
            claims: Vec::new(),
            tokens: Vec::new(),
            reach: Reach::FIRST,
            stored: Stored { next_slot: 1, ..Stored::default() },
            entries: Entries::default(),
            now: Timestamp::default(),
            incarnation: Incarnation(0),
            window: None,
        });
        resource.commands.push(at);
        let (claim, token) = (command.claim(), command.token());
        resource.claims.extend(claim);
        resource.tokens.extend(token);
        if claim.is_none() && token.is_none() {
            // It reads all of the record.
            resource.reach.entries = None;
        }
        if command.terms().is_some_and(|terms| terms.kind == Kind::SlotPool) {
            resource.reach.free_slots = ENTRIES_WHOLE as usize;
        }
    }
    sorted.into_values().collect()
}

/// The first trip, and a second one for records that are not loaded whole.
async fn lock_and_load<D: Database, C: Command>(
    database: &D,
    connection: &mut D::Connection,
    resources: &mut [Resource<'_>],
    batch: &[(&Name, &C)],
) -> Result<(), Fault> {
    // Whether any of the commands may leave something where nothing is stored.
    let creates =
        |resource: &Resource<'_>| resource.commands.iter().any(|at| batch[*at].1.on_nothing().is_continue());
    let tables = database.tables();
    let mut script = Script::default();
    for statement in D::Dialect::BEGIN {
        script.add(statement);
    }
    let new = resources.iter().filter(|resource| creates(resource));
    let mut values = String::new();
    for resource in new {
        values.push_str(if values.is_empty() { "(" } else { ",(" });
        Values::new(&mut values).bytes::<D::Dialect>(resource.name.as_str().as_bytes());
        values.push(')');
    }
    if !values.is_empty() {
        let end = D::Dialect::unless_exists("name");
        script.add(&format!("INSERT INTO {} (name) VALUES {values} {end}", tables.resource));
    }
    let takes_value =
        batch.iter().any(|(_, command)| command.terms().is_some_and(|terms| terms.unless_fresh));
    let list = names::<D::Dialect>(resources.iter().map(|resource| resource.name));
    let columns = head_columns::<D::Dialect>(tables, takes_value);
    let table = &tables.resource;
    let key = D::Dialect::BY_KEY;
    let heads = script
        .add(&format!("SELECT {columns} FROM {table} {key} WHERE name IN ({list}) ORDER BY name {LOCK}"));
    let columns = claim_columns::<D::Dialect>();
    let claims = script.add(&D::Dialect::entries(tables, &columns, &list, ENTRIES_WHOLE));
    let time = script.add(&moment_asked::<D::Dialect>());
    let answers = connection.run(script.text).await?;
    let (now, incarnation) = moment(&answers, time)?;
    let mut found: BTreeMap<Name, Stored> =
        rows(&answers, heads).iter().map(stored).collect::<Result<_, _>>()?;
    let mut entries: BTreeMap<Name, Entries> = BTreeMap::new();
    for row in rows(&answers, claims) {
        let (name, entry) = entry(row)?;
        entries.entry(name).or_default().add(entry);
    }
    for resource in resources {
        (resource.now, resource.incarnation) = (now, incarnation);
        match found.remove(resource.name) {
            Some(stored) => resource.stored = stored,
            // It was there, so nothing was inserted, and it was purged while its lock was waited for. There is no
            // lock now: a transaction that went on could grant what another grants at the same moment.
            None if creates(resource) => {
                return Err(Fault::GivenUp("a resource's row was removed meanwhile".to_owned()));
            }
            None => {}
        }
        resource.entries = entries.remove(resource.name).unwrap_or_default();
        let is_whole = resource.stored.entries <= ENTRIES_WHOLE;
        if is_whole {
            resource.reach.entries = None;
        }
        let has_slots = resource.stored.head.as_ref().is_some_and(|head| head.fresh_slots > 0);
        if !is_whole || has_slots && resource.reach.free_slots > 0 {
            load_more(database, connection, resource).await?;
        }
    }
    Ok(())
}

/// Loads a resource as far as its reach says.
async fn load_more<D: Database>(
    database: &D,
    connection: &mut D::Connection,
    resource: &mut Resource<'_>,
) -> Result<(), Fault> {
    let mut script = Script::default();
    let Resource { name, reach, claims, tokens, .. } = resource;
    let part = part::<D::Dialect>(&mut script, database.tables(), name, *reach, claims, tokens, LOCK);
    // Locks may have been waited for.
    let time = script.add(&moment_asked::<D::Dialect>());
    let answers = connection.go_on(script.text).await?;
    resource.entries = part.read(&answers)?;
    (resource.now, resource.incarnation) = moment(&answers, time)?;
    Ok(())
}

/// The notifications for waiters and observers.
fn notifications<A>(resources: &[Resource<'_>], done: &[Option<Done<A>>]) -> Vec<Notification> {
    let mut notifications = Vec::new();
    for resource in resources {
        let Some(window) = &resource.window else { continue };
        let head = window.waiter_behind(0).ok().flatten().map(|waiter| waiter.claim);
        for transition in resource.commands.iter().filter_map(|at| Some(&done[*at].as_ref()?.transition)) {
            for woken in &transition.wakes {
                notifications.push(match woken.grant {
                    Some(grant) => Notification::Granted { to: woken.client, claim: woken.claim, grant },
                    None => Notification::Look { to: woken.client, claim: woken.claim },
                });
            }
            // The present head has to know when the next hold ends.
            for (to, claim) in transition.moved_up.iter().filter(|(_, claim)| head == Some(*claim)) {
                notifications.push(Notification::Look { to: *to, claim: *claim });
            }
        }
        let is_observed = resource.stored.observed_until.is_some_and(|until| until > resource.now);
        if is_observed {
            notifications.push(Notification::Changed { resource: resource.name.clone() });
        }
    }
    notifications
}

/// The last trip: writes and commits, or ends a transaction that has changed nothing.
async fn finish<D: Database>(
    database: &D,
    mut connection: D::Connection,
    resources: &[Resource<'_>],
    notifications: &[Notification],
) -> Result<(), Fault> {
    let mut script = Script::default();
    let written: Vec<Written<'_>> = resources
        .iter()
        .filter_map(|resource| {
            let Resource { name, stored, entries, now, .. } = resource;
            Some(Written { name, stored, rows: entries, window: resource.window.as_ref()?, now: *now })
        })
        .collect();
    let has_changed = write::<D::Dialect>(&mut script, database.tables(), &written)?;
    script.add(if has_changed { "COMMIT" } else { "ROLLBACK" });
    connection.go_on(script.text).await?;
    // It is committed: whatever becomes of the notifications, that is the answer. A client that misses its own asks
    // by its heartbeat. Notifying is a transaction of its own, since inside one it takes a lock of the whole
    // instance.
    let incarnation = resources.first().map_or(Incarnation(0), |resource| resource.incarnation);
    database.inbox().notify_own(notifications, incarnation);
    let others = database.inbox().for_others(notifications);
    if !others.is_empty()
        && let Some(statement) = database.tell(&others)
        && let Err(fault) = connection.run(statement).await
    {
        tracing::debug!(engine = D::ENGINE, ?fault, "others could not be told");
        return Ok(());
    }
    connection.keep();
    Ok(())
}
