//! Times as providers write them. It refuses what it does not know: an unreadable time is no time, never "now".

use chrono::{DateTime, NaiveDateTime, TimeZone, Utc};
use chrono_tz::Tz;

const WALL_CLOCK: [&str; 2] = ["%B %d, %Y %H:%M:%S", "%Y-%m-%d %H:%M:%S"];

/// Milliseconds (13 digits) or seconds (10 digits) since 1970, or a wall clock in `zone`. Words for "never" are `None`. Where
/// the clock went back, so that a wall time happened twice, the first of the two.
#[must_use]
pub fn parse_time(raw: &str, zone: Tz) -> Option<DateTime<Utc>> {
    let text = raw.trim();
    if text.bytes().all(|b| b.is_ascii_digit()) {
        let number: i64 = text.parse().ok()?;
        return match text.len() {
            13 => DateTime::from_timestamp_millis(number),
            10 => DateTime::from_timestamp(number, 0),
            _ => None,
        };
    }
    let read = |format: &&str| NaiveDateTime::parse_from_str(text, format).ok();
    let wall = WALL_CLOCK.iter().find_map(read)?;
    Some(zone.from_local_datetime(&wall).earliest()?.to_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(raw: &str, zone: Tz) -> Option<String> {
        parse_time(raw, zone).map(|time| time.to_rfc3339())
    }

    #[test]
    fn every_shape_of_a_time() {
        let zone = Tz::Asia__Kolkata;
        for (raw, expected) in [
            ("1700117933163", "2023-11-16T06:58:53.163+00:00"),
            ("1700117933", "2023-11-16T06:58:53+00:00"),
            ("July 13, 2019 03:44:48", "2019-07-12T22:14:48+00:00"),
            ("July 3, 2019 03:44:48", "2019-07-02T22:14:48+00:00"),
            ("2019-07-13 03:44:48", "2019-07-12T22:14:48+00:00"),
            (" 2019-07-13 03:44:48 ", "2019-07-12T22:14:48+00:00"),
        ] {
            assert_eq!(at(raw, zone).as_deref(), Some(expected), "{raw}");
        }
    }

    #[test]
    fn t7_words_for_never_and_noise_are_no_time() {
        let noise = [
            "0",
            "",
            " ",
            "null",
            "-",
            "never",
            "0000000000000000",
            "2019-13-40 00:00:00",
            "13/07/2019 03:44",
            "12345",
        ];
        for none in noise {
            assert_eq!(at(none, Tz::UTC), None, "{none}");
        }
    }

    #[test]
    fn a_wall_time_that_happened_twice_is_the_first_and_one_that_never_was_is_none() {
        let zone = Tz::Europe__Berlin;
        assert_eq!(at("2026-10-25 02:30:00", zone).as_deref(), Some("2026-10-25T00:30:00+00:00"));
        assert_eq!(at("2026-03-29 02:30:00", zone), None);
    }
}
