//! One connection: packets, texts and the rows that answer them.
//!
//! As little of the protocol as it takes: texts of several statements, and rows as text. No second protocol for statements that
//! are prepared (where they are, a text does it), no compression, and no `LOAD DATA LOCAL`, by which a server could read files of the
//! client.
//!
//! A connection whose call was dropped or failed is out of step: what comes next may be the answer to what was asked
//! before. [`Wire::run`] marks it, and refuses every later call.

use std::io;

use tenure_sql::Row;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The largest part of a packet. What is longer comes in several.
const PART_MAX: usize = 0xff_ffff;
/// The largest packet of a peer that has not let us in yet. It has proved nothing, and what it says then is short.
const STRANGER_PACKET_MAX: usize = 64 * 1024;
/// The largest packet of a server: a row with a value of 256 KiB in hexadecimal, and names.
const PACKET_MAX: usize = 4 * 1024 * 1024;
/// The largest answer to one text: the values of the most claims of one call (512), in hexadecimal, and what is beside them.
const ANSWER_MAX: usize = 288 * 1024 * 1024;
/// What a packet costs beside its bytes, about: a row of nothing is not free.
const PACKET_COST: usize = 64;
/// How much room a read has at least.
const READ_ROOM: usize = 16 * 1024;
/// More follows behind this answer.
const MORE_RESULTS: u16 = 0x0008;
const QUERY: u8 = 0x03;
/// The client leaves the server for good.
const QUIT: u8 = 0x01;

/// What carries bytes: TCP, TLS or a socket of the machine.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What a server answers to a statement.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    /// How many rows the statement has changed.
    pub(crate) changed: u64,
    /// What `LAST_INSERT_ID` was given in it, or 0.
    pub(crate) number: u64,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum WireError {
    /// The connection is gone.
    Io(io::Error),
    /// The server refuses.
    Server {
        /// Its number for that.
        code: u16,
        /// Its words.
        message: String,
    },
    /// The answer is not understood.
    Strange(&'static str),
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> WireError {
        WireError::Io(error)
    }
}

/// A connection.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    unread: Vec<u8>,
    /// Where in `unread` the next packet begins.
    from: usize,
    sequence: u8,
    is_in_step: bool,
    packet_max: usize,
    /// How much of the present answer has come.
    answer_bytes: usize,
    /// The longest text that the server takes.
    pub(crate) text_max: usize,
    pub(crate) is_mariadb: bool,
    /// Whether the server has the statements for this connection that are prepared once.
    pub(crate) has_prepared: bool,
}

impl Wire {
    pub(crate) fn new(stream: Box<dyn Stream>) -> Wire {
        Wire {
            stream,
            unread: Vec::new(),
            from: 0,
            sequence: 0,
            is_in_step: true,
            packet_max: STRANGER_PACKET_MAX,
            answer_bytes: 0,
            text_max: PART_MAX,
            is_mariadb: false,
            has_prepared: false,
        }
    }

    /// Takes the stream out, to put another layer around it. Nothing was read ahead: the server waits for us.
    pub(crate) fn into_stream(self) -> (Box<dyn Stream>, u8) {
        (self.stream, self.sequence)
    }

    /// Goes on where a connection left off whose stream got another layer.
    pub(crate) fn continued(stream: Box<dyn Stream>, sequence: u8) -> Wire {
        Wire { sequence, ..Wire::new(stream) }
    }

    /// The server has let us in: its packets may be as long as answers are.
    pub(crate) fn is_known(&mut self) {
        self.packet_max = PACKET_MAX;
    }

    /// Whether the server has closed it, or sent something unasked: then it is of no use.
    pub(crate) async fn is_dead(&mut self) -> bool {
        let mut byte = [0];
        let read = std::pin::pin!(self.stream.read(&mut byte));
        !self.is_in_step
            || self.from < self.unread.len()
            || futures_util::future::poll_immediate(read).await.is_some()
    }

    /// Takes leave of the server, as far as that needs no waiting: otherwise its log has an aborted connection.
    pub(crate) fn quit(&mut self) {
        if !self.is_in_step {
            // It is at something, and a closed connection is what makes it give that up.
            return;
        }
        self.is_in_step = false;
        self.sequence = 0;
        // Where five bytes do not go out at once, the server does not read them.
        drop(futures_util::FutureExt::now_or_never(self.send(&[QUIT])));
    }

    /// Sends statements in one piece, and returns the answer to each.
    pub(crate) async fn run(&mut self, script: &str) -> Result<Vec<Answer>, WireError> {
        if !self.is_in_step {
            return Err(WireError::Strange("the connection is out of step"));
        }
        // Only a caller that reads to the end of the answer puts it back.
        self.is_in_step = false;
        self.sequence = 0;
        self.answer_bytes = 0;
        let mut text = Vec::with_capacity(script.len() + 1);
        text.push(QUERY);
        text.extend_from_slice(script.as_bytes());
        self.send(&text).await?;
        let mut answers = Vec::new();
        loop {
            let answer = self.answer().await;
            // Behind an error nothing more is executed, and nothing more comes.
            let is_last = match &answer {
                Ok((_, has_more)) => !has_more,
                Err(error) => matches!(error, WireError::Server { .. }),
            };
            self.is_in_step = is_last;
            answers.push(answer?.0);
            if is_last {
                return Ok(answers);
            }
        }
    }

