//! What an attempt leaves to see: a span in the trace of its rows, and one line in the log. Both keys stand on either (I21), the
//! number and the body on none.

use std::time::Duration;

use crate::domain::outcome::Outcome;
use crate::provider::Answer;
use crate::store::ClaimedMessage;
use crate::telemetry::traces::{self, Operation};

/// Begins the span.
pub(super) fn begin(first: &ClaimedMessage, rows: &[ClaimedMessage]) -> Operation {
    let attempt = traces::Attempt {
        key: first.attempt_key,
        account: &first.account,
        channel: first.channel,
        class: first.class,
        recipients: rows.len(),
        message: (rows.len() == 1).then_some((first.id, first.business_key.as_str())),
        count: first.attempt_count,
    };
    traces::submit(attempt, rows.iter().map(|row| row.trace_parent.as_deref()))
}

/// Ends it and writes the line.
pub(super) fn end(operation: Operation, first: &ClaimedMessage, rows: usize, answer: &Answer, took: Duration) {
    let verdict = answer.outcome.verdict();
    let (code, detail) = match &answer.outcome {
        Outcome::Accepted(accepted) => (accepted.code.as_deref(), None),
        Outcome::Rejected(refusal) | Outcome::Throttled { refusal, .. } | Outcome::AccountRefused(refusal) => {
            operation.fail(verdict.as_str());
            (refusal.code.as_deref(), None)
        }
        Outcome::NotSent(cause) => {
            operation.fail(cause.as_str());
            (None, Some(cause.as_str()))
        }
        Outcome::Ambiguous(ambiguity) => {
            operation.fail(ambiguity.as_str());
            (None, Some(ambiguity.as_str()))
        }
    };
    operation.answer(verdict, answer.http_status);
    tracing::info!(
        message.id = first.id.0,
        business.key = first.business_key,
        attempt.key = %first.attempt_key,
        attempt.count = first.attempt_count,
        job.id = first.job_id.0,
        trace.parent = operation.trace_parent(),
        account = first.account,
        class = %first.class,
        recipients = rows,
        verdict = %verdict,
        code,
        detail,
        http.status = answer.http_status,
        duration.ms = took.as_millis() as u64,
        "attempt"
    );
}
