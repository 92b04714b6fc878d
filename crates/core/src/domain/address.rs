//! Whose number it is: any spelling to E.164 digits, once, at ingest. The only user of `rlibphonenumber`.
//!
//! One person in two spellings must give one recipient, or the business key lets them be told twice (T2). What reaches the
//! library is an optional plus and at most 64 ASCII digits, all else is understood or refused here: it would take letters,
//! extensions and whatever trails a number. No error repeats the number (I11).

use rlibphonenumber::{PHONE_NUMBER_UTIL, ParseError, PhoneNumberFormat, PhoneNumberType, Region};

use crate::domain::message::{Recipient, words};

/// Longest input in characters, invisible marks left out. The longest E.164 number has 15 digits.
const MAX_CHARS: usize = 64;

/// Up to here a number without country code is taken for a short code, unless its region has mobile numbers that short.
const SHORT_CODE_DIGITS: usize = 6;

words!(
    /// What a valid number is, when it is none that takes messages.
    NumberKind, "number kind", {
        FixedLine => "fixed_line", TollFree => "toll_free", PremiumRate => "premium_rate", SharedCost => "shared_cost",
        Voip => "voip", Pager => "pager", Uan => "uan", Voicemail => "voicemail",
    }
);

/// Why a text is no number to send to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadNumber {
    #[error("the number is empty")]
    Empty,
    /// A comma separates recipients on the provider's wire: one number would become two.
    #[error("the number holds a comma")]
    Comma,
    #[error("the number holds a NUL character")]
    Nul,
    #[error("the number holds a control character")]
    Control,
    #[error("the number is too long")]
    TooLong,
    /// The tenant's configuration is wrong, not the number.
    #[error("the default region is no ISO 3166 region with a numbering plan")]
    UnknownRegion,
    #[error("the number holds letters")]
    Alphanumeric,
    #[error("the number has an extension or parameters")]
    Extension,
    #[error("the text is not a phone number")]
    NotANumber,
    #[error("the country calling code is not assigned")]
    CountryCode,
    #[error("the number is too short")]
    TooShort,
    #[error("the number is a short code")]
    ShortCode,
    #[error("the number is not in its country's numbering plan")]
    Invalid,
    #[error("the number takes no messages: {0}")]
    NotMobile(NumberKind),
}

impl BadNumber {
    /// Stable reason, as parked and counted.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Empty => "number_empty",
            Self::Comma => "number_has_comma",
            Self::Nul => "number_has_nul",
            Self::Control => "number_has_control",
            Self::TooLong => "number_too_long",
            Self::UnknownRegion => "region_unknown",
            Self::Alphanumeric => "number_has_letters",
            Self::Extension => "number_has_extension",
            Self::NotANumber => "number_unreadable",
            Self::CountryCode => "number_country_unknown",
            Self::TooShort => "number_too_short",
            Self::ShortCode => "number_is_short_code",
            Self::Invalid => "number_invalid",
            Self::NotMobile(_) => "number_not_mobile",
        }
    }
}

/// Whether `code` is an ISO 3166 alpha-2 region with a numbering plan, in capitals as configuration writes it.
#[must_use]
pub fn is_region(code: &str) -> bool {
    region(code).is_some()
}

/// The recipient that `raw` names. `default_region` (ISO 3166 alpha-2) applies to numbers without plus and country code.
///
/// A number is read by its region first, so the region's own prefix for dialling abroad counts; `00` in front is tried as a
/// plus after that. Digits without either belong to the default region: those of a foreign number are refused, not guessed,
/// and so are those with the region's own country code where they could be a national number (Germany, not India).
/// Numbers that the provider or the store gives are read with a plus put in front.
///
/// # Errors
/// `BadNumber` when the text is no number, or a number that takes no messages: accepted types are mobile, fixed line or
/// mobile (where a plan does not tell them apart), and personal.
pub fn parse_number(raw: &str, default_region: &str) -> Result<Recipient, BadNumber> {
    let region = region(default_region).ok_or(BadNumber::UnknownRegion)?;
    let dialled = clean(raw)?;
    let national = read(&dialled, region);
    let international = || dialled.strip_prefix("00").map(|rest| read(&format!("+{rest}"), region));
    match national {
        Ok(recipient) => Ok(recipient),
        Err(BadNumber::NotMobile(kind)) => Err(BadNumber::NotMobile(kind)),
        Err(_) if !dialled.starts_with('+') && dialled.len() <= SHORT_CODE_DIGITS => Err(BadNumber::ShortCode),
        Err(why) => international().unwrap_or(Err(why)),
    }
}

