//! Private PostgreSQL, Redis and RabbitMQ for the demo, the tests and the benchmark.
//!
//! A [`Stack`] owns three servers on free loopback ports in a data folder of its own; it never uses, and never disturbs, a
//! server that is already running. The kernel ends every child when the process that owns the stack dies, however it dies
//! ([`proc`]). A [`StackHandle`] is the stack as plain data: it travels to test processes through a file.
//!
//! This crate knows how to run servers and programs, nothing about messages: it holds no SQL beyond administration, and
//! migrates by running the `sendonce` command.

pub mod audit;
pub mod demo;
pub mod fleet;
mod handle;
mod http;
mod migrate;
mod net;
mod options;
mod postgres;
mod privilege;
pub mod proc;
mod rabbitmq;
mod redis;
pub mod scan;
mod stack;
pub mod state;

pub use handle::{QueueCount, RedisDb, STACK_FILE_ENV, StackHandle};
pub use migrate::{binary, migrate};
pub use net::accepts;
pub use options::{Progress, StackOptions, check_name, stack_root, sweep_stale};
pub use redis::OwnRedis;
pub use stack::{Service, Stack, StopMode};
