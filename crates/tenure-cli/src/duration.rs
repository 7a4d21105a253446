//! Durations as people read and write them.

use std::time::Duration;

/// What `--help` says of a TIME.
pub(crate) const TIME_HELP: &str = "TIME is a number with a unit, or several: 250ms, 30s, 5m, 1h30m.";

pub(crate) const PARSE_HINT: &str = "write a time as 250ms, 30s, 5m or 1h30m";

/// Reads `30s`, `5m`, `1h30m`, `250ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| PARSE_HINT)
}

/// Nothing ends a hold of this length: another client of the store has set it without an expiry.
const NEVER_SECONDS: u64 = 100 * 365 * 86_400;

/// Writes a duration for people: its two largest units, `1h 5m`, `12.3s`, `250ms`.
pub(crate) fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{}.{}s", seconds, duration.subsec_millis() / 100),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        NEVER_SECONDS.. => "never".to_owned(),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Returns whole milliseconds, for JSON.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns milliseconds and thousandths of them, for a time that may be less than one.
pub(crate) fn thousandths(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        for wrong in ["", "5", "-1s", "soon", "1x", "99999999999999999999s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_short_and_say_their_unit() {
        for (millis, shown) in [
            (0, "0ms"),
            (250, "250ms"),
            (1_000, "1.0s"),
            (12_345, "12.3s"),
            (65_000, "1m 5s"),
            (3_900_000, "1h 5m"),
            (90_000_000, "1d 1h"),
            (9_000_000_000_000_000, "never"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), shown);
        }
    }
}
