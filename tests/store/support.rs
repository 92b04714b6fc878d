//! A database of a test's own, and the moves that every test makes on it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rust_decimal::Decimal;
use sendonce_core::config::Database;
use sendonce_core::domain::key::{BusinessKey, InputFields, InputHash, KeyFields};
use sendonce_core::domain::message::{
    AttemptKey, Body, Channel, Class, Encoding, JobId, LeaseToken, MessageId, ProviderRef, Recipient,
};
use sendonce_core::domain::outcome::{Accepted, Ambiguity, NotSent, Outcome, Refusal};
use sendonce_core::domain::receipt::ReceiptKind;
use sendonce_core::domain::state::State;
use sendonce_core::provider::Answer;
use sendonce_core::store::{
    Admitted, Claim, ClaimJob, ClaimedMessage, Ended, NewJob, NewMessage, NewReceipt, Recorded, Store, StoreError,
    SweepConnection, Timing,
};
use sendonce_devstack::StackHandle;
use serde_json::Value;
use uuid::Uuid;

pub const ACCOUNT: &str = "main";
pub const ANNA: &str = "919876543210";
pub const BERT: &str = "919876543211";
pub const CARL: &str = "919876543212";

/// Short enough to wait for, long enough for a busy machine to record in time.
pub const SHORT_LEASE: Duration = Duration::from_millis(1200);

/// As the defaults, but for the attempts.
pub const TIMING: Timing = Timing {
    lease: Duration::from_secs(60),
    grace: [Duration::from_secs(5), Duration::from_secs(60), Duration::from_secs(60)],
    unknown_sla: [Duration::from_secs(60), Duration::from_secs(600), Duration::from_secs(3600)],
    max_attempts: 3,
};

static NEXT_ID: AtomicI64 = AtomicI64::new(7_000_000_001);
static NEXT_UUID: AtomicU64 = AtomicU64::new(1);

fn next_id() -> i64 {
    NEXT_ID.fetch_add(1, Ordering::SeqCst)
}

fn next_uuid() -> Uuid {
    Uuid::from_u128(0x7e57_0000_0000_4000_8000_0000_0000_0000 + u128::from(NEXT_UUID.fetch_add(1, Ordering::SeqCst)))
}

pub fn attempt_key() -> AttemptKey {
    AttemptKey(next_uuid())
}

pub fn token() -> LeaseToken {
    LeaseToken(next_uuid())
}

pub fn new_job() -> JobId {
    JobId(next_id())
}

pub fn recipient(digits: &str) -> Recipient {
    Recipient::from_e164_digits(digits).unwrap()
}

/// The `n`-th number of many.
pub fn number(n: usize) -> String {
    format!("9190000{n:05}")
}

/// A transactional SMS of one segment at 0.1250 to `to`, an event of its own.
pub fn message(job: JobId, to: &str) -> NewMessage {
    let id = MessageId(next_id());
    let event_id = format!("event-{id}");
    message_of(id, job, "acme", &event_id, to, "Your order 17 has shipped")
}

/// Key and input hash follow from the arguments as ingest derives them.
pub fn message_of(id: MessageId, job: JobId, tenant: &str, event_id: &str, to: &str, body: &str) -> NewMessage {
    let to = recipient(to);
    let key = KeyFields { tenant, event_type: "order.shipped", event_id, step: None, recipient: &to, template: None };
    let inputs = InputFields {
        template: None,
        params: &BTreeMap::new(),
        body: Some(body),
        channels: &[Channel::Sms],
        sender_id: Some("ACMEIN"),
    };
    NewMessage {
        id,
        job_id: job,
        attempt_key: attempt_key(),
        business_key: BusinessKey::derive(&key),
        input_hash: InputHash::derive(&inputs),
        tenant: tenant.into(),
        channel: Channel::Sms,
        class: Class::Transactional,
        account: ACCOUNT.into(),
        recipient: to,
        sender_id: Some("ACMEIN".into()),
        event_source: Some("/shop/orders".into()),
        event_type: "order.shipped".into(),
        event_id: event_id.into(),
        event_recipients: 1,
        step: None,
        campaign: None,
        trace_parent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        template_id: None,
        body: Body::new(body.into()),
        encoding: Encoding::Gsm7,
        segments: 1,
        dlt_entity_id: Some("1001234567890123456".into()),
        dlt_template_id: Some("1207161000000000042".into()),
        scheduled_for: None,
        expires_at: None,
        ttl: Duration::from_secs(24 * 3600),
        ttl_from: None,
        unit_price: Decimal::new(1250, 4),
        currency: "INR".into(),
        rate_id: 1,
        fallback_channels: vec![Channel::Whatsapp],
        correlation_window: std::time::Duration::from_secs(90),
    }
}

