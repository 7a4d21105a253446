//! What the doctors of all databases ask, and what follows from the answers.

mod trial;

use std::fmt::Display;
use std::time::Duration;

use tenure_core::clock::{Clock, SystemClock, Timestamp};
use tenure_core::engine::finding::{Finding, Severity, clock_difference, middle_and_worst};

use crate::database::{Connection, Database, Row};
use crate::fault::Fault;
use crate::text::Dialect;

pub use trial::try_out;

/// How many answers the latency is taken of.
const PINGS: usize = 5;
/// A larger difference between the server's time and this machine's is worth a warning.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
/// A server that takes longer to answer is worth a warning: a claim takes two round trips, and the shortest holds are
/// renewed after a third of a second's third.
const LATENCY_WARNING: Duration = Duration::from_millis(50);
/// Fewer connections than this left are worth a warning: two clients need them.
const CONNECTIONS_LEFT_WARNING: u64 = 10;

/// What there is to gain where the tables are older than this program.
pub const UPGRADE: &str = "version 2 takes half of the server's time for a lock, or less: when no client is older than this program, run \
    `tenure doctor --migrate`, at any time";

/// What the server refuses to say, or cannot.
pub fn unseen<D: Database>(severity: Severity, what: &'static str, fault: &Fault) -> Finding {
    Finding::unseen(severity, what, &fault.to_error("look"))
}

/// Returns the first row of the answer to a question.
///
/// # Errors
/// The question's, and for an answer without rows.
pub async fn ask<D: Database>(database: &D, question: String) -> Result<Row, Fault> {
    let mut connection = database.connection().await?;
    let answers = connection.run(question).await?;
    connection.keep();
    let row = answers.into_iter().flatten().next();
    row.ok_or_else(|| Fault::internal("a question was not answered"))
}

/// Compares the server's clock with this machine's.
pub async fn clock<D: Database>(database: &D) -> Finding {
    let sent_at = SystemClock.now();
    let answer = ask(database, format!("SELECT {}", D::Dialect::CLOCK)).await;
    let (took, here) = (SystemClock.now().since(sent_at), SystemClock.time_of_day());
    let row = match answer {
        Ok(row) => row,
        Err(fault) => return unseen::<D>(Severity::Warning, "clock", &fault),
    };
    match row.first().and_then(|text| text.as_deref()?.parse().ok()) {
        // The server read its clock half-way, as far as can be known.
        Some(micros) => judge_clock(Timestamp::from_micros(micros) + took / 2, here),
        None => Finding::warning("clock", "the server does not tell the time"),
    }
}

fn judge_clock(server: Timestamp, here: Timestamp) -> Finding {
    let (difference, which) = clock_difference(server, here);
    let found = format!("the server's is {} ms {which} this machine's", difference.as_millis());
    if difference > CLOCK_WARNING {
        return Finding::warning("clock", found).hint(
            "set both by NTP: leases are right without, but tokens and times in `status` are the server's",
        );
    }
    Finding::good("clock", found)
}

/// Measures how long the server takes to answer.
pub async fn latency<D: Database>(database: &D) -> Finding {
    match pings(database).await {
        Ok(took) => judge_latency(took),
        Err(fault) => unseen::<D>(Severity::Warning, "latency", &fault),
    }
}

async fn pings<D: Database>(database: &D) -> Result<Vec<Duration>, Fault> {
    let mut connection = database.connection().await?;
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let sent_at = SystemClock.now();
        connection.run("SELECT 1".to_owned()).await?;
        took.push(SystemClock.now().since(sent_at));
    }
    connection.keep();
    Ok(took)
}

fn judge_latency(took: Vec<Duration>) -> Finding {
    let (middle, worst) = middle_and_worst(took);
    let [middle_ms, worst_ms] = [middle, worst].map(|took| took.as_secs_f64() * 1000.0);
    let found = format!("{middle_ms:.1} ms, at worst {worst_ms:.1} ms");
    if middle > LATENCY_WARNING {
        return Finding::warning("latency", found)
            .hint("a claim takes two round trips: use long ttls, or a server that is nearer");
    }
    Finding::good("latency", found)
}

/// Judges how many connections the server has left; `hint` says how there are more.
pub fn connections(used: u64, most: u64, hint: &str) -> Finding {
    let found = format!("{used} of {most} in use");
    if most.saturating_sub(used) < CONNECTIONS_LEFT_WARNING {
        return Finding::warning("connections", found).hint(hint);
    }
    Finding::good("connections", found)
}

/// Says that the tables are of another version than this program's.
pub fn other_version(prefix: &str, version: impl Display, known: impl Display) -> Finding {
    Finding::bad("tables", format!("{prefix}… are of version {version}; this program knows {known}"))
        .hint("use the same version of tenure everywhere")
}

/// Says that the tables are not there.
pub fn no_tables(prefix: &str, why: &str) -> Finding {
    Finding::bad("tables", format!("{prefix}… {why}")).hint("make them: `tenure doctor --migrate`")
}

/// Says which tables the user may not work with, and what to grant.
pub fn missing_rights(what: &'static str, tables: &[&str], deletes: bool) -> Finding {
    Finding::bad(what, format!("this user may not work with {}", tables.join(", "))).hint(match deletes {
        true => "GRANT SELECT, INSERT, UPDATE, DELETE on them to the user; without DELETE, use `?purge=off`",
        false => "GRANT SELECT, INSERT, UPDATE on them to the user",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_and_a_long_way_are_said() {
        let now = Timestamp::from_micros(1_000_000_000);
        let clock = |server, here| judge_clock(server, here).severity;
        assert_eq!(clock(now + Duration::from_millis(900), now), Severity::Good);
        assert_eq!(clock(now + Duration::from_secs(2), now), Severity::Warning);
        assert_eq!(clock(now, now + Duration::from_secs(2)), Severity::Warning);
        let took = |ms: [u64; 3]| judge_latency(ms.map(Duration::from_millis).to_vec()).severity;
        assert_eq!(took([1, 2, 500]), Severity::Good, "one slow answer is nothing");
        assert_eq!(took([60, 70, 80]), Severity::Warning);
    }

    #[test]
    fn a_server_that_is_nearly_full_is_said() {
        assert_eq!(connections(90, 100, "raise it").severity, Severity::Good);
        assert_eq!(connections(91, 100, "raise it").severity, Severity::Warning);
        assert_eq!(connections(120, 100, "raise it").severity, Severity::Warning);
    }
}
