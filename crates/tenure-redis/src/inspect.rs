//! Looking at many resources, for `status` and operators.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;
use tenure_core::Result;
use tenure_core::claim::Name;
use tenure_core::engine::Incarnation;
use tenure_core::inspect::{VIEW_ENTRIES_MAX, View};
use tenure_core::token::Token;

use crate::answer::{self, Unexpected};
use crate::engine::{ENGINE, Store, internal};
use crate::error::Fault;
use crate::keys::Key;
use crate::script;

/// How many keys the server looks at in one step of a scan.
const SCAN_COUNT: usize = 1000;
/// The most resources in one look.
const PAGE_MAX: usize = 128;

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
        let found = names(store, &prefix, after.as_ref(), most).await;
        let found = found.map_err(|fault| fault.to_error("inspect").with_engine(ENGINE))?;
        let names: Vec<Name> = found.into_iter().collect();
        let Some(last) = names.last() else { break };
        after = Some(last.clone());
        views = look(store, &names).await?.into_iter().flatten().collect();
    }
    Ok(views)
}

/// Returns the first names, by order of bytes, that begin with a prefix and come after one.
async fn names(
    store: &Store,
    prefix: &str,
    after: Option<&Name>,
    most: usize,
) -> std::result::Result<BTreeSet<Name>, Fault> {
    let mut names = BTreeSet::new();
    for server in store.servers.masters() {
        for pattern in store.keys.patterns(prefix) {
            let mut cursor = 0_u64;
            loop {
                let scan = |_: Incarnation| {
                    let mut cmd = redis::cmd("SCAN");
                    cmd.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
                    cmd
                };
                let (value, _) = server.call(scan).await?;
                let (next, keys): (u64, Vec<Vec<u8>>) =
                    redis::from_redis_value(value).map_err(|error| Fault::unexpected(&error.to_string()))?;
                let found = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
                let found = found.filter_map(|key| store.keys.name_of(key));
                let wanted = |name: &Name| {
                    name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after)
                };
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
        let called = store.call(&script::LOOK, slot, &keys, |cmd| drop(cmd.arg(VIEW_ENTRIES_MAX))).await;
        let (answers, _) = called.map_err(|fault| fault.to_error("inspect").with_engine(ENGINE))?;
        let mut items = answers.items.into_iter();
        let last = items.next().unwrap_or(Value::Nil);
        let failed = |what: Unexpected| internal("inspect", &what);
        let last = Token::new(answer::number(&last).map_err(failed)?);
        for (at, item) in at.into_iter().zip(items) {
            views[at] = answer::view(&names[at], answers.now, last, item).map_err(failed)?;
        }
    }
    Ok(views)
}
