//! The claim: the gate in front of the socket. One transaction locks the jobs, then, with a fresh snapshot, moves at most
//! as many requests' worth of their pending rows to `claimed` as POST slots are free. What was not claimed stays
//! `pending` under the lease, so doubt after a crash is limited to occupied slots.
//!
//! Here and in all of the store a row is read by `lateral (… limit 1)` and written with `id = any(…)` and a span of
//! `created_at` beside the join: as a plain join the planner, on the statistics of a young partition, reads the whole of it,
//! and goes on doing so while it fills (`tests/store/plans.rs`).

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};

use super::ingest::word;
use super::settle::Clear;
use super::{JobFate, Store, StoreError, seconds};
use crate::domain::message::{AttemptKey, Body, Channel, Class, Encoding, JobId, LeaseToken, MessageId, Recipient};
use crate::domain::state::State;

/// A job that a delivery named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimJob {
    pub id: JobId,
    /// Recipients that one request of the job's account may carry; 1: every row is a request of its own.
    pub max_recipients: u16,
}

/// One claim. Its token and keys are drawn before the first try and stay when the answer to COMMIT is lost.
#[derive(Debug, Clone)]
pub struct Claim {
    pub token: LeaseToken,
    /// In order of preference.
    pub jobs: Vec<ClaimJob>,
    /// One per free slot.
    pub attempt_keys: Vec<AttemptKey>,
    /// An earlier try of this claim may have been committed: what it took is returned, and nothing more is taken.
    pub repeated: bool,
}

/// A row of the claim, as it must go on the wire.
#[derive(Debug, Clone)]
pub struct ClaimedMessage {
    pub id: MessageId,
    pub created_at: DateTime<Utc>,
    pub job_id: JobId,
    pub attempt_key: AttemptKey,
    pub attempt_count: i32,
    pub claimed_at: DateTime<Utc>,
    pub tenant: String,
    pub channel: Channel,
    pub class: Class,
    pub account: String,
    pub recipient: Recipient,
    pub sender_id: Option<String>,
    pub body: Body,
    pub encoding: Encoding,
    pub dlt_entity_id: Option<String>,
    pub dlt_template_id: Option<String>,
    pub business_key: String,
    pub trace_parent: Option<String>,
    /// The sweep ended the lease before the answer to this claim came: it must not be sent any more.
    pub lease_ended: bool,
}

/// What a claim left of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobAfterClaim {
    pub id: JobId,
    /// Rows that the next claim could take right away.
    pub due: i64,
    /// `None`: the claim took rows of it and the lease is ours. Otherwise the job row owns what follows.
    pub released: Option<JobFate>,
}

