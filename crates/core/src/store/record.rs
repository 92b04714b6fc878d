//! Recording outcomes, in batches, each fenced by its attempt key. A late answer, after the lease ended, is the best
//! evidence there is and settles the `unknown` row that still bears its key. An answer that fits nothing is kept with the
//! submission and reported as an anomaly; it never overwrites a state.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::claim::lock_jobs;
use super::ingest::word;
use super::receipts::{OwnedId, own_message_ids};
use super::settle::Clear;
use super::{JobFate, Store, StoreError};
use crate::domain::message::{AttemptKey, Channel, Class, JobId, LeaseToken, MessageId, Recipient};
use crate::domain::outcome::Outcome;
use crate::domain::state::{Event, State, Step, apply};
use crate::provider::Answer;

/// An attempt that ended: one request, its rows and the answer.
#[derive(Debug, Clone)]
pub struct Ended {
    pub attempt_key: AttemptKey,
    pub job_id: JobId,
    pub message_created_at: DateTime<Utc>,
    pub claimed_at: DateTime<Utc>,
    pub tenant: String,
    pub channel: Channel,
    pub class: Class,
    pub account: String,
    pub messages: Vec<(MessageId, Recipient)>,
    pub answer: Answer,
    /// How long its rows wait before the next attempt, where the answer lets them go back.
    pub retry_after: std::time::Duration,
}

/// What a record did.
#[derive(Debug, Default)]
pub struct Recorded {
    /// How the settled jobs stand.
    pub jobs: HashMap<JobId, JobFate>,
    /// Rows per state they moved to.
    pub moved: Vec<(Class, State)>,
    /// Answers that fit no state of their row.
    pub anomalies: Vec<(MessageId, AttemptKey, State)>,
    /// Rows whose answer gave a message id that belongs to another message: it is left off.
    pub foreign_ids: usize,
    /// Rows that a late answer settled.
    pub settled_late: usize,
    /// Successors made for rows proven not sent after their lease ended.
    pub successors: usize,
}

/// One row's part in an ended attempt, and where it goes.
struct Part<'a> {
    ended: &'a Ended,
    id: MessageId,
    event: Event,
    charged: bool,
}

struct Move<'a> {
    part: &'a Part<'a>,
    from: State,
    to: State,
}

impl Move<'_> {
    /// The message id that the answer gave to this row; a refused recipient has none.
    fn message_id(&self) -> Option<&str> {
        ids(self.part.ended).1.filter(|_| self.to == State::Submitted)
    }
}

impl Store {
    /// Writes `ended` and settles `settle`, the jobs of which the caller has nothing more on the wire.
    ///
    /// # Errors
    /// `Unavailable`: repeat with the same attempts; what was committed already is recognised by its attempt key.
    pub async fn record(&self, ended: &[Ended], settle: &[JobId], token: LeaseToken) -> Result<Recorded, StoreError> {
        let mut jobs: Vec<JobId> = ended.iter().map(|e| e.job_id).chain(settle.iter().copied()).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let mut tx = self.pool.begin().await?;
        lock_jobs(&mut tx, &jobs).await?;
        // What was recorded before (the answer to that COMMIT was lost) is recognised here and not applied again.
        let fresh = write_submissions(&mut tx, ended).await?;
        let parts: Vec<Part<'_>> = ended.iter().filter(|e| fresh.contains(&e.attempt_key)).flat_map(parts_of).collect();
        let found = lock_rows(&mut tx, &parts).await?;
        let mut recorded = Recorded::default();
        let mut moves = Vec::new();
        for part in &parts {
            let Some(&from) = found.get(&part.id) else { continue };
            match apply(from, part.event) {
                Ok(Step::Move(to)) => moves.push(Move { part, from, to }),
                Ok(Step::Stay) => {}
                Err(_) => recorded.anomalies.push((part.id, part.ended.attempt_key, from)),
            }
        }
        let foreign = own_ids(&mut tx, &moves).await?;
        recorded.foreign_ids = foreign.len();
        self.move_rows(&mut tx, &moves, &foreign).await?;
        self.track_unknown(&mut tx, &moves).await?;
        recorded.successors = self.make_successors(&mut tx, &moves).await?;
        recorded.settled_late = moves.iter().filter(|m| m.from == State::Unknown).count();
        recorded.moved = moves.iter().map(|m| (m.part.ended.class, m.to)).collect();
        recorded.jobs = self.settle_jobs(&mut tx, settle, Some(token), Clear::Yes).await?;
        tx.commit().await?;
        Ok(recorded)
    }

