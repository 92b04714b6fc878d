//! Identity of a notification and fingerprint of its inputs: SHA-256 over a version tag and length-prefixed fields.
//!
//! Lengths stand in front because joining with `:` or `|` makes `("a:b","c")` equal `("a","b:c")`. No channel, time,
//! randomness or counter enters a business key (T2, I10, I13), so the same fields give the same key on every machine.
//! A change of framing or of a field's order needs a new tag: keys in the database outlive the code that made them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::domain::message::{Channel, Recipient};

const KEY_TAG: &[u8] = b"sendonce.key.v1";
const INPUT_TAG: &[u8] = b"sendonce.input.v1";

/// Text that is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 hexadecimal digits")]
pub struct BadHex;

/// A 32-byte hash with a type of its own.
macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The 32 bytes, as stored in `BYTEA`.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
            /// From stored bytes; `None` unless there are exactly 32.
            #[must_use]
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }
        impl FromStr for $name {
            type Err = BadHex;
            fn from_str(hex: &str) -> Result<Self, BadHex> {
                parse_hex(hex).map(Self)
            }
        }
    };
}

digest!(
    /// Identity of the logical notification: one per tenant, event, step, recipient and logical template. Orders like
    /// `BYTEA` in PostgreSQL, so keys sorted here are inserted in lock order.
    BusinessKey
);
digest!(
    /// Fingerprint of what the publisher sent under a key: same key with another hash is a `key_conflict`.
    InputHash
);

/// What makes a notification itself.
#[derive(Debug, Clone, Copy)]
pub struct KeyFields<'a> {
    pub tenant: &'a str,
    pub event_type: &'a str,
    pub event_id: &'a str,
    /// Reminder or resend step; absent differs from empty.
    pub step: Option<&'a str>,
    /// Normalised, so that two spellings of one person give one key.
    pub recipient: &'a Recipient,
    /// The logical template id, never the DLT id or WhatsApp template name: those differ per channel and would let a
    /// fallback notify twice.
    pub template: Option<&'a str>,
}

impl BusinessKey {
    /// The key of these fields (design, section 4).
    #[must_use]
    pub fn derive(fields: &KeyFields<'_>) -> Self {
        let KeyFields { tenant, event_type, event_id, step, recipient, template } = *fields;
        let hash = Framed::new(KEY_TAG)
            .text(tenant)
            .text(event_type)
            .text(event_id)
            .option(step)
            .text(recipient.expose())
            .option(template);
        Self(hash.finish())
    }
}

/// What the publisher asked to be sent. OTP parameters enter only keyed: the caller replaces the value by its keyed hash,
/// since six digits are no secret under a plain one (design, section 10).
#[derive(Clone, Copy)]
pub struct InputFields<'a> {
    /// Logical template id.
    pub template: Option<&'a str>,
    pub params: &'a BTreeMap<String, String>,
    /// The publisher's own text; never the rendered body, which a template edit changes.
    pub body: Option<&'a str>,
    /// In order of preference: another order is another input.
    pub channels: &'a [Channel],
    pub sender_id: Option<&'a str>,
}

impl fmt::Debug for InputFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Parameters and body may hold a code or a name.
        f.debug_struct("InputFields")
            .field("template", &self.template)
            .field("channels", &self.channels)
            .finish_non_exhaustive()
    }
}

impl InputHash {
    /// The hash of these inputs.
    #[must_use]
    pub fn derive(fields: &InputFields<'_>) -> Self {
        let InputFields { template, params, body, channels, sender_id } = *fields;
        let mut hash = Framed::new(INPUT_TAG).option(template).count(params.len());
        for (name, value) in params {
            hash = hash.text(name).text(value);
        }
        hash = hash.option(body).count(channels.len());
        for channel in channels {
            hash = hash.text(channel.as_str());
        }
        Self(hash.option(sender_id).finish())
    }
}

/// Every piece enters behind its length, every list behind its count, every optional behind a presence byte: the byte
/// stream can be read back in one way only, so different fields never hash alike.
struct Framed(Sha256);

impl Framed {
    fn new(tag: &[u8]) -> Self {
        Self(Sha256::new()).bytes(tag)
    }
    fn count(mut self, n: usize) -> Self {
        // An event is at most 1 MiB: the saturation is never reached.
        self.0.update(u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes());
        self
    }
    fn bytes(self, bytes: &[u8]) -> Self {
        let mut framed = self.count(bytes.len());
        framed.0.update(bytes);
        framed
    }
    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }
    fn option(mut self, text: Option<&str>) -> Self {
        self.0.update([u8::from(text.is_some())]);
        match text {
            Some(text) => self.text(text),
            None => self,
        }
    }
    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

