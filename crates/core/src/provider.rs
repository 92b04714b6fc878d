//! The seam to a provider: what a sender hands over and what it gets back, and what a reader of its reports is told. The
//! dialects live in their own crate. Nothing here concludes: whose a record is and what its absence means, reconciliation says.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Days, NaiveDate, Utc};
use chrono_tz::Tz;
use futures_util::future::BoxFuture;
use rust_decimal::Decimal;

use crate::clock::Deadline;
use crate::domain::message::{AttemptKey, Body, Channel, Class, Encoding, ProviderRef, Recipient};
use crate::domain::outcome::Outcome;
use crate::domain::receipt::ReceiptKind;

/// One request on the wire: a single message, or equal bodies to many recipients.
#[derive(Debug, Clone)]
pub struct SendRequest {
    pub attempt_key: AttemptKey,
    pub channel: Channel,
    pub class: Class,
    pub sender_id: Option<String>,
    pub body: Body,
    pub encoding: Encoding,
    pub dlt_entity_id: Option<String>,
    pub dlt_template_id: Option<String>,
    /// At least one, never the same twice.
    pub recipients: Vec<Recipient>,
    /// W3C traceparent of the attempt.
    pub trace_parent: Option<String>,
}

/// What came back for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub outcome: Outcome,
    /// Status line of the response, when one was read.
    pub http_status: Option<u16>,
}

/// One account at one provider, in that provider's dialect.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Submits `request` at most once. The body is handed over before `deadline` or not at all. Never fails: whatever
    /// happens is an outcome.
    fn send<'a>(&'a self, request: &'a SendRequest, deadline: Deadline) -> BoxFuture<'a, Answer>;
}

/// One record of the provider's report: one message that it accepted. What is `None` was not given, or could not be read,
/// and so neither fits nor excludes anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportRecord {
    /// The request it came in with; all recipients of a group share it.
    pub txn_id: Option<ProviderRef>,
    /// The message itself.
    pub message_id: Option<ProviderRef>,
    pub recipient: Recipient,
    pub sender_id: Option<String>,
    pub template_id: Option<String>,
    pub text: Option<Body>,
    /// `None` for a word that is on no list, which says nothing about the message.
    pub status: Option<ReceiptKind>,
    /// The provider's word, verbatim; empty where there was none.
    pub status_text: String,
    pub cause: Option<String>,
    pub submitted_at: Option<DateTime<Utc>>,
    /// When the provider was done with it. Failed ones carry it too.
    pub done_at: Option<DateTime<Utc>>,
    /// In the account's currency, which the report does not name.
    pub cost: Option<Decimal>,
    /// Segments, as the provider counted them.
    pub units: Option<u32>,
}

/// A window of whole days in the account's zone, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReportWindow {
    pub from: NaiveDate,
    pub to: NaiveDate,
}

impl ReportWindow {
    /// The days that `from` to `to` touch, and one more at each end: on which side of a midnight a record counts is the
    /// provider's business (provider-contract, C13). The caller filters by the records' own times.
    #[must_use]
    pub fn around(from: DateTime<Utc>, to: DateTime<Utc>, zone: Tz) -> Self {
        let day = |time: DateTime<Utc>| time.with_timezone(&zone).date_naive();
        let (from, to) = (day(from), day(to));
        Self {
            from: from.checked_sub_days(Days::new(1)).unwrap_or(from),
            to: to.checked_add_days(Days::new(1)).unwrap_or(to),
        }
    }
}

/// What a report held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// None repeated from one page to the next.
    pub records: Vec<ReportRecord>,
    /// Whether absence from `records` may mean anything: it was read to its end, the pages join up, none repeats another, and
    /// no row was unreadable. Even then the provider may lag, or list only the current day.
    pub complete: bool,
    /// Rows that could not be read as a record.
    pub unreadable: usize,
}

/// Why there is no listing. None of them says anything about a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// No answer, an error of the server, or "slow down": later it may work.
    #[error("the provider's report cannot be had now")]
    Unavailable { retry_after: Option<Duration> },
    /// The provider will not give it: wrong credentials, wrong path, a parameter it does not like. A person has to look.
    #[error("the provider refuses its report: HTTP {status}, code {}", code.as_deref().unwrap_or("none"))]
    Refused { status: u16, code: Option<String>, cause: Option<String> },
    /// An answer that is no report.
    #[error("the provider's report cannot be read")]
    Unreadable,
}

/// The reports of one account. Reading never submits anything, so unlike a submission it may be repeated.
pub trait Reports: Send + Sync + fmt::Debug {
    /// All messages that the account submitted in `window`, page after page.
    fn list(&self, window: ReportWindow) -> BoxFuture<'_, Result<Listing, ReportError>>;
    /// The messages of one request.
    fn by_transaction<'a>(&'a self, txn_id: &'a ProviderRef) -> BoxFuture<'a, Result<Listing, ReportError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c13_a_window_is_the_account_zones_days_and_one_more_at_each_end() {
        let at = |text: &str| DateTime::parse_from_rfc3339(text).unwrap().to_utc();
        let (from, to) = (at("2026-03-01T18:29:59Z"), at("2026-03-01T18:30:00Z"));
        for (zone, days) in [
            // One second apart, and a midnight of Kolkata between them.
            (Tz::Asia__Kolkata, ("2026-02-28", "2026-03-03")),
            (Tz::UTC, ("2026-02-28", "2026-03-02")),
        ] {
            let window = ReportWindow::around(from, to, zone);
            assert_eq!((window.from.to_string().as_str(), window.to.to_string().as_str()), days, "{zone}");
        }
    }
}
