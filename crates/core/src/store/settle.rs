//! What is left of a job after rows of it moved: it is deleted, keeps its lease, or is cleared with the earliest time that
//! can change something. Runs in the transaction of whatever moved the rows, with the job locked.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::ingest::word;
use super::{Store, StoreError, seconds};
use crate::domain::message::{JobId, LeaseToken, words};

words!(
    /// How a job stands after it was settled.
    JobFate, "job fate", {
        Gone => "gone", Leased => "leased", Due => "due", Waiting => "waiting", Parked => "parked",
    }
);

/// Whether settling may end a lease and set a new deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clear {
    Yes,
    No,
}

const SETTLE: &str = "/* settle_jobs */
with standing as (
    select j.id, j.created_at, j.message_class, j.lease_token, j.parked_reason,
        count(m.id) filter (where m.state = $3::message_state) as claimed,
        count(m.id) filter (where m.state = $4::message_state) as pending,
        count(m.id) filter (where m.state = $4::message_state and m.attempt_count < $5) as sendable,
        min(coalesce(greatest(m.next_attempt_at, m.scheduled_for), '-infinity'))
            filter (where m.state = $4::message_state and m.attempt_count < $5) as next_at,
        min(m.expires_at) filter (where m.state = $4::message_state) as expires_at
    from send_job j
    cross join lateral unnest(j.message_ids) as u(id)
    cross join lateral (
        select * from outbound_message m where m.id = u.id and m.created_at = j.created_at limit 1
    ) m
    where j.id = any($1)
    group by j.id
), fate as (
    select id, message_class, next_at, expires_at,
        case
            when pending = 0 and claimed = 0 then 'gone'
            when claimed > 0 or (lease_token is not null and lease_token is distinct from $2) then 'leased'
            when sendable = 0 or parked_reason is not null then 'parked'
            when next_at <= clock_now() then 'due'
            else 'waiting'
        end as fate
    from standing
), gone as (
    delete from send_job using fate where send_job.id = fate.id and send_job.id = any($1) and fate.fate = 'gone'
), cleared as (
    update send_job set
        lease_token = null,
        wake_at = least(fate.expires_at, case fate.fate
            when 'due' then clock_now() + make_interval(secs => ($6::float8[])[case fate.message_class
                when 'otp' then 1 when 'transactional' then 2 else 3 end])
            when 'waiting' then fate.next_at
            else fate.expires_at end),
        publish_count = case fate.fate when 'waiting' then 0 else publish_count end,
        parked_reason = case when fate.fate = 'parked' then coalesce(parked_reason, 'max_attempts') end
    from fate
    where send_job.id = fate.id and send_job.id = any($1) and fate.fate in ('due', 'waiting', 'parked') and $7
)
select id, fate from fate";

impl Store {
    /// Settles `jobs`, which are locked. A lease that is not `token`'s is left alone. With `Clear::No` only jobs with
    /// nothing left are deleted: a claim that took nothing of a job changes neither its token nor its deadline.
    pub(super) async fn settle_jobs(
        &self,
        tx: &mut PgConnection,
        jobs: &[JobId],
        token: Option<LeaseToken>,
        clear: Clear,
    ) -> Result<HashMap<JobId, JobFate>, StoreError> {
        if jobs.is_empty() {
            return Ok(HashMap::new());
        }
        let settled: Vec<(i64, String)> = sqlx::query_as(SETTLE)
            .bind(jobs.iter().map(|job| job.0).collect::<Vec<_>>())
            .bind(token.map(|token| token.0))
            .bind("claimed")
            .bind("pending")
            .bind(i32::try_from(self.timing.max_attempts).unwrap_or(i32::MAX))
            .bind(self.timing.grace.iter().map(|grace| seconds(*grace)).collect::<Vec<_>>())
            .bind(clear == Clear::Yes)
            .fetch_all(tx)
            .await?;
        settled.into_iter().map(|(id, fate)| Ok((JobId(id), word(&fate)?))).collect()
    }
}
