//! Events that were in hand at so many crashes that the broker set them aside. Most are innocent: each is tried once more,
//! alone, and one that was tried here before is parked unread.

use sendonce_core::broker::{Deliveries, Delivery, IDLE_BEAT};
use sendonce_core::service::Context;
use sendonce_core::store::{ParkReason, StoreError};
use tokio::time::sleep;

use crate::aside::{Aside, Original, to_park};
use crate::commit::Commit;
use crate::intake::{BEAT, Batch, Intake};

pub(crate) const NAME: &str = "dead events";

pub(crate) async fn run(ctx: Context, mut deliveries: Deliveries) -> anyhow::Result<()> {
    let mut intake = Intake::new(ctx.clone(), NAME);
    let mut commit = Commit::new(ctx.clone(), NAME);
    loop {
        ctx.health.beat(NAME, BEAT);
        let delivery = tokio::select! {
            delivery = deliveries.recv() => delivery,
            () = sleep(IDLE_BEAT) => continue,
        };
        let Some(delivery) = delivery else { return Ok(()) };
        commit.batch(retry(&mut intake, delivery).await?).await?;
    }
}

async fn retry(intake: &mut Intake, mut delivery: Delivery) -> Result<Batch, StoreError> {
    if !delivery.redelivered {
        return intake.single(delivery).await;
    }
    // Not even parsed: that may be what ends the process.
    let original = Original::of(&mut delivery);
    let reason = ParkReason::new("dead_letter", "it was in hand at every one of many crashes");
    let parked = to_park(&original, vec![Aside::event(reason)]);
    Ok(Batch { events: vec![(delivery, original)], parked, ..Batch::default() })
}
