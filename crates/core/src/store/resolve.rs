//! Settling messages by what the provider's report says. The report was read before: everything here decides under the
//! row's lock, on the row as it is by then, and binds the record to it in the same transaction.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use serde_json::Value;
use sqlx::PgConnection;

use super::claim::recipient;
use super::ingest::word;
use super::receipts::{OwnedId, own_message_ids};
use super::{Store, StoreError, seconds};
use crate::domain::matching::{Candidate, Standing};
use crate::domain::message::{AttemptKey, Body, Class, MessageId, Recipient};
use crate::domain::receipt::{ReceiptKind, Reduced, final_delivery};
use crate::domain::state::{Event, State, Step, apply};

/// Why a message is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenKind {
    /// A request may have left and no clear answer came back.
    Unknown,
    /// Accepted, and no receipt for too long.
    Silent,
}

/// A message whose outcome must be read from the provider.
#[derive(Debug, Clone)]
pub struct OpenMessage {
    pub candidate: Candidate,
    pub created_at: DateTime<Utc>,
    pub attempt_key: AttemptKey,
    pub kind: OpenKind,
    pub class: Class,
    pub submitted_at: Option<DateTime<Utc>>,
    pub provider_txn_id: Option<String>,
    pub provider_message_id: Option<String>,
    pub polls: u32,
}

/// What the report says of a message; all text as the provider wrote it.
#[derive(Debug, Clone)]
pub struct Finding {
    pub id: MessageId,
    pub created_at: DateTime<Utc>,
    pub attempt_key: AttemptKey,
    pub txn_id: Option<String>,
    pub message_id: Option<String>,
    pub kind: Option<ReceiptKind>,
    pub status_text: String,
    pub cause: Option<String>,
    pub submitted_at: Option<DateTime<Utc>>,
    pub done_at: Option<DateTime<Utc>>,
    pub cost: Option<Decimal>,
    /// Where the match came from, for whoever asks later.
    pub evidence: Value,
}

/// What settling did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Settled {
    /// `unknown` rows that are now accounted for.
    pub resolved: usize,
    /// Rows that reached a final state.
    pub finished: usize,
    /// Records that another message owns already, or rows that moved meanwhile: nothing was changed.
    pub passed_over: usize,
    /// Transaction ids now known, for receipts that came early.
    pub txn_ids: Vec<String>,
}

/// A row under lock.
struct Locked {
    state: State,
    receipts: Reduced,
}

impl Store {
    /// Takes up to `limit` messages of an account that are due for a look, oldest first, and moves their next look on:
    /// twice as far each time, between `first` and `last`. Rows that were settled meanwhile leave the list.
    ///
    /// # Errors
    /// The database is away.
    pub async fn take_unresolved(
        &self,
        account: &str,
        limit: i64,
        first: Duration,
        last: Duration,
    ) -> Result<Vec<OpenMessage>, StoreError> {
        let rows: Vec<OpenRow> = sqlx::query_as(
            "/* take_unresolved */
             with due as (
                select message_id, message_created_at from unresolved
                where provider_account = $1 and next_poll_at <= clock_now()
                order by next_poll_at limit $2 for update skip locked
             ), found as (
                select m.* from due cross join lateral (
                    select * from outbound_message m
                    where m.id = due.message_id and m.created_at = due.message_created_at limit 1
                ) m
             ), settled as (
                delete from unresolved u using found
                where u.message_id = found.id and found.state not in ('unknown', 'submitted')
             ), polled as (
                update unresolved u set polls = u.polls + 1,
                    next_poll_at = clock_now() + make_interval(secs => least($3 * power(2, least(u.polls, 20)), $4))
                from found where u.message_id = found.id and found.state in ('unknown', 'submitted')
                returning u.message_id, u.polls
             )
             select m.id, m.created_at, m.attempt_key, m.state::text, m.message_class::text, m.recipient, m.sender_id,
                m.dlt_template_id, m.body, m.claimed_at, m.correlation_window_ms, m.submitted_at, m.provider_txn_id,
                m.provider_message_id, polled.polls
             from found m join polled on polled.message_id = m.id",
        )
        .bind(account)
        .bind(limit)
        .bind(seconds(first))
        .bind(seconds(last))
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().map(OpenRow::read).collect()
    }

