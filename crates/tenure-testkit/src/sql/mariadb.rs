//! The protocol of MySQL and MariaDB, version 4.1: statements with values are prepared, those without are texts.

use std::io::{BufReader, Read, Result, Write};
use std::net::TcpStream;

use super::{ANSWER_MAX, SqlAnswer, SqlError, SqlValue, Wire, malformed};

/// What every client of this protocol says that it can do: long passwords, a database at once, the protocol
/// 4.1, transactions, safe passwords, their kinds by name.
const ABILITIES: u32 = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x8_0000;
/// Found rows count as affected, even if they were what they are set to.
const FOUND_ROWS: u32 = 0x2;
/// `utf8mb4`.
const UTF8: u8 = 45;
/// The longest packet that is asked for.
const PACKET_BYTES_MAX: u32 = 1 << 24;

const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;
const CLOSE: u8 = 0x19;

const OK: u8 = 0x00;
const NULL: u8 = 0xfb;
const END: u8 = 0xfe;
const REFUSED: u8 = 0xff;

const TINY: u8 = 0x01;
const LONG: u8 = 0x03;
const LONGLONG: u8 = 0x08;
const VAR_STRING: u8 = 0xfd;

type Answered<T> = std::result::Result<T, SqlError>;

pub(super) struct MariaDb {
    stream: BufReader<TcpStream>,
}

/// A part of a packet that is still to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| malformed("a short packet"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number of so many bytes, the smallest first.
    fn number(&mut self, bytes: usize) -> Result<u64> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// A number whose first byte says how long it is.
    fn length(&mut self) -> Result<u64> {
        match self.number(1)? {
            0xfc => self.number(2),
            0xfd => self.number(3),
            0xfe => self.number(8),
            small => Ok(small),
        }
    }

    fn text(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.length()?).map_err(malformed)?;
        self.take(length)
    }
}

impl MariaDb {
    pub(super) fn connect(port: u16, user: &str, database: &str, counts_found: bool) -> Answered<MariaDb> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut mariadb = MariaDb { stream: BufReader::new(stream) };
        let (greeting, _) = mariadb.receive()?;
        refusal(&greeting)?;
        let abilities = if counts_found { ABILITIES | FOUND_ROWS } else { ABILITIES };
        let mut login = abilities.to_le_bytes().to_vec();
        login.extend(PACKET_BYTES_MAX.to_le_bytes());
        login.push(UTF8);
        login.extend([0; 23]);
        for text in [user, "", database, "mysql_native_password"] {
            login.extend_from_slice(text.as_bytes());
            login.push(0);
        }
        mariadb.send(1, &login)?;
        let (mut welcome, number) = mariadb.receive()?;
        if welcome.first() == Some(&END) {
            // It asks for another kind of password: there is none, of any kind.
            mariadb.send(number.wrapping_add(1), &[])?;
            welcome = mariadb.receive()?.0;
        }
        refusal(&welcome)?;
        Ok(mariadb)
    }

    fn send(&mut self, number: u8, body: &[u8]) -> Result<()> {
        let length = u32::try_from(body.len()).ok().filter(|length| *length < PACKET_BYTES_MAX - 1);
        let [low, middle, high, _] = length.ok_or_else(|| malformed("a long packet"))?.to_le_bytes();
        let mut packet = vec![low, middle, high, number];
        packet.extend_from_slice(body);
        self.stream.get_mut().write_all(&packet)
    }

    /// The next packet and its number.
    fn receive(&mut self) -> Result<(Vec<u8>, u8)> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let [low, middle, high, number] = head;
        let mut body = vec![0; u32::from_le_bytes([low, middle, high, 0]) as usize];
        self.stream.read_exact(&mut body)?;
        Ok((body, number))
    }

    fn command(&mut self, command: u8, body: &[u8]) -> Result<()> {
        self.send(0, &[&[command], body].concat())
    }

    /// Reads descriptions until their end, and returns the types.
    fn types(&mut self, count: u64) -> Answered<Vec<u8>> {
        let mut types = Vec::new();
        for _ in 0..count {
            let (packet, _) = self.receive()?;
            let mut bytes = Bytes(&packet);
            for _ in 0..6 {
                bytes.text()?;
            }
            // The length of what follows, the encoding, the width.
            bytes.take(7)?;
            types.push(u8::try_from(bytes.number(1)?).map_err(malformed)?);
        }
        if count > 0 {
            // The end.
            self.receive()?;
        }
        Ok(types)
    }

    /// Reads the answer to a statement, whose rows are in binary if it was prepared.
    fn answer(&mut self, is_binary: bool) -> Answered<SqlAnswer> {
        let (packet, _) = self.receive()?;
        refusal(&packet)?;
        if packet.first() == Some(&OK) {
            return Ok(SqlAnswer { affected: Bytes(&packet[1..]).length()?, rows: Vec::new() });
        }
        let types = self.types(Bytes(&packet).length()?)?;
        let mut rows = Vec::new();
        loop {
            let (packet, _) = self.receive()?;
            refusal(&packet)?;
            if packet.first() == Some(&END) && packet.len() < 9 {
                return Ok(SqlAnswer { affected: 0, rows });
            }
            rows.push(if is_binary { binary_row(&packet, &types)? } else { text_row(&packet, &types)? });
        }
    }
}

