//! What a majority shows: for `status`, observers and operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::{self, BoxStream, StreamExt};
use redis::Value;
use tenure_core::engine::BreakAnswer;
use tenure_core::model::claim::{CAPACITY_MAX, ClaimId, Kind, Label, Name};
use tenure_core::model::inspect::{HoldView, View, WaiterView};
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};
use tenure_redis::server::{CALL_TIMEOUT, Fault, Unexpected, number, text as text_of};
use tokio::time::{Instant, timeout};

use super::claims::named_by_most;
use super::holds::most_have_come;
use super::node::Request;
use super::text::{self, kind_of, lossy};
use super::{Quorum, values};
use crate::library::LIBRARY;
use crate::quorum::majority;

/// How long one server is waited for.
const WITHIN: Duration = Duration::from_millis(900);
/// How many keys a server visits in one step of a scan.
const SCAN_COUNT: usize = 1000;
/// The most resources in one read.
const PAGE_MAX: usize = 128;
/// How a hold of another client of the classic protocol is named to the scripts.
const FOREIGN: &str = "????????????????????????????????";

/// How often the caller that lists all hears that the servers are still being scanned.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// How far a list of all has come.
enum Listing<'a> {
    Scanning(BoxFuture<'a, Result<Vec<Name>>>),
    Looking(Vec<Name>),
}

/// A resource as one server shows it.
pub(crate) struct Seen {
    kind: Kind,
    capacity: u32,
    holds: Vec<(text::Stored, u64)>,
    /// Claim, ticket, text.
    waiters: Vec<(ClaimId, u64, String)>,
    counter: u64,
    value: Option<values::Stored>,
    now: u64,
}

/// A hold as all servers show it.
#[derive(Default)]
struct Merged {
    numbers: Vec<u64>,
    count: usize,
    resting: usize,
    ends: Vec<u64>,
    held_for: u64,
    slot: Option<u32>,
    weight: u32,
    label: Option<Label>,
}

impl Quorum {
    /// Lists resources by name. Each page costs a scan of all servers, since keys have no order.
    pub(crate) async fn inspect(
        self: &Arc<Self>,
        prefix: String,
        mut after: Option<Name>,
        most: usize,
    ) -> Result<Vec<View>> {
        let most = most.min(PAGE_MAX);
        let mut views = Vec::new();
        while views.is_empty() && most > 0 {
            let names = self.names(&prefix, after.as_ref(), most).await?;
            let Some(last) = names.last() else { break };
            after = Some(last.clone());
            views = self.read_views("inspect", &names).await?.into_iter().flatten().collect();
        }
        Ok(views)
    }

