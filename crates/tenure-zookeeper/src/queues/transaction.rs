//! One transaction that changes a queue.

use tenure_core::model::claim::{ClientId, Name};
use tenure_ordered::{Key, Rewritten, Value};
use zookeeper_client::{Client, CreateMode, MultiWriteError, MultiWriteResult, Stat};

use super::page_cache::PageCache;
use super::{OPERATION, body_path, called, page_path};
use crate::engine::Inner;
use crate::error::Fault;

/// What is to be done.
pub(super) struct QueueTransaction {
    path: String,
    /// There is no head yet.
    creates: bool,
    version: i32,
    /// The model's head.
    pub(super) head: Value,
    /// What is in the head's node.
    pub(super) data: Vec<u8>,
    pub(super) rewritten: Rewritten,
    made: Vec<(String, Vec<u8>)>,
    removed: Vec<String>,
    calls: Vec<(String, String)>,
}

/// What became of it.
pub(super) enum Done {
    /// It is done, and this is the head's node.
    Yes(Stat),
    /// The queue was changed before.
    Overtaken,
    /// What all queues are below of is not there.
    NoParent,
}

/// The last version that can be asked for.
const LAST_VERSION: i32 = -2;

/// Returns which version of the head each of its writes asks for.
///
/// A version is a counter of 32 bits with a sign, so after 4 billion changes it is -1, which stands for any version when it is asked
/// for. It is passed over by a second write in the same transaction; newer servers leave it out by themselves.
fn head_writes(version: i32) -> Vec<Option<i32>> {
    let passes_over = (version == LAST_VERSION).then_some(None);
    [Some(version)].into_iter().chain(passes_over).collect()
}

impl QueueTransaction {
    /// `apart`: changes of rows with nodes of their own.
    pub(super) fn new(
        path: &str,
        page_cache: &PageCache,
        head: &[u8],
        rewritten: Rewritten,
        apart: &[(Key, Option<Value>)],
    ) -> QueueTransaction {
        let pages = rewritten.written.iter().map(|(id, page)| (page_path(path, *id), page.encode()));
        let body =
            |(key, value): &(Key, Option<Value>)| Some((body_path(path, key), value.as_ref()?.to_vec()));
        let made = pages.chain(apart.iter().filter_map(body)).collect();
        let gone = apart.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| body_path(path, key));
        let removed = rewritten.removed.iter().map(|id| page_path(path, *id)).chain(gone).collect();
        QueueTransaction {
            path: path.to_owned(),
            creates: page_cache.czxid == 0,
            // A head that is made anew has the version 0.
            version: page_cache.version,
            head: head.into(),
            data: rewritten.pages.encode(head),
            rewritten,
            made,
            removed,
            calls: Vec::new(),
        }
    }

    /// Wakes clients, too.
    pub(super) fn add_wakes(&mut self, chroot: &str, queue: &Name, clients: &[ClientId]) {
        let wake = |client: &ClientId| (called(chroot, *client), queue.as_str().to_owned());
        self.calls = clients.iter().map(wake).collect();
    }

    /// How many bytes the request has, about, and not fewer.
    pub(super) fn weight(&self) -> usize {
        let made = self.made.iter().map(|(path, data)| path.len() + data.len() + OPERATION);
        let removed = self.removed.iter().map(|path| path.len() + OPERATION);
        let head = 2 * (self.path.len() + OPERATION) + self.data.len() * head_writes(self.version).len();
        head + made.chain(removed).sum::<usize>()
    }

    /// Does it. A client that is called and does not listen any more does not keep it from being done.
    pub(super) async fn commit(&mut self, client: &Client, inner: &Inner) -> Result<Done, Fault> {
        if !self.creates && self.version == -1 {
            return Err(Fault::BadArguments(&"the version of the queue's node stands for any version"));
        }
        let options = inner.options(CreateMode::Persistent);
        loop {
            let mut multi = client.new_multi_writer();
            let mut of_head = 0;
            if self.creates {
                // The answer to this says nothing of the transaction, with some servers.
                multi.add_create(&self.path, b"", &options)?;
                of_head += 1;
            }
            for version in head_writes(self.version) {
                multi.add_set_data(&self.path, &self.data, version)?;
                of_head += 1;
            }
            for (path, data) in &self.made {
                multi.add_create(path, data, &options)?;
            }
            for path in &self.removed {
                multi.add_delete(path, None)?;
            }
            let first_call = of_head + self.made.len() + self.removed.len();
            for (path, queue) in &self.calls {
                multi.add_set_data(path, queue.as_bytes(), None)?;
            }
            let (index, fault) = match multi.commit().await {
                Ok(done) => {
                    return match done.into_iter().nth(of_head - 1) {
                        Some(MultiWriteResult::SetData { stat }) => Ok(Done::Yes(stat)),
                        _ => Err(Fault::UnexpectedError("the answer says nothing of the head".to_owned())),
                    };
                }
                Err(MultiWriteError::OperationFailed { index, source }) => (index, source),
                Err(MultiWriteError::RequestFailed { source }) => return Err(source),
            };
            match fault {
                Fault::NoNode if index >= first_call => drop(self.calls.remove(index - first_call)),
                Fault::NoNode if index == 0 && self.creates => return Ok(Done::NoParent),
                Fault::NoNode | Fault::NodeExists | Fault::BadVersion if index < of_head => {
                    return Ok(Done::Overtaken);
                }
                fault => return Err(fault),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_version_is_left_that_stands_for_any() {
        for version in [0, 1, i32::MAX, i32::MIN, -3, -2] {
            let writes = head_writes(version);
            assert_eq!(writes[0], Some(version), "the first write asks for what was read");
            let after = (0..writes.len()).fold(version, |version, _| version.wrapping_add(1));
            assert_ne!(after, -1, "after {version}");
        }
    }
}