    /// Reads the answer to one statement, and whether another follows.
    async fn answer(&mut self) -> Result<(Answer, bool), WireError> {
        let first = self.packet().await?;
        let mut reader = Reader(&first);
        match first.first() {
            Some(0x00) => {
                reader.skip(1)?;
                let (changed, number) = (reader.length()?.unwrap_or(0), reader.length()?.unwrap_or(0));
                let answer = Answer { rows: Vec::new(), changed, number };
                return Ok((answer, reader.short()? & MORE_RESULTS != 0));
            }
            Some(0xff) => return Err(refusal(&first)),
            Some(0xfb) => return Err(WireError::Strange("the server asks for a file")),
            _ => {}
        }
        let columns = reader.length()?.ok_or(WireError::Strange("an answer without columns"))?;
        // The caller knows the names of the columns. An end comes behind them.
        for _ in 0..=columns {
            let described = self.packet().await?;
            if described.first() == Some(&0xff) {
                return Err(refusal(&described));
            }
        }
        let mut rows = Vec::new();
        loop {
            let packet = self.packet().await?;
            match packet.first() {
                Some(0xff) => return Err(refusal(&packet)),
                Some(0xfe) if packet.len() < 9 => {
                    let mut end = Reader(&packet);
                    end.skip(3)?;
                    let answer = Answer { rows, ..Answer::default() };
                    return Ok((answer, end.short()? & MORE_RESULTS != 0));
                }
                _ => rows.push(row(&packet, columns)?),
            }
        }
    }

    /// Sends one packet, in parts if it is long.
    pub(crate) async fn send(&mut self, payload: &[u8]) -> Result<(), WireError> {
        let mut bytes = Vec::with_capacity(payload.len() + 4);
        let mut rest = payload;
        loop {
            let (part, later) = rest.split_at(rest.len().min(PART_MAX));
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes()[..3]);
            bytes.push(self.sequence);
            bytes.extend_from_slice(part);
            self.sequence = self.sequence.wrapping_add(1);
            rest = later;
            // A part of full length is never the last one.
            if part.len() < PART_MAX {
                break;
            }
        }
        self.stream.write_all(&bytes).await?;
        self.stream.flush().await?;
        Ok(())
    }

    /// Receives one packet, put together if it came in parts.
    pub(crate) async fn packet(&mut self) -> Result<Vec<u8>, WireError> {
        let mut packet = Vec::new();
        loop {
            self.fill(4).await?;
            let head = &self.unread[self.from..self.from + 4];
            let length = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
            if head[3] != self.sequence {
                return Err(WireError::Strange("a packet is not the next one"));
            }
            self.sequence = self.sequence.wrapping_add(1);
            // Before anything of it is kept.
            if packet.len() + length > self.packet_max {
                return Err(WireError::Strange("a packet has more than any that is expected"));
            }
            self.answer_bytes += length + PACKET_COST;
            if self.answer_bytes > ANSWER_MAX {
                return Err(WireError::Strange("an answer has more than any that is expected"));
            }
            self.fill(4 + length).await?;
            packet.extend_from_slice(&self.unread[self.from + 4..self.from + 4 + length]);
            self.from += 4 + length;
            if self.from == self.unread.len() {
                self.unread.clear();
                self.from = 0;
            }
            if length < PART_MAX {
                return Ok(packet);
            }
        }
    }

    /// Reads until this many bytes are there.
    async fn fill(&mut self, needed: usize) -> Result<(), WireError> {
        while self.unread.len() - self.from < needed {
            if self.from > 0 {
                self.unread.drain(..self.from);
                self.from = 0;
            }
            self.unread.reserve(READ_ROOM);
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(())
    }
}

/// Reads what the server says against it.
pub(crate) fn refusal(packet: &[u8]) -> WireError {
    let code = match packet {
        [_, low, high, ..] => u16::from_le_bytes([*low, *high]),
        _ => 0,
    };
    let words = packet.get(3..).unwrap_or_default();
    // A state of five characters stands before the words, but in refusals of the very first moment.
    let words = if words.first() == Some(&b'#') { words.get(6..).unwrap_or_default() } else { words };
    WireError::Server { code, message: String::from_utf8_lossy(words).into_owned() }
}

fn row(packet: &[u8], columns: u64) -> Result<Row, WireError> {
    let mut reader = Reader(packet);
    let mut row = Vec::with_capacity(columns as usize);
    for _ in 0..columns {
        row.push(match reader.length()? {
            None => None,
            Some(length) => {
                let bytes = reader.take(length as usize)?.to_vec();
                Some(String::from_utf8(bytes).map_err(|_| WireError::Strange("a column is no text"))?)
            }
        });
    }
    Ok(row)
}

/// Reads a packet from front to back.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or(WireError::Strange("a packet is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn skip(&mut self, count: usize) -> Result<(), WireError> {
        self.take(count).map(drop)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn short(&mut self) -> Result<u16, WireError> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// A number of one to nine bytes. None stands for NULL.
    pub(crate) fn length(&mut self) -> Result<Option<u64>, WireError> {
        let count = match self.byte()? {
            0xfb => return Ok(None),
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            0xff => return Err(WireError::Strange("a length is none")),
            small => return Ok(Some(u64::from(small))),
        };
        let bytes = self.take(count)?;
        Ok(Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))))
    }

    /// A text that ends with a zero, or with the packet.
    pub(crate) fn text(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        text
    }
}