const CLAIM: &str = "/* claim */
with job as (
    select j.id, j.created_at, j.message_ids, r.position, r.max_recipients
    from unnest($1::bigint[], $2::int[]) with ordinality as r(id, max_recipients, position)
    join send_job j on j.id = r.id
    where j.id = any($1) and (j.lease_token is null or j.lease_token = $3) and j.parked_reason is null
        -- A database that was restored a moment ago gives nothing away: what it calls pending may have been sent.
        and ($7::uuid is null or ($7 = (select e.epoch from store_epoch e order by e.started_at desc limit 1)
            and pg_current_wal_flush_lsn() >= '0/0'::pg_lsn + $8::bigint))
), open as (
    select m.id, m.created_at, job.position, job.max_recipients, m.sender_id, m.body, m.encoding, m.dlt_entity_id,
        m.dlt_template_id, m.recipient,
        case
            when m.expires_at <= clock_now() then 'expired'
            when exists (select from cancellation c where c.tenant_id = m.tenant_id and c.event_id = m.event_id)
                or exists (select from cancellation c where c.tenant_id = m.tenant_id and c.business_key = m.business_key)
            then 'cancelled'
            else 'claimed'
        end as next
    from job cross join lateral unnest(job.message_ids) as u(id)
    cross join lateral (
        select * from outbound_message m where m.id = u.id and m.created_at = job.created_at limit 1
    ) m
    where m.state = $4::message_state
        and (m.expires_at <= clock_now()
            or ((m.next_attempt_at is null or m.next_attempt_at <= clock_now())
                and (m.scheduled_for is null or m.scheduled_for <= clock_now())
                and m.attempt_count < $5))
), copies as (
    -- A recipient stands at most once in a request: his second message goes to the next one.
    select *, row_number() over (partition by position, sender_id, encoding, dlt_entity_id, dlt_template_id, body,
        recipient order by id) as copy
    from open where next = 'claimed'
), chunks as (
    select *, (row_number() over (partition by position, sender_id, encoding, dlt_entity_id, dlt_template_id, body, copy
        order by id) - 1) / max_recipients as chunk
    from copies
), slots as (
    select id, created_at, next, dense_rank() over (order by position, sender_id, encoding, dlt_entity_id,
        dlt_template_id, body, copy, chunk) as slot
    from chunks
), moving as (
    select id, created_at, next, slot from slots where slot <= cardinality($6::uuid[])
    union all
    select id, created_at, next, null from open where next <> 'claimed'
)
update outbound_message m set
    state = moving.next::message_state,
    attempt_key = coalesce(($6::uuid[])[moving.slot], m.attempt_key),
    attempt_count = m.attempt_count + (moving.slot is not null)::int,
    claimed_at = case when moving.slot is null then m.claimed_at else clock_now() end,
    final_at = case when moving.slot is null then clock_now() end,
    state_reason = case moving.next when 'expired' then 'ttl_passed' when 'cancelled' then 'cancelled_by_event' end,
    next_attempt_at = null,
    updated_at = clock_now()
from moving
where m.id = moving.id and m.created_at = moving.created_at and m.state = $4::message_state
    and m.id = any(array(select id from moving))
    and m.created_at between (select min(created_at) from moving) and (select max(created_at) from moving)
returning ";

const CLAIMED_COLUMNS: &str = "m.id, m.created_at, m.job_id, m.attempt_key, m.attempt_count, m.claimed_at, m.tenant_id,
    m.channel::text, m.message_class::text, m.provider_account, m.recipient, m.sender_id, m.body, m.encoding,
    m.dlt_entity_id, m.dlt_template_id, encode(m.business_key, 'hex') as business_key, m.trace_parent,
    m.state::text";

impl Store {
    /// Claims rows of `claim.jobs`, in that order, for at most `claim.attempt_keys.len()` requests. Rows that share an
    /// attempt key share a request. Rows whose time to live passed or that were cancelled are ended on the way.
    ///
    /// # Errors
    /// `Unavailable`: the claim may or may not have been made; repeat it with `repeated` set, inside the send budget.
    pub async fn claim(&self, claim: &Claim) -> Result<(Vec<ClaimedMessage>, Vec<JobAfterClaim>), StoreError> {
        let mut tx = self.pool.begin().await?;
        let ids: Vec<JobId> = claim.jobs.iter().map(|job| job.id).collect();
        lock_jobs(&mut tx, &ids).await?;
        let earlier = if claim.repeated { find_claimed(&mut tx, claim).await? } else { Vec::new() };
        // A key is never used twice: where rows bear this claim's keys already, it takes no others.
        let rows = if earlier.is_empty() { self.move_to_claimed(&mut tx, claim).await? } else { earlier };
        // Where the sweep ended the lease of an earlier try, its rows are `unknown` and the job may be another's by now.
        let held = rows.iter().filter(|row| row.state == State::Claimed).map(|row| row.message.job_id);
        let mut leased: Vec<JobId> = held.collect();
        leased.sort_unstable();
        leased.dedup();
        self.lease_jobs(&mut tx, claim.token, &leased).await?;
        let jobs = self.jobs_after_claim(&mut tx, claim, &leased).await?;
        tx.commit().await?;
        Ok((rows.into_iter().map(|row| row.message).collect(), jobs))
    }

