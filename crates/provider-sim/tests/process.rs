//! The binary, its files and its restarts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests are tests")]

mod common;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use common::{Bench, SILENCE, Seen, eventually, exchange, exchange_within, form, fresh_ledger, options, request};
use serde_json::{Value, json};

const A: &str = "919876501234";

struct Process {
    child: Child,
    listen: std::net::SocketAddr,
}

impl Process {
    async fn start(ledger: &Path) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_provider-sim")), ledger).await
    }

    async fn start_by(mut command: Command, ledger: &Path) -> Self {
        let ready = ledger.with_extension("ready");
        if ready.exists() {
            std::fs::remove_file(&ready).unwrap();
        }
        let child = command
            .args(["--latency-ms", "0", "--account", "second:pw2:KEY2", "--ledger"])
            .arg(ledger)
            .arg("--ready-file")
            .arg(&ready)
            .spawn()
            .unwrap();
        let addresses: Value = eventually("the ready file", async || {
            std::fs::read(&ready).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap())
        })
        .await;
        assert!(addresses["control"].as_str().unwrap().starts_with("127.0.0.1:"));
        Self { child, listen: addresses["listen"].as_str().unwrap().parse().unwrap() }
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }
}

fn lines(ledger: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(ledger).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn the_process_writes_its_ready_file_and_ends_with_0_on_sigterm() {
    let ledger = fresh_ledger();
    let mut process = Process::start(&ledger).await;
    let body = form(A, &[("userid", Some("second")), ("password", None)]);
    let answer = exchange(process.listen, &request("POST", "/SMSApi/send", &body, "apiKey: KEY2\r\n")).await;
    assert_eq!(answer.json()["status"], "success");
    let hanging = form("919876540010", &[]);
    let hanging = request("POST", "/SMSApi/send", &hanging, "");
    let silent = exchange_within(process.listen, &hanging, SILENCE).await;
    assert_eq!(silent, Seen::Silence { received: String::new() });
    process.signal("-TERM");
    assert!(process.child.wait().unwrap().success());
}

#[tokio::test]
async fn faults_l2_what_was_answered_survives_sigkill() {
    let ledger = fresh_ledger();
    let mut process = Process::start(&ledger).await;
    for suffix in ["1111", "0011", "0012", "0015"] {
        exchange(process.listen, &request("POST", "/SMSApi/send", &form(&format!("91987654{suffix}"), &[]), "")).await;
    }
    process.signal("-KILL");
    process.child.wait().unwrap();
    assert_eq!(lines(&ledger).iter().filter(|line| line["decision"] == "accepted").count(), 4);
}

#[tokio::test]
async fn faults_l2_no_answer_without_a_durable_line() {
    let ledger = fresh_ledger();
    let mut limited = Command::new("sh");
    // A file size limit whose signal is ignored: the write fails as on a full disk.
    limited.args(["-c", r#"trap "" XFSZ; ulimit -f 8; exec "$0" "$@""#, env!("CARGO_BIN_EXE_provider-sim")]);
    // The limit holds for every file: a log on disk would end it before its ledger does.
    limited.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Process::start_by(limited, &ledger).await;
    let mut answered = 0;
    let last = loop {
        let seen = exchange(process.listen, &request("POST", "/SMSApi/send", &form(A, &[]), "")).await;
        if !matches!(seen, Seen::Answer { status: 200, .. }) {
            break seen;
        }
        answered += 1;
    };
    assert!(answered > 2, "{last:?}");
    let whole = std::fs::read_to_string(&ledger).unwrap().matches('\n').count();
    assert_eq!(whole, answered);
    assert!(!process.child.wait().unwrap().success(), "a simulator without a ledger ends, and says so");
}

#[tokio::test]
async fn faults_l2_a_restart_keeps_records_balances_and_sequence() {
    let ledger = fresh_ledger();
    let bench = Bench::on(options(&ledger)).await;
    let txn = bench.send(A, &[]).await.json()["transactionId"].as_str().unwrap().to_owned();
    bench.send("919876540021", &[]).await.json();
    let before = bench.summary().await;
    bench.sim.stop().await.unwrap();

    let bench = Bench::on(options(&ledger)).await;
    let after = bench.summary().await;
    for name in ["requests", "refused", "accepted_recipients", "units", "amount", "by_account", "by_fate"] {
        assert_eq!(before[name], after[name], "{name}");
    }
    assert_eq!(bench.control("GET", "/accounts", "").await.json()[0]["balance"], "99999.8600");
    let report = bench.get(&format!("/SMSApi/report/status?{}&uuid={txn}", common::CREDENTIALS)).await.json();
    assert_eq!(report["response"]["count"], 1);
    assert_eq!(bench.send("919876540021", &[]).await.json()["statusCode"], "200", "throttled once, before the restart");
    bench.send(A, &[]).await.json();
    assert_eq!(bench.summary().await["by_recipient_text_duplicates"], 1, "duplicates are seen across restarts");
    let seqs: Vec<u64> = bench.lines().iter().map(|line| line["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
}

#[tokio::test]
async fn faults_l2_a_torn_last_line_is_cut_and_a_damaged_one_is_refused() {
    let ledger = fresh_ledger();
    let bench = Bench::on(options(&ledger)).await;
    bench.send(A, &[]).await.json();
    bench.sim.stop().await.unwrap();
    let append = |bytes: &[u8]| {
        std::fs::OpenOptions::new().append(true).open(&ledger).unwrap().write_all(bytes).unwrap();
    };
    append(br#"{"seq":2,"at":17"#);
    let bench = Bench::on(options(&ledger)).await;
    bench.send(A, &[]).await.json();
    assert_eq!(bench.lines().len(), 2);
    assert_eq!(bench.summary().await["requests"], 2);
    bench.sim.stop().await.unwrap();
    append(b"{\"seq\":3}\n");
    assert!(provider_sim::start(options(&ledger)).await.is_err());
}

#[tokio::test]
async fn a_ledger_has_one_writer() {
    let ledger = fresh_ledger();
    let _bench = Bench::on(options(&ledger)).await;
    let second = provider_sim::start(options(&ledger)).await;
    assert!(second.unwrap_err().to_string().contains("in use"));
}

#[tokio::test]
async fn control_shows_and_refuses_knobs_and_hides_secrets() {
    let bench = Bench::new().await;
    assert_eq!(bench.control("GET", "/healthz", "").await.body(), "ok");
    let knobs = bench.turn(r#"{"reports":{"lag_ms":5}}"#).await;
    assert_eq!(knobs["reports"]["lag_ms"], 5);
    assert_eq!(bench.control("GET", "/control", "").await.json(), knobs);
    assert_eq!(bench.control("PATCH", "/control", r#"{"reports":{"lag":5}}"#).await.status(), 400);
    let healed = bench.control("PUT", "/control", "{}").await.json();
    assert_eq!((&healed["reports"]["lag_ms"], &healed["send"]["latency_ms"]), (&json!(0), &json!(0)));
    let accounts = bench.control("GET", "/accounts", "").await;
    assert!(!accounts.body().contains("secret") && !accounts.body().contains("KEY1"));
    assert_eq!(bench.control("PUT", "/accounts/x", r#"{"zone":"UTC"}"#).await.status(), 400);
    assert_eq!(bench.control("GET", "/magic", "").await.json()[0]["suffix"], "0001");
}

#[tokio::test]
async fn many_requests_at_once_share_syncs_and_lose_nothing() {
    let bench = Bench::new().await;
    let sends = (0..200).map(|index| {
        let text = format!("message {index}");
        let body = form(A, &[("msg", Some(&text))]);
        let listen = bench.sim.listen;
        async move { exchange(listen, &request("POST", "/SMSApi/send", &body, "")).await }
    });
    for seen in futures_util::future::join_all(sends).await {
        assert_eq!(seen.json()["status"], "success");
    }
    let summary = bench.summary().await;
    assert_eq!((&summary["accepted_recipients"], &summary["amount"]), (&json!(200), &json!("28.0000")));
    assert_eq!(bench.lines().len(), 200);
}