impl Wire for MariaDb {
    fn ask(&mut self, statement: &str, values: &[SqlValue]) -> Answered<SqlAnswer> {
        if values.is_empty() {
            self.command(QUERY, statement.as_bytes())?;
            return self.answer(false);
        }
        self.command(PREPARE, statement.as_bytes())?;
        let (packet, _) = self.receive()?;
        refusal(&packet)?;
        let mut bytes = Bytes(&packet);
        bytes.take(1)?;
        let id = bytes.take(4)?;
        let (columns, parameters) = (bytes.number(2)?, bytes.number(2)?);
        self.types(parameters)?;
        self.types(columns)?;
        assert_eq!(parameters, values.len() as u64, "{statement} has another number of parameters");
        self.command(EXECUTE, &execution(id, values))?;
        let answer = self.answer(true);
        self.command(CLOSE, id)?;
        answer
    }
}

/// The execution of a statement: no cursor, once, no NULL, types, values.
fn execution(id: &[u8], values: &[SqlValue]) -> Vec<u8> {
    let mut body = [id, &[0, 1, 0, 0, 0], &vec![0; values.len().div_ceil(8)], &[1]].concat();
    for value in values {
        body.extend([if matches!(value, SqlValue::Integer(_)) { LONGLONG } else { VAR_STRING }, 0]);
    }
    for value in values {
        match value {
            SqlValue::Integer(number) => body.extend(number.to_le_bytes()),
            SqlValue::Text(text) => {
                let length = u16::try_from(text.len()).expect("values of tests are short");
                body.push(0xfc);
                body.extend(length.to_le_bytes());
                body.extend_from_slice(text.as_bytes());
            }
        }
    }
    body
}

fn text_row(packet: &[u8], types: &[u8]) -> Result<Vec<Option<String>>> {
    let mut bytes = Bytes(packet);
    let value = |_: &u8| {
        if bytes.0.first() == Some(&NULL) {
            return bytes.take(1).map(|_| None);
        }
        Ok(Some(String::from_utf8_lossy(bytes.text()?).into_owned()))
    };
    types.iter().map(value).collect()
}

fn binary_row(packet: &[u8], types: &[u8]) -> Result<Vec<Option<String>>> {
    let mut bytes = Bytes(packet);
    bytes.take(1)?;
    let nulls = bytes.take((types.len() + 2).div_ceil(8))?;
    let mut row = Vec::new();
    for (index, kind) in types.iter().enumerate() {
        let bit = index + 2;
        if nulls[bit / 8] & (1 << (bit % 8)) != 0 {
            row.push(None);
            continue;
        }
        let size = match *kind {
            TINY => Some(1),
            LONG => Some(4),
            LONGLONG => Some(8),
            _ => None,
        };
        row.push(Some(match size {
            Some(size) => signed(bytes.number(size)?, size).to_string(),
            None => String::from_utf8_lossy(bytes.text()?).into_owned(),
        }));
    }
    Ok(row)
}

/// The number that so many bytes mean; tests have no unsigned ones that need the highest bit.
fn signed(number: u64, bytes: usize) -> i64 {
    let unused = 64 - 8 * bytes;
    (number << unused).cast_signed() >> unused
}

/// The error that a packet is, if it is one.
fn refusal(packet: &[u8]) -> Answered<()> {
    if packet.first() != Some(&REFUSED) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(packet.get(3..).unwrap_or_default()).into_owned();
    // With a state behind `#`, but for those before the login.
    let (code, message) = match text.strip_prefix('#').and_then(|text| text.split_at_checked(5)) {
        Some((code, message)) => (code.to_owned(), message.to_owned()),
        None => ("08004".to_owned(), text),
    };
    Err(SqlError { code, message })
}
