//! Traces: one from the event to the receipt, as OpenTelemetry spans that go to a collector by OTLP. Every span and attribute
//! is named here and nowhere else, so this page is what a collector may learn: no number, no body, no secret, no log line.
//! Nothing waits for a collector. While none is configured a span is nothing, and only `traceparent` is handed on.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider};
use tracing::field::Empty;
use tracing::{Level, Span, Subscriber, span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use crate::config::Traces;
use crate::domain::event::trace_parent;
use crate::domain::message::{AttemptKey, Channel, Class, JobId, MessageId};
use crate::domain::outcome::Verdict;

/// Sets our spans apart from whatever else a library calls a span.
const TARGET: &str = "sendonce_trace";
/// Keeps them out of the logs.
pub(super) const NOT_LOGGED: &str = "sendonce_trace=off";

/// Spans that wait for the collector; what comes while it is full is dropped and counted in a log line.
const QUEUE: usize = 4096;
const EXPORT: usize = 512;
const EXPORT_EVERY: Duration = Duration::from_secs(1);
/// A full batch of events, each with a trace of its own.
const LINKS: u32 = 512;
/// The longest that the end of a process waits for the collector.
const STOP: Duration = Duration::from_secs(3);

/// Sends finished spans to the collector, from a thread of its own.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

impl Exporter {
    /// `None` when no collector is configured.
    pub(super) fn of(worker: &str, traces: &Traces) -> anyhow::Result<Option<Self>> {
        if traces.endpoint.is_empty() {
            return Ok(None);
        }
        let collector = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", traces.endpoint.trim_end_matches('/')))
            .with_timeout(traces.export_timeout)
            .build()
            .context("traces.endpoint")?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(EXPORT)
            .with_scheduled_delay(EXPORT_EVERY)
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(collector).with_batch_config(batches).build())
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(traces.sample_ratio))))
            .with_max_links_per_span(LINKS)
            .with_resource(Resource::builder().with_service_name(format!("sendonce-{worker}")).build())
            .build();
        Ok(Some(Self(provider)))
    }

    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        layer(&self.0)
    }

    /// Sends what is left, for 3 s at most. To be called outside async code, when nothing is being done any more.
    pub fn stop(self) {
        if let Err(error) = self.0.shutdown_with_timeout(STOP) {
            tracing::warn!(%error, "the collector did not take the last traces");
        }
    }
}

fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("sendonce"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_level(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false)
        // Spans of ours only, and no log line: whatever a library writes stays here.
        .with_filter(Targets::new().with_target(TARGET, Level::INFO))
}

/// Something that is being done: a span that ends when this is dropped.
#[derive(Debug)]
pub struct Operation {
    span: Span,
    trace_parent: Option<String>,
}

impl Operation {
    /// Goes on in the trace that all its `origins` share; an origin is the `traceparent` of a message that this is done for.
    /// Where they have several, it is a trace of its own that links to each.
    fn begin<'a>(span: Span, origins: impl Iterator<Item = Option<&'a str>> + Clone) -> Self {
        let shared = shared(origins.clone());
        if !span.is_disabled() {
            match shared {
                Some(parent) => continue_from(&span, parent),
                None => origins.flatten().collect::<BTreeSet<_>>().into_iter().for_each(|origin| link(&span, origin)),
            }
        }
        let own = write(span.context().span().span_context());
        Self { trace_parent: own.or_else(|| shared.and_then(trace_parent)), span }
    }

    /// The `traceparent` to hand on: its own, or with traces off the one that it shares with its origins.
    #[must_use]
    pub fn trace_parent(&self) -> Option<String> {
        self.trace_parent.clone()
    }

    /// It ended in an error of this kind.
    pub fn fail(&self, kind: &str) {
        self.span.record("error.type", kind);
        self.span.record("otel.status_code", "ERROR");
    }

    /// A provider's answer came, or did not.
    pub fn answer(&self, verdict: Verdict, http_status: Option<u16>) {
        self.span.record("sendonce.verdict", verdict.as_str());
        self.respond(http_status);
    }

    /// The status of the HTTP response, where there was one.
    pub fn respond(&self, http_status: Option<u16>) {
        if let Some(status) = http_status {
            self.span.record("http.response.status_code", i64::from(status));
        }
    }
}

