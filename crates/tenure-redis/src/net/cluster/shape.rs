//! The shape of a cluster: which node has which hash slots, as nodes say.

use std::collections::HashMap;
use std::sync::Arc;

use redis::Value;

use crate::error::Fault;
use crate::net::address::Address;
use crate::net::dial::text_of;

/// How many hash slots there are.
pub(crate) const SLOTS: usize = 16384;

/// What one node says about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    ranges: Vec<Range>,
    /// All nodes with slots, and their replicas.
    pub(crate) nodes: Vec<Address>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    first: usize,
    last: usize,
    address: Arc<Address>,
    /// How new the claim to these slots is: the largest is right.
    epoch: u64,
}

impl View {
    /// Reads the answers to `CLUSTER SLOTS` and `CLUSTER NODES`. The first has the addresses that clients should
    /// use, the second the epochs.
    pub(crate) fn read(slots: Value, nodes: Value, asked: &Address) -> Result<View, Fault> {
        let server = asked.to_string();
        let unexpected = || Fault::Cut { server: server.clone(), why: "unexpected answer".to_owned() };
        let epochs = read_epochs(&text_of(nodes, &server)?);
        let Value::Array(entries) = slots else {
            return Err(text_of(slots, &server).err().unwrap_or_else(unexpected));
        };
        let mut view = View::default();
        for entry in entries {
            let Value::Array(parts) = entry else { return Err(unexpected()) };
            let mut parts = parts.into_iter();
            let (Some(Value::Int(first)), Some(Value::Int(last))) = (parts.next(), parts.next()) else {
                return Err(unexpected());
            };
            let (first, last) = (first as usize, last as usize);
            let mut nodes = parts.filter_map(|node| read_node(node, asked));
            let Some((master, id)) = nodes.next() else { continue };
            if first > last || last >= SLOTS {
                return Err(unexpected());
            }
            let epoch = epochs.get(&id).copied().unwrap_or(0);
            view.nodes.push(master.clone());
            view.ranges.push(Range { first, last, address: Arc::new(master), epoch });
            view.nodes.extend(nodes.map(|(address, _)| address));
        }
        view.nodes.sort();
        view.nodes.dedup();
        Ok(view)
    }
}

/// Returns the owner of each slot. Where nodes contradict each other, the claim of the latest epoch is right: a node
/// that was cut off goes on claiming what others have taken over.
pub(crate) fn merge(views: &[View]) -> Vec<Option<Arc<Address>>> {
    let mut owners: Vec<Option<&Range>> = vec![None; SLOTS];
    for range in views.iter().flat_map(|view| &view.ranges) {
        for owner in &mut owners[range.first..=range.last] {
            if owner.is_none_or(|owner| owner.epoch < range.epoch) {
                *owner = Some(range);
            }
        }
    }
    owners.into_iter().map(|owner| owner.map(|range| range.address.clone())).collect()
}

/// Reads an address and an id.
fn read_node(node: Value, asked: &Address) -> Option<(Address, String)> {
    let Value::Array(parts) = node else { return None };
    let mut parts = parts.into_iter();
    // A node that does not know its own name says nil.
    let host = parts.next().and_then(|host| text_of(host, "").ok()).unwrap_or_default();
    let Some(Value::Int(port)) = parts.next() else { return None };
    let id = parts.next().and_then(|id| text_of(id, "").ok()).unwrap_or_default();
    Some((Address::of(&host, u16::try_from(port).ok()?, asked), id))
}

/// Reads the epoch of each node id: the seventh field of a line.
fn read_epochs(text: &str) -> HashMap<String, u64> {
    let epoch = |line: &str| {
        let mut fields = line.split(' ');
        let id = fields.next()?.to_owned();
        Some((id, fields.nth(5)?.parse().ok()?))
    };
    text.lines().filter_map(epoch).collect()
}

/// Where a node sends a command instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// Always from now on.
    Moved(u16, Address),
    /// This once.
    Ask(Address),
}

