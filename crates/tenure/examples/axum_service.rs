//! A web service of which several processes run: what only one of them may do at a time, each under a lock of tenure.
//!
//! `cargo run -p tenure --example axum_service` listens on 127.0.0.1:8080, on the engine of `TENURE_ENGINE` (default `memory:`: this process
//! alone). Then `curl -X POST localhost:8080/accounts/7/close`, `curl localhost:8080/rates`, `curl -X POST -d hello localhost:8080/mails`.
//!
//! Ctrl-C stops it in order: no new request, no new item, the leader resigns, what is in hand is finished, leases are released.

#![allow(
    clippy::disallowed_methods,
    reason = "as a program of users is written, whose clock is the machine's"
)]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tenure::{ErrorKind, Lease, Tenure, Token};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

/// What the service does. A real one has a database here, which checks the token of each write.
pub(crate) trait Work: Send + Sync + 'static {
    /// Closes an account; must not be done twice at a time.
    fn close(&self, account: &str, token: Token) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Loads the rates, which is slow.
    fn load_rates(&self) -> impl Future<Output = Result<Vec<u8>, Failure>> + Send;
    /// Sends a mail.
    fn send(&self, mail: &[u8]) -> impl Future<Output = Result<(), Failure>> + Send;
    /// What the leader does again and again.
    fn tidy_up(&self, token: Token) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The service: one client of tenure for the whole process, which handlers share.
pub(crate) struct App<W> {
    pub(crate) tenure: Tenure,
    pub(crate) work: W,
}

/// Why a request is not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another request does it at this moment.
    Busy,
    /// The lock, by the kind of its error.
    Lock(tenure::Error),
    /// The work itself.
    #[allow(dead_code, reason = "the work of this example does not fail")]
    Work(String),
}