/// An event that brings no trace gets one, so that support has an id to ask for: this span stands for its publisher, who
/// made none. `None` with traces off.
#[must_use]
pub fn create(queue: &str) -> Option<String> {
    let span = span!(
        target: TARGET, parent: None, Level::INFO, "create",
        otel.name = %format_args!("create {queue}"),
        otel.kind = "producer",
        messaging.system = "rabbitmq",
        messaging.operation.name = "create",
        messaging.operation.type = "create",
        messaging.destination.name = queue,
    );
    Operation::begin(span, std::iter::empty()).trace_parent
}

/// Events of one queue that become rows together, from before their transaction to their ack.
#[must_use]
pub fn process_events<'a>(queue: &str, origins: impl ExactSizeIterator<Item = Option<&'a str>> + Clone) -> Operation {
    let batch = Some(number(origins.len())).filter(|events| *events > 1);
    let span = span!(
        target: TARGET, parent: None, Level::INFO, "process",
        otel.name = %format_args!("process {queue}"),
        otel.kind = "consumer",
        messaging.system = "rabbitmq",
        messaging.operation.name = "process",
        messaging.operation.type = "process",
        messaging.destination.name = queue,
        messaging.batch.message_count = batch,
    );
    Operation::begin(span, origins)
}

/// A job on its way to its lane; `origins` are those of its rows.
#[must_use]
pub fn send_job<'a>(queue: &str, job: JobId, origins: impl Iterator<Item = Option<&'a str>> + Clone) -> Operation {
    let span = span!(
        target: TARGET, parent: None, Level::INFO, "send",
        otel.name = %format_args!("send {queue}"),
        otel.kind = "producer",
        otel.status_code = Empty,
        messaging.system = "rabbitmq",
        messaging.operation.name = "send",
        messaging.operation.type = "send",
        messaging.destination.name = queue,
        messaging.message.id = %job,
        error.type = Empty,
    );
    Operation::begin(span, origins)
}

/// One request to a provider.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub key: AttemptKey,
    pub account: &'a str,
    pub channel: Channel,
    pub class: Class,
    pub recipients: usize,
    /// The message and its business key, where the request carries only one.
    pub message: Option<(MessageId, &'a str)>,
    /// How often the message has been claimed.
    pub count: i32,
}

/// The attempt, from the hand-over to the verdict.
#[must_use]
pub fn submit<'a>(attempt: Attempt<'_>, origins: impl Iterator<Item = Option<&'a str>> + Clone) -> Operation {
    let span = span!(
        target: TARGET, parent: None, Level::INFO, "submit",
        otel.name = %format_args!("submit {}", attempt.account),
        otel.kind = "client",
        otel.status_code = Empty,
        sendonce.attempt.key = %attempt.key,
        sendonce.attempt.count = attempt.count,
        sendonce.message.id = attempt.message.map(|(id, _)| id.0),
        sendonce.business.key = attempt.message.map(|(_, key)| key),
        sendonce.account = attempt.account,
        sendonce.channel = attempt.channel.as_str(),
        sendonce.class = attempt.class.as_str(),
        sendonce.recipients = number(attempt.recipients),
        sendonce.verdict = Empty,
        http.request.method = "POST",
        http.response.status_code = Empty,
        error.type = Empty,
    );
    Operation::begin(span, origins)
}

/// A push of a provider's, from its first byte to the answer; `origin` is the header it came with.
#[must_use]
pub fn take_receipt(method: &str, route: &str, account: &str, origin: Option<&str>) -> Operation {
    let span = span!(
        target: TARGET, parent: None, Level::INFO, "take",
        otel.name = %format_args!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        sendonce.account = account,
        error.type = Empty,
    );
    Operation::begin(span, std::iter::once(origin))
}

/// A receipt that found its row: it goes on in the row's trace, and links to the push that brought it. `None` with traces
/// off.
#[must_use]
pub fn process_receipt(message: MessageId, row: Option<&str>, push: Option<&str>) -> Option<Operation> {
    let span = span!(
        target: TARGET, parent: None, Level::INFO, "process",
        otel.name = "process receipts",
        otel.kind = "consumer",
        messaging.system = "rabbitmq",
        messaging.operation.name = "process",
        messaging.operation.type = "process",
        messaging.destination.name = "receipts",
        sendonce.message.id = message.0,
    );
    if span.is_disabled() {
        return None;
    }
    if let Some(push) = push.filter(|_| row.is_some()) {
        link(&span, push);
    }
    Some(Operation::begin(span, std::iter::once(row.or(push))))
}

/// Spans know signed integers only.
fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The one origin of all, if there is one.
fn shared<'a>(mut origins: impl Iterator<Item = Option<&'a str>>) -> Option<&'a str> {
    let first = origins.next()??;
    origins.all(|origin| origin == Some(first)).then_some(first)
}