impl Redirect {
    /// Reads `MOVED 3999 127.0.0.1:6381` or `ASK …`.
    pub(crate) fn read(fault: &Fault, asked: &Address) -> Option<Redirect> {
        let Fault::Server { code, detail, .. } = fault else { return None };
        let (slot, address) = detail.split_once(' ')?;
        let slot = slot.parse().ok().filter(|slot| usize::from(*slot) < SLOTS)?;
        let address = Address::parse(address.trim(), asked)?;
        match code.as_str() {
            "MOVED" => Some(Redirect::Moved(slot, address)),
            "ASK" => Some(Redirect::Ask(address)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.to_owned(), port)
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn entry(first: i64, last: i64, nodes: Vec<(Value, i64, &str)>) -> Value {
        let nodes = nodes.into_iter().map(|(host, port, id)| {
            Value::Array(vec![host, Value::Int(port), text(id), Value::Array(vec![])])
        });
        Value::Array([Value::Int(first), Value::Int(last)].into_iter().chain(nodes).collect())
    }

    fn view(epoch: u64, ranges: &[(i64, i64, i64)]) -> View {
        let entries =
            ranges.iter().map(|(first, last, port)| entry(*first, *last, vec![(text("h"), *port, "a")]));
        let nodes = text(&format!("a h:1@2 myself,master - 0 0 {epoch} connected 0-5\n"));
        View::read(Value::Array(entries.collect()), nodes, &tcp("asked", 1)).unwrap()
    }

    #[test]
    fn addresses_come_from_the_slots_and_epochs_from_the_nodes() {
        let slots = Value::Array(vec![
            entry(0, 5, vec![(text("10.0.0.1"), 7, "a"), (text("::1"), 8, "b")]),
            entry(6, 16383, vec![(Value::Nil, 9, "c")]),
        ]);
        let nodes = text(
            "a 10.0.0.1:7@17,name master - 0 1 42 connected 0-5\nc :9@19 myself,master - 0 1 41 connected\n\n",
        );
        let view = View::read(slots, nodes, &tcp("asked", 9)).unwrap();
        assert_eq!(view.nodes, [tcp("10.0.0.1", 7), tcp("::1", 8), tcp("asked", 9)]);
        let epochs: Vec<u64> = view.ranges.iter().map(|range| range.epoch).collect();
        assert_eq!(epochs, [42, 41]);
        let owners = merge(&[view]);
        assert_eq!(owners[5].as_deref(), Some(&tcp("10.0.0.1", 7)));
        assert_eq!(owners[6].as_deref(), Some(&tcp("asked", 9)));
    }

    #[test]
    fn the_claim_of_the_latest_epoch_wins() {
        let old = view(3, &[(0, 100, 1)]);
        let new = view(4, &[(50, 60, 2)]);
        for views in [[old.clone(), new.clone()], [new, old]] {
            let owners = merge(&views);
            let port = |slot: usize| owners[slot].as_deref().cloned();
            assert_eq!(
                (port(49), port(50), port(60)),
                (Some(tcp("h", 1)), Some(tcp("h", 2)), Some(tcp("h", 2)))
            );
            assert_eq!(port(101), None);
        }
    }

    #[test]
    fn nonsense_is_no_view() {
        let at = tcp("asked", 1);
        for slots in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![entry(5, 16384, vec![(text("h"), 1, "a")])]),
        ] {
            assert!(View::read(slots, text(""), &at).is_err());
        }
    }

    #[test]
    fn redirections_are_read() {
        let at = tcp("asked", 1);
        let read = |code: &str, detail: &str| Redirect::read(&Fault::server("s", code, Some(detail)), &at);
        assert_eq!(read("MOVED", "3999 127.0.0.1:6381"), Some(Redirect::Moved(3999, tcp("127.0.0.1", 6381))));
        assert_eq!(read("ASK", "3999 fe80::1:6381"), Some(Redirect::Ask(tcp("fe80::1", 6381))));
        assert_eq!(read("MOVED", "3999 :6381"), Some(Redirect::Moved(3999, tcp("asked", 6381))));
        assert_eq!(read("MOVED", "16384 h:6381"), None);
        assert_eq!(read("ERR", "3999 h:6381"), None);
    }
}
