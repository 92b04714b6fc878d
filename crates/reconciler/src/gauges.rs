//! Readings that need SQL, taken by whoever runs the reconciler; an absent reading never shows as zero on another worker.

use sendonce_core::service::Context;
use sendonce_core::sweep::More;

pub(crate) async fn run_once(ctx: Context) -> anyhow::Result<More> {
    for (class, age) in ctx.store.oldest_undecided().await? {
        ctx.metrics.set_oldest_undecided(class, age);
    }
    for (class, messages, oldest) in ctx.store.unknown_backlog().await? {
        ctx.metrics.set_unknown(class, messages, oldest);
    }
    ctx.metrics.set_parked_open(ctx.store.parked_open().await?);
    let accounts: Vec<&str> = ctx.config.accounts.keys().map(String::as_str).collect();
    for (account, age) in ctx.store.last_receipts(&accounts).await? {
        ctx.metrics.set_last_receipt_age(&account, age);
    }
    Ok(More::No)
}