/// A claim of `jobs` with fresh token and keys.
pub fn claim(jobs: &[JobId], slots: usize, max_recipients: u16) -> Claim {
    Claim {
        token: token(),
        jobs: jobs.iter().map(|&id| ClaimJob { id, max_recipients }).collect(),
        attempt_keys: (0..slots).map(|_| attempt_key()).collect(),
        repeated: false,
    }
}

/// Rows by request.
pub fn requests(rows: &[ClaimedMessage]) -> Vec<Vec<ClaimedMessage>> {
    let mut by_key: BTreeMap<AttemptKey, Vec<ClaimedMessage>> = BTreeMap::new();
    for row in rows {
        by_key.entry(row.attempt_key).or_default().push(row.clone());
    }
    by_key.into_values().collect()
}

/// The end of one request.
pub fn ended(rows: &[ClaimedMessage], outcome: Outcome) -> Ended {
    let first = rows.first().unwrap();
    assert!(rows.iter().all(|row| row.attempt_key == first.attempt_key), "one request");
    Ended {
        attempt_key: first.attempt_key,
        job_id: first.job_id,
        message_created_at: first.created_at,
        claimed_at: first.claimed_at,
        tenant: first.tenant.clone(),
        channel: first.channel,
        class: first.class,
        account: first.account.clone(),
        messages: rows.iter().map(|row| (row.id, row.recipient.clone())).collect(),
        answer: Answer { outcome, http_status: Some(200) },
        retry_after: Duration::from_secs(30),
    }
}

pub fn accepted(txn_id: &str) -> Outcome {
    Outcome::Accepted(Accepted {
        txn_id: ProviderRef::clean(txn_id),
        code: Some("200".into()),
        cause: Some("SUCCESS".into()),
        ..Accepted::default()
    })
}

pub fn refused() -> Outcome {
    Outcome::Rejected(Refusal { code: Some("123".into()), cause: Some("invalid sender".into()), unlisted: false })
}

pub fn throttled() -> Outcome {
    Outcome::Throttled {
        retry_after: None,
        refusal: Refusal { code: Some("429".into()), cause: Some("slow down".into()), unlisted: false },
    }
}

pub fn not_sent() -> Outcome {
    Outcome::NotSent(NotSent::Refused)
}

pub fn ambiguous() -> Outcome {
    Outcome::Ambiguous(Ambiguity::Timeout)
}

/// A receipt of `kind` for one recipient of a transaction.
pub fn receipt(txn_id: &str, to: &str, kind: ReceiptKind) -> NewReceipt {
    NewReceipt {
        account: ACCOUNT.into(),
        txn_id: ProviderRef::clean(txn_id),
        message_id: None,
        recipient: Some(recipient(to)),
        code: Some(kind.as_str().to_uppercase()),
        kind: Some(kind),
        cause: None,
        done_at: None,
        content_type: Some("application/json".into()),
        raw: b"{}".to_vec(),
        trace_parent: None,
    }
}

/// A database of its own, and a worker's view of it.
#[derive(Debug)]
pub struct Bench {
    pub stack: StackHandle,
    pub name: String,
    pub store: Store,
    timing: Timing,
}

impl Bench {
    pub async fn new(test: &str) -> Result<Self> {
        Self::with(test, TIMING).await
    }

    /// With [`SHORT_LEASE`].
    pub async fn short(test: &str) -> Result<Self> {
        Self::with(test, Timing { lease: SHORT_LEASE, ..TIMING }).await
    }

    async fn with(test: &str, timing: Timing) -> Result<Self> {
        let (stack, name, store) = sendonce_tests::database(test, timing).await?;
        Ok(Self { stack, name, store, timing })
    }

    /// Another process of the fleet on the same database.
    pub fn another(&self) -> Result<Store> {
        let url = self.stack.database_url(&self.name, "sendonce_worker");
        Ok(Store::open(&Database { url: url.into(), max_connections: 4 }, self.timing, "sendonce-test")?)
    }

    /// From now on the database's clock is `offset` ahead of the machine's.
    pub async fn shift_clock(&mut self, offset: &str) -> Result<()> {
        self.stack.set_database_option(&self.name, "sendonce.clock_offset", offset).await?;
        self.store.close().await;
        self.store = self.another()?;
        Ok(())
    }

    /// As superuser, whom no grant binds.
    pub async fn sql(&self, sql: &str) -> Result<String> {
        self.stack.psql(&self.name, sql).await
    }

    pub async fn sql_as(&self, role: &str, sql: &str) -> Result<String> {
        self.sql(&format!("set role {role}; {sql}")).await
    }

    /// The words of the refusal; an error when the database does not refuse.
    pub async fn refusal(&self, role: &str, sql: &str) -> Result<String> {
        match self.sql_as(role, sql).await {
            Ok(done) => anyhow::bail!("{role} may: {sql}: {done}"),
            Err(why) => Ok(format!("{why:#}")),
        }
    }

