//! The state machine of a message. `apply` is the only place that decides where a row goes next; the database trigger
//! lists the same edges and a test compares the two. `unknown → pending` does not exist: an ambiguous outcome is never
//! resolved by sending again.

use crate::domain::message::words;

words!(
    /// Where a message is.
    State, "state", {
        Pending => "pending", Claimed => "claimed", Submitted => "submitted", Delivered => "delivered", Failed => "failed",
        Expired => "expired", Rejected => "rejected", Unknown => "unknown", Cancelled => "cancelled",
    }
);

impl State {
    /// Nothing leaves a final state.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Claimed | Self::Submitted | Self::Unknown => false,
            Self::Delivered | Self::Failed | Self::Expired | Self::Rejected | Self::Cancelled => true,
        }
    }
}

/// What happened to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A sender takes it, about to open the connection.
    Claim,
    /// Its time to live passed before any claim.
    TimeToLivePassed,
    /// Cancelled, suppressed or withdrawn before any claim.
    Cancel,
    /// The attempt's own worker proves that no byte left.
    NotSent,
    /// The attempt's own worker read an acceptance.
    Accepted,
    /// The attempt's own worker read a refusal of this message.
    Refused,
    /// The attempt's own worker got no clear answer.
    Ambiguous,
    /// The lease of the claim ran out.
    LeaseEnded,
    /// The first final receipt.
    Receipt(Delivery),
    /// No receipt came within the validity.
    ValidityPassed,
    /// The provider's report holds exactly one record for it, and the record fits no other row.
    Matched,
    /// The report proves that nothing was submitted.
    NotFound,
}

/// How a final receipt ends a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Delivered,
    Failed,
    Expired,
}

/// What `apply` decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The row moves.
    Move(State),
    /// The event is known already or comes too late to matter; the row stays.
    Stay,
}

/// An event that has no meaning in this state: a bug of ours or an anomaly to look at, never a reason to guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {state} message cannot take {event:?}")]
pub struct Illegal {
    pub state: State,
    pub event: Event,
}

/// Where a message in `state` goes when `event` happens.
///
/// # Errors
/// `Illegal` when the event has no meaning there.
pub fn apply(state: State, event: Event) -> Result<Step, Illegal> {
    use Step::{Move, Stay};
    let step = match (state, event) {
        (State::Pending, Event::Claim) => Move(State::Claimed),
        (State::Pending, Event::TimeToLivePassed) => Move(State::Expired),
        (State::Pending, Event::Cancel) => Move(State::Cancelled),

        (State::Claimed, Event::NotSent) => Move(State::Pending),
        (State::Claimed, Event::Accepted) => Move(State::Submitted),
        (State::Claimed, Event::Refused) => Move(State::Rejected),
        (State::Claimed, Event::Ambiguous | Event::LeaseEnded) => Move(State::Unknown),

        // The lease ran out first; the worker's own late answer is the best evidence there is.
        (State::Unknown, Event::Accepted | Event::Matched) => Move(State::Submitted),
        (State::Unknown, Event::Refused | Event::NotSent | Event::NotFound) => Move(State::Failed),
        (State::Unknown, Event::Ambiguous) => Stay,

        (State::Submitted, Event::Receipt(Delivery::Delivered)) => Move(State::Delivered),
        (State::Submitted, Event::Receipt(Delivery::Failed)) => Move(State::Failed),
        (State::Submitted, Event::Receipt(Delivery::Expired) | Event::ValidityPassed) => Move(State::Expired),

        // A cancel or an expiry that comes after the claim changes nothing; a repeated record or receipt neither.
        (
            State::Claimed
            | State::Submitted
            | State::Unknown
            | State::Delivered
            | State::Failed
            | State::Expired
            | State::Rejected
            | State::Cancelled,
            Event::Cancel | Event::TimeToLivePassed,
        )
        | (State::Submitted, Event::Accepted)
        | (State::Rejected, Event::Refused)
        | (State::Delivered | State::Failed | State::Expired, Event::Accepted | Event::Receipt(_)) => Stay,

        (
            State::Pending,
            Event::NotSent
            | Event::Accepted
            | Event::Refused
            | Event::Ambiguous
            | Event::LeaseEnded
            | Event::Receipt(_)
            | Event::ValidityPassed
            | Event::Matched
            | Event::NotFound,
        )
        | (
            State::Claimed,
            Event::Claim | Event::Receipt(_) | Event::ValidityPassed | Event::Matched | Event::NotFound,
        )
        | (State::Unknown, Event::Claim | Event::LeaseEnded | Event::Receipt(_) | Event::ValidityPassed)
        | (
            State::Submitted,
            Event::Claim
            | Event::NotSent
            | Event::Refused
            | Event::Ambiguous
            | Event::LeaseEnded
            | Event::Matched
            | Event::NotFound,
        )
        | (
            State::Delivered | State::Failed | State::Expired,
            Event::Claim
            | Event::NotSent
            | Event::Refused
            | Event::Ambiguous
            | Event::LeaseEnded
            | Event::ValidityPassed
            | Event::Matched
            | Event::NotFound,
        )
        | (
            State::Rejected,
            Event::Claim
            | Event::NotSent
            | Event::Accepted
            | Event::Ambiguous
            | Event::LeaseEnded
            | Event::Receipt(_)
            | Event::ValidityPassed
            | Event::Matched
            | Event::NotFound,
        )
        | (
            State::Cancelled,
            Event::Claim
            | Event::NotSent
            | Event::Accepted
            | Event::Refused
            | Event::Ambiguous
            | Event::LeaseEnded
            | Event::Receipt(_)
            | Event::ValidityPassed
            | Event::Matched
            | Event::NotFound,
        ) => return Err(Illegal { state, event }),
    };
    Ok(step)
}

