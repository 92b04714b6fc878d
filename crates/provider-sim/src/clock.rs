//! Wall time and its spellings. The simulator is the provider, so it reads its own clock and never the one under test.

use chrono::{DateTime, Days, NaiveDate, TimeZone, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

/// How report rows and receipts spell a time; the contract names all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeFormat {
    /// 13-digit epoch milliseconds as text.
    Millis,
    /// `July 13, 2019 03:44:48`, in the account's zone.
    MonthName,
    /// `2019-07-13 03:44:48`, in the account's zone.
    Sql,
}

#[expect(clippy::disallowed_methods, reason = "the simulator stands outside the system: its clock is not injected")]
pub fn now_ms() -> i64 {
    Utc::now().timestamp_millis()
}

pub fn spell(ms: i64, zone: Tz, format: TimeFormat) -> String {
    let local = DateTime::from_timestamp_millis(ms).unwrap_or_default().with_timezone(&zone);
    match format {
        TimeFormat::Millis => ms.to_string(),
        TimeFormat::MonthName => local.format("%B %-d, %Y %H:%M:%S").to_string(),
        TimeFormat::Sql => local.format("%Y-%m-%d %H:%M:%S").to_string(),
    }
}

pub fn day_of(ms: i64, zone: Tz) -> NaiveDate {
    DateTime::from_timestamp_millis(ms).unwrap_or_default().with_timezone(&zone).date_naive()
}

/// Date only: the report page says dates, and a date-time there is a client's mistake worth showing.
pub fn parse_day(text: &str) -> Option<NaiveDate> {
    (text.len() == 10).then(|| NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()).flatten()
}

/// The first millisecond of `from` and the first one after `to`, both days of `zone`.
pub fn day_span(from: NaiveDate, to: NaiveDate, zone: Tz) -> (i64, i64) {
    let after = to.checked_add_days(Days::new(1)).unwrap_or(to);
    (midnight(from, zone), midnight(after, zone))
}

fn midnight(day: NaiveDate, zone: Tz) -> i64 {
    let naive = day.and_time(chrono::NaiveTime::MIN);
    zone.from_local_datetime(&naive)
        .earliest()
        .map_or_else(|| naive.and_utc().timestamp_millis(), |time| time.timestamp_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contract_12_time_shapes_are_spelt_in_the_account_zone() {
        let ms = 1_562_969_688_000; // 2019-07-12 22:14:48 UTC
        let zone = chrono_tz::Asia::Kolkata;
        assert_eq!(spell(ms, zone, TimeFormat::Millis), "1562969688000");
        assert_eq!(spell(ms, zone, TimeFormat::MonthName), "July 13, 2019 03:44:48");
        assert_eq!(spell(ms, zone, TimeFormat::Sql), "2019-07-13 03:44:48");
    }

    #[test]
    fn contract_5b_a_day_starts_at_midnight_of_the_account_zone() {
        let day = parse_day("2019-07-13").unwrap();
        let (start, end) = day_span(day, day, chrono_tz::Asia::Kolkata);
        assert_eq!(start, 1_562_956_200_000); // 2019-07-12 18:30 UTC
        assert_eq!(end - start, 86_400_000);
        assert_eq!(parse_day("2019-07-13 00:00:00"), None);
    }
}