    /// Every row of `account` to one of `recipients`, claimed between the two times, that the provider may have accepted.
    ///
    /// # Errors
    /// The database is away.
    pub async fn competitors(
        &self,
        account: &str,
        recipients: &[&Recipient],
        from: DateTime<Utc>,
        to: DateTime<Utc>,
    ) -> Result<Vec<Candidate>, StoreError> {
        let rows: Vec<RivalRow> = sqlx::query_as(
            "/* competitors */
             select m.id, m.recipient, m.sender_id, m.dlt_template_id, m.body, m.claimed_at, m.correlation_window_ms,
                m.state::text, coalesce(m.provider_txn_id, m.provider_message_id) is not null as identified
             from unnest($2::text[]) as r(recipient)
             join outbound_message m on m.recipient = r.recipient and m.provider_account = $1
             where m.claimed_at between $3 and $4
                and (m.state in ($5::message_state, $6::message_state) or m.submitted_at is not null)",
        )
        .bind(account)
        .bind(recipients.iter().map(|to| to.expose()).collect::<Vec<_>>())
        .bind(from)
        .bind(to)
        .bind("claimed")
        .bind("unknown")
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().map(RivalRow::read).collect()
    }

    /// Which of these provider message ids belong to a message already.
    ///
    /// # Errors
    /// The database is away.
    pub async fn owned_message_ids(&self, account: &str, ids: &[String]) -> Result<HashSet<String>, StoreError> {
        let owned: Vec<String> = sqlx::query_scalar(
            "/* owned_message_ids */
             select p.provider_message_id from unnest($2::text[]) as v(id)
             join provider_message p on p.provider_account = $1 and p.provider_message_id = v.id",
        )
        .bind(account)
        .bind(ids)
        .fetch_all(&self.pool)
        .await?;
        Ok(owned.into_iter().collect())
    }

    /// Which of these (transaction, recipient) pairs a row of ours bears.
    ///
    /// # Errors
    /// The database is away.
    pub async fn owned_transactions(
        &self,
        account: &str,
        pairs: &[(String, Recipient)],
    ) -> Result<HashSet<(String, Recipient)>, StoreError> {
        let owned: Vec<(String, String)> = sqlx::query_as(
            "/* owned_transactions */
             select distinct v.txn_id, v.recipient from unnest($2::text[], $3::text[]) as v(txn_id, recipient)
             join submission s on s.provider_txn_id = v.txn_id and s.provider_account = $1
             join outbound_message m on m.recipient = v.recipient and m.created_at = s.message_created_at
                and m.provider_txn_id = v.txn_id",
        )
        .bind(account)
        .bind(pairs.iter().map(|(txn, _)| txn.as_str()).collect::<Vec<_>>())
        .bind(pairs.iter().map(|(_, to)| to.expose()).collect::<Vec<_>>())
        .fetch_all(&self.pool)
        .await?;
        owned.into_iter().map(|(txn, to)| Ok((txn, recipient(&to)?))).collect()
    }

    /// Settles rows by the records that are theirs: `unknown` ones become `submitted` and go on to the reported state,
    /// silent ones take the reported state.
    ///
    /// # Errors
    /// The database is away; nothing was changed.
    pub async fn settle_by_report(&self, account: &str, findings: &[Finding]) -> Result<Settled, StoreError> {
        let mut settled = Settled::default();
        if findings.is_empty() {
            return Ok(settled);
        }
        let mut tx = self.pool.begin().await?;
        let locked = lock_open(&mut tx, findings).await?;
        let live: Vec<&Finding> = findings.iter().filter(|f| locked.contains_key(&f.id)).collect();
        let owned = live.iter().filter_map(|f| {
            let provider_message_id = f.message_id.as_deref()?;
            Some(OwnedId { account, provider_message_id, id: f.id.0, created_at: f.created_at })
        });
        let foreign = own_message_ids(&mut tx, owned.collect()).await?;
        let mine: Vec<&Finding> = live
            .into_iter()
            .filter(|f| f.message_id.as_ref().is_none_or(|id| !foreign.contains(&(f.id.0, id.clone()))))
            .collect();
        settled.passed_over = findings.len() - mine.len();
        let unknown: Vec<&Finding> =
            mine.iter().copied().filter(|f| locked.get(&f.id).is_some_and(|l| l.state == State::Unknown)).collect();
        account_for(&mut tx, &unknown).await?;
        settled.finished = walk_to_report(&mut tx, &mine, &locked).await?;
        self.watch_or_forget(&mut tx, &mine).await?;
        tx.commit().await?;
        settled.resolved = unknown.len();
        settled.txn_ids = unknown.iter().filter_map(|f| f.txn_id.clone()).collect();
        Ok(settled)
    }

