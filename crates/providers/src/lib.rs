//! Providers: the HTTP client that cannot submit twice, what transport errors prove, and one module per dialect. It refuses
//! to decide what follows from an outcome; that is core's.

mod body;
pub mod http;
mod receipt;
pub mod smsgatewaycenter;
mod times;
mod transport;

use std::sync::Arc;

use sendonce_core::config::{Account, Budgets, Config, Dialect};
use sendonce_core::dispatch::Accounts;
use sendonce_core::domain::message::Channel;
use sendonce_core::provider::{Provider, Reports};

pub use receipt::{BadReceipt, ParsedReceipt, parse_receipt};
pub use smsgatewaycenter::BadAccount;

/// The provider behind `account`, in its dialect. No connection is opened.
///
/// # Errors
/// When the account cannot work.
pub fn connect(name: &str, account: &Account, budgets: &Budgets) -> Result<Arc<dyn Provider>, BadAccount> {
    match account.dialect {
        Dialect::Smsgatewaycenter => Ok(Arc::new(smsgatewaycenter::SmsGatewayCenter::new(name, account, budgets)?)),
    }
}

/// The providers behind all accounts of `channel`.
///
/// # Errors
/// When one of the accounts cannot work.
pub fn connect_all(config: &Config, channel: Channel) -> Result<Accounts, BadAccount> {
    let of_channel = config.accounts.iter().filter(|(_, account)| account.channel == channel);
    of_channel.map(|(name, account)| Ok((name.clone(), connect(name, account, &config.budgets)?))).collect()
}

/// The reports of `account`, where it has any that are known and wanted. No connection is opened.
///
/// # Errors
/// When the account cannot work.
pub fn connect_reports(
    name: &str,
    account: &Account,
    budgets: &Budgets,
) -> Result<Option<Arc<dyn Reports>>, BadAccount> {
    // No report of another channel is documented (provider-contract, section 9).
    if !account.reports.enabled || account.channel != Channel::Sms {
        return Ok(None);
    }
    match account.dialect {
        Dialect::Smsgatewaycenter => {
            Ok(Some(Arc::new(smsgatewaycenter::report::SmsGatewayCenterReports::new(name, account, budgets)?)))
        }
    }
}
