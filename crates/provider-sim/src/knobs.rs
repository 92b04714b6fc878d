//! Everything a test may turn while the simulator runs: one document at `/control`, patched by JSON merge (RFC 7386).
//! Defaults are an honest provider.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::TimeFormat;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// Of every random draw; naming it in an update restarts the sequence.
    pub seed: u64,
    pub down: Down,
    pub send: SendKnobs,
    pub wa: WaKnobs,
    pub rates: Rates,
    pub reports: ReportKnobs,
    pub push: PushKnobs,
}

/// A provider that is away, seen from `/SMSApi/*` (the control port stays).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Down {
    #[default]
    No,
    /// New connections are reset at accept, requests on open ones reset unread.
    Close,
    Http503,
    /// The route is gone: HTTP 404.
    Http404,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SendKnobs {
    /// Between acceptance and answer.
    pub latency_ms: u64,
    pub latency_jitter_ms: u64,
    /// Between arrival and acceptance; goes on after the client has left, like a request in the provider's inbox.
    pub inbox_ms: u64,
    /// Answer time of magic 0023.
    pub late_ms: u64,
    /// Pause between bytes of magic 0025.
    pub trickle_ms: u64,
    /// Per account and second; 0 is no limit.
    pub tps_limit: u32,
    /// Throttle as HTTP 429 with the provider's body instead of HTTP 200.
    pub throttle_http_429: bool,
    /// All recipients invalid: an error instead of a success that lists them all.
    pub all_invalid_as_error: bool,
    pub invalid_mobile_form: NumberForm,
    /// Appended to every non-empty invalidMobile: a set that does not add up.
    pub invalid_mobile_stranger: Option<String>,
    /// Names each invalid number twice.
    pub invalid_mobile_repeat: bool,
    pub duplicatecheck_spelling: Spelling,
    /// Drops (recipient, text) pairs accepted within this window, over requests; 0 is per request only.
    pub cross_request_window_s: u64,
    /// 171 for non-ASCII text (as observed), or only outside GSM 03.38.
    pub text_rule: TextRule,
    pub numeric_status_code: bool,
    pub numeric_transaction_id: bool,
    pub uuid_transaction_id: bool,
    /// JSON labelled `text/html`.
    pub wrong_content_type: bool,
    /// Share of answers after which the server closes the kept-alive connection, unannounced.
    pub close_idle_rate: f64,
    /// Longest wait before such a close.
    pub close_idle_max_ms: u64,
}

/// `/WAApi/send`, beside what `send` and `rates` do to both channels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WaKnobs {
    pub response_shape: WaShape,
    /// Per message, whatever its length.
    pub price: Decimal,
    /// Share of delivered messages that are read, `push.gap_ms` later.
    pub read_rate: f64,
}

/// Shares of otherwise ordinary requests; together at most 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rates {
    pub accept_then_hang: f64,
    pub accept_then_reset: f64,
    #[serde(rename = "5xx_after")]
    pub error_after: f64,
    #[serde(rename = "5xx_before")]
    pub error_before: f64,
    pub hang_before: f64,
    pub reset_before: f64,
    pub throttle: f64,
    pub truncated: f64,
    pub no_id: f64,
    pub late: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReportKnobs {
    /// A record is visible this long after its acceptance.
    pub lag_ms: u64,
    /// Always empty.
    pub withheld: bool,
    /// HTTP 503.
    pub down: bool,
    /// Share of reads answered HTTP 429.
    pub throttle_rate: f64,
    /// Share of records that stay hidden (the same ones at every read) while this is set.
    pub gap_rate: f64,
    pub latency_ms: u64,
    pub current_day_only: bool,
    /// Ignores startCursor.
    pub repeat_page: bool,
    pub numeric_mobile: bool,
    /// Largest pageLimit honoured; 0 is no limit.
    pub max_page: u64,
    pub time_format: TimeFormat,
    pub words: Words,
    pub routing: Routing,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PushKnobs {
    pub enabled: bool,
    /// Default target; an account's own `push_url` wins. Credentials or tokens in it are not logged.
    pub url: Option<String>,
    pub shape: Shape,
    pub method: Method,
    /// From acceptance to the handset (and its receipt).
    pub delay_ms: u64,
    pub jitter_ms: u64,
    /// Between several receipts of one message.
    pub gap_ms: u64,
    /// Push every receipt before the answer goes out.
    pub before_response: bool,
    pub loss_rate: f64,
    /// Share of ordinary recipients that end with 001.
    pub failed_rate: f64,
    /// Extra copies of every receipt.
    pub duplicates: u32,
    /// Until a 2xx; then the receipt is lost.
    pub tries: u32,
    pub time_format: TimeFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberForm {
    AsSent,
    /// `+919...`
    Plus,
    /// The last ten digits.
    National,
}

/// Which spelling of duplicatecheck the server honours; the provider's own pages disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spelling {
    Lower,
    Camel,
    Both,
}

/// How a WhatsApp answer is spelt; see the contract, section 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaShape {
    /// `statusCode` a number, `messageId`, `description`.
    Seed,
    /// `statusCode` quoted, `transactionId`, `reason`.
    Sibling,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextRule {
    Ascii,
    Gsm,
}

/// Family of status words in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Words {
    Smpp,
    Plain,
}