fn region(code: &str) -> Option<Region> {
    let capitals = code.len() == 2 && code.bytes().all(|b| b.is_ascii_uppercase());
    let region = capitals.then(|| Region::from_code(code).ok()).flatten()?;
    PHONE_NUMBER_UTIL.get_country_code_for_region(region).map(|_| region)
}

/// Through the library: an optional plus and ASCII digits.
fn read(dialled: &str, region: Region) -> Result<Recipient, BadNumber> {
    let number = PHONE_NUMBER_UTIL.parse(dialled, Some(region)).map_err(|error| match error {
        ParseError::InvalidCountryCode => BadNumber::CountryCode,
        ParseError::NotANumber(_) => BadNumber::NotANumber,
        ParseError::TooShortAfterIdd | ParseError::TooShortNsn => BadNumber::TooShort,
        ParseError::TooLongNsn => BadNumber::TooLong,
    })?;
    let refuse = |kind| Err(BadNumber::NotMobile(kind));
    match PHONE_NUMBER_UTIL.get_number_type(&number) {
        PhoneNumberType::Mobile | PhoneNumberType::FixedLineOrMobile | PhoneNumberType::PersonalNumber => {}
        PhoneNumberType::FixedLine => return refuse(NumberKind::FixedLine),
        PhoneNumberType::TollFree => return refuse(NumberKind::TollFree),
        PhoneNumberType::PremiumRate => return refuse(NumberKind::PremiumRate),
        PhoneNumberType::SharedCost => return refuse(NumberKind::SharedCost),
        PhoneNumberType::VoIP => return refuse(NumberKind::Voip),
        PhoneNumberType::Pager => return refuse(NumberKind::Pager),
        PhoneNumberType::UAN => return refuse(NumberKind::Uan),
        PhoneNumberType::VoiceMail => return refuse(NumberKind::Voicemail),
        // `parse` takes numbers that no plan knows; the type tells.
        PhoneNumberType::Unknown => return Err(BadNumber::Invalid),
    }
    let e164 = PHONE_NUMBER_UTIL.format(&number, PhoneNumberFormat::E164);
    e164.strip_prefix('+').and_then(Recipient::from_e164_digits).ok_or(BadNumber::TooLong)
}

/// An optional plus and ASCII digits, or what is wrong with the text. Looks at no more than `MAX_CHARS` characters.
fn clean(raw: &str) -> Result<String, BadNumber> {
    let visible: Vec<char> = raw.trim().chars().filter(|&c| !is_mark(c)).take(MAX_CHARS + 1).collect();
    // What is wrong is told by the worst character, not by the first: a list of numbers is a comma problem.
    let has = |test: fn(char) -> bool| visible.iter().any(|&c| test(c));
    if has(|c| c == '\0') {
        return Err(BadNumber::Nul);
    }
    if has(is_comma) {
        return Err(BadNumber::Comma);
    }
    if visible.len() > MAX_CHARS {
        return Err(BadNumber::TooLong);
    }
    if has(char::is_control) {
        return Err(BadNumber::Control);
    }
    if has(|c| matches!(c, ';' | '#' | '；' | '＃')) {
        return Err(BadNumber::Extension);
    }
    if has(char::is_alphabetic) {
        return Err(BadNumber::Alphanumeric);
    }
    if visible.iter().all(|c| c.is_whitespace()) {
        return Err(BadNumber::Empty);
    }
    let mut dialled = String::with_capacity(visible.len());
    for c in visible {
        match c {
            '+' | '＋' if dialled.is_empty() => dialled.push('+'),
            c if is_separator(c) => {}
            c => dialled.push(digit(c).ok_or(BadNumber::NotANumber)?),
        }
    }
    if dialled.bytes().any(|b| b.is_ascii_digit()) { Ok(dialled) } else { Err(BadNumber::NotANumber) }
}

/// Soft hyphen, zero-width and direction marks, byte order mark: pasted along unseen, part of no number.
fn is_mark(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}

/// The comma and what a reader or a lenient converter takes for one.
fn is_comma(c: char) -> bool {
    matches!(c, ',' | '،' | '、' | '﹐' | '，' | '､')
}