    /// Lists all resources, with one scan of each server.
    pub(crate) fn inspect_all(self: &Arc<Self>, prefix: String) -> BoxStream<'_, Result<Vec<Result<View>>>> {
        let names = async move { self.names(&prefix, None, usize::MAX).await };
        stream::try_unfold(Listing::Scanning(names.boxed()), move |listing| async move {
            match listing {
                Listing::Scanning(mut names) => match timeout(REPORT_EVERY, &mut names).await {
                    Err(_) => Ok(Some((Vec::new(), Listing::Scanning(names)))),
                    Ok(names) => Ok(Some((Vec::new(), Listing::Looking(names?)))),
                },
                Listing::Looking(names) if names.is_empty() => Ok(None),
                Listing::Looking(mut names) => {
                    let rest = names.split_off(names.len().min(PAGE_MAX));
                    let views = self.read_views("inspect", &names).await?;
                    Ok(Some((views.into_iter().flatten().map(Ok).collect(), Listing::Looking(rest))))
                }
            }
        })
        .boxed()
    }

    /// Returns the first names, by order of bytes, that begin with a prefix and come after one, as a majority knows them.
    async fn names(&self, prefix: &str, after: Option<&Name>, most: usize) -> Result<Vec<Name>> {
        let scans = (0..self.nodes.len()).map(|node| self.names_of(node, prefix, after, most));
        let scanned = join_all(scans).await;
        let heard = scanned.iter().filter(|names| names.is_ok()).count();
        if heard < majority(self.nodes.len()) {
            return Err(self.too_few(
                "inspect",
                heard,
                scanned.into_iter().find_map(std::result::Result::err),
            ));
        }
        let names: BTreeSet<Name> = scanned.into_iter().flatten().flatten().collect();
        Ok(names.into_iter().take(most).collect())
    }

    async fn names_of(
        &self,
        node: usize,
        prefix: &str,
        after: Option<&Name>,
        most: usize,
    ) -> std::result::Result<BTreeSet<Name>, Fault> {
        let node = &self.nodes[node];
        let mut names = BTreeSet::new();
        if !node.is_up() {
            return Err(Fault::Nobody { why: format!("{} is away", node.name) });
        }
        for pattern in self.keys.patterns_of_quorum(prefix) {
            let mut cursor = 0_u64;
            loop {
                let scan = |_| {
                    let mut cmd = redis::cmd("SCAN");
                    cmd.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_COUNT);
                    cmd
                };
                let (value, _) = node.wire.call(Instant::now() + CALL_TIMEOUT, &scan).await?;
                let strange = |error: redis::ParsingError| Fault::Cut {
                    server: node.name.clone(),
                    why: error.to_string(),
                };
                let (next, keys): (u64, Vec<Vec<u8>>) = redis::from_redis_value(value).map_err(strange)?;
                let found = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
                let found = found.filter_map(|key| self.keys.name_of(key));
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
        Ok(names)
    }

    fn too_few(&self, operation: &'static str, heard: usize, fault: Option<Fault>) -> Error {
        let (all, most) = (self.nodes.len(), majority(self.nodes.len()));
        let why = fault.map_or_else(|| "they do not count".to_owned(), |fault| fault.to_string());
        Error::new(ErrorKind::Unavailable, operation, format!("{heard} of {all} servers answer, {most} are needed: {why}"))
            .with_hint("are the servers running and reachable? those of a new quorum are let in by `tenure doctor --init`")
    }

    /// Looks at resources, in the order of their names as given; none where nothing is to be seen.
    pub(crate) async fn read_views(
        self: &Arc<Self>,
        operation: &'static str,
        names: &[Name],
    ) -> Result<Vec<Option<View>>> {
        let mut request = Request::new(&LIBRARY.look);
        for name in names {
            self.keys.of(name)?;
            request = request.key(self.key_text(name));
        }
        let answers = self.hear_all(WITHIN, request).await;
        let mut fault = None;
        // What cannot be read of one resource is as if the server were away for that one.
        let mut seen: Vec<Vec<Option<Seen>>> = Vec::new();
        for answer in answers {
            match answer {
                Ok(said) if said.counts => {
                    let read = |item: Value| {
                        let mut seen = read(item, said.now).ok()?;
                        seen.value.iter_mut().for_each(|value| value.at = said.at);
                        Some(seen)
                    };
                    seen.push(said.items.into_iter().map(read).collect());
                }
                Ok(_) => {}
                Err(error) => fault = Some(error),
            }
        }
        if seen.len() < majority(self.nodes.len()) {
            return Err(self.too_few(operation, seen.len(), fault));
        }
        let merged = names.iter().enumerate().map(async |(at, name)| {
            let of_all: Vec<&Seen> = seen.iter().filter_map(|of_node| of_node.get(at)?.as_ref()).collect();
            self.merge(name, &of_all).await
        });
        Ok(join_all(merged).await)
    }

    /// Returns what a majority shows, and what it may show where servers are away; a value, once a majority has it.
    async fn merge(self: &Arc<Self>, name: &Name, seen: &[&Seen]) -> Option<View> {
        let (all, most) = (self.nodes.len(), majority(self.nodes.len()));
        let is_enough = |count: usize| count > 0 && count + (all - seen.len()) >= most;
        let holds = merged_holds(seen);
        let mut waiters: BTreeMap<(u64, ClaimId), (usize, &str)> = BTreeMap::new();
        for (claim, ticket, text) in seen.iter().flat_map(|seen| &seen.waiters) {
            waiters.entry((*ticket, *claim)).or_insert((0, text)).0 += 1;
        }
        let used_by = seen.iter().find(|seen| !seen.holds.is_empty());
        let shown = used_by.or(seen.iter().find(|seen| !seen.waiters.is_empty())).or(seen.first())?;
        let mut view = View::new(name.clone(), shown.kind, shown.capacity);
        for (id, hold) in holds.into_iter().filter(|(_, hold)| is_enough(hold.count)) {
            let label = hold.label.unwrap_or_else(|| Label::from_stored(""));
            let mut shown =
                HoldView::new(Token::new(named_by_most(hold.numbers.into_iter())), label, hold.weight);
            let is_foreign = id.is_none();
            shown.claim =
                Some(id.unwrap_or(ClaimId::new(0))).filter(|_| 2 * hold.resting < hold.count || is_foreign);
            shown.slot = hold.slot;
            shown.held_for = Duration::from_micros(hold.held_for);
            let mut ends = hold.ends;
            ends.sort_unstable_by(|one, other| other.cmp(one));
            let at = most.min(ends.len()).saturating_sub(1);
            shown.ends_in = Duration::from_millis(ends.get(at).copied().unwrap_or(0));
            view.used = view.used.saturating_add(hold.weight);
            view.holds.push(shown);
        }
        view.holds.sort_by_key(|hold| hold.token);
        for ((_, claim), (_, text)) in waiters.into_iter().filter(|(_, (count, _))| is_enough(*count)) {
            let mut words = text.splitn(4, ' ');
            let weight = if words.next() == Some("w") { CAPACITY_MAX } else { 1 };
            view.waiting += 1;
            view.waiters.push(WaiterView::new(
                claim,
                Label::from_stored(words.nth(2).unwrap_or_default()),
                weight,
            ));
        }
        let last = Token::new(seen.iter().map(|seen| seen.counter).max().unwrap_or(0));
        view.last_token = view.holds.last().map_or(last, |hold| hold.token);
        let known: Vec<Option<values::Stored>> = seen.iter().map(|seen| seen.value.clone()).collect();
        let value = self.write_back_newest(name, &known).await;
        let is_kept = |value: &values::Stored| {
            let holds = |claim| view.holds.iter().any(|hold| hold.claim == Some(claim));
            value.claim.map_or(value.keep > 0, holds)
        };
        view.value = value.filter(is_kept).map(|value| value.bytes.into());
        let is_shown = !view.holds.is_empty() || view.waiting > 0 || view.value.is_some();
        is_shown.then_some(view)
    }

    /// Ends a hold, on all servers.
    pub(crate) async fn break_hold(
        self: &Arc<Self>,
        resource: &Name,
        token: Token,
        at_once: bool,
    ) -> Result<BreakAnswer> {
        let name = std::slice::from_ref(resource);
        let view = self.read_views("break", name).await?.pop().flatten();
        let hold = view.and_then(|view| view.holds.into_iter().find(|hold| hold.token == token));
        let Some(hold) = hold else { return Ok(BreakAnswer::NotHeld) };
        let Some(claim) = hold.claim else {
            // It only rests already. At once means that it does not.
            return if at_once {
                self.end_rest(resource, token).await
            } else {
                Ok(BreakAnswer::Resting { free_in: hold.ends_in })
            };
        };
        let id = if claim == ClaimId::new(0) { FOREIGN.to_owned() } else { claim.to_string() };
        self.break_claim(resource, &id, at_once).await
    }

    /// Frees what only rests, whose claim the views do not show.
    async fn end_rest(self: &Arc<Self>, resource: &Name, token: Token) -> Result<BreakAnswer> {
        let request = Request::new(&LIBRARY.look).key(self.key_text(resource));
        let answers = self.hear_all(WITHIN, request).await;
        for said in answers.into_iter().flatten() {
            let Some(Ok(seen)) = said.items.into_iter().next().map(|item| read(item, said.now)) else {
                continue;
            };
            let id =
                seen.holds.iter().find(|(hold, _)| hold.number == token.get()).and_then(|(hold, _)| hold.id);
            if let Some(id) = id {
                return self.break_claim(resource, &id.to_string(), true).await;
            }
        }
        Ok(BreakAnswer::NotHeld)
    }

    async fn break_claim(self: &Arc<Self>, resource: &Name, id: &str, at_once: bool) -> Result<BreakAnswer> {
        let request = Request::new(&LIBRARY.break_hold)
            .key(self.key_text(resource))
            .arg(id)
            .arg(u8::from(at_once).to_string());
        let answers = self.hear_all(WITHIN, request).await;
        let most = majority(self.nodes.len());
        let (mut heard, mut free_in) = (0, Vec::new());
        for said in answers.into_iter().flatten() {
            heard += 1;
            if let Some(Ok(millis)) = said.items.first().map(number) {
                free_in.push(millis);
            }
        }
        if heard < most {
            return Err(self.too_few("break", heard, None));
        }
        if free_in.is_empty() {
            return Ok(BreakAnswer::NotHeld);
        }
        let needed = most.min(free_in.len());
        Ok(BreakAnswer::Broken { free_in: most_have_come(free_in, needed).unwrap_or_default() })
    }
}

