//! Looking at many resources, for `status` and operators.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};
use redis::Value;
use tenure_core::clock::Timestamp;
use tenure_core::engine::Incarnation;
use tenure_core::model::claim::Name;
use tenure_core::model::inspect::{VIEW_ENTRIES_MAX, View};
use tenure_core::model::token::Token;
use tenure_core::{Error, Result};
use tokio::time::Instant;

use crate::doctor::PROBE;
use crate::keys::{Key, Keys};
use crate::lua::LIBRARY;
use crate::lua::answer::{self, Unexpected};
use crate::net::link::Link;
use crate::net::topology::CALL_TIMEOUT;
use crate::store::{Store, internal};

/// How many keys the server visits in one step of a scan, which blocks it for about a millisecond.
const SCAN_COUNT: usize = 1000;
/// The most resources in one read.
pub(crate) const PAGE_MAX: usize = 128;
/// How many reads are under way while a scan goes on.
const READS_MAX: usize = 4;

/// Lists all resources, with one scan of the keyspace: what it finds is read while it goes on.
pub(crate) fn inspect_all(store: &Store, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
    let scan = scan(store, store.keys.pattern(&prefix), Keys::resource_of, prefix);
    let looks = scan.map(move |names| async move {
        let names = names?;
        let seen = read_each_view(store, &names).await?;
        let told = |(name, view): (Name, Result<Option<View>>)| {
            view.map_err(|error| error.with_resource(&name)).transpose()
        };
        Ok(names.into_iter().zip(seen).filter_map(told).collect())
    });
    looks.buffered(READS_MAX).boxed()
}

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
        let scan = scan(store, store.keys.pattern(&prefix), Keys::resource_of, prefix.clone());
        let names: Vec<Name> = first(scan, after.as_ref(), most).await?.into_iter().collect();
        let Some(last) = names.last() else { break };
        after = Some(last.clone());
        views = read_views(store, &names).await?.into_iter().flatten().collect();
    }
    Ok(views)
}

/// Returns the first names, by order of bytes, that come after one.
pub(crate) async fn first(
    scan: impl Stream<Item = Result<Vec<Name>>>,
    after: Option<&Name>,
    most: usize,
) -> Result<BTreeSet<Name>> {
    let found = scan.try_fold(BTreeSet::new(), async |mut names, some| {
        names.extend(some.into_iter().filter(|name| after.is_none_or(|after| name > after)));
        while names.len() > most {
            names.pop_last();
        }
        Ok(names)
    });
    found.await
}

/// Looks at a resource that may not exist, with a real script, and thus with the rights that scripts need.
pub(crate) async fn probe(store: &Store) -> Result<()> {
    let key = store.keys.of(&Name::new(PROBE)?)?;
    let argument = |cmd: &mut redis::Cmd| {
        cmd.arg(VIEW_ENTRIES_MAX);
    };
    store.run_script("look", &LIBRARY.look, key.slot, std::slice::from_ref(&key), argument).await.map(drop)
}

/// Which name a key of the store shows.
type NameOf = fn(&Keys, &str) -> Option<Name>;

/// A scan of all servers for the names in their keys. It keeps its place: what has been read is not read again.
struct Scan<'a> {
    store: &'a Store,
    pattern: String,
    name_of: NameOf,
    prefix: String,
    /// The servers that are not done. `None`: it has not begun.
    servers: Option<Vec<Link>>,
    cursor: u64,
    /// A name may have several keys, and the server may show one key twice.
    seen: HashSet<Name>,
    found: Vec<Name>,
}

/// Finds the names that begin with a prefix, each once, in any order; `pattern` matches a key of each. Up to [`PAGE_MAX`] at a
/// time: none says that it is still scanning.
pub(crate) fn scan(
    store: &Store,
    pattern: String,
    name_of: NameOf,
    prefix: String,
) -> impl Stream<Item = Result<Vec<Name>>> + Send + '_ {
    let scan = Scan {
        store,
        pattern,
        name_of,
        prefix,
        servers: None,
        cursor: 0,
        seen: HashSet::new(),
        found: Vec::new(),
    };
    stream::try_unfold(scan, |mut scan| async move { Ok(scan.next().await?.map(|names| (names, scan))) })
}

