//! Providers: the HTTP client that cannot submit twice, what transport errors prove, and one module per dialect. It refuses
//! to decide what follows from an outcome; that is core's.

mod body;
pub mod http;
mod receipt;
pub mod smsgatewaycenter;
mod times;
mod transport;

use std::sync::Arc;

use sendonce_core::config::{Account, Budgets, Dialect};
use sendonce_core::provider::Provider;

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
