//! Sends SMS: connects the configured accounts of the channel and hands them to the engine that all senders share.

use sendonce_core::dispatch;
use sendonce_core::domain::message::Channel;
use sendonce_core::service::Context;

/// Starts the SMS lanes.
///
/// # Errors
/// An account that cannot be used as configured.
pub async fn run(ctx: Context) -> anyhow::Result<()> {
    let accounts = sendonce_providers::connect_all(&ctx.config, Channel::Sms)?;
    dispatch::run(ctx, Channel::Sms, accounts).await
}