    async fn move_to_claimed(&self, tx: &mut PgConnection, claim: &Claim) -> Result<Vec<Taken>, StoreError> {
        let statement = sqlx::AssertSqlSafe(format!("{CLAIM}{CLAIMED_COLUMNS}"));
        let followed = self.followed();
        let rows: Vec<PgRow> = sqlx::query(statement)
            .bind(claim.jobs.iter().map(|job| job.id.0).collect::<Vec<_>>())
            .bind(claim.jobs.iter().map(|job| i32::from(job.max_recipients)).collect::<Vec<_>>())
            .bind(claim.token.0)
            .bind("pending")
            .bind(i32::try_from(self.timing.max_attempts).unwrap_or(i32::MAX))
            .bind(claim.attempt_keys.iter().map(|key| key.0).collect::<Vec<_>>())
            .bind(followed.map(|(epoch, _)| epoch))
            .bind(followed.map_or(0, |(_, at_least)| i64::try_from(at_least).unwrap_or(i64::MAX)))
            .fetch_all(tx)
            .await?;
        let claimed = |row: &&PgRow| row.try_get::<String, _>("state").is_ok_and(|state| state == "claimed");
        rows.iter().filter(claimed).map(read_taken).collect()
    }

    async fn lease_jobs(&self, tx: &mut PgConnection, token: LeaseToken, jobs: &[JobId]) -> Result<(), StoreError> {
        let done = sqlx::query(
            "/* lease_jobs */
             update send_job set lease_token = $2, wake_at = clock_now() + make_interval(secs => $3) where id = any($1)",
        )
        .bind(jobs.iter().map(|job| job.0).collect::<Vec<_>>())
        .bind(token.0)
        .bind(seconds(self.timing.lease))
        .execute(tx)
        .await?;
        if done.rows_affected() == jobs.len() as u64 {
            return Ok(());
        }
        Err(StoreError::Unexpected(format!("{} of {} claimed jobs exist", done.rows_affected(), jobs.len())))
    }

    /// Jobs whose last rows just ended go; of those that were claimed from the rest is counted.
    async fn jobs_after_claim(
        &self,
        tx: &mut PgConnection,
        claim: &Claim,
        leased: &[JobId],
    ) -> Result<Vec<JobAfterClaim>, StoreError> {
        let due = self.count_due(tx, leased).await?;
        let idle: Vec<JobId> = claim.jobs.iter().map(|job| job.id).filter(|id| !leased.contains(id)).collect();
        let fates = self.settle_jobs(tx, &idle, Some(claim.token), Clear::No).await?;
        Ok(claim
            .jobs
            .iter()
            .map(|job| JobAfterClaim {
                id: job.id,
                due: due.get(&job.id).copied().unwrap_or(0),
                released: (!leased.contains(&job.id)).then(|| fates.get(&job.id).copied().unwrap_or(JobFate::Gone)),
            })
            .collect())
    }

    async fn count_due(&self, tx: &mut PgConnection, jobs: &[JobId]) -> Result<HashMap<JobId, i64>, StoreError> {
        let counted: Vec<(i64, i64)> = sqlx::query_as(
            "/* count_due */
             select j.id, count(*)
             from send_job j cross join lateral unnest(j.message_ids) as u(id)
             cross join lateral (
                select * from outbound_message m where m.id = u.id and m.created_at = j.created_at limit 1
             ) m
             where j.id = any($1) and m.state = $2::message_state
                and (m.next_attempt_at is null or m.next_attempt_at <= clock_now())
                and (m.scheduled_for is null or m.scheduled_for <= clock_now()) and m.attempt_count < $3
             group by j.id",
        )
        .bind(jobs.iter().map(|job| job.0).collect::<Vec<_>>())
        .bind("pending")
        .bind(i32::try_from(self.timing.max_attempts).unwrap_or(i32::MAX))
        .fetch_all(tx)
        .await?;
        Ok(counted.into_iter().map(|(id, due)| (JobId(id), due)).collect())
    }
}

