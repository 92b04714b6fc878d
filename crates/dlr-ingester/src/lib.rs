//! Delivery receipts: an HTTP port that stores the raw push on the broker and answers at once, and an applier that reduces
//! receipts into their rows. A receipt is a claim; it never creates a row.

mod applier;
mod intake;

use sendonce_core::broker::{Batches, Consume, consume, topology};
use sendonce_core::service::Context;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Starts the intake and the applier.
///
/// # Errors
/// The intake's address cannot be bound.
pub async fn run(ctx: Context) -> anyhow::Result<()> {
    let listener = TcpListener::bind(&ctx.config.intake.listen).await?;
    tracing::info!(address = %listener.local_addr()?, "receipts are taken here");
    ctx.tasks.spawn("receipt intake", intake::serve(listener, ctx.clone()));

    let receipts = consumer(&ctx, topology::RECEIPTS_QUEUE, ctx.config.receipts.prefetch);
    ctx.tasks.spawn("receipt applier", applier::run(ctx.clone(), receipts, applier::Source::Live));
    let dead = consumer(&ctx, topology::RECEIPTS_DEAD, 1);
    ctx.tasks.spawn("dead receipts", applier::run(ctx.clone(), dead, applier::Source::Dead));
    Ok(())
}

fn consumer(ctx: &Context, queue: &str, prefetch: u16) -> Batches {
    let (into, deliveries) = mpsc::channel(usize::from(prefetch));
    let spec = Consume { queue: queue.to_owned(), prefetch, careful_start: true };
    let (link, stop, metrics) = (ctx.link.clone(), ctx.tasks.draining().clone(), ctx.metrics.clone());
    ctx.tasks.spawn("receipt consumer", async move { Ok(consume(link, spec, into, stop, metrics).await?) });
    Batches::new(deliveries, ctx.config.receipts.batch, ctx.config.receipts.linger)
}
