//! The one configuration that every process reads. Defaults < file < environment; secrets by `*_file`; unknown keys and
//! time budgets that do not nest are refused before anything starts.

mod check;
mod load;

use std::collections::BTreeMap;
use std::time::Duration;

use chrono_tz::Tz;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::domain::message::{Channel, Class, words};
use crate::domain::retry::Backoff;
use crate::domain::text::EncodingRule;

pub use check::Problem;
pub use load::{ConfigError, Loaded, load};

/// Everything a process can be told.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub database: Database,
    pub broker: Broker,
    pub redis: Redis,
    pub admin: Admin,
    pub log: Log,
    pub traces: Traces,
    pub budgets: Budgets,
    pub ingest: Ingest,
    pub sender: Sender,
    pub intake: Intake,
    pub receipts: Receipts,
    pub sweeps: Sweeps,
    pub classes: Classes,
    pub tenants: BTreeMap<String, Tenant>,
    pub accounts: BTreeMap<String, Account>,
    pub testing: Testing,
}

/// PostgreSQL.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// `postgres://user:password@host:port/name`
    pub url: SecretString,
    pub max_connections: u32,
}

/// RabbitMQ.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Broker {
    /// `amqp://user:password@host:port/vhost`
    pub url: SecretString,
    /// How long a publish may wait for its confirm before it counts as not confirmed.
    #[serde(with = "humantime_serde")]
    pub confirm_timeout: Duration,
}

/// Redis: hints only. Without a URL the fleet works on the durable backstop alone.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Redis {
    /// `redis://host:port/0`; empty turns the hints off.
    pub url: SecretString,
    /// The longest a hint may take; past it the answer counts as absent.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// How long a key that is being worked on stays marked.
    #[serde(with = "humantime_serde")]
    pub in_flight: Duration,
    /// How long a settled key stays marked.
    #[serde(with = "humantime_serde")]
    pub settled: Duration,
    /// Between two looks whether the database is still the one that the fleet has worked with.
    #[serde(with = "humantime_serde")]
    pub look_every: Duration,
}

/// The health and metrics port.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    pub listen: String,
}

/// Logs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// A `tracing` filter, such as `info,sendonce_core=debug`.
    pub filter: String,
    pub format: LogFormat,
}

words!(
    /// How log lines are written.
    LogFormat, "log format", { Json => "json", Text => "text" }
);

/// Traces: OpenTelemetry spans to a collector.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traces {
    /// Base URL of a collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318`; empty turns traces off.
    pub endpoint: String,
    /// The share of the traces begun here that is kept, 0 to 1. Where an event brings a trace, its publisher has decided.
    pub sample_ratio: f64,
    /// The longest an export may take with all its repetitions; what the collector did not take by then is lost.
    #[serde(with = "humantime_serde")]
    pub export_timeout: Duration,
}

/// Time budgets of one attempt. They must nest; `check` says how.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budgets {
    #[serde(with = "humantime_serde")]
    pub connect: Duration,
    #[serde(with = "humantime_serde")]
    pub http: Duration,
    #[serde(with = "humantime_serde")]
    pub http_otp: Duration,
    /// From before the claim to the first byte of the body.
    #[serde(with = "humantime_serde")]
    pub send: Duration,
    /// The longest wait for a row lock.
    #[serde(with = "humantime_serde")]
    pub lock: Duration,
    #[serde(with = "humantime_serde")]
    pub record: Duration,
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    #[serde(with = "humantime_serde")]
    pub drain: Duration,
}

/// Event intake.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ingest {
    /// Events gathered for one transaction.
    pub batch: usize,
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Rows of one job.
    pub job_rows: usize,
    /// Rows of one transaction: a larger event is written in several.
    pub transaction_rows: usize,
    pub prefetch: u16,
    /// How long rates read from the rate card are good for.
    #[serde(with = "humantime_serde")]
    pub rates_refresh: Duration,
}

/// Sending.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sender {
    /// Requests on the wire at once.
    pub slots: usize,
    /// Unacked jobs per lane.
    pub prefetch: u16,
    /// Jobs served by one claim.
    pub claim_jobs: usize,
    /// Attempts that may be charged before a job is parked.
    pub max_attempts: u32,
    #[serde(with = "humantime_serde")]
    pub backoff_min: Duration,
    #[serde(with = "humantime_serde")]
    pub backoff_max: Duration,
    /// How long a lane holds after a throttle or a refusal of the account that names no time.
    #[serde(with = "humantime_serde")]
    pub hold: Duration,
}

