//! The short path by statements whose plans the server keeps: most of the time of a claim that is alone goes into planning a text that is
//! always the same.

use tenure_core::model::claim::{Claim, ClaimId, Name};
use tenure_sql::{Database, Fault, Plain, Purpose, Row, Tables, claim_bytes, client_number, micros, signed};
use tokio_postgres::types::Type;

use crate::dialect::{claim_plain, release_plain};
use crate::engine::Postgres;
use crate::queues::read::strange;
use crate::statement::{Bound, Plans, Statement, Wait};

/// How many rows such a statement is for at most. Their plan joins each row with each, and a batch shares the time of planning a text.
const KEPT_MAX: usize = 64;

/// The columns of what they return.
const CLAIMED: [Type; 2] = [Type::TEXT, Type::INT8];
const RELEASED: [Type; 2] = [Type::TEXT, Type::INT4];

/// The statements. Those for one have it as their parameters, those for several have arrays: that costs the server a seventh more.
///
/// Rows come in the order of their names. Where the hold is a part of its resource's row, they are joined with nothing but that row, by
/// its key, and sessions of one's own know no other plan for that: so they are carried out in that order, and need not be sorted, nor
/// locked beforehand.
pub(crate) struct PlainTexts {
    claim_one: Statement,
    claim: Statement,
    release_one: Statement,
    release: Statement,
}

impl PlainTexts {
    pub(crate) fn new(place: &str, tables: &Tables) -> PlainTexts {
        let one = |values: &str| format!("SELECT {values}");
        let several = |arrays: &str| format!("SELECT * FROM unnest({arrays})");
        let is_in_order = tables.keeps_holds;
        let (of_claim, of_release) = ("$1, $2, $3, $4, $5, $6", "$1, $2");
        let statement = |name, text, takes: &[Type], gives: &[Type]| {
            let statement = Statement::new(text, takes);
            // Their names are the same for tables of any version.
            if tables.keeps_holds {
                statement.function(place, name, gives, Wait::Little, true)
            } else {
                statement
            }
        };
        PlainTexts {
            claim_one: statement(
                "claim_one",
                claim_plain(tables, &one(of_claim), true),
                &[Type::BYTEA, Type::INT8, Type::BYTEA, Type::INT8, Type::INT8, Type::BYTEA],
                &CLAIMED,
            ),
            claim: statement(
                "claim",
                claim_plain(tables, &several(of_claim), is_in_order),
                &[
                    Type::BYTEA_ARRAY,
                    Type::INT8_ARRAY,
                    Type::BYTEA_ARRAY,
                    Type::INT8_ARRAY,
                    Type::INT8_ARRAY,
                    Type::BYTEA_ARRAY,
                ],
                &CLAIMED,
            ),
            release_one: statement(
                "release_one",
                release_plain(tables, &one(of_release), true),
                &[Type::BYTEA, Type::BYTEA],
                &RELEASED,
            ),
            release: statement(
                "release",
                release_plain(tables, &several(of_release), is_in_order),
                &[Type::BYTEA_ARRAY, Type::BYTEA_ARRAY],
                &RELEASED,
            ),
        }
    }

    pub(crate) fn all(&self) -> [&Statement; 4] {
        [&self.claim_one, &self.claim, &self.release_one, &self.release]
    }
}

/// Carries a statement of the short path out where its plan is kept.
pub(crate) async fn run(postgres: &Postgres, work: Plain<'_>) -> Option<Result<Vec<Row>, Fault>> {
    if postgres.plans() == Plans::Nowhere || !(1..=KEPT_MAX).contains(&work.count()) {
        return None;
    }
    Some(match work {
        Plain::Claims(claims) => claim(postgres, claims).await,
        Plain::Releases(releases) => release(postgres, releases).await,
    })
}

async fn claim(postgres: &Postgres, claims: &[&Claim]) -> Result<Vec<Row>, Fault> {
    let names: Vec<&[u8]> = claims.iter().map(|claim| claim.resource.as_str().as_bytes()).collect();
    let floors: Vec<i64> = claims.iter().map(|claim| signed(claim.floor.get())).collect();
    let ids: Vec<[u8; 16]> = claims.iter().map(|claim| claim_bytes(claim.id)).collect();
    let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
    let clients: Vec<i64> = claims.iter().map(|claim| client_number(claim.client)).collect();
    let ttls: Vec<i64> = claims.iter().map(|claim| micros(claim.terms.ttl)).collect();
    let labels: Vec<&[u8]> = claims.iter().map(|claim| claim.terms.label.as_str().as_bytes()).collect();
    if let ([name], [id], [label]) = (&names[..], &ids[..], &labels[..]) {
        let one = &postgres.plain_texts().claim_one;
        return transact::<i64>(postgres, (one, &[name, &floors[0], id, &clients[0], &ttls[0], label])).await;
    }
    let claim = &postgres.plain_texts().claim;
    transact::<i64>(postgres, (claim, &[&names, &floors, &ids, &clients, &ttls, &labels])).await
}

async fn release(postgres: &Postgres, releases: &[(&Name, ClaimId)]) -> Result<Vec<Row>, Fault> {
    let names: Vec<&[u8]> = releases.iter().map(|(name, _)| name.as_str().as_bytes()).collect();
    let ids: Vec<[u8; 16]> = releases.iter().map(|(_, claim)| claim_bytes(*claim)).collect();
    let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
    if let ([name], [id]) = (&names[..], &ids[..]) {
        return transact::<i32>(postgres, (&postgres.plain_texts().release_one, &[name, id])).await;
    }
    transact::<i32>(postgres, (&postgres.plain_texts().release, &[&names, &ids])).await
}

/// Returns the rows as texts: a claim in hexadecimal digits, and a number.
async fn transact<N: ToString + for<'a> tokio_postgres::types::FromSql<'a>>(
    postgres: &Postgres,
    statement: Bound<'_>,
) -> Result<Vec<Row>, Fault> {
    let mut connection = postgres.lend(Purpose::Any).await?;
    let done = connection.run_hastily(postgres.owns_sessions(), statement).await?;
    tenure_sql::Connection::keep(connection);
    let read = |row: &tokio_postgres::Row| -> Result<Row, Fault> {
        let claim: Option<String> = row.try_get(0).map_err(strange)?;
        Ok(vec![claim, Some(row.try_get::<_, N>(1).map_err(strange)?.to_string())])
    };
    done.iter().flatten().map(read).collect()
}
