//! Metrics, as Prometheus text. Labels come from closed sets, never from ids or numbers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::domain::message::{Channel, Class};
use crate::domain::outcome::Verdict;
use crate::domain::state::State;

/// Labels of a metric: names and words of closed sets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Labels(Vec<(&'static str, String)>);

impl Labels {
    /// Labels by name.
    #[must_use]
    pub fn of<const N: usize>(pairs: [(&'static str, &str); N]) -> Self {
        Self(pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        use prometheus_client::encoding::{EncodeLabelKey, EncodeLabelValue};
        for (name, value) in &self.0 {
            let mut label = encoder.encode_label();
            let mut key = label.encode_label_key()?;
            EncodeLabelKey::encode(name, &mut key)?;
            let mut encoded = key.encode_label_value()?;
            EncodeLabelValue::encode(value, &mut encoded)?;
            encoded.finish()?;
        }
        Ok(())
    }
}

type Counters = Family<Labels, Counter>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;
type Seconds = Family<Labels, Histogram, fn() -> Histogram>;

/// Every metric of the fleet. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    events: Counters,
    duplicates: Counters,
    parked: Counters,
    attempts: Counters,
    moved: Counters,
    jobs_published: Counters,
    receipts: Counters,
    anomalies: Counters,
    deliveries: Counters,
    sweeps: Counters,
    reconciled: Counters,
    hints: Counters,
    provider_seconds: Seconds,
    oldest_undecided: Gauges,
    unknown: Gauges,
    unknown_oldest: Gauges,
    parked_open: Gauges,
    last_receipt: Gauges,
    build_info: Gauges,
    config_info: Gauges,
    safe_mode: Gauges,
    pub reconnects: Counter,
    pub stale_decisions: Counter,
    pub leases_ended: Counter,
    pub holds: Counter,
}

fn request_seconds() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])
}

impl Default for Metrics {
    fn default() -> Self {
        let mut r = Registry::with_prefix("sendonce");
        fn add<M: prometheus_client::registry::Metric + Clone>(
            r: &mut Registry,
            name: &str,
            help: &str,
            metric: M,
        ) -> M {
            r.register(name, help, metric.clone());
            metric
        }
        let provider_seconds = Seconds::new_with_constructor(request_seconds);
        r.register_with_unit(
            "provider_request",
            "Time from hand-over to verdict",
            Unit::Seconds,
            provider_seconds.clone(),
        );
        // Families, also where one value would do: a reading that this worker does not take is absent, never zero.
        let age = |r: &mut Registry, name: &str, help: &str| {
            let gauges = Gauges::default();
            r.register_with_unit(name, help, Unit::Seconds, gauges.clone());
            gauges
        };
        Self {
            oldest_undecided: age(
                &mut r,
                "oldest_undecided",
                "Age of the oldest undecided message; 0 when there is none",
            ),
            unknown_oldest: age(&mut r, "unknown_oldest", "Age of the oldest unknown message; 0 when there is none"),
            last_receipt: age(&mut r, "last_receipt_age", "Time since the newest receipt of an account"),
            events: add(&mut r, "events", "Messages of consumed events by result", Family::default()),
            duplicates: add(
                &mut r,
                "suppressed_duplicates",
                "Messages dropped as duplicates, by layer",
                Family::default(),
            ),
            parked: add(&mut r, "parked", "Things set aside for a person, by kind and reason", Family::default()),
            attempts: add(&mut r, "attempts", "Requests that ended, by verdict", Family::default()),
            moved: add(&mut r, "messages_moved", "Messages by the state they moved to", Family::default()),
            jobs_published: add(
                &mut r,
                "jobs_published",
                "Job messages published, by source and result",
                Family::default(),
            ),
            receipts: add(&mut r, "receipts", "Receipts by result", Family::default()),
            anomalies: add(&mut r, "anomalies", "What should not happen, by kind", Family::default()),
            deliveries: add(&mut r, "deliveries", "Deliveries from the broker", Family::default()),
            reconciled: add(&mut r, "reconciliations", "Looks at the provider's report, by outcome", Family::default()),
            hints: add(&mut r, "redis_hints", "Hints asked of Redis, by use and result", Family::default()),
            sweeps: add(&mut r, "sweep_passes", "Passes of the periodic jobs, by result", Family::default()),
            unknown: add(&mut r, "unknown_messages", "Messages whose outcome is not known", Family::default()),
            parked_open: add(&mut r, "parked_open", "Things set aside that nobody has resolved", Family::default()),
            build_info: add(&mut r, "build_info", "The release that runs; always 1", Family::default()),
            config_info: add(&mut r, "config_info", "Hash of the configuration that runs; always 1", Family::default()),
            safe_mode: add(&mut r, "safe_mode", "1 while the database is in doubt: nothing is sent", Family::default()),
            reconnects: add(&mut r, "broker_reconnects", "Consumers that began again", Counter::default()),
            stale_decisions: add(
                &mut r,
                "stale_acks",
                "Deliveries decided after their channel was gone",
                Counter::default(),
            ),
            leases_ended: add(&mut r, "leases_ended", "Leases that ran out", Counter::default()),
            holds: add(&mut r, "holds", "Times a batch was held because a service was away", Counter::default()),
            provider_seconds,
            registry: Arc::new(r),
        }
    }
}

