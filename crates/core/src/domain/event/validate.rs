//! From the wire's shapes to a validated event: envelope, types, lengths, times, and which fields go together.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};
use serde_json::{Map, Value};

use super::wire::shape;
use super::{
    Addressee, CANCEL, CancelData, CancelEvent, CancelTarget, Event, FURTHEST, MAX_NAME, MAX_RECIPIENTS, OLDEST,
    RecipientData, RejectReason, Rejection, SEND, SendData, SendEvent, Surroundings,
};
use crate::domain::message::{Body, Channel};

/// What the envelope says; extensions beyond these are allowed and ignored, as CloudEvents asks.
#[derive(Default)]
struct Attributes {
    source: Option<String>,
    time: Option<DateTime<Utc>>,
    expiry: Option<DateTime<Utc>>,
    trace_parent: Option<String>,
}

/// CloudEvents structured mode.
pub(super) fn structured(
    mut envelope: Map<String, Value>,
    around: Surroundings<'_>,
    now: DateTime<Utc>,
) -> Result<Event, Rejection> {
    let version = attribute(&envelope, "specversion")?;
    if version.as_deref() != Some("1.0") {
        return Err(Rejection::new(RejectReason::SpecversionUnsupported, "specversion: expected `1.0`"));
    }
    // Required by CloudEvents. The id is the envelope's; a retry of the publisher may give the same event another one.
    required(attribute(&envelope, "id")?, "id")?;
    let kind = required(attribute(&envelope, "type")?, "type")?;
    let attributes = Attributes {
        source: Some(required(attribute(&envelope, "source")?, "source")?),
        time: time(attribute(&envelope, "time")?, "time")?,
        expiry: time(attribute(&envelope, "expirytime")?, "expirytime")?,
        trace_parent: envelope.get("traceparent").and_then(Value::as_str).map(str::to_owned),
    };
    content_type(&envelope)?;
    let data = envelope.remove("data");
    match kind.as_str() {
        SEND => send(attributes, present(data)?, false, around, now),
        CANCEL => cancel(shape(present(data)?)?),
        _ => {
            let detail = format!("type: expected `{SEND}` or `{CANCEL}`");
            Err(Rejection::new(RejectReason::UnknownType, detail))
        }
    }
}

/// `data` alone always sends.
pub(super) fn bare(data: Map<String, Value>, around: Surroundings<'_>, now: DateTime<Utc>) -> Result<Event, Rejection> {
    send(Attributes::default(), Value::Object(data), true, around, now)
}

fn content_type(envelope: &Map<String, Value>) -> Result<(), Rejection> {
    let kind = attribute(envelope, "datacontenttype")?.map(|kind| kind.to_ascii_lowercase());
    let kind = kind.as_deref().and_then(|kind| kind.split(';').next()).map(str::trim);
    if envelope.contains_key("data_base64") || kind.is_some_and(|kind| kind != "application/json") {
        let detail = "data: expected JSON, and `datacontenttype` absent or `application/json`";
        return Err(Rejection::new(RejectReason::ContentTypeUnsupported, detail));
    }
    Ok(())
}

fn present(data: Option<Value>) -> Result<Value, Rejection> {
    match data {
        Some(data @ Value::Object(_)) => Ok(data),
        Some(Value::Null) | None => Err(Rejection::new(RejectReason::FieldMissing, "missing field `data`")),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            Err(Rejection::new(RejectReason::FieldInvalid, "data: expected an object"))
        }
    }
}

