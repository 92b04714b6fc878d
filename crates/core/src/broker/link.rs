//! One supervised connection. lapin's own recovery hides which deliveries are void, so nothing recovers by itself: whoever
//! needs a channel gets one on a living connection, or an error and tries again.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::{BrokerError, topology};

/// Longer than a channel takes, shorter than a connection to a broker that is away.
const OPENING: Duration = Duration::from_millis(500);

/// A connection that is opened when first needed and again after it broke. Publishing and consuming use one each: while a
/// connection is blocked by an alarm, lapin writes nothing on it, not even acks.
#[derive(Debug, Clone)]
pub struct Link {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    url: SecretString,
    name: String,
    connection: Mutex<Option<Connection>>,
}

impl Link {
    /// A link that is not connected yet. `name` shows in the broker's list of connections.
    #[must_use]
    pub fn new(url: SecretString, name: String) -> Self {
        Self { inner: Arc::new(Inner { url, name, connection: Mutex::new(None) }) }
    }

    /// A fresh channel.
    ///
    /// # Errors
    /// The broker is away, or holds an entity of ours with other arguments.
    pub async fn channel(&self) -> Result<Channel, BrokerError> {
        let mut held = self.inner.connection.lock().await;
        if let Some(connection) = held.as_ref().filter(|connection| connection.status().connected()) {
            return connection.create_channel().await.map_err(BrokerError::Unavailable);
        }
        *held = None;
        let connection = self.connect().await?;
        let channel = connection.create_channel().await.map_err(BrokerError::Unavailable)?;
        *held = Some(connection);
        Ok(channel)
    }

    async fn connect(&self) -> Result<Connection, BrokerError> {
        let properties = ConnectionProperties::default().with_connection_name(self.inner.name.as_str().into());
        let url = with_timeouts(self.inner.url.expose_secret());
        let connection = Connection::connect(&url, properties).await.map_err(BrokerError::Unavailable)?;
        // On a channel of its own: a mismatch closes the channel it happens on.
        let channel = connection.create_channel().await.map_err(BrokerError::Unavailable)?;
        topology::declare(&channel).await.map_err(|error| {
            if error.is_amqp_soft_error() { BrokerError::Topology(error) } else { BrokerError::Unavailable(error) }
        })?;
        channel.close(200, "declared".into()).await.map_err(BrokerError::Unavailable)?;
        Ok(connection)
    }

    /// Whether the connection stands. One that is being opened does not.
    pub async fn is_up(&self) -> bool {
        let held = timeout(OPENING, self.inner.connection.lock()).await;
        held.is_ok_and(|held| held.as_ref().is_some_and(|connection| connection.status().connected()))
    }

    /// Messages ready in a queue (passive declare).
    ///
    /// # Errors
    /// The broker is away.
    pub async fn ready_messages(&self, queue: &str) -> Result<u32, BrokerError> {
        let channel = self.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .map_err(BrokerError::Unavailable)?;
        channel.close(200, "counted".into()).await.map_err(BrokerError::Unavailable)?;
        Ok(found.message_count())
    }

    /// Forgets a connection that no longer answers; the next channel opens another.
    pub(super) async fn abandon(&self) {
        *self.inner.connection.lock().await = None;
    }

    /// Closes the connection in order.
    pub async fn close(&self) {
        let Some(connection) = self.inner.connection.lock().await.take() else { return };
        if let Err(error) = connection.close(200, "bye".into()).await {
            tracing::debug!(%error, "the broker connection did not close in order");
        }
    }
}

/// A broker that died without a word is noticed within two heartbeats.
fn with_timeouts(url: &str) -> String {
    if url.contains('?') { url.to_owned() } else { format!("{url}?heartbeat=10&connection_timeout=5000") }
}
