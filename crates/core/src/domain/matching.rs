//! Whose record is this? The three-valued, injective match between our rows and the provider's report. It never picks
//! between two: a record that fits two rows, or a row that fits two records, stays open.

use chrono::{DateTime, Utc};
use std::time::Duration;

use crate::domain::message::{Body, MessageId, Recipient};

/// A row of ours that the provider may have accepted.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub id: MessageId,
    pub recipient: Recipient,
    pub sender_id: Option<String>,
    pub template_id: Option<String>,
    pub body: Option<Body>,
    /// When its attempt began, by the database's clock.
    pub claimed_at: DateTime<Utc>,
    /// How far the provider's clock and ours may lie apart, the time on the wire included.
    pub window: Duration,
    pub standing: Standing,
}

/// What a row is in the contest for records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its request is on the wire: whether it will need a record is not known yet.
    OnItsWay,
    /// It has no id that the provider returned: any record that fits may be its own.
    Open,
    /// It has its ids: its record is known, and it competes for no other.
    Identified,
}

/// A record of the report that no row of ours owns.
#[derive(Debug, Clone)]
pub struct FreeRecord<'a> {
    pub recipient: &'a Recipient,
    pub sender_id: Option<&'a str>,
    pub template_id: Option<&'a str>,
    pub body: Option<&'a Body>,
    /// `None` where the report gives no readable time: it then fits any.
    pub submitted_at: Option<DateTime<Utc>>,
    /// Without an id of its own a record can be bound to nobody.
    pub has_id: bool,
}

/// The verdict on one row. Records are given by their index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Exactly one record fits it, and that record fits no other row.
    Matched(usize),
    /// Several fit, or one fits several.
    Ambiguous { records: Vec<usize>, rivals: Vec<MessageId> },
    /// Nothing fits. That proves nothing by itself.
    NotFound,
    /// Too early to say: its window is still open, or a rival is on its way.
    Postponed,
}

