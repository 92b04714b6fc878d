//! Reading the provider's reports for messages whose outcome is open: unknown ones, and submitted ones that stayed silent.
//! Reports are fetched as windows, not one call per message, and only read: nothing here ever writes to a provider.

mod judge;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sendonce_core::config::Account;
use sendonce_core::domain::message::{Class, ProviderRef};
use sendonce_core::provider::{Listing, ReportError, ReportWindow, Reports};
use sendonce_core::service::Context;
use sendonce_core::store::{Finding, OpenMessage, Settled};
use sendonce_core::sweep::More;

use self::judge::Judged;

/// Looks of one pass at single transactions: the last resort for messages that no window shows.
const TRANSACTION_LOOKS: usize = 10;
/// A silent message is looked up by its transaction after this many looks at windows.
const WINDOW_LOOKS: u32 = 3;

/// The sweep, with a reader per account that has reports.
#[derive(Debug, Clone)]
pub(crate) struct ReportSweep {
    ctx: Context,
    readers: Arc<BTreeMap<String, Arc<dyn Reports>>>,
}

impl ReportSweep {
    /// # Errors
    /// An account whose reports cannot be read as configured.
    pub(crate) fn new(ctx: Context) -> anyhow::Result<Self> {
        let mut readers = BTreeMap::new();
        for (name, account) in &ctx.config.accounts {
            if let Some(reader) = sendonce_providers::connect_reports(name, account, &ctx.config.budgets)? {
                readers.insert(name.clone(), reader);
            }
        }
        Ok(Self { ctx, readers: Arc::new(readers) })
    }

    pub(crate) async fn run_once(self) -> anyhow::Result<More> {
        let store = &self.ctx.store;
        let flagged = store.flag_overdue().await?;
        if flagged > 0 {
            tracing::warn!(messages = flagged, "unknown for longer than their class allows: a person should look");
            self.ctx.metrics.count_reconciled("needs_review", usize::try_from(flagged)?);
        }
        for &class in Class::ALL {
            store.find_silent(class, self.ctx.config.classes.of(class).silent_after).await?;
        }
        let expired =
            store.expire_silent(self.ctx.config.sweeps.validity, self.ctx.config.sweeps.reports_batch).await?;
        self.ctx.metrics.count_reconciled("expired", usize::try_from(expired)?);
        let mut more = More::No;
        for (name, reader) in self.readers.iter() {
            if self.look(name, reader.as_ref()).await? == More::Yes {
                more = More::Yes;
            }
        }
        Ok(more)
    }

    /// One look for one account: takes what is due, reads the windows it needs, settles what they decide.
    async fn look(&self, name: &str, reader: &dyn Reports) -> anyhow::Result<More> {
        let sweeps = &self.ctx.config.sweeps;
        let Some(account) = self.ctx.config.accounts.get(name) else { return Ok(More::No) };
        let due =
            self.ctx.store.take_unresolved(name, sweeps.reports_batch, sweeps.poll_first, sweeps.poll_last).await?;
        let full = i64::try_from(due.len())? == sweeps.reports_batch;
        let mut by_window: BTreeMap<ReportWindow, Vec<OpenMessage>> = BTreeMap::new();
        for message in due {
            let (claimed, window) = (message.candidate.claimed_at, message.candidate.window);
            let window = ReportWindow::around(claimed - window, claimed + window, account.zone);
            by_window.entry(window).or_default().push(message);
        }
        for (window, messages) in by_window {
            match reader.list(window).await {
                Ok(listing) => self.settle(name, account, reader, &messages, &listing).await?,
                Err(error) => {
                    // Their next look is set already; what waits stays unknown and listed.
                    tracing::warn!(account = name, %error, messages = messages.len(), "no report");
                    self.ctx.metrics.count_reconciled("no_report", messages.len());
                    if matches!(error, ReportError::Unavailable { .. }) {
                        return Ok(More::No);
                    }
                }
            }
        }
        Ok(if full { More::Yes } else { More::No })
    }

    async fn settle(
        &self,
        name: &str,
        account: &Account,
        reader: &dyn Reports,
        messages: &[OpenMessage],
        listing: &Listing,
    ) -> anyhow::Result<()> {
        let store = &self.ctx.store;
        let now = store.clock_now().await?;
        let lag = account.report_lag_max.unwrap_or(self.ctx.config.sweeps.report_lag);
        let mut judged = judge::judge_all(store, name, account, messages, listing, now, lag).await?;
        self.ask_for_transactions(reader, messages, &mut judged).await;
        let settled = store.settle_by_report(name, &judged.findings).await?;
        store.note_unresolved(&judged.notes).await?;
        self.tell(name, &judged, &settled);
        if !settled.txn_ids.is_empty() {
            store.apply_early(name, &settled.txn_ids).await?;
        }
        Ok(())
    }

    /// Silent messages that no window shows are asked for one by one, a few each pass.
    async fn ask_for_transactions(&self, reader: &dyn Reports, messages: &[OpenMessage], judged: &mut Judged) {
        let unseen: Vec<&OpenMessage> = messages
            .iter()
            .filter(|message| message.polls > WINDOW_LOOKS && judged.unseen.contains(&message.candidate.id))
            .take(TRANSACTION_LOOKS)
            .collect();
        for message in unseen {
            let Some(txn) = message.provider_txn_id.as_deref().and_then(ProviderRef::clean) else { continue };
            match reader.by_transaction(&txn).await {
                Ok(listing) => judged.findings.extend(judge::find_by_id(message, &listing.records)),
                Err(error) => {
                    tracing::debug!(%error, message.id = message.candidate.id.0, "no report of the transaction");
                    return;
                }
            }
        }
    }

    fn tell(&self, account: &str, judged: &Judged, settled: &Settled) {
        let metrics = &self.ctx.metrics;
        metrics.count_reconciled("matched", settled.resolved);
        metrics.count_reconciled("passed_over", settled.passed_over);
        metrics.count_reconciled("ambiguous", judged.ambiguous);
        metrics.count_reconciled("not_found", judged.not_found);
        metrics.count_reconciled("postponed", judged.postponed);
        if settled.resolved + settled.finished > 0 {
            tracing::info!(
                account,
                resolved = settled.resolved,
                finished = settled.finished,
                ambiguous = judged.ambiguous,
                "settled by report"
            );
        }
    }
}

/// The span in which rivals of these messages may have been claimed.
fn span(messages: &[&OpenMessage]) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
    let widest = messages.iter().map(|m| m.candidate.window).max()?.saturating_mul(2) + Duration::from_secs(1);
    let first = messages.iter().map(|m| m.candidate.claimed_at).min()?;
    let last = messages.iter().map(|m| m.candidate.claimed_at).max()?;
    Some((first - widest, last + widest))
}

/// What the report says of a message, as the store takes it.
fn finding(
    message: &OpenMessage,
    record: &sendonce_core::provider::ReportRecord,
    evidence: serde_json::Value,
) -> Finding {
    Finding {
        id: message.candidate.id,
        created_at: message.created_at,
        attempt_key: message.attempt_key,
        txn_id: record.txn_id.as_ref().map(ToString::to_string),
        message_id: record.message_id.as_ref().map(ToString::to_string),
        kind: record.status,
        status_text: record.status_text.clone(),
        cause: record.cause.clone(),
        submitted_at: record.submitted_at,
        done_at: record.done_at,
        cost: record.cost,
        evidence,
    }
}
