//! The protocol of PostgreSQL, version 3: unnamed statements, all values as text.

use std::io::{BufReader, Read, Result, Write};
use std::net::TcpStream;

use super::{ANSWER_MAX, SqlAnswer, SqlError, SqlValue, Wire, malformed};

/// The version of the protocol.
const VERSION: u32 = 3 << 16;

pub(super) struct Postgres {
    stream: BufReader<TcpStream>,
}

/// A message of the server: its kind and the rest.
struct Message {
    kind: u8,
    body: Vec<u8>,
}

impl Postgres {
    pub(super) fn connect(port: u16, user: &str, database: &str) -> std::result::Result<Postgres, SqlError> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut postgres = Postgres { stream: BufReader::new(stream) };
        let mut body = VERSION.to_be_bytes().to_vec();
        for text in ["user", user, "database", database, ""] {
            push_text(&mut body, text);
        }
        let length = u32::try_from(body.len() + 4).map_err(malformed)?;
        let mut message = length.to_be_bytes().to_vec();
        message.extend(body);
        postgres.stream.get_mut().write_all(&message)?;
        postgres.answer()?;
        Ok(postgres)
    }

    /// Reads until the server is ready for the next statement.
    fn answer(&mut self) -> std::result::Result<SqlAnswer, SqlError> {
        let (mut answer, mut refusal) = (SqlAnswer::default(), None);
        loop {
            let Message { kind, body } = self.receive()?;
            match kind {
                b'Z' => return refusal.map_or(Ok(answer), Err),
                b'D' => answer.rows.push(row(&body)?),
                b'C' => answer.affected = affected(&body),
                // One that ends the connection is not followed by anything.
                b'E' if is_fatal(&body) => return Err(error(&body)),
                b'E' => refusal = Some(error(&body)),
                b'R' if body != [0; 4] => return Err(malformed("it asks for a password").into()),
                _ => (),
            }
        }
    }

    fn receive(&mut self) -> Result<Message> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length).checked_sub(4).ok_or_else(|| malformed("a short message"))?;
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body)?;
        Ok(Message { kind, body })
    }
}

impl Wire for Postgres {
    fn ask(&mut self, statement: &str, values: &[SqlValue]) -> std::result::Result<SqlAnswer, SqlError> {
        let mut parse = vec![0];
        push_text(&mut parse, statement);
        parse.extend([0; 2]);
        let mut bind = vec![0; 4];
        bind.extend(u16::try_from(values.len()).map_err(malformed)?.to_be_bytes());
        for value in values {
            let text = match value {
                SqlValue::Integer(number) => number.to_string(),
                SqlValue::Text(text) => text.clone(),
            };
            bind.extend(u32::try_from(text.len()).map_err(malformed)?.to_be_bytes());
            bind.extend(text.into_bytes());
        }
        bind.extend([0; 2]);
        let mut bytes = Vec::new();
        for (kind, body) in [(b'P', parse), (b'B', bind), (b'E', vec![0; 5]), (b'S', vec![])] {
            bytes.push(kind);
            bytes.extend(u32::try_from(body.len() + 4).map_err(malformed)?.to_be_bytes());
            bytes.extend(body);
        }
        self.stream.get_mut().write_all(&bytes)?;
        self.answer()
    }
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
}

/// A row: a count of 16 bits, and for each column a length of 32 bits, -1 for NULL.
fn row(body: &[u8]) -> Result<Vec<Option<String>>> {
    let mut row = Vec::new();
    let mut rest = body.get(2..).ok_or_else(|| malformed("a short row"))?;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        rest = after;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            row.push(None);
            continue;
        };
        let (text, after) = rest.split_at_checked(length).ok_or_else(|| malformed("a short row"))?;
        row.push(Some(String::from_utf8_lossy(text).into_owned()));
        rest = after;
    }
    Ok(row)
}

/// The number at the end of what a statement did: `INSERT 0 1`; none for `BEGIN`.
fn affected(body: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(body);
    let word = text.trim_end_matches('\0').rsplit(' ').next().unwrap_or_default();
    word.parse().unwrap_or(0)
}

/// A field of a refusal, by its letter.
fn field(body: &[u8], letter: u8) -> String {
    let found = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(&[letter]));
    String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
}

fn is_fatal(body: &[u8]) -> bool {
    matches!(field(body, b'V').as_str(), "FATAL" | "PANIC") || field(body, b'S') == "FATAL"
}

fn error(body: &[u8]) -> SqlError {
    SqlError { code: field(body, b'C'), message: field(body, b'M') }
}
