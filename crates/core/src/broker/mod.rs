//! The only lapin: names of everything on the broker, envelopes, publishing with confirms, consuming with acks. Workers
//! see deliveries and verdicts; only this room acks, and it never nacks.

mod acks;
mod batch;
mod consumer;
pub mod envelope;
mod link;
mod publisher;
pub mod topology;

pub use batch::Batches;
pub use consumer::{Consume, Deliveries, Delivery, consume};
pub use link::Link;
pub use publisher::{Outgoing, Publisher};

/// How often a loop that waits for deliveries reports that it is alive.
pub const IDLE_BEAT: std::time::Duration = std::time::Duration::from_secs(10);

/// A failure of the broker or of the connection to it.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("the broker is not available: {0}")]
    Unavailable(#[source] lapin::Error),
    #[error(
        "the broker's topology differs from ours: {0}; delete the queue or exchange it names, or change its policy"
    )]
    Topology(#[source] lapin::Error),
    #[error("no confirm within the time limit")]
    Unconfirmed,
    #[error("the broker refused the message")]
    Refused,
}