/// Puts together what the servers show of each hold. All that clients of the classic protocol hold is one.
fn merged_holds(seen: &[&Seen]) -> BTreeMap<Option<ClaimId>, Merged> {
    let mut holds: BTreeMap<Option<ClaimId>, Merged> = BTreeMap::new();
    for seen in seen {
        for (hold, ends_in) in &seen.holds {
            let merged = holds.entry(hold.id).or_default();
            merged.count += 1;
            merged.resting += usize::from(hold.is_resting);
            merged.numbers.push(hold.number);
            merged.ends.push(*ends_in);
            merged.held_for = merged.held_for.max(seen.now.saturating_sub(hold.granted));
            merged.slot = hold.slot;
            merged.weight = if hold.is_writer { CAPACITY_MAX } else { 1 };
            merged.label = Some(hold.label.clone());
        }
    }
    holds
}

pub(crate) fn read(item: Value, now: u64) -> std::result::Result<Seen, Unexpected> {
    let array = |value: &Value| match value {
        Value::Array(items) => Ok(items.clone()),
        other => Err(Unexpected(format!("{other:?}"))),
    };
    let items = array(&item)?;
    let [kind, capacity, holds, waiters, counter, value] = &items[..] else {
        return Err(Unexpected(format!("{} fields", items.len())));
    };
    let mut seen = Seen {
        kind: kind_of(text_of(kind)?)?,
        capacity: number(capacity)? as u32,
        holds: Vec::new(),
        waiters: Vec::new(),
        counter: number(counter)?,
        value: values::stored(value)?,
        now,
    };
    for pair in array(holds)?.chunks_exact(2) {
        seen.holds.push((text::stored(&lossy(&pair[0]))?, number(&pair[1])?));
    }
    for waiter in array(waiters)?.chunks_exact(3) {
        let claim = text_of(&waiter[0])?.parse().map_err(|_| Unexpected("no claim id".to_owned()))?;
        seen.waiters.push((claim, number(&waiter[1])?, lossy(&waiter[2])));
    }
    Ok(seen)
}