/// Every event, for tables and tests.
pub const EVENTS: &[Event] = &[
    Event::Claim,
    Event::TimeToLivePassed,
    Event::Cancel,
    Event::NotSent,
    Event::Accepted,
    Event::Refused,
    Event::Ambiguous,
    Event::LeaseEnded,
    Event::Receipt(Delivery::Delivered),
    Event::Receipt(Delivery::Failed),
    Event::Receipt(Delivery::Expired),
    Event::ValidityPassed,
    Event::Matched,
    Event::NotFound,
];

/// Whether some event leads from one state to the other: the edges that the database trigger must list, and no others.
#[must_use]
pub fn is_edge(from: State, to: State) -> bool {
    EVENTS.iter().any(|&event| apply(from, event) == Ok(Step::Move(to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T9: the table of the design, edge by edge; everything else is refused.
    #[test]
    fn t9_the_edges_are_those_of_the_design_and_no_others() {
        use State::{Cancelled, Claimed, Delivered, Expired, Failed, Pending, Rejected, Submitted, Unknown};
        let edges = [
            (Pending, Claimed),
            (Pending, Expired),
            (Pending, Cancelled),
            (Claimed, Pending),
            (Claimed, Submitted),
            (Claimed, Rejected),
            (Claimed, Unknown),
            (Submitted, Delivered),
            (Submitted, Failed),
            (Submitted, Expired),
            (Unknown, Submitted),
            (Unknown, Failed),
        ];
        for &from in State::ALL {
            for &to in State::ALL {
                assert_eq!(is_edge(from, to), edges.contains(&(from, to)), "{from} -> {to}");
            }
        }
    }

    #[test]
    fn t9_nothing_leaves_a_final_state_and_unknown_never_returns_to_pending() {
        for &event in EVENTS {
            for &state in State::ALL {
                let step = apply(state, event);
                if state.is_final() {
                    assert!(!matches!(step, Ok(Step::Move(_))), "{state} {event:?}");
                }
                if state == State::Unknown {
                    assert!(!matches!(step, Ok(Step::Move(State::Pending | State::Claimed))), "{event:?}");
                }
            }
        }
    }
}
