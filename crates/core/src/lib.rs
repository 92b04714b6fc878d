//! What every process of the fleet shares. Flow is one way: edge ▶ decide (domain) ▶ record (store) ▶ tell (broker).

pub mod admin;
pub mod broker;
pub mod clock;
pub mod config;
pub mod dispatch;
pub mod domain;
pub mod gate;
mod healthcheck;
pub mod provider;
pub mod service;
pub mod store;
pub mod sweep;
pub mod telemetry;