    /// Notes on rows that stay `unknown` what the last look found; shown to whoever asks why.
    ///
    /// # Errors
    /// The database is away.
    pub async fn note_unresolved(
        &self,
        notes: &[(MessageId, DateTime<Utc>, &'static str, Value)],
    ) -> Result<(), StoreError> {
        if notes.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "/* note_unresolved */
             with row as (
                select m.id, m.created_at, v.result, v.evidence
                from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::jsonb[])
                    as v(id, created_at, result, evidence)
                join outbound_message m on m.id = v.id and m.created_at = v.created_at
                where m.state = 'unknown' and m.correlation_result is distinct from v.result::correlation_result
                order by m.id for update of m
             )
             update outbound_message m set correlation_result = row.result::correlation_result, evidence = row.evidence,
                updated_at = clock_now()
             from row where m.id = row.id and m.created_at = row.created_at",
        )
        .bind(notes.iter().map(|n| n.0.0).collect::<Vec<_>>())
        .bind(notes.iter().map(|n| n.1).collect::<Vec<_>>())
        .bind(notes.iter().map(|n| n.2).collect::<Vec<_>>())
        .bind(notes.iter().map(|n| n.3.clone()).collect::<Vec<_>>())
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Flags unknown messages past their class's limit; returns how many. A flag hides nothing and decides nothing.
    ///
    /// # Errors
    /// The database is away.
    pub async fn flag_overdue(&self) -> Result<u64, StoreError> {
        let flagged = sqlx::query(
            "/* flag_overdue */
             with overdue as (
                update unresolved set needs_review_since = clock_now()
                where kind = 'unknown' and needs_review_since is null
                    and since <= clock_now() - make_interval(secs => ($1::float8[])[case message_class
                        when 'otp' then 1 when 'transactional' then 2 else 3 end])
                returning message_id, message_created_at
             )
             update outbound_message m set needs_review_since = clock_now(), updated_at = clock_now()
             from overdue where m.id = overdue.message_id and m.created_at = overdue.message_created_at
                and m.state = 'unknown'",
        )
        .bind(self.timing.unknown_sla.iter().map(|sla| seconds(*sla)).collect::<Vec<_>>())
        .execute(&self.pool)
        .await?;
        Ok(flagged.rows_affected())
    }

    /// Lists submissions of a class that have been accepted for longer than `after` and whose rows still wait for a
    /// receipt. Walks by a stored position, so each submission is looked at once.
    ///
    /// # Errors
    /// The database is away.
    pub async fn find_silent(&self, class: Class, after: Duration) -> Result<u64, StoreError> {
        let sweep = format!("silent.{class}");
        let mut tx = self.pool.begin().await?;
        // Bounds of its own, so that the walk below is a range of the index and nothing else.
        let (from, to): (DateTime<Utc>, DateTime<Utc>) = sqlx::query_as(
            "/* silent_span */
             select coalesce((select position from sweep_cursor where sweep = $1), '1970-01-01'),
                clock_now() - make_interval(secs => $2)",
        )
        .bind(&sweep)
        .bind(seconds(after))
        .fetch_one(&mut *tx)
        .await?;
        let found = sqlx::query(
            "/* find_silent */
             insert into unresolved (message_id, message_created_at, kind, tenant_id, channel, message_class,
                provider_account, attempt_key, since, next_poll_at)
             select m.id, m.created_at, 'silent', m.tenant_id, m.channel, m.message_class, m.provider_account, m.attempt_key,
                clock_now(), clock_now()
             from submission s
             cross join lateral unnest(s.message_ids) as u(id)
             cross join lateral (
                select * from outbound_message m where m.id = u.id and m.created_at = s.message_created_at limit 1
             ) m
             where s.ended_at > $2 and s.ended_at <= $3 and s.message_class = $1::message_class
                and s.verdict = 'accepted' and m.state = $4::message_state
             on conflict (message_id) do nothing",
        )
        .bind(class.as_str())
        .bind(from)
        .bind(to)
        .bind("submitted")
        .execute(&mut *tx)
        .await?;
        sqlx::query(
            "/* move_silent_cursor */
             insert into sweep_cursor (sweep, position) values ($1, $2)
             on conflict (sweep) do update set position = greatest(sweep_cursor.position, excluded.position)",
        )
        .bind(&sweep)
        .bind(to)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(found.rows_affected())
    }

    /// Ends silent messages whose validity passed; returns how many.
    ///
    /// # Errors
    /// The database is away.
    pub async fn expire_silent(&self, validity: Duration, limit: i64) -> Result<u64, StoreError> {
        let expired = sqlx::query(
            "/* expire_silent */
             with over as (
                select m.id, m.created_at
                from unresolved u
                join outbound_message m on m.id = u.message_id and m.created_at = u.message_created_at
                where u.kind = 'silent' and m.state = 'submitted'
                    and m.submitted_at <= clock_now() - make_interval(secs => $1)
                order by m.id limit $2 for update of m skip locked
             ), gone as (
                delete from unresolved u using over where u.message_id = over.id
             )
             update outbound_message m set state = 'expired', state_reason = 'validity_passed', final_at = clock_now(),
                updated_at = clock_now()
             from over where m.id = over.id and m.created_at = over.created_at",
        )
        .bind(seconds(validity))
        .bind(limit)
        .execute(&self.pool)
        .await?;
        Ok(expired.rows_affected())
    }

    /// A settled row leaves the list when it is final, and is watched on for its receipt when it is not.
    async fn watch_or_forget(&self, tx: &mut PgConnection, mine: &[&Finding]) -> Result<(), StoreError> {
        sqlx::query(
            "/* watch_or_forget */
             with row as (
                select m.id, m.state from unnest($1::bigint[], $2::timestamptz[]) as v(id, created_at)
                join outbound_message m on m.id = v.id and m.created_at = v.created_at
             ), gone as (
                delete from unresolved u using row where u.message_id = row.id and row.state <> 'submitted'
             )
             update unresolved u set kind = 'silent', needs_review_since = null
             from row where u.message_id = row.id and row.state = 'submitted' and u.kind = 'unknown'",
        )
        .bind(mine.iter().map(|f| f.id.0).collect::<Vec<_>>())
        .bind(mine.iter().map(|f| f.created_at).collect::<Vec<_>>())
        .execute(tx)
        .await?;
        Ok(())
    }
}

/// Locks, in order of id, the rows that are still open under the attempt that was looked up.
async fn lock_open(tx: &mut PgConnection, findings: &[Finding]) -> Result<HashMap<MessageId, Locked>, StoreError> {
    let rows: Vec<(i64, String, Option<String>, bool)> = sqlx::query_as(
        "/* lock_open */
         select m.id, m.state::text, m.receipt_state, m.receipt_conflict
         from (
            select * from unnest($1::bigint[], $2::timestamptz[], $3::uuid[]) as v(id, created_at, attempt_key) order by id
         ) as v
         cross join lateral (
            select * from outbound_message m
            where m.id = v.id and m.created_at = v.created_at and m.attempt_key = v.attempt_key
                and m.state in ('unknown', 'submitted')
            limit 1 for update
         ) m",
    )
    .bind(findings.iter().map(|f| f.id.0).collect::<Vec<_>>())
    .bind(findings.iter().map(|f| f.created_at).collect::<Vec<_>>())
    .bind(findings.iter().map(|f| f.attempt_key.0).collect::<Vec<_>>())
    .fetch_all(tx)
    .await?;
    rows.into_iter()
        .map(|(id, state, receipt_state, conflict)| {
            let known = receipt_state.as_deref().map(word).transpose()?;
            let locked = Locked { state: word(&state)?, receipts: Reduced { state: known, conflict } };
            Ok((MessageId(id), locked))
        })
        .collect()
}

/// `unknown` ▶ `submitted`, with the record's ids and the cost of the day it was sent.
async fn account_for(tx: &mut PgConnection, unknown: &[&Finding]) -> Result<(), StoreError> {
    if unknown.is_empty() {
        return Ok(());
    }
    let done = sqlx::query(
        "/* account_for */
         update outbound_message m set
            state = 'submitted', state_reason = null, submitted_at = coalesce(v.submitted_at, m.claimed_at),
            billable_units = m.segments, cost = m.unit_price * m.segments, provider_txn_id = v.txn_id,
            provider_message_id = v.message_id, reconciled_at = clock_now(), correlation_result = 'matched',
            evidence = v.evidence, needs_review_since = null, updated_at = clock_now()
         from unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::text[], $5::text[], $6::jsonb[])
            as v(id, created_at, submitted_at, txn_id, message_id, evidence)
         where m.id = v.id and m.created_at = v.created_at and m.id = any($1)",
    )
    .bind(unknown.iter().map(|f| f.id.0).collect::<Vec<_>>())
    .bind(unknown.iter().map(|f| f.created_at).collect::<Vec<_>>())
    .bind(unknown.iter().map(|f| f.submitted_at).collect::<Vec<_>>())
    .bind(unknown.iter().map(|f| f.txn_id.as_deref()).collect::<Vec<_>>())
    .bind(unknown.iter().map(|f| f.message_id.as_deref()).collect::<Vec<_>>())
    .bind(unknown.iter().map(|f| f.evidence.clone()).collect::<Vec<_>>())
    .execute(tx)
    .await?;
    if done.rows_affected() == unknown.len() as u64 {
        return Ok(());
    }
    Err(StoreError::Unexpected(format!("{} of {} locked rows accounted for", done.rows_affected(), unknown.len())))
}

