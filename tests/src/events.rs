//! Events as an upstream service publishes them.

use anyhow::{Result, ensure};
use sendonce_core::broker::{Link, Outgoing, Publisher, topology};
use serde_json::{Value, json};

/// A CloudEvents 1.0 event about to be published.
#[derive(Debug, Clone)]
pub struct Event {
    envelope: Value,
}

impl Event {
    /// One transactional SMS of tenant `acme`. Texts must be unique per message: the audit joins on them.
    pub fn sms(event_id: &str, numbers: &[&str], body: &str) -> Self {
        Self {
            envelope: json!({
                "specversion": "1.0",
                "id": format!("ce-{event_id}"),
                "source": "/shop/orders",
                "type": "message.send.v1",
                "datacontenttype": "application/json",
                "data": {
                    "tenant": "acme",
                    "class": "transactional",
                    "event_type": "order.shipped",
                    "event_id": event_id,
                    "recipients": numbers,
                    "body": body,
                    "dlt": { "template_id": "1207161000000000042" },
                },
            }),
        }
    }

    /// Sets a field of `data`.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.envelope["data"][field] = value;
        self
    }

    /// The message of the broker.
    pub fn outgoing(&self) -> Outgoing {
        Outgoing {
            exchange: topology::EVENTS,
            routing_key: self.envelope["data"]["class"].as_str().unwrap_or("transactional").to_owned(),
            content_type: "application/cloudevents+json",
            message_id: self.envelope["id"].as_str().map(str::to_owned),
            headers: Vec::new(),
            body: self.envelope.to_string().into_bytes(),
        }
    }
}

/// Publishes and waits for every confirm.
pub async fn publish(amqp_url: &str, messages: &[Outgoing]) -> Result<()> {
    let link = Link::new(amqp_url.to_owned().into(), "sendonce-test".to_owned());
    let publisher = Publisher::new(link, std::time::Duration::from_secs(30));
    for chunk in messages.chunks(500) {
        let results = publisher.publish(chunk).await;
        ensure!(results.iter().all(Result::is_ok), "the broker did not confirm: {results:?}");
    }
    publisher.link().close().await;
    Ok(())
}
