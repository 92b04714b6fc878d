//! `/WAApi/send`: both spellings of its answer, its bill, its fates and its receipts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod common;

use common::{Bench, Seen, eventually, form};
use serde_json::{Value, json};

const A: &str = "919876501234";

async fn send(bench: &Bench, mobile: &str, changes: &[(&str, Option<&str>)]) -> Seen {
    let mut all = vec![("senderid", None), ("wabaNumber", Some("919000000000"))];
    all.extend_from_slice(changes);
    bench.post("/WAApi/send", &form(mobile, &all), "").await
}

async fn sibling(bench: &Bench) {
    bench.turn(r#"{"wa":{"response_shape":"sibling"}}"#).await;
}

#[tokio::test]
async fn contract_9_two_spellings_of_a_success_and_the_id_is_the_messages() {
    let bench = Bench::new().await;
    let seed = send(&bench, A, &[]).await.json();
    sibling(&bench).await;
    let other = send(&bench, A, &[("msg", Some("another"))]).await.json();
    let lines = bench.lines();
    let id = |line: usize| lines[line]["accepted"][0]["msg_id"].clone();
    assert_eq!(seed, json!({"status": "success", "statusCode": 200, "messageId": id(0), "description": "success"}));
    assert_eq!(other, json!({"status": "success", "statusCode": "200", "transactionId": id(1), "reason": "success"}));
    for line in &lines {
        assert_eq!(
            (&line["kind"], &line["txn"], &line["sender"]),
            (&json!("wa_send"), &Value::Null, &json!("919000000000"))
        );
    }
    assert_ne!(id(0), id(1));
}

#[tokio::test]
async fn contract_9_two_spellings_of_a_refusal() {
    let bench = Bench::new().await;
    let refused = send(&bench, "919876540001", &[]).await.json();
    assert_eq!(refused, json!({"status": "error", "statusCode": 188, "description": "DLT template mismatch"}));
    sibling(&bench).await;
    let refused = send(&bench, A, &[("password", Some("wrong"))]).await.json();
    assert_eq!(refused, json!({"status": "error", "statusCode": "216", "reason": "Invalid credentials"}));
}

#[tokio::test]
async fn contract_9_a_request_has_one_valid_recipient_a_business_number_and_a_text() {
    let bench = Bench::new().await;
    for (mobile, changes, code) in [
        ("919876501234,919876501235", vec![], 303),
        ("919876540003", vec![], 303),
        ("12345", vec![], 303),
        (A, vec![("wabaNumber", None)], 156),
        (A, vec![("sendMethod", Some("bulk"))], 148),
        (A, vec![("msgType", Some("unicode"))], 152),
        (A, vec![("msg", Some(""))], 150),
    ] {
        assert_eq!(send(&bench, mobile, &changes).await.json()["statusCode"], code, "{mobile} {changes:?}");
    }
    assert_eq!(send(&bench, A, &[("msgType", Some("Text"))]).await.json()["statusCode"], 200);
    assert_eq!(bench.summary().await["accepted_recipients"], 1);
}

#[tokio::test]
async fn contract_9_a_message_is_one_unit_at_a_price_of_its_own() {
    let bench = Bench::new().await;
    let long = "é".repeat(1_000);
    send(&bench, A, &[("msg", Some(&long))]).await.json();
    bench.turn(r#"{"wa":{"price":"0.5000"}}"#).await;
    send(&bench, A, &[]).await.json();
    let summary = bench.summary().await;
    assert_eq!((&summary["amount"], &summary["units"]), (&json!("0.8300"), &json!(2)));
}

#[tokio::test]
async fn contract_9_whatsapp_and_sms_of_one_text_are_no_duplicate_and_no_report_shows_whatsapp() {
    let bench = Bench::new().await;
    bench.send(A, &[]).await.json();
    send(&bench, A, &[]).await.json();
    assert_eq!(bench.summary().await["by_recipient_text_duplicates"], 0);
    let listed = bench.list("pageLimit=10").await;
    assert_eq!(listed["response"]["count"], 1);
    assert_eq!(listed["response"]["reports_dlrList"][0]["uuId"], bench.lines()[0]["txn"]);
    send(&bench, A, &[]).await.json();
    assert_eq!(bench.summary().await["by_recipient_text_duplicates"], 1);
}

#[tokio::test]
async fn magic_numbers_mean_the_same_on_whatsapp() {
    let bench = Bench::new().await;
    assert_eq!(send(&bench, "919876540012", &[]).await.status(), 502);
    assert_eq!(send(&bench, "919876540016", &[]).await.json().get("messageId"), None);
    assert_eq!(send(&bench, "919876540017", &[]).await.json()["messageId"], "0");
    assert!(send(&bench, "919876540037", &[]).await.json()["messageId"].as_str().unwrap().starts_with("000"));
    let Seen::Answer { status: 307, head, .. } = send(&bench, "919876540019", &[]).await else { panic!("no redirect") };
    assert!(head.contains("location: /WAApi/send?followed=1"), "{head}");
    let decisions: Vec<_> = bench.lines().iter().map(|line| line["decision"].clone()).collect();
    assert_eq!(decisions, ["accepted", "accepted", "accepted", "accepted", "none"]);
}

#[tokio::test]
async fn contract_9_silent_non_delivery_is_accepted_and_has_no_receipt() {
    let bench = Bench::new().await;
    send(&bench, "919876540039", &[]).await.json();
    assert_eq!(bench.lines()[0]["decision"], "accepted");
    assert_eq!(bench.summary().await["receipts"]["due"], 0);
    // Beside it an ordinary one: delivered, then read.
    send(&bench, A, &[]).await.json();
    eventually("two receipts", async || (bench.summary().await["receipts"]["due"] == 2).then_some(())).await;
    bench.turn(r#"{"wa":{"read_rate":0}}"#).await;
    send(&bench, A, &[("msg", Some("unread"))]).await.json();
    eventually("one receipt", async || (bench.summary().await["receipts"]["due"] == 3).then_some(())).await;
}
