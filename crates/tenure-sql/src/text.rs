//! Texts: values as literals, and rows back to values.
//!
//! Everything is a number or bytes in hexadecimal, so no quoting can go wrong and no setting of the server matters.

use std::fmt::Write as _;
use std::time::Duration;

use tenure_core::clock::Timestamp;
use tenure_core::model::claim::{ClaimId, ClientId, Label};
use tenure_core::model::token::Token;

use crate::database::Row;
use crate::fault::Fault;
use crate::schema::Tables;

/// Where two databases need different words.
pub trait Dialect: Send + Sync + 'static {
    /// Appends bytes as a literal.
    fn push_bytes(to: &mut String, bytes: &[u8]);
    /// Bytes of a column as hexadecimal digits.
    fn hex(column: &str) -> String;
    /// The server's clock at this very moment, in microseconds since 1970.
    const CLOCK: &'static str;
    /// A number that is another one in another life of the server.
    const LIFE: &'static str;
    /// Begins a transaction that only reads, and sees one moment.
    const BEGIN_LOOK: &'static [&'static str];
    /// Begins a transaction that sees what others have committed, and cannot wait or idle for long.
    const BEGIN: &'static [&'static str];
    /// What stands behind `INSERT INTO` … to leave rows that exist as they are, and lock them if that is what it takes.
    fn unless_exists(keys: &str) -> String;
    /// What stands behind `INSERT INTO …` to write over rows that exist.
    fn or_replace(keys: &str, columns: &[&str]) -> String;
    /// The statement that grants mutexes which are free, with nothing special about them or the claims. Rows are
    /// `name, floor, claim, client, ttl, label`, in order of names; the answer is `claim, token` for each granted.
    /// `None` if the database has no such statement.
    fn claim_plain(tables: &Tables, rows: &str) -> Option<String> {
        let _ = (tables, rows);
        None
    }
    /// The statement that puts claims in line for mutexes that are held, where nothing else is to be done. Rows are
    /// as for [`claim_plain`](Dialect::claim_plain); the answer is `claim, position, last_token, look_in, life of the
    /// server` for each that waits now. In a crowd the row of its resource is locked while the server executes this,
    /// and not for trips of each client. `None` if the database has no such statement.
    fn wait_plain(tables: &Tables, rows: &str) -> Option<String> {
        let _ = (tables, rows);
        None
    }
    /// The statement that keeps the places of waiters, where no hold has ended that must be processed first. It locks
    /// no resource: a crowd that waits must not keep the releasing client out. The claims come as for
    /// [`renew`](Dialect::renew); the answer is `claim, position, look_in, life of the server` for each whose place
    /// is kept. `None` if the database has no such statement.
    fn keep_waiting(tables: &Tables, claims: &str) -> Option<String> {
        let _ = (tables, claims);
        None
    }
    /// The statement that releases holds which are all that their records consist of. Rows are `name, claim`; the
    /// answer is `claim, 1` for each released, and `claim, 0` for one whose hold was over by then.
    fn release_plain(tables: &Tables, rows: &str) -> Option<String> {
        let _ = (tables, rows);
        None
    }
    /// The statement that moves the ends of these claims' holds, and answers `claim, token, slot, ends_in` for each
    /// that it moved. The claims come as literals with commas between, in order. It should leave out rows that
    /// another transaction has locked, if it can: one of them must not keep the others from being renewed. The new
    /// end is counted from when the statement came in, if the database can say that: its sender may have died while
    /// it waited.
    fn renew(table: &str, claims: &str) -> String;
    /// The same for holds that are a part of their resources' rows, where [`Tables::keeps_holds`]. Rows are `name, claim`, in order of
    /// names; the slot in the answer is NULL.
    fn renew_kept(tables: &Tables, rows: &str) -> Option<String> {
        let _ = (tables, rows);
        None
    }
    /// The statement that locks the holds of these claims but for those that another transaction has locked, and
    /// answers their claims, where [`renew`](Dialect::renew) cannot leave those out by itself.
    fn lock_for_renewal(_table: &str, _claims: &str) -> Option<String> {
        None
    }
    /// The same for holds that are a part of their resources' rows; rows are as for [`renew_kept`](Dialect::renew_kept).
    fn lock_kept_for_renewal(_tables: &Tables, _rows: &str) -> Option<String> {
        None
    }
    /// What stands behind a table whose rows are found by its primary key, where the database needs the hint.
    const BY_KEY: &'static str = "";
    /// The same behind the table of claims, whose rows are found by name, by claim or by end.
    const BY_CLAIM: &'static str = "";
    /// The statement that reads and locks all entries of those of these resources that have not more than `most`.
    /// Where locks are taken in order, it is that of the claims.
    fn entries(tables: &Tables, columns: &str, names: &str, most: i64) -> String {
        let Tables { resource, claim, .. } = tables;
        format!(
            "SELECT {columns} FROM {claim} WHERE name IN (SELECT name FROM {resource} WHERE name IN ({names}) AND \
             entries > 0 AND entries <= {most}) AND place >= 0 ORDER BY claim FOR UPDATE"
        )
    }
    /// The statement that removes rows by the primary key of their table, or the beginning of it. The keys come as
    /// literals: `(1,2),(3,4)`. `also` is empty, or a condition that begins with AND.
    fn delete(table: &str, keys: &str, rows: &str, also: &str) -> String {
        format!("DELETE FROM {table} WHERE ({keys}) IN ({rows}) {also}")
    }
    /// The statement that changes rows which are named as for [`delete`](Dialect::delete).
    fn update(table: &str, keys: &str, rows: &str, also: &str, set: &str) -> String {
        format!("UPDATE {table} SET {set} WHERE ({keys}) IN ({rows}) {also}")
    }
}

