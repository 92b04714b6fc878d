//! Applying receipts, in batches: parse by the account's mapping, store each once, reduce into its row. What cannot be
//! read is parked with its bytes; while the database is away the batch is held.

use sendonce_core::broker::envelope::RawReceipt;
use sendonce_core::broker::{Batches, Delivery, IDLE_BEAT};
use sendonce_core::service::Context;
use sendonce_core::store::{NewReceipt, ParkKind, ParkReason, StoreError, ToPark};
use sendonce_providers::parse_receipt;
use tokio::time::sleep;

/// Where the receipts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Live,
    /// They crashed an applier too often: each is tried once more, alone; one that was tried here before is parked.
    Dead,
}

pub(crate) async fn run(ctx: Context, mut batches: Batches, source: Source) -> anyhow::Result<()> {
    let beat = match source {
        Source::Live => "receipt applier",
        Source::Dead => "dead receipts",
    };
    loop {
        ctx.health.beat(beat, IDLE_BEAT * 3);
        let mut next = std::pin::pin!(batches.next());
        let batch = loop {
            tokio::select! {
                batch = &mut next => break batch,
                () = sleep(IDLE_BEAT) => ctx.health.beat(beat, IDLE_BEAT * 3),
            }
        };
        let Some(batch) = batch else { return Ok(()) };
        apply(&ctx, &batch, source, beat).await?;
        batch.into_iter().for_each(Delivery::done);
    }
}

async fn apply(ctx: &Context, batch: &[Delivery], source: Source, beat: &'static str) -> anyhow::Result<()> {
    let (mut receipts, mut parked) = (Vec::new(), Vec::new());
    for delivery in batch {
        let read = if source == Source::Dead && delivery.redelivered {
            Err(ParkReason::new("dead_letter", "it was in hand at every one of many crashes"))
        } else {
            read(ctx, delivery)
        };
        match read {
            Ok(receipt) => receipts.push((receipt, delivery)),
            Err(reason) => parked.push(to_park(delivery, reason)),
        }
    }
    // Halves are pushed back on a refusal, until the one receipt that is refused stands alone.
    let mut open = vec![receipts];
    while let Some(part) = open.pop() {
        match apply_held(ctx, &part, beat).await {
            Ok(()) => {}
            Err(StoreError::Data(error)) if part.len() == 1 => {
                let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned();
                let reason = ParkReason::new("data_refused", format!("the database refuses a value (SQLSTATE {code})"));
                parked.extend(part.iter().map(|(_, delivery)| to_park(delivery, reason.clone())));
            }
            Err(StoreError::Data(_)) => {
                let mut first = part;
                let second = first.split_off(first.len() / 2);
                open.extend([second, first]);
            }
            Err(error @ (StoreError::Unavailable(_) | StoreError::Unexpected(_))) => return Err(error.into()),
        }
    }
    park_held(ctx, &parked, beat).await
}

fn read(ctx: &Context, delivery: &Delivery) -> Result<NewReceipt, ParkReason> {
    let raw = RawReceipt::of(delivery)
        .ok_or_else(|| ParkReason::new("not_from_the_intake", "the message has no receipt headers"))?;
    let account = ctx
        .config
        .accounts
        .get(&raw.account)
        .ok_or_else(|| ParkReason::new("account_unknown", "the account left the configuration"))?;
    let query = raw.from_query.then(|| String::from_utf8_lossy(&raw.bytes).into_owned());
    let body: &[u8] = if raw.from_query { b"" } else { &raw.bytes };
    let parsed = parse_receipt(account, raw.content_type.as_deref(), query.as_deref(), body)
        .map_err(|error| ParkReason::new("receipt_unreadable", error.to_string()))?;
    let clean = |text: Option<String>| text.map(|text| text.replace('\0', "\u{fffd}"));
    Ok(NewReceipt {
        account: raw.account,
        txn_id: parsed.txn_id,
        message_id: parsed.message_id,
        recipient: parsed.recipient,
        code: clean(parsed.code),
        kind: parsed.kind,
        cause: clean(parsed.cause),
        done_at: parsed.done_at,
        content_type: raw.content_type,
        raw: raw.bytes,
        trace_parent: raw.trace_parent,
    })
}

fn to_park(delivery: &Delivery, reason: ParkReason) -> ToPark {
    ToPark {
        kind: ParkKind::Receipt,
        reason,
        tenant: None,
        event_id: None,
        recipient: None,
        original: delivery.body.clone(),
        headers: delivery.headers().into(),
    }
}

async fn apply_held(ctx: &Context, part: &[(NewReceipt, &Delivery)], beat: &'static str) -> Result<(), StoreError> {
    if part.is_empty() {
        return Ok(());
    }
    let receipts: Vec<NewReceipt> = part.iter().map(|(receipt, _)| receipt.clone()).collect();
    let applied = ctx.hold(beat, || ctx.store.apply_receipts(&receipts)).await?;
    ctx.metrics.count_receipts("applied", applied.applied);
    ctx.metrics.count_receipts("early", applied.early);
    ctx.metrics.count_receipts("repeated", applied.repeated);
    ctx.metrics.count_anomalies("receipt_contradicts", applied.contradicting);
    Ok(())
}

async fn park_held(ctx: &Context, parked: &[ToPark], beat: &'static str) -> anyhow::Result<()> {
    ctx.hold(beat, || ctx.store.park(parked)).await?;
    for thing in parked {
        ctx.metrics.count_parked(thing.kind.as_str(), &thing.reason.code);
    }
    Ok(())
}
