//! What happens to a request or a recipient, and the magic numbers that choose it. One table, so that tests, the README
//! and the control port cannot disagree. Any valid number ending in a listed suffix has that fate; in a list, the first
//! whole-request fate applies to the whole request.

use serde::{Serialize, Serializer};

use crate::codes;

/// The provider's edge answers (or does not); nothing is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Hang,
    Error,
    Reset,
    Redirect307,
    Redirect308,
    NotFound,
    Down,
}

/// The provider refuses in its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    TemplateMismatch,
    Unlisted,
    /// Throttled at the first request that names this recipient, accepted afterwards.
    ThrottledOnce,
    Throttled,
}

/// Accepted, billed and in the ledger before any of this happens to the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    Plain,
    Hang,
    Reset,
    Error,
    Truncated,
    NoId,
    ZeroId,
    LeadingZeros,
    HalfBody,
    Trickle,
    TwoAnswers,
    Empty,
    Late,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Ignore(Before),
    Refuse(Refusal),
    Accept(After),
}

impl Fate {
    /// The word in the ledger's `fate` field.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore(before) => match before {
                Before::Hang => "hang_before",
                Before::Error => "5xx_before",
                Before::Reset => "reset_before",
                Before::Redirect307 => "redirect_307",
                Before::Redirect308 => "redirect_308",
                Before::NotFound => "not_found",
                Before::Down => "down",
            },
            Self::Refuse(refusal) => match refusal {
                Refusal::TemplateMismatch => "template_mismatch",
                Refusal::Unlisted => "unlisted_code",
                Refusal::ThrottledOnce => "throttled_once",
                Refusal::Throttled => "throttled",
            },
            Self::Accept(after) => match after {
                After::Plain => "plain",
                After::Hang => "accept_then_hang",
                After::Reset => "accept_then_reset",
                After::Error => "5xx_after",
                After::Truncated => "truncated",
                After::NoId => "no_id",
                After::ZeroId => "zero_id",
                After::LeadingZeros => "leading_zeros",
                After::HalfBody => "half_body",
                After::Trickle => "trickle",
                After::TwoAnswers => "two_answers",
                After::Empty => "empty_body",
                After::Late => "late",
            },
        }
    }
}

/// What the handset does and what receipts say about it. The two differ on purpose in some rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handset {
    Delivered,
    DeliveredBeforeAnswer,
    Absent,
    Dnd,
    Expired,
    /// Delivered, and only the report says so.
    NoReceipt,
    /// Neither receipt nor report ever gets past submitted.
    NeverFinal,
    UnmappedReceipt,
    ReceiptTwice,
    DeliveredThenFailed,
    ZeroTimeReceipt,
}

impl Handset {
    /// The truth as the report tells it; `None` stays submitted.
    pub fn outcome(self) -> Option<&'static str> {
        match self {
            Self::Delivered
            | Self::DeliveredBeforeAnswer
            | Self::NoReceipt
            | Self::UnmappedReceipt
            | Self::ReceiptTwice
            | Self::DeliveredThenFailed
            | Self::ZeroTimeReceipt => Some(codes::DELIVERED.number),
            Self::Absent => Some(codes::ABSENT.number),
            Self::Dnd => Some(codes::DND.number),
            Self::Expired => Some(codes::EXPIRED.number),
            Self::NeverFinal => None,
        }
    }

    /// Codes of the receipts pushed, in order.
    pub fn receipts(self) -> Vec<&'static str> {
        let delivered = codes::DELIVERED.number;
        match self {
            Self::Delivered | Self::DeliveredBeforeAnswer | Self::ZeroTimeReceipt => vec![delivered],
            Self::Absent | Self::Dnd | Self::Expired => self.outcome().into_iter().collect(),
            Self::NoReceipt | Self::NeverFinal => Vec::new(),
            Self::UnmappedReceipt => vec![codes::UNMAPPED_DELIVERY],
            Self::ReceiptTwice => vec![delivered, delivered],
            Self::DeliveredThenFailed => vec![delivered, codes::ABSENT.number],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Magic {
    Request(Fate),
    Invalid,
    Recipient(Handset),
}

/// One row of the table.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Row {
    /// Last four digits of the recipient.
    pub suffix: &'static str,
    #[serde(serialize_with = "magic_name")]
    pub magic: Magic,
    pub says: &'static str,
}

fn magic_name<S: Serializer>(magic: &Magic, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match magic {
        Magic::Request(fate) => fate.name(),
        Magic::Invalid => "invalid_mobile",
        Magic::Recipient(_) => "recipient",
    })
}

const fn row(suffix: &'static str, magic: Magic, says: &'static str) -> Row {
    Row { suffix, magic, says }
}