    pub async fn count(&self, from: &str) -> Result<i64> {
        Ok(self.sql(&format!("select count(*) from {from}")).await?.parse()?)
    }

    /// Admits `messages` with the jobs that they name.
    pub async fn admit(&self, messages: &[NewMessage]) -> Result<Vec<Admitted>> {
        Ok(admit(&self.store, messages).await?)
    }

    /// One job of plain messages to `numbers`, and their ids.
    pub async fn queue(&self, numbers: &[&str]) -> Result<(JobId, Vec<MessageId>)> {
        let job = new_job();
        let messages: Vec<NewMessage> = numbers.iter().map(|to| message(job, to)).collect();
        for admitted in self.admit(&messages).await? {
            assert!(matches!(admitted, Admitted::Mine { .. }), "{admitted:?}");
        }
        Ok((job, messages.iter().map(|m| m.id).collect()))
    }

    /// One job of plain messages, all of it claimed as one request.
    pub async fn on_the_wire(&self, numbers: &[&str]) -> Result<(Claim, Vec<ClaimedMessage>)> {
        let (job, ids) = self.queue(numbers).await?;
        let claim = claim(&[job], 1, 500);
        let (rows, _) = self.store.claim(&claim).await?;
        assert_eq!(rows.len(), ids.len());
        Ok((claim, rows))
    }

    /// Records one request's end and settles its job.
    pub async fn record(&self, claim: &Claim, rows: &[ClaimedMessage], outcome: Outcome) -> Result<Recorded> {
        let ended = ended(rows, outcome);
        let job = ended.job_id;
        Ok(self.store.record(&[ended], &[job], claim.token).await?)
    }

    /// One accepted request.
    pub async fn submitted(&self, numbers: &[&str], txn_id: &str) -> Result<Vec<ClaimedMessage>> {
        let (claim, rows) = self.on_the_wire(numbers).await?;
        self.record(&claim, &rows, accepted(txn_id)).await?;
        Ok(rows)
    }

    /// Waits until the sweep has ended `jobs` leases.
    pub async fn end_leases(&self, sweep: &mut SweepConnection, jobs: usize) -> Result<usize> {
        let mut ended = 0;
        let mut unknown = 0;
        let deadline = std::time::Instant::now() + sendonce_tests::PATIENCE;
        while ended < jobs {
            anyhow::ensure!(std::time::Instant::now() < deadline, "{ended} of {jobs} leases ended");
            let now = self.store.end_leases(sweep, 100).await?;
            (ended, unknown) = (ended + now.jobs, unknown + now.unknown);
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        Ok(unknown)
    }

    /// The row as JSON, ids as they are.
    pub async fn row(&self, id: MessageId) -> Result<Value> {
        let text = self.sql(&format!("select to_jsonb(m) from outbound_message m where id = {id}")).await?;
        serde_json::from_str(&text).with_context(|| format!("message {id}: {text:?}"))
    }

    pub async fn state(&self, id: MessageId) -> Result<State> {
        Ok(self.row(id).await?["state"].as_str().context("a state")?.parse()?)
    }

    pub async fn states(&self, ids: &[MessageId]) -> Result<Vec<State>> {
        let mut states = Vec::new();
        for &id in ids {
            states.push(self.state(id).await?);
        }
        Ok(states)
    }

    pub async fn job(&self, id: JobId) -> Result<Option<Value>> {
        let text = self.sql(&format!("select to_jsonb(j) from send_job j where id = {id}")).await?;
        Ok(if text.is_empty() { None } else { Some(serde_json::from_str(&text)?) })
    }

    /// Seconds from the database's now to the job's deadline.
    pub async fn wakes_in(&self, id: JobId) -> Result<f64> {
        let sql = format!("select extract(epoch from wake_at - clock_now())::float8 from send_job where id = {id}");
        Ok(self.sql(&sql).await?.parse()?)
    }

    /// Moves a job's deadline into the past.
    pub async fn wake(&self, id: JobId) -> Result<()> {
        self.sql(&format!("update send_job set wake_at = clock_now() - interval '1 second' where id = {id}")).await?;
        Ok(())
    }
}

/// As [`Bench::admit`], by any store.
pub async fn admit(store: &Store, messages: &[NewMessage]) -> Result<Vec<Admitted>, StoreError> {
    let mut jobs: BTreeMap<JobId, NewJob> = BTreeMap::new();
    for m in messages {
        jobs.entry(m.job_id).or_insert_with(|| NewJob {
            id: m.job_id,
            tenant: m.tenant.clone(),
            channel: m.channel,
            class: m.class,
            account: m.account.clone(),
            scheduled_for: m.scheduled_for,
        });
    }
    store.admit(messages, &jobs.into_values().collect::<Vec<_>>()).await
}
