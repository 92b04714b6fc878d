//! Makes outcomes durable, in batches, and keeps them until they are: while the database is away the answers wait here.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use super::Report;
use crate::domain::message::{JobId, LeaseToken};
use crate::domain::outcome::{NotSent, Outcome};
use crate::domain::state::State;
use crate::service::Context;
use crate::store::{Ended, Recorded};

/// A request that was answered, or not.
#[derive(Debug)]
pub(super) struct EndedRequest {
    pub(super) ended: Ended,
    /// How often its first row has been claimed.
    pub(super) rows_attempts: i32,
    /// Requests of the same job whose outcome is not durable yet.
    pub(super) outstanding: Arc<AtomicUsize>,
}

pub(super) struct Recorder {
    ctx: Context,
    token: LeaseToken,
    reports: mpsc::UnboundedSender<Report>,
}

const BATCH: usize = 200;
const LINGER: Duration = Duration::from_millis(5);
const BEAT: Duration = Duration::from_secs(30);
/// The longest of a provider's words that is kept.
const CAUSE: usize = 500;

impl Recorder {
    pub(super) fn new(ctx: Context, token: LeaseToken, reports: mpsc::UnboundedSender<Report>) -> Self {
        Self { ctx, token, reports }
    }

    /// Ends when every sender of outcomes is gone, which is after the drain.
    pub(super) async fn run(self, mut ended: mpsc::UnboundedReceiver<EndedRequest>) -> anyhow::Result<()> {
        loop {
            self.ctx.health.beat("recorder", BEAT);
            let first = tokio::select! {
                first = ended.recv() => first,
                () = sleep(BEAT / 3) => continue,
            };
            let Some(first) = first else { return Ok(()) };
            let until = Instant::now() + LINGER;
            let mut batch = vec![self.receive(first)];
            while batch.len() < BATCH {
                match timeout_at(until, ended.recv()).await {
                    Ok(Some(next)) => batch.push(self.receive(next)),
                    Ok(None) | Err(_) => break,
                }
            }
            self.record(batch).await?;
        }
    }

    /// Decides how long rows that go back wait, and frees the slot: from here on only the database is needed.
    fn receive(&self, mut request: EndedRequest) -> EndedRequest {
        let sender = &self.ctx.config.sender;
        let hold = match &request.ended.answer.outcome {
            Outcome::Throttled { retry_after, .. } => Some(retry_after.unwrap_or(sender.hold)),
            Outcome::AccountRefused(_) => Some(sender.hold),
            Outcome::Accepted(_) | Outcome::Rejected(_) | Outcome::NotSent(_) | Outcome::Ambiguous(_) => None,
        };
        request.ended.retry_after = match &request.ended.answer.outcome {
            Outcome::NotSent(NotSent::BudgetOver | NotSent::Drain) => Duration::from_millis(20),
            Outcome::NotSent(_) => {
                let attempt = u32::try_from(request.rows_attempts).unwrap_or(1).max(1);
                sender.backoff().delay(attempt, self.ctx.entropy.fraction())
            }
            Outcome::Accepted(_)
            | Outcome::Rejected(_)
            | Outcome::Throttled { .. }
            | Outcome::AccountRefused(_)
            | Outcome::Ambiguous(_) => hold.unwrap_or_default(),
        };
        tidy_words(&mut request.ended.answer.outcome);
        let hold = hold.map(|wait| (request.ended.account.clone(), Instant::now() + wait));
        self.tell(Report::Answered { hold });
        request
    }

    async fn record(&self, batch: Vec<EndedRequest>) -> anyhow::Result<()> {
        // A job is settled when this batch holds the last of its requests; if the claimer takes more of it meanwhile, the
        // settling sees claimed rows and leaves the lease.
        let mut requests: HashMap<JobId, (usize, &Arc<AtomicUsize>)> = HashMap::new();
        for request in &batch {
            requests.entry(request.ended.job_id).or_insert((0, &request.outstanding)).0 += 1;
        }
        let settle: Vec<JobId> = requests
            .iter()
            .filter(|(_, (count, outstanding))| outstanding.load(Ordering::SeqCst) <= *count)
            .map(|(id, _)| *id)
            .collect();
        let ended: Vec<Ended> = batch.iter().map(|request| request.ended.clone()).collect();
        let recorded = self.ctx.hold("recorder", || self.ctx.store.record(&ended, &settle, self.token)).await?;
        for (count, outstanding) in requests.values() {
            outstanding.fetch_sub(*count, Ordering::SeqCst);
        }
        self.tell(Report::Recorded(requests.keys().copied().collect()));
        self.count(&recorded);
        self.look_for_early_receipts(&ended).await;
        Ok(())
    }

    /// A receipt may have come before the submission was durable. Failing here is repaired by the receipts sweep.
    async fn look_for_early_receipts(&self, ended: &[Ended]) {
        let mut by_account: HashMap<&str, HashSet<String>> = HashMap::new();
        for e in ended {
            if let Outcome::Accepted(accepted) = &e.answer.outcome {
                let ids = [&accepted.txn_id, &accepted.message_id].into_iter().flatten();
                by_account.entry(&e.account).or_default().extend(ids.map(|id| id.as_str().to_owned()));
            }
        }
        for (account, ids) in by_account {
            let ids: Vec<String> = ids.into_iter().collect();
            match self.ctx.store.apply_early(account, &ids).await {
                Ok(applied) => self.ctx.metrics.count_receipts("early_matched", applied.applied),
                Err(error) => tracing::warn!(%error, "early receipts are left to the sweep"),
            }
        }
    }

    fn count(&self, recorded: &Recorded) {
        let mut moved: HashMap<(crate::domain::message::Class, State), usize> = HashMap::new();
        for key in &recorded.moved {
            *moved.entry(*key).or_default() += 1;
        }
        for ((class, state), messages) in moved {
            self.ctx.metrics.count_moved(class, state, messages);
        }
        for (message, attempt, state) in &recorded.anomalies {
            tracing::error!(message.id = message.0, attempt.key = %attempt, %state, "an answer fits no state of its row");
        }
        self.ctx.metrics.count_anomalies("answer_fits_no_state", recorded.anomalies.len());
        self.ctx.metrics.count_anomalies("message_id_of_another", recorded.foreign_ids);
        if recorded.settled_late > 0 {
            tracing::info!(messages = recorded.settled_late, successors = recorded.successors, "late answers settled");
        }
    }

    fn tell(&self, report: Report) {
        if self.reports.send(report).is_err() {
            tracing::debug!("the claimer ended before the recorder");
        }
    }
}

/// PostgreSQL text holds no NUL, and a provider's page of HTML is not a cause.
fn tidy_words(outcome: &mut Outcome) {
    let tidy = |text: &mut Option<String>| {
        if let Some(text) = text {
            *text = text.chars().filter(|c| *c != '\0').take(CAUSE).collect();
        }
    };
    match outcome {
        Outcome::Accepted(accepted) => {
            tidy(&mut accepted.code);
            tidy(&mut accepted.cause);
        }
        Outcome::Rejected(refusal) | Outcome::Throttled { refusal, .. } | Outcome::AccountRefused(refusal) => {
            tidy(&mut refusal.code);
            tidy(&mut refusal.cause);
        }
        Outcome::NotSent(_) | Outcome::Ambiguous(_) => {}
    }
}
