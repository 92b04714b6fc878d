//! What an answer to a submission means: the body first, then the HTTP status. It refuses to read an acceptance or a refusal
//! out of anything that is not the provider's own JSON, complete and free of contradictions; all else is ambiguous.

use std::time::Duration;

use sendonce_core::config::IdLevel;
use sendonce_core::domain::message::{Channel, ProviderRef, Recipient};
use sendonce_core::domain::outcome::{Accepted, Ambiguity, Outcome, Refusal};
use serde::Deserialize;

use super::codes::{CodeTable, Meaning};
use super::wire::{Scalar, Scalars, recipient};
use crate::http::Reply;

/// What an answer is judged against.
#[derive(Debug)]
pub(super) struct Judge<'a> {
    pub(super) channel: Channel,
    pub(super) codes: &'a CodeTable,
    pub(super) id_level: IdLevel,
    /// The recipients of the request, none twice.
    pub(super) sent: &'a [Recipient],
}

/// The flat answer of the sending endpoints in the spellings of both channels, or the inside of the wrapped one that all
/// others give. `mobile` is left out on purpose: what it holds for a group is documented nowhere.
#[derive(Deserialize, Default)]
struct Flat {
    #[serde(default)]
    status: Scalar,
    #[serde(default, rename = "statusCode")]
    status_code: Scalar,
    #[serde(default)]
    code: Scalar,
    #[serde(default, rename = "transactionId")]
    transaction_id: Scalar,
    #[serde(default, rename = "msgId")]
    msg_id: Scalar,
    #[serde(default, rename = "messageId")]
    message_id: Scalar,
    #[serde(default, rename = "invalidMobile")]
    invalid_mobile: Scalars,
    #[serde(default)]
    description: Scalar,
    #[serde(default)]
    reason: Scalar,
    #[serde(default)]
    msg: Scalar,
}

#[derive(Deserialize)]
struct Wrapped {
    response: Flat,
}

impl Flat {
    fn parse(text: &str) -> Result<Self, Ambiguity> {
        let text = text.trim_start_matches('\u{feff}').trim();
        // A wrapped answer has no status outside, so it is only looked for where the flat one says nothing.
        let flat: Self = serde_json::from_str(text).map_err(|error| unreadable(&error))?;
        if flat.status.text().is_some() {
            return Ok(flat);
        }
        serde_json::from_str(text).map(|wrapped: Wrapped| wrapped.response).map_err(|error| unreadable(&error))
    }
    fn code(&self) -> Option<&str> {
        self.status_code.text().or_else(|| self.code.text())
    }
    fn cause(&self) -> Option<String> {
        [&self.description, &self.reason, &self.msg].into_iter().find_map(Scalar::text).map(str::to_owned)
    }
    fn message_id(&self) -> Option<ProviderRef> {
        self.message_id.id().or_else(|| self.msg_id.id())
    }
    /// Transaction id and message id. A WhatsApp answer that names one id names the message's, under either name.
    fn ids(&self, channel: Channel) -> (Option<ProviderRef>, Option<ProviderRef>) {
        match (channel, self.transaction_id.id(), self.message_id()) {
            (Channel::Whatsapp, id, None) => (None, id),
            (_, transaction, message) => (transaction, message),
        }
    }
    fn says(&self, word: &str) -> bool {
        self.status.text().is_some_and(|status| status.eq_ignore_ascii_case(word))
    }
}

fn unreadable(error: &serde_json::Error) -> Ambiguity {
    if error.is_eof() { Ambiguity::Truncated } else { Ambiguity::Unreadable }
}

/// The verdict on an answer.
pub(super) fn judge(reply: &Reply, judge: &Judge<'_>) -> Outcome {
    let unclear = match reply.status {
        500.. => Ambiguity::ServerError,
        // No route, so probably nothing was accepted; but whose page it is nobody knows.
        404 | ..200 | 300..400 => Ambiguity::UnexpectedStatus,
        200..300 => return in_the_body(reply, judge).unwrap_or_else(Outcome::Ambiguous),
        400..500 => match in_the_body(reply, judge) {
            Ok(refused) if !matches!(refused, Outcome::Accepted(_)) => return refused,
            Ok(_) | Err(_) => Ambiguity::UnexpectedStatus,
        },
    };
    Outcome::Ambiguous(unclear)
}

fn in_the_body(reply: &Reply, judge: &Judge<'_>) -> Result<Outcome, Ambiguity> {
    let flat = Flat::parse(&reply.text)?;
    let meaning = flat.code().map(|code| judge.codes.meaning(code));
    if flat.says("success") {
        // No code at all is bearable beside an id; a code that means something else is a contradiction.
        match meaning {
            None | Some(Some(Meaning::Accepted)) => accepted(&flat, judge).map(Outcome::Accepted),
            Some(_) => Err(Ambiguity::Unreadable),
        }
    } else if flat.says("error") && flat.ids(judge.channel) == (None, None) {
        let throttled = reply.status == 429;
        meaning.and_then(|meaning| refused(&flat, meaning, throttled, reply.retry_after)).ok_or(Ambiguity::Unreadable)
    } else {
        Err(Ambiguity::Unreadable)
    }
}

fn accepted(flat: &Flat, judge: &Judge<'_>) -> Result<Accepted, Ambiguity> {
    let invalid = invalid(flat, judge.sent)?;
    let (txn_id, message_id) = flat.ids(judge.channel);
    // A message id belongs to one recipient: beside a group it would be anyone's.
    let message_id = message_id.filter(|_| judge.sent.len() == 1);
    let complete = match judge.id_level {
        IdLevel::Txn => txn_id.is_some(),
        IdLevel::Message => txn_id.is_some() || message_id.is_some(),
        IdLevel::None => true,
    };
    // Where every recipient was refused nothing was submitted, and no id is due.
    if !complete && invalid.len() < judge.sent.len() {
        return Err(Ambiguity::MissingId);
    }
    Ok(Accepted { txn_id, message_id, invalid, code: flat.code().map(str::to_owned), cause: flat.cause() })
}

/// The recipients listed as invalid, each one of those sent.
fn invalid(flat: &Flat, sent: &[Recipient]) -> Result<Vec<Recipient>, Ambiguity> {
    let mut invalid = Vec::new();
    for entry in &flat.invalid_mobile.0 {
        let listed = recipient(entry).filter(|listed| sent.contains(listed)).ok_or(Ambiguity::SetMismatch)?;
        if !invalid.contains(&listed) {
            invalid.push(listed);
        }
    }
    Ok(invalid)
}

/// `None` when the code is one of an acceptance: an error that says so contradicts itself.
fn refused(flat: &Flat, meaning: Option<Meaning>, throttled: bool, retry_after: Option<Duration>) -> Option<Outcome> {
    let refusal = Refusal { code: flat.code().map(str::to_owned), cause: flat.cause(), unlisted: meaning.is_none() };
    Some(match meaning {
        Some(Meaning::Accepted) => return None,
        Some(Meaning::Throttled) => Outcome::Throttled { retry_after, refusal },
        Some(Meaning::AccountRefused | Meaning::MessageRefused) | None if throttled => {
            Outcome::Throttled { retry_after, refusal }
        }
        Some(Meaning::AccountRefused) => Outcome::AccountRefused(refusal),
        Some(Meaning::MessageRefused) | None => Outcome::Rejected(refusal),
    })
}