impl Sender {
    /// The retry policy.
    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff { min: self.backoff_min, max: self.backoff_max }
    }
}

/// The HTTP port that providers push receipts to.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Intake {
    pub listen: String,
    pub max_body_bytes: usize,
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
}

/// Applying receipts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Receipts {
    pub batch: usize,
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    pub prefetch: u16,
}

/// The reconciler's sweeps.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sweeps {
    /// Between two passes over due jobs.
    #[serde(with = "humantime_serde")]
    pub jobs_every: Duration,
    /// Jobs of one pass.
    pub jobs_batch: i64,
    /// Copies a pass may always publish per lane.
    pub jobs_min_copies: u32,
    /// Between two looks for receipts that came before their row.
    #[serde(with = "humantime_serde")]
    pub receipts_every: Duration,
    /// A receipt without a row for this long is an orphan.
    #[serde(with = "humantime_serde")]
    pub orphan_after: Duration,
    /// Between two looks at the provider's reports for messages whose outcome is open.
    #[serde(with = "humantime_serde")]
    pub reports_every: Duration,
    /// Messages of one look, per account.
    pub reports_batch: i64,
    /// From one look at a message to the next: twice as long each time, between these two.
    #[serde(with = "humantime_serde")]
    pub poll_first: Duration,
    #[serde(with = "humantime_serde")]
    pub poll_last: Duration,
    /// How long a report may lag behind an acceptance before its absence means anything, where the account says nothing.
    #[serde(with = "humantime_serde")]
    pub report_lag: Duration,
    /// A submitted message without a final receipt for this long is expired.
    #[serde(with = "humantime_serde")]
    pub validity: Duration,
    /// Between two passes that create partitions ahead.
    #[serde(with = "humantime_serde")]
    pub partitions_every: Duration,
    pub partitions_ahead_months: i32,
    /// Between two readings of the gauges.
    #[serde(with = "humantime_serde")]
    pub gauges_every: Duration,
}

/// Policies by class.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Classes {
    pub otp: ClassPolicy,
    pub transactional: ClassPolicy,
    pub promotional: ClassPolicy,
}

impl Classes {
    /// The policy of a class.
    #[must_use]
    pub fn of(&self, class: Class) -> &ClassPolicy {
        match class {
            Class::Otp => &self.otp,
            Class::Transactional => &self.transactional,
            Class::Promotional => &self.promotional,
        }
    }
}

/// What a class is allowed to take.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassPolicy {
    /// Time to live of a message whose event names none.
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    /// From insert to the first copy of a job that nobody took.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// The longest a delivered job may wait for a slot before it is handed back.
    #[serde(with = "humantime_serde")]
    pub max_hold: Duration,
    /// An unknown message past this is flagged for review.
    #[serde(with = "humantime_serde")]
    pub unknown_sla: Duration,
    /// A submitted message without a receipt for this long is looked up.
    #[serde(with = "humantime_serde")]
    pub silent_after: Duration,
}

/// An upstream organisation.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// ISO 3166 alpha-2: how national numbers are read.
    pub default_region: String,
    /// Account per channel.
    pub accounts: BTreeMap<Channel, String>,
    #[serde(default)]
    pub sender_id: Option<String>,
    #[serde(default)]
    pub dlt_entity_id: Option<String>,
    /// The longest body, in segments.
    #[serde(default = "defaults::max_segments")]
    pub max_segments: u16,
}

