//! How this provider writes values: a number or quoted text for the same field, words for "none", recipients in several
//! spellings. The one place that evens it out (T35). It refuses to turn an id into a number.

use std::collections::BTreeMap;

use sendonce_core::domain::message::{ProviderRef, Recipient};
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

/// A JSON string or number as the text that was sent: all 19 digits, leading zeros, exponents. `null` is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Scalar(Option<String>);

impl Scalar {
    /// The text, trimmed; none when blank.
    pub(super) fn text(&self) -> Option<&str> {
        self.0.as_deref().map(str::trim).filter(|text| !text.is_empty())
    }
    /// The text as an id; none for `"0"` and the other words that mean none (T7).
    pub(super) fn id(&self) -> Option<ProviderRef> {
        self.text().and_then(ProviderRef::clean)
    }
    fn from_raw(raw: &RawValue) -> Result<Self, serde_json::Error> {
        let literal = raw.get();
        match literal.as_bytes().first() {
            Some(b'"') => serde_json::from_str(literal).map(Some).map(Self),
            Some(b'-' | b'0'..=b'9') => Ok(Self(Some(literal.to_owned()))),
            _ if literal == "null" => Ok(Self(None)),
            _ => Err(serde_json::Error::custom("expected text or a number")),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Self::from_raw(raw).map_err(D::Error::custom)
    }
}

/// Several values: a list, or one text with commas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Scalars(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Scalars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        let listed: Vec<Scalar> = if raw.get().starts_with('[') {
            serde_json::from_str(raw.get()).map_err(D::Error::custom)?
        } else {
            vec![Scalar::from_raw(raw).map_err(D::Error::custom)?]
        };
        let entries = listed.iter().filter_map(Scalar::text).flat_map(|text| text.split(','));
        // "0", "null" and "-" stand for no entry here too.
        let named = entries.filter(|entry| ProviderRef::clean(entry).is_some());
        Ok(Self(named.map(|entry| entry.trim().to_owned()).collect()))
    }
}

/// A recipient in any of the spellings seen: `+`, `00`, blanks, dashes and brackets. A number without its country is none
/// of them: completing it would be a guess.
pub(super) fn recipient(raw: &str) -> Option<Recipient> {
    let plain: String = raw.chars().filter(|c| !matches!(c, ' ' | '-' | '(' | ')')).collect();
    let digits = plain.strip_prefix('+').or_else(|| plain.strip_prefix("00")).unwrap_or(&plain);
    Recipient::from_e164_digits(digits)
}

/// Values by name, whatever the names' case and blanks: `Submitted Time` is `submittedtime`.
#[derive(Debug, Default)]
pub(super) struct Named(Vec<(String, String)>);

impl Named {
    /// What the first of `names` holds that holds anything, trimmed.
    pub(super) fn first(&self, names: &[&str]) -> Option<&str> {
        self.verbatim(names).map(str::trim)
    }
    /// The same with the blanks around it.
    pub(super) fn verbatim(&self, names: &[&str]) -> Option<&str> {
        let named = |name: &&str| self.0.iter().find(|(known, value)| known == name && !value.trim().is_empty());
        names.iter().find_map(named).map(|(_, value)| value.as_str())
    }
}

impl FromIterator<(String, String)> for Named {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        let plain = |name: &str| name.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_ascii_lowercase();
        Self(pairs.into_iter().map(|(name, value)| (plain(&name), value)).collect())
    }
}

/// Scalar members of a JSON object by name; others are left out.
pub(super) fn members(json: &str) -> Result<Vec<(String, String)>, serde_json::Error> {
    let object: BTreeMap<String, &RawValue> = serde_json::from_str(json)?;
    let scalar = |raw: &RawValue| Scalar::from_raw(raw).ok()?.0;
    Ok(object.into_iter().filter_map(|(name, raw)| Some((name, scalar(raw)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(json: &str) -> Option<String> {
        serde_json::from_str::<Scalar>(json).unwrap().text().map(str::to_owned)
    }

    #[test]
    fn t6_an_id_stays_the_text_that_was_sent() {
        for (json, text) in [
            (r#""6305583318236810379""#, "6305583318236810379"),
            ("6305583318236810379", "6305583318236810379"),
            ("63055833182368103791234567", "63055833182368103791234567"),
            ("6.305583318236810379e18", "6.305583318236810379e18"),
            (r#""0001234""#, "0001234"),
            (r#""\u0041b""#, "Ab"),
            ("200", "200"),
            (r#"" 200 ""#, "200"),
        ] {
            assert_eq!(scalar(json).as_deref(), Some(text), "{json}");
        }
        assert_eq!(scalar("null"), None);
        assert_eq!(scalar(r#""  ""#), None);
        for other in ["true", "{}", "[]", "[1]"] {
            assert!(serde_json::from_str::<Scalar>(other).is_err(), "{other}");
        }
    }

    #[test]
    fn t7_words_for_none_are_no_id() {
        for none in [r#""0""#, "0", r#""""#, r#""null""#, r#""-""#, "null"] {
            assert_eq!(serde_json::from_str::<Scalar>(none).unwrap().id(), None, "{none}");
        }
    }

    #[test]
    fn a_list_is_a_list_or_text_with_commas() {
        let list = |json: &str| serde_json::from_str::<Scalars>(json).unwrap().0;
        assert_eq!(list(r#""919876543210, +91 98765 43211,""#), ["919876543210", "+91 98765 43211"]);
        assert_eq!(list("919876543210"), ["919876543210"]);
        assert_eq!(list(r#"["919876543210", 919876543211]"#), ["919876543210", "919876543211"]);
        for none in [r#""""#, "null", "[]", r#""0""#, r#"" , ""#] {
            assert_eq!(list(none), Vec::<String>::new(), "{none}");
        }
    }

    #[test]
    fn t13_spellings_of_a_recipient() {
        let expected = Recipient::from_e164_digits("919876543210");
        for same in ["919876543210", "+919876543210", "00919876543210", "+91 98765-43210", " (91) 9876543210 "] {
            assert_eq!(recipient(same), expected, "{same}");
        }
        for none in ["", "abc", "9.19876543210e11", "91987654321x"] {
            assert_eq!(recipient(none), None, "{none}");
        }
    }
}