/// Takes the reported state, as a receipt would; returns how many rows became final.
async fn walk_to_report(
    tx: &mut PgConnection,
    mine: &[&Finding],
    locked: &HashMap<MessageId, Locked>,
) -> Result<usize, StoreError> {
    let steps: Vec<(&Finding, Reduced, Option<State>)> = mine
        .iter()
        .filter_map(|finding| {
            let before = locked.get(&finding.id)?.receipts;
            let reduced = finding.kind.map_or(before, |kind| before.join(kind));
            let delivery = finding.kind.and_then(final_delivery);
            let step = delivery.and_then(|delivery| apply(State::Submitted, Event::Receipt(delivery)).ok());
            let to = match step {
                Some(Step::Move(to)) => Some(to),
                Some(Step::Stay) | None => None,
            };
            Some((*finding, reduced, to))
        })
        .collect();
    sqlx::query(
        "/* walk_to_report */
         update outbound_message m set
            state = coalesce(v.state::message_state, m.state),
            state_reason = case when v.state in ('failed', 'expired') then 'report_' || v.state else m.state_reason end,
            receipt_state = v.receipt_state, receipt_conflict = v.conflict,
            delivered_at = case v.state when 'delivered' then coalesce(m.delivered_at, v.done_at) else m.delivered_at end,
            final_at = case when v.state is not null then clock_now() else m.final_at end,
            provider_message_id = coalesce(m.provider_message_id, v.message_id),
            provider_status_code = coalesce(v.status_text, m.provider_status_code),
            provider_cause = coalesce(v.cause, m.provider_cause),
            reported_cost = coalesce(m.reported_cost, v.cost),
            reconciled_at = coalesce(m.reconciled_at, clock_now()), updated_at = clock_now()
         from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[], $5::boolean[], $6::timestamptz[], $7::text[],
            $8::text[], $9::text[], $10::numeric[])
            as v(id, created_at, state, receipt_state, conflict, done_at, message_id, status_text, cause, cost)
         where m.id = v.id and m.created_at = v.created_at and m.id = any($1)",
    )
    .bind(steps.iter().map(|(f, ..)| f.id.0).collect::<Vec<_>>())
    .bind(steps.iter().map(|(f, ..)| f.created_at).collect::<Vec<_>>())
    .bind(steps.iter().map(|(_, _, to)| to.map(State::as_str)).collect::<Vec<_>>())
    .bind(steps.iter().map(|(_, reduced, _)| reduced.state.map(ReceiptKind::as_str)).collect::<Vec<_>>())
    .bind(steps.iter().map(|(_, reduced, _)| reduced.conflict).collect::<Vec<_>>())
    .bind(steps.iter().map(|(f, ..)| f.done_at).collect::<Vec<_>>())
    .bind(steps.iter().map(|(f, ..)| f.message_id.as_deref()).collect::<Vec<_>>())
    .bind(steps.iter().map(|(f, ..)| f.status_text.as_str()).collect::<Vec<_>>())
    .bind(steps.iter().map(|(f, ..)| f.cause.as_deref()).collect::<Vec<_>>())
    .bind(steps.iter().map(|(f, ..)| f.cost).collect::<Vec<_>>())
    .execute(tx)
    .await?;
    Ok(steps.iter().filter(|(_, _, to)| to.is_some()).count())
}

