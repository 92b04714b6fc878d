//! The health and metrics port of every process: `/livez` (the loops report in time), `/readyz` (database, broker and
//! partitions are there), `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::broker::Link;
use crate::gate::Gate;
use crate::store::Store;
use crate::telemetry::Metrics;

/// Partitions that must exist: this month's and three more.
const PARTITIONS_NEEDED: i32 = 4;
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// When each loop last reported, and how long it may stay silent.
#[derive(Debug, Clone, Default)]
pub struct Health {
    loops: Arc<Mutex<BTreeMap<&'static str, (Instant, Duration)>>>,
    halted: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Health {
    /// The loop `name` is alive and will report again within `limit`.
    pub fn beat(&self, name: &'static str, limit: Duration) {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner).insert(name, (Instant::now(), limit));
    }

    /// The loop `name` lives and takes no work, and why; `None` when it does again.
    pub fn halt(&self, name: &'static str, why: Option<String>) {
        let mut halted = self.halted.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => drop(halted.insert(name, why)),
            None => drop(halted.remove(name)),
        }
    }

    fn halted(&self) -> Vec<String> {
        self.halted.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn silent(&self) -> Vec<&'static str> {
        let now = Instant::now();
        let loops = self.loops.lock().unwrap_or_else(PoisonError::into_inner);
        loops.iter().filter(|(_, (at, limit))| now.duration_since(*at) > *limit).map(|(name, _)| *name).collect()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Admin {
    pub(crate) store: Store,
    pub(crate) gate: Gate,
    pub(crate) links: Vec<Link>,
    pub(crate) health: Health,
    pub(crate) metrics: Metrics,
    pub(crate) config_hash: String,
}

/// Serves until `stop`.
pub(crate) async fn serve(listener: TcpListener, admin: Admin, stop: CancellationToken) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(admin);
    axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await }).await?;
    Ok(())
}

async fn livez(State(admin): State<Admin>) -> Response {
    let silent = admin.health.silent();
    if silent.is_empty() {
        return (StatusCode::OK, "alive\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("silent loops: {}\n", silent.join(", "))).into_response()
}

async fn readyz(State(admin): State<Admin>) -> Response {
    let mut missing = Vec::new();
    match timeout(PROBE_TIMEOUT, admin.store.partitions_ahead()).await {
        Ok(Ok(months)) if months >= PARTITIONS_NEEDED => {}
        Ok(Ok(months)) => missing.push(format!(
            "partitions: {months} of {PARTITIONS_NEEDED} months exist; run the reconciler, which creates them"
        )),
        Ok(Err(error)) => missing.push(format!("database: {error}")),
        Err(_) => missing.push("database: no answer in time".to_owned()),
    }
    for link in &admin.links {
        if !link.is_up().await {
            missing.push("broker: not connected".to_owned());
        }
    }
    missing.extend(admin.health.halted());
    // Redis gives hints only: without them everything works, and PostgreSQL has more to do.
    let redis = if admin.gate.is_degraded() { "degraded: Redis does not answer\n" } else { "" };
    let config = format!("{redis}config {}\n", admin.config_hash);
    if missing.is_empty() {
        return (StatusCode::OK, format!("ready\n{config}")).into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready\n{}\n{config}", missing.join("\n"))).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match admin.metrics.page() {
        Ok(page) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], page)
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
