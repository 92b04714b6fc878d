//! Gathering deliveries into batches. One that was delivered before goes alone: if it crashes its consumer, it is the only
//! one in hand.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Deliveries, Delivery};

/// Deliveries as batches.
#[derive(Debug)]
pub struct Batches {
    deliveries: Deliveries,
    max: usize,
    linger: Duration,
    /// A redelivered one that ended the batch before it.
    alone: Option<Delivery>,
}

impl Batches {
    /// At most `max` a batch, none held longer than `linger` after its first came.
    #[must_use]
    pub fn new(deliveries: Deliveries, max: usize, linger: Duration) -> Self {
        Self { deliveries, max, linger, alone: None }
    }

    /// The next batch, never empty; `None` when the consumers ended. Not to be dropped half way: what it gathered would
    /// only come back when the channel ends.
    pub async fn next(&mut self) -> Option<Vec<Delivery>> {
        if let Some(delivery) = self.alone.take() {
            return Some(vec![delivery]);
        }
        let first = self.deliveries.recv().await?;
        if first.redelivered {
            return Some(vec![first]);
        }
        let mut batch = vec![first];
        let until = Instant::now() + self.linger;
        while batch.len() < self.max {
            match timeout_at(until, self.deliveries.recv()).await {
                Ok(Some(next)) if next.redelivered => {
                    self.alone = Some(next);
                    break;
                }
                Ok(Some(next)) => batch.push(next),
                Ok(None) | Err(_) => break,
            }
        }
        Some(batch)
    }
}
