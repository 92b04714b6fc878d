//! How long a text is on the wire, and so what it costs: GSM 03.38 with its extension table, else UCS-2.
//!
//! Packing is greedy, because an escape pair or a surrogate pair never straddles two parts: dividing the length by the
//! part size comes out too low. National shift tables are refused on purpose (provider contract, section 11), and nothing
//! is normalised: that would change a registered body.

use crate::domain::message::{Encoding, words};

words!(
    /// When an account's provider takes a text as GSM 03.38 (design, section 4).
    EncodingRule, "encoding rule", {
        Gsm => "gsm",
        AsciiOnly => "ascii_only",
    }
);

/// The longest text of one WhatsApp message, in characters.
pub const WHATSAPP_CHARACTERS: usize = 4_096;

/// Length of a text on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    pub encoding: Encoding,
    /// Septets for GSM 03.38 (an escape pair is two), UTF-16 code units for UCS-2.
    pub units: u32,
    /// What is billed per recipient: parts of an SMS, one of a message sent whole. 0 for an empty text.
    pub segments: u16,
}

/// Measures a text under the account's rule.
#[must_use]
pub fn measure(text: &str, rule: EncodingRule) -> Measured {
    let encoding = encoding_of(text, rule);
    let parts = segment_units(text, encoding);
    Measured {
        encoding,
        units: parts.iter().map(|&units| u32::from(units)).fold(0, u32::saturating_add),
        segments: u16::try_from(parts.len()).unwrap_or(u16::MAX),
    }
}

/// Units of each part, in order; none for an empty text. For a text that `encoding` cannot carry, each foreign character
/// counts as one septet (networks put `?` there).
#[must_use]
pub fn segment_units(text: &str, encoding: Encoding) -> Vec<u16> {
    let (alone, part) = limits(encoding);
    let width = |c: char| match encoding {
        Encoding::Gsm7 => septets(c).unwrap_or(1),
        Encoding::Ucs2 => {
            if c.len_utf16() == 2 {
                2
            } else {
                1
            }
        }
    };
    let mut parts = Vec::new();
    let mut filling = 0;
    let mut total: u32 = 0;
    for units in text.chars().map(width) {
        if filling + units > part {
            parts.push(filling);
            filling = 0;
        }
        filling += units;
        total = total.saturating_add(u32::from(units));
    }
    if filling > 0 {
        parts.push(filling);
    }
    // Without the concatenation header there is room for a little more.
    match u16::try_from(total) {
        Ok(total) if total > 0 && total <= alone => vec![total],
        Ok(_) | Err(_) => parts,
    }
}

/// Units in a text of one part, and in each part of several (8-bit concatenation reference).
const fn limits(encoding: Encoding) -> (u16, u16) {
    match encoding {
        Encoding::Gsm7 => (160, 153),
        Encoding::Ucs2 => (70, 67),
    }
}

fn encoding_of(text: &str, rule: EncodingRule) -> Encoding {
    let allowed = match rule {
        EncodingRule::Gsm => true,
        EncodingRule::AsciiOnly => text.is_ascii(),
    };
    if allowed && text.chars().all(|c| septets(c).is_some()) { Encoding::Gsm7 } else { Encoding::Ucs2 }
}

/// Septets of a character in GSM 03.38: 1 in the default table, 2 in the extension, `None` in neither. The escape
/// character itself is no text.
const fn septets(c: char) -> Option<u16> {
    match c {
        '\n' | '\r' | ' '..='Z' | '_' | 'a'..='z' => Some(1),
        '£' | '¥' | 'è' | 'é' | 'ù' | 'ì' | 'ò' | 'Ç' | 'Ø' | 'ø' | 'Å' | 'å' | 'Æ' | 'æ' | 'ß' | 'É' | '¤' | '¡'
        | '¿' | '§' => Some(1),
        'Ä' | 'Ö' | 'Ñ' | 'Ü' | 'ä' | 'ö' | 'ñ' | 'ü' | 'à' => Some(1),
        'Δ' | 'Φ' | 'Γ' | 'Λ' | 'Ω' | 'Π' | 'Ψ' | 'Σ' | 'Θ' | 'Ξ' => Some(1),
        '\u{c}' | '^' | '{' | '}' | '\\' | '[' | '~' | ']' | '|' | '€' => Some(2),
        _ => None,
    }
}

/// Why a body cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    /// Nothing a reader would see.
    #[error("the body is empty")]
    Empty,
    #[error("the body holds a NUL character")]
    Nul,
    #[error("the body takes {segments} segments, at most {max} are allowed")]
    TooLong { segments: u16, max: u16 },
    #[error("the body takes more than {max} characters")]
    TooManyCharacters { max: usize },
}

