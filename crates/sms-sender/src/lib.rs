//! Sends SMS: connects the configured SMS accounts and hands them to the engine that all senders share.

use sendonce_core::dispatch::{self, Accounts};
use sendonce_core::domain::message::Channel;
use sendonce_core::service::Context;

/// Starts the SMS lanes.
///
/// # Errors
/// An account that cannot be used as configured.
pub async fn run(ctx: Context) -> anyhow::Result<()> {
    let mut accounts = Accounts::new();
    for (name, account) in ctx.config.accounts.iter().filter(|(_, account)| account.channel == Channel::Sms) {
        accounts.insert(name.clone(), sendonce_providers::connect(name, account, &ctx.config.budgets)?);
    }
    dispatch::run(ctx, Channel::Sms, accounts).await
}
