//! What anybody may cost this process. Each has a test (`tests/it/limits.rs`) or is held where it is used.

use std::time::Duration;

/// How long a TLS handshake may take.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How long the first line and the headers of a request may take, from the first byte, and on a new connection from its beginning.
pub(crate) const HEAD_MAX: Duration = Duration::from_secs(5);
/// How long a connection may rest between two requests: longer than common proxies keep theirs (60 s), so that they close it and not we.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(75);
/// The most bytes of the first line and the headers.
pub(crate) const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most headers.
pub(crate) const HEADERS_MAX: usize = 64;
/// The largest body. A push of a queue has up to 1 MiB of payloads, and claims have a thousandth of that.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;
/// A body that is read at once: those of all but pushes and large renewals are.
pub(crate) const SMALL_BODY_BYTES_MAX: usize = 16 * 1024;
/// How many larger ones are in memory at a time, so that a hundred cost no hundred MiB. The others wait unread, within [`BODY_MAX`].
pub(crate) const LARGE_BODIES_MAX: usize = 6;
/// How many requests one connection of HTTP/2 may have open at a time.
pub(crate) const STREAMS_OF_CONNECTION_MAX: u32 = 256;
/// How much of a body one of them may send before it is read, and how much of an answer is kept for one that does not read; four times that for
/// all bodies of a connection. More: a connection costs more memory; less: a large body takes more round trips.
pub(crate) const WINDOW_BYTES: u32 = 64 * 1024;
/// How long a body may take.
pub(crate) const BODY_MAX: Duration = Duration::from_secs(10);
/// How long a call may take that waits for nobody, once its body is there.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(5);
/// How long a reader may read nothing of an answer.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(10);
/// How much of what a reader does not read the system keeps for it; it doubles that. Otherwise it keeps megabytes, and who sends requests
/// and reads nothing has thousands of them answered before [`STALL_MAX`] begins.
pub(crate) const UNREAD_BYTES: usize = 32 * 1024;
/// The most connections. Others wait in the line of the system.
pub(crate) const CONNECTIONS_MAX: usize = 12_000;
/// The most requests that wait for something at a time.
pub(crate) const WAITING_MAX: usize = 10_000;
/// The most streams of events.
pub(crate) const STREAMS_MAX: usize = 1_000;
/// After how long a stream on which nothing happens has a comment: proxies cut what is silent for longer, and a reader that is gone is
/// noticed by it.
pub(crate) const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// The most requests of one token that wait, and the most streams.
pub(crate) const WAITING_OF_TOKEN_MAX: usize = 1_000;
/// The most requests a second with one token.
pub(crate) const RATE_OF_TOKEN: u32 = 500;
/// The most requests a second that an address may send with a token that does not exist.
pub(crate) const GUESSES_OF_ADDRESS: u32 = 20;
/// How many addresses are remembered for that. With more, all are forgotten: a table that only grows is a leak.
pub(crate) const ADDRESSES_MAX: usize = 10_000;
/// The most claims of one `POST /v1/claims/renew`.
pub(crate) const RENEWALS_MAX: usize = 256;

/// The most items of one `POST /v1/queue/push`: as many as one call of the store takes.
pub(crate) const PUSHES_MAX: usize = 128;
/// The most items of one `POST /v1/queue/take`.
pub(crate) const TAKES_MAX: usize = 16;
/// How often the store is asked whether it can be trusted, at most.
pub(crate) const DOCTOR_EVERY: Duration = Duration::from_secs(10);
/// The most entries of a list.
pub(crate) const LIST_MAX: usize = 500;
/// After how long an item is handed out again, if whoever gives it back does not say.
pub(crate) const RETRY_DEFAULT: Duration = Duration::from_secs(1);

/// How long a request waits, if it does not say.
pub(crate) const POLL_DEFAULT: Duration = Duration::from_secs(25);
/// The longest: below the 60 s at which common proxies cut.
pub(crate) const POLL_MAX: Duration = Duration::from_secs(50);
/// How long the place of a client is kept that went away while it waited, if it does not say.
pub(crate) const LINGER_DEFAULT: Duration = Duration::from_secs(2);
/// The longest: for as long as a store keeps the place of a silent waiter.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(15);

/// After how long a stream renews again what the store has not answered, at most.
pub(crate) const RENEW_AGAIN: Duration = Duration::from_secs(1);

/// How often the file of tokens is looked at. What a removed token had open ends within that.
pub(crate) const RELOAD_EVERY: Duration = Duration::from_secs(2);
/// How long `/readyz` has said no before the first connection is refused: so long do balancers take to hear of it.
pub(crate) const NOTICE: Duration = Duration::from_secs(3);
/// How often what has to turn says that it does.
pub(crate) const TURN: Duration = Duration::from_secs(1);
/// How old an answer of the store may be for `/readyz`, and a turn for `/healthz`.
pub(crate) const FRESH: Duration = Duration::from_secs(5);
/// How long a browser is signed in.
pub(crate) const SIGNED_IN_MAX: Duration = Duration::from_secs(12 * 3600);
/// How many acts of operators this process remembers, for the dashboard. The log has them all.
pub(crate) const ACTS_MAX: usize = 200;