impl BadBody {
    /// Stable reason, as parked and counted.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Empty => "body_empty",
            Self::Nul => "body_has_nul",
            Self::TooLong { .. } | Self::TooManyCharacters { .. } => "body_too_long",
        }
    }
}

/// Measures a body that is fit to send as an SMS.
///
/// # Errors
/// `BadBody` for a body that is blank, holds a NUL or takes more than `max_segments` segments.
pub fn check_body(text: &str, max_segments: u16, rule: EncodingRule) -> Result<Measured, BadBody> {
    check_seen(text)?;
    let measured = measure(text, rule);
    if measured.segments > max_segments {
        return Err(BadBody::TooLong { segments: measured.segments, max: max_segments });
    }
    Ok(measured)
}

/// Measures a body that is fit to send whole: it travels in one piece and is billed as one, whatever its length.
///
/// # Errors
/// `BadBody` for a body that is blank, holds a NUL or takes more than `max` characters.
pub fn check_whole_body(text: &str, max: usize) -> Result<Measured, BadBody> {
    check_seen(text)?;
    if text.chars().nth(max).is_some() {
        return Err(BadBody::TooManyCharacters { max });
    }
    Ok(Measured { segments: 1, ..measure(text, EncodingRule::Gsm) })
}

fn check_seen(text: &str) -> Result<(), BadBody> {
    if text.contains('\0') {
        return Err(BadBody::Nul);
    }
    let unseen =
        |c: char| c.is_whitespace() || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}');
    if text.chars().all(unseen) { Err(BadBody::Empty) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Vector {
        id: String,
        text: String,
        encoding: String,
        units: u32,
        segments: u16,
        segment_units: Vec<u16>,
        segments_if_forced_ucs2: u16,
    }

    fn vectors() -> Vec<Vector> {
        serde_json::from_str(include_str!("../../vectors/segments.json")).unwrap()
    }

    #[test]
    fn t19_every_vector_measures_as_written() {
        let vectors = vectors();
        assert!(vectors.len() >= 40, "{} vectors", vectors.len());
        for v in vectors {
            let encoding = if v.encoding == "GSM7" { Encoding::Gsm7 } else { Encoding::Ucs2 };
            let expected = Measured { encoding, units: v.units, segments: v.segments };
            assert_eq!(measure(&v.text, EncodingRule::Gsm), expected, "{}", v.id);
            assert_eq!(segment_units(&v.text, encoding), v.segment_units, "{}", v.id);
            assert_eq!(
                segment_units(&v.text, Encoding::Ucs2).len(),
                usize::from(v.segments_if_forced_ucs2),
                "{}",
                v.id
            );
        }
    }

    #[test]
    fn t19_an_ascii_only_account_pays_ucs2_for_any_other_character() {
        for v in vectors() {
            let measured = measure(&v.text, EncodingRule::AsciiOnly);
            if v.text.is_ascii() {
                assert_eq!(measured, measure(&v.text, EncodingRule::Gsm), "{}", v.id);
            } else {
                assert_eq!(
                    (measured.encoding, measured.segments),
                    (Encoding::Ucs2, v.segments_if_forced_ucs2),
                    "{}",
                    v.id
                );
            }
        }
        assert_eq!(measure("`", EncodingRule::AsciiOnly).encoding, Encoding::Ucs2);
        assert_eq!(
            measure("[ok]", EncodingRule::AsciiOnly),
            Measured { encoding: Encoding::Gsm7, units: 6, segments: 1 }
        );
    }

    /// 3GPP TS 23.038, section 6.2.1, in the table's order (0x1B left out), and its extension.
    #[test]
    fn t19_the_alphabet_is_gsm_03_38_and_nothing_else() {
        let basic = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà";
        let extension = "\u{c}^{}\\[~]|€";
        assert_eq!((basic.chars().count(), extension.chars().count()), (127, 10));
        for c in '\0'..=char::MAX {
            let expected = match (basic.contains(c), extension.contains(c)) {
                (true, _) => Some(1),
                (false, true) => Some(2),
                (false, false) => None,
            };
            assert_eq!(septets(c), expected, "{c:?}");
        }
    }

    #[test]
    fn t19_counts_units_not_code_points() {
        let emoji = |n: usize| measure(&"😀".repeat(n), EncodingRule::Gsm);
        assert_eq!((emoji(35).segments, emoji(36).segments, emoji(70).segments), (1, 2, 3));
        assert_eq!(emoji(36).units, 72);
    }

    #[test]
    fn a_body_must_be_there_and_fit() {
        let check = |text: &str, max| check_body(text, max, EncodingRule::Gsm);
        for blank in ["", " ", "\n\r\t ", "\u{a0}\u{3000}", "\u{200b}\u{feff}"] {
            assert_eq!(check(blank, 10), Err(BadBody::Empty), "{blank:?}");
        }
        assert_eq!(check("a\0b", 10), Err(BadBody::Nul));
        assert_eq!(check("\0", 10), Err(BadBody::Nul));
        assert_eq!(check(&"a".repeat(306), 2).unwrap().segments, 2);
        assert_eq!(check(&"a".repeat(307), 2), Err(BadBody::TooLong { segments: 3, max: 2 }));
        let huge = measure(&"x".repeat(11_000_000), EncodingRule::Gsm);
        assert_eq!((huge.segments, huge.units), (u16::MAX, 11_000_000));
        let codes = [BadBody::Empty, BadBody::Nul, BadBody::TooLong { segments: 3, max: 2 }].map(BadBody::code);
        assert_eq!(codes, ["body_empty", "body_has_nul", "body_too_long"]);
    }

    #[test]
    fn t19_a_whole_body_is_one_whatever_its_length() {
        for text in ["a", &"a".repeat(4_096), &"ß".repeat(4_096), &"😀".repeat(4_096)] {
            assert_eq!(check_whole_body(text, WHATSAPP_CHARACTERS).unwrap().segments, 1);
        }
        let long = check_whole_body(&"😀".repeat(4_097), WHATSAPP_CHARACTERS).unwrap_err();
        assert_eq!((long, long.code()), (BadBody::TooManyCharacters { max: 4_096 }, "body_too_long"));
        assert_eq!(check_whole_body(" \n", 10), Err(BadBody::Empty));
        assert_eq!(check_whole_body("a\0", 10), Err(BadBody::Nul));
    }

    #[test]
    fn rules_are_read_from_configuration() {
        assert_eq!("gsm".parse(), Ok(EncodingRule::Gsm));
        assert_eq!(serde_json::from_str::<EncodingRule>("\"ascii_only\"").unwrap(), EncodingRule::AsciiOnly);
        assert!("ascii".parse::<EncodingRule>().is_err());
    }

    /// Mostly plain text near the limits, with extension characters, and now and then one that forces UCS-2.
    fn texts() -> impl Strategy<Value = String> {
        let gsm = proptest::string::string_regex("[a-z€\\[\\]é@\n]{0,480}").unwrap();
        let pairs = proptest::string::string_regex("a{0,8}(€|a){140,170}").unwrap();
        let ucs2 = proptest::string::string_regex("[aक😀€]{0,220}").unwrap();
        let edge = proptest::string::string_regex("क{60,70}(😀|क){0,10}[a😀]{0,70}").unwrap();
        prop_oneof![gsm, pairs, ucs2, edge, any::<String>()]
    }

    proptest! {
        /// `sms_splitter` is independent of this code and of the vectors.
        #[test]
        fn t19_agrees_with_another_implementation(text in texts()) {
            prop_assume!(!text.is_empty());
            let theirs = sms_splitter::SplitSms::default().split(text.clone());
            let (encoding, octets) = if theirs.character_set == "GSM" { (Encoding::Gsm7, 1) } else { (Encoding::Ucs2, 2) };
            prop_assert_eq!(measure(&text, EncodingRule::Gsm).encoding, encoding);
            let parts: Vec<usize> = theirs.parts.iter().map(|part| part.bytes / octets).collect();
            let ours: Vec<usize> = segment_units(&text, encoding).into_iter().map(usize::from).collect();
            prop_assert_eq!(ours, parts);
        }

        #[test]
        fn t19_parts_are_full_and_add_up(text in texts()) {
            for encoding in [Encoding::Gsm7, Encoding::Ucs2] {
                let parts = segment_units(&text, encoding);
                let (alone, part) = limits(encoding);
                let limit = if parts.len() == 1 { alone } else { part };
                prop_assert!(parts.iter().all(|&units| units > 0 && units <= limit));
                // A part short of its limit by more than one unit is the last one.
                prop_assert!(parts.iter().rev().skip(1).all(|&units| units + 1 >= limit));
                let total: usize = parts.iter().map(|&units| usize::from(units)).sum();
                if encoding == Encoding::Ucs2 {
                    prop_assert_eq!(total, text.encode_utf16().count());
                }
            }
        }
    }
}
