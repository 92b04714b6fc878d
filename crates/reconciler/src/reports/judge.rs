//! From a listing to findings: silent messages by the ids they have, unknown ones by the three-valued match among every row
//! that may own the same record.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sendonce_core::config::Account;
use sendonce_core::domain::matching::{Candidate, FreeRecord, Match, Standing, judge};
use sendonce_core::domain::message::{MessageId, Recipient};
use sendonce_core::provider::{Listing, ReportRecord};
use sendonce_core::store::{Finding, OpenMessage, Store, StoreError};
use serde_json::{Value, json};

use super::{finding, span};

/// What one listing decided.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) findings: Vec<Finding>,
    /// For rows that stay unknown: what was found, in words of the schema, and what speaks for it.
    pub(super) notes: Vec<(MessageId, DateTime<Utc>, &'static str, Value)>,
    /// Rows with ids that the listing does not show.
    pub(super) unseen: HashSet<MessageId>,
    pub(super) ambiguous: usize,
    pub(super) not_found: usize,
    pub(super) postponed: usize,
}

pub(super) async fn judge_all(
    store: &Store,
    name: &str,
    account: &Account,
    messages: &[OpenMessage],
    listing: &Listing,
    now: DateTime<Utc>,
    lag: Duration,
) -> Result<Judged, StoreError> {
    let mut judged = Judged::default();
    let mut by_recipient: HashMap<&Recipient, Vec<&ReportRecord>> = HashMap::new();
    for record in &listing.records {
        by_recipient.entry(&record.recipient).or_default().push(record);
    }
    let (identified, open): (Vec<&OpenMessage>, Vec<&OpenMessage>) =
        messages.iter().partition(|message| message.candidate.standing == Standing::Identified);
    for message in identified {
        let records = by_recipient.get(&message.candidate.recipient).map_or(&[][..], Vec::as_slice);
        match find_by_id(message, records.iter().copied()) {
            Some(finding) => judged.findings.push(finding),
            None => {
                judged.unseen.insert(message.candidate.id);
            }
        }
    }
    // Where others send on the same account, a record that fits proves nothing.
    if !account.exclusive {
        judged.postponed += open.len();
        return Ok(judged);
    }
    let Some((from, to)) = span(&open) else { return Ok(judged) };
    let recipients: Vec<&Recipient> =
        open.iter().map(|m| &m.candidate.recipient).collect::<HashSet<_>>().into_iter().collect();
    let rows = store.competitors(name, &recipients, from, to).await?;
    let records: Vec<&ReportRecord> =
        recipients.iter().filter_map(|to| by_recipient.get(to)).flatten().copied().collect();
    let free = free_records(store, name, &records).await?;
    for message in open {
        judge_one(message, &rows, &free, now, lag, listing, &mut judged);
    }
    Ok(judged)
}

/// The record of a message whose ids are known.
pub(super) fn find_by_id<'r>(
    message: &OpenMessage,
    records: impl IntoIterator<Item = &'r ReportRecord>,
) -> Option<Finding> {
    let same = |ours: &Option<String>, theirs: Option<&str>| ours.is_some() && ours.as_deref() == theirs;
    records
        .into_iter()
        .filter(|record| record.recipient == message.candidate.recipient)
        .find(|record| {
            same(&message.provider_message_id, record.message_id.as_ref().map(|id| id.as_str()))
                || same(&message.provider_txn_id, record.txn_id.as_ref().map(|id| id.as_str()))
        })
        .map(|record| finding(message, record, json!({ "kind": "report", "by": "id" })))
}

/// Records that no row owns, by message id or by transaction and recipient.
async fn free_records<'r>(
    store: &Store,
    name: &str,
    records: &[&'r ReportRecord],
) -> Result<Vec<&'r ReportRecord>, StoreError> {
    let ids: Vec<String> = records.iter().filter_map(|r| r.message_id.as_ref()).map(ToString::to_string).collect();
    let owned = store.owned_message_ids(name, &ids).await?;
    let pairs: Vec<(String, Recipient)> =
        records.iter().filter_map(|r| Some((r.txn_id.as_ref()?.to_string(), r.recipient.clone()))).collect();
    let by_txn = store.owned_transactions(name, &pairs).await?;
    let is_free = |record: &&&ReportRecord| {
        let by_id = record.message_id.as_ref().is_some_and(|id| owned.contains(id.as_str()));
        let by_transaction =
            record.txn_id.as_ref().is_some_and(|id| by_txn.contains(&(id.to_string(), record.recipient.clone())));
        !by_id && !by_transaction
    };
    Ok(records.iter().filter(is_free).copied().collect())
}

fn judge_one(
    message: &OpenMessage,
    rows: &[Candidate],
    free: &[&ReportRecord],
    now: DateTime<Utc>,
    lag: Duration,
    listing: &Listing,
    judged: &mut Judged,
) {
    let to = &message.candidate.recipient;
    let records: Vec<&ReportRecord> = free.iter().copied().filter(|record| record.recipient == *to).collect();
    let views: Vec<FreeRecord<'_>> = records.iter().map(|record| view(record)).collect();
    let rivals: Vec<Candidate> = rows.iter().filter(|row| row.recipient == *to).cloned().collect();
    let describe = |i: &usize| {
        let record = records[*i];
        json!({
            "message_id": record.message_id.as_ref().map(ToString::to_string),
            "txn_id": record.txn_id.as_ref().map(ToString::to_string),
            "submitted_at": record.submitted_at,
            "status": record.status_text,
        })
    };
    match judge(&message.candidate, &rivals, &views, now, lag) {
        Match::Matched(i) => {
            let evidence = json!({
                "kind": "report", "by": "window", "record": describe(&i), "rows_considered": rivals.len(),
                "records_considered": records.len(), "window_ms": message.candidate.window.as_millis() as u64,
            });
            judged.findings.push(finding(message, records[i], evidence));
        }
        Match::Ambiguous { records: fitting, rivals } => {
            judged.ambiguous += 1;
            let evidence = json!({
                "kind": "report", "candidates": fitting.iter().map(describe).collect::<Vec<_>>(),
                "rivals": rivals.iter().map(|id| id.0).collect::<Vec<_>>(),
            });
            judged.notes.push((message.candidate.id, message.created_at, "ambiguous", evidence));
        }
        Match::NotFound => {
            judged.not_found += 1;
            let evidence = json!({ "kind": "report", "listing_complete": listing.complete });
            judged.notes.push((message.candidate.id, message.created_at, "not_found", evidence));
        }
        Match::Postponed => judged.postponed += 1,
    }
}

fn view(record: &ReportRecord) -> FreeRecord<'_> {
    FreeRecord {
        recipient: &record.recipient,
        sender_id: record.sender_id.as_deref(),
        template_id: record.template_id.as_deref(),
        body: record.text.as_ref(),
        submitted_at: record.submitted_at,
        has_id: record.message_id.is_some(),
    }
}
