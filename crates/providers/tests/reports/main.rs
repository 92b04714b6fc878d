//! Reports read from the simulator, which was written from the provider's documents alone. Messages go in through our own
//! sender; what must come out is in the simulator's ledger.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod bench;

use std::time::Duration;

use chrono::DurationRound;
use rust_decimal::Decimal;
use sendonce_core::domain::message::ProviderRef;
use sendonce_core::domain::receipt::ReceiptKind;
use sendonce_core::provider::{Listing, ReportError, ReportWindow};
use sendonce_providers::connect_reports;
use serde_json::{Value, json};

use bench::{Bench, eventually, yesterday_to_tomorrow};

/// Numbers that no fate of the simulator's is tied to.
fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("91987654{n}234")).collect()
}
fn listed(listing: &Listing) -> Vec<String> {
    listing.records.iter().map(|record| record.recipient.expose().to_owned()).collect()
}

#[tokio::test]
async fn contract_5b_a_list_has_every_message_as_the_ledger_has_it() {
    let bench = Bench::new(json!({})).await;
    let sent = numbers(3);
    let txn_id = bench.send(&sent, "Hello").await;
    let listing = bench.decided().await;
    assert_eq!((listed(&listing), listing.complete, listing.unreadable), (sent, true, 0));
    let lines = bench.ledger();
    for (record, accepted) in std::iter::zip(&listing.records, lines[0]["accepted"].as_array().unwrap()) {
        assert_eq!(record.txn_id, Some(txn_id.clone()));
        assert_eq!(record.message_id, ProviderRef::clean(accepted["msg_id"].as_str().unwrap()));
        assert_eq!(record.submitted_at.unwrap().timestamp_millis(), lines[0]["at"].as_i64().unwrap());
        assert_eq!(record.done_at.unwrap().timestamp_millis(), accepted["done_at"].as_i64().unwrap());
        assert_eq!((record.status, record.status_text.as_str()), (Some(ReceiptKind::Delivered), "DELIVRD"));
        assert_eq!((record.cost, record.units), (Some(Decimal::new(14, 2)), Some(1)));
        assert_eq!(record.text.as_ref().unwrap().expose(), "Hello");
        assert_eq!((record.sender_id.as_deref(), record.template_id.as_deref()), (Some("ACMEIN"), Some("1107")));
    }
}

#[tokio::test]
async fn contract_5c_a_transaction_has_its_own_messages_and_no_others() {
    let bench = Bench::new(json!({})).await;
    let txn_id = bench.send(&numbers(2), "Hello").await;
    bench.send(&["919876543999".into()], "Other").await;
    bench.decided().await;
    let listing = bench.reports().by_transaction(&txn_id).await.unwrap();
    assert_eq!((listed(&listing), listing.complete), (numbers(2), true));
    assert!(listing.records.iter().all(|record| record.status == Some(ReceiptKind::Delivered)));
    assert!(listing.records.iter().all(|record| record.submitted_at.is_some() && record.done_at.is_some()));
    let none = bench.reports().by_transaction(&ProviderRef::clean("123").unwrap()).await.unwrap();
    assert_eq!(none, Listing { records: vec![], complete: true, unreadable: 0 });
}

#[tokio::test]
async fn contract_5b_pages_of_any_length_make_one_list() {
    let sent = numbers(7);
    for (page_limit, max_page) in [(2, 0), (3, 0), (7, 0), (8, 0), (500, 2), (500, 3), (500, 7)] {
        let bench = Bench::new(json!({ "reports": { "max_page": max_page } })).await;
        bench.send(&sent, "Hello").await;
        let listing =
            bench.reports_with(json!({ "page_limit": page_limit })).list(yesterday_to_tomorrow()).await.unwrap();
        assert_eq!((listed(&listing), listing.complete), (sent.clone(), true), "{page_limit} {max_page}");
    }
}