fn send(
    attributes: Attributes,
    data: Value,
    bare: bool,
    around: Surroundings<'_>,
    now: DateTime<Utc>,
) -> Result<Event, Rejection> {
    let data: SendData = shape(data)?;
    let at = attributes.time.or(around.published_at);
    if at.is_some_and(|at| now.signed_duration_since(at).to_std().is_ok_and(|age| age > OLDEST)) {
        let detail = format!("older than {} days: its key may be gone", OLDEST.as_secs() / 86_400);
        return Err(Rejection::new(RejectReason::EventTooOld, detail));
    }
    let event_id = data.event_id.clone().or_else(|| around.message_id.filter(|_| bare).map(str::to_owned));
    let (template, body) = content(&data)?;
    let dlt = data.dlt.unwrap_or_default();
    let trace = attributes.trace_parent.as_deref().or(around.trace_parent);
    Ok(Event::Send(Box::new(SendEvent {
        source: attributes.source,
        at,
        trace_parent: trace.and_then(trace_parent),
        tenant: name(data.tenant, "data.tenant")?,
        class: data.class,
        event_type: name(data.event_type, "data.event_type")?,
        event_id: name(required(event_id, "data.event_id")?, "data.event_id")?,
        recipients: addressees(data.recipients)?,
        channels: channels(data.channels)?,
        template,
        body,
        sender_id: names(data.sender_id, "data.sender_id")?,
        dlt_entity_id: names(dlt.entity_id, "data.dlt.entity_id")?,
        dlt_template_id: names(dlt.template_id, "data.dlt.template_id")?,
        scheduled_for: schedule(data.scheduled_for, now)?,
        expires_at: expiry(data.expires_at, attributes.expiry, data.ttl_seconds)?,
        ttl: ttl(data.ttl_seconds)?,
        campaign: names(data.campaign, "data.campaign")?,
        step: names(data.step, "data.step")?,
    })))
}

fn cancel(data: CancelData) -> Result<Event, Rejection> {
    let target = match (data.event_id, data.business_key) {
        (Some(event), None) => CancelTarget::Event(name(event, "data.event_id")?),
        (None, Some(key)) => CancelTarget::Key(key.parse().map_err(|_| {
            Rejection::new(RejectReason::FieldInvalid, "data.business_key: expected 64 hexadecimal digits")
        })?),
        (Some(_), Some(_)) | (None, None) => {
            let detail = "data: expected either `event_id` or `business_key`";
            return Err(Rejection::new(RejectReason::FieldInvalid, detail));
        }
    };
    let (tenant, reason) = (name(data.tenant, "data.tenant")?, name(data.reason, "data.reason")?);
    Ok(Event::Cancel(CancelEvent { tenant, target, reason }))
}

/// A body, with the logical template id it stands for where the publisher names one.
fn content(data: &SendData) -> Result<(Option<String>, Body), Rejection> {
    let template = names(data.template.as_ref().map(|template| template.id.clone()), "data.template.id")?;
    let Some(body) = &data.body else {
        return Err(if template.is_some() {
            Rejection::new(RejectReason::TemplateUnknown, "data.template: there is no such template, and no `body`")
        } else {
            Rejection::new(RejectReason::ContentMissing, "data: expected `body` or `template`")
        });
    };
    if data.template.as_ref().is_some_and(|template| !template.params.is_empty()) {
        let detail = "data.template.params: a `body` takes no parameters";
        return Err(Rejection::new(RejectReason::ParamsWithBody, detail));
    }
    Ok((template, Body::new(body.clone())))
}

fn addressees(recipients: Vec<RecipientData>) -> Result<Vec<Addressee>, Rejection> {
    if recipients.is_empty() {
        return Err(Rejection::new(RejectReason::RecipientsNone, "data.recipients: expected at least one"));
    }
    if recipients.len() > MAX_RECIPIENTS {
        let detail = format!("data.recipients: {}, at most {MAX_RECIPIENTS} are allowed", recipients.len());
        return Err(Rejection::new(RejectReason::RecipientsTooMany, detail));
    }
    Ok(recipients.into_iter().map(addressee).collect())
}

fn addressee(recipient: RecipientData) -> Addressee {
    match recipient {
        RecipientData::Number(number) => Addressee::Number(number),
        RecipientData::WithParams(with) if with.params.is_empty() => Addressee::Number(with.number),
        RecipientData::WithParams(with) => Addressee::Refused {
            raw: with.number.chars().take(MAX_NAME).collect(),
            reason: RejectReason::ParamsWithBody,
            detail: "a `body` takes no parameters",
        },
        RecipientData::Unreadable(value) => Addressee::Refused {
            raw: value.to_string().chars().take(MAX_NAME).collect(),
            reason: RejectReason::RecipientUnreadable,
            detail: "expected a string, or an object with `number` and `params`",
        },
    }
}

