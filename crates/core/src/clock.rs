//! The seams for time and randomness. Time inside statements is the database's `clock_now()`; here is only what a process
//! measures on itself: the boot clock, which goes on while a process is stopped or a machine is suspended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use nix::time::{ClockId, clock_gettime};
use uuid::Uuid;

/// Where a process reads time from; replaced in tests.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since boot, suspended time counted in (CLOCK_BOOTTIME).
    fn boot(&self) -> Duration;
    /// Wall clock, for stamps that leave the process and for nothing that decides.
    fn wall(&self) -> DateTime<Utc>;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> Duration {
        // CLOCK_BOOTTIME exists on every Linux since 2.6.39; were it missing, time zero makes every budget count as over.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::MAX, Duration::from)
    }
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn wall(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

/// A point on the boot clock after which a request may no longer be handed over.
#[derive(Debug, Clone)]
pub struct Deadline {
    clock: Arc<dyn Clock>,
    at: Duration,
}

impl Deadline {
    /// `budget` from now.
    #[must_use]
    pub fn after(clock: Arc<dyn Clock>, budget: Duration) -> Self {
        let at = clock.boot().saturating_add(budget);
        Self { clock, at }
    }
    /// Whether the budget is used up.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.clock.boot() >= self.at
    }
    /// What is left of it.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.at.saturating_sub(self.clock.boot())
    }
}

/// Where a process draws randomness from: attempt keys, lease tokens, jitter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entropy;

impl Entropy {
    /// A random UUID (version 4).
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn uuid(self) -> Uuid {
        Uuid::new_v4()
    }
    /// A random number in [0, 1).
    #[must_use]
    pub fn fraction(self) -> f64 {
        let bits = (self.uuid().as_u128() >> 75) as u64; // 53 bits: what an f64 holds exactly
        bits as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_stay_in_range_and_differ() {
        let drawn: Vec<f64> = (0..1000).map(|_| Entropy.fraction()).collect();
        assert!(drawn.iter().all(|f| (0.0..1.0).contains(f)));
        let mean = drawn.iter().sum::<f64>() / 1000.0;
        assert!((0.4..0.6).contains(&mean), "{mean}");
    }
}
