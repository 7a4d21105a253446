//! Fences in a SQL database: a table, and statements for the transaction of your own write.
//!
//! Begin a transaction, run [`Statements::write`] with key, token and claim, and look at the number of affected
//! rows: one means accepted, go on and write; none means refused, roll back and ask [`Statements::max`] for the
//! largest token that was seen. The row stays locked until the end of the transaction, so that check and write
//! are one step, and a rollback takes back both.
//!
//! Tokens are bigints here, up to 2^63 - 1: a larger one, which only a very wrong clock makes, is refused by
//! the client or by the table. Claims are text of 32 hexadecimal digits.
//!
//! Make the table once, before it is used: PostgreSQL may refuse to make one table twice at the same time, with
//! `IF NOT EXISTS` as well.
//!
//! SQLite: begin with `BEGIN IMMEDIATE`, so that the transaction need not be upgraded. PostgreSQL: any
//! isolation; above read committed a conflict is an error of serialization: repeat the transaction.
//! MySQL and MariaDB: run [`Statements::row`] first, in the same transaction.
//!
//! All are tested with the pure rule beside them: [`SQLITE`] with SQLite 3, [`POSTGRESQL`] with PostgreSQL 15, also
//! behind PgBouncer in transaction mode, [`MYSQL`] with MariaDB 10.11, not with MySQL. On the servers two
//! transactions of one key were run against each other at each isolation level from read committed on.

/// The statements for one kind of database.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Statements {
    /// Makes the table `tenure_fence`, unless it is there.
    pub table: &'static str,
    /// Makes the row of a key (its one parameter) and locks it, where the other statements cannot.
    pub row: Option<&'static str>,
    /// Accepts a write: affects one row; none if a write or a read of a later grant was accepted.
    pub write: &'static str,
    /// Accepts a read: affects one row; none if a write of a later grant was accepted.
    pub read: &'static str,
    /// Returns the largest token that was accepted for a key (its one parameter).
    pub max: &'static str,
}

/// For SQLite 3.24 or newer. Parameters: `?1` key, `?2` token, `?3` claim.
pub const SQLITE: Statements = Statements {
    table: "\
CREATE TABLE IF NOT EXISTS tenure_fence (
  resource    TEXT PRIMARY KEY,
  write_token INTEGER NOT NULL DEFAULT 0,
  write_claim TEXT NOT NULL DEFAULT '',
  read_token  INTEGER NOT NULL DEFAULT 0,
  read_claim  TEXT NOT NULL DEFAULT '',
  CHECK (write_token > 0 OR read_token > 0)
) WITHOUT ROWID",
    row: None,
    write: "\
INSERT INTO tenure_fence AS f (resource, write_token, write_claim) VALUES (?1, ?2, ?3)
ON CONFLICT (resource) DO UPDATE
   SET write_token = excluded.write_token, write_claim = excluded.write_claim
 WHERE (f.write_token < ?2 OR (f.write_token = ?2 AND f.write_claim = ?3))
   AND (f.read_token < ?2 OR (f.read_token = ?2 AND f.read_claim = ?3))",
    read: "\
INSERT INTO tenure_fence AS f (resource, read_token, read_claim) VALUES (?1, ?2, ?3)
ON CONFLICT (resource) DO UPDATE
   SET read_claim = CASE WHEN f.read_token < ?2 THEN ?3 ELSE f.read_claim END,
       read_token = CASE WHEN f.read_token < ?2 THEN ?2 ELSE f.read_token END
 WHERE f.write_token < ?2 OR (f.write_token = ?2 AND f.write_claim = ?3)",
    max: "SELECT max(write_token, read_token) FROM tenure_fence WHERE resource = ?1",
};

/// For PostgreSQL. Parameters: `$1` key (text), `$2` token (bigint), `$3` claim (text).
pub const POSTGRESQL: Statements = Statements {
    table: "\
CREATE TABLE IF NOT EXISTS tenure_fence (
  resource    text PRIMARY KEY,
  write_token bigint NOT NULL DEFAULT 0,
  write_claim text NOT NULL DEFAULT '',
  read_token  bigint NOT NULL DEFAULT 0,
  read_claim  text NOT NULL DEFAULT '',
  CHECK (write_token > 0 OR read_token > 0)
)",
    row: None,
    write: "\
INSERT INTO tenure_fence AS f (resource, write_token, write_claim) VALUES ($1, $2, $3)
ON CONFLICT (resource) DO UPDATE
   SET write_token = excluded.write_token, write_claim = excluded.write_claim
 WHERE (f.write_token < excluded.write_token
        OR (f.write_token = excluded.write_token AND f.write_claim = excluded.write_claim))
   AND (f.read_token < excluded.write_token
        OR (f.read_token = excluded.write_token AND f.read_claim = excluded.write_claim))",
    read: "\
INSERT INTO tenure_fence AS f (resource, read_token, read_claim) VALUES ($1, $2, $3)
ON CONFLICT (resource) DO UPDATE
   SET read_claim = CASE WHEN f.read_token < excluded.read_token THEN excluded.read_claim ELSE f.read_claim END,
       read_token = greatest(f.read_token, excluded.read_token)
 WHERE f.write_token < excluded.read_token
    OR (f.write_token = excluded.read_token AND f.write_claim = excluded.read_claim)",
    max: "SELECT greatest(write_token, read_token) FROM tenure_fence WHERE resource = $1",
};

/// For MySQL and MariaDB, with InnoDB. `?` has no numbers, so values are given more than once:
///
/// * `row` and `max`: key;
/// * `write`: token, claim, key, token, token, claim, token, token, claim;
/// * `read`: token, claim, token, key, token, token, claim.
///
/// These databases count a row that is set to what it was as affected or not, as the client wishes; the column
/// `accepted` always changes, so that the number is right with every client. Run [`Statements::row`] first: it
/// makes the row and locks it. (An upsert counts in another way again.)
pub const MYSQL: Statements = Statements {
    table: "\
CREATE TABLE IF NOT EXISTS tenure_fence (
  resource    VARBINARY(300) NOT NULL PRIMARY KEY,
  write_token BIGINT NOT NULL DEFAULT 0,
  write_claim VARBINARY(32) NOT NULL DEFAULT '',
  read_token  BIGINT NOT NULL DEFAULT 0,
  read_claim  VARBINARY(32) NOT NULL DEFAULT '',
  accepted    BIGINT UNSIGNED NOT NULL DEFAULT 0
) ENGINE = InnoDB",
    row: Some("INSERT INTO tenure_fence (resource) VALUES (?) ON DUPLICATE KEY UPDATE resource = resource"),
    write: "\
UPDATE tenure_fence
   SET write_token = ?, write_claim = ?, accepted = accepted + 1
 WHERE resource = ?
   AND (write_token < ? OR (write_token = ? AND write_claim = ?))
   AND (read_token < ? OR (read_token = ? AND read_claim = ?))",
    // Assignments are carried out from left to right: the claim is decided before the token changes.
    read: "\
UPDATE tenure_fence
   SET read_claim = IF(read_token < ?, ?, read_claim), read_token = GREATEST(read_token, ?),
       accepted = accepted + 1
 WHERE resource = ?
   AND (write_token < ? OR (write_token = ? AND write_claim = ?))",
    max: "SELECT GREATEST(write_token, read_token) FROM tenure_fence WHERE resource = ?",
};