fn parse_hex(hex: &str) -> Result<[u8; 32], BadHex> {
    let digits = hex.as_bytes();
    if digits.len() != 64 {
        return Err(BadHex);
    }
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|v| u8::try_from(v).ok()).ok_or(BadHex);
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (value(pair[0])? << 4) | value(pair[1])?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn number(digits: &str) -> Recipient {
        Recipient::from_e164_digits(digits).unwrap()
    }

    fn key(
        tenant: &str,
        event_type: &str,
        event_id: &str,
        step: Option<&str>,
        to: &str,
        template: Option<&str>,
    ) -> BusinessKey {
        let recipient = number(to);
        BusinessKey::derive(&KeyFields { tenant, event_type, event_id, step, recipient: &recipient, template })
    }

    fn params(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Worked out once with Python's hashlib over the framing in the module's words. A change here breaks every key
    /// that is stored: take a new tag instead.
    #[test]
    fn t2_the_framing_never_changes_by_accident() {
        let with_options =
            key("acme", "order.shipped", "evt-1", Some("reminder-1"), "919876543210", Some("order_shipped"));
        assert_eq!(with_options.to_string(), "a3fc73c8b2b1d4dac05d4e458de0c39f141ae55e6ad954f8f21c3cb45a3384a7");
        let without = key("acme", "order.shipped", "evt-1", None, "919876543210", None);
        assert_eq!(without.to_string(), "57a05dbc2892993a63949f4a549d56f63ed548cd6fcb9dc810f25d2516263d7d");

        let params = params(&[("name", "Asha"), ("order", "A-17")]);
        let input = InputHash::derive(&InputFields {
            template: Some("order_shipped"),
            params: &params,
            body: None,
            channels: &[Channel::Whatsapp, Channel::Sms],
            sender_id: Some("ACMEIN"),
        });
        assert_eq!(input.to_string(), "2cf308e88198d542a9f4913d5c6b47a4ed101e11fe4812afe0fc6c0f4d37d373");
    }

    #[test]
    fn t2_absent_differs_from_empty_and_fields_do_not_trade_places() {
        let to = "919876543210";
        let keys = [
            key("t", "type", "id", None, to, None),
            key("t", "type", "id", Some(""), to, None),
            key("t", "type", "id", None, to, Some("")),
            key("t", "type", "id", Some(""), to, Some("")),
            key("t", "type", "id", Some("x"), to, None),
            key("t", "type", "id", None, to, Some("x")),
            key("t", "id", "type", None, to, None),
            key("type", "t", "id", None, to, None),
            key("t", "type", "id", None, "919876543211", None),
            key("t", "type", "id", Some("2"), to, None),
            // The same pieces in the same order, and only the presence bytes tell which is which.
            key("t", "type", "id", Some("919876543210"), "919876543212", None),
            key("t", "type", "id", None, "919876543210", Some("919876543212")),
        ];
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn key_conflict_every_input_counts_and_the_order_of_params_does_not() {
        let none = params(&[]);
        let one = params(&[("a", "1")]);
        let base =
            InputFields { template: None, params: &none, body: Some("hi"), channels: &[Channel::Sms], sender_id: None };
        let hashes = [
            base,
            InputFields { params: &one, ..base },
            InputFields { body: Some("hi "), ..base },
            InputFields { body: None, ..base },
            InputFields { body: Some(""), ..base },
            InputFields { template: Some("hi"), body: None, ..base },
            InputFields { channels: &[], ..base },
            InputFields { channels: &[Channel::Sms, Channel::Whatsapp], ..base },
            InputFields { channels: &[Channel::Whatsapp, Channel::Sms], ..base },
            InputFields { sender_id: Some(""), ..base },
        ]
        .map(|fields| InputHash::derive(&fields));
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());

        let forward = params(&[("a", "1"), ("b", "2")]);
        let backward = params(&[("b", "2"), ("a", "1")]);
        assert_eq!(
            InputHash::derive(&InputFields { params: &forward, ..base }),
            InputHash::derive(&InputFields { params: &backward, ..base })
        );
        assert_ne!(
            InputHash::derive(&InputFields { params: &params(&[("a", "1b2")]), ..base }),
            InputHash::derive(&InputFields { params: &forward, ..base })
        );
    }

    #[test]
    fn i11_inputs_do_not_print_their_texts() {
        let params = params(&[("code", "493817")]);
        let fields =
            InputFields { template: None, params: &params, body: Some("493817"), channels: &[], sender_id: None };
        assert!(!format!("{fields:?}").contains("493817"));
    }

    #[test]
    fn hex_round_trips_and_refuses_the_rest() {
        let derived = key("t", "e", "1", None, "919876543210", None);
        assert_eq!(derived.to_string().parse(), Ok(derived));
        assert_eq!(derived.to_string().to_uppercase().parse(), Ok(derived));
        assert_eq!(format!("{derived:?}"), derived.to_string());
        assert_eq!(BusinessKey::from_bytes(derived.as_bytes()), Some(derived));
        assert_eq!(BusinessKey::from_bytes(&[0; 31]), None);
        assert_eq!(BusinessKey::from_bytes(&[0; 33]), None);
        for bad in [String::new(), "0".repeat(63), "0".repeat(65), "g".repeat(64), "+f".repeat(32), "é".repeat(32)] {
            assert_eq!(bad.parse::<BusinessKey>(), Err(BadHex), "{bad}");
        }
    }

    /// Short texts over the characters that a joined key would trip on.
    fn tricky() -> impl Strategy<Value = String> {
        proptest::string::string_regex("[ab:|/\u{0}\u{1}\u{2}]{0,6}").unwrap()
    }

    fn maybe() -> impl Strategy<Value = Option<String>> {
        proptest::option::of(tricky())
    }

    proptest! {
        /// Fields joined with a separator, or with none, would be equal here.
        #[test]
        fn t2_shifting_a_separator_never_collides(x in "[ab]{0,3}", y in "[ab]{0,3}", z in "[ab]{0,3}", sep in "[:|\u{0}]") {
            let to = "919876543210";
            let (left, right) = (format!("{x}{sep}{y}"), format!("{y}{sep}{z}"));
            prop_assert_ne!(key(&left, &z, "e", None, to, None), key(&x, &right, "e", None, to, None));
            prop_assert_ne!(key("t", &left, &z, None, to, None), key("t", &x, &right, None, to, None));
            prop_assert_ne!(key("t", "e", &left, Some(&z), to, None), key("t", "e", &x, Some(&right), to, None));
            let (left, right) = (format!("{x}{sep}"), format!("{sep}{z}"));
            prop_assert_ne!(key(&left, &z, "e", None, to, None), key(&x, &right, "e", None, to, None));
            prop_assert_ne!(key("t", &left, &z, None, to, None), key("t", &x, &right, None, to, None));
            prop_assert_ne!(key("t", "e", &left, Some(&z), to, None), key("t", "e", &x, Some(&right), to, None));
        }

        #[test]
        fn t2_equal_keys_mean_equal_fields(
            a in (tricky(), tricky(), tricky(), maybe(), maybe()),
            b in (tricky(), tricky(), tricky(), maybe(), maybe()),
        ) {
            let of = |f: &(String, String, String, Option<String>, Option<String>)| {
                key(&f.0, &f.1, &f.2, f.3.as_deref(), "919876543210", f.4.as_deref())
            };
            prop_assert_eq!(of(&a) == of(&b), a == b);
            prop_assert_eq!(of(&a), of(&a.clone()));
        }

        #[test]
        fn i12_different_tenants_and_recipients_never_share_a_key(
            tenants in (tricky(), tricky()), id in tricky(), to in (10_000_000_000u64..99_999_999_999, 10_000_000_000u64..99_999_999_999),
        ) {
            let (p, q) = (to.0.to_string(), to.1.to_string());
            prop_assume!(tenants.0 != tenants.1 && p != q);
            prop_assert_ne!(key(&tenants.0, "e", &id, None, &p, None), key(&tenants.1, "e", &id, None, &p, None));
            prop_assert_ne!(key(&tenants.0, "e", &id, None, &p, None), key(&tenants.0, "e", &id, None, &q, None));
        }

        #[test]
        fn key_conflict_equal_hashes_mean_equal_inputs(
            a in (maybe(), proptest::collection::btree_map(tricky(), tricky(), 0..3), maybe(), maybe()),
            b in (maybe(), proptest::collection::btree_map(tricky(), tricky(), 0..3), maybe(), maybe()),
        ) {
            let of = |f: &(Option<String>, BTreeMap<String, String>, Option<String>, Option<String>)| {
                InputHash::derive(&InputFields {
                    template: f.0.as_deref(),
                    params: &f.1,
                    body: f.2.as_deref(),
                    channels: &[Channel::Sms],
                    sender_id: f.3.as_deref(),
                })
            };
            prop_assert_eq!(of(&a) == of(&b), a == b);
        }
    }
}
