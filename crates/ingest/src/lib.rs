//! Events in, rows and jobs out. Consumes the event queues, validates and keys each event, inserts keys, rows and jobs in
//! one transaction, publishes the jobs, and acks last. What cannot become a row is parked with its reason and bytes.
//!
//! Refuses to nack: while the database is away it holds what it has and reads no more. Refuses to decide what is a
//! duplicate: the unique key in PostgreSQL does.

mod aside;
mod commit;
mod dead;
mod intake;
mod pack;
mod plan;
mod rates;

use sendonce_core::broker::topology::{INGEST_DEAD, INGEST_UNROUTABLE, ingest_queue};
use sendonce_core::broker::{Batches, Consume, Delivery, consume};
use sendonce_core::domain::message::Class;
use sendonce_core::service::Context;
use tokio::sync::mpsc;

use crate::commit::Commit;
use crate::intake::Intake;

/// A pipeline of its own: what waits in another delays nothing here.
struct Lane {
    queues: Vec<String>,
    intake: &'static str,
    commit: &'static str,
}

/// Starts the consumers, and per lane the intake that plans batches and the commit that makes them durable.
///
/// # Errors
/// None of its own: everything that can fail runs as a task, and holds.
pub async fn run(ctx: Context) -> anyhow::Result<()> {
    // One-time codes apart: a thousand campaigns of 10,000 recipients may be in hand when one arrives.
    let codes = Lane { queues: vec![ingest_queue(Class::Otp)], intake: "otp intake", commit: "otp commit" };
    let others =
        vec![ingest_queue(Class::Transactional), ingest_queue(Class::Promotional), INGEST_UNROUTABLE.to_owned()];
    let others = Lane { queues: others, intake: "event intake", commit: "event commit" };
    for lane in [codes, others] {
        start_lane(&ctx, lane);
    }
    let (arriving, deliveries) = mpsc::channel(1);
    start_consumer(&ctx, INGEST_DEAD.to_owned(), 1, arriving);
    ctx.tasks.spawn(dead::NAME, dead::run(ctx.clone(), deliveries));
    Ok(())
}

fn start_lane(ctx: &Context, lane: Lane) {
    let Lane { queues, intake, commit } = lane;
    let prefetch = ctx.config.ingest.prefetch;
    // Room for everything the broker may hand out, so that no consumer waits here instead of acking.
    let (arriving, deliveries) = mpsc::channel(usize::from(prefetch) * queues.len());
    for queue in queues {
        start_consumer(ctx, queue, prefetch, arriving.clone());
    }
    let gathered = Batches::new(deliveries, ctx.config.ingest.batch, ctx.config.ingest.linger);
    // One batch is committed, one waits, one is gathered and planned.
    let (planned, batches) = mpsc::channel(1);
    ctx.tasks.spawn(intake, Intake::new(ctx.clone(), intake).run(gathered, planned));
    ctx.tasks.spawn(commit, Commit::new(ctx.clone(), commit).run(batches));
}

fn start_consumer(ctx: &Context, queue: String, prefetch: u16, arriving: mpsc::Sender<Delivery>) {
    let spec = Consume { queue, prefetch, careful_start: true };
    let (link, stop, metrics) = (ctx.link.clone(), ctx.tasks.draining().clone(), ctx.metrics.clone());
    ctx.tasks.spawn("event consumer", async move { Ok(consume(link, spec, arriving, stop, metrics).await?) });
}
