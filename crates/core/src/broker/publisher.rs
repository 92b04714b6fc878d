//! Publishing with confirms. A message counts as published only when the broker confirmed it; no answer within the limit
//! counts as not confirmed, and whoever published decides what then (publishing twice is harmless everywhere here).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::envelope::TRACE_PARENT;
use super::{BrokerError, Link};

/// A message on its way out.
#[derive(Debug, Clone)]
pub struct Outgoing {
    pub exchange: &'static str,
    pub routing_key: String,
    pub content_type: &'static str,
    pub message_id: Option<String>,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

impl Outgoing {
    /// Hands on a `traceparent`.
    #[must_use]
    pub fn traced(mut self, trace_parent: Option<String>) -> Self {
        self.headers.extend(trace_parent.map(|parent| (TRACE_PARENT, parent)));
        self
    }
}

/// Publishes on one confirmed channel of a link of its own. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher {
    link: Link,
    channel: Arc<Mutex<Option<Channel>>>,
    confirm_timeout: Duration,
}

const PERSISTENT: u8 = 2;

impl Publisher {
    /// A publisher on `link`, which nobody consumes on.
    #[must_use]
    pub fn new(link: Link, confirm_timeout: Duration) -> Self {
        Self { link, channel: Arc::new(Mutex::new(None)), confirm_timeout }
    }

    /// The connection underneath.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Publishes all of `messages`, confirms in flight together; one result each, in order.
    pub async fn publish(&self, messages: &[Outgoing]) -> Vec<Result<(), BrokerError>> {
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(error) => {
                tracing::warn!(%error, "cannot publish");
                return messages.iter().map(|_| Err(BrokerError::Unconfirmed)).collect();
            }
        };
        let results = join_all(messages.iter().map(|message| self.publish_one(&channel, message))).await;
        if results.iter().any(|result| matches!(result, Err(BrokerError::Unavailable(_) | BrokerError::Unconfirmed))) {
            // Late confirms would be kept for ever on a channel that nobody reads any more.
            self.drop_channel(&channel).await;
        }
        results
    }

    async fn publish_one(&self, channel: &Channel, message: &Outgoing) -> Result<(), BrokerError> {
        let mut headers = FieldTable::default();
        for (key, value) in message.headers.iter().filter(|(_, value)| !value.is_empty()) {
            headers.insert(ShortString::from(*key), AMQPValue::LongString(LongString::from(value.as_str())));
        }
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_content_type(message.content_type.into())
            .with_headers(headers);
        if let Some(id) = message.message_id.as_ref().filter(|id| id.len() <= 255) {
            properties = properties.with_message_id(id.as_str().into());
        }
        let confirmed = timeout(self.confirm_timeout, async {
            channel
                .basic_publish(
                    message.exchange.into(),
                    message.routing_key.as_str().into(),
                    BasicPublishOptions::default(),
                    &message.body,
                    properties,
                )
                .await?
                .await
        })
        .await;
        match confirmed {
            Err(_) => Err(BrokerError::Unconfirmed),
            Ok(Err(error)) => Err(BrokerError::Unavailable(error)),
            Ok(Ok(Confirmation::Ack(_))) => Ok(()),
            Ok(Ok(Confirmation::Nack(_))) => Err(BrokerError::Refused),
            // The channel is always in confirm mode; anything else is a bug, and the message counts as not published.
            Ok(Ok(Confirmation::NotRequested)) => Err(BrokerError::Unconfirmed),
        }
    }

    async fn channel(&self) -> Result<Channel, BrokerError> {
        let mut held = self.channel.lock().await;
        if let Some(channel) = held.as_ref().filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        let channel = self.link.channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(BrokerError::Unavailable)?;
        *held = Some(channel.clone());
        Ok(channel)
    }

    async fn drop_channel(&self, broken: &Channel) {
        let mut held = self.channel.lock().await;
        if held.as_ref().is_some_and(|channel| channel.id() == broken.id()) {
            *held = None;
        }
        if let Err(error) = timeout(Duration::from_secs(1), broken.close(200, "unconfirmed".into())).await {
            tracing::debug!(%error, "a channel with unconfirmed publishes did not close");
            self.link.abandon().await;
        }
    }
}
