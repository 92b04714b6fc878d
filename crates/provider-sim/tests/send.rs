//! `/SMSApi/send`: what is accepted, refused, billed, and in which words.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod common;

use common::{Bench, form, options};
use serde_json::json;

const A: &str = "919876501234";
const B: &str = "919876501235";

#[tokio::test]
async fn contract_2_success_has_one_transaction_and_the_documented_fields() {
    let bench = Bench::new().await;
    let answer = bench.send(&format!("{A},{B}"), &[]).await.json();
    let txn = answer["transactionId"].as_str().unwrap();
    assert_eq!(txn.len(), 19);
    let expected = json!({"status": "success", "mobile": format!("{A},{B}"), "invalidMobile": "", "transactionId": txn,
        "statusCode": "200", "reason": "success", "msgId": ""});
    assert_eq!(answer, expected);

    let entry = &bench.lines()[0];
    assert_eq!(entry["decision"], "accepted");
    assert_eq!(entry["txn"], txn);
    let accepted = entry["accepted"].as_array().unwrap();
    assert_eq!(accepted.len(), 2);
    assert_ne!(accepted[0]["msg_id"], accepted[1]["msg_id"]);
    assert_eq!(accepted[0]["msg_id"].as_str().unwrap().len(), 15);
}

#[tokio::test]
async fn contract_1_plain_is_the_default_output_and_xml_is_a_choice() {
    let bench = Bench::new().await;
    let plain = bench.send(A, &[("output", None)]).await;
    let txn = bench.lines()[0]["txn"].as_str().unwrap().to_owned();
    assert_eq!(plain.body(), format!("success | {A} |  | {txn} | 200 | success | "));
    let xml = bench.send(A, &[("output", Some("xml")), ("msg", Some("other"))]).await;
    assert!(xml.body().contains(&format!("<mobile>{A}</mobile>")));
}

#[tokio::test]
async fn contract_1_a_missing_or_camel_case_userid_is_216_in_http_200() {
    let bench = Bench::new().await;
    let missing = bench.send(A, &[("userid", None)]).await.json();
    assert_eq!(missing, json!({"status": "error", "statusCode": "216", "reason": "Invalid credentials"}));
    let camel = bench.send(A, &[("userid", None), ("userId", Some("demo"))]).await.json();
    assert_eq!(camel["statusCode"], "216");
    let header_only =
        bench.post("/SMSApi/send", &form(A, &[("userid", None), ("password", None)]), "apiKey: KEY1\r\n").await;
    assert_eq!(header_only.json()["statusCode"], "216");
    let wrong = bench.send(A, &[("password", Some("wrong"))]).await.json();
    assert_eq!(wrong["statusCode"], "216");
    let body = r#"{"userid":"demo","password":"secret"}"#;
    let raw = format!(
        "POST /SMSApi/send HTTP/1.1\r\nHost: sim\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let json_body = common::exchange(bench.sim.listen, &raw).await;
    assert_eq!(json_body.body(), "error | 216 | Invalid credentials");
    let lines = bench.lines();
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|line| line["decision"] == "refused" && line["account"].is_null()));
}

#[tokio::test]
async fn contract_1_no_password_and_no_key_is_214_and_a_key_in_any_case_is_enough() {
    let bench = Bench::new().await;
    assert_eq!(bench.send(A, &[("password", None)]).await.json()["statusCode"], "214");
    let body = form(A, &[("password", None)]);
    for header in ["apiKey: KEY1\r\n", "apikey: KEY1\r\n", "APIKEY: KEY1\r\n"] {
        let answer = bench.post("/SMSApi/send", &body, header).await.json();
        assert_eq!(answer["statusCode"], "200", "{header}");
    }
    assert_eq!(bench.post("/SMSApi/send", &body, "apiKey: no\r\n").await.json()["statusCode"], "216");
}

