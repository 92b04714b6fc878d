//! The published contract: CloudEvents 1.0 structured JSON, or its bare `data`, into a validated event. Pure, total and
//! bounded: whatever the bytes are, the answer is an event or a rejection with a reason from a closed set.
//!
//! A rejection never repeats what it found, since it may be a number, a code or a text (I11); the original bytes are parked
//! beside it. What needs the tenant's configuration (numbers, accounts, prices, length) is decided later, at ingest.

mod strict;
#[cfg(test)]
mod tests;
mod validate;
mod wire;

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use crate::domain::key::BusinessKey;
use crate::domain::message::{Body, Channel, Class, words};

pub(crate) use validate::trace_parent;
pub use wire::{CancelData, DltData, NumberWithParams, RecipientData, SendData, TemplateData};

/// `type` of an event that sends.
pub const SEND: &str = "message.send.v1";
/// `type` of an event that cancels.
pub const CANCEL: &str = "message.cancel.v1";

/// The largest event, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// The most recipients of one event.
pub const MAX_RECIPIENTS: usize = 10_000;
/// The longest id, name or other short text, in characters.
pub const MAX_NAME: usize = 256;
/// Keys are kept for 400 days; an event older than that, less ten days, could be sent twice.
pub const OLDEST: Duration = Duration::from_secs(390 * 24 * 3600);
/// Nothing is scheduled, or lives, longer than its key.
pub const FURTHEST: Duration = Duration::from_secs(390 * 24 * 3600);

words!(
    /// Why an event, or one recipient of it, was refused.
    RejectReason, "reject reason", {
        TooLarge => "too_large",
        HasBom => "has_bom",
        NotUtf8 => "not_utf8",
        NotJson => "not_json",
        TooDeep => "too_deep",
        DuplicateKey => "duplicate_key",
        HasNul => "has_nul",
        NumberOutOfRange => "number_out_of_range",
        NotAnObject => "not_an_object",
        SpecversionUnsupported => "specversion_unsupported",
        ContentTypeUnsupported => "content_type_unsupported",
        UnknownType => "unknown_type",
        FieldMissing => "field_missing",
        FieldUnknown => "field_unknown",
        FieldInvalid => "field_invalid",
        FieldTooLong => "field_too_long",
        TimeInvalid => "time_invalid",
        TimeWithoutOffset => "time_without_offset",
        EventTooOld => "event_too_old",
        ScheduleTooFar => "schedule_too_far",
        ExpiryTwice => "expiry_twice",
        RecipientsNone => "recipients_none",
        RecipientsTooMany => "recipients_too_many",
        ContentMissing => "content_missing",
        TemplateUnknown => "template_unknown",
        ParamsWithBody => "params_with_body",
        RecipientUnreadable => "recipient_unreadable",
    }
);

/// Why an event is parked. Says what is wrong and where, never what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Rejection {
    pub reason: RejectReason,
    pub detail: String,
    /// As far as the event could be read.
    pub tenant: Option<String>,
    pub event_id: Option<String>,
}

impl Rejection {
    fn new(reason: RejectReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), tenant: None, event_id: None }
    }
}

/// What a delivery says beside its body.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// AMQP `message-id`: the event id of a bare `data` that has none.
    pub message_id: Option<&'a str>,
    /// AMQP `timestamp`: the event's time where it names none.
    pub published_at: Option<DateTime<Utc>>,
    /// Header `traceparent`, used where the event carries none.
    pub trace_parent: Option<&'a str>,
}

/// A validated event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Send(Box<SendEvent>),
    Cancel(CancelEvent),
}

