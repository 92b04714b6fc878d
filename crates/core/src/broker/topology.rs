//! Every name on the broker, declared the same by every process. Quorum queues only, with explicit limits, so that the
//! same arguments work on RabbitMQ 3.10 and 4.x.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel as AmqpChannel, ExchangeKind};

use crate::domain::message::{Channel, Class};

/// Where upstream services publish. Routing key: the class, or `<class>.<anything>`.
pub const EVENTS: &str = "sendonce.events";
/// What no binding of `EVENTS` takes, so that a mistyped routing key loses nothing.
pub const UNROUTABLE: &str = "sendonce.unroutable";
/// Jobs for the senders; routing key is the queue.
pub const JOBS: &str = "sendonce.jobs";
/// Raw receipts; routing key is the queue.
pub const RECEIPTS: &str = "sendonce.receipts";
/// Where a delivery goes that crashed its consumer too often; routing key is the queue.
pub const DEAD: &str = "sendonce.dead";

/// Queue of what `EVENTS` could not route.
pub const INGEST_UNROUTABLE: &str = "ingest.unroutable";
/// Queue of events that crashed ingest too often.
pub const INGEST_DEAD: &str = "ingest.dead";
/// Queue of raw receipts.
pub const RECEIPTS_QUEUE: &str = "receipts";
/// Queue of receipts that crashed the applier too often.
pub const RECEIPTS_DEAD: &str = "receipts.dead";

const DELIVERY_LIMIT: i64 = 20;
/// Queues of dead letters have nowhere to pass a message on to: over its limit it would be dropped.
const DEAD_DELIVERY_LIMIT: i64 = i32::MAX as i64;
const LANES: [Channel; 2] = [Channel::Sms, Channel::Whatsapp];

/// The ingest queue of a class.
#[must_use]
pub fn ingest_queue(class: Class) -> String {
    format!("ingest.{class}")
}

/// The queue of a send lane.
#[must_use]
pub fn send_queue(channel: Channel, class: Class) -> String {
    format!("send.{channel}.{class}")
}

/// Declares all of it. Idempotent; an entity that exists with other arguments is an error.
pub(super) async fn declare(channel: &AmqpChannel) -> lapin::Result<()> {
    exchange(channel, UNROUTABLE, ExchangeKind::Fanout, &[]).await?;
    exchange(channel, EVENTS, ExchangeKind::Topic, &[("alternate-exchange", UNROUTABLE)]).await?;
    for name in [JOBS, RECEIPTS, DEAD] {
        exchange(channel, name, ExchangeKind::Direct, &[]).await?;
    }
    queue(channel, INGEST_UNROUTABLE, Some(INGEST_DEAD)).await?;
    bind(channel, INGEST_UNROUTABLE, UNROUTABLE, "").await?;
    for &class in Class::ALL {
        let name = ingest_queue(class);
        queue(channel, &name, Some(INGEST_DEAD)).await?;
        bind(channel, &name, EVENTS, &format!("{class}.#")).await?;
    }
    for lane in LANES {
        for &class in Class::ALL {
            let name = send_queue(lane, class);
            // No dead letters: the job row is the truth, and its deadline publishes it again.
            queue(channel, &name, None).await?;
            bind(channel, &name, JOBS, &name).await?;
        }
    }
    queue(channel, RECEIPTS_QUEUE, Some(RECEIPTS_DEAD)).await?;
    bind(channel, RECEIPTS_QUEUE, RECEIPTS, RECEIPTS_QUEUE).await?;
    for name in [INGEST_DEAD, RECEIPTS_DEAD] {
        declare_queue(channel, name, None, DEAD_DELIVERY_LIMIT).await?;
        bind(channel, name, DEAD, name).await?;
    }
    Ok(())
}

async fn exchange(
    channel: &AmqpChannel,
    name: &str,
    kind: ExchangeKind,
    arguments: &[(&'static str, &str)],
) -> lapin::Result<()> {
    let mut table = FieldTable::default();
    for (key, value) in arguments {
        table.insert(ShortString::from(*key), AMQPValue::LongString(LongString::from(*value)));
    }
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name.into(), kind, options, table).await
}

/// A quorum queue with an explicit delivery limit; over it a message goes to `dead`, at least once.
async fn queue(channel: &AmqpChannel, name: &str, dead: Option<&str>) -> lapin::Result<()> {
    declare_queue(channel, name, dead, DELIVERY_LIMIT).await
}

async fn declare_queue(channel: &AmqpChannel, name: &str, dead: Option<&str>, limit: i64) -> lapin::Result<()> {
    let text = |value: &str| AMQPValue::LongString(LongString::from(value));
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), text("quorum"));
    table.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(limit));
    if let Some(dead) = dead {
        table.insert("x-dead-letter-exchange".into(), text(DEAD));
        table.insert("x-dead-letter-routing-key".into(), text(dead));
        table.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        table.insert("x-overflow".into(), text("reject-publish"));
    }
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), options, table).await?;
    Ok(())
}

async fn bind(channel: &AmqpChannel, queue: &str, exchange: &str, key: &str) -> lapin::Result<()> {
    channel
        .queue_bind(queue.into(), exchange.into(), key.into(), QueueBindOptions::default(), FieldTable::default())
        .await
}
