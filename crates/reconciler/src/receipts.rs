//! The receipts sweep: matches receipts that came just before their submission was durable, and turns those that no row
//! ever claimed into orphans, which stay listed.

use sendonce_core::service::Context;
use sendonce_core::sweep::More;

const BATCH: i64 = 1_000;

pub(crate) async fn run_once(ctx: Context) -> anyhow::Result<More> {
    let (applied, orphans) = ctx.store.sweep_receipts(BATCH, ctx.config.sweeps.orphan_after).await?;
    ctx.metrics.count_receipts("early_matched", applied.applied);
    ctx.metrics.count_anomalies("receipt_contradicts", applied.contradicting);
    ctx.metrics.count_receipts("orphan", usize::try_from(orphans)?);
    if applied.applied > 0 || orphans > 0 {
        tracing::info!(matched = applied.applied, orphans, "early receipts swept");
    }
    Ok(if applied.applied == usize::try_from(BATCH)? { More::Yes } else { More::No })
}