impl Scan<'_> {
    async fn next(&mut self) -> Result<Option<Vec<Name>>> {
        if self.servers.is_none() {
            let masters = self.store.servers.masters().await;
            self.servers = Some(masters.map_err(|fault| fault.to_error("inspect"))?);
        }
        let server = self.servers.as_ref().and_then(|servers| servers.last().cloned());
        if let Some(server) = server.as_ref().filter(|_| self.found.len() < PAGE_MAX) {
            self.step(server).await?;
        } else if self.found.is_empty() {
            return Ok(None);
        }
        let is_over = self.servers.as_ref().is_none_or(Vec::is_empty);
        if self.found.len() < PAGE_MAX && !is_over {
            return Ok(Some(Vec::new()));
        }
        let rest = self.found.split_off(self.found.len().min(PAGE_MAX));
        Ok(Some(std::mem::replace(&mut self.found, rest)))
    }

    async fn step(&mut self, server: &Link) -> Result<()> {
        let scan = |_: Incarnation| {
            let mut cmd = redis::cmd("SCAN");
            cmd.arg(self.cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(SCAN_COUNT);
            cmd
        };
        let scanned = server.call(Instant::now() + CALL_TIMEOUT, &scan).await;
        let (value, _) = scanned.map_err(|fault| fault.to_error("inspect"))?;
        let (next, keys): (u64, Vec<Vec<u8>>) = redis::from_redis_value(value)
            .map_err(|error| internal("inspect", &Unexpected(error.to_string())))?;
        for key in keys.iter().filter_map(|key| std::str::from_utf8(key).ok()) {
            if let Some(name) = (self.name_of)(&self.store.keys, key)
                && name.as_str().starts_with(&self.prefix)
                && self.seen.insert(name.clone())
            {
                self.found.push(name);
            }
        }
        self.cursor = next;
        if next == 0 {
            self.servers.as_mut().and_then(Vec::pop);
        }
        Ok(())
    }
}

/// Looks at resources, in the order of their names as given; none where nothing is to be seen.
pub(crate) async fn read_views(store: &Store, names: &[Name]) -> Result<Vec<Option<View>>> {
    read_each_view(store, names).await?.into_iter().collect()
}

/// As [`read_views`], but one that cannot be read is an error of its own.
async fn read_each_view(store: &Store, names: &[Name]) -> Result<Vec<Result<Option<View>>>> {
    let mut views: Vec<Result<Option<View>>> = names.iter().map(|_| Ok(None)).collect();
    let mut slots: BTreeMap<u16, Vec<(usize, Key)>> = BTreeMap::new();
    for (at, name) in names.iter().enumerate() {
        match store.keys.of(name) {
            Ok(key) => slots.entry(key.slot).or_default().push((at, key)),
            Err(error) => views[at] = Err(error),
        }
    }
    let looks = slots.into_iter().map(async |(slot, keys)| {
        let (at, keys): (Vec<usize>, Vec<Key>) = keys.into_iter().unzip();
        Ok::<_, Error>((at, read_slot(store, slot, &keys).await?))
    });
    for looked in join_all(looks).await {
        let (at, seen) = looked?;
        for (at, (item, last, now)) in at.into_iter().zip(seen) {
            let view = answer::view(&names[at], now, last, item);
            views[at] = view.map_err(|what| internal("inspect", &what));
        }
    }
    Ok(views)
}

/// Looks at resources of one slot. The server answers with a few when their values are large, and is asked for the others then.
async fn read_slot(store: &Store, slot: u16, keys: &[Key]) -> Result<Vec<(Value, Token, Timestamp)>> {
    let mut seen = Vec::with_capacity(keys.len());
    while seen.len() < keys.len() {
        let argument = |cmd: &mut redis::Cmd| {
            cmd.arg(VIEW_ENTRIES_MAX);
        };
        let rest = &keys[seen.len()..];
        let (items, context) = store.run_script("inspect", &LIBRARY.look, slot, rest, argument).await?;
        let mut items = items.into_iter();
        let last = items.next().unwrap_or(Value::Nil);
        let last = Token::new(answer::number(&last).map_err(|what| internal("inspect", &what))?);
        if items.len() == 0 {
            return Err(internal("inspect", &Unexpected("nothing about what it was asked for".to_owned())));
        }
        seen.extend(items.map(|item| (item, last, context.now)));
    }
    Ok(seen)
}
