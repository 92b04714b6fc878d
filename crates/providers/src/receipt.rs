//! What a pushed receipt says, whatever the dialect. Reading it is the dialect's; what follows from it is core's.

use chrono::{DateTime, Utc};
use sendonce_core::config::{Account, Dialect};
use sendonce_core::domain::message::{ProviderRef, Recipient};
use sendonce_core::domain::receipt::ReceiptKind;

use crate::smsgatewaycenter;

/// A receipt's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedReceipt {
    pub txn_id: Option<ProviderRef>,
    pub message_id: Option<ProviderRef>,
    /// `None` too where it came in a spelling that cannot be read.
    pub recipient: Option<Recipient>,
    /// The provider's own, verbatim.
    pub code: Option<String>,
    /// By the account's table; `None` says nothing about the message.
    pub kind: Option<ReceiptKind>,
    /// When the provider was done with it. Failed ones carry it too.
    pub done_at: Option<DateTime<Utc>>,
    pub cause: Option<String>,
}

/// Why a push is no receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReceipt {
    #[error("the body is neither a form nor a JSON object")]
    Unreadable,
    #[error("it names no transaction, no message and no recipient")]
    Nameless,
}

/// Reads a push to `account`: `query` of its URL, `body` as received.
///
/// # Errors
/// When it is no receipt in the account's dialect and preset.
pub fn parse_receipt(
    account: &Account,
    content_type: Option<&str>,
    query: Option<&str>,
    body: &[u8],
) -> Result<ParsedReceipt, BadReceipt> {
    match account.dialect {
        Dialect::Smsgatewaycenter => smsgatewaycenter::receipt::parse_receipt(account, content_type, query, body),
    }
}
