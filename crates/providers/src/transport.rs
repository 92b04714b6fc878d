//! What a transport error proves, in one place for all dialects. It decides between "no byte left" and "may have left" by
//! what became of the body, and refuses to conclude anything from the kind of an error: the same kinds occur on both sides.
//!
//! `is_connect()` together with a body that was handed over has never been observed; if it ever is, the body wins, since a
//! wrong "ambiguous" costs a look and a wrong "not sent" costs a second message.

use std::error::Error;
use std::io;

use sendonce_core::domain::outcome::{Ambiguity, NotSent, Outcome};

use crate::body::Fate;

/// What a call that brought no whole answer proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// No byte of the body left, and none will.
    NotSent(NotSent),
    /// Some may have.
    Ambiguous(Ambiguity),
}

impl From<Unanswered> for Outcome {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::NotSent(reason) => Self::NotSent(reason),
            Unanswered::Ambiguous(reason) => Self::Ambiguous(reason),
        }
    }
}

/// The verdict on a call that brought no response head.
pub(crate) fn without_answer(error: &reqwest::Error, fate: Fate) -> Unanswered {
    match fate {
        Fate::TooLate => Unanswered::NotSent(NotSent::BudgetOver),
        Fate::Kept => Unanswered::NotSent(why_not_sent(error)),
        Fate::Handed => Unanswered::Ambiguous(why_unclear(error, Ambiguity::Reset)),
    }
}

/// The verdict on a response whose head was read and whose body was not.
pub(crate) fn cut_answer(error: &reqwest::Error) -> Unanswered {
    Unanswered::Ambiguous(why_unclear(error, Ambiguity::Truncated))
}

/// The reason only labels metrics and logs: every one of them leads to the same step.
fn why_not_sent(error: &reqwest::Error) -> NotSent {
    if error.is_builder() {
        NotSent::Request
    } else if error.is_dns() {
        NotSent::Dns
    } else if error.is_timeout() {
        NotSent::ConnectTimeout
    } else if !error.is_connect() {
        NotSent::Connection
    } else if causes(error).refused {
        NotSent::Refused
    } else if causes(error).tls {
        NotSent::Tls
    } else {
        NotSent::Connection
    }
}

fn why_unclear(error: &reqwest::Error, closed: Ambiguity) -> Ambiguity {
    if error.is_timeout() {
        Ambiguity::Timeout
    } else if causes(error).garbage {
        Ambiguity::Unreadable
    } else {
        closed
    }
}

#[derive(Default)]
struct Causes {
    refused: bool,
    tls: bool,
    garbage: bool,
}

/// What the causes of an error say.
fn causes(error: &reqwest::Error) -> Causes {
    let mut found = Causes::default();
    let mut next = error.source();
    while let Some(cause) = next {
        found.note(cause);
        next = cause.source();
    }
    found
}

impl Causes {
    fn note(&mut self, cause: &(dyn Error + 'static)) {
        self.garbage |= cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
        self.tls |= cause.is::<rustls::Error>();
        if let Some(io) = cause.downcast_ref::<io::Error>() {
            self.refused |= io.kind() == io::ErrorKind::ConnectionRefused;
            // A peer that hangs up in a handshake surfaces as this kind, and before any byte nothing else does.
            self.tls |= io.kind() == io::ErrorKind::UnexpectedEof;
            // `source()` of an I/O error skips the error it wraps.
            if let Some(wrapped) = io.get_ref() {
                self.note(wrapped);
            }
        }
    }
}