#[tokio::test]
async fn contract_5b_a_server_that_repeats_a_page_gives_no_complete_list() {
    let bench = Bench::new(json!({ "reports": { "repeat_page": true } })).await;
    let sent = numbers(4);
    bench.send(&sent, "Hello").await;
    for (page_limit, read) in [(3, 3), (4, 4), (500, 4)] {
        let listing =
            bench.reports_with(json!({ "page_limit": page_limit })).list(yesterday_to_tomorrow()).await.unwrap();
        assert_eq!((listed(&listing).as_slice(), listing.complete), (&sent[..read], false), "{page_limit}");
    }
}

#[tokio::test]
async fn t18_every_shape_of_a_time_in_the_accounts_zone() {
    for zone in ["Asia/Kolkata", "America/New_York", "UTC"] {
        for format in ["millis", "month_name", "sql"] {
            let bench = Bench::in_zone(zone, json!({ "reports": { "time_format": format } })).await;
            bench.send(&numbers(1), "Hello").await;
            let record = bench.decided().await.records.remove(0);
            let (line, second) = (bench.ledger().remove(0), chrono::TimeDelta::seconds(1));
            let to_the_second = |time: &Value| {
                let time = chrono::DateTime::from_timestamp_millis(time.as_i64().unwrap()).unwrap();
                Some(time.duration_trunc(second).unwrap())
            };
            let trunc =
                |time: Option<chrono::DateTime<chrono::Utc>>| time.map(|time| time.duration_trunc(second).unwrap());
            assert_eq!(trunc(record.submitted_at), to_the_second(&line["at"]), "{zone} {format}");
            assert_eq!(trunc(record.done_at), to_the_second(&line["accepted"][0]["done_at"]), "{zone} {format}");
        }
    }
}

#[tokio::test]
async fn contract_6_words_of_both_families() {
    for words in ["smpp", "plain"] {
        let bench = Bench::new(json!({ "reports": { "words": words } })).await;
        let sent = ["919876540030", "919876540032", "919876540033", "919876540034", "919876540039", "919876540040"];
        bench.send(&sent.map(str::to_owned), "Hello").await;
        let expected = [
            ReceiptKind::Failed,
            ReceiptKind::Failed,
            ReceiptKind::Delivered,
            ReceiptKind::Delivered,
            ReceiptKind::Submitted,
            ReceiptKind::Expired,
        ];
        let listing = eventually("the words", async || {
            let listing = bench.list().await.unwrap();
            let read: Vec<_> = listing.records.iter().filter_map(|record| record.status).collect();
            (read == expected).then_some(listing)
        })
        .await;
        // A failed one has a time, one on its way has none.
        assert_eq!(listing.records[0].cause.as_deref(), Some("DND"));
        assert!(listing.records[0].done_at.is_some() && listing.records[4].done_at.is_none(), "{words}");
    }
}

#[tokio::test]
async fn contract_5b_a_recipient_may_be_a_number() {
    let bench = Bench::new(json!({ "reports": { "numeric_mobile": true } })).await;
    let sent = numbers(2);
    let txn_id = bench.send(&sent, "Hello").await;
    assert_eq!(listed(&bench.list().await.unwrap()), sent);
    assert_eq!(listed(&bench.reports().by_transaction(&txn_id).await.unwrap()), sent);
}

#[tokio::test]
async fn contract_5a_the_two_paths_are_a_setting() {
    let swapped = json!({ "list_path": "/SMSApi/report/status", "txn_path": "/SMSApi/reports/status" });
    for (routing, right, wrong) in [("siblings", json!({}), swapped.clone()), ("documents", swapped, json!({}))] {
        let bench = Bench::new(json!({ "reports": { "routing": routing } })).await;
        let txn_id = bench.send(&numbers(1), "Hello").await;
        let (right, wrong) = (bench.reports_with(right), bench.reports_with(wrong));
        assert_eq!(listed(&right.list(yesterday_to_tomorrow()).await.unwrap()), numbers(1), "{routing}");
        assert_eq!(listed(&right.by_transaction(&txn_id).await.unwrap()), numbers(1), "{routing}");
        for refused in [wrong.list(yesterday_to_tomorrow()).await, wrong.by_transaction(&txn_id).await] {
            assert!(
                matches!(&refused, Err(ReportError::Refused { code: Some(code), .. }) if code == "155"),
                "{refused:?}"
            );
        }
    }
}

