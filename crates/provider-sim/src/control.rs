//! The control port: knobs, accounts and the ledger, for tests and the audit. JSON only, no authentication, loopback.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    accounts::{AccountUpdate, AccountView},
    book::Summary,
    fate::{self, Row},
    knobs::Knobs,
    push::PushCounts,
    sim::Sim,
};

pub fn router(sim: Arc<Sim>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/control", get(knobs).put(replace).patch(merge).post(merge))
        .route("/accounts", get(accounts))
        .route("/accounts/{userid}", put(update_account))
        .route("/ledger", get(ledger))
        .route("/ledger/summary", get(summary))
        .route("/magic", get(magic))
        .with_state(sim)
}

async fn knobs(State(sim): State<Arc<Sim>>) -> Json<Knobs> {
    Json(Knobs::clone(&sim.knobs()))
}

async fn replace(State(sim): State<Arc<Sim>>, Json(document): Json<Value>) -> Response {
    turned(&sim, &document, true)
}

async fn merge(State(sim): State<Arc<Sim>>, Json(patch): Json<Value>) -> Response {
    turned(&sim, &patch, false)
}

fn turned(sim: &Sim, document: &Value, replace: bool) -> Response {
    match sim.turn(document, replace) {
        Ok(knobs) => Json(Knobs::clone(&knobs)).into_response(),
        Err(message) => bad_request(&message),
    }
}

fn bad_request(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(json!({ "error": message }))).into_response()
}

async fn accounts(State(sim): State<Arc<Sim>>) -> Json<Vec<AccountView>> {
    Json(sim.book().account_views())
}

async fn update_account(
    State(sim): State<Arc<Sim>>,
    Path(userid): Path<String>,
    Json(update): Json<AccountUpdate>,
) -> Response {
    let mut book = sim.book();
    let spent = book.spent(&userid);
    match book.accounts.update(&userid, update, spent) {
        Ok(()) => Json(book.account_views()).into_response(),
        Err(error) => bad_request(&error.to_string()),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Since {
    #[serde(default)]
    since: u64,
}

async fn ledger(State(sim): State<Arc<Sim>>, Query(Since { since }): Query<Since>) -> Response {
    match tokio::task::spawn_blocking(move || sim.ledger.read_since(since)).await {
        Ok(Ok(array)) => ([(header::CONTENT_TYPE, "application/json")], array).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[derive(Debug, Serialize)]
struct Audit {
    #[serde(flatten)]
    summary: Summary,
    receipts: PushCounts,
}

async fn summary(State(sim): State<Arc<Sim>>) -> Json<Audit> {
    let summary = sim.book().summary();
    Json(Audit { summary, receipts: sim.pushes.counts() })
}

async fn magic() -> Json<&'static [Row]> {
    Json(fate::TABLE)
}
