//! A proxy for HTTP that does to requests and answers what networks do.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is done to a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The server never hears of it, and the connection ends.
    LoseRequest,
    /// The server does it, and the connection ends.
    LoseAnswer,
    /// Nothing comes back, and the connection stays.
    Silence,
    /// The server does it at once, and the answer comes after that.
    DelayAnswer(Duration),
    /// The server gets it twice at once.
    Double,
    /// The server gets it again after that.
    CopyLater(Duration),
    /// Half of the answer comes, and the connection ends.
    CutAnswer,
    /// The server never hears of it. This is the answer: a status, more headers, a body.
    Say(u16, &'static str, String),
    /// The request waits with the server, and the connection ends after that.
    CutAfter(Duration),
}

#[derive(Debug)]
struct Rule {
    line: &'static str,
    times: usize,
    act: Act,
}

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    /// As `PUT /v1/claims/…`.
    pub(crate) line: String,
}

/// Numbers that come again with their seed (xorshift).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Nothing, twice in three times.
    fn act(&mut self) -> Option<Act> {
        let period = Duration::from_millis(self.below(1_300));
        Some(match self.below(21) {
            0 => Act::LoseRequest,
            1 => Act::LoseAnswer,
            2 => Act::Double,
            3 => Act::CopyLater(period),
            4 => Act::CutAnswer,
            5 | 6 => Act::DelayAnswer(period),
            _ => return None,
        })
    }
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    dice: Option<Dice>,
    seen: Vec<Seen>,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    pub(crate) fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        let state: Arc<Mutex<State>> = Arc::default();
        let of_accept = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let state = of_accept.clone();
                std::thread::spawn(move || serve(client, server, &state));
            }
        });
        Proxy { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Does that to the next so many requests whose line begins and ends so, as in `PUT /v1/claims/*`.
    pub(crate) fn next(&self, line: &'static str, times: usize, act: Act) {
        self.state().rules.push(Rule { line, times, act });
    }

    /// Does anything to any request from now on.
    pub(crate) fn shake(&self, dice: Dice) {
        self.state().dice = Some(dice);
    }

    /// Passes everything on again.
    pub(crate) fn heal(&self) {
        self.state().rules.clear();
    }

    /// Requests with such a line.
    pub(crate) fn seen(&self, line: &str) -> Vec<Seen> {
        self.state().seen.iter().filter(|seen| fits(line, &seen.line)).cloned().collect()
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fits(pattern: &str, line: &str) -> bool {
    match pattern.split_once('*') {
        Some((begin, end)) => line.starts_with(begin) && line[begin.len()..].ends_with(end),
        None => pattern == line,
    }
}

/// Serves one connection.
fn serve(mut client: TcpStream, server: u16, state: &Mutex<State>) {
    client.set_nodelay(true).ok();
    while let Some(request) = read_request(&mut client) {
        let text = String::from_utf8_lossy(&request).into_owned();
        let line = text.split(" HTTP/").next().unwrap_or_default().to_owned();
        let act = {
            let mut state = locked(state);
            state.seen.push(Seen { at: Instant::now(), line: line.clone() });
            let rule = state.rules.iter_mut().find(|rule| rule.times > 0 && fits(rule.line, &line));
            let ruled = rule.map(|rule| {
                rule.times -= 1;
                rule.act.clone()
            });
            ruled.or_else(|| state.dice.as_mut().and_then(Dice::act))
        };
        let answer = match act {
            None => forward(server, &request),
            Some(act) => done(act, server, &request, &mut client),
        };
        // A server that is away looks like a connection that ends.
        if answer.is_empty() || client.write_all(&answer).is_err() {
            break;
        }
    }
    client.shutdown(Shutdown::Both).ok();
}

/// Nothing: the connection ends.
fn done(act: Act, server: u16, request: &[u8], client: &mut TcpStream) -> Vec<u8> {
    match act {
        Act::LoseRequest => Vec::new(),
        Act::LoseAnswer => {
            forward(server, request);
            Vec::new()
        }
        Act::Silence => {
            // Until the client gives up.
            client.read_exact(&mut [0; 1]).ok();
            Vec::new()
        }
        Act::DelayAnswer(period) => {
            let answer = forward(server, request);
            std::thread::sleep(period);
            answer
        }
        Act::Double => {
            let copy = request.to_vec();
            let other = std::thread::spawn(move || forward(server, &copy));
            let answer = forward(server, request);
            other.join().ok();
            answer
        }
        Act::CopyLater(period) => {
            let copy = request.to_vec();
            std::thread::spawn(move || {
                std::thread::sleep(period);
                forward(server, &copy)
            });
            forward(server, request)
        }
        Act::CutAnswer => {
            let answer = forward(server, request);
            client.write_all(&answer[..answer.len().saturating_sub(10)]).ok();
            Vec::new()
        }
        Act::Say(status, headers, body) => {
            let length = body.len();
            format!("HTTP/1.1 {status} So\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
        }
        Act::CutAfter(period) => {
            let Ok(mut connection) = TcpStream::connect(("127.0.0.1", server)) else { return Vec::new() };
            connection.write_all(&closing(request)).ok();
            std::thread::sleep(period);
            Vec::new()
        }
    }
}

/// A request with its body, as it came. `None` if the connection has ended.
fn read_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut octet = [0; 1];
    while !request.ends_with(b"\r\n\r\n") {
        match client.read(&mut octet) {
            Ok(1) => request.push(octet[0]),
            _ => return None,
        }
    }
    let head = String::from_utf8_lossy(&request).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    client.read_exact(&mut body).ok()?;
    request.extend(body);
    Some(request)
}

/// The same request, after which the connection ends.
fn closing(request: &[u8]) -> Vec<u8> {
    let at = request.windows(2).position(|pair| pair == b"\r\n").map_or(0, |at| at + 2);
    let (line, rest) = request.split_at(at);
    [line, b"Connection: close\r\n", rest].concat()
}

/// The answer of the server; nothing if it is not there.
pub(crate) fn forward(server: u16, request: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    if let Ok(mut connection) = TcpStream::connect(("127.0.0.1", server)) {
        connection.write_all(&closing(request)).ok();
        // What came is the answer, whole or not.
        connection.read_to_end(&mut answer).ok();
    }
    answer
}