    async fn move_rows(
        &self,
        tx: &mut PgConnection,
        moves: &[Move<'_>],
        foreign: &HashSet<MessageId>,
    ) -> Result<(), StoreError> {
        if moves.is_empty() {
            return Ok(());
        }
        let done = sqlx::query(
            "/* record_moves */
             update outbound_message m set
                state = v.state::message_state,
                state_reason = v.reason,
                attempt_count = m.attempt_count - (v.state = 'pending' and not v.charged)::int,
                next_attempt_at = case v.state when 'pending' then clock_now() + make_interval(secs => v.retry_after) end,
                provider_txn_id = coalesce(v.txn_id, m.provider_txn_id),
                provider_message_id = coalesce(v.message_id, m.provider_message_id),
                provider_status_code = coalesce(v.code, m.provider_status_code),
                provider_cause = coalesce(v.cause, m.provider_cause),
                submitted_at = case v.state when 'submitted' then clock_now() else m.submitted_at end,
                billable_units = case v.state when 'submitted' then m.segments else m.billable_units end,
                cost = case v.state when 'submitted' then m.unit_price * m.segments else m.cost end,
                final_at = case when v.state in ('rejected', 'failed') then clock_now() else m.final_at end,
                needs_review_since = case when v.review then clock_now() else m.needs_review_since end,
                reconciled_at = case m.state when 'unknown' then clock_now() else m.reconciled_at end,
                evidence = case m.state when 'unknown' then jsonb_build_object('kind', 'own_answer', 'attempt_key',
                    m.attempt_key, 'verdict', v.verdict, 'was_unknown_because', m.state_reason) else m.evidence end,
                updated_at = clock_now()
             from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[], $5::boolean[], $6::float8[], $7::text[],
                $8::text[], $9::text[], $10::text[], $11::boolean[], $12::text[])
                as v(id, created_at, state, reason, charged, retry_after, txn_id, message_id, code, cause, review, verdict)
             where m.id = v.id and m.created_at = v.created_at and m.id = any($1)
                and m.created_at between (select min(at) from unnest($2) as at) and (select max(at) from unnest($2) as at)",
        )
        .bind(moves.iter().map(|m| m.part.id.0).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.part.ended.message_created_at).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.to.as_str()).collect::<Vec<_>>())
        .bind(moves.iter().map(reason).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.part.charged).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.part.ended.retry_after.as_secs_f64()).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| ids(m.part.ended).0).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.message_id().filter(|_| !foreign.contains(&m.part.id))).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| words(&m.part.ended.answer.outcome).0).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| words(&m.part.ended.answer.outcome).1).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| needs_review(m.part.ended)).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.part.ended.answer.outcome.verdict().as_str()).collect::<Vec<_>>())
        .execute(tx)
        .await?;
        if done.rows_affected() == moves.len() as u64 {
            return Ok(());
        }
        Err(StoreError::Unexpected(format!("{} of {} locked rows moved", done.rows_affected(), moves.len())))
    }

    /// A row in `unknown` has its `unresolved` row from the same transaction on, and only as long.
    async fn track_unknown(&self, tx: &mut PgConnection, moves: &[Move<'_>]) -> Result<(), StoreError> {
        let entered: Vec<i64> = moves.iter().filter(|m| m.to == State::Unknown).map(|m| m.part.id.0).collect();
        let entered_at: Vec<DateTime<Utc>> =
            moves.iter().filter(|m| m.to == State::Unknown).map(|m| m.part.ended.message_created_at).collect();
        if !entered.is_empty() {
            insert_unresolved(tx, &entered, &entered_at).await?;
        }
        self.leave_unknown(tx, moves).await
    }

    /// A row that a late answer settled leaves the list; one that is submitted now is watched on for its receipt, since the
    /// silent sweep has passed its submission already.
    async fn leave_unknown(&self, tx: &mut PgConnection, moves: &[Move<'_>]) -> Result<(), StoreError> {
        let left: Vec<&Move<'_>> = moves.iter().filter(|m| m.from == State::Unknown).collect();
        if left.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "/* leave_unknown */
             with gone as (delete from unresolved where message_id = any($1))
             update unresolved set kind = 'silent', needs_review_since = null where message_id = any($2)",
        )
        .bind(left.iter().filter(|m| m.to != State::Submitted).map(|m| m.part.id.0).collect::<Vec<_>>())
        .bind(left.iter().filter(|m| m.to == State::Submitted).map(|m| m.part.id.0).collect::<Vec<_>>())
        .execute(tx)
        .await?;
        Ok(())
    }

    /// The one automatic successor: a row proven not sent after its lease had ended is final; the message goes on as a
    /// new row under the same key, in the same transaction, if time to live and cancellation allow.
    async fn make_successors(&self, tx: &mut PgConnection, moves: &[Move<'_>]) -> Result<usize, StoreError> {
        let unsent: Vec<&Move<'_>> =
            moves.iter().filter(|m| m.from == State::Unknown && m.part.event == Event::NotSent).collect();
        if unsent.is_empty() {
            return Ok(0);
        }
        let made = sqlx::query(
            "/* make_successors */
             with old as (
                select m.*, nextval('message_id_seq') as new_id, nextval('job_id_seq') as new_job_id
                from unnest($1::bigint[], $2::timestamptz[]) as v(id, created_at)
                cross join lateral (
                    select * from outbound_message m where m.id = v.id and m.created_at = v.created_at limit 1
                ) m
                where m.expires_at > clock_now()
                    and not exists (select from cancellation c where c.tenant_id = m.tenant_id and c.event_id = m.event_id)
                    and not exists (select from cancellation c
                        where c.tenant_id = m.tenant_id and c.business_key = m.business_key)
             ), key as (
                update message_key k set message_id = old.new_id, message_created_at = clock_now(),
                    attempt_no = k.attempt_no + 1
                from old
                where k.tenant_id = old.tenant_id and k.business_key = old.business_key and k.message_id = old.id
                returning k.message_id, k.attempt_no
             ), predecessor as (
                update outbound_message m set superseded_by = old.new_id, updated_at = clock_now()
                from old join key on key.message_id = old.new_id
                where m.id = old.id and m.created_at = old.created_at and m.id = any($1)
                    and m.created_at between (select min(at) from unnest($2) as at) and (select max(at) from unnest($2) as at)
             ), successor as (
                insert into outbound_message (
                    id, created_at, job_id, business_key, attempt_key, attempt_no, origin, tenant_id, channel,
                    message_class, recipient, sender_id, provider_account, event_source, event_type, event_id,
                    event_recipients, step, campaign, trace_parent, template_id, body, content, secret_params, input_hash,
                    encoding, segments, dlt_entity_id, dlt_template_id, scheduled_for, expires_at, updated_at, unit_price,
                    rate_id, cost_currency, correlation_window_ms, fallback_channels)
                select old.new_id, clock_now(), old.new_job_id, old.business_key, gen_random_uuid(), key.attempt_no,
                    'own_answer', old.tenant_id, old.channel, old.message_class, old.recipient, old.sender_id,
                    old.provider_account, old.event_source, old.event_type, old.event_id, old.event_recipients, old.step,
                    old.campaign, old.trace_parent, old.template_id, old.body, old.content, old.secret_params,
                    old.input_hash, old.encoding, old.segments, old.dlt_entity_id, old.dlt_template_id, old.scheduled_for,
                    old.expires_at, clock_now(), old.unit_price, old.rate_id, old.cost_currency,
                    old.correlation_window_ms, old.fallback_channels
                from old join key on key.message_id = old.new_id
             )
             insert into send_job (id, created_at, tenant_id, channel, message_class, provider_account, message_ids, due_at,
                wake_at)
             select old.new_job_id, clock_now(), old.tenant_id, old.channel, old.message_class, old.provider_account,
                array[old.new_id], clock_now(), clock_now()
             from old join key on key.message_id = old.new_id",
        )
        .bind(unsent.iter().map(|m| m.part.id.0).collect::<Vec<_>>())
        .bind(unsent.iter().map(|m| m.part.ended.message_created_at).collect::<Vec<_>>())
        .execute(tx)
        .await?;
        Ok(usize::try_from(made.rows_affected()).unwrap_or(usize::MAX))
    }
}

/// What the answer means for each row of the request.
fn parts_of(ended: &Ended) -> impl Iterator<Item = Part<'_>> {
    let invalid: HashSet<&Recipient> = match &ended.answer.outcome {
        Outcome::Accepted(accepted) => accepted.invalid.iter().collect(),
        Outcome::Rejected(_)
        | Outcome::Throttled { .. }
        | Outcome::AccountRefused(_)
        | Outcome::NotSent(_)
        | Outcome::Ambiguous(_) => HashSet::new(),
    };
    ended.messages.iter().map(move |(id, recipient)| {
        let (event, charged) = match &ended.answer.outcome {
            Outcome::Accepted(_) if invalid.contains(recipient) => (Event::Refused, true),
            Outcome::Accepted(_) => (Event::Accepted, true),
            Outcome::Rejected(_) => (Event::Refused, true),
            Outcome::Throttled { .. } | Outcome::AccountRefused(_) => (Event::NotSent, false),
            Outcome::NotSent(cause) => (Event::NotSent, cause.is_charged()),
            Outcome::Ambiguous(_) => (Event::Ambiguous, true),
        };
        Part { ended, id: *id, event, charged }
    })
}