/// Space, dash, bracket, dot and slash, as people group digits.
fn is_separator(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{ff0d}')
        || matches!(c, '-' | '.' | '/' | '(' | ')' | '[' | ']' | '·' | '．' | '／' | '（' | '）')
}

/// Decimal digits of the scripts that phones type, as ASCII.
fn digit(c: char) -> Option<char> {
    /// The zero of each; the digits follow in order.
    const ZEROS: [char; 20] = [
        '0', '\u{660}', '\u{6f0}', '\u{966}', '\u{9e6}', '\u{a66}', '\u{ae6}', '\u{b66}', '\u{be6}', '\u{c66}',
        '\u{ce6}', '\u{d66}', '\u{de6}', '\u{e50}', '\u{ed0}', '\u{f20}', '\u{1040}', '\u{17e0}', '\u{1810}',
        '\u{ff10}',
    ];
    ZEROS.iter().find_map(|&zero| {
        let value = u32::from(c).checked_sub(u32::from(zero))?;
        char::from_digit(value, 10)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn digits(raw: &str, region: &str) -> Result<String, BadNumber> {
        parse_number(raw, region).map(|recipient| recipient.expose().to_owned())
    }

    fn all_give(expected: &str, spellings: &[(&str, &str)]) {
        for (raw, region) in spellings {
            assert_eq!(digits(raw, region).as_deref(), Ok(expected), "{raw:?} in {region}");
        }
    }

    #[test]
    fn t2_one_person_in_many_spellings_is_one_recipient() {
        all_give(
            "919876543210",
            &[
                ("+919876543210", "IN"),
                ("919876543210", "IN"),
                ("9876543210", "IN"),
                ("09876543210", "IN"),
                ("+91 98765 43210", "IN"),
                ("+91-98765-43210", "DE"),
                ("0091 98765 43210", "IN"),
                ("00919876543210", "US"),
                ("011 91 98765 43210", "US"),
                ("+91 (0)98765 43210", "IN"),
                ("(+91) 98765.43210", "GB"),
                (" \u{feff}+91\u{a0}98765\u{2011}43210\r\n", "IN"),
                ("\u{202a}+919876543210\u{202c}", "IN"),
                ("+91\u{200b}98765\u{ad}43210\u{2069}", "IN"),
                ("\u{200e}9876543210", "IN"),
                ("＋９１ ９８７６５ ４３２１０", "IN"),
                ("٩٨٧٦٥٤٣٢١٠", "IN"),
                ("+۹۱۹۸۷۶۵۴۳۲۱۰", "IN"),
                ("९८७६५४३२१०", "IN"),
            ],
        );
        all_give(
            "4917612345678",
            &[
                ("+49 (0)176 12345678", "DE"),
                ("+49 176 12345678", "IN"),
                ("0176/12345678", "DE"),
                ("0049 176 12345678", "DE"),
                ("004917612345678", "IN"),
                ("0049 (0)176 1234 5678", "DE"),
            ],
        );
        all_give(
            "447911123456",
            &[
                ("07911 123456", "GB"),
                ("+44 (0)7911 123456", "GB"),
                ("0044 7911 123456", "IN"),
                ("0044 7911 123456", "US"),
                ("0011 44 7911 123456", "AU"),
                ("0044 7911 123456", "AU"),
                ("010 44 7911 123456", "JP"),
            ],
        );
        all_give("393471234567", &[("347 123 4567", "IT"), ("+39 347 1234567", "IN"), ("0039 347 1234567", "IT")]);
        all_give("14155550123", &[("(415) 555-0123", "US"), ("1-415-555-0123", "US"), ("+1 415.555.0123", "IN")]);
        all_give("525512345678", &[("+52 55 1234 5678", "IN"), ("55 1234 5678", "MX")]);
        all_give("5491123456789", &[("+54 9 11 2345 6789", "IN"), ("011 15 2345 6789", "AR")]);
    }

    #[test]
    fn t2_numbers_that_look_prefixed_stay_whole() {
        // Begins with 91, and is a mobile number of ten digits.
        all_give("919198765432", &[("9198765432", "IN"), ("+91 91987 65432", "IN"), ("919198765432", "IN")]);
        for suffix in 0..100 {
            let number = format!("9198765000{suffix:02}");
            all_give(&number, &[(&number, "IN"), (&number[2..], "IN"), (&format!("+{number}"), "US")]);
        }
    }

    /// Without plus these could be two numbers; a code sent to the wrong one would be worse than a parked event.
    #[test]
    fn t15_country_code_without_plus_is_never_guessed() {
        assert_eq!(digits("4917612345678", "DE"), Err(BadNumber::NotMobile(NumberKind::FixedLine)));
        assert_eq!(digits("4917612345678", "IN"), Err(BadNumber::Invalid));
        assert_eq!(digits("447911123456", "IN"), Err(BadNumber::Invalid));
        assert_eq!(digits("99876543210", "IN"), Err(BadNumber::Invalid));
    }

    #[test]
    fn t2_plans_that_other_libraries_get_wrong() {
        all_give("2290190011234", &[("+229 01 90 01 12 34", "IN"), ("01 90 01 12 34", "BJ")]);
        all_give("2250501234567", &[("+225 05 01 23 45 67", "IN"), ("05 01 23 45 67", "CI")]);
        // The Italian leading zero belongs to the number; a fixed line all the same.
        assert_eq!(digits("+39 02 1234 5678", "IT"), Err(BadNumber::NotMobile(NumberKind::FixedLine)));
        let kept = PHONE_NUMBER_UTIL.parse("+390212345678", None).unwrap();
        assert_eq!(PHONE_NUMBER_UTIL.format(&kept, PhoneNumberFormat::E164), "+390212345678");
        // Five digits are a mobile number on Saint Helena, and a short code elsewhere.
        all_give("29051234", &[("51234", "SH")]);
    }

    #[test]
    fn f17_what_is_wrong_is_said() {
        use BadNumber::{
            Alphanumeric, Comma, Control, CountryCode, Empty, Extension, Invalid, NotANumber, NotMobile, Nul,
            ShortCode, TooLong,
        };
        let table = [
            ("", Empty),
            ("   ", Empty),
            ("\u{200b}\u{feff}", Empty),
            ("9876543210,9876543211", Comma),
            ("9876543210,", Comma),
            ("9876543210，9876543211", Comma),
            ("9876543210،", Comma),
            ("98765\u{0}43210", Nul),
            ("9876543210\0", Nul),
            ("98765\t43210", Control),
            ("9876543210\r\n9876543211", Control),
            ("98765\u{1b}43210", Control),
            ("VK-SGCTST", Alphanumeric),
            ("98765O4321", Alphanumeric),
            ("9876543210x5", Alphanumeric),
            ("tel:+919876543210", Alphanumeric),
            ("1-800-FLOWERS", Alphanumeric),
            ("+91 98765 43210 ext. 5", Alphanumeric),
            ("+919876543210;ext=5", Extension),
            ("+919876543210#5", Extension),
            ("+", NotANumber),
            ("()-", NotANumber),
            ("98765+43210", NotANumber),
            ("++919876543210", NotANumber),
            ("*9876543210", NotANumber),
            ("9876543210 ²", NotANumber),
            ("9876543210?", NotANumber),
            ("\"9876543210\"", NotANumber),
            ("12345", ShortCode),
            ("56161", ShortCode),
            ("100", ShortCode),
            ("9876 5432 101", Invalid),
            ("987654321", Invalid),
            ("0000000000", CountryCode),
            ("1234567890", NotMobile(NumberKind::FixedLine)),
            // Prefix 1 for Mexican mobiles ended in 2019; a refusal here, never a second key.
            ("+52 1 55 1234 5678", Invalid),
            ("+999 123 456 789", CountryCode),
            ("447911123456", Invalid),
            ("+91 11 2345 6789", NotMobile(NumberKind::FixedLine)),
            ("1800 123 4567", NotMobile(NumberKind::TollFree)),
            ("+44 20 7946 0958", NotMobile(NumberKind::FixedLine)),
            ("+44 56 1234 5678", NotMobile(NumberKind::Voip)),
        ];
        for (raw, expected) in table {
            assert_eq!(parse_number(raw, "IN"), Err(expected), "{raw:?}");
        }
        // Cut off where we stop reading, the first of these would be a fine number, and not the one that was written.
        for long in [
            format!("9876543210{}5", "-".repeat(60)),
            "9".repeat(65),
            "9".repeat(10_000),
            " 9".repeat(60),
            "+91".to_owned() + &"9".repeat(30),
        ] {
            assert_eq!(parse_number(&long, "IN"), Err(TooLong), "{} chars", long.len());
        }
        let padded = format!("{}9876543210{}", "\u{200b}".repeat(10_000), " ".repeat(10_000));
        assert_eq!(digits(&padded, "IN").as_deref(), Ok("919876543210"));
    }

    #[test]
    fn regions_are_iso_alpha_2_with_a_plan() {
        for known in ["IN", "DE", "GB", "US", "IT", "BJ", "CI", "AX", "XK"] {
            assert!(is_region(known), "{known}");
        }
        for unknown in ["", "I", "in", "IND", "ZZ", "AQ", "UK", "001", "91", "é", "\0\0", "+9"] {
            assert!(!is_region(unknown), "{unknown}");
            assert_eq!(parse_number("+919876543210", unknown), Err(BadNumber::UnknownRegion), "{unknown}");
        }
    }

    #[test]
    fn reasons_are_distinct_words() {
        use BadNumber::{
            Alphanumeric, Comma, Control, CountryCode, Empty, Extension, Invalid, NotANumber, NotMobile, Nul,
            ShortCode, TooLong, TooShort, UnknownRegion,
        };
        let all = [
            Empty,
            Comma,
            Nul,
            Control,
            TooLong,
            UnknownRegion,
            Alphanumeric,
            Extension,
            NotANumber,
            CountryCode,
            TooShort,
            ShortCode,
            Invalid,
            NotMobile(NumberKind::Pager),
        ];
        let codes: HashSet<_> = all.iter().map(|why| why.code()).collect();
        assert_eq!(codes.len(), all.len());
        assert!(codes.iter().all(|code| code.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }

    /// Texts near numbers: digits of several scripts, separators, marks, and the characters that must be refused.
    fn near_numbers() -> impl Strategy<Value = String> {
        proptest::string::string_regex("[+＋]{0,2}[0-9٠-٩０-９ ()/.\u{200b}\u{202a}\u{feff},;#xA\u{0}-]{0,40}").unwrap()
    }

    fn regions() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(&["IN", "DE", "IT", "US", "GB", "AR", "MX", "BR", "CI", "AU", "SH", "ZZ", ""][..])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn f17_no_text_panics(raw in prop_oneof![any::<String>(), near_numbers()], region in regions()) {
            let _outcome = parse_number(&raw, region);
        }

        #[test]
        fn f17_no_long_text_panics(raw in proptest::collection::vec(any::<char>(), 9_000..10_000), seed in "[+0-9(] ?") {
            let raw: String = raw.into_iter().collect();
            let _outcome = parse_number(&raw, "IN");
            let _outcome = parse_number(&(seed + &raw), "IN");
        }

        /// What comes out is E.164, and reading it again anywhere changes nothing.
        #[test]
        fn t2_normalising_twice_is_normalising_once(raw in near_numbers(), region in regions(), other in regions()) {
            if let Ok(recipient) = parse_number(&raw, region) {
                let again = parse_number(&format!("+{}", recipient.expose()), if is_region(other) { other } else { "IN" });
                prop_assert_eq!(again, Ok(recipient));
            }
        }

        /// Any mobile number, spelt with other separators, digits and marks, is the same recipient.
        #[test]
        fn t2_separators_and_scripts_change_nothing(
            number in "[6-9][0-9]{9}", noise in proptest::collection::vec(("[ \u{200b}\u{202c}.()-]{0,2}", 0usize..4), 10),
        ) {
            let plain = parse_number(&number, "IN");
            prop_assume!(plain.is_ok());
            let spelt: String = number
                .chars()
                .zip(&noise)
                .map(|(c, (between, script))| {
                    let zero = ['0', '\u{660}', '\u{966}', '\u{ff10}'][*script];
                    let shifted = char::from_u32(u32::from(zero) + c.to_digit(10).unwrap()).unwrap();
                    format!("{between}{shifted}")
                })
                .collect();
            prop_assert_eq!(parse_number(&spelt, "IN"), plain);
        }

        #[test]
        fn i11_errors_do_not_repeat_the_number(raw in near_numbers()) {
            if let Err(why) = parse_number(&raw, "IN") {
                let said = format!("{why} {why:?} {}", why.code());
                prop_assert!(!said.bytes().any(|b| b.is_ascii_digit()), "{}", said);
            }
        }
    }
}
