//! Readings that need SQL, taken by whoever runs the reconciler; an absent reading never shows as zero on another worker.

use sendonce_core::service::Context;
use sendonce_core::sweep::More;

pub(crate) async fn run_once(ctx: Context) -> anyhow::Result<More> {
    for (class, age) in ctx.store.oldest_undecided().await? {
        ctx.metrics.set_gauge("oldest_undecided_seconds", class.as_str(), age.as_secs_f64());
    }
    for (class, count, oldest) in ctx.store.unknown_backlog().await? {
        ctx.metrics.set_gauge("unknown_messages", class.as_str(), count as f64);
        ctx.metrics.set_gauge("unknown_oldest_seconds", class.as_str(), oldest.as_secs_f64());
    }
    ctx.metrics.set_gauge("parked_open", "all", ctx.store.parked_open().await? as f64);
    Ok(More::No)
}