/// Judges `row` among all `rows` of its account and recipient (itself may be among them) and the report's free records.
/// `lag`: how long after acceptance a record may take to be listed.
#[must_use]
pub fn judge(
    row: &Candidate,
    rows: &[Candidate],
    records: &[FreeRecord<'_>],
    now: DateTime<Utc>,
    lag: Duration,
) -> Match {
    let open_until = row.window.saturating_add(lag);
    if now.signed_duration_since(row.claimed_at).to_std().unwrap_or_default() < open_until {
        return Match::Postponed;
    }
    let fitting: Vec<usize> = (0..records.len()).filter(|&i| fits(row, &records[i])).collect();
    let rivals_of = |standing: Standing| {
        rows.iter()
            .filter(move |other| other.id != row.id && other.standing == standing)
            .filter(|other| fitting.iter().any(|&i| fits(other, &records[i])))
            .map(|other| other.id)
    };
    if rivals_of(Standing::OnItsWay).next().is_some() {
        return Match::Postponed;
    }
    let rivals: Vec<MessageId> = rivals_of(Standing::Open).collect();
    match fitting.as_slice() {
        [] => Match::NotFound,
        [only] if rivals.is_empty() && records[*only].has_id => Match::Matched(*only),
        _ => Match::Ambiguous { records: fitting, rivals },
    }
}

/// Recipient, sender, template and text where both sides tell them, and the time.
fn fits(row: &Candidate, record: &FreeRecord<'_>) -> bool {
    let agree = |ours: Option<&str>, theirs: Option<&str>| match (ours, theirs) {
        (Some(ours), Some(theirs)) => ours.trim().eq_ignore_ascii_case(theirs.trim()),
        (None, _) | (_, None) => true,
    };
    let in_time = record.submitted_at.is_none_or(|at| {
        let apart = at.signed_duration_since(row.claimed_at).abs().to_std().unwrap_or(Duration::MAX);
        apart <= row.window
    });
    // A form may turn line ends into CR LF on its way.
    let plain = |body: &Body| body.expose().replace("\r\n", "\n");
    let same_text = match (&row.body, record.body) {
        (Some(ours), Some(theirs)) => plain(ours) == plain(theirs),
        (None, _) | (_, None) => true,
    };
    *record.recipient == row.recipient
        && agree(row.sender_id.as_deref(), record.sender_id)
        && agree(row.template_id.as_deref(), record.template_id)
        && in_time
        && same_text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(90);
    const LAG: Duration = Duration::from_secs(10);

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }
    fn number(n: u8) -> Recipient {
        Recipient::from_e164_digits(&format!("9198765432{n:02}")).unwrap()
    }
    fn row(id: i64, to: u8, claimed: i64, standing: Standing) -> Candidate {
        Candidate {
            id: MessageId(id),
            recipient: number(to),
            sender_id: Some("ACMEIN".into()),
            template_id: None,
            body: Some(Body::new("hello".into())),
            claimed_at: at(claimed),
            window: WINDOW,
            standing,
        }
    }
    fn record<'a>(to: &'a Recipient, submitted: i64) -> FreeRecord<'a> {
        FreeRecord {
            recipient: to,
            sender_id: Some("acmein"),
            template_id: None,
            body: None,
            submitted_at: Some(at(submitted)),
            has_id: true,
        }
    }
    fn verdict(rows: &[Candidate], records: &[FreeRecord<'_>], now: i64) -> Match {
        judge(&rows[0], rows, records, at(now), LAG)
    }

    #[test]
    fn t15_one_row_and_one_record_match() {
        let to = number(1);
        let rows = [row(1, 1, 0, Standing::Open), row(2, 2, 0, Standing::Open)];
        assert_eq!(verdict(&rows, &[record(&to, 5)], 1000), Match::Matched(0));
        assert_eq!(verdict(&rows, &[], 1000), Match::NotFound);
    }

    #[test]
    fn t15_two_rows_for_a_record_or_two_records_for_a_row_are_never_guessed() {
        let to = number(1);
        let two_rows = [row(1, 1, 0, Standing::Open), row(2, 1, 20, Standing::Open)];
        let one = Match::Ambiguous { records: vec![0], rivals: vec![MessageId(2)] };
        assert_eq!(verdict(&two_rows, &[record(&to, 5)], 1000), one);
        let two = Match::Ambiguous { records: vec![0, 1], rivals: vec![] };
        assert_eq!(verdict(&[row(1, 1, 0, Standing::Open)], &[record(&to, 5), record(&to, 7)], 1000), two);
    }

    #[test]
    fn execution_4_a_rival_on_its_way_postpones_and_one_with_its_ids_does_not_compete() {
        let to = number(1);
        let rows = |standing| [row(1, 1, 0, Standing::Open), row(2, 1, 20, standing)];
        assert_eq!(verdict(&rows(Standing::OnItsWay), &[record(&to, 5)], 1000), Match::Postponed);
        assert_eq!(verdict(&rows(Standing::Identified), &[record(&to, 5)], 1000), Match::Matched(0));
    }

    #[test]
    fn no_judgement_before_claim_window_and_lag() {
        let to = number(1);
        let rows = [row(1, 1, 0, Standing::Open)];
        assert_eq!(verdict(&rows, &[record(&to, 5)], 99), Match::Postponed);
        assert_eq!(verdict(&rows, &[record(&to, 5)], 100), Match::Matched(0));
    }

    #[test]
    fn sender_template_text_and_time_must_agree_where_both_tell_them() {
        let to = number(1);
        let rows = [Candidate { template_id: Some("T1".into()), ..row(1, 1, 0, Standing::Open) }];
        let other = Body::new("other".into());
        let wrong = [
            FreeRecord { sender_id: Some("GLOBEX"), ..record(&to, 5) },
            FreeRecord { template_id: Some("T2"), ..record(&to, 5) },
            FreeRecord { body: Some(&other), ..record(&to, 5) },
            record(&to, 91),
            record(&to, -91),
        ];
        for record in wrong {
            assert_eq!(verdict(&rows, std::slice::from_ref(&record), 1000), Match::NotFound, "{record:?}");
        }
        let silent = FreeRecord { sender_id: None, template_id: None, submitted_at: None, ..record(&to, 5) };
        assert_eq!(verdict(&rows, &[silent], 1000), Match::Matched(0));
    }

    #[test]
    fn a_record_without_an_id_binds_to_nobody() {
        let to = number(1);
        let nameless = FreeRecord { has_id: false, ..record(&to, 5) };
        let found = Match::Ambiguous { records: vec![0], rivals: vec![] };
        assert_eq!(verdict(&[row(1, 1, 0, Standing::Open)], &[nameless], 1000), found);
    }

    proptest! {
        /// No record is ever given to two rows, whatever the rows and records are.
        #[test]
        fn matching_is_injective(
            rows in prop::collection::vec((1u8..4, 0i64..200, prop::bool::ANY), 1..8),
            records in prop::collection::vec((1u8..4, -50i64..250), 0..8),
        ) {
            let rows: Vec<Candidate> = rows.iter().enumerate().map(|(i, (to, claimed, open))| {
                row(i64::try_from(i).unwrap(), *to, *claimed, if *open { Standing::Open } else { Standing::Identified })
            }).collect();
            let numbers: Vec<Recipient> = (0..4).map(number).collect();
            let records: Vec<FreeRecord<'_>> =
                records.iter().map(|(to, submitted)| record(&numbers[usize::from(*to)], *submitted)).collect();
            let mut given = Vec::new();
            for row in rows.iter().filter(|row| row.standing == Standing::Open) {
                if let Match::Matched(i) = judge(row, &rows, &records, at(10_000), LAG) {
                    prop_assert!(!given.contains(&i), "record {i} given twice");
                    given.push(i);
                }
            }
        }
    }
}
