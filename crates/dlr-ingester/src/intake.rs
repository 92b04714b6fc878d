//! The port that providers push to. It checks the secret, caps the body, stores the bytes with a confirm and answers; it
//! does not look inside. 503 tells the provider to push again.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::routing::get;
use secrecy::{ExposeSecret, SecretString};
use sendonce_core::broker::envelope::{RawReceipt, TRACE_PARENT};
use sendonce_core::service::Context;
use sendonce_core::telemetry::traces;
use subtle::{Choice, ConstantTimeEq};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// The last part is an account's secret: whatever names a request names only this.
const ROUTE: &str = "/v1/receipts/{account}/{secret}";

/// Serves until the drain.
pub(crate) async fn serve(listener: TcpListener, ctx: Context) -> anyhow::Result<()> {
    let stop = ctx.tasks.draining().clone();
    let router = Router::new().route(ROUTE, get(take).post(take)).with_state(Arc::new(ctx));
    axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await }).await?;
    Ok(())
}

async fn take(
    State(ctx): State<Arc<Context>>,
    Path((account, secret)): Path<(String, String)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> StatusCode {
    let known = ctx.config.accounts.get(&account);
    if !known.is_some_and(|account| is_secret(&account.receipts.secrets, &secret)) {
        ctx.metrics.count_receipts("refused", 1);
        return StatusCode::NOT_FOUND;
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let operation = traces::take_receipt(method.as_str(), ROUTE, &account, text(TRACE_PARENT).as_deref());
    let from_query = method == Method::GET;
    let status = match read(&ctx, from_query, &uri, body).await {
        Ok(bytes) => {
            let content_type = text(header::CONTENT_TYPE.as_str());
            let trace_parent = operation.trace_parent();
            store(&ctx, RawReceipt { account, content_type, bytes, from_query, trace_parent }).await
        }
        Err(status) => status,
    };
    operation.respond(Some(status.as_u16()));
    if status.is_server_error() {
        operation.fail(status.as_str());
    }
    status
}

async fn read(ctx: &Context, from_query: bool, uri: &Uri, body: Body) -> Result<Vec<u8>, StatusCode> {
    if from_query {
        return Ok(uri.query().unwrap_or_default().as_bytes().to_vec());
    }
    match timeout(ctx.config.intake.request_timeout, to_bytes(body, ctx.config.intake.max_body_bytes)).await {
        Ok(Ok(bytes)) => Ok(bytes.to_vec()),
        Ok(Err(_)) => {
            ctx.metrics.count_receipts("too_large", 1);
            Err(StatusCode::PAYLOAD_TOO_LARGE)
        }
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

/// In a task of its own: a client that hangs up must not cut a publish in half.
async fn store(ctx: &Arc<Context>, receipt: RawReceipt) -> StatusCode {
    let publisher = ctx.publisher.clone();
    let stored = ctx.tasks.spawn_work(async move { publisher.publish(&[receipt.outgoing()]).await }).await;
    let confirmed = stored.is_ok_and(|results| results.iter().all(Result::is_ok));
    ctx.metrics.count_receipts(if confirmed { "stored" } else { "not_stored" }, 1);
    if confirmed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Every configured secret is compared, each in constant time.
fn is_secret(secrets: &[SecretString], given: &str) -> bool {
    let matches = |secret: &SecretString| secret.expose_secret().as_bytes().ct_eq(given.as_bytes());
    secrets.iter().fold(Choice::from(0), |found, secret| found | matches(secret)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i17_both_secrets_hold_during_a_rotation_and_no_other() {
        let secrets = vec![SecretString::from("old-secret"), SecretString::from("new-secret")];
        assert!(is_secret(&secrets, "old-secret") && is_secret(&secrets, "new-secret"));
        for wrong in ["", "old", "old-secret-", "OLD-SECRET"] {
            assert!(!is_secret(&secrets, wrong), "{wrong:?}");
        }
        assert!(!is_secret(&[], ""), "an account without a secret takes no push");
    }
}
