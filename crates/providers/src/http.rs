//! The HTTP clients, and the only way to use them: one for billable requests, one for reading. Both refuse to follow a
//! redirect, to use a proxy from the environment, to speak HTTP/2 (whose REFUSED_STREAM and GOAWAY make clients send again)
//! and to read an answer without end. The one for billable requests also refuses to retry and to send an empty body. The
//! clients inside never leave this file, so no caller can undo a setting, nor submit through the one that retries.

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
use sendonce_core::clock::{Deadline, Entropy};
use sendonce_core::config::Budgets;
use sendonce_core::domain::outcome::{Ambiguity, NotSent};

use crate::body::{Fate, OnceBody};
use crate::transport;

pub use crate::transport::Unanswered;

/// An answer longer than this is no answer that a provider documents.
pub const ANSWER_CAP: usize = 64 * 1024;
/// The same of one page of a report: a thousand long messages fit several times over.
pub const PAGE_CAP: usize = 8 * 1024 * 1024;

/// Pauses before another try at reading, at most; half of each is random.
const READING_PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
/// A provider that asks for a longer pause is asked again by the next pass instead.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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

/// One request.
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
    pub fn new(pool_idle: Duration, budgets: &Budgets, reach: &Reach) -> Result<Self, ClientError> {
        client(pool_idle, budgets, reach).map(Self)
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
                    Fate::Handed => read(response, ANSWER_CAP).await,
                    // An answer to a request that it never had: whatever it says, nothing left.
                    Fate::Kept => Err(not_sent(NotSent::Connection, status)),
                    Fate::TooLate => Err(not_sent(NotSent::BudgetOver, status)),
                }
            }
        }
    }
}

/// A client that asks again where an answer does not come, for requests that submit nothing.
#[derive(Debug, Clone)]
pub struct ReadingClient(reqwest::Client);

impl ReadingClient {
    /// As [`SendingClient::new`]; a connection is shared with no submission.
    ///
    /// # Errors
    /// As there.
    pub fn new(pool_idle: Duration, budgets: &Budgets, reach: &Reach) -> Result<Self, ClientError> {
        client(pool_idle, budgets, reach).map(Self)
    }

    /// What `post` is answered, tried up to three times within seconds. A reply may still be a 429 or a 5xx: the last one.
    ///
    /// # Errors
    /// `NoReply` of the last try when no whole answer came. Its verdict is only a word here: nothing is submitted.
    pub async fn read(&self, post: &Post) -> Result<Reply, NoReply> {
        for pause in READING_PAUSES {
            let tried = self.ask(post).await;
            let Some(asked) = again(&tried) else { return tried };
            let pause = asked.unwrap_or_else(|| pause.mul_f64(0.5 + Entropy.fraction() / 2.0));
            tokio::time::sleep(pause).await;
        }
        self.ask(post).await
    }

    async fn ask(&self, post: &Post) -> Result<Reply, NoReply> {
        let request = self.0.post(post.url.clone()).headers(post.headers.clone()).timeout(post.timeout);
        match request.body(post.body.clone()).send().await {
            Ok(response) => read(response, PAGE_CAP).await,
            Err(error) => {
                report(&error);
                Err(NoReply { verdict: transport::without_answer(&error, Fate::Handed), status: None })
            }
        }
    }
}

/// Whether another try is worth it, and after what pause where the provider names one.
fn again(tried: &Result<Reply, NoReply>) -> Option<Option<Duration>> {
    match tried {
        Ok(Reply { status: 429 | 500.., retry_after, .. }) => {
            retry_after.is_none_or(|pause| pause <= LONGEST_PAUSE).then_some(*retry_after)
        }
        // Garbage, or more than the cap: it would come again.
        Ok(_) | Err(NoReply { verdict: Unanswered::Ambiguous(Ambiguity::Unreadable), .. }) => None,
        Err(_) => Some(None),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the factory")]
fn client(pool_idle: Duration, budgets: &Budgets, reach: &Reach) -> Result<reqwest::Client, ClientError> {
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
    Ok(builder.build()?)
}

/// Reads an answer to its end, as text and with a cap, before anything looks into it.
async fn read(mut response: reqwest::Response, cap: usize) -> Result<Reply, NoReply> {
    let status = response.status().as_u16();
    let unclear = |verdict| NoReply { verdict, status: Some(status) };
    let retry_after = retry_after(response.headers());
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() <= cap => bytes.extend_from_slice(&chunk),
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
