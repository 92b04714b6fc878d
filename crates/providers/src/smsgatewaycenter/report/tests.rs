//! Every shape of a report against what is read from it, and every way in which pages fail to join up.

use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use rust_decimal::Decimal;
use sendonce_core::config::Codes;
use sendonce_core::domain::message::{Body, ProviderRef, Recipient};
use sendonce_core::domain::receipt::ReceiptKind;
use sendonce_core::provider::{Listing, ReportError, ReportRecord};

use super::row::record;
use super::{CodeTable, Gathered, Progress, of_transaction, open};
use crate::http::Reply;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../../fixtures/", $name))
    };
}

fn read_at(status: u16, text: &str) -> Result<Vec<Option<ReportRecord>>, ReportError> {
    let codes = CodeTable::new(&Codes { throttle: vec!["341".into()], ..Codes::default() }).unwrap();
    let reply = Reply { status, retry_after: Some(Duration::from_secs(30)), text: text.to_owned() };
    let rows = open(&reply, &codes)?.rows().ok_or(ReportError::Unreadable)?;
    Ok(rows.into_iter().map(|row| record(row, Tz::Asia__Kolkata)).collect())
}
fn read(text: &str) -> Result<Vec<Option<ReportRecord>>, ReportError> {
    read_at(200, text)
}
fn at(text: &str) -> Option<DateTime<Utc>> {
    Some(DateTime::parse_from_rfc3339(text).unwrap().to_utc())
}
fn bare(number: &str, message_id: &str) -> ReportRecord {
    ReportRecord {
        txn_id: None,
        message_id: ProviderRef::clean(message_id),
        recipient: Recipient::from_e164_digits(number).unwrap(),
        sender_id: None,
        template_id: None,
        text: None,
        status: None,
        status_text: String::new(),
        cause: None,
        submitted_at: at("2019-07-12T22:14:48Z"),
        done_at: at("2019-07-12T22:14:55Z"),
        cost: None,
        units: None,
    }
}

#[test]
fn t35_rows_of_the_list_in_every_spelling() {
    let rows = read(fixture!("report_list.json")).unwrap();
    let delivered = ReportRecord {
        txn_id: ProviderRef::clean("8359251506264886974"),
        sender_id: Some("ACMEIN".into()),
        template_id: Some("1107161234567890123".into()),
        text: Some(Body::new(" Hi & bye ".into())),
        status: Some(ReceiptKind::Delivered),
        status_text: "DELIVRD".into(),
        cause: Some("Delivered".into()),
        cost: Some(Decimal::new(14, 2)),
        units: Some(1),
        ..bare("919999999999", "QudUrwhMuIGkbs2")
    };
    assert_eq!(rows[0], Some(delivered));
    // Numbers for the recipient, the id and the cost; a time on a failed row does not make it delivered.
    let failed = ReportRecord {
        txn_id: ProviderRef::clean("8359251506264886974"),
        status: Some(ReceiptKind::Failed),
        status_text: "Failed".into(),
        cause: Some("Absent Subscriber".into()),
        cost: Some(Decimal::new(28, 2)),
        units: Some(2),
        ..bare("919999999998", "QudUrwhMuIGkbs3")
    };
    assert_eq!(rows[1], Some(failed));
    let submitted = ReportRecord {
        txn_id: ProviderRef::clean("0000251506264886974"),
        status: Some(ReceiptKind::Submitted),
        status_text: "submitted".into(),
        done_at: None,
        ..bare("919999999997", "QudUrwhMuIGkbs4")
    };
    assert_eq!(rows[2], Some(submitted));
    let puzzling = ReportRecord {
        status_text: "DELIVERED_TO_SOMEONE".into(),
        submitted_at: None,
        cost: Some(Decimal::ZERO),
        ..bare("919999999996", "QudUrwhMuIGkbs5")
    };
    assert_eq!(rows[3], Some(puzzling));
}

#[test]
fn contract_10_the_envelopes_success_and_a_delivered_time_are_no_delivery() {
    let rows = read(fixture!("report_list.json")).unwrap();
    let silent =
        ReportRecord { txn_id: ProviderRef::clean("8359251506264886975"), ..bare("919999999995", "QudUrwhMuIGkbs6") };
    assert_eq!(rows[4], Some(silent));
}

#[test]
fn a_row_whose_recipient_cannot_be_read_is_no_record() {
    let rows = read(fixture!("report_list.json")).unwrap();
    assert_eq!((rows.len(), &rows[5]), (6, &None));
    let odd =
        r#"{"response":{"status":"success","reports_dlrList":[1,null,"x",[],{},{"mobileNo":true},{"mobileNo":{}}]}}"#;
    assert_eq!(read(odd).unwrap(), vec![None; 7]);
}