/// An account at a provider.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    pub dialect: Dialect,
    pub channel: Channel,
    /// Scheme, host and port of the provider's API.
    pub base_url: String,
    #[serde(default)]
    pub userid: String,
    #[serde(default)]
    pub password: Option<SecretString>,
    #[serde(default)]
    pub api_key: Option<SecretString>,
    #[serde(default = "defaults::encoding")]
    pub encoding: EncodingRule,
    /// Recipients of one request; 1 turns grouping off. See [`Account::max_recipients`].
    #[serde(default)]
    pub max_recipients: Option<u16>,
    /// Which ids the provider issues. See [`Account::id_level`].
    #[serde(default)]
    pub id_level: Option<IdLevel>,
    /// WhatsApp only: the business number that messages come from.
    #[serde(default)]
    pub waba_number: Option<String>,
    /// Zone of the provider's wall-clock times.
    #[serde(default = "defaults::zone")]
    pub zone: Tz,
    /// Whether nobody else sends on this account.
    #[serde(default)]
    pub exclusive: bool,
    /// The longest a report may lag behind an acceptance, where the provider states it.
    #[serde(default, with = "humantime_serde::option")]
    pub report_lag_max: Option<Duration>,
    /// How far the provider's submit time and our claim may lie apart and still be the same message.
    #[serde(default = "defaults::correlation_window", with = "humantime_serde")]
    pub correlation_window: Duration,
    /// Whether our request id travels in a header.
    #[serde(default = "defaults::yes")]
    pub request_id_header: bool,
    /// How long an idle connection is kept; zero opens one per request.
    #[serde(default = "defaults::pool_idle", with = "humantime_serde")]
    pub pool_idle: Duration,
    #[serde(default)]
    pub codes: Codes,
    #[serde(default)]
    pub receipts: ReceiptIntake,
    #[serde(default)]
    pub reports: ReportReading,
}

impl Account {
    /// Recipients of one request. A WhatsApp request has one: its answer has no place for more.
    #[must_use]
    pub fn max_recipients(&self) -> u16 {
        self.max_recipients.unwrap_or(match self.channel {
            Channel::Whatsapp => 1,
            Channel::Sms | Channel::Voice | Channel::Rcs | Channel::Telegram => 500,
        })
    }

    /// Which ids the provider issues: the message's own on WhatsApp, elsewhere one per request.
    #[must_use]
    pub fn id_level(&self) -> IdLevel {
        self.id_level.unwrap_or(match self.channel {
            Channel::Whatsapp => IdLevel::Message,
            Channel::Sms | Channel::Voice | Channel::Rcs | Channel::Telegram => IdLevel::Txn,
        })
    }
}

words!(
    /// How an account's provider talks.
    Dialect, "dialect", { Smsgatewaycenter => "smsgatewaycenter" }
);
words!(
    /// The ids a provider issues.
    IdLevel, "id level", { Txn => "txn", Message => "message", None => "none" }
);

/// Answer codes that this account adds to the dialect's own table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Codes {
    /// "Slow down": nothing was sent, ask again later.
    pub throttle: Vec<String>,
    /// The account is refused, not the message.
    pub account: Vec<String>,
    /// This message is refused.
    pub message: Vec<String>,
}

/// How the provider pushes receipts for this account.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiptIntake {
    /// The unguessable part of the path; two during a rotation. None: no push is accepted.
    pub secrets: Vec<SecretString>,
    pub preset: ReceiptPreset,
    /// Delivery code to meaning; what is not listed says nothing.
    pub codes: BTreeMap<String, ReceiptMeaning>,
}

/// How the provider's reports are read for this account. The documents disagree on the two paths (provider-contract, 5a).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReportReading {
    pub enabled: bool,
    /// Below the base URL: the list of a window.
    pub list_path: String,
    /// Below the base URL: one transaction.
    pub txn_path: String,
    /// Records of one page, at least 2: each page begins with the last record of the one before.
    pub page_limit: u16,
    /// Between two pages of a list: the provider publishes no rate that it bears.
    #[serde(with = "humantime_serde")]
    pub page_pause: Duration,
}

words!(
    /// Field names of a pushed receipt.
    ReceiptPreset, "receipt preset", { Named => "named", Legacy => "legacy", Sibling => "sibling" }
);
#[expect(clippy::derivable_impls, reason = "the enum is made by a macro")]
impl Default for ReceiptPreset {
    fn default() -> Self {
        Self::Legacy
    }
}
words!(
    /// What a delivery code means.
    ReceiptMeaning, "receipt meaning", {
        Read => "read", Delivered => "delivered", Failed => "failed", Expired => "expired", Submitted => "submitted",
    }
);

/// What only tests may set.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Testing {
    /// Accept a database whose clock is offset.
    pub allow_clock_offset: bool,
}

