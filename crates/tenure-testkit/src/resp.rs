//! A client of Redis that is small enough to be trusted by tests: it blocks, and repeats nothing.

use std::fmt;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take: servers are stopped in tests, and a test that asks one must not wait for ever.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// What a Redis server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A number.
    Integer(i64),
    /// A text, of a status or a value.
    Bytes(Vec<u8>),
    /// A refusal.
    Error(String),
    /// Several answers.
    List(Vec<Reply>),
}

impl Reply {
    /// Returns the parts of a list; no others have any.
    pub fn parts(&self) -> &[Reply] {
        if let Reply::List(parts) = self { parts } else { &[] }
    }
}

/// One part a line; nothing for [`Reply::Nil`].
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => Ok(()),
            Reply::Integer(number) => write!(f, "{number}"),
            Reply::Bytes(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Reply::Error(text) => f.write_str(text),
            Reply::List(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if index == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
        }
    }
}

/// A connection with a Redis server or a Sentinel.
pub struct Connection {
    input: BufReader<Box<dyn Read + Send>>,
    output: Box<dyn Write + Send>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects with a port of 127.0.0.1.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn to_port(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Connection { input: BufReader::new(Box::new(stream.try_clone()?)), output: Box::new(stream) })
    }

    /// Connects with a socket in the file system.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn to_socket(path: &Path) -> Result<Connection> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Connection { input: BufReader::new(Box::new(stream.try_clone()?)), output: Box::new(stream) })
    }

    /// Sends a command and waits for its answer, 10 s at most.
    ///
    /// # Errors
    /// As the system reports them; a refusal of the server is a [`Reply`].
    pub fn ask<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Reply> {
        self.send(command)?;
        self.receive()
    }

    /// Sends a command.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn send<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<()> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for argument in command {
            let argument = argument.as_ref();
            bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        self.output.write_all(&bytes)
    }

    /// Waits for an answer, 10 s at most.
    ///
    /// # Errors
    /// As the system reports them.
    pub fn receive(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.input.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else { return Err(ErrorKind::UnexpectedEof.into()) };
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(line))?;
        let number = || rest.parse::<i64>().map_err(|_| malformed(line));
        let reply = match kind {
            "+" => Reply::Bytes(rest.as_bytes().to_vec()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.input.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Bytes(bytes)
                }
                Err(_) => Reply::Nil,
            },
            "*" if rest == "-1" => Reply::Nil,
            "*" => Reply::List((0..number()?).map(|_| self.receive()).collect::<Result<_>>()?),
            _ => return Err(malformed(line)),
        };
        Ok(reply)
    }
}

fn malformed(line: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("no answer of Redis begins with {line:?}"))
}
