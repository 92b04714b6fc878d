//! What became of one request. The set is closed, and `Ambiguous` is a type that nothing can retry: only the caller that
//! holds proof that no byte left says `NotSent`.

use std::time::Duration;

use crate::domain::message::{ProviderRef, Recipient, words};

/// The verdict on one request (single or grouped).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider took it: billable from here, save for the recipients it listed as invalid.
    Accepted(Accepted),
    /// The provider refused this message: not billed, not tried again.
    Rejected(Refusal),
    /// A listed "slow down" answer: nothing sent, attempt not charged, the whole lane waits.
    Throttled { retry_after: Option<Duration>, refusal: Refusal },
    /// A listed refusal of the account (credentials, balance, header): nothing sent, attempt not charged, the lane holds.
    AccountRefused(Refusal),
    /// Proof that no byte of the body left this process.
    NotSent(NotSent),
    /// A request may have left and no clear answer came back. Never sent again.
    Ambiguous(Ambiguity),
}

/// An acceptance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accepted {
    /// One transaction id for the whole request; `None` where the provider issues none.
    pub txn_id: Option<ProviderRef>,
    /// The recipient's own message id, where the answer to a single send carries one.
    pub message_id: Option<ProviderRef>,
    /// Recipients of this request that the provider refused; a subset of those sent.
    pub invalid: Vec<Recipient>,
    /// The provider's code and words, verbatim.
    pub code: Option<String>,
    pub cause: Option<String>,
}

/// A refusal in the provider's words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal {
    pub code: Option<String>,
    pub cause: Option<String>,
    /// The code is on no list of ours: a person should look, and no fallback follows.
    pub unlisted: bool,
}

words!(
    /// Why no byte of a request left.
    NotSent, "reason for not sending", {
        Dns => "dns", Refused => "connect_refused", ConnectTimeout => "connect_timeout", Tls => "tls",
        Connection => "connection_closed_unused", Request => "request_invalid", BudgetOver => "budget_over", Drain => "drain",
    }
);

impl NotSent {
    /// Whether it counts against the attempts a message may take: our own budget and our own drain do not.
    #[must_use]
    pub const fn is_charged(self) -> bool {
        match self {
            Self::BudgetOver | Self::Drain => false,
            Self::Dns | Self::Refused | Self::ConnectTimeout | Self::Tls | Self::Connection | Self::Request => true,
        }
    }
}

words!(
    /// Why an answer is not clear.
    Ambiguity, "ambiguity", {
        Timeout => "timeout", Reset => "reset", Truncated => "truncated", Unreadable => "unreadable",
        ServerError => "server_error", UnexpectedStatus => "unexpected_status", MissingId => "missing_id",
        SetMismatch => "set_mismatch", LeaseEnded => "lease_ended",
    }
);

words!(
    /// The verdict's name, as stored with the submission and counted.
    Verdict, "verdict", {
        Accepted => "accepted", Rejected => "rejected", Throttled => "throttled", AccountRefused => "account_refused",
        NotSent => "not_sent", Ambiguous => "ambiguous", LeaseEnded => "lease_ended",
    }
);

impl Outcome {
    /// The verdict's name.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Accepted(_) => Verdict::Accepted,
            Self::Rejected(_) => Verdict::Rejected,
            Self::Throttled { .. } => Verdict::Throttled,
            Self::AccountRefused(_) => Verdict::AccountRefused,
            Self::NotSent(_) => Verdict::NotSent,
            Self::Ambiguous(_) => Verdict::Ambiguous,
        }
    }
}
