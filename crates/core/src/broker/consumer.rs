//! Consuming. One loop per queue: it forwards deliveries, acks what is decided, and after any error drops everything and
//! begins again, so that a delivery of a dead channel is known to be void. It starts with one delivery at a time and goes
//! to full only when one comes that nobody has seen: a crash counts against every delivery in hand.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery as AmqpDelivery;
use lapin::options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Consumer};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::acks::{Acks, STRAGGLER};
use super::{BrokerError, Link};
use crate::telemetry::Metrics;

/// What to consume, and how.
#[derive(Debug, Clone)]
pub struct Consume {
    pub queue: String,
    pub prefetch: u16,
    /// Start with one delivery at a time after a restart; for queues whose delivery limit counts.
    pub careful_start: bool,
}

/// A delivery in hand. It is acked after `done`; dropped without, it comes back when the channel ends.
#[derive(Debug)]
pub struct Delivery {
    pub body: Vec<u8>,
    pub redelivered: bool,
    /// Where it was consumed from.
    pub queue: Arc<str>,
    pub routing_key: String,
    properties: BasicProperties,
    epoch: u64,
    tag: u64,
    decided: mpsc::UnboundedSender<Decision>,
}

impl Delivery {
    /// Its rows are durable: it may be acked.
    pub fn done(self) {
        self.decide(true);
    }

    /// During a drain: nothing was begun, so another worker gets it as soon as the channel closes.
    pub fn give_back(self) {
        self.decide(false);
    }

    fn decide(&self, ack: bool) {
        // The loop is gone only when the process is; the delivery then comes back, which is always safe.
        if self.decided.send(Decision { epoch: self.epoch, tag: self.tag, ack }).is_err() {
            tracing::debug!("a delivery was decided after its consumer ended");
        }
    }

    /// A text header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let value = self.properties.headers().as_ref()?.inner().get(name)?;
        if let AMQPValue::LongString(text) = value {
            return Some(String::from_utf8_lossy(text.as_bytes()).into_owned());
        }
        if let AMQPValue::ShortString(text) = value { Some(text.as_str().to_owned()) } else { None }
    }

    /// The AMQP `message-id`.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.properties.message_id().as_ref().map(|id| id.as_str())
    }

    /// The AMQP `timestamp`, seconds since 1970.
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        *self.properties.timestamp()
    }

    /// The AMQP `user-id`, which the broker has checked.
    #[must_use]
    pub fn user_id(&self) -> Option<&str> {
        self.properties.user_id().as_ref().map(|id| id.as_str())
    }

    /// Text headers by name, for whoever keeps the delivery's surroundings.
    #[must_use]
    pub fn headers(&self) -> serde_json::Map<String, serde_json::Value> {
        let Some(headers) = self.properties.headers().as_ref() else { return serde_json::Map::new() };
        headers
            .inner()
            .keys()
            .filter_map(|key| Some((key.as_str().to_owned(), self.header(key.as_str())?.into())))
            .collect()
    }
}

#[derive(Debug, Clone, Copy)]
struct Decision {
    epoch: u64,
    tag: u64,
    ack: bool,
}

/// The receiving end of a consumer.
pub type Deliveries = mpsc::Receiver<Delivery>;

