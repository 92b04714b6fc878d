//! Delivery reports: the list of a window, page after page, and one transaction. It refuses to call a list complete that may
//! lack a record, to infer delivery from an envelope's "success" or from a time, and to guess at a word on no list.

mod row;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use futures_util::future::BoxFuture;
use reqwest::Url;
use sendonce_core::config::{Account, Budgets};
use sendonce_core::domain::message::{ProviderRef, Recipient};
use sendonce_core::domain::outcome::Ambiguity;
use sendonce_core::provider::{Listing, ReportError, ReportRecord, ReportWindow, Reports};

use super::codes::{CodeTable, Meaning};
use super::login::Login;
use super::{BadAccount, endpoint};
use crate::http::{NoReply, Post, Reach, ReadingClient, Reply, Unanswered};
use row::{Envelope, record};

/// A window that takes more pages than this is too wide, or the server makes records up.
const PAGES: usize = 2_000;

/// The reports of an account at SMSGatewayCenter.
pub struct SmsGatewayCenterReports {
    name: String,
    client: ReadingClient,
    list_url: Url,
    txn_url: Url,
    login: Login,
    codes: CodeTable,
    zone: Tz,
    page_limit: u16,
    page_pause: Duration,
    timeout: Duration,
}

impl SmsGatewayCenterReports {
    /// Connects nothing yet.
    ///
    /// # Errors
    /// When the account cannot work.
    pub fn new(name: &str, account: &Account, budgets: &Budgets) -> Result<Self, BadAccount> {
        Ok(Self {
            name: name.to_owned(),
            client: ReadingClient::new(account.pool_idle, budgets, &Reach::default())?,
            list_url: endpoint(&account.base_url, &account.reports.list_path)?,
            txn_url: endpoint(&account.base_url, &account.reports.txn_path)?,
            login: Login::new(account)?,
            codes: CodeTable::new(&account.codes)?,
            zone: account.zone,
            page_limit: account.reports.page_limit,
            page_pause: account.reports.page_pause,
            timeout: budgets.http,
        })
    }

    /// Every page but the first is asked to begin with the last record of the one before. What the cursor means is written
    /// nowhere: a record seen again shows that it is a position and that nothing fell between two pages. It also tells the
    /// end from a page cut short, which a server's own limit may do anywhere.
    async fn pages(&self, window: ReportWindow) -> Result<Listing, ReportError> {
        let mut gathered = Gathered::default();
        let mut cursor = 1;
        for page in 0..PAGES {
            if page > 0 {
                tokio::time::sleep(self.page_pause).await;
            }
            let rows = self.page(window, cursor).await?;
            // A page of one has nothing to begin the next with: where all are such, the pages do not join.
            let step = rows.len().saturating_sub(1).max(1);
            match gathered.take(rows) {
                Progress::More => cursor += step,
                Progress::End => return Ok(gathered.listing(true)),
                Progress::Astray => break,
            }
        }
        tracing::warn!(account = self.name, "a report's list cannot be read to its end");
        Ok(gathered.listing(false))
    }

    async fn page(&self, window: ReportWindow, cursor: usize) -> Result<Vec<Option<ReportRecord>>, ReportError> {
        let parameters = [
            ("method", "getDlr"),
            // Dates, in lower case: a time is refused and `fromDate` is a sister deployment's.
            ("fromdate", &window.from.to_string()),
            ("todate", &window.to.to_string()),
            ("pageLimit", &self.page_limit.to_string()),
            ("startCursor", &cursor.to_string()),
        ];
        self.read(&self.list_url, &parameters).await
    }

    async fn transaction(&self, txn_id: &ProviderRef) -> Result<Listing, ReportError> {
        let rows = self.read(&self.txn_url, &[("uuid", txn_id.as_str())]).await?;
        Ok(of_transaction(rows, txn_id))
    }

    /// The rows of one answer; `None` for one that is no record.
    async fn read(&self, url: &Url, parameters: &[(&str, &str)]) -> Result<Vec<Option<ReportRecord>>, ReportError> {
        let reply = self.client.read(&self.post(url, parameters)).await.map_err(unanswered)?;
        let rows = open(&reply, &self.codes)?.rows().ok_or(ReportError::Unreadable)?;
        Ok(rows.into_iter().map(|row| record(row, self.zone)).collect())
    }

    fn post(&self, url: &Url, parameters: &[(&str, &str)]) -> Post {
        let mut form = self.login.form();
        form.extend_pairs(parameters).append_pair("output", "json");
        Post {
            url: url.clone(),
            headers: self.login.headers(),
            body: Bytes::from(form.finish()),
            timeout: self.timeout,
        }
    }
}

