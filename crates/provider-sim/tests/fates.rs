//! Each magic number as a client sees it, and what the ledger holds by then.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod common;

use std::time::Duration;

use common::{Bench, SILENCE, Seen, exchange, exchange_within, form, read_all, read_within, request};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

fn number(suffix: &str) -> String {
    format!("91987654{suffix}")
}

/// Sends to the magic number, then reads the ledger from disk: (what was seen, decision, fate, accepted recipients).
async fn fate_of(bench: &Bench, suffix: &str) -> (Seen, String, String, usize) {
    let patience = if ["0010", "0014"].contains(&suffix) { SILENCE } else { Duration::from_secs(20) };
    let raw = request("POST", "/SMSApi/send", &form(&number(suffix), &[]), "");
    let seen = exchange_within(bench.sim.listen, &raw, patience).await;
    let entry = bench.lines().pop().expect("a ledger line");
    let text = |name: &str| entry[name].as_str().unwrap().to_owned();
    (seen, text("decision"), text("fate"), entry["accepted"].as_array().unwrap().len())
}

async fn accepted(suffix: &str, fate: &str) -> (Bench, Seen) {
    let bench = Bench::new().await;
    let (seen, decision, word, count) = fate_of(&bench, suffix).await;
    assert_eq!((decision.as_str(), word.as_str(), count), ("accepted", fate, 1));
    assert_eq!(bench.lines().len(), 1);
    (bench, seen)
}

async fn unaccepted(suffix: &str, decision: &str, fate: &str) -> Seen {
    let bench = Bench::new().await;
    let (seen, decided, word, count) = fate_of(&bench, suffix).await;
    assert_eq!((decided.as_str(), word.as_str(), count), (decision, fate, 0));
    assert_eq!(bench.summary().await["amount"], "0");
    seen
}

#[tokio::test]
async fn magic_0001_and_0002_refuse_the_whole_request() {
    assert_eq!(unaccepted("0001", "refused", "template_mismatch").await.json()["statusCode"], "188");
    assert_eq!(unaccepted("0002", "refused", "unlisted_code").await.json()["statusCode"], "777");
}

#[tokio::test]
async fn a_whole_request_fate_of_any_recipient_applies_to_the_list() {
    let bench = Bench::new().await;
    let list = format!("919876501234,{}", number("0001"));
    assert_eq!(bench.send(&list, &[]).await.json()["statusCode"], "188");
}

#[tokio::test]
async fn faults_f4_accept_then_hang_is_silent_until_the_client_closes() {
    let (_, seen) = accepted("0010", "accept_then_hang").await;
    assert_eq!(seen, Seen::Silence { received: String::new() });
}

#[tokio::test]
async fn faults_f4_accept_then_reset_is_a_real_rst_after_a_durable_line() {
    let (_, seen) = accepted("0011", "accept_then_reset").await;
    assert_eq!(seen, Seen::Reset { received: String::new() });
}

#[tokio::test]
async fn faults_f5_html_502_after_and_before_accepting_look_alike() {
    let (_, after) = accepted("0012", "5xx_after").await;
    let before = unaccepted("0013", "none", "5xx_before").await;
    assert_eq!((after.status(), before.status()), (502, 502));
    let Seen::Answer { body, .. } = after else { panic!() };
    assert!(body.starts_with("<html>"));
}

#[tokio::test]
async fn faults_f4_hang_and_reset_without_accepting() {
    assert_eq!(unaccepted("0014", "none", "hang_before").await, Seen::Silence { received: String::new() });
    assert_eq!(unaccepted("0018", "none", "reset_before").await, Seen::Reset { received: String::new() });
}

