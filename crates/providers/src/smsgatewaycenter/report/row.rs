//! A report's answer and its rows, in the shapes of both endpoints: the list's rows are flat, those by transaction lie inside
//! a `status` and spell their names with capitals and blanks. It refuses a row whose recipient cannot be read.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use rust_decimal::Decimal;
use sendonce_core::domain::message::{Body, ProviderRef};
use sendonce_core::domain::receipt::ReceiptKind;
use sendonce_core::provider::ReportRecord;
use serde_json::value::RawValue;

use crate::smsgatewaycenter::wire::{Named, members, recipient};
use crate::times::parse_time;

const LISTS: [&str; 3] = ["reports_dlrList", "report_statusList", "reports_statusList"];

/// The wrapped answer of the report endpoints. Errors may come flat, as those of a submission.
pub(super) struct Envelope<'a> {
    fields: Named,
    /// Whatever stands under the list's name.
    list: Option<&'a RawValue>,
}

impl<'a> Envelope<'a> {
    pub(super) fn read(text: &'a str) -> Option<Self> {
        let text = text.trim_start_matches('\u{feff}').trim();
        let outer: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
        let inside = outer.get("response").map_or(text, |response| response.get());
        let members_of_it: BTreeMap<String, &RawValue> = serde_json::from_str(inside).ok()?;
        let is_list = |name: &str| LISTS.iter().any(|list| list.eq_ignore_ascii_case(name));
        let list = members_of_it.iter().find(|(name, _)| is_list(name)).map(|(_, list)| *list);
        Some(Self { fields: members(inside).ok()?.into_iter().collect(), list })
    }

    pub(super) fn says(&self, word: &str) -> bool {
        self.fields.first(&["status"]).is_some_and(|status| status.eq_ignore_ascii_case(word))
    }
    pub(super) fn code(&self) -> Option<&str> {
        self.fields.first(&["statuscode", "code"])
    }
    pub(super) fn cause(&self) -> Option<&str> {
        self.fields.first(&["reason", "msg"])
    }

    /// No list at all is an empty one only where the count says so too: absence must not come from a name we do not know.
    pub(super) fn rows(&self) -> Option<Vec<&'a RawValue>> {
        match self.list {
            Some(list) if list.get().starts_with('[') => serde_json::from_str(list.get()).ok(),
            Some(_) | None => (self.fields.first(&["count"]) == Some("0")).then(Vec::new),
        }
    }
}

/// A row as a record; `None` where it is none.
pub(super) fn record(row: &RawValue, zone: Tz) -> Option<ReportRecord> {
    let outer: BTreeMap<String, &RawValue> = serde_json::from_str(row.get()).ok()?;
    let wraps = |name: &str, value: &RawValue| name.eq_ignore_ascii_case("status") && value.get().starts_with('{');
    let inside = outer.iter().find(|(name, value)| wraps(name, value)).map_or(row.get(), |(_, status)| status.get());
    let fields: Named = members(inside).ok()?.into_iter().collect();

    // "0", "null" and "-" stand for nothing here too.
    let given = |names: &[&str]| fields.first(names).filter(|text| ProviderRef::clean(text).is_some());
    let text = |names: &[&str]| given(names).map(str::to_owned);
    let id = |names: &[&str]| fields.first(names).and_then(ProviderRef::clean);
    let time = |names: &[&str]| -> Option<DateTime<Utc>> { given(names).and_then(|raw| parse_time(raw, zone)) };
    let status_text = fields.first(&["status"]).unwrap_or_default().to_owned();
    Some(ReportRecord {
        txn_id: id(&["uuid", "transactionid"]),
        message_id: id(&["msgid"]),
        recipient: fields.first(&["mobileno"]).and_then(recipient)?,
        sender_id: text(&["sendername"]),
        template_id: text(&["dlttemplateid"]),
        // Every blank of it counts when it is compared.
        text: given(&["text"]).and(fields.verbatim(&["text"])).map(|text| Body::new(text.to_owned())),
        status: kind(&status_text),
        status_text,
        cause: text(&["cause"]),
        submitted_at: time(&["submittime", "submittedtime"]),
        done_at: time(&["deliverytime", "deliveredtime"]),
        cost: fields.first(&["cost"]).and_then(amount),
        units: given(&["length"]).and_then(|units| units.parse().ok()),
    })
}

fn amount(text: &str) -> Option<Decimal> {
    let read = text.parse().or_else(|_| Decimal::from_scientific(text));
    read.ok().filter(|amount| !amount.is_sign_negative())
}

/// The words of both families (provider-contract, section 6). `SUCCESS` means delivered here and nowhere else: an envelope's
/// says that the report was given.
fn kind(word: &str) -> Option<ReceiptKind> {
    match word.to_ascii_uppercase().as_str() {
        "DELIVRD" | "DELIVERED" | "DLVRD" | "SUCCESS" => Some(ReceiptKind::Delivered),
        "SUBMITTED" | "SENT" | "ACCEPTED" | "ACCEPTD" | "ENROUTE" | "PENDING" | "PROCESSING" | "QUEUED" | "UNKNOWN" => {
            Some(ReceiptKind::Submitted)
        }
        // The last three by the network, which is billed.
        "FAILED" | "UNDELIV" | "UNDELIVERED" | "DELETED" | "REJECTD" | "REJECTED" | "BLACKLISTED" => {
            Some(ReceiptKind::Failed)
        }
        "EXPIRED" => Some(ReceiptKind::Expired),
        _ => None,
    }
}
