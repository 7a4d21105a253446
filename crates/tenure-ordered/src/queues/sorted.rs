//! Requests of one call, queue by queue.

use tenure_core::model::claim::Name;
use tenure_core::{Error, ErrorKind, Result};

/// Requests of several queues, sorted by queue.
pub(crate) struct Sorted<R> {
    pub(crate) queues: Vec<(Name, Vec<usize>, Vec<R>)>,
    total: usize,
}

impl<R> Sorted<R> {
    pub(crate) fn new(requests: Vec<R>, queue_of: impl Fn(&R) -> Name) -> Sorted<R> {
        let mut queues: Vec<(Name, Vec<usize>, Vec<R>)> = Vec::new();
        let total = requests.len();
        for (index, request) in requests.into_iter().enumerate() {
            let name = queue_of(&request);
            match queues.iter_mut().find(|(queue, ..)| *queue == name) {
                Some((_, places, requests)) => {
                    places.push(index);
                    requests.push(request);
                }
                None => queues.push((name, vec![index], vec![request])),
            }
        }
        Sorted { queues, total }
    }

    /// Puts the answers of all queues in the order of the requests.
    pub(crate) fn answers<A>(self, served: Vec<Vec<Result<A>>>) -> Vec<Result<A>> {
        let mut answers: Vec<Option<Result<A>>> = (0..self.total).map(|_| None).collect();
        for ((_, places, _), served) in self.queues.into_iter().zip(served) {
            for (place, answer) in places.into_iter().zip(served) {
                answers[place] = Some(answer);
            }
        }
        let missing = || Err(damaged("use a queue", "a request was left out"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }
}

/// What is stored, or what was answered, cannot be.
pub(crate) fn damaged(operation: &'static str, why: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, why)
        .with_hint("do all clients have the same version of tenure? If so, report it")
}
