//! Which deliveries may be acked. Acks go up to a watermark of decided tags, one for many; a tag decided beyond a stuck
//! one is acked singly after a while.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long a decided tag waits for the ones before it.
pub(super) const STRAGGLER: Duration = Duration::from_secs(1);

/// The unacked tags of one channel.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// Tag to the time it was decided.
    open: BTreeMap<u64, Option<Instant>>,
    /// The lowest tag that was given back.
    barrier: Option<u64>,
}

impl Acks {
    pub(super) fn deliver(&mut self, tag: u64) {
        self.open.insert(tag, None);
    }

    pub(super) fn decide(&mut self, tag: u64, now: Instant) {
        if let Some(decided) = self.open.get_mut(&tag) {
            *decided = Some(now);
        }
    }

    /// Neither acked nor waited for. Acks of later tags are single from here on, or they would cover this one.
    pub(super) fn forget(&mut self, tag: u64) {
        if self.open.remove(&tag).is_some() {
            self.barrier = Some(self.barrier.map_or(tag, |lowest| lowest.min(tag)));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The highest tag up to which everything is decided; those are forgotten.
    pub(super) fn take_watermark(&mut self) -> Option<u64> {
        let first_open = self.open.iter().find(|(_, decided)| decided.is_none()).map(|(tag, _)| *tag);
        let first_open = first_open.into_iter().chain(self.barrier).min();
        let rest = first_open.map_or_else(BTreeMap::new, |tag| self.open.split_off(&tag));
        let done = std::mem::replace(&mut self.open, rest);
        done.keys().next_back().copied()
    }

    /// Tags that have been decided for a while behind a stuck one; they are forgotten.
    pub(super) fn take_stragglers(&mut self, now: Instant) -> Vec<u64> {
        let patience = if self.barrier.is_some() { Duration::ZERO } else { STRAGGLER };
        let is_straggler = |decided: &Option<Instant>| decided.is_some_and(|at| now.duration_since(at) >= patience);
        let tags: Vec<u64> = self.open.iter().filter(|(_, d)| is_straggler(d)).map(|(tag, _)| *tag).collect();
        for tag in &tags {
            self.open.remove(tag);
        }
        tags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i5_the_watermark_never_passes_an_undecided_tag() {
        let now = Instant::now();
        let mut acks = Acks::default();
        for tag in 1..=5 {
            acks.deliver(tag);
        }
        for tag in [1, 2, 4] {
            acks.decide(tag, now);
        }
        assert_eq!(acks.take_watermark(), Some(2));
        assert_eq!(acks.take_watermark(), None);
        acks.decide(3, now);
        assert_eq!(acks.take_watermark(), Some(4));
        acks.decide(5, now);
        assert_eq!(acks.take_watermark(), Some(5));
        assert!(acks.is_empty());
    }

    #[test]
    fn a_delivery_given_back_is_never_covered_by_a_later_ack() {
        let now = Instant::now();
        let mut acks = Acks::default();
        for tag in 1..=3 {
            acks.deliver(tag);
        }
        acks.forget(2);
        acks.decide(3, now);
        acks.decide(1, now);
        assert_eq!(acks.take_watermark(), Some(1));
        assert_eq!(acks.take_stragglers(now), vec![3]);
        assert!(acks.is_empty());
    }

    #[test]
    fn a_tag_decided_beyond_a_stuck_one_is_acked_alone_after_a_while() {
        let now = Instant::now();
        let mut acks = Acks::default();
        acks.deliver(1);
        acks.deliver(2);
        acks.decide(2, now);
        assert_eq!(acks.take_stragglers(now), Vec::<u64>::new());
        assert_eq!(acks.take_stragglers(now + STRAGGLER), vec![2]);
        acks.decide(1, now);
        assert_eq!(acks.take_watermark(), Some(1));
    }
}