impl Default for ReportReading {
    fn default() -> Self {
        Self {
            enabled: true,
            list_path: "/SMSApi/reports/status".into(),
            txn_path: "/SMSApi/report/status".into(),
            page_limit: 500,
            page_pause: Duration::from_millis(100),
        }
    }
}
impl Default for Database {
    fn default() -> Self {
        Self { url: "postgres://sendonce_worker@127.0.0.1:5432/sendonce".into(), max_connections: 8 }
    }
}
impl Default for Broker {
    fn default() -> Self {
        Self { url: "amqp://guest:guest@127.0.0.1:5672/%2f".into(), confirm_timeout: Duration::from_secs(5) }
    }
}
impl Default for Redis {
    fn default() -> Self {
        Self {
            url: String::new().into(),
            timeout: Duration::from_millis(250),
            in_flight: Duration::from_secs(15 * 60),
            settled: Duration::from_secs(24 * 3600),
            look_every: Duration::from_secs(10),
        }
    }
}
impl Default for Admin {
    fn default() -> Self {
        Self { listen: "127.0.0.1:0".into() }
    }
}
impl Default for Log {
    fn default() -> Self {
        Self { filter: "info".into(), format: LogFormat::Json }
    }
}
impl Default for Traces {
    fn default() -> Self {
        Self { endpoint: String::new(), sample_ratio: 1.0, export_timeout: Duration::from_secs(5) }
    }
}
impl Default for Budgets {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            http: Duration::from_secs(30),
            http_otp: Duration::from_secs(10),
            send: Duration::from_secs(10),
            lock: Duration::from_secs(3),
            record: Duration::from_secs(5),
            lease: Duration::from_secs(60),
            drain: Duration::from_secs(45),
        }
    }
}
impl Default for Ingest {
    fn default() -> Self {
        Self {
            batch: 500,
            linger: Duration::from_millis(5),
            job_rows: 300,
            transaction_rows: 2_000,
            prefetch: 1_000,
            rates_refresh: Duration::from_secs(30),
        }
    }
}
impl Default for Sender {
    fn default() -> Self {
        Self {
            slots: 64,
            prefetch: 64,
            claim_jobs: 64,
            max_attempts: 8,
            backoff_min: Duration::from_secs(2),
            backoff_max: Duration::from_secs(300),
            hold: Duration::from_secs(15),
        }
    }
}
impl Default for Intake {
    fn default() -> Self {
        Self { listen: "127.0.0.1:0".into(), max_body_bytes: 64 * 1024, request_timeout: Duration::from_secs(10) }
    }
}
impl Default for Receipts {
    fn default() -> Self {
        Self { batch: 500, linger: Duration::from_millis(25), prefetch: 1_000 }
    }
}
impl Default for Sweeps {
    fn default() -> Self {
        Self {
            jobs_every: Duration::from_secs(1),
            jobs_batch: 500,
            jobs_min_copies: 10,
            receipts_every: Duration::from_secs(30),
            orphan_after: Duration::from_secs(24 * 3600),
            reports_every: Duration::from_secs(10),
            reports_batch: 2_000,
            poll_first: Duration::from_secs(15),
            poll_last: Duration::from_secs(15 * 60),
            report_lag: Duration::from_secs(30),
            validity: Duration::from_secs(72 * 3600),
            partitions_every: Duration::from_secs(3600),
            partitions_ahead_months: 3,
            gauges_every: Duration::from_secs(15),
        }
    }
}
impl Default for Classes {
    fn default() -> Self {
        let policy = |ttl: u64, grace: u64, hold: u64, sla: u64, silent: u64| ClassPolicy {
            ttl: Duration::from_secs(ttl),
            grace: Duration::from_secs(grace),
            max_hold: Duration::from_secs(hold),
            unknown_sla: Duration::from_secs(sla),
            silent_after: Duration::from_secs(silent),
        };
        Self {
            otp: policy(5 * 60, 5, 3, 60, 5 * 60),
            transactional: policy(24 * 3600, 60, 30, 10 * 60, 3600),
            promotional: policy(24 * 3600, 60, 30, 3600, 6 * 3600),
        }
    }
}

mod defaults {
    use super::{Duration, EncodingRule, Tz};

    pub(super) fn max_segments() -> u16 {
        10
    }
    pub(super) fn encoding() -> EncodingRule {
        EncodingRule::AsciiOnly
    }
    pub(super) fn zone() -> Tz {
        Tz::Asia__Kolkata
    }
    pub(super) fn yes() -> bool {
        true
    }
    pub(super) fn correlation_window() -> Duration {
        Duration::from_secs(90)
    }
    pub(super) fn pool_idle() -> Duration {
        Duration::from_secs(10)
    }
}
