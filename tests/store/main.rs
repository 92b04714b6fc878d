//! The store against a real database: every statement, and the rules that the schema itself must hold. A database a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on says so")]

mod claims;
mod guard;
mod keys;
mod late;
mod plans;
mod position;
mod receipts;
mod records;
mod statements;
mod support;
mod sweeps;