fn reason(m: &Move<'_>) -> Option<String> {
    match (m.to, &m.part.ended.answer.outcome) {
        (State::Unknown, Outcome::Ambiguous(ambiguity)) => Some(ambiguity.as_str().to_owned()),
        (State::Pending, Outcome::NotSent(cause)) => Some(format!("not_sent_{cause}")),
        (State::Pending, Outcome::Throttled { .. }) => Some("throttled".to_owned()),
        (State::Pending, Outcome::AccountRefused(_)) => Some("account_refused".to_owned()),
        (State::Rejected, Outcome::Accepted(_)) => Some("invalid_recipient".to_owned()),
        (State::Rejected, Outcome::Rejected(refusal)) if refusal.unlisted => Some("refused_unlisted_code".to_owned()),
        (State::Rejected, _) => Some("refused".to_owned()),
        (State::Failed, Outcome::NotSent(_) | Outcome::Throttled { .. } | Outcome::AccountRefused(_)) => {
            Some("not_submitted".to_owned())
        }
        (State::Failed, _) => Some("refused".to_owned()),
        (
            State::Pending
            | State::Claimed
            | State::Submitted
            | State::Delivered
            | State::Expired
            | State::Unknown
            | State::Cancelled,
            _,
        ) => None,
    }
}

/// Notes whose the message ids are that the answers gave; returns the rows whose id is another's.
async fn own_ids(tx: &mut PgConnection, moves: &[Move<'_>]) -> Result<HashSet<MessageId>, StoreError> {
    let given = moves.iter().filter_map(|m| {
        let ended = m.part.ended;
        let provider_message_id = m.message_id()?;
        Some(OwnedId {
            account: &ended.account,
            provider_message_id,
            id: m.part.id.0,
            created_at: ended.message_created_at,
        })
    });
    let foreign = own_message_ids(tx, given.collect()).await?;
    Ok(foreign.into_iter().map(|(id, _)| MessageId(id)).collect())
}

/// Transaction id and message id that the answer gave.
fn ids(ended: &Ended) -> (Option<&str>, Option<&str>) {
    match &ended.answer.outcome {
        Outcome::Accepted(accepted) => {
            (accepted.txn_id.as_ref().map(|id| id.as_str()), accepted.message_id.as_ref().map(|id| id.as_str()))
        }
        Outcome::Rejected(_)
        | Outcome::Throttled { .. }
        | Outcome::AccountRefused(_)
        | Outcome::NotSent(_)
        | Outcome::Ambiguous(_) => (None, None),
    }
}

/// The provider's code and words, verbatim.
fn words(outcome: &Outcome) -> (Option<&str>, Option<&str>) {
    match outcome {
        Outcome::Accepted(accepted) => (accepted.code.as_deref(), accepted.cause.as_deref()),
        Outcome::Rejected(refusal) | Outcome::Throttled { refusal, .. } | Outcome::AccountRefused(refusal) => {
            (refusal.code.as_deref(), refusal.cause.as_deref())
        }
        Outcome::NotSent(_) | Outcome::Ambiguous(_) => (None, None),
    }
}

fn needs_review(ended: &Ended) -> bool {
    matches!(&ended.answer.outcome, Outcome::Rejected(refusal) if refusal.unlisted)
}

fn detail(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::NotSent(cause) => Some(cause.as_str()),
        Outcome::Ambiguous(ambiguity) => Some(ambiguity.as_str()),
        Outcome::Accepted(_) | Outcome::Rejected(_) | Outcome::Throttled { .. } | Outcome::AccountRefused(_) => None,
    }
}

