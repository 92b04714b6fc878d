//! What the end-to-end tests share: a world of its own for each test (vhost, database, folder), events to publish, and the
//! comparison of the provider's ledger with our rows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on says so")]

mod check;
mod collector;
mod events;
mod wait;
mod world;

pub use collector::{Collector, Spanned};
pub use events::{Event, publish};
pub use wait::{PATIENCE, eventually};
pub use world::{World, database};
