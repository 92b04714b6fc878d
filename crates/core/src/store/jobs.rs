//! The jobs sweep: whatever is past `wake_at` is published again or has its lease ended. Only this sweep ends the lease of
//! another; rows still `claimed` then are `unknown`, never `pending`.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::ingest::word;
use super::record::insert_unresolved;
use super::settle::Clear;
use super::{JobFate, Store, StoreError, seconds};
use crate::domain::message::{Channel, Class, JobId};

/// A job to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueJob {
    pub id: JobId,
    pub channel: Channel,
    pub class: Class,
    pub account: String,
    pub rows: usize,
}

/// What ending leases did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LeasesEnded {
    pub jobs: usize,
    /// Rows that became `unknown`.
    pub unknown: usize,
}

/// How far one lane is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneBacklog {
    pub channel: Channel,
    pub class: Class,
    /// Unleased jobs that were published and should be in the queue.
    pub published: i64,
    /// Jobs past their deadline.
    pub due: i64,
    /// Of those, in no queue: retries, schedules and parked jobs.
    pub due_unpublished: i64,
}

impl Store {
    /// Ends up to `limit` leases that ran out, unless the database or this store's connection to it has not been up for
    /// one lease: after an outage every living worker first gets the time to record what it holds.
    ///
    /// # Errors
    /// The database is away.
    pub async fn end_leases(&self, connection: &mut SweepConnection, limit: i64) -> Result<LeasesEnded, StoreError> {
        let lease = self.timing.lease;
        let connection = connection.get(self).await?;
        let mut tx = sqlx::Connection::begin(connection).await?;
        let jobs: Vec<i64> = sqlx::query_scalar(
            "/* take_ended_leases */
             select id from send_job
             where lease_token is not null and wake_at <= clock_now()
                and pg_postmaster_start_time() <= now() - make_interval(secs => $2)
                and (select backend_start from pg_stat_activity where pid = pg_backend_pid())
                    <= now() - make_interval(secs => $2)
             order by wake_at limit $1
             for update skip locked",
        )
        .bind(limit)
        .bind(seconds(lease))
        .fetch_all(&mut *tx)
        .await?;
        if jobs.is_empty() {
            tx.rollback().await?;
            return Ok(LeasesEnded::default());
        }
        let unknown = claimed_to_unknown(&mut tx, &jobs).await?;
        sqlx::query("/* end_leases */ update send_job set lease_token = null where id = any($1)")
            .bind(&jobs)
            .execute(&mut *tx)
            .await?;
        let ids: Vec<JobId> = jobs.iter().copied().map(JobId).collect();
        self.settle_jobs(&mut tx, &ids, None, Clear::Yes).await?;
        // What is left pending was under the lease of a worker that is gone: no copy of it waits in a queue.
        sqlx::query(
            "/* wake_orphaned */ update send_job set wake_at = clock_now(), publish_count = 0
             where id = any($1) and parked_reason is null and wake_at > clock_now() and publish_count > 0",
        )
        .bind(&jobs)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(LeasesEnded { jobs: jobs.len(), unknown })
    }

    /// Moves the deadline of up to `limit` due, unleased jobs of a lane on and returns those to publish, oldest first.
    /// Rows whose time to live passed or that were cancelled are ended; a job with nothing left is deleted.
    ///
    /// # Errors
    /// The database is away.
    pub async fn take_due_jobs(&self, channel: Channel, class: Class, limit: i64) -> Result<Vec<DueJob>, StoreError> {
        let mut tx = self.pool.begin().await?;
        let due: Vec<(i64, i32)> = sqlx::query_as(
            "/* take_due_jobs */
             select id, publish_count from send_job
             where lease_token is null and wake_at <= clock_now()
                and channel = $1::message_channel and message_class = $2::message_class
             order by wake_at limit $3
             for update skip locked",
        )
        .bind(channel.as_str())
        .bind(class.as_str())
        .bind(limit)
        .fetch_all(&mut *tx)
        .await?;
        if due.is_empty() {
            tx.rollback().await?;
            return Ok(Vec::new());
        }
        let ids: Vec<i64> = due.iter().map(|(id, _)| *id).collect();
        end_unclaimed(&mut tx, &ids).await?;
        let jobs: Vec<JobId> = ids.iter().copied().map(JobId).collect();
        let fates = self.settle_jobs(&mut tx, &jobs, None, Clear::Yes).await?;
        let publish: Vec<(i64, i32)> =
            due.into_iter().filter(|(id, _)| fates.get(&JobId(*id)) == Some(&JobFate::Due)).collect();
        let taken = self.move_deadlines(&mut tx, class, &publish).await?;
        tx.commit().await?;
        Ok(taken)
    }