/// Writes the attempts that are not recorded yet and returns their keys. The sweep may have written one as `lease_ended`:
/// its late answer completes that row and leaves its `ended_at`.
async fn write_submissions(tx: &mut PgConnection, ended: &[Ended]) -> Result<HashSet<AttemptKey>, StoreError> {
    let message_ids: Vec<String> = ended
        .iter()
        .map(|e| {
            let ids: Vec<String> = e.messages.iter().map(|(id, _)| id.to_string()).collect();
            format!("{{{}}}", ids.join(","))
        })
        .collect();
    let written: Vec<uuid::Uuid> = sqlx::query_scalar(
        "/* write_submissions */
         insert into submission (attempt_key, message_created_at, job_id, tenant_id, channel, message_class,
            provider_account, message_ids, claimed_at, ended_at, verdict, detail, http_status, provider_txn_id,
            provider_status_code, provider_cause)
         select attempt_key, message_created_at, job_id, tenant_id, channel::message_channel, class::message_class, account,
            message_ids::bigint[], claimed_at, clock_now(), verdict, detail, http_status, txn_id, code, cause
         from unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[],
            $8::text[], $9::timestamptz[], $10::text[], $11::text[], $12::int[], $13::text[], $14::text[], $15::text[])
            as v(attempt_key, message_created_at, job_id, tenant_id, channel, class, account, message_ids, claimed_at,
                verdict, detail, http_status, txn_id, code, cause)
         on conflict (attempt_key, message_created_at) do update set
            verdict = excluded.verdict, detail = excluded.detail, http_status = excluded.http_status,
            provider_txn_id = excluded.provider_txn_id, provider_status_code = excluded.provider_status_code,
            provider_cause = excluded.provider_cause, answered_late_at = clock_now()
         where submission.verdict = 'lease_ended'
         returning attempt_key",
    )
    .bind(ended.iter().map(|e| e.attempt_key.0).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| e.message_created_at).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| e.job_id.0).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| e.tenant.as_str()).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| e.channel.as_str()).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| e.class.as_str()).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| e.account.as_str()).collect::<Vec<_>>())
    .bind(message_ids)
    .bind(ended.iter().map(|e| e.claimed_at).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| e.answer.outcome.verdict().as_str()).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| detail(&e.answer.outcome)).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| e.answer.http_status.map(i32::from)).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| ids(e).0).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| words(&e.answer.outcome).0).collect::<Vec<_>>())
    .bind(ended.iter().map(|e| words(&e.answer.outcome).1).collect::<Vec<_>>())
    .fetch_all(tx)
    .await?;
    Ok(written.into_iter().map(AttemptKey).collect())
}

