//! What Redis says about a key, and what that is worth: one answer in five means anything, and it only ever means "this
//! was decided". Pure: no connection, no clock.

use crate::domain::key::{BusinessKey, InputHash};

/// A message at the gate: its key, and the fingerprint of what it was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub key: BusinessKey,
    pub input: InputHash,
}

impl Mark {
    /// The value while somebody works on the key.
    pub(super) fn in_flight(&self) -> String {
        format!("{IN_FLIGHT}{}", self.input)
    }

    /// The value once the key's row is durable.
    pub(super) fn settled(&self) -> String {
        format!("{SETTLED}{}", self.input)
    }
}

const IN_FLIGHT: &str = "in-flight:";
const SETTLED: &str = "settled:";

/// What the value under a message's key says. Only `Settled` spares anybody a question to PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hint {
    /// Nobody was here before.
    First,
    /// Somebody works on it, or died over it.
    InFlight,
    /// A row made from the same inputs is durable.
    Settled,
    /// A row made from other inputs is durable: a conflict, which PostgreSQL has to name.
    OtherInputs,
    /// No value of ours.
    Unreadable,
}

impl Hint {
    pub(super) const ALL: [Self; 5] = [Self::First, Self::InFlight, Self::Settled, Self::OtherInputs, Self::Unreadable];

    /// Reads the value that `SET … NX GET` found.
    pub(super) fn of(found: Option<&str>, mark: &Mark) -> Self {
        let Some(value) = found else { return Self::First };
        if value.starts_with(IN_FLIGHT) {
            return Self::InFlight;
        }
        match value.strip_prefix(SETTLED).map(str::parse::<InputHash>) {
            Some(Ok(input)) if input == mark.input => Self::Settled,
            Some(Ok(_)) => Self::OtherInputs,
            Some(Err(_)) | None => Self::Unreadable,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::InFlight => "in_flight",
            Self::Settled => "settled",
            Self::OtherInputs => "other_inputs",
            Self::Unreadable => "unreadable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(input: u8) -> Mark {
        let key = BusinessKey::from_bytes(&[7; 32]).unwrap();
        Mark { key, input: InputHash::from_bytes(&[input; 32]).unwrap() }
    }

    #[test]
    fn f10_only_settled_with_the_same_inputs_means_anything() {
        let (mine, other) = (mark(1), mark(2));
        let table = [
            (None, Hint::First),
            (Some(mine.in_flight()), Hint::InFlight),
            (Some(other.in_flight()), Hint::InFlight),
            (Some(mine.settled()), Hint::Settled),
            (Some(other.settled()), Hint::OtherInputs),
            (Some(String::new()), Hint::Unreadable),
            (Some("settled".to_owned()), Hint::Unreadable),
            (Some("settled:".to_owned()), Hint::Unreadable),
            (Some(format!("settled:{}", &mine.input.to_string()[..63])), Hint::Unreadable),
            (Some(format!("{} ", mine.settled())), Hint::Unreadable),
            (Some(mine.input.to_string()), Hint::Unreadable),
        ];
        for (found, hint) in table {
            assert_eq!(Hint::of(found.as_deref(), &mine), hint, "{found:?}");
        }
    }
}