#[test]
fn contract_5c_rows_by_transaction_have_names_with_capitals_and_blanks() {
    let rows = read(fixture!("report_transaction.json")).unwrap();
    let unknown_user = ReportRecord {
        txn_id: ProviderRef::clean("8359251506264886974"),
        status: Some(ReceiptKind::Failed),
        status_text: "FAILED".into(),
        cause: Some("Unknown User".into()),
        submitted_at: None,
        done_at: None,
        ..bare("919999999999", "QudUrwhMuIGkbs2")
    };
    let expired = ReportRecord {
        txn_id: ProviderRef::clean("8359251506264886974"),
        sender_id: Some("ACMEIN".into()),
        text: Some(Body::new("Hi".into())),
        status: Some(ReceiptKind::Expired),
        status_text: "EXPIRED".into(),
        cause: Some("Validity Expired".into()),
        cost: Some(Decimal::new(14, 2)),
        units: Some(1),
        ..bare("919999999998", "QudUrwhMuIGkbs3")
    };
    assert_eq!(rows, [Some(unknown_user), Some(expired)]);
}

#[test]
fn contract_6_words_of_both_families_in_any_case() {
    let status = |word: &str| {
        let text = format!(
            r#"{{"response":{{"status":"success","reports_dlrList":[{{"mobileNo":"919999999999","status":"{word}"}}]}}}}"#
        );
        read(&text).unwrap().remove(0).unwrap().status
    };
    for (words, kind) in [
        (&["DELIVRD", "DELIVERED", "DLVRD", "SUCCESS"][..], Some(ReceiptKind::Delivered)),
        (&["SUBMITTED", "SENT", "ACCEPTED", "ACCEPTD", "ENROUTE", "PENDING"], Some(ReceiptKind::Submitted)),
        (&["PROCESSING", "QUEUED", "UNKNOWN"], Some(ReceiptKind::Submitted)),
        (&["FAILED", "UNDELIV", "UNDELIVERED", "DELETED"], Some(ReceiptKind::Failed)),
        (&["REJECTD", "REJECTED", "BLACKLISTED"], Some(ReceiptKind::Failed)),
        (&["EXPIRED"], Some(ReceiptKind::Expired)),
        (&["", "0", "READ", "NOT DELIVERED", "SUCCESS(DELIVERED)"], None),
    ] {
        for word in words {
            assert_eq!(status(word), kind, "{word}");
            assert_eq!(status(&format!(" {} ", word.to_ascii_lowercase())), kind, "{word}");
        }
    }
}

