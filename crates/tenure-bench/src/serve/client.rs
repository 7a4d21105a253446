//! A client: one connection, one request after the other.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Answer;
use crate::measure::now;

pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// What was answered.
pub(super) struct Said {
    pub(super) status: u16,
    pub(super) closes: bool,
    pub(super) body: String,
}

impl Said {
    /// A number in the body.
    pub(super) fn number(&self, field: &str) -> Option<u64> {
        let (_, after) = self.body.split_once(&format!("\"{field}\":"))?;
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        after[..digits].parse().ok()
    }

    /// An error, if it is not what was expected.
    pub(super) fn must_be(self, status: u16) -> Answer<Said> {
        if self.status == status { Ok(self) } else { Err(format!("{}: {}", self.status, self.body).into()) }
    }
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Answer<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection::over(stream))
    }

    pub(super) fn over(stream: TcpStream) -> Connection {
        Connection { stream, buffer: Vec::new() }
    }

    /// Reads once. Whether there is nothing more.
    pub(super) async fn ends(&mut self) -> bool {
        self.stream.read_buf(&mut self.buffer).await.map_or(true, |count| count == 0)
    }

    pub(super) async fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer<Said> {
        self.send(method, path, body).await?;
        self.answer().await
    }

    pub(super) async fn send(&mut self, method: &str, path: &str, body: &str) -> Answer<()> {
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {length}\r\n\r\n{body}"
        );
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    /// Sends bytes as they are.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Answer<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    pub(super) async fn answer(&mut self) -> Answer<Said> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
                let value = |name: &str| {
                    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).unwrap_or("0")
                };
                let length: usize = value("content-length").parse()?;
                let whole = end + 4 + length;
                if self.buffer.len() >= whole {
                    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
                    let closes = value("connection") == "close";
                    let body = String::from_utf8_lossy(&self.buffer[end + 4..whole]).into_owned();
                    self.buffer.drain(..whole);
                    return Ok(Said { status, closes, body });
                }
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err("the connection has ended".into());
            }
        }
    }
}

/// An id that no other claim has.
pub(super) fn new_id() -> String {
    static IDS: AtomicU64 = AtomicU64::new(0);
    format!("{:016x}{:016x}", now().nanos(), IDS.fetch_add(1, Ordering::Relaxed))
}

/// Repeats a claim until it is granted, as a client does: at the same instance, or at the next one when that ends.
pub(super) async fn granted(
    connection: &mut Connection,
    instances: &[SocketAddr],
    id: &str,
    name: &str,
) -> Answer<Said> {
    let (path, body) = (format!("/v1/claims/{id}"), format!("{{\"name\":\"{name}\",\"poll_ms\":50000}}"));
    let mut turn = 0;
    loop {
        let closes = match connection.ask("PUT", &path, &body).await {
            Ok(said) if said.status == 200 => return Ok(said),
            Ok(said) => said.must_be(202)?.closes,
            Err(error) if instances.is_empty() => return Err(error),
            Err(_) => true,
        };
        if closes && !instances.is_empty() {
            *connection = Connection::open(instances[turn % instances.len()]).await?;
            turn += 1;
        }
    }
}

/// How many wait for a name.
pub(super) async fn waiting(connection: &mut Connection, name: &str) -> Answer<u64> {
    let said = connection.ask("GET", &format!("/v1/resource?name={name}"), "").await?;
    Ok(if said.status == 404 { 0 } else { said.must_be(200)?.number("waiting").unwrap_or(0) })
}