/// Consumes until `stop`, then waits for what is in hand. The sending end of `deliveries` closes at `stop`.
///
/// # Errors
/// A topology that differs from ours; everything else is tried again for ever.
pub async fn consume(
    link: Link,
    spec: Consume,
    deliveries: mpsc::Sender<Delivery>,
    stop: CancellationToken,
    metrics: Metrics,
) -> Result<(), BrokerError> {
    let (decided, mut decisions) = mpsc::unbounded_channel();
    let queue: Arc<str> = spec.queue.as_str().into();
    let mut pause = FIRST_PAUSE;
    for epoch in 0u64.. {
        let mut session = Session {
            spec: &spec,
            queue: queue.clone(),
            deliveries: &deliveries,
            decided: &decided,
            metrics: &metrics,
            acks: Acks::default(),
            epoch,
        };
        let began = Instant::now();
        match session.run(&link, &mut decisions, &stop).await {
            Ok(()) => return Ok(()),
            Err(BrokerError::Topology(error)) => return Err(BrokerError::Topology(error)),
            Err(error) if stop.is_cancelled() => {
                tracing::info!(queue = spec.queue, %error, "the broker left during the drain; what is in hand comes back");
                return Ok(());
            }
            Err(error) => tracing::warn!(queue = spec.queue, %error, "consumer starts again"),
        }
        metrics.reconnects.inc();
        if began.elapsed() > LAST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return Ok(()),
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
    Ok(())
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// One life of a channel.
struct Session<'a> {
    spec: &'a Consume,
    queue: Arc<str>,
    deliveries: &'a mpsc::Sender<Delivery>,
    decided: &'a mpsc::UnboundedSender<Decision>,
    metrics: &'a Metrics,
    acks: Acks,
    epoch: u64,
}

impl Session<'_> {
    async fn run(
        &mut self,
        link: &Link,
        decisions: &mut mpsc::UnboundedReceiver<Decision>,
        stop: &CancellationToken,
    ) -> Result<(), BrokerError> {
        let channel = link.channel().await?;
        let mut careful = self.spec.careful_start && self.spec.prefetch > 1;
        let mut consumer = self.start(&channel, if careful { 1 } else { self.spec.prefetch }).await?;
        let mut stragglers = interval(STRAGGLER / 4);
        loop {
            tokio::select! {
                next = consumer.next() => {
                    let delivery = next.ok_or(BrokerError::Unavailable(closed()))?.map_err(BrokerError::Unavailable)?;
                    if careful && !delivery.redelivered {
                        careful = false;
                        self.cancel(&channel, &consumer).await?;
                        consumer = self.start(&channel, self.spec.prefetch).await?;
                    }
                    if !self.forward(delivery).await {
                        return Ok(());
                    }
                }
                Some(decision) = decisions.recv() => self.ack(&channel, decision, decisions).await?,
                _ = stragglers.tick() => self.ack_stragglers(&channel).await?,
                () = stop.cancelled() => break,
            }
        }
        self.cancel(&channel, &consumer).await?;
        self.drain(&channel, decisions).await
    }

    async fn start(&self, channel: &Channel, prefetch: u16) -> Result<Consumer, BrokerError> {
        channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(BrokerError::Unavailable)?;
        channel
            .basic_consume(
                self.spec.queue.as_str().into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .map_err(BrokerError::Unavailable)
    }

    async fn cancel(&self, channel: &Channel, consumer: &Consumer) -> Result<(), BrokerError> {
        channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await.map_err(BrokerError::Unavailable)
    }

    /// False when nobody listens any more.
    async fn forward(&mut self, delivery: AmqpDelivery) -> bool {
        self.acks.deliver(delivery.delivery_tag);
        self.metrics.count_delivery(&self.spec.queue, delivery.redelivered);
        let delivery = Delivery {
            body: delivery.data,
            redelivered: delivery.redelivered,
            queue: self.queue.clone(),
            routing_key: delivery.routing_key.as_str().to_owned(),
            properties: delivery.properties,
            epoch: self.epoch,
            tag: delivery.delivery_tag,
            decided: self.decided.clone(),
        };
        self.deliveries.send(delivery).await.is_ok()
    }

    /// Takes this decision and every other that waits, then acks up to the watermark once.
    async fn ack(
        &mut self,
        channel: &Channel,
        first: Decision,
        decisions: &mut mpsc::UnboundedReceiver<Decision>,
    ) -> Result<(), BrokerError> {
        self.decide(first);
        while let Ok(decision) = decisions.try_recv() {
            self.decide(decision);
        }
        match self.acks.take_watermark() {
            Some(tag) => basic_ack(channel, tag, true).await,
            None => Ok(()),
        }
    }

    fn decide(&mut self, decision: Decision) {
        if decision.epoch != self.epoch {
            // Delivered on a channel that is gone: the broker has it back, and its rows are safe.
            self.metrics.stale_decisions.inc();
        } else if decision.ack {
            self.acks.decide(decision.tag, Instant::now());
        } else {
            self.acks.forget(decision.tag);
        }
    }

    async fn ack_stragglers(&mut self, channel: &Channel) -> Result<(), BrokerError> {
        for tag in self.acks.take_stragglers(Instant::now()) {
            basic_ack(channel, tag, false).await?;
        }
        Ok(())
    }

    async fn drain(
        &mut self,
        channel: &Channel,
        decisions: &mut mpsc::UnboundedReceiver<Decision>,
    ) -> Result<(), BrokerError> {
        while !self.acks.is_empty() {
            // The drain deadline of the shell ends this wait where a delivery cannot be decided.
            let Some(decision) = decisions.recv().await else { break };
            self.ack(channel, decision, decisions).await?;
            self.ack_stragglers(channel).await?;
        }
        channel.close(200, "drained".into()).await.map_err(BrokerError::Unavailable)
    }
}

async fn basic_ack(channel: &Channel, tag: u64, multiple: bool) -> Result<(), BrokerError> {
    channel.basic_ack(tag, BasicAckOptions { multiple }).await.map_err(BrokerError::Unavailable)
}

fn closed() -> lapin::Error {
    lapin::ErrorKind::IOError(std::sync::Arc::new(std::io::Error::other("the server ended the consumer"))).into()
}
