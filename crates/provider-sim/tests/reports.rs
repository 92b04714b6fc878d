//! The two report endpoints: which path says what, paging, lag, words and times.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod common;

use common::{Bench, CREDENTIALS, eventually, options, today};
use serde_json::{Value, json};

const A: &str = "919876501234";
const B: &str = "919876501235";

fn rows(list: &Value) -> Vec<Value> {
    list["response"]["reports_dlrList"].as_array().unwrap().clone()
}

async fn by_txn(bench: &Bench, txn: &str) -> Value {
    bench.get(&format!("/SMSApi/report/status?{CREDENTIALS}&uuid={txn}")).await.json()
}

async fn delivered(bench: &Bench) {
    eventually("delivery", async || {
        let list = rows(&bench.list("pageLimit=1000").await);
        list.iter().all(|row| row["status"] != "SUBMITTED").then_some(())
    })
    .await;
}

#[tokio::test]
async fn contract_5a_list_by_plural_path() {
    let bench = Bench::new().await;
    let txn = bench.send(&format!("{A},{B}"), &[]).await.json()["transactionId"].clone();
    delivered(&bench).await;
    let list = bench.list("pageLimit=100").await;
    assert_eq!(list["response"]["status"], "success");
    assert_eq!((&list["response"]["code"], &list["response"]["count"]), (&json!("200"), &json!(2)));
    let row = &rows(&list)[0];
    let accepted = &bench.lines()[0]["accepted"][0];
    let expected = json!({"mobileNo": A, "msgId": accepted["msg_id"], "uuId": txn, "status": "DELIVRD",
        "cause": "Delivered", "submitTime": bench.lines()[0]["at"].to_string(),
        "deliveryTime": accepted["done_at"].to_string(), "dltTemplateId": "1107", "cost": "0.1400", "length": "1",
        "network": "Airtel", "senderName": "SNDONC", "text": "Hello"});
    assert_eq!(row, &expected);
}

#[tokio::test]
async fn contract_5c_by_transaction_by_singular_path_has_keys_with_spaces() {
    let bench = Bench::new().await;
    let txn = bench.send(&format!("{A},{B}"), &[]).await.json()["transactionId"].as_str().unwrap().to_owned();
    delivered(&bench).await;
    let report = by_txn(&bench, &txn).await;
    let list = report["response"]["report_statusList"].as_array().unwrap();
    assert_eq!(
        (list.len(), &report["response"]["api"], &report["response"]["action"]),
        (2, &json!("send"), &json!("status"))
    );
    let accepted = &bench.lines()[0]["accepted"][1];
    let expected = json!({"status": {"uuId": txn, "msgId": accepted["msg_id"], "mobileNo": B, "Status": "DELIVRD",
        "Cause": "Delivered", "senderName": "SNDONC", "text": "Hello", "msgType": "text", "length": "1",
        "cost": "0.1400", "Submitted Time": bench.lines()[0]["at"].to_string(),
        "Delivered Time": accepted["done_at"].to_string()}});
    assert_eq!(list[1], expected);
    let nothing = by_txn(&bench, "123").await;
    assert_eq!((&nothing["response"]["status"], &nothing["response"]["count"]), (&json!("success"), &json!(0)));
}