/// The envelope of an answer that holds a report.
fn open<'a>(reply: &'a Reply, codes: &CodeTable) -> Result<Envelope<'a>, ReportError> {
    let later = ReportError::Unavailable { retry_after: reply.retry_after };
    let refused = |code: Option<&str>, cause: Option<&str>| ReportError::Refused {
        status: reply.status,
        code: code.map(str::to_owned),
        cause: cause.map(str::to_owned),
    };
    if matches!(reply.status, 429 | 500..) {
        return Err(later);
    }
    let is_ok = (200..300).contains(&reply.status);
    let Some(envelope) = Envelope::read(&reply.text) else {
        return Err(if is_ok { ReportError::Unreadable } else { refused(None, None) });
    };
    match envelope.code().map(|code| codes.meaning(code)) {
        Some(Some(Meaning::Throttled)) if envelope.says("error") => Err(later),
        _ if envelope.says("error") || !is_ok => Err(refused(envelope.code(), envelope.cause())),
        // As for a submission: a code that means something else than the status is a contradiction.
        None | Some(Some(Meaning::Accepted)) if envelope.says("success") => Ok(envelope),
        None | Some(_) => Err(ReportError::Unreadable),
    }
}

fn unanswered(none: NoReply) -> ReportError {
    match none.verdict {
        Unanswered::Ambiguous(Ambiguity::Unreadable) => ReportError::Unreadable,
        Unanswered::NotSent(_) | Unanswered::Ambiguous(_) => ReportError::Unavailable { retry_after: None },
    }
}

fn of_transaction(rows: Vec<Option<ReportRecord>>, txn_id: &ProviderRef) -> Listing {
    let unreadable = rows.iter().filter(|row| row.is_none()).count();
    let found = rows.len() - unreadable;
    let is_its = |record: &ReportRecord| record.txn_id.as_ref().is_none_or(|known| known == txn_id);
    let records: Vec<ReportRecord> = rows.into_iter().flatten().filter(is_its).collect();
    // Records of others: the parameter was not honoured, so what is missing means nothing.
    let complete = unreadable == 0 && records.len() == found;
    Listing { records, complete, unreadable }
}

/// What stays the same when a record is listed again.
type Identity = (Option<ProviderRef>, Option<ProviderRef>, Recipient, Option<DateTime<Utc>>);

fn identity(record: &ReportRecord) -> Identity {
    (record.message_id.clone(), record.txn_id.clone(), record.recipient.clone(), record.submitted_at)
}

enum Progress {
    More,
    End,
    /// The pages do not join up: one repeats another, or something may lie between them.
    Astray,
}

/// The records of the pages so far.
#[derive(Default)]
struct Gathered {
    records: Vec<ReportRecord>,
    seen: HashSet<Identity>,
    gap: bool,
    unreadable: usize,
}

impl Gathered {
    /// Takes the next page in.
    fn take(&mut self, rows: Vec<Option<ReportRecord>>) -> Progress {
        let is_first = self.records.is_empty() && self.unreadable == 0;
        if rows.is_empty() && (is_first || self.records.len() == 1) {
            return Progress::End;
        }
        let first = rows.first().and_then(Option::as_ref).map(identity);
        let joins = first.as_ref().is_some_and(|first| self.seen.contains(first));
        let repeats = rows.len() > 1 && first == self.records.first().map(identity);
        self.gap |= !is_first && !joins;
        self.unreadable += rows.iter().filter(|row| row.is_none()).count();
        // Only earlier pages count: two equal rows of one page are two records.
        let is_new = |row: &ReportRecord| !self.seen.contains(&identity(row));
        let new: Vec<ReportRecord> = rows.into_iter().flatten().filter(is_new).collect();
        self.seen.extend(new.iter().map(identity));
        match new.is_empty() {
            true if joins && !repeats => Progress::End,
            true => Progress::Astray,
            false => {
                self.records.extend(new);
                Progress::More
            }
        }
    }

    fn listing(self, to_the_end: bool) -> Listing {
        let complete = to_the_end && !self.gap && self.unreadable == 0;
        Listing { records: self.records, complete, unreadable: self.unreadable }
    }
}

impl Reports for SmsGatewayCenterReports {
    fn list(&self, window: ReportWindow) -> BoxFuture<'_, Result<Listing, ReportError>> {
        Box::pin(self.pages(window))
    }
    fn by_transaction<'a>(&'a self, txn_id: &'a ProviderRef) -> BoxFuture<'a, Result<Listing, ReportError>> {
        Box::pin(self.transaction(txn_id))
    }
}

/// Name and address only: the rest is secret or noise.
impl fmt::Debug for SmsGatewayCenterReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SmsGatewayCenterReports({} at {})", self.name, self.list_url)
    }
}