impl From<tenure::Error> for Failure {
    fn from(error: tenure::Error) -> Failure {
        Failure::Lock(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Busy => f.write_str("somebody else is at it"),
            Failure::Lock(error) => error.fmt(f),
            Failure::Work(why) => f.write_str(why),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match &self {
            Failure::Busy => StatusCode::CONFLICT,
            Failure::Lock(error) => match error.kind() {
                // It was waited for, and is still held.
                ErrorKind::Timeout => StatusCode::LOCKED,
                // The work was stopped in the middle: look at what is stored, and ask again.
                ErrorKind::Lost => StatusCode::CONFLICT,
                ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                // The name comes from the path.
                ErrorKind::Invalid => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Failure::Work(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// Does work under a lease, and drops it at the lease's deadline if it was not renewed.
async fn under(lease: Lease, work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::select! {
        done = work => done?,
        lost = lease.lost() => return Err(lost.into()),
    }
    lease.release().await?;
    Ok(())
}

/// Tries: a second request for the same account is refused at once.
async fn close<W: Work>(
    State(app): State<Arc<App<W>>>,
    Path(account): Path<String>,
) -> Result<StatusCode, Failure> {
    let mutex = app.tenure.mutex(&format!("account/{account}")).ttl(Duration::from_secs(10));
    let Some(lease) = mutex.try_acquire().await? else { return Err(Failure::Busy) };
    let token = lease.token();
    under(lease, app.work.close(&account, token)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Waits for two seconds at most: the client has a shorter patience than the queue may be long.
async fn close_in_turn<W: Work>(
    State(app): State<Arc<App<W>>>,
    Path(account): Path<String>,
) -> Result<StatusCode, Failure> {
    let mutex = app.tenure.mutex(&format!("account/{account}")).ttl(Duration::from_secs(10));
    let lease = mutex.acquire_within(Duration::from_secs(2)).await?;
    let token = lease.token();
    under(lease, app.work.close(&account, token)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// One process loads the rates, all others have what it loaded.
async fn rates<W: Work>(State(app): State<Arc<App<W>>>) -> Result<Vec<u8>, Failure> {
    let rates = app.tenure.single_flight("rates").fresh(Duration::from_secs(60));
    let found = rates.get_or_refresh(async |_lease| app.work.load_rates().await).await?;
    Ok(found.bytes.to_vec())
}

/// Puts a mail in line. It is answered when the store has it: no mail is forgotten.
async fn push_mail<W: Work>(
    State(app): State<Arc<App<W>>>,
    mail: axum::body::Bytes,
) -> Result<StatusCode, Failure> {
    app.tenure.queue("mails").push(&mail[..]).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Says which process leads.
async fn leader<W: Work>(State(app): State<Arc<App<W>>>) -> Result<String, Failure> {
    let leader = app.tenure.election("tidy").leader().await?;
    Ok(leader.map_or("nobody leads\n".to_owned(), |leader| format!("{}\n", leader.label)))
}

/// The routes.
pub(crate) fn router<W: Work>(app: Arc<App<W>>) -> Router {
    Router::new()
        .route("/accounts/{account}/close", post(close::<W>).put(close_in_turn::<W>))
        .route("/rates", get(rates::<W>))
        .route("/mails", post(push_mail::<W>))
        .route("/leader", get(leader::<W>))
        .with_state(app)
}

/// Ready when the service is to stop.
async fn stopped(mut stop: watch::Receiver<bool>) {
    // The sender is gone: the same.
    stop.wait_for(|stop| *stop).await.ok();
}

/// Leads, or waits to lead. A lost term drops the work, and campaigns again; so does a store that is away, for as long as it is.
async fn lead<W: Work>(app: &App<W>, stop: watch::Receiver<bool>) -> Result<(), Failure> {
    let election = app.tenure.election("tidy");
    let led = async {
        loop {
            let led = election.run(async |term| {
                loop {
                    if let Err(failure) = app.work.tidy_up(term.token()).await {
                        eprintln!("cannot tidy up: {failure}");
                    }
                    sleep(Duration::from_secs(1)).await;
                }
            });
            let Err(error) = led.await;
            if error.kind() != ErrorKind::Unavailable {
                return Err(Failure::Lock(error));
            }
            sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        // Dropping the other side resigns.
        () = stopped(stop) => Ok(()),
        led = led => led,
    }
}

/// Sends mails, four at a time, until told to stop; then finishes those in hand.
async fn consume<W: Work>(app: &App<W>, stop: watch::Receiver<bool>) -> Result<(), Failure> {
    let mails = app.tenure.queue("mails").parallel(4);
    mails.serve(stopped(stop), async |mail| app.work.send(mail.payload()).await).await?;
    Ok(())
}

/// Serves until told to stop. All ends in order; what nobody finishes within the grace is dropped, and handed out again elsewhere.
pub(crate) async fn serve<W: Work>(
    listener: TcpListener,
    app: App<W>,
    stop: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    const GRACE: Duration = Duration::from_secs(20);
    let app = Arc::new(app);
    let http = axum::serve(listener, router(app.clone())).with_graceful_shutdown(stopped(stop.clone()));
    let all = async {
        tokio::try_join!(
            async { http.await.map_err(|error| Failure::Work(error.to_string())) },
            lead(&app, stop.clone()),
            consume(&app, stop.clone()),
        )
    };
    let ended = tokio::select! {
        ended = all => ended.map(drop),
        () = async { stopped(stop.clone()).await; sleep(GRACE).await } => Ok(()),
    };
    // Waits for releases and acknowledgements that are under way.
    app.tenure.clone().close().await;
    ended.map_err(|failure| failure.to_string().into())
}

/// Work that only takes its time.
struct Demo;

impl Work for Demo {
    async fn close(&self, account: &str, token: Token) -> Result<(), Failure> {
        println!("closing account {account} under token {token}");
        sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    async fn load_rates(&self) -> Result<Vec<u8>, Failure> {
        println!("loading the rates");
        sleep(Duration::from_secs(1)).await;
        Ok(b"EUR 1.08\n".to_vec())
    }

    async fn send(&self, mail: &[u8]) -> Result<(), Failure> {
        println!("sending {}", String::from_utf8_lossy(mail));
        Ok(())
    }

    async fn tidy_up(&self, _: Token) -> Result<(), Failure> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = std::env::var("TENURE_ENGINE").unwrap_or_else(|_| "memory:axum".to_owned());
    let tenure = tenure::connect(&engine).await?;
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    let (stop, stopping) = watch::channel(false);
    tokio::spawn(async move {
        tokio::signal::ctrl_c().await.ok();
        stop.send_replace(true);
    });
    serve(listener, App { tenure, work: Demo }, stopping).await
}
