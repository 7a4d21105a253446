//! Rows back to values.

use std::time::Duration;

use tenure_core::engine::queue::{Dispatched, ItemContext, ItemId};
use tenure_core::model::claim::{ClaimId, Name};
use tenure_core::model::token::Token;
use tenure_sql::Fault;
use tokio_postgres::{Error, Row};

/// A column is not what was asked for.
pub(crate) fn strange(error: Error) -> Fault {
    Fault::internal(format!("the server's answer is not understood: {error}"))
}

pub(crate) fn number(row: &Row, at: usize) -> Result<i64, Fault> {
    row.try_get(at).map_err(strange)
}

pub(crate) fn maybe_period(row: &Row, at: usize) -> Result<Option<Duration>, Fault> {
    let micros: Option<i64> = row.try_get(at).map_err(strange)?;
    Ok(micros.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())))
}

pub(crate) fn claim(row: &Row, at: usize) -> Result<Option<ClaimId>, Fault> {
    let Some(bytes) = row.try_get::<_, Option<&[u8]>>(at).map_err(strange)? else { return Ok(None) };
    let bits = bytes.try_into().map_err(|_| Fault::internal("a claim has not 16 bytes"))?;
    Ok(Some(ClaimId::new(u128::from_be_bytes(bits))))
}

pub(crate) fn name(row: &Row, at: usize) -> Result<Name, Fault> {
    maybe_name(row, at)?.ok_or_else(|| Fault::internal("a name is missing"))
}

fn maybe_name(row: &Row, at: usize) -> Result<Option<Name>, Fault> {
    let Some(bytes) = row.try_get::<_, Option<&[u8]>>(at).map_err(strange)? else { return Ok(None) };
    let text = std::str::from_utf8(bytes).ok();
    let name = text.and_then(|text| Name::new(text).ok());
    name.map(Some).ok_or_else(|| Fault::internal("a stored name is none"))
}

/// Reads a context, of tables that have the column.
fn context(row: &Row, at: usize) -> Result<Option<ItemContext>, Fault> {
    if row.len() <= at {
        return Ok(None);
    }
    Ok(row.try_get::<_, Option<&[u8]>>(at).map_err(strange)?.and_then(ItemContext::from_stored))
}

/// Reads a row of a take: `id, claim, grp, payload, attempts, token`, one more, `age`, and the context, if it is kept.
pub(crate) fn dispatched(
    row: &Row,
    item: ItemId,
    claim: ClaimId,
    ends_in: Duration,
) -> Result<Dispatched, Fault> {
    let attempt = u32::try_from(number(row, 4)?).unwrap_or(u32::MAX);
    Ok(Dispatched {
        claim,
        item,
        group: maybe_name(row, 2)?,
        payload: row.try_get::<_, &[u8]>(3).map_err(strange)?.into(),
        context: context(row, 8)?,
        attempt,
        token: Token::new(number(row, 5)?.unsigned_abs()),
        ends_in,
        age: maybe_period(row, 7)?.unwrap_or_default(),
    })
}
