//! What an event leaves behind when it, or a part of it, cannot become a row: kind, reason, and the original bytes.

use sendonce_core::broker::Delivery;
use sendonce_core::domain::message::Class;
use sendonce_core::store::{ParkKind, ParkReason, ToPark};
use serde_json::{Map, Value, json};

/// The event as it arrived, for whoever may have to look at it or send it again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Original {
    pub(crate) bytes: Vec<u8>,
    pub(crate) headers: Value,
    /// As far as the event could be read.
    pub(crate) tenant: Option<String>,
    pub(crate) event_id: Option<String>,
    pub(crate) class: Option<Class>,
    pub(crate) trace_parent: Option<String>,
}

impl Original {
    /// Takes the bytes out of the delivery: an event may be a mebibyte, and one copy is enough.
    pub(crate) fn of(delivery: &mut Delivery) -> Self {
        let headers = json!({
            "message_id": delivery.message_id(),
            "user_id": delivery.user_id(),
            "timestamp": delivery.timestamp(),
            "routing_key": delivery.routing_key,
            "headers": delivery.headers(),
        });
        Self { bytes: std::mem::take(&mut delivery.body), headers: without_nul(headers), ..Self::default() }
    }
}

/// PostgreSQL's JSON holds no NUL; the broker's headers may.
fn without_nul(value: Value) -> Value {
    let clean = |text: String| if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
    match value {
        Value::String(text) => Value::String(clean(text)),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (clean(key), without_nul(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nul).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

/// One thing set aside, before the original bytes are put to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Aside {
    pub(crate) kind: ParkKind,
    pub(crate) reason: ParkReason,
    /// As the publisher spelt it; only ever written to the database.
    pub(crate) recipient: Option<String>,
}

impl Aside {
    pub(crate) fn event(reason: ParkReason) -> Self {
        Self { kind: ParkKind::Event, reason, recipient: None }
    }
}

/// What copies of one event's bytes may take. 10,000 bad recipients of an event of a mebibyte would take ten gigabytes.
const COPIES: usize = 4 * 1024 * 1024;

/// Puts the event's bytes to each thing; past `COPIES` to the first only, and a stub that names the event to the others.
pub(crate) fn to_park(original: &Original, asides: Vec<Aside>) -> Vec<ToPark> {
    let whole = if asides.len().saturating_mul(original.bytes.len()) > COPIES { 1 } else { asides.len() };
    asides
        .into_iter()
        .enumerate()
        .map(|(i, mut aside)| {
            let bytes = if i < whole {
                original.bytes.clone()
            } else {
                aside.reason.detail.push_str("; the event's bytes are kept once, with the first of its parked parts");
                stub(original, aside.recipient.as_deref())
            };
            ToPark {
                kind: aside.kind,
                reason: aside.reason,
                tenant: original.tenant.clone(),
                event_id: original.event_id.clone(),
                recipient: aside.recipient,
                original: bytes,
                headers: original.headers.clone(),
            }
        })
        .collect()
}

fn stub(original: &Original, recipient: Option<&str>) -> Vec<u8> {
    json!({ "tenant": original.tenant, "event_id": original.event_id, "recipient": recipient }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original(bytes: usize) -> Original {
        Original { bytes: vec![b'x'; bytes], event_id: Some("evt-1".into()), ..Original::default() }
    }

    fn recipients(count: usize) -> Vec<Aside> {
        let aside = |i: usize| Aside {
            kind: ParkKind::Recipient,
            reason: ParkReason::new("number_invalid", "why"),
            recipient: Some(format!("bad {i}")),
        };
        (0..count).map(aside).collect()
    }

    #[test]
    fn i2_every_parked_part_keeps_the_event() {
        let parked = to_park(&original(1000), recipients(100));
        assert!(parked.iter().all(|thing| thing.original.len() == 1000));
        assert_eq!(parked[7].recipient.as_deref(), Some("bad 7"));
    }

    #[test]
    fn f17_ten_thousand_bad_recipients_do_not_copy_a_large_event_ten_thousand_times() {
        let parked = to_park(&original(1024 * 1024), recipients(10_000));
        let total: usize = parked.iter().map(|thing| thing.original.len()).sum();
        assert!(total < 2 * COPIES, "{total}");
        assert_eq!((parked.len(), parked[0].original.len()), (10_000, 1024 * 1024));
        let stub: Value = serde_json::from_slice(&parked[9_999].original).unwrap();
        assert_eq!(stub, json!({"tenant": null, "event_id": "evt-1", "recipient": "bad 9999"}));
    }

    #[test]
    fn f17_a_nul_in_a_header_cannot_refuse_the_parking() {
        let cleaned = without_nul(json!({"a\0": ["b\0", {"c": "\0"}], "d": 1, "e": null}));
        assert_eq!(cleaned, json!({"a\u{fffd}": ["b\u{fffd}", {"c": "\u{fffd}"}], "d": 1, "e": null}));
    }
}
