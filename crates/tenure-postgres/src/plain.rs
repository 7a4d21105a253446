//! The short path by statements whose plans the server keeps: most of the time of a claim that is alone goes into planning a text that is
//! always the same.

use tenure_core::model::claim::{Claim, ClaimId, Name};
use tenure_sql::{Database, Fault, Plain, Purpose, Row, Tables, claim_bytes, client_number, micros, signed};
use tokio_postgres::types::Type;

use crate::dialect::{claim_plain, release_plain};
use crate::engine::Postgres;
use crate::queues::Value;
use crate::queues::read::strange;

/// How many rows such a statement is for at most. Their plan joins each row with each, and a batch shares the time of planning a text.
const KEPT_MAX: usize = 64;

/// The statements. Those for one have it as their parameters, those for several have arrays: that costs the server a seventh more.
///
/// Rows come in the order of their names. Where the hold is a part of its resource's row, they are joined with nothing but that row, by
/// its key, and sessions of one's own know no other plan for that: so they are carried out in that order, and need not be sorted, nor
/// locked beforehand.
pub(crate) struct PlainTexts {
    claim_one: String,
    claim: String,
    release_one: String,
    release: String,
}

impl PlainTexts {
    pub(crate) fn new(tables: &Tables) -> PlainTexts {
        let one = |values: &str| format!("SELECT {values}");
        let several = |arrays: &str| format!("SELECT * FROM unnest({arrays})");
        let is_in_order = tables.keeps_holds;
        let (of_claim, of_release) = ("$1, $2, $3, $4, $5, $6", "$1, $2");
        PlainTexts {
            claim_one: claim_plain(tables, &one(of_claim), true),
            claim: claim_plain(tables, &several(of_claim), is_in_order),
            release_one: release_plain(tables, &one(of_release), true),
            release: release_plain(tables, &several(of_release), is_in_order),
        }
    }
}

/// Carries a statement of the short path out where its plan is kept: on connections that no pooler shares.
pub(crate) async fn run(postgres: &Postgres, work: Plain<'_>) -> Option<Result<Vec<Row>, Fault>> {
    if !postgres.owns_sessions() || !(1..=KEPT_MAX).contains(&work.count()) {
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
        let values: [Value<'_>; 6] = [
            (name, Type::BYTEA),
            (&floors[0], Type::INT8),
            (id, Type::BYTEA),
            (&clients[0], Type::INT8),
            (&ttls[0], Type::INT8),
            (label, Type::BYTEA),
        ];
        return transact::<i64>(postgres, &postgres.plain_texts().claim_one, &values).await;
    }
    let values: [Value<'_>; 6] = [
        (&names, Type::BYTEA_ARRAY),
        (&floors, Type::INT8_ARRAY),
        (&ids, Type::BYTEA_ARRAY),
        (&clients, Type::INT8_ARRAY),
        (&ttls, Type::INT8_ARRAY),
        (&labels, Type::BYTEA_ARRAY),
    ];
    transact::<i64>(postgres, &postgres.plain_texts().claim, &values).await
}

async fn release(postgres: &Postgres, releases: &[(&Name, ClaimId)]) -> Result<Vec<Row>, Fault> {
    let names: Vec<&[u8]> = releases.iter().map(|(name, _)| name.as_str().as_bytes()).collect();
    let ids: Vec<[u8; 16]> = releases.iter().map(|(_, claim)| claim_bytes(*claim)).collect();
    let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
    if let ([name], [id]) = (&names[..], &ids[..]) {
        let values: [Value<'_>; 2] = [(name, Type::BYTEA), (id, Type::BYTEA)];
        return transact::<i32>(postgres, &postgres.plain_texts().release_one, &values).await;
    }
    let values: [Value<'_>; 2] = [(&names, Type::BYTEA_ARRAY), (&ids, Type::BYTEA_ARRAY)];
    transact::<i32>(postgres, &postgres.plain_texts().release, &values).await
}

/// Returns the rows as texts: a claim in hexadecimal digits, and a number.
async fn transact<N: ToString + for<'a> tokio_postgres::types::FromSql<'a>>(
    postgres: &Postgres,
    text: &str,
    values: &[Value<'_>],
) -> Result<Vec<Row>, Fault> {
    let mut connection = postgres.lend(Purpose::Any).await?;
    let done = connection.run_hastily((text, values)).await?;
    tenure_sql::Connection::keep(connection);
    let read = |row: &tokio_postgres::Row| -> Result<Row, Fault> {
        let claim: Option<String> = row.try_get(0).map_err(strange)?;
        Ok(vec![claim, Some(row.try_get::<_, N>(1).map_err(strange)?.to_string())])
    };
    done.iter().flatten().map(read).collect()
}