/// Appends values to a text, with commas between.
pub(crate) struct Values<'a> {
    to: &'a mut String,
    is_first: bool,
}

impl<'a> Values<'a> {
    pub(crate) fn new(to: &'a mut String) -> Values<'a> {
        Values { to, is_first: true }
    }

    fn comma(&mut self) -> &mut String {
        if !std::mem::take(&mut self.is_first) {
            self.to.push(',');
        }
        self.to
    }

    pub(crate) fn bytes<D: Dialect>(&mut self, bytes: &[u8]) -> &mut Self {
        D::push_bytes(self.comma(), bytes);
        self
    }

    pub(crate) fn number(&mut self, number: i64) -> &mut Self {
        // A vector takes any number of bytes.
        let _ = write!(self.comma(), "{number}");
        self
    }

    pub(crate) fn maybe(&mut self, number: Option<i64>) -> &mut Self {
        match number {
            Some(number) => self.number(number),
            None => {
                self.comma().push_str("NULL");
                self
            }
        }
    }
}

/// Numbers of the model as the 63 bits that a column has. What is larger is as good as for ever.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A period in microseconds. What is longer is as good as for ever.
pub fn micros(period: Duration) -> i64 {
    i64::try_from(period.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn moment(at: Timestamp) -> i64 {
    signed(at.micros())
}

/// A claim as its column has it.
pub fn claim_bytes(claim: ClaimId) -> [u8; 16] {
    claim.bits().to_be_bytes()
}

/// A client's 64 bits, of which the first may stand for a sign.
pub fn client_number(client: ClientId) -> i64 {
    i64::from_ne_bytes(client.bits().to_ne_bytes())
}

/// Reads the columns of a row, one after the other.
#[derive(Debug)]
pub struct Columns<'a>(std::slice::Iter<'a, Option<String>>);

impl<'a> Columns<'a> {
    /// Begins with the first column.
    pub fn of(row: &'a Row) -> Columns<'a> {
        Columns(row.iter())
    }

    fn text(&mut self) -> Result<Option<&'a str>, Fault> {
        let column =
            self.0.next().ok_or_else(|| Fault::internal("a row is shorter than it was asked for"))?;
        Ok(column.as_deref())
    }

    /// A number, or NULL.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn maybe(&mut self) -> Result<Option<i64>, Fault> {
        let Some(text) = self.text()? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Fault::internal(format!("{text:?} is not a number")))
    }

    /// A number.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn number(&mut self) -> Result<i64, Fault> {
        self.maybe()?.ok_or_else(|| Fault::internal("a number is missing"))
    }

    /// A number that is not negative.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn unsigned(&mut self) -> Result<u64, Fault> {
        let number = self.number()?;
        u64::try_from(number).map_err(|_| Fault::internal(format!("{number} is negative")))
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn small(&mut self) -> Result<u32, Fault> {
        let number = self.number()?;
        u32::try_from(number).map_err(|_| Fault::internal(format!("{number} is out of range")))
    }

    /// Microseconds.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn period(&mut self) -> Result<Duration, Fault> {
        self.unsigned().map(Duration::from_micros)
    }

    /// Microseconds since 1970.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn moment(&mut self) -> Result<Timestamp, Fault> {
        self.unsigned().map(Timestamp::from_micros)
    }

    /// A token.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn token(&mut self) -> Result<Token, Fault> {
        self.unsigned().map(Token::new)
    }

    /// A client.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn client(&mut self) -> Result<ClientId, Fault> {
        let number = self.number()?;
        Ok(ClientId::new(u64::from_ne_bytes(number.to_ne_bytes())))
    }

    /// Leaves out so many columns.
    pub(crate) fn skip(&mut self, count: usize) {
        self.0.by_ref().take(count).for_each(drop);
    }

    /// A label.
    pub(crate) fn label(&mut self) -> Result<Label, Fault> {
        Ok(Label::from_stored(&String::from_utf8_lossy(&self.bytes()?)))
    }

    /// Bytes as hexadecimal digits, or NULL.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn maybe_bytes(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        let Some(text) = self.text()? else { return Ok(None) };
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        let bytes = text.as_bytes().chunks(2).map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        });
        let bytes: Option<Vec<u8>> = bytes.collect();
        bytes.map(Some).ok_or_else(|| Fault::internal("a column holds no hexadecimal digits"))
    }

    /// Bytes as hexadecimal digits.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Fault> {
        self.maybe_bytes()?.ok_or_else(|| Fault::internal("bytes are missing"))
    }

    /// A claim as hexadecimal digits, or NULL.
    ///
    /// # Errors
    /// If the column is something else.
    pub fn maybe_claim(&mut self) -> Result<Option<ClaimId>, Fault> {
        let Some(bytes) = self.maybe_bytes()? else { return Ok(None) };
        let bits = bytes.try_into().map_err(|_| Fault::internal("a claim has not 16 bytes"))?;
        Ok(Some(ClaimId::new(u128::from_be_bytes(bits))))
    }
}

/// Appends bytes as hexadecimal digits.
pub fn push_hex(to: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    to.reserve(2 * bytes.len());
    for byte in bytes {
        to.push(char::from(DIGITS[usize::from(byte >> 4)]));
        to.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}