#[test]
fn contract_5c_no_rows_is_an_empty_list_and_no_list_is_unreadable() {
    let wrapped = |inside: &str| read(&format!(r#"{{"response":{{"status":"success","code":"200",{inside}}}}}"#));
    assert_eq!(read(fixture!("report_empty.json")), Ok(vec![]));
    for empty in [r#""count":0"#, r#""count":"0","reports_dlrList":"""#, r#""count":0,"report_statusList":{}"#] {
        assert_eq!(wrapped(empty), Ok(vec![]), "{empty}");
    }
    for none in [r#""count":1"#, r#""api":"reports""#, r#""count":1,"reports_dlrList":null"#, r#""otherList":[]"#] {
        assert_eq!(wrapped(none), Err(ReportError::Unreadable), "{none}");
    }
}

#[test]
fn an_error_is_a_refusal_and_slow_down_is_for_later() {
    let later = Err(ReportError::Unavailable { retry_after: Some(Duration::from_secs(30)) });
    let refused = |status, code: Option<&str>, cause: Option<&str>| {
        Err(ReportError::Refused { status, code: code.map(str::to_owned), cause: cause.map(str::to_owned) })
    };
    let credentials = (Some("216"), Some("Invalid credentials"));
    for status in [200, 401, 403] {
        for text in [fixture!("send_error_credentials.json"), fixture!("send_error_credentials_wrapped.json")] {
            assert_eq!(read_at(status, text), refused(status, credentials.0, credentials.1), "{status}");
        }
    }
    for status in [200, 400] {
        assert_eq!(read_at(status, fixture!("send_error_throttled.json")), later, "{status}");
    }
    for status in [301, 400, 404] {
        assert_eq!(read_at(status, fixture!("bad_gateway.html")), refused(status, None, None), "{status}");
        assert!(matches!(read_at(status, fixture!("report_list.json")), Err(ReportError::Refused { .. })), "{status}");
    }
    for status in [429, 500, 502, 503] {
        for text in [fixture!("report_list.json"), fixture!("send_error_credentials.json"), ""] {
            assert_eq!(read_at(status, text), later, "{status}");
        }
    }
}

#[test]
fn a_200_that_is_no_report_is_unreadable() {
    let truncated = &fixture!("report_list.json")[..700];
    let contradiction = fixture!("report_empty.json").replace("\"200\"", "\"216\"");
    for text in
        ["", "200 | success", fixture!("bad_gateway.html"), truncated, &contradiction, "[]", r#"{"response":[]}"#]
    {
        assert_eq!(read(text), Err(ReportError::Unreadable), "{text}");
    }
}

#[test]
fn an_error_names_no_cause_that_could_hold_a_number() {
    let refused =
        ReportError::Refused { status: 200, code: Some("154".into()), cause: Some("919999999999 is bad".into()) };
    assert_eq!(refused.to_string(), "the provider refuses its report: HTTP 200, code 154");
}

#[test]
fn contract_5c_records_of_another_transaction_are_left_out_and_make_it_incomplete() {
    let txn_id = ProviderRef::clean("8359251506264886974").unwrap();
    let all_its = of_transaction(read(fixture!("report_transaction.json")).unwrap(), &txn_id);
    assert_eq!((all_its.records.len(), all_its.complete, all_its.unreadable), (2, true, 0));
    let foreign = fixture!("report_transaction.json").replacen("8359251506264886974", "1", 1);
    let mixed = of_transaction(read(&foreign).unwrap(), &txn_id);
    assert_eq!((mixed.records, mixed.complete), (all_its.records[1..].to_vec(), false));
    let unreadable = fixture!("report_transaction.json").replacen("919999999999", "unknown", 1);
    let partly = of_transaction(read(&unreadable).unwrap(), &txn_id);
    assert_eq!((partly.records.len(), partly.complete, partly.unreadable), (1, false, 1));
}

/// The listing of a server whose pages are `pages`, and whether it was read beyond them.
fn gather(pages: &[&[u32]]) -> (Listing, Vec<u32>, bool) {
    let page = |ids: &[u32]| {
        let record = |id: &u32| (*id != 0).then(|| bare(&format!("9199999{id:05}"), &format!("m{id}")));
        ids.iter().map(record).collect::<Vec<_>>()
    };
    let mut gathered = Gathered::default();
    let mut ended = None;
    for ids in pages {
        match gathered.take(page(ids)) {
            Progress::More => {}
            Progress::End => ended = Some(true),
            Progress::Astray => ended = Some(false),
        }
        if ended.is_some() {
            break;
        }
    }
    let listing = gathered.listing(ended.unwrap_or(false));
    let ids = listing.records.iter().filter_map(|record| record.message_id.as_ref()?.as_str()[1..].parse().ok());
    (listing.clone(), ids.collect(), ended.is_none())
}

#[test]
fn contract_5b_pages_that_join_up_are_a_complete_list() {
    for (pages, ids) in [
        (&[&[][..]][..], &[][..]),
        (&[&[1], &[]], &[1]),
        (&[&[1], &[1]], &[1]),
        (&[&[1, 2], &[2]], &[1, 2]),
        (&[&[1, 2, 3], &[3, 4, 5], &[5, 6], &[6]], &[1, 2, 3, 4, 5, 6]),
        // New ones came in front and moved the list: still nothing fell between.
        (&[&[1, 2, 3, 4], &[3, 4, 5, 6], &[5, 6]], &[1, 2, 3, 4, 5, 6]),
    ] {
        let (listing, read, goes_on) = gather(pages);
        assert_eq!((listing.complete, read.as_slice(), goes_on), (true, ids, false), "{pages:?}");
    }
}

#[test]
fn contract_5b_pages_that_do_not_join_up_are_no_complete_list() {
    for (pages, ids) in [
        // The cursor is ignored.
        (&[&[1, 2][..], &[1, 2]][..], &[1, 2][..]),
        // It counts pages, or from zero.
        (&[&[1, 2], &[]], &[1, 2]),
        (&[&[1, 2, 3], &[4, 5], &[5]], &[1, 2, 3, 4, 5]),
        // One was taken out and moved the list.
        (&[&[1, 2, 3], &[4, 5, 6], &[6]], &[1, 2, 3, 4, 5, 6]),
        // Pages of one never join.
        (&[&[1], &[2], &[3], &[]], &[1, 2, 3]),
        // A row that cannot be read.
        (&[&[1, 0, 2], &[2]], &[1, 2]),
        (&[&[0], &[]], &[]),
        (&[&[1, 0], &[0, 3], &[3]], &[1, 3]),
    ] {
        let (listing, read, goes_on) = gather(pages);
        assert_eq!((listing.complete, read.as_slice(), goes_on), (false, ids, false), "{pages:?}");
    }
}

#[test]
fn c19_two_records_that_differ_in_nothing_are_two() {
    let (listing, ..) = gather(&[&[1, 1, 2], &[2]]);
    assert_eq!((listing.complete, listing.records.len()), (true, 3));
}