#[tokio::test]
async fn contract_2_non_ascii_as_text_is_171_and_gsm_only_by_knob() {
    let bench = Bench::new().await;
    assert_eq!(bench.send(A, &[("msg", Some("café"))]).await.json()["statusCode"], "171");
    let unicode = [("msg", Some("café")), ("msgType", Some("unicode"))];
    assert_eq!(bench.send(A, &unicode).await.json()["statusCode"], "200");
    bench.turn(r#"{"send":{"text_rule":"gsm"}}"#).await;
    assert_eq!(bench.send(A, &[("msg", Some("café"))]).await.json()["statusCode"], "200");
    assert_eq!(bench.send(A, &[("msg", Some("a—b"))]).await.json()["statusCode"], "171");
}

#[tokio::test]
async fn contract_3_a_flag_that_is_not_exactly_true_or_false_is_147() {
    let bench = Bench::new().await;
    for (name, value) in [("testMessage", ""), ("testMessage", "TRUE"), ("duplicatecheck", "1")] {
        assert_eq!(bench.send(A, &[(name, Some(value))]).await.json()["statusCode"], "147", "{name}={value}");
    }
    assert_eq!(bench.summary().await["accepted_recipients"], 0);
}

#[tokio::test]
async fn contract_2_duplicates_go_within_the_request_and_stay_when_asked() {
    let bench = Bench::new().await;
    bench.send(&format!("{A},{A},{B}"), &[]).await.json();
    bench.send(&format!("{A},{A}"), &[("duplicatecheck", Some("false")), ("msg", Some("two"))]).await.json();
    let lines = bench.lines();
    assert_eq!(lines[0]["accepted"].as_array().unwrap().len(), 2);
    assert_eq!(lines[0]["duplicates"], json!([A]));
    assert_eq!(lines[1]["accepted"].as_array().unwrap().len(), 2);

    bench.turn(r#"{"send":{"duplicatecheck_spelling":"lower"}}"#).await;
    bench.send(&format!("{A},{A}"), &[("duplicateCheck", Some("false")), ("msg", Some("three"))]).await.json();
    assert_eq!(bench.lines()[2]["accepted"].as_array().unwrap().len(), 1, "a spelling not honoured has no effect");
}

#[tokio::test]
async fn contract_2_a_cross_request_window_drops_a_repeat_and_accepts_nothing() {
    let bench = Bench::new().await;
    bench.turn(r#"{"send":{"cross_request_window_s":60}}"#).await;
    bench.send(A, &[]).await.json();
    assert_eq!(bench.send(A, &[]).await.json()["status"], "success");
    assert_eq!(bench.summary().await["accepted_recipients"], 1);
    assert_eq!(bench.lines()[1]["decision"], "refused");
}

#[tokio::test]
async fn contract_2_invalid_recipients_are_listed_unbilled_beside_accepted_ones() {
    let bench = Bench::new().await;
    let list = format!("{A},+919876501236,98765,919876540003, {B}");
    let answer = bench.send(&list, &[]).await.json();
    assert_eq!(answer["status"], "success");
    assert_eq!(answer["invalidMobile"], format!("+919876501236,98765,919876540003, {B}"));
    let summary = bench.summary().await;
    assert_eq!((&summary["accepted_recipients"], &summary["invalid_recipients"]), (&json!(1), &json!(4)));
    assert_eq!(summary["amount"], "0.1400");
}

#[tokio::test]
async fn contract_2_a_batch_of_only_invalid_numbers_has_both_shapes() {
    let bench = Bench::new().await;
    let success = bench.send("919876540003", &[]).await.json();
    assert_eq!((&success["status"], &success["invalidMobile"]), (&json!("success"), &json!("919876540003")));
    bench.turn(r#"{"send":{"all_invalid_as_error":true}}"#).await;
    assert_eq!(bench.send("919876540003", &[]).await.json()["statusCode"], "303");
    assert!(bench.lines().iter().all(|line| line["decision"] == "refused"));
}

#[tokio::test]
async fn faults_f9_invalid_numbers_come_back_in_other_spellings_and_sets_that_do_not_add_up() {
    let bench = Bench::new().await;
    bench
        .turn(r#"{"send":{"invalid_mobile_form":"national","invalid_mobile_repeat":true,"invalid_mobile_stranger":"1234567890"}}"#)
        .await;
    let answer = bench.send(&format!("{A},919876540003"), &[]).await.json();
    assert_eq!(answer["invalidMobile"], "9876540003,9876540003,1234567890");
}

#[tokio::test]
async fn contract_2_the_wallet_is_debited_to_the_last_paisa_at_acceptance() {
    let ledger = common::fresh_ledger();
    let options = provider_sim::Options { wallet: "1.0000".parse().unwrap(), ..options(&ledger) };
    let bench = Bench::on(options).await;
    let long = "a".repeat(161);
    bench.send(&format!("{A},{B}"), &[("msg", Some(&long))]).await.json();
    bench.send(A, &[("msg", Some("नमस्ते")), ("msgType", Some("unicode"))]).await.json();
    let accounts = bench.control("GET", "/accounts", "").await.json();
    assert_eq!(accounts[0]["balance"], "0.3000", "1.00 - 5 x 0.14");
    let refused = bench.send(A, &[("msg", Some(&"a".repeat(400)))]).await.json();
    assert_eq!(refused["statusCode"], "302");
    bench.send(&format!("{A},{B}"), &[("msg", Some("last"))]).await.json();
    let summary = bench.summary().await;
    assert_eq!((&summary["amount"], &summary["units"]), (&json!("0.9800"), &json!(7)));
    bench.control("PUT", "/accounts/demo", r#"{"balance":"5"}"#).await.json();
    assert_eq!(bench.control("GET", "/accounts", "").await.json()[0]["balance"], "5.0000");
}

#[tokio::test]
async fn contract_2_a_test_message_is_answered_but_not_accepted() {
    let bench = Bench::new().await;
    assert_eq!(bench.send(A, &[("testMessage", Some("true"))]).await.json()["status"], "success");
    assert_eq!(bench.summary().await["accepted_recipients"], 0);
}

#[tokio::test]
async fn contract_10_codes_and_ids_can_be_numbers_or_uuids() {
    let bench = Bench::new().await;
    bench.turn(r#"{"send":{"numeric_status_code":true,"numeric_transaction_id":true}}"#).await;
    let body = bench.send(A, &[]).await;
    let txn = bench.lines()[0]["txn"].as_str().unwrap().to_owned();
    assert!(body.body().contains(&format!(r#""transactionId":{txn},"statusCode":200"#)));
    bench.turn(r#"{"send":{"uuid_transaction_id":true}}"#).await;
    assert_eq!(bench.send(A, &[]).await.json()["transactionId"].as_str().unwrap().len(), 36);
}

#[tokio::test]
async fn faults_l2_a_double_send_shows_in_the_summary() {
    let bench = Bench::new().await;
    let first = bench.send(A, &[]).await.json();
    let second = bench.send(A, &[]).await.json();
    bench.send(A, &[("msg", Some("another"))]).await.json();
    let summary = bench.summary().await;
    assert_eq!(summary["by_recipient_text_duplicates"], 1);
    let expected = json!([{"recipient": A, "text": "Hello", "times": 2,
        "txns": [first["transactionId"], second["transactionId"]]}]);
    assert_eq!(summary["duplicates"], expected);
    assert_eq!(summary["by_account"]["demo"]["accepted_recipients"], 3);
}

#[tokio::test]
async fn faults_l2_the_ledger_keeps_request_id_and_body_hash() {
    let bench = Bench::new().await;
    bench.post("/SMSApi/send", &form(A, &[]), "X-Request-Id: attempt-7\r\n").await.json();
    let entry = &bench.lines()[0];
    assert_eq!(entry["request_id"], "attempt-7");
    assert_eq!(entry["body_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(bench.control("GET", "/ledger?since=1", "").await.json(), json!([]));
    assert_eq!(&bench.entries().await[0], entry);
}
