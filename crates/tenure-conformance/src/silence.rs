//! Connections that carry nothing any more, of which no end is ever told: a firewall forgot them, or the host behind them went off.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_core::clock::{Clock, SystemClock};
use tenure_core::engine::Connect;
use tenure_core::testing::busy::stretched;
use tenure_core::{ErrorKind, Result, Settings, Tenure};

use crate::crew::{now, pause};

/// How long it takes to be let in by a server that is slow at that: longer than a call is waited for, and shorter than an engine bears.
pub const SLOW_LOGIN: Duration = Duration::from_millis(600);
/// Shorter than an engine bears a silent server: it hears of no call how that ended.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
/// How soon another connection must be in use. The system would try to send for a quarter of an hour.
const LEFT_WITHIN: Duration = Duration::from_secs(20);

type Asked<'a> = BoxFuture<'a, Result<()>>;
type Ask = for<'a> fn(&'a Tenure, &'a str) -> Asked<'a>;

/// Asserts that a client whose connections fall silent gets answers again, although it gives each call up before its engine would.
///
/// `fall_silent` has all connections that there are carry nothing any more. New ones are served, and let in as slowly as
/// [`SLOW_LOGIN`] says.
///
/// # Panics
/// If the client goes on to use what is silent.
pub fn is_left(connector: impl Fn() -> Connect, fall_silent: impl Fn()) {
    let asks: [(&str, Ask); 3] = [
        ("a claim", |client, name| Box::pin(async move { client.mutex(name).try_acquire().await.map(drop) })),
        ("a look", |client, name| Box::pin(async move { client.view(name).await.map(drop) })),
        ("a push", |client, name| {
            Box::pin(async move {
                match client.queue_capability() {
                    Some(_) => client.queue(name).push(b"item").await.map(drop),
                    None => Ok(()),
                }
            })
        }),
    ];
    for (what, ask) in asks {
        let settings = Settings::new().answer_timeout(ANSWER_TIMEOUT);
        let client =
            answered("a client", || pollster::block_on(Tenure::connect_with(connector(), settings.clone())));
        let name = || format!("{:016x}", SystemClock.random());
        answered(what, || pollster::block_on(ask(&client, &name())));
        fall_silent();
        answered(what, || pollster::block_on(ask(&client, &name())));
    }
}

/// Asks until there is an answer.
pub(crate) fn answered<T>(what: &str, ask: impl Fn() -> Result<T>) -> T {
    let until = now() + stretched(LEFT_WITHIN);
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                assert!(now() < until, "{what} is never answered: {error}");
                pause(Duration::from_millis(20));
            }
            Err(error) => panic!("{what} is refused: {error}"),
        }
    }
}
