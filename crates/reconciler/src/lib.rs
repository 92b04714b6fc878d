//! The periodic jobs of the fleet. Every state that is not final has an owner and a deadline; these sweeps are the owners.
//! Run two replicas or more: each pass is safe beside others.

mod gauges;
mod jobs;
mod receipts;
mod reports;

use sendonce_core::service::Context;
use sendonce_core::sweep::{More, sweep};

/// Starts every sweep.
///
/// # Errors
/// An account whose reports cannot be read as configured. Failing passes are tried again.
pub async fn run(ctx: Context) -> anyhow::Result<()> {
    let every = ctx.config.sweeps.clone();

    let jobs = jobs::Jobs::new(ctx.clone());
    ctx.tasks.spawn("jobs sweep", sweep(ctx.clone(), "jobs", every.jobs_every, move || jobs.clone().run_once()));

    let receipts = ctx.clone();
    ctx.tasks.spawn(
        "receipts sweep",
        sweep(ctx.clone(), "receipts", every.receipts_every, move || receipts::run_once(receipts.clone())),
    );

    let reports = reports::ReportSweep::new(ctx.clone())?;
    ctx.tasks
        .spawn("reports sweep", sweep(ctx.clone(), "reports", every.reports_every, move || reports.clone().run_once()));

    let partitions = ctx.clone();
    ctx.tasks.spawn(
        "partitions sweep",
        sweep(ctx.clone(), "partitions", every.partitions_every, move || create_ahead(partitions.clone())),
    );

    let gauges = ctx.clone();
    ctx.tasks
        .spawn("gauges", sweep(ctx.clone(), "gauges", every.gauges_every, move || gauges::run_once(gauges.clone())));
    Ok(())
}

async fn create_ahead(ctx: Context) -> anyhow::Result<More> {
    let made = ctx.store.ensure_partitions(ctx.config.sweeps.partitions_ahead_months).await?;
    if made > 0 {
        tracing::info!(made, "partitions created ahead");
    }
    Ok(More::No)
}
