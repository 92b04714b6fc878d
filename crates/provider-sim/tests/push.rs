//! Receipts as a webhook sees them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, http::Uri, routing::any};
use common::{Bench, eventually, form, options};
use provider_sim::Options;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};

/// A webhook that keeps what it gets, after refusing the first few.
#[derive(Clone, Default)]
struct Hook {
    got: Arc<Mutex<Vec<HashMap<String, String>>>>,
    refuse: Arc<AtomicUsize>,
    server: Arc<Mutex<JoinSet<std::io::Result<()>>>>,
}

impl Hook {
    async fn start() -> (Self, String) {
        let hook = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let router = Router::new().route("/hook", any(Self::take)).with_state(hook.clone());
        hook.server.lock().unwrap().spawn(async move { axum::serve(listener, router).await });
        (hook, url)
    }

    async fn take(State(hook): State<Self>, uri: Uri, body: Bytes) -> StatusCode {
        if hook.refuse.load(Ordering::SeqCst) > 0 {
            hook.refuse.fetch_sub(1, Ordering::SeqCst);
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        let fields = serde_json::from_slice(&body).unwrap_or_else(|_| {
            let encoded = if body.is_empty() { uri.query().unwrap_or_default().as_bytes() } else { &body };
            form_urlencoded::parse(encoded).into_owned().collect()
        });
        hook.got.lock().unwrap().push(fields);
        StatusCode::OK
    }

    fn got(&self) -> Vec<HashMap<String, String>> {
        self.got.lock().unwrap().clone()
    }

    async fn wait(&self, count: usize) -> Vec<HashMap<String, String>> {
        eventually("receipts", async || Some(self.got()).filter(|got| got.len() >= count)).await
    }
}

async fn bench() -> (Bench, Hook) {
    let (hook, url) = Hook::start().await;
    let ledger = common::fresh_ledger();
    (Bench::on(Options { push_url: Some(url), ..options(&ledger) }).await, hook)
}

fn sorted(receipt: &HashMap<String, String>) -> Vec<(&str, &str)> {
    let mut fields: Vec<_> = receipt.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.sort_unstable();
    fields
}

#[tokio::test]
async fn contract_8_three_payload_shapes_by_post_or_get() {
    let (bench, hook) = bench().await;
    for (shape, method) in [("legacy", "POST"), ("kb_form", "POST"), ("kb_json", "POST"), ("sib", "GET")] {
        bench.turn(&format!(r#"{{"push":{{"shape":"{shape}","method":"{method}"}}}}"#)).await;
        let before = hook.got().len();
        bench.send("919876501234", &[]).await.json();
        let receipt = hook.wait(before + 1).await.pop().unwrap();
        let entry = bench.lines().pop().unwrap();
        let (txn, accepted) = (entry["txn"].as_str().unwrap(), &entry["accepted"][0]);
        let (id, at) = (accepted["msg_id"].as_str().unwrap(), entry["at"].to_string());
        let (done, mobile) = (accepted["done_at"].to_string(), "919876501234");
        let mut expected = match shape {
            "legacy" => {
                vec![("transId", txn), ("msgId", id), ("errorCode", "000"), ("dlrTime", &done), ("mobile", mobile)]
            }
            "sib" => vec![
                ("Transactionid", txn),
                ("Messageid", id),
                ("ErrorCode", "000"),
                ("MobileNumber", mobile),
                ("ReceivedTime", &at),
                ("DeliveredTime", &done),
            ],
            _ => vec![
                ("transactionId", txn),
                ("messageId", id),
                ("errorCode", "000"),
                ("mobile", mobile),
                ("receivedTime", &at),
                ("deliveredTime", &done),
            ],
        };
        expected.sort_unstable();
        assert_eq!(sorted(&receipt), expected, "{shape}");
    }
}

#[tokio::test]
async fn contract_8_a_whatsapp_message_that_is_read_has_a_second_receipt_with_its_own_time() {
    let (bench, hook) = bench().await;
    let body = form("919876501234", &[("senderid", None), ("wabaNumber", Some("919000000000"))]);
    for (shape, id, delivered_field, read_field) in
        [("legacy", "msgId", "dlrTime", "dlrTime"), ("kb_form", "messageId", "deliveredTime", "readTime")]
    {
        bench.turn(&format!(r#"{{"push":{{"shape":"{shape}"}}}}"#)).await;
        let before = hook.got().len();
        bench.post("/WAApi/send", &body, "").await.json();
        let receipts = hook.wait(before + 2).await.split_off(before);
        let accepted = bench.lines().pop().unwrap()["accepted"][0].clone();
        let codes: Vec<&str> = receipts.iter().map(|receipt| receipt["errorCode"].as_str()).collect();
        assert_eq!(codes, ["000", "100"], "{shape}");
        let done = accepted["done_at"].as_i64().unwrap();
        assert_eq!(receipts[0][delivered_field], done.to_string(), "{shape}");
        assert_eq!(receipts[1][read_field], (done + 50).to_string(), "{shape}");
        assert!(receipts.iter().all(|receipt| receipt[id] == accepted["msg_id"].as_str().unwrap()), "{shape}");
    }
}

#[tokio::test]
async fn magic_receipts_are_what_the_table_says() {
    for (suffix, codes) in [
        ("0030", vec!["008"]),
        ("0032", vec!["001"]),
        ("0034", vec!["999"]),
        ("0035", vec!["000", "000"]),
        ("0036", vec!["000", "001"]),
        ("0040", vec!["005"]),
    ] {
        let (bench, hook) = bench().await;
        bench.send(&format!("91987654{suffix}"), &[]).await.json();
        let receipts = hook.wait(codes.len()).await;
        let got: Vec<&str> = receipts.iter().map(|receipt| receipt["errorCode"].as_str()).collect();
        assert_eq!(got, codes, "{suffix}");
        if suffix == "0035" {
            assert_eq!(receipts[0], receipts[1]);
        }
    }
}

#[tokio::test]
async fn magic_0038_has_a_zero_delivered_time() {
    let (bench, hook) = bench().await;
    bench.send("919876540038", &[]).await.json();
    assert_eq!(hook.wait(1).await[0]["dlrTime"], "0");
}

#[tokio::test]
async fn magic_0031_and_the_knob_push_before_the_answer() {
    let (bench, hook) = bench().await;
    bench.send("919876540031", &[]).await.json();
    assert_eq!(hook.got().len(), 1, "the receipt came first");
    bench.turn(r#"{"push":{"before_response":true}}"#).await;
    bench.send("919876501234", &[]).await.json();
    assert_eq!(hook.got().len(), 2);
}

#[tokio::test]
async fn contract_8_a_receipt_is_retried_until_2xx_and_then_counted() {
    let (bench, hook) = bench().await;
    hook.refuse.store(2, Ordering::SeqCst);
    bench.send("919876501234", &[]).await.json();
    hook.wait(1).await;
    let counts = eventually("the count", async || {
        let counts = bench.summary().await["receipts"].clone();
        (counts["pending"] == 0).then_some(counts)
    })
    .await;
    assert_eq!(counts, json!({"due": 1, "acknowledged": 1, "given_up": 0, "withheld": 0, "pending": 0}));
}

#[tokio::test]
async fn contract_8_loss_copies_tries_and_an_account_url_follow_the_knobs() {
    let (bench, hook) = bench().await;
    bench.turn(r#"{"push":{"duplicates":2,"gap_ms":1}}"#).await;
    bench.send("919876501234", &[]).await.json();
    hook.wait(3).await;
    bench.turn(r#"{"push":{"loss_rate":1,"duplicates":0}}"#).await;
    bench.send("919876501234", &[]).await.json();
    bench.turn(r#"{"push":{"loss_rate":0,"tries":1}}"#).await;
    bench.control("PUT", "/accounts/demo", r#"{"push_url":"http://127.0.0.1:1/"}"#).await.json();
    bench.send("919876501234", &[]).await.json();
    let counts = eventually("all ended", async || {
        let counts = bench.summary().await["receipts"].clone();
        (counts["pending"] == 0).then_some(counts)
    })
    .await;
    assert_eq!(counts, json!({"due": 5, "acknowledged": 3, "given_up": 1, "withheld": 1, "pending": 0}));
    assert_eq!(hook.got().len(), 3);
}
