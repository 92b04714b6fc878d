//! The HTTP client for billable requests, and the only way to use it. It refuses to follow a redirect, to retry, to use a
//! proxy from the environment, to speak HTTP/2 (whose REFUSED_STREAM and GOAWAY make clients send again), to send an empty
//! body, and to read an answer without end. The client inside never leaves this file, so no caller can undo a setting.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::DateTime;
use reqwest::Url;
use reqwest::dns::Resolve;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use rustls::crypto::CryptoProvider;
use sendonce_core::clock::Deadline;
use sendonce_core::config::Budgets;
use sendonce_core::domain::outcome::{Ambiguity, NotSent};

use crate::body::{Fate, OnceBody};
use crate::transport;

pub use crate::transport::Unanswered;

/// An answer longer than this is no answer that a provider documents.
pub const ANSWER_CAP: usize = 64 * 1024;

/// How a provider's host is found and recognised; the machine's resolver and roots unless replaced.
#[derive(Clone, Default)]
pub struct Reach {
    pub resolver: Option<Arc<dyn Resolve>>,
    /// The only roots trusted, where given.
    pub roots: Option<Vec<reqwest::Certificate>>,
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach")
            .field("resolver", &self.resolver.is_some())
            .field("roots", &self.roots.as_ref().map(Vec::len))
            .finish()
    }
}

/// Why a client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no TLS provider is installed in this process")]
    NoTls,
    #[error("the HTTP client cannot be built: {0}")]
    Build(#[from] reqwest::Error),
}

/// One billable request.
pub struct Post {
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// For the whole call, the reading of the answer included.
    pub timeout: Duration,
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Post({}, {} bytes)", self.url, self.body.len())
    }
}

/// An answer that was read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub retry_after: Option<Duration>,
    /// The body, whatever it calls itself; what is not UTF-8 is replaced.
    pub text: String,
}

/// No answer, with what that proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoReply {
    pub verdict: Unanswered,
    /// The status line, where one came before the trouble.
    pub status: Option<u16>,
}

/// A client that cannot submit anything twice.
#[derive(Debug, Clone)]
pub struct SendingClient(reqwest::Client);