#[derive(sqlx::FromRow)]
struct OpenRow {
    id: i64,
    created_at: DateTime<Utc>,
    attempt_key: uuid::Uuid,
    state: String,
    message_class: String,
    recipient: String,
    sender_id: Option<String>,
    dlt_template_id: Option<String>,
    body: Option<String>,
    claimed_at: DateTime<Utc>,
    correlation_window_ms: i32,
    submitted_at: Option<DateTime<Utc>>,
    provider_txn_id: Option<String>,
    provider_message_id: Option<String>,
    polls: i32,
}

impl OpenRow {
    fn read(self) -> Result<OpenMessage, StoreError> {
        let identified = self.provider_txn_id.is_some() || self.provider_message_id.is_some();
        Ok(OpenMessage {
            candidate: Candidate {
                id: MessageId(self.id),
                recipient: recipient(&self.recipient)?,
                sender_id: self.sender_id,
                template_id: self.dlt_template_id,
                body: self.body.map(Body::new),
                claimed_at: self.claimed_at,
                window: window(self.correlation_window_ms),
                standing: if identified { Standing::Identified } else { Standing::Open },
            },
            created_at: self.created_at,
            attempt_key: AttemptKey(self.attempt_key),
            kind: if self.state == "unknown" { OpenKind::Unknown } else { OpenKind::Silent },
            class: word(&self.message_class)?,
            submitted_at: self.submitted_at,
            provider_txn_id: self.provider_txn_id,
            provider_message_id: self.provider_message_id,
            polls: u32::try_from(self.polls).unwrap_or(0),
        })
    }
}

#[derive(sqlx::FromRow)]
struct RivalRow {
    id: i64,
    recipient: String,
    sender_id: Option<String>,
    dlt_template_id: Option<String>,
    body: Option<String>,
    claimed_at: DateTime<Utc>,
    correlation_window_ms: i32,
    state: String,
    identified: bool,
}

impl RivalRow {
    fn read(self) -> Result<Candidate, StoreError> {
        let standing = match (self.state.as_str(), self.identified) {
            ("claimed", _) => Standing::OnItsWay,
            (_, true) => Standing::Identified,
            (_, false) => Standing::Open,
        };
        Ok(Candidate {
            id: MessageId(self.id),
            recipient: recipient(&self.recipient)?,
            sender_id: self.sender_id,
            template_id: self.dlt_template_id,
            body: self.body.map(Body::new),
            claimed_at: self.claimed_at,
            window: window(self.correlation_window_ms),
            standing,
        })
    }
}

fn window(milliseconds: i32) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0))
}
