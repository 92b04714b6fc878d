//! How long to wait before the next try. Randomness comes in as an argument; nothing here decides *whether* to try again:
//! that takes proof that nothing was sent (`domain::outcome`).

use std::time::Duration;

/// The longest time between two copies of a job (design, section 7).
const GRACE_MAX: Duration = Duration::from_secs(3600);

/// No wait is shorter: a wait of zero would spin.
const SHORTEST: Duration = Duration::from_millis(1);

/// Exponential backoff with full jitter and a maximum (design, section 7; O6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Upper bound of the first wait.
    pub min: Duration,
    /// Upper bound of every wait.
    pub max: Duration,
}

impl Backoff {
    /// The longest wait after try number `attempt` (1-based; 0 counts as 1): `min`, doubled for each try before, up to `max`.
    #[must_use]
    pub fn ceiling(&self, attempt: u32) -> Duration {
        doubled(self.min, attempt.saturating_sub(1)).min(self.max).max(SHORTEST)
    }

    /// The wait after try number `attempt` (1-based): evenly spread over (0, [`ceiling`](Self::ceiling)], so that what
    /// failed together does not come back together. `jitter` is a draw from [0, 1); one outside it is moved inside.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let share = if jitter.is_finite() { 1.0 - jitter.clamp(0.0, 1.0) } else { 1.0 };
        self.ceiling(attempt).mul_f64(share).max(SHORTEST)
    }
}

/// How long a job's `wake_at` is moved on at its `publishes`-th publication (1-based; 0 counts as 1): `grace`, doubling
/// with every copy up to an hour, so that a long backlog is not flooded with copies. Never below `grace`.
#[must_use]
pub fn grace_after(grace: Duration, publishes: u32) -> Duration {
    doubled(grace, publishes.saturating_sub(1)).min(GRACE_MAX.max(grace))
}

/// `base × 2^times`, or as much as fits.
fn doubled(base: Duration, times: u32) -> Duration {
    base.saturating_mul(1u32.checked_shl(times).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEFAULT: Backoff = Backoff { min: Duration::from_secs(2), max: Duration::from_secs(300) };

    #[test]
    fn o6_waits_double_up_to_the_maximum() {
        let secs: Vec<u64> = (0..=10).map(|attempt| DEFAULT.delay(attempt, 0.0).as_secs()).collect();
        assert_eq!(secs, [2, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        for attempt in [32, 33, 34, 64, 65, u32::MAX] {
            assert_eq!(DEFAULT.ceiling(attempt), DEFAULT.max, "{attempt}");
        }
    }

    #[test]
    fn o6_jitter_is_full() {
        assert_eq!(DEFAULT.delay(3, 0.5), Duration::from_secs(4));
        assert_eq!(DEFAULT.delay(3, 0.75), Duration::from_secs(2));
        assert!(DEFAULT.delay(8, 0.999) < Duration::from_secs(1));
        let draws = 10_000;
        let mean = (0..draws).map(|i| DEFAULT.delay(5, f64::from(i) / f64::from(draws)).as_secs_f64()).sum::<f64>()
            / f64::from(draws);
        assert!((mean - 16.0).abs() < 0.1, "{mean}");
    }

    #[test]
    fn o6_job_copies_thin_out_to_one_an_hour() {
        let grace = Duration::from_secs(60);
        let minutes: Vec<u64> = (0..=8).map(|n| grace_after(grace, n).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(grace_after(grace, u32::MAX), GRACE_MAX);
        let long = Duration::from_secs(7200);
        assert_eq!(grace_after(long, 5), long);
    }

    proptest! {
        #[test]
        fn o6_a_wait_is_above_zero_and_within_the_maximum_whatever_comes(
            min in 0u64..10_000_000, max in 0u64..10_000_000, attempt: u32, jitter in proptest::num::f64::ANY,
        ) {
            let backoff = Backoff { min: Duration::from_millis(min), max: Duration::from_millis(max) };
            let delay = backoff.delay(attempt, jitter);
            prop_assert!(delay > Duration::ZERO);
            prop_assert!(delay <= backoff.max.max(SHORTEST));
        }

        #[test]
        fn o6_job_copies_never_come_sooner_than_before(grace in 0u64..8_000, n in 0u32..100) {
            let grace = Duration::from_secs(grace);
            prop_assert!(grace_after(grace, n) >= grace);
            prop_assert!(grace_after(grace, n + 1) >= grace_after(grace, n));
            prop_assert!(grace_after(grace, n) <= GRACE_MAX.max(grace));
        }
    }
}
