//! End to end: the real binaries on real services, the provider's own ledger as the oracle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on says so")]

mod crashes;
mod flow;
mod intake;
mod outages;
mod provider;
mod redis;
mod resolve;
mod shell;
mod traces;
mod whatsapp;
