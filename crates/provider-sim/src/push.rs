//! Delivery receipts pushed to a webhook: three payload shapes, retried a bounded number of times, unsigned, unordered,
//! lost when nobody answers 2xx. Receipts still due when the simulator stops are lost too, as with the real provider.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use chrono_tz::Tz;
use reqwest::{Client, header::CONTENT_TYPE};
use serde::Serialize;
use tokio::sync::{Semaphore, oneshot};

use crate::{
    clock,
    codes::{DELIVERED, READ},
    fate::{Handset, handset_of},
    knobs::{Knobs, Method, PushKnobs, Shape},
    ledger::{Accepted, Entry, Kind},
    sim::Sim,
};

const AT_ONCE: usize = 32;
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Pushes {
    client: Client,
    permits: Semaphore,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    due: AtomicU64,
    acknowledged: AtomicU64,
    given_up: AtomicU64,
    withheld: AtomicU64,
}

/// Every receipt due ends in one of the other three, or is still `pending`.
#[derive(Debug, Serialize)]
pub struct PushCounts {
    pub due: u64,
    pub acknowledged: u64,
    /// Tries used up.
    pub given_up: u64,
    /// By loss rate, pushing disabled, or no URL.
    pub withheld: u64,
    pub pending: u64,
}

/// One receipt to push.
#[derive(Debug, Clone)]
struct Receipt {
    account: String,
    zone: Tz,
    txn: String,
    msg_id: String,
    mobile: String,
    code: &'static str,
    received_at: i64,
    /// `None` is spelt "0".
    delivered_at: Option<i64>,
    read_at: Option<i64>,
    wait: Duration,
    lost: bool,
}

impl Pushes {
    #[expect(clippy::disallowed_methods, reason = "own client: the simulator may not use the one under test")]
    pub fn new() -> anyhow::Result<Self> {
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .timeout(Duration::from_secs(10))
            .pool_max_idle_per_host(AT_ONCE)
            .build()?;
        Ok(Self { client, permits: Semaphore::new(AT_ONCE), counts: Counts::default() })
    }

    pub fn counts(&self) -> PushCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Acquire);
        let (acknowledged, given_up) = (read(&self.counts.acknowledged), read(&self.counts.given_up));
        let withheld = read(&self.counts.withheld);
        let due = read(&self.counts.due);
        PushCounts {
            due,
            acknowledged,
            given_up,
            withheld,
            pending: due.saturating_sub(acknowledged + given_up + withheld),
        }
    }
}

/// Schedules every receipt of an accepted request. Those that must precede the answer are waited for: returned are the
/// signals of their first tries.
pub fn schedule(sim: &Arc<Sim>, entry: &Entry, zone: Tz) -> Vec<oneshot::Receiver<()>> {
    let knobs = sim.knobs();
    let mut first_tries = Vec::new();
    for accepted in &entry.accepted {
        let before_answer = precedes_answer(&accepted.mobile, &knobs.push);
        let is_read = entry.kind == Kind::WaSend && sim.book().rng.hit(knobs.wa.read_rate);
        for receipt in receipts_of(entry, accepted, is_read, zone, &knobs) {
            let (tried, signal) = oneshot::channel();
            let wait = if before_answer { Duration::ZERO } else { receipt.wait };
            let lost = sim.book().rng.hit(knobs.push.loss_rate);
            let receipt = Receipt { wait, lost, ..receipt };
            sim.pushes.counts.due.fetch_add(1, Ordering::AcqRel);
            sim.tasks.spawn(until_stopped(Arc::clone(sim), receipt, tried));
            if before_answer {
                first_tries.push(signal);
            }
        }
    }
    first_tries
}

/// Whether this recipient's receipts go out before the answer to the request.
pub fn precedes_answer(mobile: &str, knobs: &PushKnobs) -> bool {
    knobs.before_response || handset_of(mobile) == Some(Handset::DeliveredBeforeAnswer)
}

