//! A pushed delivery receipt in one of the shapes that this platform's deployments use. It refuses to infer: a code that the
//! account does not map says nothing, and a delivered time on a failed receipt does not make it delivered.

use sendonce_core::config::{Account, ReceiptMeaning, ReceiptPreset};
use sendonce_core::domain::message::ProviderRef;
use sendonce_core::domain::receipt::ReceiptKind;

use super::wire::{Named, members, recipient};
use crate::receipt::{BadReceipt, ParsedReceipt};
use crate::times::parse_time;

/// Names of the fields in one preset, in lower case; where several are listed the first that holds a value counts.
struct Names {
    txn_id: &'static [&'static str],
    message_id: &'static [&'static str],
    code: &'static [&'static str],
    recipient: &'static [&'static str],
    done_at: &'static [&'static str],
    /// Of a receipt that says read; `done_at` where it is told there too.
    read_at: &'static [&'static str],
}

const NAMED: Names = Names {
    txn_id: &["transactionid"],
    message_id: &["messageid"],
    code: &["errorcode"],
    recipient: &["mobile"],
    done_at: &["deliveredtime"],
    read_at: &["readtime", "deliveredtime"],
};
const LEGACY: Names = Names {
    txn_id: &["transid"],
    message_id: &["msgid"],
    code: &["errorcode"],
    recipient: &["mobile"],
    done_at: &["dlrtime"],
    read_at: &["dlrtime"],
};
const SIBLING: Names = Names {
    txn_id: &["transactionid"],
    message_id: &["messageid"],
    code: &["errorcode"],
    recipient: &["mobilenumber", "mobileno"],
    done_at: &["deliveredtime"],
    read_at: &["deliveredtime"],
};
/// The same in every preset, where it comes at all.
const CAUSE: &[&str] = &["cause"];

/// Reads a pushed receipt from the query of a GET, or the form or JSON body of a POST.
///
/// # Errors
/// When the body is none of these, or names neither an id nor a recipient.
pub fn parse_receipt(
    account: &Account,
    content_type: Option<&str>,
    query: Option<&str>,
    body: &[u8],
) -> Result<ParsedReceipt, BadReceipt> {
    let names = match account.receipts.preset {
        ReceiptPreset::Named => &NAMED,
        ReceiptPreset::Legacy => &LEGACY,
        ReceiptPreset::Sibling => &SIBLING,
    };
    let fields = fields(content_type, query, body)?;
    let code = fields.first(names.code).map(str::to_owned);
    let kind = code.as_ref().and_then(|code| account.receipts.codes.get(code)).copied().map(kind);
    let time = if kind == Some(ReceiptKind::Read) { names.read_at } else { names.done_at };
    let receipt = ParsedReceipt {
        txn_id: fields.first(names.txn_id).and_then(ProviderRef::clean),
        message_id: fields.first(names.message_id).and_then(ProviderRef::clean),
        recipient: fields.first(names.recipient).and_then(recipient),
        kind,
        done_at: fields.first(time).and_then(|raw| parse_time(raw, account.zone)),
        cause: fields.first(CAUSE).map(str::to_owned),
        code,
    };
    if receipt.txn_id.is_none() && receipt.message_id.is_none() && receipt.recipient.is_none() {
        return Err(BadReceipt::Nameless);
    }
    Ok(receipt)
}

fn kind(meaning: ReceiptMeaning) -> ReceiptKind {
    match meaning {
        ReceiptMeaning::Read => ReceiptKind::Read,
        ReceiptMeaning::Delivered => ReceiptKind::Delivered,
        ReceiptMeaning::Failed => ReceiptKind::Failed,
        ReceiptMeaning::Expired => ReceiptKind::Expired,
        ReceiptMeaning::Submitted => ReceiptKind::Submitted,
    }
}

