//! The first half: deliveries into planned batches. Parses, plans against configuration and rates, and cuts a gathered
//! batch where its rows would fill a transaction, so that memory is bounded whatever the events are.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sendonce_core::broker::envelope::TRACE_PARENT;
use sendonce_core::broker::{Batches, Delivery, IDLE_BEAT};
use sendonce_core::domain::event::{CancelEvent, Event, Rejection, SendEvent, Surroundings, parse};
use sendonce_core::service::Context;
use sendonce_core::store::{ParkReason, StoreError, ToPark};
use sendonce_core::telemetry::traces;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::aside::{Aside, Original, to_park};
use crate::plan::{Draft, Plan, Rules, plan};
use crate::rates::Rates;

/// How long a loop of this worker may stay silent.
pub(crate) const BEAT: Duration = Duration::from_secs(60);

/// Events with all that follows from them, ready to be made durable.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) events: Vec<(Delivery, Original)>,
    /// In the order of `events`, with the position of their event.
    pub(crate) drafts: Vec<(usize, Draft)>,
    pub(crate) parked: Vec<ToPark>,
    pub(crate) cancels: Vec<CancelEvent>,
}

#[derive(Debug)]
pub(crate) struct Intake {
    ctx: Context,
    beat: &'static str,
    rates: Option<Rates>,
}

impl Intake {
    pub(crate) fn new(ctx: Context, beat: &'static str) -> Self {
        Self { ctx, beat, rates: None }
    }

    /// Plans batches until the consumers end.
    pub(crate) async fn run(mut self, mut gathered: Batches, planned: mpsc::Sender<Batch>) -> anyhow::Result<()> {
        while let Some(deliveries) = self.alive(gathered.next()).await {
            let mut rates_are_fresh = false;
            let mut batch = Batch::default();
            for delivery in deliveries {
                self.take(&mut batch, delivery, &mut rates_are_fresh).await?;
                if batch.drafts.len() >= self.ctx.config.ingest.transaction_rows
                    && !self.hand_over(&planned, std::mem::take(&mut batch)).await
                {
                    return Ok(());
                }
            }
            if !batch.events.is_empty() && !self.hand_over(&planned, batch).await {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A batch of one.
    pub(crate) async fn single(&mut self, delivery: Delivery) -> Result<Batch, StoreError> {
        let mut batch = Batch::default();
        self.take(&mut batch, delivery, &mut false).await?;
        Ok(batch)
    }

    /// False when the commit is gone; its own error ends the process, and what is in hand here comes back.
    async fn hand_over(&self, planned: &mpsc::Sender<Batch>, batch: Batch) -> bool {
        let sent = self.alive(planned.send(batch)).await.is_ok();
        if !sent {
            self.ctx.tasks.draining().cancelled().await;
        }
        sent
    }

    /// Waits for a channel, reporting life meanwhile.
    async fn alive<T>(&self, wait: impl Future<Output = T>) -> T {
        let mut wait = std::pin::pin!(wait);
        loop {
            self.ctx.health.beat(self.beat, BEAT);
            tokio::select! {
                done = &mut wait => return done,
                () = sleep(IDLE_BEAT) => {}
            }
        }
    }

    async fn take(&mut self, batch: &mut Batch, mut delivery: Delivery, fresh: &mut bool) -> Result<(), StoreError> {
        let now = self.now().await?;
        let mut original = Original::of(&mut delivery);
        let position = batch.events.len();
        match read(&delivery, &original.bytes, now) {
            Ok(Event::Send(mut event)) => {
                event.trace_parent = event.trace_parent.or_else(|| traces::create(&delivery.queue));
                let plan = self.plan(&event, fresh).await?;
                describe(&mut original, &event);
                self.keep(batch, position, &original, plan);
            }
            Ok(Event::Cancel(cancel)) if self.ctx.config.tenants.contains_key(&cancel.tenant) => {
                batch.cancels.push(cancel);
            }
            Ok(Event::Cancel(cancel)) => {
                original.tenant = Some(cancel.tenant);
                let reason = ParkReason::new("tenant_unknown", "the tenant is not in the configuration");
                batch.parked.extend(to_park(&original, vec![Aside::event(reason)]));
            }
            Err(Rejection { reason, detail, tenant, event_id }) => {
                (original.tenant, original.event_id) = (tenant, event_id);
                let reason = ParkReason::new(reason.as_str(), detail);
                batch.parked.extend(to_park(&original, vec![Aside::event(reason)]));
            }
        }
        batch.events.push((delivery, original));
        Ok(())
    }

    fn keep(&self, batch: &mut Batch, position: usize, original: &Original, plan: Result<Plan, ParkReason>) {
        let plan = plan.unwrap_or_else(|reason| Plan { asides: vec![Aside::event(reason)], ..Plan::default() });
        self.ctx.metrics.count_duplicates("event", plan.duplicates);
        if let Some(class) = original.class {
            self.ctx.metrics.count_events(class, "duplicate", plan.duplicates);
            self.ctx.metrics.count_events(class, "parked", plan.asides.len());
        }
        batch.drafts.extend(plan.rows.into_iter().map(|draft| (position, draft)));
        batch.parked.extend(to_park(original, plan.asides));
    }

    /// Plans by the rates at hand; if one is missing, once more by a card read anew (once a batch).
    async fn plan(&mut self, event: &SendEvent, fresh: &mut bool) -> Result<Result<Plan, ParkReason>, StoreError> {
        let planned = self.plan_once(event).await?;
        if *fresh || !planned.as_ref().is_ok_and(|plan| plan.unpriced > 0) {
            return Ok(planned);
        }
        *fresh = true;
        self.rates = None;
        self.plan_once(event).await
    }

    async fn plan_once(&mut self, event: &SendEvent) -> Result<Result<Plan, ParkReason>, StoreError> {
        let ctx = self.ctx.clone();
        let rates = self.rates().await?;
        Ok(plan(event, Rules { config: &ctx.config, rates: &rates.card, now: rates.now(&ctx) }))
    }

    async fn now(&mut self) -> Result<DateTime<Utc>, StoreError> {
        let ctx = self.ctx.clone();
        Ok(self.rates().await?.now(&ctx))
    }

    async fn rates(&mut self) -> Result<&Rates, StoreError> {
        let rates = match self.rates.take() {
            Some(rates) if !rates.are_stale(&self.ctx) => rates,
            Some(_) | None => Rates::read(&self.ctx, self.beat).await?,
        };
        Ok(self.rates.insert(rates))
    }
}

fn read(delivery: &Delivery, bytes: &[u8], now: DateTime<Utc>) -> Result<Event, Rejection> {
    let trace = delivery.header(TRACE_PARENT);
    // 0 is how some clients say "no time".
    let published = delivery.timestamp().filter(|seconds| *seconds > 0).and_then(|seconds| i64::try_from(seconds).ok());
    let around = Surroundings {
        message_id: delivery.message_id(),
        published_at: published.and_then(|seconds| DateTime::from_timestamp(seconds, 0)),
        trace_parent: trace.as_deref(),
    };
    parse(bytes, around, now)
}

fn describe(original: &mut Original, event: &SendEvent) {
    original.tenant = Some(event.tenant.clone());
    original.event_id = Some(event.event_id.clone());
    original.class = Some(event.class);
    original.trace_parent.clone_from(&event.trace_parent);
}