fn receipts_of(entry: &Entry, accepted: &Accepted, is_read: bool, zone: Tz, knobs: &Knobs) -> Vec<Receipt> {
    let handset = handset_of(&accepted.mobile);
    let mut codes = match (handset, accepted.outcome.as_deref()) {
        (Some(handset), _) => handset.receipts(),
        (None, Some(outcome)) => crate::codes::delivery_code(outcome).map(|code| code.number).into_iter().collect(),
        (None, None) => Vec::new(),
    };
    if is_read && codes.last() == Some(&DELIVERED.number) {
        codes.push(READ);
    }
    let copies = 1 + knobs.push.duplicates as usize;
    let gap = i64::try_from(knobs.push.gap_ms).unwrap_or(i64::MAX);
    let steps = codes.into_iter().flat_map(|code| std::iter::repeat_n(code, copies));
    (0_i64..)
        .zip(steps)
        .map(|(step, code)| {
            let contradicts = handset == Some(Handset::DeliveredThenFailed) && code != DELIVERED.number;
            let read_at = (code == READ).then(|| accepted.done_at.saturating_add(gap));
            let done_at = accepted.done_at.saturating_add(if contradicts { gap } else { 0 });
            let timed = handset != Some(Handset::ZeroTimeReceipt);
            Receipt {
                account: entry.account.clone().unwrap_or_default(),
                zone,
                txn: entry.txn.clone().unwrap_or_default(),
                msg_id: accepted.msg_id.clone(),
                mobile: accepted.mobile.clone(),
                code,
                received_at: entry.at,
                delivered_at: timed.then_some(done_at),
                read_at: read_at.filter(|_| timed),
                wait: millis((accepted.done_at - entry.at).saturating_add(gap.saturating_mul(step))),
                lost: false,
            }
        })
        .collect()
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

async fn until_stopped(sim: Arc<Sim>, receipt: Receipt, tried: oneshot::Sender<()>) {
    let stopping = sim.stopping.clone();
    tokio::select! {
        () = stopping.cancelled() => {}
        () = push(&sim, &receipt, tried) => {}
    }
}

async fn push(sim: &Sim, receipt: &Receipt, tried: oneshot::Sender<()>) {
    tokio::time::sleep(receipt.wait).await;
    let counts = &sim.pushes.counts;
    let mut tried = Some(tried);
    let mut backoff = Duration::from_millis(50);
    let mut tries = 0;
    let ended = loop {
        let knobs = sim.knobs();
        let Some(url) = target(sim, receipt, &knobs.push).filter(|_| knobs.push.enabled && !receipt.lost) else {
            break &counts.withheld;
        };
        tries += 1;
        let acknowledged = attempt(&sim.pushes, receipt, &knobs.push, &url).await;
        if let Some(tried) = tried.take()
            && tried.send(()).is_err()
        {
            tracing::trace!("no answer waited for this receipt");
        }
        if acknowledged {
            break &counts.acknowledged;
        }
        if tries >= knobs.push.tries {
            break &counts.given_up;
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(LONGEST_BACKOFF);
    };
    ended.fetch_add(1, Ordering::AcqRel);
}

fn target(sim: &Sim, receipt: &Receipt, knobs: &PushKnobs) -> Option<String> {
    let own = sim.book().accounts.get(&receipt.account).and_then(|account| account.push_url.clone());
    own.or_else(|| knobs.url.clone())
}

async fn attempt(pushes: &Pushes, receipt: &Receipt, knobs: &PushKnobs, url: &str) -> bool {
    let Ok(_permit) = pushes.permits.acquire().await else { return false };
    let fields = receipt.fields(knobs);
    let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(&fields).finish();
    let request = match (knobs.method, knobs.shape) {
        (Method::Get, _) => {
            let joint = if url.contains('?') { '&' } else { '?' };
            pushes.client.get(format!("{url}{joint}{form}"))
        }
        (Method::Post, Shape::KbJson) => {
            let body: serde_json::Map<String, serde_json::Value> =
                fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
            let body = serde_json::Value::Object(body).to_string();
            pushes.client.post(url).header(CONTENT_TYPE, "application/json").body(body)
        }
        (Method::Post, Shape::KbForm | Shape::Legacy | Shape::Sib) => {
            pushes.client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form)
        }
    };
    match request.send().await {
        Ok(response) => response.status().is_success(),
        Err(error) => {
            tracing::debug!(error = %error.without_url(), "receipt push failed");
            false
        }
    }
}

impl Receipt {
    fn fields(&self, knobs: &PushKnobs) -> Vec<(&'static str, String)> {
        let spell = |ms: i64| clock::spell(ms, self.zone, knobs.time_format);
        let zero = || "0".to_owned();
        let received = spell(self.received_at);
        let delivered = self.delivered_at.map_or_else(zero, spell);
        let (txn, id, mobile) = (self.txn.clone(), self.msg_id.clone(), self.mobile.clone());
        let code = self.code.to_owned();
        // Where a shape has one time only, it is that of what the receipt tells.
        let done_at = self.read_at.or(self.delivered_at);
        match knobs.shape {
            Shape::KbJson | Shape::KbForm => [
                ("transactionId", txn),
                ("messageId", id),
                ("errorCode", code),
                ("mobile", mobile),
                ("receivedTime", received),
                ("deliveredTime", delivered),
            ]
            .into_iter()
            .chain(self.read_at.map(|ms| ("readTime", spell(ms))))
            .collect(),
            Shape::Legacy => vec![
                ("transId", txn),
                ("msgId", id),
                ("errorCode", code),
                ("dlrTime", done_at.map_or_else(zero, |ms| ms.to_string())),
                ("mobile", mobile),
            ],
            Shape::Sib => vec![
                ("Transactionid", txn),
                ("Messageid", id),
                ("ErrorCode", code),
                ("MobileNumber", mobile),
                ("ReceivedTime", received),
                ("DeliveredTime", done_at.map_or_else(zero, spell)),
            ],
        }
    }
}
