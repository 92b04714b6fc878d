//! A simulator with given knobs, an account at it, and a sender and a reader of that account.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use chrono_tz::Tz;
use provider_sim::{Options, Running};
use sendonce_core::clock::{Clock, Deadline, SystemClock};
use sendonce_core::config::{Account, Budgets};
use sendonce_core::domain::message::{AttemptKey, Body, Channel, Class, Encoding, ProviderRef, Recipient};
use sendonce_core::domain::outcome::Outcome;
use sendonce_core::domain::receipt::ReceiptKind;
use sendonce_core::provider::{Listing, ReportError, ReportWindow, Reports, SendRequest};
use sendonce_providers::{connect, connect_reports};
use serde_json::{Value, json};
use uuid::Uuid;

/// How long anything may take on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Bench {
    sim: Running,
    ledger: PathBuf,
    zone: Tz,
}

impl Bench {
    pub async fn new(knobs: Value) -> Self {
        Self::in_zone("Asia/Kolkata", knobs).await
    }

    pub async fn in_zone(zone: &str, knobs: Value) -> Self {
        static TLS: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        TLS.call_once(|| rustls::crypto::ring::default_provider().install_default().unwrap());
        let name = format!("reports-{}-{}.jsonl", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let ledger = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        if ledger.exists() {
            std::fs::remove_file(&ledger).unwrap();
        }
        let zone: Tz = zone.parse().unwrap();
        let options =
            Options { latency_ms: 0, api_key: Some("KEY1".into()), zone, knobs: Some(knobs), ..Options::new(&ledger) };
        Self { sim: provider_sim::start(options).await.unwrap(), ledger, zone }
    }

    /// The account, with some fields replaced.
    pub fn account(&self, with: Value) -> Account {
        let mut fields = json!({
            "dialect": "smsgatewaycenter", "channel": "sms", "base_url": format!("http://{}", self.sim.listen),
            "userid": "demo", "password": "secret", "zone": self.zone.name(), "reports": { "page_pause": "0s" },
        });
        for (name, value) in with.as_object().unwrap() {
            fields[name] = value.clone();
        }
        serde_json::from_value(fields).unwrap()
    }

    pub fn connect(&self, account: &Account) -> Arc<dyn Reports> {
        connect_reports("acme-sms", account, &Budgets::default()).unwrap().unwrap()
    }
    pub fn reports(&self) -> Arc<dyn Reports> {
        self.reports_with(json!({}))
    }
    /// With some of the account's `reports` replaced.
    pub fn reports_with(&self, mut reports: Value) -> Arc<dyn Reports> {
        reports["page_pause"] = "0s".into();
        self.connect(&self.account(json!({ "reports": reports })))
    }

    pub async fn list(&self) -> Result<Listing, ReportError> {
        self.reports().list(yesterday_to_tomorrow()).await
    }

    /// The list once nothing on it is on its way any more.
    pub async fn decided(&self) -> Listing {
        eventually("delivery", async || {
            let listing = self.list().await.unwrap();
            listing.records.iter().all(|record| record.status != Some(ReceiptKind::Submitted)).then_some(listing)
        })
        .await
    }

    /// Sends one request through our own sender.
    pub async fn send(&self, recipients: &[String], text: &str) -> ProviderRef {
        let request = SendRequest {
            attempt_key: AttemptKey(Uuid::from_u128(0x1234)),
            channel: Channel::Sms,
            class: Class::Transactional,
            sender_id: Some("ACMEIN".into()),
            body: Body::new(text.to_owned()),
            encoding: Encoding::Gsm7,
            dlt_entity_id: Some("1101".into()),
            dlt_template_id: Some("1107".into()),
            recipients: recipients.iter().map(|number| Recipient::from_e164_digits(number).unwrap()).collect(),
            trace_parent: None,
        };
        let deadline = Deadline::after(Arc::new(SystemClock), PATIENCE);
        let sender = connect("acme-sms", &self.account(json!({})), &Budgets::default()).unwrap();
        let outcome = sender.send(&request, deadline).await.outcome;
        let Outcome::Accepted(accepted) = outcome else { panic!("{outcome:?}") };
        accepted.txn_id.unwrap()
    }

    /// The lines on disk, read past the simulator.
    pub fn ledger(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.ledger).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// By the simulator's clock, which is the machine's. A day more on each side covers every zone and a midnight in between.
pub fn yesterday_to_tomorrow() -> ReportWindow {
    let now = SystemClock.wall();
    ReportWindow::around(now - TimeDelta::minutes(1), now, Tz::UTC)
}

pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
