//! Every row of the transport-error table against a peer that misbehaves, counting what really arrived. The verdict is
//! checked, and with it the promise behind it: after "not sent" no request is at the server.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod answers;
mod peer;
mod pool;
mod reading;
mod rows;
mod tls;
mod wire;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use reqwest::Url;
use reqwest::header::HeaderMap;
use sendonce_core::clock::{Clock, Deadline, SystemClock};
use sendonce_core::config::Budgets;
use sendonce_core::domain::outcome::{Ambiguity, NotSent};
use sendonce_providers::http::{NoReply, Post, Reach, Reply, SendingClient, Unanswered};

/// What the service shell does in a binary.
pub fn install_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| rustls::crypto::ring::default_provider().install_default().unwrap());
}

/// Budgets that no row but those about time comes near to.
pub fn patient() -> Budgets {
    Budgets { connect: Duration::from_secs(20), http: Duration::from_secs(30), ..Budgets::default() }
}
/// Budgets for peers that stall.
pub fn hasty() -> Budgets {
    Budgets { connect: Duration::from_millis(700), http: Duration::from_millis(1_500), ..Budgets::default() }
}

pub fn client(budgets: &Budgets, reach: &Reach) -> SendingClient {
    install_tls();
    SendingClient::new(Duration::from_secs(10), budgets, reach).unwrap()
}
pub fn in_time() -> Deadline {
    Deadline::after(Arc::new(SystemClock), Duration::from_secs(60))
}
pub fn post_of(url: &str, body: impl Into<Bytes>, budgets: &Budgets) -> Post {
    Post { url: Url::parse(url).unwrap(), headers: HeaderMap::new(), body: body.into(), timeout: budgets.http }
}
pub fn plain(peer: SocketAddr) -> String {
    format!("http://{peer}/")
}

/// One request by a fresh client, which is gone when this returns.
pub async fn once(url: &str, body: impl Into<Bytes>, budgets: &Budgets, reach: &Reach) -> Result<Reply, NoReply> {
    client(budgets, reach).post(post_of(url, body, budgets), in_time()).await
}
pub async fn bill(url: &str, budgets: &Budgets) -> Result<Reply, NoReply> {
    once(url, "bill me", budgets, &Reach::default()).await
}

pub fn not_sent(reason: NotSent) -> Result<Reply, NoReply> {
    Err(NoReply { verdict: Unanswered::NotSent(reason), status: None })
}
pub fn ambiguous(reason: Ambiguity) -> Result<Reply, NoReply> {
    Err(NoReply { verdict: Unanswered::Ambiguous(reason), status: None })
}
pub fn cut(reason: Ambiguity, status: u16) -> Result<Reply, NoReply> {
    Err(NoReply { verdict: Unanswered::Ambiguous(reason), status: Some(status) })
}
pub fn is_not_sent(result: &Result<Reply, NoReply>) -> bool {
    matches!(result, Err(NoReply { verdict: Unanswered::NotSent(_), .. }))
}

/// A clock that moves when told to.
#[derive(Debug, Default)]
pub struct HandClock(AtomicU64);

impl HandClock {
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }
}
impl Clock for HandClock {
    fn boot(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
    fn wall(&self) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH
    }
}
