//! The shapes of `data` on the wire, as publishers write them and the JSON Schema shows them. Fields that no version knows
//! are refused: a misspelt optional field would otherwise be a setting that silently did nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{RejectReason, Rejection};
use crate::domain::message::{Channel, Class};

/// `data` of `message.send.v1`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendData {
    pub tenant: String,
    pub class: Class,
    pub event_type: String,
    /// Required, except without envelope: the AMQP `message_id` stands in there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// 1 to 10,000.
    pub recipients: Vec<RecipientData>,
    /// In order of preference; without it, SMS.
    #[serde(default = "sms_only")]
    pub channels: Vec<Channel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateData>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dlt: Option<DltData>,
    /// RFC 3339 with offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<String>,
    /// RFC 3339 with offset; not beside `ttl_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// From the event's time, else from its publishing, else from its arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub campaign: Option<String>,
    /// Reminder or resend step: part of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

fn sms_only() -> Vec<Channel> {
    vec![Channel::Sms]
}

impl fmt::Debug for SendData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Numbers, body and parameters stay out.
        f.debug_struct("SendData")
            .field("tenant", &self.tenant)
            .field("class", &self.class)
            .field("recipients", &self.recipients.len())
            .finish_non_exhaustive()
    }
}

/// One of `recipients`. Reading one never fails, so that a bad one takes nobody else with it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, from = "Value")]
pub enum RecipientData {
    Number(String),
    WithParams(NumberWithParams),
    Unreadable(Value),
}

impl From<Value> for RecipientData {
    fn from(value: Value) -> Self {
        match value {
            Value::String(number) => Self::Number(number),
            Value::Object(_) => match NumberWithParams::deserialize(&value) {
                Ok(with) => Self::WithParams(with),
                Err(_) => Self::Unreadable(value),
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => Self::Unreadable(value),
        }
    }
}

/// A number with parameters of its own.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumberWithParams {
    pub number: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl fmt::Debug for RecipientData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number(_) => "Number(*)",
            Self::WithParams(_) => "WithParams(*)",
            Self::Unreadable(_) => "Unreadable(*)",
        })
    }
}
impl fmt::Debug for NumberWithParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NumberWithParams(*)")
    }
}

/// `template` of `message.send.v1`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateData {
    /// The logical id, part of the key.
    pub id: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
}

impl fmt::Debug for TemplateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TemplateData").field("id", &self.id).finish_non_exhaustive()
    }
}

/// `dlt` of `message.send.v1`. Ids are text: 19 digits, and zeros in front, survive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DltData {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entity_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_id: Option<String>,
}

/// `data` of `message.cancel.v1`: by event, or by business key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelData {
    pub tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub business_key: Option<String>,
    pub reason: String,
}

/// Reads `data` into its shape; an error names the place and what belongs there, never what was found.
pub(super) fn shape<T: DeserializeOwned>(data: Value) -> Result<T, Rejection> {
    // serde would read the fields of an object from an array, by position.
    if let Some(field) = ["template", "dlt"].into_iter().find(|field| data.get(field).is_some_and(Value::is_array)) {
        return Err(Rejection::new(RejectReason::FieldInvalid, format!("data.{field}: expected an object")));
    }
    serde_path_to_error::deserialize(data).map_err(|error| {
        let place = place(&error.path().to_string());
        explain(&place, &error.inner().to_string())
    })
}

fn explain(place: &str, message: &str) -> Rejection {
    let expected = message.rsplit_once(", expected ").map(|(_, expected)| expected);
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return Rejection::new(RejectReason::FieldMissing, format!("{place}: missing field `{name}`"));
    }
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let name = rest.split('`').next().filter(|name| is_plain(name)).unwrap_or("…");
        let hint = expected.map(|expected| format!(", expected {expected}")).unwrap_or_default();
        // The path ends with the field itself.
        let place = place.rsplit_once('.').map_or(place, |(place, _)| place);
        return Rejection::new(RejectReason::FieldUnknown, format!("{place}: unknown field `{name}`{hint}"));
    }
    // serde quotes what it found in front of its last ", expected "; only what stands behind is ours.
    let expected = expected.unwrap_or("what the contract says");
    Rejection::new(RejectReason::FieldInvalid, format!("{place}: expected {expected}"))
}

/// The path with the publisher's own names left out: a parameter's name may be anything.
fn place(path: &str) -> String {
    let mut place = "data".to_owned();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (name, index) = part.split_once('[').map_or((part, ""), |(name, index)| (name, index));
        place.push('.');
        place.push_str(if is_plain(name) { name } else { "…" });
        if let Some(index) = index.strip_suffix(']').filter(|i| i.len() <= 5 && i.bytes().all(|b| b.is_ascii_digit())) {
            place.push_str(&format!("[{index}]"));
        }
    }
    place
}

/// Looks like the name of a field: it can hold no number, and hardly a text.
fn is_plain(name: &str) -> bool {
    (1..=24).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}