/// Whoever moves a row into or out of `pending` or `claimed` locks its job first, in order of id.
pub(super) async fn lock_jobs(tx: &mut PgConnection, jobs: &[JobId]) -> Result<(), StoreError> {
    sqlx::query("/* lock_jobs */ select id from send_job where id = any($1) order by id for update")
        .bind(jobs.iter().map(|job| job.0).collect::<Vec<_>>())
        .execute(tx)
        .await?;
    Ok(())
}

/// What an earlier try of the same claim took; `unknown` where its lease ended meanwhile, perhaps with the whole job.
async fn find_claimed(tx: &mut PgConnection, claim: &Claim) -> Result<Vec<Taken>, StoreError> {
    let statement = sqlx::AssertSqlSafe(format!(
        "/* find_claimed */
         with named as (
            select u.id, j.created_at from send_job j cross join lateral unnest(j.message_ids) as u(id)
            where j.id = any($1)
            union
            select u.id, s.message_created_at from submission s cross join lateral unnest(s.message_ids) as u(id)
            where s.attempt_key = any($2) and s.verdict = 'lease_ended'
         )
         select {CLAIMED_COLUMNS}
         from named cross join lateral (
            select * from outbound_message m where m.id = named.id and m.created_at = named.created_at limit 1
         ) m
         where m.attempt_key = any($2) and m.state in ($3::message_state, $4::message_state)"
    ));
    let rows: Vec<PgRow> = sqlx::query(statement)
        .bind(claim.jobs.iter().map(|job| job.id.0).collect::<Vec<_>>())
        .bind(claim.attempt_keys.iter().map(|key| key.0).collect::<Vec<_>>())
        .bind("claimed")
        .bind("unknown")
        .fetch_all(tx)
        .await?;
    rows.iter().map(read_taken).collect()
}

/// A row that bears one of the claim's keys.
struct Taken {
    message: ClaimedMessage,
    state: State,
}

#[derive(FromRow)]
struct ClaimedRow {
    id: i64,
    created_at: DateTime<Utc>,
    job_id: i64,
    attempt_key: uuid::Uuid,
    attempt_count: i32,
    claimed_at: DateTime<Utc>,
    tenant_id: String,
    channel: String,
    message_class: String,
    provider_account: String,
    recipient: String,
    sender_id: Option<String>,
    body: Option<String>,
    encoding: String,
    dlt_entity_id: Option<String>,
    dlt_template_id: Option<String>,
    business_key: String,
    trace_parent: Option<String>,
    state: String,
}

fn read_taken(row: &PgRow) -> Result<Taken, StoreError> {
    let row = ClaimedRow::from_row(row)?;
    let state: State = word(&row.state)?;
    let message = ClaimedMessage {
        id: MessageId(row.id),
        created_at: row.created_at,
        job_id: JobId(row.job_id),
        attempt_key: AttemptKey(row.attempt_key),
        attempt_count: row.attempt_count,
        claimed_at: row.claimed_at,
        tenant: row.tenant_id,
        channel: word(&row.channel)?,
        class: word(&row.message_class)?,
        account: row.provider_account,
        recipient: recipient(&row.recipient)?,
        sender_id: row.sender_id,
        body: Body::new(row.body.unwrap_or_default()),
        encoding: word(&row.encoding)?,
        dlt_entity_id: row.dlt_entity_id,
        dlt_template_id: row.dlt_template_id,
        business_key: row.business_key,
        trace_parent: row.trace_parent,
        lease_ended: state == State::Unknown,
    };
    Ok(Taken { message, state })
}

/// A recipient as stored.
pub(super) fn recipient(digits: &str) -> Result<Recipient, StoreError> {
    Recipient::from_e164_digits(digits)
        .ok_or_else(|| StoreError::Unexpected("a stored recipient is not in E.164 digits".to_owned()))
}