#[tokio::test]
async fn c13_a_window_is_of_whole_days() {
    let bench = Bench::new(json!({})).await;
    bench.send(&numbers(1), "Hello").await;
    assert_eq!(bench.list().await.unwrap().records.len(), 1);
    let past = ReportWindow { from: "2020-01-01".parse().unwrap(), to: "2020-01-02".parse().unwrap() };
    assert_eq!(bench.reports().list(past).await.unwrap(), Listing { records: vec![], complete: true, unreadable: 0 });
}

#[tokio::test]
async fn f16_a_report_that_lags_is_empty_and_then_is_not() {
    let bench = Bench::new(json!({ "reports": { "lag_ms": 1_500 } })).await;
    let txn_id = bench.send(&numbers(1), "Hello").await;
    assert_eq!(bench.list().await.unwrap().records, []);
    assert_eq!(bench.reports().by_transaction(&txn_id).await.unwrap().records, []);
    eventually("the record", async || (bench.list().await.unwrap().records.len() == 1).then_some(())).await;
}

#[tokio::test]
async fn f16_a_report_that_is_away_is_for_later() {
    let txn_id = ProviderRef::clean("6305583318236810379").unwrap();
    for knobs in [
        json!({ "reports": { "down": true } }),
        json!({ "reports": { "throttle_rate": 1.0 } }),
        json!({ "down": "http503" }),
        json!({ "down": "close" }),
    ] {
        let bench = Bench::new(knobs.clone()).await;
        let later = Err(ReportError::Unavailable { retry_after: None });
        assert_eq!(bench.list().await, later, "{knobs}");
        assert_eq!(bench.reports().by_transaction(&txn_id).await, later, "{knobs}");
    }
    let slow = Bench::new(json!({ "reports": { "latency_ms": 60_000 } })).await;
    let budgets = sendonce_core::config::Budgets { http: Duration::from_millis(100), ..Default::default() };
    let reports = connect_reports("acme-sms", &slow.account(json!({})), &budgets).unwrap().unwrap();
    assert_eq!(reports.list(yesterday_to_tomorrow()).await, Err(ReportError::Unavailable { retry_after: None }));
}

#[tokio::test]
async fn f16_a_report_that_throttles_now_and_then_is_read() {
    let bench = Bench::new(json!({ "reports": { "throttle_rate": 0.3 }, "seed": 7 })).await;
    let sent = numbers(5);
    bench.send(&sent, "Hello").await;
    let reports = bench.reports_with(json!({ "page_limit": 3 }));
    let listing = eventually("a list", async || reports.list(yesterday_to_tomorrow()).await.ok()).await;
    assert_eq!((listed(&listing), listing.complete), (sent, true));
}

#[tokio::test]
async fn contract_1_wrong_credentials_are_refused_with_their_code() {
    let bench = Bench::new(json!({})).await;
    for change in [json!({ "password": "wrong" }), json!({ "api_key": "wrong" }), json!({ "userid": "nobody" })] {
        let reports = bench.connect(&bench.account(change.clone()));
        let refused =
            ReportError::Refused { status: 200, code: Some("216".into()), cause: Some("Invalid credentials".into()) };
        assert_eq!(reports.list(yesterday_to_tomorrow()).await, Err(refused), "{change}");
    }
    let by_key = bench.connect(&bench.account(json!({ "api_key": "KEY1" })));
    assert!(by_key.list(yesterday_to_tomorrow()).await.is_ok());
}

#[tokio::test]
async fn an_account_without_reports_has_none() {
    let bench = Bench::new(json!({})).await;
    let connect = |account| connect_reports("acme", &account, &Default::default()).unwrap().is_some();
    assert!(connect(bench.account(json!({}))));
    assert!(!connect(bench.account(json!({ "reports": { "enabled": false } }))));
    assert!(!connect(bench.account(json!({ "channel": "whatsapp" }))));
}