fn channels(channels: Vec<Channel>) -> Result<Vec<Channel>, Rejection> {
    let twice = channels.iter().enumerate().any(|(i, channel)| channels.iter().skip(i + 1).any(|c| c == channel));
    if channels.is_empty() || twice {
        let detail = "data.channels: expected at least one channel, and none twice";
        return Err(Rejection::new(RejectReason::FieldInvalid, detail));
    }
    Ok(channels)
}

fn schedule(text: Option<String>, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, Rejection> {
    let at = time(text, "data.scheduled_for")?;
    if at.is_some_and(|at| at.signed_duration_since(now).to_std().is_ok_and(|ahead| ahead > FURTHEST)) {
        let detail = format!("data.scheduled_for: more than {} days ahead", FURTHEST.as_secs() / 86_400);
        return Err(Rejection::new(RejectReason::ScheduleTooFar, detail));
    }
    Ok(at)
}

fn expiry(
    stated: Option<String>,
    envelope: Option<DateTime<Utc>>,
    ttl: Option<u64>,
) -> Result<Option<DateTime<Utc>>, Rejection> {
    if stated.is_some() && ttl.is_some() {
        let detail = "data: expected `expires_at` or `ttl_seconds`, not both";
        return Err(Rejection::new(RejectReason::ExpiryTwice, detail));
    }
    Ok(time(stated, "data.expires_at")?.into_iter().chain(envelope).min())
}

fn ttl(seconds: Option<u64>) -> Result<Option<Duration>, Rejection> {
    let furthest = FURTHEST.as_secs();
    if seconds.is_some_and(|seconds| seconds == 0 || seconds > furthest) {
        let detail = format!("data.ttl_seconds: expected 1 to {furthest}");
        return Err(Rejection::new(RejectReason::FieldInvalid, detail));
    }
    Ok(seconds.map(Duration::from_secs))
}

/// A text attribute of the envelope.
fn attribute(envelope: &Map<String, Value>, field: &str) -> Result<Option<String>, Rejection> {
    match envelope.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => name(text.clone(), field).map(Some),
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Err(Rejection::new(RejectReason::FieldInvalid, format!("{field}: expected a string")))
        }
    }
}

fn required(text: Option<String>, field: &str) -> Result<String, Rejection> {
    text.ok_or_else(|| Rejection::new(RejectReason::FieldMissing, format!("missing field `{field}`")))
}

fn names(text: Option<String>, field: &str) -> Result<Option<String>, Rejection> {
    text.map(|text| name(text, field)).transpose()
}

/// An id or a name: not blank, of bounded length, no control characters (they would forge lines and forms further on).
fn name(text: String, field: &str) -> Result<String, Rejection> {
    if text.chars().nth(MAX_NAME).is_some() {
        let detail = format!("{field}: longer than {MAX_NAME} characters");
        return Err(Rejection::new(RejectReason::FieldTooLong, detail));
    }
    if text.trim().is_empty() {
        return Err(Rejection::new(RejectReason::FieldInvalid, format!("{field}: empty")));
    }
    if text.contains(char::is_control) {
        return Err(Rejection::new(RejectReason::FieldInvalid, format!("{field}: holds a control character")));
    }
    Ok(text)
}

/// RFC 3339. Without offset it could be any of 38 instants, so it has a reason of its own.
fn time(text: Option<String>, field: &str) -> Result<Option<DateTime<Utc>>, Rejection> {
    let Some(text) = text else { return Ok(None) };
    if let Ok(at) = DateTime::parse_from_rfc3339(&text) {
        return Ok(Some(at.to_utc()));
    }
    let bare = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"]
        .iter()
        .any(|format| NaiveDateTime::parse_from_str(&text, format).is_ok());
    Err(if bare {
        Rejection::new(RejectReason::TimeWithoutOffset, format!("{field}: a time needs its offset, such as `+05:30`"))
    } else {
        Rejection::new(RejectReason::TimeInvalid, format!("{field}: expected an RFC 3339 time"))
    })
}

/// A W3C `traceparent`. A bad one is dropped, not parked: nothing depends on it.
pub(crate) fn trace_parent(text: &str) -> Option<String> {
    let hex =
        |part: &str, len: usize| part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let parts: Vec<&str> = text.split('-').take(5).collect();
    let [version, trace, span, flags] = parts[..] else { return None };
    let shaped = hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    (shaped && version != "ff" && !zero(trace) && !zero(span)).then(|| text.to_owned())
}