#[tokio::test]
async fn faults_f6_truncated_json_and_empty_body_after_accepting() {
    let (_, seen) = accepted("0015", "truncated").await;
    assert!(seen.body().starts_with(r#"{"status":"success""#));
    assert!(serde_json::from_str::<serde_json::Value>(seen.body()).is_err());
    let (_, seen) = accepted("0027", "empty_body").await;
    assert_eq!(seen.body(), "");
}

#[tokio::test]
async fn contract_10_no_id_and_zero_id_hide_an_id_the_ledger_has() {
    let (bench, seen) = accepted("0016", "no_id").await;
    assert!(seen.json().get("transactionId").is_none());
    assert_eq!(bench.lines()[0]["txn"].as_str().unwrap().len(), 19);
    let (bench, seen) = accepted("0017", "zero_id").await;
    assert_eq!(seen.json()["transactionId"], "0");
    assert_eq!(bench.lines()[0]["txn"].as_str().unwrap().len(), 19);
}

#[tokio::test]
async fn contract_10_leading_zeros_belong_to_the_id() {
    let (bench, seen) = accepted("0037", "leading_zeros").await;
    let txn = seen.json()["transactionId"].as_str().unwrap().to_owned();
    assert!(txn.starts_with("000") && txn.len() == 19);
    assert_eq!(bench.lines()[0]["txn"], *txn);
}

#[tokio::test]
async fn faults_f6_a_redirect_accepts_nothing_and_following_it_shows() {
    for (suffix, status, fate) in [("0019", 307, "redirect_307"), ("0020", 308, "redirect_308")] {
        let bench = Bench::new().await;
        let (seen, decision, word, _) = fate_of(&bench, suffix).await;
        assert_eq!((seen.status(), decision.as_str(), word.as_str()), (status, "none", fate));
        let Seen::Answer { head, .. } = seen else { panic!() };
        let location = head.lines().find_map(|line| line.strip_prefix("location: ")).unwrap().to_owned();
        bench.post(&location, &form(&number(suffix), &[]), "").await.json();
        assert_eq!(bench.summary().await["accepted_recipients"], 1);
    }
}

#[tokio::test]
async fn magic_0021_is_throttled_once_per_recipient_and_0022_always() {
    let bench = Bench::new().await;
    let (first, second) = (number("0021"), "918887770021");
    assert_eq!(bench.send(&first, &[]).await.json()["statusCode"], "305");
    assert_eq!(bench.send(&first, &[]).await.json()["statusCode"], "200");
    assert_eq!(bench.send(second, &[]).await.json()["statusCode"], "305");
    assert_eq!(bench.send(&number("0022"), &[]).await.json()["statusCode"], "305");
    bench.turn(r#"{"send":{"throttle_http_429":true}}"#).await;
    let seen = bench.send(&number("0022"), &[]).await;
    assert_eq!(seen.status(), 429);
    let Seen::Answer { body, .. } = seen else { panic!() };
    assert!(body.contains(r#""statusCode":"305""#));
}

#[tokio::test]
async fn faults_f4_a_late_answer_comes_after_the_ledger_line() {
    let bench = Bench::new().await;
    bench.turn(r#"{"send":{"late_ms":1500}}"#).await;
    let mut stream = TcpStream::connect(bench.sim.listen).await.unwrap();
    stream.write_all(request("POST", "/SMSApi/send", &form(&number("0023"), &[]), "").as_bytes()).await.unwrap();
    assert_eq!(read_within(&mut stream, SILENCE).await, Seen::Silence { received: String::new() });
    assert_eq!(bench.lines()[0]["decision"], "accepted");
    assert_eq!(read_all(&mut stream).await.json()["status"], "success");
}

#[tokio::test]
async fn faults_f6_half_a_body_then_reset() {
    let (_, seen) = accepted("0024", "half_body").await;
    let Seen::Reset { received } = seen else { panic!("{seen:?}") };
    assert!(received.contains(r#"{"status":"success""#) && !received.contains("msgId"));
}

#[tokio::test]
async fn faults_f6_trickle_ends_in_a_whole_answer() {
    let bench = Bench::new().await;
    bench.turn(r#"{"send":{"trickle_ms":1}}"#).await;
    assert_eq!(bench.send(&number("0025"), &[]).await.json()["status"], "success");
}

#[tokio::test]
async fn faults_f6_two_answers_to_one_request() {
    let bench = Bench::new().await;
    let raw = request("POST", "/SMSApi/send", &form(&number("0026"), &[]), "").replace("Connection: close\r\n", "");
    let mut stream = TcpStream::connect(bench.sim.listen).await.unwrap();
    stream.write_all(raw.as_bytes()).await.unwrap();
    let Seen::Silence { received } = read_within(&mut stream, 2 * SILENCE).await else { panic!() };
    assert_eq!(received.matches("HTTP/1.1 200 OK").count(), 2);
    assert!(received.ends_with(r#""reason":"unasked"}"#));
    assert_eq!(bench.lines().len(), 1);
}

#[tokio::test]
async fn faults_f8_an_idle_connection_closes_unannounced() {
    let bench = Bench::new().await;
    bench.turn(r#"{"send":{"close_idle_rate":1,"close_idle_max_ms":30}}"#).await;
    let raw = request("POST", "/SMSApi/send", &form("919876501234", &[]), "").replace("Connection: close\r\n", "");
    let mut stream = TcpStream::connect(bench.sim.listen).await.unwrap();
    stream.write_all(raw.as_bytes()).await.unwrap();
    let seen = read_all(&mut stream).await;
    let Seen::Answer { head, .. } = &seen else { panic!("the server did not close: {seen:?}") };
    assert!(!head.to_lowercase().contains("connection: close"));
    assert_eq!(seen.json()["status"], "success");
}

#[tokio::test]
async fn faults_21_a_request_in_the_inbox_is_accepted_after_the_client_left() {
    let bench = Bench::new().await;
    bench.turn(r#"{"send":{"inbox_ms":1000}}"#).await;
    let mut stream = TcpStream::connect(bench.sim.listen).await.unwrap();
    stream.write_all(request("POST", "/SMSApi/send", &form("919876501234", &[]), "").as_bytes()).await.unwrap();
    let mut nothing = [0; 1];
    assert!(tokio::time::timeout(Duration::from_millis(80), stream.read(&mut nothing)).await.is_err());
    assert!(bench.lines().is_empty());
    drop(stream);
    common::eventually("acceptance", async || (bench.lines().len() == 1).then_some(())).await;
}

#[tokio::test]
async fn rates_draw_one_fate_per_request_from_the_seed() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let bench = Bench::new().await;
        bench.turn(r#"{"seed":7,"rates":{"accept_then_reset":0.3,"5xx_before":0.3,"throttle":0.2}}"#).await;
        for _ in 0..40 {
            bench.send("919876501234", &[]).await;
        }
        let fates: Vec<String> = bench.lines().iter().map(|line| line["fate"].as_str().unwrap().to_owned()).collect();
        for fate in ["accept_then_reset", "5xx_before", "throttled", "plain"] {
            assert!(fates.iter().any(|one| one == fate), "{fate} in {fates:?}");
        }
        runs.push(fates);
    }
    assert_eq!(runs[0], runs[1], "a seed repeats its faults");
}

#[tokio::test]
async fn faults_f7_down_resets_at_accept_or_says_503_or_404_and_accepts_nothing() {
    let bench = Bench::new().await;
    bench.turn(r#"{"down":"close"}"#).await;
    let mut stream = TcpStream::connect(bench.sim.listen).await.unwrap();
    let mut byte = [0; 1];
    assert!(stream.read(&mut byte).await.is_err(), "reset at accept");
    for (down, status) in [("http503", 503), ("http404", 404)] {
        bench.turn(&format!(r#"{{"down":"{down}"}}"#)).await;
        assert_eq!(bench.send("919876501234", &[]).await.status(), status);
    }
    bench.turn(r#"{"down":"no"}"#).await;
    assert_eq!(bench.send("919876501234", &[]).await.json()["status"], "success");
    let decisions: Vec<_> = bench.lines().iter().map(|line| line["decision"].clone()).collect();
    assert_eq!(decisions, ["none", "none", "accepted"]);
}

#[tokio::test]
async fn tps_limit_throttles_and_other_routes_are_404() {
    let bench = Bench::new().await;
    bench.turn(r#"{"send":{"tps_limit":2}}"#).await;
    let mut codes = Vec::new();
    for _ in 0..8 {
        codes.push(bench.send("919876501234", &[]).await.json()["statusCode"].as_str().unwrap().to_owned());
    }
    assert!(codes.iter().any(|code| code == "305"), "{codes:?}");
    assert_eq!(exchange(bench.sim.listen, &request("POST", "/SMSApi/sent", "", "")).await.status(), 404);
}