    /// The next copy follows after the class's grace, doubling up to an hour.
    async fn move_deadlines(
        &self,
        tx: &mut PgConnection,
        class: Class,
        jobs: &[(i64, i32)],
    ) -> Result<Vec<DueJob>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let grace = self.timing.grace[class as usize];
        let waits: Vec<f64> = jobs
            .iter()
            .map(|(_, count)| seconds(crate::domain::retry::grace_after(grace, u32::try_from(*count).unwrap_or(0))))
            .collect();
        let moved: Vec<(i64, String, String, i32)> = sqlx::query_as(
            "/* move_deadlines */
             update send_job j set wake_at = clock_now() + make_interval(secs => v.wait),
                published_at = clock_now(), publish_count = v.publish_count + 1
             from unnest($1::bigint[], $2::int[], $3::float8[]) as v(id, publish_count, wait)
             where j.id = v.id and j.id = any($1)
             returning j.id, j.channel::text, j.provider_account, cardinality(j.message_ids)",
        )
        .bind(jobs.iter().map(|(id, _)| *id).collect::<Vec<_>>())
        .bind(jobs.iter().map(|(_, count)| *count).collect::<Vec<_>>())
        .bind(waits)
        .fetch_all(tx)
        .await?;
        let mut by_id: HashMap<i64, DueJob> = HashMap::new();
        for (id, channel, account, rows) in moved {
            let rows = usize::try_from(rows).unwrap_or(0);
            by_id.insert(id, DueJob { id: JobId(id), channel: word(&channel)?, class, account, rows });
        }
        Ok(jobs.iter().filter_map(|(id, _)| by_id.remove(id)).collect())
    }

    /// Hands unleased jobs back: each is published again within `wait` to twice that, spread so that they do not all come
    /// at once.
    ///
    /// # Errors
    /// The database is away.
    pub async fn release_jobs(&self, jobs: &[JobId], wait: Duration) -> Result<(), StoreError> {
        sqlx::query(
            "/* release_jobs */
             with free as (
                select id from send_job where id = any($1) and lease_token is null and parked_reason is null
                order by id for update
             )
             update send_job set wake_at = clock_now() + make_interval(secs => $2 * (1 + random())), publish_count = 0
             where id = any(array(select id from free))",
        )
        .bind(jobs.iter().map(|job| job.0).collect::<Vec<_>>())
        .bind(seconds(wait))
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Lanes that have due jobs, with what should already be in their queues.
    ///
    /// # Errors
    /// The database is away.
    pub async fn lane_backlogs(&self) -> Result<Vec<LaneBacklog>, StoreError> {
        let rows: Vec<(String, String, i64, i64, i64)> = sqlx::query_as(
            "/* lane_backlogs */
             select channel::text, message_class::text,
                count(*) filter (where publish_count > 0 and parked_reason is null),
                count(*) filter (where wake_at <= clock_now()),
                count(*) filter (where wake_at <= clock_now() and (publish_count = 0 or parked_reason is not null))
             from send_job
             where lease_token is null
                and exists (select from send_job due where due.lease_token is null and due.wake_at <= clock_now())
             group by channel, message_class
             having count(*) filter (where wake_at <= clock_now()) > 0",
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|(channel, class, published, due, due_unpublished)| {
                Ok(LaneBacklog { channel: word(&channel)?, class: word(&class)?, published, due, due_unpublished })
            })
            .collect()
    }

    /// Seconds since the oldest undecided message was created or became due, whichever is later; 0 when there is none.
    /// Parked jobs count apart.
    ///
    /// # Errors
    /// The database is away.
    pub async fn oldest_undecided(&self) -> Result<Vec<(Class, Duration)>, StoreError> {
        let rows: Vec<(String, f64)> = sqlx::query_as(
            "/* oldest_undecided */
             select class::text, coalesce((
                select extract(epoch from clock_now() - due_at)::float8 from send_job
                where message_class = class and parked_reason is null and due_at <= clock_now()
                order by due_at limit 1), 0)
             from unnest(enum_range(null::message_class)) as class",
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().map(|(class, age)| Ok((word(&class)?, Duration::from_secs_f64(age.max(0.0))))).collect()
    }
}

impl Store {
    /// Unknown messages by class: how many, and for how long the oldest; zeros where there are none.
    ///
    /// # Errors
    /// The database is away.
    pub async fn unknown_backlog(&self) -> Result<Vec<(Class, i64, Duration)>, StoreError> {
        let rows: Vec<(String, i64, f64)> = sqlx::query_as(
            "/* unknown_backlog */
             select class::text, count(u.message_id),
                coalesce(extract(epoch from clock_now() - min(u.since)), 0)::float8
             from unnest(enum_range(null::message_class)) as class
             left join unresolved u on u.message_class = class and u.kind = 'unknown'
             group by class",
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|(class, count, age)| Ok((word(&class)?, count, Duration::from_secs_f64(age.max(0.0)))))
            .collect()
    }
}

/// The sweep's own connection: a lease is ended only by one that has been up for a lease.
#[derive(Debug, Default)]
pub struct SweepConnection(Option<sqlx::PgConnection>);

impl SweepConnection {
    async fn get(&mut self, store: &Store) -> Result<&mut PgConnection, StoreError> {
        let living = match self.0.take() {
            Some(mut connection) => sqlx::Connection::ping(&mut connection).await.is_ok().then_some(connection),
            None => None,
        };
        let connection = match living {
            Some(connection) => connection,
            None => {
                let options = store.pool.connect_options();
                <sqlx::PgConnection as sqlx::Connection>::connect_with(options.as_ref()).await?
            }
        };
        Ok(self.0.insert(connection))
    }
}

/// Rows still claimed under an ended lease: in doubt from here on.
async fn claimed_to_unknown(tx: &mut PgConnection, jobs: &[i64]) -> Result<usize, StoreError> {
    let rows: Vec<(i64, DateTime<Utc>)> = sqlx::query_as(
        "/* claimed_to_unknown */
         with doubtful as (
            select m.id, m.created_at
            from (
                select u.id, j.created_at from send_job j cross join lateral unnest(j.message_ids) as u(id)
                where j.id = any($1) order by u.id
            ) as v
            cross join lateral (
                select * from outbound_message m
                where m.id = v.id and m.created_at = v.created_at and m.state = $2::message_state
                limit 1 for update
            ) m
         ), moved as (
            update outbound_message m set state = 'unknown', state_reason = 'lease_ended', updated_at = clock_now()
            from doubtful d
            where m.id = d.id and m.created_at = d.created_at and m.id = any(array(select id from doubtful))
                and m.created_at between (select min(created_at) from doubtful) and (select max(created_at) from doubtful)
            returning m.*
         ), ended as (
            insert into submission (attempt_key, message_created_at, job_id, tenant_id, channel, message_class,
                provider_account, message_ids, claimed_at, ended_at, verdict, detail)
            select attempt_key, created_at, min(job_id), min(tenant_id), min(channel), min(message_class),
                min(provider_account), array_agg(id order by id), min(claimed_at), clock_now(), 'lease_ended', 'lease_ended'
            from moved group by attempt_key, created_at
            on conflict (attempt_key, message_created_at) do nothing
         )
         select id, created_at from moved",
    )
    .bind(jobs)
    .bind("claimed")
    .fetch_all(&mut *tx)
    .await?;
    let (ids, created_at): (Vec<i64>, Vec<DateTime<Utc>>) = rows.into_iter().unzip();
    if !ids.is_empty() {
        insert_unresolved(tx, &ids, &created_at).await?;
    }
    Ok(ids.len())
}

/// Ends pending rows whose time to live passed or that were cancelled.
async fn end_unclaimed(tx: &mut PgConnection, jobs: &[i64]) -> Result<(), StoreError> {
    sqlx::query(
        "/* end_unclaimed */
         with over as (
            select m.id, m.created_at,
                case when m.expires_at <= clock_now() then 'expired' else 'cancelled' end as next
            from (
                select u.id, j.created_at from send_job j cross join lateral unnest(j.message_ids) as u(id)
                where j.id = any($1) order by u.id
            ) as v
            cross join lateral (
                select * from outbound_message m
                where m.id = v.id and m.created_at = v.created_at and m.state = $2::message_state
                limit 1 for update
            ) m
            where m.expires_at <= clock_now()
                or exists (select from cancellation c where c.tenant_id = m.tenant_id and c.event_id = m.event_id)
                or exists (select from cancellation c
                    where c.tenant_id = m.tenant_id and c.business_key = m.business_key)
         )
         update outbound_message m set state = over.next::message_state, final_at = clock_now(),
            state_reason = case over.next when 'expired' then 'ttl_passed' else 'cancelled_by_event' end,
            updated_at = clock_now()
         from over
         where m.id = over.id and m.created_at = over.created_at and m.id = any(array(select id from over))
            and m.created_at between (select min(created_at) from over) and (select max(created_at) from over)",
    )
    .bind(jobs)
    .bind("pending")
    .execute(tx)
    .await?;
    Ok(())
}