/// Which report handler lives at which path; see the path conflict in the contract, section 5a.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// Both handlers at both paths, chosen by `method=getDlr` or `uuid`.
    ByParameters,
    /// Plural lists, singular is by transaction.
    Siblings,
    /// The other way round, as the documents print it.
    Documents,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    KbJson,
    KbForm,
    Legacy,
    Sib,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    Post,
    Get,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            seed: 1,
            down: Down::No,
            send: SendKnobs::default(),
            wa: WaKnobs::default(),
            rates: Rates::default(),
            reports: ReportKnobs::default(),
            push: PushKnobs::default(),
        }
    }
}

impl Default for SendKnobs {
    fn default() -> Self {
        Self {
            latency_ms: 20,
            latency_jitter_ms: 0,
            inbox_ms: 0,
            late_ms: 2_000,
            trickle_ms: 100,
            tps_limit: 0,
            throttle_http_429: false,
            all_invalid_as_error: false,
            invalid_mobile_form: NumberForm::AsSent,
            invalid_mobile_stranger: None,
            invalid_mobile_repeat: false,
            duplicatecheck_spelling: Spelling::Both,
            cross_request_window_s: 0,
            text_rule: TextRule::Ascii,
            numeric_status_code: false,
            numeric_transaction_id: false,
            uuid_transaction_id: false,
            wrong_content_type: false,
            close_idle_rate: 0.0,
            close_idle_max_ms: 50,
        }
    }
}

impl Default for WaKnobs {
    fn default() -> Self {
        Self { response_shape: WaShape::Seed, price: Decimal::new(3_300, 4), read_rate: 1.0 }
    }
}

impl Default for ReportKnobs {
    fn default() -> Self {
        Self {
            lag_ms: 0,
            withheld: false,
            down: false,
            throttle_rate: 0.0,
            gap_rate: 0.0,
            latency_ms: 0,
            current_day_only: false,
            repeat_page: false,
            numeric_mobile: false,
            max_page: 0,
            time_format: TimeFormat::Millis,
            words: Words::Smpp,
            routing: Routing::ByParameters,
        }
    }
}

impl Default for PushKnobs {
    fn default() -> Self {
        Self {
            enabled: true,
            url: None,
            shape: Shape::Legacy,
            method: Method::Post,
            delay_ms: 50,
            jitter_ms: 20,
            gap_ms: 50,
            before_response: false,
            loss_rate: 0.0,
            failed_rate: 0.0,
            duplicates: 0,
            tries: 20,
            time_format: TimeFormat::Millis,
        }
    }
}

impl Knobs {
    /// These knobs with `patch` merged in; the message says which field was wrong.
    pub fn patched(&self, patch: &Value) -> Result<Self, String> {
        let mut document = serde_json::to_value(self).map_err(|error| error.to_string())?;
        merge(&mut document, patch);
        serde_json::from_value::<Self>(document).map_err(|error| error.to_string())?.checked()
    }

    fn checked(self) -> Result<Self, String> {
        let r = &self.rates;
        let faults = [
            r.accept_then_hang,
            r.accept_then_reset,
            r.error_after,
            r.error_before,
            r.hang_before,
            r.reset_before,
            r.throttle,
            r.truncated,
            r.no_id,
            r.late,
        ];
        let shares = [
            self.send.close_idle_rate,
            self.wa.read_rate,
            self.reports.throttle_rate,
            self.reports.gap_rate,
            self.push.loss_rate,
            self.push.failed_rate,
        ];
        if faults.iter().chain(&shares).any(|rate| !(0.0..=1.0).contains(rate)) {
            return Err("a rate lies between 0 and 1".to_owned());
        }
        if faults.iter().sum::<f64>() > 1.0 + 1e-9 {
            return Err("rates add up to more than 1".to_owned());
        }
        Ok(self)
    }
}

fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_changes_only_what_it_names() {
        let knobs = Knobs::default().patched(&json!({"send": {"latency_ms": 7}, "rates": {"5xx_after": 0.5}})).unwrap();
        assert_eq!(knobs.send.latency_ms, 7);
        assert_eq!(knobs.rates.error_after, 0.5);
        assert_eq!(knobs.push, PushKnobs::default());
    }

    #[test]
    fn an_unknown_knob_and_an_impossible_rate_are_refused() {
        let knobs = Knobs::default();
        assert!(knobs.patched(&json!({"send": {"latency": 7}})).unwrap_err().contains("latency"));
        assert!(knobs.patched(&json!({"rates": {"throttle": 1.5}})).is_err());
        assert!(knobs.patched(&json!({"rates": {"throttle": 0.6, "late": 0.6}})).is_err());
    }

    #[test]
    fn null_clears_an_optional_knob() {
        let with = Knobs::default().patched(&json!({"push": {"url": "http://x/"}})).unwrap();
        assert_eq!(with.patched(&json!({"push": {"url": null}})).unwrap().push.url, None);
    }
}