#[tokio::test]
async fn contract_5a_both_paths_serve_both_unless_a_pairing_is_strict() {
    let bench = Bench::new().await;
    let txn = bench.send(A, &[]).await.json()["transactionId"].as_str().unwrap().to_owned();
    let list = format!("{CREDENTIALS}&method=getDlr&pageLimit=5&{}", today());
    let one = format!("{CREDENTIALS}&uuid={txn}");
    let count = async |path: &str, query: &str| {
        let answer = bench.get(&format!("/SMSApi/{path}/status?{query}")).await.json();
        answer["response"]["count"].as_u64().ok_or_else(|| answer["response"]["code"].clone())
    };
    for (path, query) in [("reports", &list), ("report", &list), ("reports", &one), ("report", &one)] {
        assert_eq!(count(path, query).await, Ok(1));
    }
    bench.turn(r#"{"reports":{"routing":"siblings"}}"#).await;
    assert_eq!((count("reports", &list).await, count("report", &one).await), (Ok(1), Ok(1)));
    assert_eq!((count("report", &list).await, count("reports", &one).await), (Err(json!("155")), Err(json!("155"))));
    bench.turn(r#"{"reports":{"routing":"documents"}}"#).await;
    assert_eq!((count("report", &list).await, count("reports", &one).await), (Ok(1), Ok(1)));
    assert_eq!(count("reports", &list).await, Err(json!("155")));
}

#[tokio::test]
async fn contract_5_reports_check_credentials_and_answer_post_too() {
    let bench = Bench::new().await;
    bench.send(A, &[]).await.json();
    let body = format!("{CREDENTIALS}&method=getDlr&pageLimit=5&{}", today());
    let posted = bench.post("/SMSApi/reports/status", &body, "").await.json();
    assert_eq!(posted["response"]["count"], 1);
    let wrong = bench.post("/SMSApi/reports/status", &body.replace("secret", "no"), "").await.json();
    assert_eq!((&wrong["response"]["status"], &wrong["response"]["code"]), (&json!("error"), &json!("216")));
    bench.control("PUT", "/accounts/other", r#"{"password":"pw"}"#).await.json();
    let other = body.replace("demo", "other").replace("secret", "pw");
    assert_eq!(bench.post("/SMSApi/reports/status", &other, "").await.json()["response"]["count"], 0);
}

#[tokio::test]
async fn contract_5b_pages_are_positions_from_one_oldest_first() {
    let bench = Bench::new().await;
    for index in 0..5 {
        bench.send(&format!("91987650{index}234"), &[]).await.json();
    }
    let page = async |cursor: u32| {
        let list = bench.list(&format!("pageLimit=2&startCursor={cursor}")).await;
        rows(&list).iter().map(|row| row["mobileNo"].as_str().unwrap()[8..9].parse().unwrap()).collect::<Vec<u32>>()
    };
    assert_eq!((page(1).await, page(3).await, page(5).await), (vec![0, 1], vec![2, 3], vec![4]));
    assert!(page(6).await.is_empty());
    bench.turn(r#"{"reports":{"repeat_page":true}}"#).await;
    assert_eq!(page(3).await, [0, 1]);
    bench.turn(r#"{"reports":{"repeat_page":false,"max_page":1}}"#).await;
    assert_eq!(page(1).await, [0]);
    assert_eq!(rows(&bench.list("pageLimit=9&mobileNo=919876503234").await).len(), 1);
}

#[tokio::test]
async fn contract_5b_dates_are_dates_and_a_page_limit_is_required() {
    let bench = Bench::new().await;
    bench.send(A, &[]).await.json();
    assert_eq!(bench.list("x=1").await["response"]["code"], "154");
    let head = format!("/SMSApi/reports/status?{CREDENTIALS}&method=getDlr&pageLimit=5");
    let with_time = bench.get(&format!("{head}&fromdate=2026-01-01+00:00:00&todate=2026-01-01+23:59:59")).await.json();
    assert_eq!(with_time["response"]["code"], "154");
    let past = bench.get(&format!("{head}&fromdate=2020-01-01&todate=2020-01-02")).await.json();
    assert_eq!(past["response"]["count"], 0);
    bench.turn(r#"{"reports":{"current_day_only":true}}"#).await;
    let wide = bench.get(&format!("{head}&fromdate=2020-01-01&todate=2099-01-02")).await.json();
    assert_eq!(wide["response"]["count"], 1);
}

#[tokio::test]
async fn faults_f16_reports_lag_then_appear() {
    let bench = Bench::new().await;
    bench.turn(r#"{"reports":{"lag_ms":1500}}"#).await;
    let txn = bench.send(A, &[]).await.json()["transactionId"].as_str().unwrap().to_owned();
    assert!(rows(&bench.list("pageLimit=5").await).is_empty());
    assert_eq!(by_txn(&bench, &txn).await["response"]["count"], 0);
    eventually("the record", async || (rows(&bench.list("pageLimit=5").await).len() == 1).then_some(())).await;
}

#[tokio::test]
async fn faults_f16_reports_withheld_with_gaps_throttled_and_down() {
    let bench = Bench::new().await;
    for _ in 0..20 {
        bench.send(A, &[]).await.json();
    }
    delivered(&bench).await;
    bench.turn(r#"{"reports":{"withheld":true}}"#).await;
    assert!(rows(&bench.list("pageLimit=50").await).is_empty());
    bench.turn(r#"{"reports":{"withheld":false,"gap_rate":0.5}}"#).await;
    let gappy = rows(&bench.list("pageLimit=50").await);
    assert!((1..20).contains(&gappy.len()), "{}", gappy.len());
    assert_eq!(gappy, rows(&bench.list("pageLimit=50").await));
    let path = format!("/SMSApi/reports/status?{CREDENTIALS}&method=getDlr&pageLimit=5&{}", today());
    bench.turn(r#"{"reports":{"throttle_rate":1}}"#).await;
    assert_eq!(bench.get(&path).await.status(), 429);
    bench.turn(r#"{"reports":{"down":true}}"#).await;
    assert_eq!(bench.get(&path).await.status(), 503);
}

#[tokio::test]
async fn contract_10_times_words_and_numbers_follow_the_knobs() {
    let ledger = common::fresh_ledger();
    let bench = Bench::on(options(&ledger)).await;
    bench.send("919876540032", &[]).await.json();
    delivered(&bench).await;
    bench.turn(r#"{"reports":{"time_format":"month_name","words":"plain","numeric_mobile":true}}"#).await;
    let row = rows(&bench.list("pageLimit=5").await).remove(0);
    assert_eq!((&row["status"], &row["cause"]), (&json!("FAILED"), &json!("Absent Subscriber")));
    assert_eq!(row["mobileNo"], json!(919_876_540_032_u64));
    let at = chrono::DateTime::from_timestamp_millis(bench.lines()[0]["at"].as_i64().unwrap()).unwrap();
    let local = at.with_timezone(&chrono_tz::Asia::Kolkata);
    assert_eq!(row["submitTime"], local.format("%B %-d, %Y %H:%M:%S").to_string());
    assert_ne!(row["deliveryTime"], "0", "a failed row has a done time");
    bench.turn(r#"{"reports":{"time_format":"sql"}}"#).await;
    let row = rows(&bench.list("pageLimit=5").await).remove(0);
    assert_eq!(row["submitTime"], local.format("%Y-%m-%d %H:%M:%S").to_string());
}

#[tokio::test]
async fn magic_0039_stays_submitted_and_0033_is_delivered_in_the_report() {
    let bench = Bench::new().await;
    bench.send("919876540033,919876540039", &[]).await.json();
    let list = eventually("0033 delivered", async || {
        let list = rows(&bench.list("pageLimit=5").await);
        (list[0]["status"] == "DELIVRD").then_some(list)
    })
    .await;
    assert_eq!((&list[1]["status"], &list[1]["deliveryTime"]), (&json!("SUBMITTED"), &json!("0")));
    assert_eq!(bench.summary().await["receipts"]["due"], 0);
}