impl SendingClient {
    /// `pool_idle` must be shorter than the provider's keep-alive; zero opens a connection per request, which costs a
    /// handshake and spares the unknowns of connections that the provider closes at the wrong moment.
    ///
    /// # Errors
    /// When no rustls provider is installed (reqwest would panic), or the roots are unusable.
    #[expect(clippy::disallowed_methods, reason = "this is the factory")]
    pub fn new(pool_idle: Duration, budgets: &Budgets, reach: &Reach) -> Result<Self, ClientError> {
        if CryptoProvider::get_default().is_none() {
            return Err(ClientError::NoTls);
        }
        let mut builder = reqwest::Client::builder()
            .http1_only()
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .user_agent(concat!("sendonce/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(budgets.connect)
            .timeout(budgets.http);
        builder =
            if pool_idle.is_zero() { builder.pool_max_idle_per_host(0) } else { builder.pool_idle_timeout(pool_idle) };
        if let Some(resolver) = &reach.resolver {
            builder = builder.dns_resolver(Arc::clone(resolver));
        }
        if let Some(roots) = &reach.roots {
            builder = builder.tls_certs_only(roots.iter().cloned());
        }
        Ok(Self(builder.build()?))
    }

    /// Submits `post` at most once, its first byte before `deadline` or never. Once this returns nothing more leaves.
    ///
    /// # Errors
    /// `NoReply` when no whole answer came.
    pub async fn post(&self, post: Post, deadline: Deadline) -> Result<Reply, NoReply> {
        let not_sent = |reason, status| NoReply { verdict: Unanswered::NotSent(reason), status };
        if deadline.is_over() {
            return Err(not_sent(NotSent::BudgetOver, None));
        }
        let deadline_left = deadline.left();
        let Some((body, handle)) = OnceBody::new(post.body, deadline) else {
            return Err(not_sent(NotSent::Request, None));
        };
        let request = self.0.post(post.url).headers(post.headers).timeout(post.timeout);
        let mut sending = std::pin::pin!(request.body(reqwest::Body::wrap(body)).send());
        let sent = tokio::select! {
            sent = &mut sending => sent,
            () = tokio::time::sleep(deadline_left) => match handle.close() {
                Fate::Handed => sending.await,
                // Nobody asked for the body in time, and nobody can any more: the slot is worth more than the wait.
                Fate::Kept | Fate::TooLate => return Err(not_sent(NotSent::BudgetOver, None)),
            },
        };
        let fate = handle.close();
        match sent {
            Err(error) => {
                report(&error);
                Err(NoReply { verdict: transport::without_answer(&error, fate), status: None })
            }
            Ok(response) => {
                let status = Some(response.status().as_u16());
                match fate {
                    Fate::Handed => read(response).await,
                    // An answer to a request that it never had: whatever it says, nothing left.
                    Fate::Kept => Err(not_sent(NotSent::Connection, status)),
                    Fate::TooLate => Err(not_sent(NotSent::BudgetOver, status)),
                }
            }
        }
    }
}

/// Reads an answer to its end, as text and with a cap, before anything looks into it.
async fn read(mut response: reqwest::Response) -> Result<Reply, NoReply> {
    let status = response.status().as_u16();
    let unclear = |verdict| NoReply { verdict, status: Some(status) };
    let retry_after = retry_after(response.headers());
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() <= ANSWER_CAP => bytes.extend_from_slice(&chunk),
            Ok(Some(_)) => return Err(unclear(Unanswered::Ambiguous(Ambiguity::Unreadable))),
            Ok(None) => break,
            Err(error) => {
                report(&error);
                return Err(unclear(transport::cut_answer(&error)));
            }
        }
    }
    Ok(Reply { status, retry_after, text: String::from_utf8_lossy(&bytes).into_owned() })
}

/// Seconds, or a date taken relative to the answer's own `Date`: the provider's clock on both sides, never ours.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let value = text(RETRY_AFTER)?;
    // u32: more than a century is not a wait.
    if let Ok(seconds) = value.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let until = DateTime::parse_from_rfc2822(value).ok()?;
    let now = DateTime::parse_from_rfc2822(text(DATE)?).ok()?;
    Some((until - now).to_std().unwrap_or(Duration::ZERO))
}

/// The outcome carries a word; the words behind it are for whoever looks for a cause. No URL: it is the account's.
fn report(error: &reqwest::Error) {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(source) = next {
        causes.push(source.to_string());
        next = source.source();
    }
    tracing::debug!(error.causes = causes.join(": "), "no whole answer from the provider");
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn wait(fields: &[(HeaderName, &'static str)]) -> Option<Duration> {
        retry_after(&fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(wait(&[(RETRY_AFTER, "120")]), Some(Duration::from_secs(120)));
        assert_eq!(wait(&[(RETRY_AFTER, " 0 ")]), Some(Duration::ZERO));
        let date = (DATE, "Sun, 06 Nov 1994 08:49:37 GMT");
        let later = (RETRY_AFTER, "Sun, 06 Nov 1994 08:50:07 GMT");
        let earlier = (RETRY_AFTER, "Sun, 06 Nov 1994 08:00:00 GMT");
        assert_eq!(wait(&[date.clone(), later.clone()]), Some(Duration::from_secs(30)));
        assert_eq!(wait(&[date, earlier]), Some(Duration::ZERO));
        assert_eq!(wait(&[later]), None);
    }

    #[test]
    fn a_retry_after_that_is_neither_says_nothing() {
        for odd in ["", "soon", "-5", "1.5", "99999999999999", "tomorrow, 06 Nov"] {
            assert_eq!(wait(&[(RETRY_AFTER, odd)]), None, "{odd}");
        }
    }
}
