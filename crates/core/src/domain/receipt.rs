//! What a message's receipts say together. The result depends on the set of receipts only: no order, no repetition and no
//! clock changes it, so receipts may be stored first and reduced at any time (design, section 8).

use crate::domain::message::words;
use crate::domain::state::Delivery;

words!(
    /// What one receipt says. Ordered by rank: a higher one says more about where the message got.
    ReceiptKind, "receipt kind", {
        Submitted => "submitted", Expired => "expired", Failed => "failed", Delivered => "delivered", Read => "read",
    }
);

impl ReceiptKind {
    /// How this receipt ends a message; `None` while it is still on its way. Read is delivered, and more.
    #[must_use]
    pub const fn final_delivery(self) -> Option<Delivery> {
        match self {
            Self::Submitted => None,
            Self::Expired => Some(Delivery::Expired),
            Self::Failed => Some(Delivery::Failed),
            Self::Delivered | Self::Read => Some(Delivery::Delivered),
        }
    }
}

/// How a receipt ends a message, see [`ReceiptKind::final_delivery`].
#[must_use]
pub const fn final_delivery(kind: ReceiptKind) -> Option<Delivery> {
    kind.final_delivery()
}

/// All receipts of one message, reduced. The default is "none yet".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reduced {
    /// The highest-ranking kind seen (column `receipt_state`). Not the message's state, which the first final receipt sets.
    pub state: Option<ReceiptKind>,
    /// Two final receipts disagree, say failed and delivered (column `receipt_conflict`). Never cleared.
    pub conflict: bool,
}

impl Reduced {
    /// With one more receipt. Commutative and idempotent over receipts.
    ///
    /// Without a conflict all finals seen agree, and the highest kind is one of them (a final outranks what is not), so
    /// comparing against `state` alone sees every disagreement.
    #[must_use]
    pub fn join(self, kind: ReceiptKind) -> Self {
        let before = self.state.and_then(ReceiptKind::final_delivery);
        let disagree = match (before, kind.final_delivery()) {
            (Some(before), Some(now)) => before != now,
            (None, _) | (_, None) => false,
        };
        Self { state: self.state.max(Some(kind)), conflict: self.conflict || disagree }
    }
}

impl FromIterator<ReceiptKind> for Reduced {
    fn from_iter<I: IntoIterator<Item = ReceiptKind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::default(), Self::join)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rule of the design, word for word, over the set.
    fn by_definition(kinds: &[ReceiptKind]) -> Reduced {
        use ReceiptKind::{Delivered, Expired, Failed, Read, Submitted};
        let saw = |kind| kinds.contains(&kind);
        let state = [Read, Delivered, Failed, Expired, Submitted].into_iter().find(|&kind| saw(kind));
        let distinct = [saw(Delivered) || saw(Read), saw(Failed), saw(Expired)];
        Reduced { state, conflict: distinct.iter().filter(|&&seen| seen).count() > 1 }
    }

    /// Every sequence of up to six receipts: so every order and every repetition of each.
    #[test]
    fn i17_every_order_and_repetition_gives_the_set_s_result() {
        let mut layer: Vec<Vec<ReceiptKind>> = vec![vec![]];
        for _ in 0..=6 {
            for kinds in &layer {
                assert_eq!(kinds.iter().copied().collect::<Reduced>(), by_definition(kinds), "{kinds:?}");
            }
            layer = layer
                .iter()
                .flat_map(|kinds| ReceiptKind::ALL.iter().map(|&kind| [kinds.as_slice(), &[kind]].concat()))
                .collect();
        }
    }

    #[test]
    fn receipts_end_a_message_as_the_design_says() {
        let ends: Vec<_> = ReceiptKind::ALL.iter().map(|&kind| final_delivery(kind)).collect();
        let delivered = Some(Delivery::Delivered);
        assert_eq!(ends, [None, Some(Delivery::Expired), Some(Delivery::Failed), delivered, delivered]);
        let words: Vec<_> = ReceiptKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(words, ["submitted", "expired", "failed", "delivered", "read"]);
    }

    #[test]
    fn a_read_after_delivered_is_no_conflict_and_a_failure_after_it_is() {
        use ReceiptKind::{Delivered, Failed, Read, Submitted};
        let read = Reduced::from_iter([Submitted, Delivered, Read, Submitted]);
        assert_eq!(read, Reduced { state: Some(Read), conflict: false });
        assert_eq!(read.join(Failed), Reduced { state: Some(Read), conflict: true });
        assert_eq!(read.join(Failed).join(Read), Reduced { state: Some(Read), conflict: true });
    }

    fn kinds() -> impl Strategy<Value = Vec<ReceiptKind>> {
        proptest::collection::vec(proptest::sample::select(ReceiptKind::ALL), 0..6)
    }

    proptest! {
        #[test]
        fn i17_shuffled_and_repeated_receipts_reduce_alike(
            (kinds, shuffled) in kinds().prop_flat_map(|kinds| {
                // Each receipt once, some again, all in another order.
                let repeats = proptest::sample::subsequence(kinds.clone(), 0..=kinds.len());
                let all = (Just(kinds.clone()), repeats).prop_map(|(a, b)| [a, b].concat());
                (Just(kinds), all.prop_shuffle())
            })
        ) {
            prop_assert_eq!(kinds.into_iter().collect::<Reduced>(), shuffled.into_iter().collect::<Reduced>());
        }
    }
}
