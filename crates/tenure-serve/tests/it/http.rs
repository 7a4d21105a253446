//! A server in this process, and a client that repeats nothing: one request for each connection, as it is written.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_core::{Tenure, memory};
use tenure_metrics::Address;
use tenure_serve::{Control, Options, Server};
use tokio::runtime::Runtime;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server that is dropped with its test.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    pub(crate) control: Control,
    pub(crate) tenure: Tenure,
    runtime: Option<Runtime>,
    done: Option<tokio::task::JoinHandle<()>>,
}

/// Where a test's server listens.
pub(crate) fn anywhere() -> Options {
    Options::new("127.0.0.1:0".parse().expect("an address"))
}

impl Serving {
    /// Serves a store of this process.
    pub(crate) fn memory(options: Options) -> Serving {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let store = format!("serve-{}", STORES.fetch_add(1, Ordering::Relaxed));
        Serving::of(pollster::block_on(memory::connect(&store)).expect("a store"), options)
    }

    /// Serves what a URL names.
    pub(crate) fn url(url: &str, options: Options) -> Serving {
        Serving::of(pollster::block_on(tenure::connect(url)).expect("a store"), options)
    }

    pub(crate) fn of(tenure: Tenure, options: Options) -> Serving {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let entered = runtime.enter();
        let server = Server::bind(tenure.clone(), options).expect("a server");
        let Address::Tcp(address) = *server.address() else { panic!("by TCP") };
        let control = server.control();
        let done = runtime.spawn(server.run());
        drop(entered);
        Serving { address, control, tenure, runtime: Some(runtime), done: Some(done) }
    }

    /// Ends it as a kill does: no request is answered, and nothing is released.
    pub(crate) fn kill(mut self) {
        self.runtime.take().expect("it runs").shutdown_background();
        // Its client would go on renewing nothing; what it holds back is dropped with the test.
        std::mem::forget(self.tenure.clone());
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ended(&mut self) {
        let done = self.done.take().expect("it runs");
        let within = async { tokio::time::timeout(PATIENCE, done).await };
        self.runtime.as_ref().expect("it runs").block_on(within).expect("in time").expect("no panic");
    }

    pub(crate) fn ask(&self, request: &str) -> Answer {
        ask(self.address, request, "", None)
    }

    /// Sends a request with a JSON body.
    pub(crate) fn send(&self, request: &str, body: &Value) -> Answer {
        ask(self.address, request, "", Some(body))
    }

    /// The same with more headers, each with its end of line.
    pub(crate) fn send_with(&self, request: &str, headers: &str, body: &Value) -> Answer {
        ask(self.address, request, headers, Some(body))
    }

    /// Sends a request, and does not wait for the answer.
    pub(crate) fn begin(&self, request: &str, body: &Value) -> Open {
        Open(open(self.address, request, "", Some(body)))
    }

    pub(crate) fn begin_with(&self, request: &str, headers: &str, body: &Value) -> Open {
        Open(open(self.address, request, headers, Some(body)))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A request that is under way. Dropping it closes its connection.
pub(crate) struct Open(pub(crate) TcpStream);

impl Open {
    pub(crate) fn answer(mut self) -> Answer {
        read(&mut self.0)
    }
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// `Null`, if it is no JSON.
    pub(crate) body: Value,
}

impl Answer {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
        let line = self.head.lines().find(|line| of(line))?;
        line.split_once(':').map(|(_, value)| value.trim())
    }

    pub(crate) fn token(&self) -> u64 {
        self.body["token"].as_u64().unwrap_or_else(|| panic!("a token in {self:?}"))
    }

    pub(crate) fn kind(&self) -> &str {
        self.body["kind"].as_str().unwrap_or_default()
    }
}

pub(crate) fn ask(address: SocketAddr, request: &str, headers: &str, body: Option<&Value>) -> Answer {
    read(&mut open(address, request, headers, body))
}

/// Sends a request whose `host` is among its headers.
pub(crate) fn raw(address: SocketAddr, request: &str, headers: &str, body: &Value) -> Answer {
    let body = body.to_string();
    let length = body.len();
    let said = "connection: close\r\ncontent-type: application/json\r\n";
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = format!("{request} HTTP/1.1\r\n{headers}{said}content-length: {length}\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).expect("a request");
    read(&mut stream)
}

pub(crate) fn open(address: SocketAddr, request: &str, headers: &str, body: Option<&Value>) -> TcpStream {
    let body = body.map(Value::to_string).unwrap_or_default();
    let said = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let head = format!(
        "{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}{said}content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all((head + &body).as_bytes()).expect("a request");
    stream
}

/// Reads an answer and the end of its connection: its head and its body.
pub(crate) fn text_of(stream: &mut impl Read) -> (String, String) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    let text = String::from_utf8(bytes).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.to_owned(), body.to_owned())
}

/// The same, of JSON.
pub(crate) fn read(stream: &mut impl Read) -> Answer {
    let (head, body) = text_of(stream);
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer {
        status: status.unwrap_or_else(|| panic!("no answer: {head:?}")),
        head,
        body: serde_json::from_str(&body).unwrap_or(Value::Null),
    }
}

/// The time of the client.
#[allow(clippy::disallowed_methods, reason = "real time: that of the client")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A new id of a claim.
pub(crate) fn new_id() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// Waits until something is so.
pub(crate) fn until<T>(what: &str, condition: impl Fn() -> Option<T>) -> T {
    tenure_testkit::wait_for(what, condition)
}

/// Waits until so many claims wait for a name.
pub(crate) fn until_waiting(tenure: &Tenure, name: &str, count: u32) {
    until("claims that wait", || {
        let view = pollster::block_on(tenure.view(name)).expect("a view");
        (view.map_or(0, |view| view.waiting) == count).then_some(())
    });
}
