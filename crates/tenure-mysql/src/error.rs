//! What the servers' errors mean. The numbers are MySQL's and MariaDB's alike, unless said.

use tenure_core::error::ErrorKind;
use tenure_sql::Fault;

use crate::client::wire::WireError;

/// What a server needs that writes statements into its binary log.
pub(crate) const BINLOG_HINT: &str =
    "set `binlog_format = ROW`, or MIXED: tenure's transactions are READ COMMITTED";

/// Makes a fault of what went wrong on a connection.
pub(crate) fn fault(error: &WireError) -> Fault {
    match error {
        WireError::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Fault::unavailable("the server has closed the connection")
        }
        WireError::Io(error) => Fault::unavailable(error.to_string()),
        WireError::Strange(what) => Fault::internal(format!("the server's answer is not understood: {what}")),
        WireError::Server { code, message } => refusal(*code, message),
    }
}

/// Whether a table or a column is not there.
pub(crate) fn is_missing(error: &WireError) -> bool {
    matches!(error, WireError::Server { code: 1146 | 1054, .. })
}

fn refusal(code: u16, said: &str) -> Fault {
    let message = format!("the server says: {said} ({code})");
    let failed = |kind, hint| Fault::Failed { kind, message: message.clone(), hint };
    let unavailable = ErrorKind::Unavailable;
    match code {
        // A deadlock, and what Galera calls one; a row that changed under a snapshot (MariaDB).
        1213 | 1020 => Fault::GivenUp(message),
        // It undoes the statement and not the transaction, which is to be rolled back, or its connection closed.
        // MySQL has another number for a lock that was not to be waited for.
        1205 | 3572 => Fault::Locked(message),
        1040 | 1203 | 1226 => Fault::Full(message),
        1044 | 1142 | 1143 | 1227 | 1370 => failed(
            ErrorKind::Unsupported,
            "let the user SELECT, INSERT, UPDATE and DELETE on tenure's tables, or create them; without DELETE, use `?purge=off`",
        ),
        1045 | 1698 => failed(ErrorKind::Invalid, "check the user and the password of the URL"),
        1049 => failed(ErrorKind::Invalid, "check the name of the database in the URL"),
        1146 | 1054 => failed(ErrorKind::Unsupported, "make the tables: `tenure doctor --migrate`"),
        1290 | 1792 | 1836 | 1036 => failed(
            unavailable,
            "the server is a replica, or its default is read-only; after a failover this passes",
        ),
        1021 | 1114 | 3675 => failed(unavailable, "the server's disk is full: free some space"),
        1665 => failed(ErrorKind::Unsupported, BINLOG_HINT),
        1153 => failed(ErrorKind::Unsupported, "raise the server's `max_allowed_packet`"),
        // Ends and starts of a server, ended connections, interrupted statements, an idle one that was thrown out
        // (MySQL's 4031), a cluster's node that is not ready (Galera's 1047).
        1047 | 1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1317 | 1927 | 1969 | 3024 | 4031 => {
            failed(unavailable, "the server ends or starts, or an operator ended the connection; this passes")
        }
        1206 | 1637 => failed(unavailable, "the server has no room for more transactions; this passes"),
        _ => failed(ErrorKind::Internal, "see the server's log, and report it if the server is well"),
    }
}

/// Returns what is needed if this version of a server is older.
pub(crate) fn too_old(version: &str) -> Option<&'static str> {
    let mut numbers =
        version.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (least, name) =
        if version.contains("MariaDB") { ((10, 6), "MariaDB 10.6") } else { ((8, 0), "MySQL 8.0") };
    (found < least).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_told_from_new_ones() {
        for version in
            ["10.6.1-MariaDB", "10.11.19-MariaDB-0+deb12u1", "11.4.2-MariaDB", "8.0.36", "9.1.0", "8.4.2-log"]
        {
            assert_eq!(too_old(version), None, "{version}");
        }
        assert_eq!(too_old("10.5.20-MariaDB-1"), Some("MariaDB 10.6"));
        assert_eq!(too_old("5.7.44"), Some("MySQL 8.0"));
    }
}