fn continue_from(span: &Span, origin: &str) {
    let Some(parent) = read(origin) else { return };
    if let Err(error) = span.set_parent(Context::new().with_remote_span_context(parent)) {
        tracing::debug!(%error, "a span cannot continue a trace");
    }
}

fn link(span: &Span, origin: &str) {
    if let Some(origin) = read(origin) {
        span.add_link(origin);
    }
}

/// Reads a `traceparent`; what is none is nothing. Its `tracestate` is other vendors' and not carried.
fn read(text: &str) -> Option<SpanContext> {
    let text = trace_parent(text)?;
    let mut parts = text.split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::NONE))
}

fn write(context: &SpanContext) -> Option<String> {
    let flags = context.trace_flags().to_u8();
    context.is_valid().then(|| format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    const ONE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn traced<T>(work: impl FnOnce() -> T) -> T {
        let provider = SdkTracerProvider::builder().build();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer(&provider)), work)
    }

    fn handed_on(origins: &[Option<&str>]) -> Option<String> {
        send_job("send.sms.otp", JobId(7), origins.iter().copied()).trace_parent()
    }

    fn trace_of(text: &str) -> &str {
        &text[3..35]
    }

    #[test]
    fn f4_a_traceparent_survives_reading_and_writing() {
        for text in [ONE, OTHER, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"] {
            assert_eq!(write(&read(text).unwrap()).as_deref(), Some(text));
        }
        // A later version is read and handed on as ours.
        let later = read("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03").unwrap();
        assert_eq!(write(&later).unwrap(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03");
    }

    #[test]
    fn f4_what_is_no_traceparent_is_nothing() {
        for text in [
            "",
            "00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "919876543210",
        ] {
            assert!(read(text).is_none(), "{text:?}");
            assert_eq!(handed_on(&[Some(text)]), None, "{text:?}: off");
            let own = traced(|| handed_on(&[Some(text)])).unwrap();
            assert!(read(&own).is_some() && Some(trace_of(&own)) != text.get(3..35), "{text:?} began {own}");
        }
        assert_eq!(write(&SpanContext::NONE), None);
    }

    #[test]
    fn f4_with_traces_off_only_what_all_rows_share_is_handed_on() {
        assert_eq!(handed_on(&[Some(ONE)]).as_deref(), Some(ONE));
        assert_eq!(handed_on(&[Some(ONE), Some(ONE)]).as_deref(), Some(ONE));
        for mixed in [&[Some(ONE), Some(OTHER)][..], &[Some(ONE), None], &[None, Some(ONE)], &[None], &[]] {
            assert_eq!(handed_on(mixed), None, "{mixed:?}");
        }
        assert_eq!(create("ingest.otp"), None);
    }

    #[test]
    fn f4_a_span_goes_on_in_the_trace_of_its_origin_and_hands_on_itself() {
        let (first, second) =
            traced(|| (handed_on(&[Some(ONE)]).unwrap(), handed_on(&[Some(ONE), Some(ONE)]).unwrap()));
        for own in [&first, &second] {
            assert_eq!(trace_of(own), trace_of(ONE));
            assert!(own.ends_with("-01"), "{own}");
        }
        assert!(first != ONE && first != second);
        let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let own = traced(|| handed_on(&[Some(unsampled)])).unwrap();
        assert!(trace_of(&own) == trace_of(ONE) && own.ends_with("-00"), "the publisher decides what is kept: {own}");
    }

    #[test]
    fn f4_what_is_done_for_several_traces_belongs_to_none_of_them() {
        let own = traced(|| handed_on(&[Some(ONE), Some(OTHER)])).unwrap();
        assert!(trace_of(&own) != trace_of(ONE) && trace_of(&own) != trace_of(OTHER), "{own}");
        let (a, b) = traced(|| (create("ingest.otp").unwrap(), create("ingest.otp").unwrap()));
        assert_ne!(trace_of(&a), trace_of(&b), "each event without a trace gets its own");
    }

    #[test]
    fn f4_a_receipt_goes_on_in_the_trace_of_its_row() {
        let own = |row, push| traced(|| process_receipt(MessageId(1), row, push)).unwrap().trace_parent().unwrap();
        assert_eq!(trace_of(&own(Some(ONE), Some(OTHER))), trace_of(ONE));
        assert_eq!(trace_of(&own(None, Some(OTHER))), trace_of(OTHER), "a row without a trace: that of the push");
        assert!(!own(None, None).is_empty());
    }
}
