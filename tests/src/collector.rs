//! An OpenTelemetry collector in the test's own process: takes OTLP over HTTP and keeps what it was told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

/// A span as exported, ids in hex.
#[derive(Debug, Clone)]
pub struct Spanned {
    pub service: String,
    pub name: String,
    /// 2 server, 3 client, 4 producer, 5 consumer.
    pub kind: i32,
    pub trace: String,
    pub id: String,
    /// Empty for the first of a trace.
    pub parent: String,
    /// Trace and span.
    pub links: Vec<(String, String)>,
    pub attributes: BTreeMap<String, String>,
    pub failed: bool,
    /// Log lines; there should be none.
    pub events: usize,
}

impl Spanned {
    /// As a `traceparent` names it, sampled.
    pub fn trace_parent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.id)
    }
}

/// Runs until the test's runtime ends.
#[derive(Debug, Clone)]
pub struct Collector {
    port: u16,
    received: Arc<Mutex<Vec<Bytes>>>,
}

impl Collector {
    /// On a free port.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let collector = Self { port: listener.local_addr()?.port(), received: Arc::default() };
        let router = Router::new()
            .route("/v1/traces", post(take))
            .layer(DefaultBodyLimit::disable())
            .with_state(collector.received.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(collector)
    }

    /// What to set `traces.endpoint` to, as TOML.
    pub fn endpoint(&self) -> String {
        format!("\"http://127.0.0.1:{}\"", self.port)
    }

    /// Every export so far, as bytes.
    pub fn bytes(&self) -> Vec<Bytes> {
        self.received.lock().unwrap().clone()
    }

    /// Every span so far.
    pub fn spans(&self) -> Vec<Spanned> {
        self.bytes().iter().flat_map(|bytes| read(bytes)).collect()
    }
}

async fn take(State(received): State<Arc<Mutex<Vec<Bytes>>>>, body: Bytes) -> StatusCode {
    if ExportTraceServiceRequest::decode(body.clone()).is_err() {
        return StatusCode::BAD_REQUEST;
    }
    received.lock().unwrap().push(body);
    StatusCode::OK
}

fn read(bytes: &[u8]) -> Vec<Spanned> {
    let request = ExportTraceServiceRequest::decode(bytes).expect("it was decoded when it came");
    let mut spans = Vec::new();
    for resource in request.resource_spans {
        let named = attributes(&resource.resource.unwrap_or_default().attributes);
        let service = named.get("service.name").cloned().unwrap_or_default();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            spans.push(spanned(&service, span));
        }
    }
    spans
}

fn spanned(service: &str, span: Span) -> Spanned {
    Spanned {
        service: service.to_owned(),
        attributes: attributes(&span.attributes),
        kind: span.kind,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
        failed: span.status.is_some_and(|status| status.code == 2),
        events: span.events.len(),
        name: span.name,
    }
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    pairs.iter().map(|pair| (pair.key.clone(), text(pair.value.as_ref()))).collect()
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