/// The fields of a push, the body's before the query's.
fn fields(content_type: Option<&str>, query: Option<&str>, body: &[u8]) -> Result<Named, BadReceipt> {
    let text = std::str::from_utf8(body).map_err(|_| BadReceipt::Unreadable)?.trim();
    let says_json = content_type.is_some_and(|kind| kind.to_ascii_lowercase().contains("json"));
    let found = if text.is_empty() {
        Vec::new()
    } else if says_json || text.starts_with(['{', '[']) {
        members(text).map_err(|_| BadReceipt::Unreadable)?
    } else {
        pairs(text)
    };
    Ok(found.into_iter().chain(pairs(query.unwrap_or_default())).collect())
}

fn pairs(form: &str) -> Vec<(String, String)> {
    form_urlencoded::parse(form.as_bytes()).into_owned().collect()
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use sendonce_core::domain::message::Recipient;
    use serde_json::json;

    use super::*;

    fn account(preset: &str) -> Account {
        serde_json::from_value(json!({
            "dialect": "smsgatewaycenter", "channel": "sms", "base_url": "https://sms.example",
            "receipts": { "preset": preset, "codes": { "000": "delivered", "27": "failed", "9": "expired", "S": "submitted" } },
        }))
        .unwrap()
    }
    fn expected(txn_id: &str, code: &str, kind: Option<ReceiptKind>, done_at: &str) -> ParsedReceipt {
        ParsedReceipt {
            txn_id: ProviderRef::clean(txn_id),
            message_id: ProviderRef::clean("QudUrwhMuIGkbs2"),
            recipient: Recipient::from_e164_digits("919999999999"),
            code: Some(code.into()),
            kind,
            done_at: Some(DateTime::parse_from_rfc3339(done_at).unwrap().to_utc()),
            cause: None,
        }
    }
    const FORM: Option<&str> = Some("application/x-www-form-urlencoded");
    const JSON: Option<&str> = Some("application/json; charset=utf-8");

    #[test]
    fn the_legacy_preset_and_a_code_that_is_not_mapped_says_nothing() {
        let body = include_bytes!("../../fixtures/receipt_legacy.form");
        let receipt = parse_receipt(&account("legacy"), FORM, None, body).unwrap();
        assert_eq!(receipt, expected("6305583318236810379", "1", None, "2023-11-16T06:59:00Z"));
    }

    #[test]
    fn the_named_preset_and_an_id_sent_as_a_number() {
        let body = include_bytes!("../../fixtures/receipt_named.json");
        let receipt = parse_receipt(&account("named"), JSON, None, body).unwrap();
        let delivered = Some(ReceiptKind::Delivered);
        assert_eq!(receipt, expected("6305583318236810379", "000", delivered, "2023-11-16T06:59:00Z"));
    }

    #[test]
    fn the_sibling_preset_with_wall_clock_times_of_the_accounts_zone() {
        let body = include_bytes!("../../fixtures/receipt_sibling.json");
        // Whatever it calls itself, and whichever of the two names the number has.
        for kind in [JSON, FORM, None] {
            let receipt = parse_receipt(&account("sibling"), kind, None, body).unwrap();
            let failed = Some(ReceiptKind::Failed);
            assert_eq!(receipt, expected("8359251506264886974", "27", failed, "2019-07-12T22:14:55Z"));
        }
        let other = String::from_utf8_lossy(body).replace("MobileNumber", "mobileNo");
        let receipt = parse_receipt(&account("sibling"), JSON, None, other.as_bytes()).unwrap();
        assert_eq!(receipt.recipient, Recipient::from_e164_digits("919999999999"));
    }

    #[test]
    fn a_get_and_the_case_of_names() {
        let query = "TRANSACTIONID=T1&messageid=M1&ErrorCode=S&Mobile=%2B919999999999&deliveredtime=";
        let receipt = parse_receipt(&account("named"), None, Some(query), b"").unwrap();
        assert_eq!(receipt.txn_id, ProviderRef::clean("T1"));
        assert_eq!(receipt.message_id, ProviderRef::clean("M1"));
        assert_eq!(receipt.recipient, Recipient::from_e164_digits("919999999999"));
        assert_eq!((receipt.kind, receipt.done_at), (Some(ReceiptKind::Submitted), None));
    }

    /// What WhatsApp adds: the same message is delivered first and read later, and each says when.
    #[test]
    fn a_read_receipt_tells_when_it_was_read() {
        let whatsapp: Account = serde_json::from_value(json!({
            "dialect": "smsgatewaycenter", "channel": "whatsapp", "base_url": "https://wa.example",
            "receipts": { "preset": "named", "codes": { "000": "delivered", "100": "read" } },
        }))
        .unwrap();
        let body = include_str!("../../fixtures/receipt_read.form");
        let read = parse_receipt(&whatsapp, FORM, None, body.as_bytes()).unwrap();
        assert_eq!((read.txn_id, read.message_id), (None, ProviderRef::clean("wamidHBgMOTE5ODc2")));
        let at = |receipt: Option<DateTime<Utc>>| receipt.map(|at| at.to_rfc3339());
        assert_eq!(
            (read.kind, at(read.done_at).as_deref()),
            (Some(ReceiptKind::Read), Some("2023-11-16T07:10:00+00:00"))
        );
        let without = body.replace("readTime=1700118600000", "readTime=");
        let read = parse_receipt(&whatsapp, FORM, None, without.as_bytes()).unwrap();
        assert_eq!(at(read.done_at).as_deref(), Some("2023-11-16T06:59:00+00:00"));
        let delivered = body.replace("errorCode=100", "errorCode=000");
        let delivered = parse_receipt(&whatsapp, FORM, None, delivered.as_bytes()).unwrap();
        assert_eq!(delivered.kind, Some(ReceiptKind::Delivered));
        assert_eq!(at(delivered.done_at).as_deref(), Some("2023-11-16T06:59:00+00:00"));
    }

    /// A delivered time on a failed receipt is when it failed.
    #[test]
    fn a_failed_receipt_with_a_time_stays_failed() {
        let body = include_bytes!("../../fixtures/receipt_failed_with_time.form");
        let receipt = parse_receipt(&account("legacy"), FORM, None, body).unwrap();
        assert_eq!(receipt.kind, Some(ReceiptKind::Failed));
        assert_eq!(receipt.cause.as_deref(), Some("Absent Subscriber"));
        assert!(receipt.done_at.is_some());
    }

    #[test]
    fn t7_a_one_time_passwords_receipt_has_a_recipient_only() {
        let body = include_bytes!("../../fixtures/receipt_otp.form");
        let receipt = parse_receipt(&account("legacy"), FORM, None, body).unwrap();
        assert_eq!((receipt.txn_id, receipt.message_id, receipt.done_at), (None, None, None));
        assert_eq!(receipt.recipient, Recipient::from_e164_digits("919999999999"));
    }

    #[test]
    fn a_push_that_names_nothing_or_cannot_be_read_is_refused() {
        let parse = |kind, body: &[u8]| parse_receipt(&account("legacy"), kind, None, body).unwrap_err();
        assert_eq!(parse(FORM, b"errorCode=000&dlrTime=1700117940000"), BadReceipt::Nameless);
        assert_eq!(parse(FORM, b"transId=0&mobile=unknown"), BadReceipt::Nameless);
        assert_eq!(parse(None, b""), BadReceipt::Nameless);
        assert_eq!(parse(JSON, b"transId=1"), BadReceipt::Unreadable);
        assert_eq!(parse(JSON, b"[{\"transId\":\"1\"}]"), BadReceipt::Unreadable);
        assert_eq!(parse(FORM, b"{\"transId\":"), BadReceipt::Unreadable);
        assert_eq!(parse(FORM, b"\xff\xfe"), BadReceipt::Unreadable);
    }
}