impl Metrics {
    /// The page for Prometheus.
    ///
    /// # Errors
    /// Never in practice: the text is built in memory.
    pub fn page(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    pub fn count_events(&self, class: Class, result: &str, messages: usize) {
        let labels = Labels::of([("class", class.as_str()), ("result", result)]);
        self.events.get_or_create(&labels).inc_by(messages as u64);
    }
    pub fn count_duplicates(&self, layer: &str, messages: usize) {
        self.duplicates.get_or_create(&Labels::of([("layer", layer)])).inc_by(messages as u64);
    }
    pub fn count_parked(&self, kind: &str, reason: &str) {
        self.parked.get_or_create(&Labels::of([("kind", kind), ("reason", reason)])).inc();
    }
    pub fn count_attempt(&self, account: &str, channel: Channel, class: Class, verdict: Verdict, seconds: f64) {
        let labels = Labels::of([
            ("account", account),
            ("channel", channel.as_str()),
            ("class", class.as_str()),
            ("verdict", verdict.as_str()),
        ]);
        self.attempts.get_or_create(&labels).inc();
        self.provider_seconds.get_or_create(&Labels::of([("channel", channel.as_str())])).observe(seconds);
    }
    pub fn count_moved(&self, class: Class, state: State, messages: usize) {
        let labels = Labels::of([("class", class.as_str()), ("state", state.as_str())]);
        self.moved.get_or_create(&labels).inc_by(messages as u64);
    }
    pub fn count_jobs_published(&self, source: &str, confirmed: bool, jobs: usize) {
        let labels = Labels::of([("source", source), ("result", if confirmed { "confirmed" } else { "unconfirmed" })]);
        self.jobs_published.get_or_create(&labels).inc_by(jobs as u64);
    }
    pub fn count_receipts(&self, result: &str, receipts: usize) {
        self.receipts.get_or_create(&Labels::of([("result", result)])).inc_by(receipts as u64);
    }
    pub fn count_anomalies(&self, kind: &str, found: usize) {
        self.anomalies.get_or_create(&Labels::of([("kind", kind)])).inc_by(found as u64);
    }
    pub(crate) fn count_delivery(&self, queue: &str, redelivered: bool) {
        let labels = Labels::of([("queue", queue), ("redelivered", if redelivered { "true" } else { "false" })]);
        self.deliveries.get_or_create(&labels).inc();
    }
    pub fn count_reconciled(&self, outcome: &str, messages: usize) {
        self.reconciled.get_or_create(&Labels::of([("outcome", outcome)])).inc_by(messages as u64);
    }
    pub(crate) fn count_sweep(&self, name: &str, succeeded: bool) {
        let labels = Labels::of([("sweep", name), ("result", if succeeded { "done" } else { "failed" })]);
        self.sweeps.get_or_create(&labels).inc();
    }
    /// Makes a sweep's counters exist, so that one which never gets through shows as zero and not as nothing.
    pub(crate) fn begin_sweep(&self, name: &str) {
        for result in ["done", "failed"] {
            drop(self.sweeps.get_or_create(&Labels::of([("sweep", name), ("result", result)])));
        }
    }
    pub(crate) fn count_hints(&self, asked_for: &str, result: &str, hints: usize) {
        self.hints.get_or_create(&Labels::of([("use", asked_for), ("result", result)])).inc_by(hints as u64);
    }
    pub(crate) fn set_safe_mode(&self, on: bool) {
        self.safe_mode.get_or_create(&Labels::of([])).set(f64::from(u8::from(on)));
    }
    pub(crate) fn set_info(&self, config_hash: &str) {
        self.build_info.get_or_create(&Labels::of([("version", env!("CARGO_PKG_VERSION"))])).set(1.0);
        self.config_info.get_or_create(&Labels::of([("hash", config_hash)])).set(1.0);
    }
    pub fn set_oldest_undecided(&self, class: Class, age: Duration) {
        self.oldest_undecided.get_or_create(&Labels::of([("class", class.as_str())])).set(age.as_secs_f64());
    }
    pub fn set_unknown(&self, class: Class, messages: i64, oldest: Duration) {
        let labels = Labels::of([("class", class.as_str())]);
        self.unknown.get_or_create(&labels).set(messages as f64);
        self.unknown_oldest.get_or_create(&labels).set(oldest.as_secs_f64());
    }
    pub fn set_parked_open(&self, open: i64) {
        self.parked_open.get_or_create(&Labels::of([])).set(open as f64);
    }
    pub fn set_last_receipt_age(&self, account: &str, age: Duration) {
        self.last_receipt.get_or_create(&Labels::of([("account", account)])).set(age.as_secs_f64());
    }
}