/// "Tell these recipients this, because of that."
#[derive(Clone, PartialEq)]
pub struct SendEvent {
    /// CloudEvents `source`.
    pub source: Option<String>,
    /// When it happened, else when it was published.
    pub at: Option<DateTime<Utc>>,
    pub trace_parent: Option<String>,
    pub tenant: String,
    pub class: Class,
    pub event_type: String,
    pub event_id: String,
    /// 1 to 10,000, in the event's order.
    pub recipients: Vec<Addressee>,
    /// At least one, none twice.
    pub channels: Vec<Channel>,
    /// Logical template id.
    pub template: Option<String>,
    pub body: Body,
    pub sender_id: Option<String>,
    pub dlt_entity_id: Option<String>,
    pub dlt_template_id: Option<String>,
    pub scheduled_for: Option<DateTime<Utc>>,
    /// The earlier of `expires_at` and CloudEvents `expirytime`.
    pub expires_at: Option<DateTime<Utc>>,
    /// Counted from `at`, else from arrival. None, and no `expires_at`: the class decides.
    pub ttl: Option<Duration>,
    pub campaign: Option<String>,
    pub step: Option<String>,
}

impl fmt::Debug for SendEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Numbers and body stay out.
        f.debug_struct("SendEvent")
            .field("tenant", &self.tenant)
            .field("class", &self.class)
            .field("recipients", &self.recipients.len())
            .finish_non_exhaustive()
    }
}

/// One of an event's recipients, not normalised yet.
#[derive(Clone, PartialEq, Eq)]
pub enum Addressee {
    /// As the publisher spelt it.
    Number(String),
    /// Parked by itself; `raw` is the JSON that stood there, cut to a bounded length.
    Refused { raw: String, reason: RejectReason, detail: &'static str },
}

impl fmt::Debug for Addressee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(_) => f.write_str("Number(*)"),
            Self::Refused { reason, .. } => write!(f, "Refused({reason})"),
        }
    }
}

/// "Do not send what is left of that."
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelEvent {
    pub tenant: String,
    pub target: CancelTarget,
    pub reason: String,
}

/// What is cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelTarget {
    /// Every message of an event.
    Event(String),
    /// Every message under a key.
    Key(BusinessKey),
}

/// Reads and validates an event. `now` is the database's time.
///
/// # Errors
/// A rejection, with tenant and event id as far as they could be read.
pub fn parse(body: &[u8], around: Surroundings<'_>, now: DateTime<Utc>) -> Result<Event, Rejection> {
    let Value::Object(document) = document(body)? else {
        return Err(Rejection::new(RejectReason::NotAnObject, "an event is a JSON object"));
    };
    let enveloped = document.contains_key("specversion");
    let data = if enveloped { document.get("data").and_then(Value::as_object) } else { Some(&document) };
    let (tenant, event_id) = (hint(data, "tenant"), hint(data, "event_id"));
    let event =
        if enveloped { validate::structured(document, around, now) } else { validate::bare(document, around, now) };
    event.map_err(|rejection| Rejection { tenant, event_id, ..rejection })
}

fn document(body: &[u8]) -> Result<Value, Rejection> {
    use strict::Fault;
    if body.len() > MAX_BYTES {
        let detail = format!("{} bytes, at most {MAX_BYTES} are allowed", body.len());
        return Err(Rejection::new(RejectReason::TooLarge, detail));
    }
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(Rejection::new(RejectReason::HasBom, "JSON starts without a byte order mark"));
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        Rejection::new(RejectReason::NotUtf8, format!("not UTF-8 from byte {} on", error.valid_up_to()))
    })?;
    strict::read(text).map_err(|fault| match fault {
        Fault::Syntax { line, column } => {
            Rejection::new(RejectReason::NotJson, format!("no JSON at line {line}, column {column}"))
        }
        Fault::TooDeep => {
            Rejection::new(RejectReason::TooDeep, format!("nested deeper than {} levels", strict::MAX_DEPTH))
        }
        Fault::DuplicateKey => Rejection::new(RejectReason::DuplicateKey, "an object names a field twice"),
        Fault::Nul => Rejection::new(RejectReason::HasNul, "a text holds a NUL character"),
        Fault::NumberOutOfRange => Rejection::new(RejectReason::NumberOutOfRange, "a number is beyond a double"),
    })
}

/// For whoever looks for a refused event; not validated, only bounded.
fn hint(data: Option<&Map<String, Value>>, name: &str) -> Option<String> {
    data?.get(name)?.as_str().map(|text| text.chars().take(MAX_NAME).collect())
}
