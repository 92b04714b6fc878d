//! The words of a message: ids, channel, class, encoding. Every id and address is a type of its own; `Debug` and
//! `Display` of a number mask it, those of a body leave it out.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Identity of one message row (one physical message to one recipient on one channel).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId(pub i64);

/// Identity of a job: a set of message ids to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub i64);

/// Fresh for every request on the wire, drawn at the claim. Fences every later write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptKey(pub Uuid);

/// Marks whose claim a job is under. Not an attempt key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub Uuid);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A word outside the closed set of an enum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no {what}; expected one of {expected}")]
pub struct UnknownWord {
    what: &'static str,
    found: String,
    expected: String,
}

impl UnknownWord {
    pub(crate) fn new(what: &'static str, found: &str, expected: &[&str]) -> Self {
        Self { what, found: found.to_owned(), expected: expected.join(", ") }
    }
}

/// An enum whose one spelling serves Rust, SQL, AMQP, metrics and logs.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal, { $($variant:ident => $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name { $(#[doc = concat!("`", $word, "`")] #[serde(rename = $word)] $variant),+ }
        impl $name {
            /// Every member, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// The word used in SQL, AMQP, metrics and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => $word),+ } }
        }
        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result { f.pad(self.as_str()) }
        }
        impl ::std::str::FromStr for $name {
            type Err = $crate::domain::message::UnknownWord;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s {
                    $($word => Ok(Self::$variant),)+
                    other => Err($crate::domain::message::UnknownWord::new($what, other, &[$($word),+])),
                }
            }
        }
    };
}
pub(crate) use words;

words!(
    /// How a message travels. Adapters exist for the first two.
    Channel, "channel", { Sms => "sms", Whatsapp => "whatsapp", Voice => "voice", Rcs => "rcs", Telegram => "telegram" }
);
words!(
    /// What a message is for; decides its lane, time to live and policies.
    Class, "class", { Otp => "otp", Transactional => "transactional", Promotional => "promotional" }
);
words!(
    /// Alphabet of an SMS body on the wire.
    Encoding, "encoding", { Gsm7 => "gsm7", Ucs2 => "ucs2" }
);

/// A recipient in E.164 digits without the plus. Only `domain::address` makes one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Recipient(String);

impl Recipient {
    /// For numbers that `domain::address` normalised, or that the store holds: digits only, 5 to 15 of them.
    #[must_use]
    pub fn from_e164_digits(digits: &str) -> Option<Self> {
        let plausible = (5..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        plausible.then(|| Self(digits.to_owned()))
    }
    /// The digits, for the wire and the database only.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}
impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask_number(&self.0))
    }
}
impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recipient({self})")
    }
}

/// Country code and last two digits, the rest starred: `91********10`. Safe on any input.
#[must_use]
pub fn mask_number(number: &str) -> String {
    let chars: Vec<char> = number.chars().collect();
    if chars.len() < 7 {
        return "*".repeat(chars.len());
    }
    let shown = |i: usize| i < 2 || i + 2 >= chars.len();
    chars.iter().enumerate().map(|(i, c)| if shown(i) { *c } else { '*' }).collect()
}

/// A message text. Never printed: `Debug` shows its length in characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Body(String);

impl Body {
    /// Wraps a text.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }
    /// The text, for the wire and the database only.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} chars)", self.0.chars().count())
    }
}

/// An id that the provider gave: opaque text, never a number, never one of the words that mean "none" (T6, T7).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderRef(String);

impl ProviderRef {
    /// The one cleaning function: `"0"`, blanks, `null` in any case and `-` are no id.
    #[must_use]
    pub fn clean(raw: &str) -> Option<Self> {
        let text = raw.trim();
        let lower = text.to_ascii_lowercase();
        let none = matches!(lower.as_str(), "" | "0" | "-" | "null" | "none" | "nil" | "undefined");
        (!none).then(|| Self(text.to_owned()))
    }
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl fmt::Display for ProviderRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t7_sentinels_are_no_id_and_real_ids_stay_text() {
        for none in ["0", "", "   ", "null", "NULL", "Null", "-", " 0 ", "none"] {
            assert_eq!(ProviderRef::clean(none), None, "{none:?}");
        }
        for id in ["6305583318236810379", "0001234", "00", "QudUrwhMuIGkbs2"] {
            assert_eq!(ProviderRef::clean(id).unwrap().as_str(), id);
        }
    }

    #[test]
    fn i11_numbers_and_bodies_never_print() {
        let number = Recipient::from_e164_digits("919876543210").unwrap();
        assert_eq!(format!("{number} {number:?}"), "91********10 Recipient(91********10)");
        assert_eq!(mask_number("12345"), "*****");
        assert_eq!(format!("{:?}", Body::new("code 123456".into())), "Body(11 chars)");
    }

    /// The macro's serde name is the word itself: a variant's own name may differ from it.
    #[test]
    fn a_word_has_one_spelling_everywhere() {
        use crate::domain::outcome::NotSent;
        for &reason in NotSent::ALL {
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{reason}\""));
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        assert_eq!(
            "fax".parse::<Channel>().unwrap_err().to_string(),
            "`fax` is no channel; expected one of sms, whatsapp, voice, rcs, telegram"
        );
    }

    #[test]
    fn a_recipient_holds_digits_only() {
        for bad in ["", "1234", "91987,54321", "+919876543210", "91 9876", "1234567890123456"] {
            assert_eq!(Recipient::from_e164_digits(bad), None, "{bad:?}");
        }
    }
}
