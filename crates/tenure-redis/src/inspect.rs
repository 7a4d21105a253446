//! Looking at many resources, for `status` and operators.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;
use tenure_core::Result;
use tenure_core::claim::Name;
use tenure_core::engine::Incarnation;
use tenure_core::inspect::{VIEW_ENTRIES_MAX, View};
use tenure_core::token::Token;
use tokio::time::Instant;

use crate::answer::{self, Unexpected};
use crate::engine::{Store, internal};
use crate::keys::Key;
use crate::script::LIBRARY;
use crate::topology::CALL_TIMEOUT;

/// How many keys the server looks at in one step of a scan.
const SCAN_COUNT: usize = 1000;
/// The most resources in one look.
pub(crate) const PAGE_MAX: usize = 128;

/// Lists resources by name. Each page costs a scan of the whole keyspace, since keys have no order.
pub(crate) async fn inspect(
    store: &Store,
    prefix: String,
    mut after: Option<Name>,
    most: usize,
) -> Result<Vec<View>> {
    let most = most.min(PAGE_MAX);
    let mut views = Vec::new();
    while views.is_empty() && most > 0 {
        let patterns = store.keys.patterns(&prefix);
        let names = names(store, &patterns, &prefix, after.as_ref(), most).await?;
        let names: Vec<Name> = names.into_iter().collect();
        let Some(last) = names.last() else { break };
        after = Some(last.clone());
        views = look(store, &names).await?.into_iter().flatten().collect();
    }
    Ok(views)
}

/// Returns the first names, by order of bytes, that begin with a prefix and come after one.
/// `patterns` match a key of each.
pub(crate) async fn names(
    store: &Store,
    patterns: &[String],
    prefix: &str,
    after: Option<&Name>,
    most: usize,
) -> Result<BTreeSet<Name>> {
    let mut names = BTreeSet::new();
    let masters = store.servers.masters().await.map_err(|fault| fault.to_error("inspect"))?;
    for server in masters {
        for pattern in patterns {
            let mut cursor = 0_u64;
            loop {
                let scan = |_: Incarnation| {
                    let mut cmd = redis::cmd("SCAN");
                    cmd.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
                    cmd
                };
                let deadline = Instant::now() + CALL_TIMEOUT;
                let scanned = server.call(deadline, &scan).await;
                let (value, _) = scanned.map_err(|fault| fault.to_error("inspect"))?;
                let (next, keys): (u64, Vec<Vec<u8>>) = redis::from_redis_value(value)
                    .map_err(|error| internal("inspect", &Unexpected(error.to_string())))?;
                let found = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
                let found = found.filter_map(|key| store.keys.name_of(key));
                let wanted =
                    |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
                names.extend(found.filter(wanted));
                while names.len() > most {
                    names.pop_last();
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
    }
    Ok(names)
}

/// Looks at resources, in the order of their names as given; none where nothing is to be seen.
pub(crate) async fn look(store: &Store, names: &[Name]) -> Result<Vec<Option<View>>> {
    let mut views: Vec<Option<View>> = names.iter().map(|_| None).collect();
    let mut slots: BTreeMap<u16, Vec<(usize, Key)>> = BTreeMap::new();
    for (at, name) in names.iter().enumerate() {
        let key = store.keys.of(name)?;
        slots.entry(key.slot).or_default().push((at, key));
    }
    for (slot, keys) in slots {
        let (at, keys): (Vec<usize>, Vec<Key>) = keys.into_iter().unzip();
        let argument = |cmd: &mut redis::Cmd| {
            cmd.arg(VIEW_ENTRIES_MAX);
        };
        let (items, context) = store.call("inspect", &LIBRARY.look, slot, &keys, argument).await?;
        let mut items = items.into_iter();
        let last = items.next().unwrap_or(Value::Nil);
        let failed = |what: Unexpected| internal("inspect", &what);
        let last = Token::new(answer::number(&last).map_err(failed)?);
        for (at, item) in at.into_iter().zip(items) {
            views[at] = answer::view(&names[at], context.now, last, item).map_err(failed)?;
        }
    }
    Ok(views)
}
