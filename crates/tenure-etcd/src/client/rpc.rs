//! One connection with one endpoint: calls and streams with a deadline each, and the token of the user.
//!
//! Nothing is sent twice here but what etcd refused for its token, which it did before it executed the rest.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use tenure_core::engine::url::Login;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::client::proto::{AuthenticateRequest, Call, StreamCall};
use crate::error::Fault;

/// The longest answer. A range of 10,000 waiters is 2 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A connection with one endpoint. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Wire {
    grpc: Grpc<Channel>,
    shared: Arc<Shared>,
}

struct Shared {
    endpoint: String,
    /// Distinguishes this connection from the others of the client: later ones have larger numbers.
    number: u64,
    login: Option<Login>,
    token: watch::Sender<Option<MetadataValue<Ascii>>>,
    /// Held by the task that asks for a token.
    asking: tokio::sync::Mutex<()>,
    /// Held by the task that finds out whether the endpoint answers still.
    doubting: Arc<tokio::sync::Mutex<()>>,
}

/// Requests of a stream that is open, and its answers.
pub(crate) struct Stream<Q: StreamCall> {
    pub(crate) requests: mpsc::UnboundedSender<Q>,
    answers: Streaming<Q::Answer>,
    endpoint: String,
}

impl Wire {
    pub(crate) fn new(channel: Channel, endpoint: &str, number: u64, login: Option<Login>) -> Wire {
        let shared = Shared {
            endpoint: endpoint.to_owned(),
            number,
            login,
            token: watch::Sender::new(None),
            asking: tokio::sync::Mutex::default(),
            doubting: Arc::default(),
        };
        let grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Wire { grpc, shared: Arc::new(shared) }
    }

    /// Returns the address of the endpoint.
    pub(crate) fn endpoint(&self) -> &str {
        &self.shared.endpoint
    }

    /// Returns the number of the connection.
    pub(crate) fn number(&self) -> u64 {
        self.shared.number
    }

    /// Has one task at a time find out whether the endpoint answers still: the one that holds what is returned.
    pub(crate) fn begin_doubting(&self) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        self.shared.doubting.clone().try_lock_owned().ok()
    }

    /// Calls a method. A token that is refused is replaced once.
    pub(crate) async fn call<Q: Call>(&self, request: &Q, deadline: Instant) -> Result<Q::Answer, Fault> {
        let token = self.token();
        match self.call_once(request, deadline, token.clone()).await {
            Err(fault) if fault.is_of_token() && self.shared.login.is_some() => {
                let token = self.renew_token(token, deadline).await?;
                self.call_once(request, deadline, token).await
            }
            result => result,
        }
    }

    /// Opens a stream. etcd says that it is open with the first answer, so there must be a first request.
    pub(crate) async fn open<Q: StreamCall>(
        &self,
        first: impl IntoIterator<Item = Q>,
        deadline: Instant,
    ) -> Result<Stream<Q>, Fault> {
        // Not bounded: the sender keeps what is asked for within bounds.
        let (requests, receiver) = mpsc::unbounded_channel();
        for request in first {
            // The receiver is in this function.
            drop(requests.send(request));
        }
        let mut request = Request::new(UnboundedReceiverStream::new(receiver));
        add_metadata(&mut request, true, self.token());
        let mut grpc = self.grpc.clone();
        let began = Instant::now();
        let opened = timeout_at(deadline, async {
            ready(&mut grpc).await?;
            grpc.streaming(request, PathAndQuery::from_static(Q::PATH), ProstCodec::default()).await
        });
        match opened.await {
            Ok(Ok(answers)) => {
                Ok(Stream { requests, answers: answers.into_inner(), endpoint: self.shared.endpoint.clone() })
            }
            Ok(Err(status)) => Err(self.fault(&status)),
            Err(_) => Err(self.silent(began.elapsed())),
        }
    }

    /// Returns whether there is a user whose token may be refused.
    pub(crate) fn has_login(&self) -> bool {
        self.shared.login.is_some()
    }

    /// Returns the token that requests have now.
    pub(crate) fn token(&self) -> Option<MetadataValue<Ascii>> {
        self.shared.token.borrow().clone()
    }

    /// Asks for a token, unless there is one that is not the old one.
    pub(crate) async fn renew_token(
        &self,
        old: Option<MetadataValue<Ascii>>,
        deadline: Instant,
    ) -> Result<Option<MetadataValue<Ascii>>, Fault> {
        let Some(login) = &self.shared.login else { return Ok(None) };
        let began = Instant::now();
        let Ok(_asking) = timeout_at(deadline, self.shared.asking.lock()).await else {
            return Err(self.silent(began.elapsed()));
        };
        let newest = self.token();
        if newest != old {
            return Ok(newest);
        }
        let request = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let answer = self.call_once(&request, deadline, None).await?;
        let token = answer.token.parse::<MetadataValue<Ascii>>().map_err(|_| Fault::Cut {
            endpoint: self.shared.endpoint.clone(),
            why: "it gave a token that cannot be sent".to_owned(),
        })?;
        self.shared.token.send_replace(Some(token.clone()));
        Ok(Some(token))
    }

    async fn call_once<Q: Call>(
        &self,
        request: &Q,
        deadline: Instant,
        token: Option<MetadataValue<Ascii>>,
    ) -> Result<Q::Answer, Fault> {
        let began = Instant::now();
        let mut request = Request::new(request.clone());
        add_metadata(&mut request, Q::NEEDS_LEADER, token);
        // So that the server gives up, too.
        request.set_timeout(deadline.saturating_duration_since(began));
        let mut grpc = self.grpc.clone();
        let answered = timeout_at(deadline, async {
            ready(&mut grpc).await?;
            grpc.unary(request, PathAndQuery::from_static(Q::PATH), ProstCodec::default()).await
        });
        match answered.await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(_)) if Instant::now() >= deadline => Err(self.silent(began.elapsed())),
            Ok(Err(status)) => Err(self.fault(&status)),
            Err(_) => Err(self.silent(began.elapsed())),
        }
    }

    fn fault(&self, status: &Status) -> Fault {
        Fault::of_status(&self.shared.endpoint, status)
    }

    fn silent(&self, after: Duration) -> Fault {
        Fault::Silent { endpoint: self.shared.endpoint.clone(), after }
    }
}

impl<Q: StreamCall> Stream<Q> {
    /// Waits for the next answer. The end of the stream is a fault.
    pub(crate) async fn next(&mut self) -> Result<Q::Answer, Fault> {
        match self.answers.message().await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => {
                Err(Fault::Cut { endpoint: self.endpoint.clone(), why: "the stream has ended".to_owned() })
            }
            Err(status) => Err(Fault::of_status(&self.endpoint, &status)),
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("endpoint", &self.shared.endpoint)
            .field("number", &self.shared.number)
            .finish()
    }
}

/// Adds what etcd is to know besides the request. A server that knows no leader refuses what needs one at once, and ends
/// a stream when it loses its leader.
fn add_metadata<T>(request: &mut Request<T>, needs_leader: bool, token: Option<MetadataValue<Ascii>>) {
    if needs_leader {
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    }
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| Status::new(Code::Unknown, crate::error::reason(&error)))
}