const fn ignore(suffix: &'static str, before: Before, says: &'static str) -> Row {
    row(suffix, Magic::Request(Fate::Ignore(before)), says)
}

const fn refuse(suffix: &'static str, refusal: Refusal, says: &'static str) -> Row {
    row(suffix, Magic::Request(Fate::Refuse(refusal)), says)
}

const fn accept(suffix: &'static str, after: After, says: &'static str) -> Row {
    row(suffix, Magic::Request(Fate::Accept(after)), says)
}

const fn handset(suffix: &'static str, handset: Handset, says: &'static str) -> Row {
    row(suffix, Magic::Recipient(handset), says)
}

pub const TABLE: &[Row] = &[
    refuse("0001", Refusal::TemplateMismatch, "request refused with code 188 (DLT template mismatch)"),
    refuse("0002", Refusal::Unlisted, "request refused with code 777, which no table lists"),
    row("0003", Magic::Invalid, "recipient listed in invalidMobile"),
    accept("0010", After::Hang, "accepted, then no answer until the client closes"),
    accept("0011", After::Reset, "accepted, then the connection is reset"),
    accept("0012", After::Error, "accepted, then HTTP 502 with an HTML page"),
    ignore("0013", Before::Error, "HTTP 502 with an HTML page, nothing accepted"),
    ignore("0014", Before::Hang, "no answer until the client closes, nothing accepted"),
    accept("0015", After::Truncated, "accepted, answer is JSON cut in half"),
    accept("0016", After::NoId, "accepted, answer has no transactionId"),
    accept("0017", After::ZeroId, "accepted, answer has transactionId \"0\""),
    ignore("0018", Before::Reset, "connection reset, nothing accepted"),
    ignore("0019", Before::Redirect307, "HTTP 307, nothing accepted; following it is accepted and shows in the ledger"),
    ignore("0020", Before::Redirect308, "HTTP 308, otherwise as 0019"),
    refuse("0021", Refusal::ThrottledOnce, "throttled the first time this recipient is named, accepted after"),
    refuse("0022", Refusal::Throttled, "always throttled"),
    accept("0023", After::Late, "accepted, answered only after send.late_ms"),
    accept("0024", After::HalfBody, "accepted, half of the body, then a reset"),
    accept("0025", After::Trickle, "accepted, body sent byte by byte, send.trickle_ms apart"),
    accept("0026", After::TwoAnswers, "accepted, the answer followed by a second, unasked one"),
    accept("0027", After::Empty, "accepted, HTTP 200 with an empty body"),
    handset("0030", Handset::Dnd, "receipt 008 (DND)"),
    handset("0031", Handset::DeliveredBeforeAnswer, "delivered receipt pushed before the answer"),
    handset("0032", Handset::Absent, "receipt 001 (absent subscriber)"),
    handset("0033", Handset::NoReceipt, "delivered, no receipt ever; the report says delivered"),
    handset("0034", Handset::UnmappedReceipt, "receipt with code 999, in no table; the report says delivered"),
    handset("0035", Handset::ReceiptTwice, "delivered receipt pushed twice"),
    handset("0036", Handset::DeliveredThenFailed, "receipt delivered, then receipt 001; the report says delivered"),
    accept("0037", After::LeadingZeros, "accepted, transactionId starts with 000"),
    handset("0038", Handset::ZeroTimeReceipt, "delivered receipt whose delivered time is \"0\""),
    handset("0039", Handset::NeverFinal, "no receipt ever; the report stays submitted"),
    handset("0040", Handset::Expired, "receipt 005 (expired)"),
];

pub fn magic(mobile: &str) -> Option<Magic> {
    let suffix = mobile.get(mobile.len().checked_sub(4)?..)?;
    TABLE.iter().find(|row| row.suffix == suffix).map(|row| row.magic)
}

pub fn handset_of(mobile: &str) -> Option<Handset> {
    match magic(mobile)? {
        Magic::Recipient(handset) => Some(handset),
        Magic::Request(_) | Magic::Invalid => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn readme_lists_every_magic_number_in_the_words_of_the_table() {
        let readme = include_str!("../README.md");
        let mut suffixes = HashSet::new();
        for row in TABLE {
            assert!(suffixes.insert(row.suffix), "{} twice", row.suffix);
            let line = format!("| {} | {} |", row.suffix, row.says);
            assert!(readme.contains(&line), "README lacks: {line}");
        }
        assert_eq!(readme.lines().filter(|line| line.starts_with("| 00")).count(), TABLE.len());
    }

    #[test]
    fn magic_is_the_last_four_digits() {
        assert_eq!(magic("919876540003"), Some(Magic::Invalid));
        assert_eq!(magic("919876541234"), None);
        assert_eq!(magic("1"), None);
    }
}