/// Locks, in order of id, the rows that still bear their attempt's key, and reads where they are.
async fn lock_rows(tx: &mut PgConnection, parts: &[Part<'_>]) -> Result<HashMap<MessageId, State>, StoreError> {
    let rows: Vec<(i64, String)> = sqlx::query_as(
        "/* lock_rows */
         select m.id, m.state::text
         from (
            select * from unnest($1::bigint[], $2::timestamptz[], $3::uuid[]) as v(id, created_at, attempt_key) order by id
         ) as v
         cross join lateral (
            select * from outbound_message m
            where m.id = v.id and m.created_at = v.created_at and m.attempt_key = v.attempt_key
            limit 1 for update
         ) m",
    )
    .bind(parts.iter().map(|p| p.id.0).collect::<Vec<_>>())
    .bind(parts.iter().map(|p| p.ended.message_created_at).collect::<Vec<_>>())
    .bind(parts.iter().map(|p| p.ended.attempt_key.0).collect::<Vec<_>>())
    .fetch_all(tx)
    .await?;
    rows.into_iter().map(|(id, state)| Ok((MessageId(id), word(&state)?))).collect()
}

/// Makes rows that are now `unknown` findable: by the unknown sweep, the backlog and whoever looks.
pub(super) async fn insert_unresolved(
    tx: &mut PgConnection,
    ids: &[i64],
    created_at: &[DateTime<Utc>],
) -> Result<(), StoreError> {
    sqlx::query(
        "/* insert_unresolved */
         insert into unresolved (message_id, message_created_at, kind, tenant_id, channel, message_class,
            provider_account, attempt_key, since, next_poll_at)
         select m.id, m.created_at, 'unknown', m.tenant_id, m.channel, m.message_class, m.provider_account, m.attempt_key,
            clock_now(), clock_now()
         from unnest($1::bigint[], $2::timestamptz[]) as v(id, created_at)
         cross join lateral (
            select * from outbound_message m where m.id = v.id and m.created_at = v.created_at limit 1
         ) m
         on conflict (message_id) do nothing",
    )
    .bind(ids)
    .bind(created_at)
    .execute(tx)
    .await?;
    Ok(())
}
