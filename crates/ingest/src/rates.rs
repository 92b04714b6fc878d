//! The rate card as last read, with the database's time it was read at. In between time is counted on the boot clock, so
//! that no wall clock of this machine decides anything.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sendonce_core::domain::money::RateCard;
use sendonce_core::service::Context;
use sendonce_core::store::StoreError;

#[derive(Debug)]
pub(crate) struct Rates {
    pub(crate) card: RateCard,
    read_at: DateTime<Utc>,
    boot: Duration,
}

impl Rates {
    /// Reads the card; holds while the database is away.
    pub(crate) async fn read(ctx: &Context, beat: &'static str) -> Result<Self, StoreError> {
        let card = ctx.hold(beat, || ctx.store.rate_card()).await?;
        let read_at = ctx.hold(beat, || ctx.store.clock_now()).await?;
        Ok(Self { card, read_at, boot: ctx.clock.boot() })
    }

    pub(crate) fn are_stale(&self, ctx: &Context) -> bool {
        self.age(ctx) >= ctx.config.ingest.rates_refresh
    }

    /// The database's time, now.
    pub(crate) fn now(&self, ctx: &Context) -> DateTime<Utc> {
        let age = TimeDelta::from_std(self.age(ctx)).unwrap_or_default();
        self.read_at.checked_add_signed(age).unwrap_or(self.read_at)
    }

    fn age(&self, ctx: &Context) -> Duration {
        ctx.clock.boot().saturating_sub(self.boot)
    }
}
