//! The example of a web service, on `memory:`: two processes of it are two clients of one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use axum::response::IntoResponse;
use tenure::{Error, ErrorKind, Tenure, Token};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tower_service::Service;

#[path = "../../examples/axum_service.rs"]
#[allow(dead_code, reason = "its work and its address come from the test")]
mod axum_service;

use axum_service::{App, Failure, Work, router, serve};

/// What was done, by whichever process. Work ends when the test lets it.
#[derive(Default)]
struct Done {
    begun: Notify,
    go: Notify,
    loads: AtomicUsize,
    mails: AtomicUsize,
    tidied: AtomicUsize,
}

struct Scripted(Arc<Done>);

impl Work for Scripted {
    async fn close(&self, _: &str, _: Token) -> Result<(), Failure> {
        self.0.begun.notify_one();
        self.0.go.notified().await;
        Ok(())
    }

    async fn load_rates(&self) -> Result<Vec<u8>, Failure> {
        let number = self.0.loads.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::task::yield_now().await;
        Ok(format!("load {number}").into_bytes())
    }

    async fn send(&self, _: &[u8]) -> Result<(), Failure> {
        self.0.begun.notify_one();
        self.0.go.notified().await;
        self.0.mails.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn tidy_up(&self, _: Token) -> Result<(), Failure> {
        self.0.tidied.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

async fn client(store: &str) -> Tenure {
    tenure::connect(&format!("memory:axum-{store}")).await.expect("a store in memory")
}

async fn app(store: &str, done: &Arc<Done>) -> Arc<App<Scripted>> {
    Arc::new(App { tenure: client(store).await, work: Scripted(done.clone()) })
}

/// Asks one process, without a socket.
async fn ask(app: &Arc<App<Scripted>>, method: Method, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::from("hello")).expect("a request");
    let answer = router(app.clone()).call(request).await.expect("a router answers");
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
    (status, String::from_utf8_lossy(&body).into_owned())
}

const CLOSE: &str = "/accounts/7/close";

#[tokio::test]
async fn a_second_request_is_refused_while_the_first_is_at_work() {
    let done = Arc::default();
    let (a, b) = (app("try", &done).await, app("try", &done).await);
    let first = async { ask(&a, Method::POST, CLOSE).await.0 };
    let second = async {
        done.begun.notified().await;
        let refused = ask(&b, Method::POST, CLOSE).await;
        let other_account = b.tenure.mutex("account/8").try_acquire().await.expect("an answer");
        done.go.notify_one();
        (refused, other_account.is_some())
    };
    let (first, (refused, is_other_free)) = tokio::join!(first, second);
    assert_eq!(first, StatusCode::NO_CONTENT);
    assert_eq!(refused, (StatusCode::CONFLICT, "somebody else is at it\n".to_owned()));
    assert!(is_other_free);
    // It was released with the answer.
    done.go.notify_one();
    assert_eq!(ask(&b, Method::POST, CLOSE).await.0, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_request_that_waits_has_its_turn_or_is_told_that_it_is_locked() {
    let done = Arc::default();
    let (a, b) = (app("wait", &done).await, app("wait", &done).await);
    let held = a.tenure.mutex("account/7").acquire().await.expect("it is free");
    let (status, text) = ask(&b, Method::PUT, CLOSE).await;
    assert_eq!(status, StatusCode::LOCKED, "{text}");
    let waits = async { ask(&b, Method::PUT, CLOSE).await.0 };
    let releases = async {
        while a.tenure.view("account/7").await.expect("an answer").is_none_or(|view| view.waiting == 0) {
            tokio::task::yield_now().await;
        }
        done.go.notify_one();
        held.release().await.expect("held");
    };
    assert_eq!(tokio::join!(waits, releases).0, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_request_whose_lease_an_operator_breaks_is_stopped_and_told() {
    let done: Arc<Done> = Arc::default();
    let a = app("lost", &done).await;
    let broken = async {
        done.begun.notified().await;
        let view = a.tenure.view("account/7").await.expect("an answer").expect("a hold");
        a.tenure.break_hold("account/7", view.holds[0].token, true).await.expect("an answer");
    };
    let (answer, ()) = tokio::join!(ask(&a, Method::POST, CLOSE), broken);
    assert_eq!(answer.0, StatusCode::CONFLICT, "{}", answer.1);
    assert!(answer.1.contains("lost"), "{}", answer.1);
}

#[test]
fn each_kind_of_error_has_its_status() {
    for (kind, status) in [
        (ErrorKind::Timeout, 423),
        (ErrorKind::Lost, 409),
        (ErrorKind::Unavailable, 503),
        (ErrorKind::Invalid, 400),
        (ErrorKind::Conflict, 500),
        (ErrorKind::Unsupported, 500),
        (ErrorKind::Internal, 500),
    ] {
        let answer = Failure::Lock(Error::new(kind, "claim", "why")).into_response();
        assert_eq!(answer.status().as_u16(), status, "{kind:?}");
    }
}

#[tokio::test]
async fn forty_requests_to_two_processes_load_the_rates_once() {
    let done = Arc::default();
    let apps = [app("flight", &done).await, app("flight", &done).await];
    let asked = (0..40).map(|number| ask(&apps[number % 2], Method::GET, "/rates"));
    let answers = futures_util::future::join_all(asked).await;
    assert!(answers.iter().all(|answer| *answer == (StatusCode::OK, "load 1".to_owned())), "{answers:?}");
}

/// One process of the service, on a port of its own.
struct Process {
    stop: watch::Sender<bool>,
    ended: tokio::task::JoinHandle<()>,
}

impl Process {
    async fn start(store: &str, done: &Arc<Done>) -> Process {
        let app = App { tenure: client(store).await, work: Scripted(done.clone()) };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (stop, stopping) = watch::channel(false);
        let ended = tokio::task::spawn_local(async move {
            serve(listener, app, stopping).await.expect("it ends in order");
        });
        Process { stop, ended }
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        self.ended.await.expect("no panic");
    }
}

#[tokio::test]
async fn a_stop_resigns_and_finishes_what_is_in_hand() {
    let local = tokio::task::LocalSet::new();
    let all = local.run_until(async {
        let done: Arc<Done> = Arc::default();
        let first = Process::start("stop", &done).await;
        let leads = async |number| {
            while done.tidied.load(Ordering::SeqCst) < number {
                tokio::task::yield_now().await;
            }
        };
        leads(1).await;
        let onlooker = app("stop", &done).await;
        assert!(ask(&onlooker, Method::GET, "/leader").await.1.contains("pid"), "somebody leads");
        assert_eq!(ask(&onlooker, Method::POST, "/mails").await.0, StatusCode::ACCEPTED);
        done.begun.notified().await;
        first.stop.send_replace(true);
        // A second mail, for which nobody is left.
        assert_eq!(ask(&onlooker, Method::POST, "/mails").await.0, StatusCode::ACCEPTED);
        assert_eq!(done.mails.load(Ordering::SeqCst), 0);
        done.go.notify_one();
        first.stop().await;
        assert_eq!(done.mails.load(Ordering::SeqCst), 1, "the one in hand was sent, and no other");
        assert_eq!(ask(&onlooker, Method::GET, "/leader").await.1, "nobody leads\n");
        // The next process leads at once, and sends the rest.
        let (second, tidied) = (Process::start("stop", &done).await, done.tidied.load(Ordering::SeqCst));
        leads(tidied + 1).await;
        done.go.notify_one();
        while done.mails.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        second.stop().await;
        assert!(onlooker.tenure.queue("mails").is_empty().await.expect("an answer"));
    });
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("it comes to its end");
}
