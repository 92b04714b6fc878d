//! The jobs sweep: ends leases that ran out, then publishes what is past its deadline, lane by lane, no more copies than
//! the lane is short of.

use std::sync::Arc;

use sendonce_core::broker::envelope::{self, JobMessage};
use sendonce_core::broker::topology;
use sendonce_core::service::Context;
use sendonce_core::store::{DueJob, LaneBacklog, SweepConnection};
use sendonce_core::sweep::More;
use tokio::sync::Mutex;

/// The sweep and the connection it ends leases on.
#[derive(Debug, Clone)]
pub(crate) struct Jobs {
    ctx: Context,
    connection: Arc<Mutex<SweepConnection>>,
}

impl Jobs {
    pub(crate) fn new(ctx: Context) -> Self {
        Self { ctx, connection: Arc::default() }
    }

    pub(crate) async fn run_once(self) -> anyhow::Result<More> {
        let limit = self.ctx.config.sweeps.jobs_batch;
        let ended = self.ctx.store.end_leases(&mut *self.connection.lock().await, limit).await?;
        if ended.jobs > 0 {
            tracing::warn!(
                jobs = ended.jobs,
                unknown = ended.unknown,
                "leases ran out; rows on the wire are unknown now"
            );
            self.ctx.metrics.leases_ended.inc_by(ended.jobs as u64);
        }
        let mut more = i64::try_from(ended.jobs)? == limit;
        for lane in self.ctx.store.lane_backlogs().await? {
            more |= self.publish_due(lane).await?;
        }
        Ok(if more { More::Yes } else { More::No })
    }

    async fn publish_due(&self, lane: LaneBacklog) -> anyhow::Result<bool> {
        let sweeps = &self.ctx.config.sweeps;
        let queue = topology::send_queue(lane.channel, lane.class);
        let ready = i64::from(self.ctx.link.ready_messages(&queue).await?);
        let short = (lane.published - ready).max(0) + lane.due_unpublished;
        let allowed = short.max(i64::from(sweeps.jobs_min_copies)).min(sweeps.jobs_batch);
        let due = self.ctx.store.take_due_jobs(lane.channel, lane.class, allowed).await?;
        self.publish(&due).await?;
        Ok(lane.due > allowed && short > allowed)
    }

    /// An unconfirmed copy is not published again here: the deadline has moved on and comes back.
    async fn publish(&self, due: &[DueJob]) -> anyhow::Result<()> {
        let messages = due
            .iter()
            .map(|job| {
                let message = JobMessage { job: job.id, rows: job.rows, account: job.account.clone(), copy: true };
                envelope::job(job.channel, job.class, &message)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let results = self.ctx.publisher.publish(&messages).await;
        let confirmed = results.iter().filter(|result| result.is_ok()).count();
        self.ctx.metrics.count_jobs_published("sweep", true, confirmed);
        self.ctx.metrics.count_jobs_published("sweep", false, results.len() - confirmed);
        if !due.is_empty() {
            tracing::debug!(jobs = due.len(), confirmed, "due jobs published");
        }
        Ok(())
    }
}
