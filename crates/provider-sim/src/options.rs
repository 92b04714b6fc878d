//! The command line, which is also the configuration of a simulator run in-process.

use std::{net::SocketAddr, path::PathBuf};

use chrono_tz::Tz;
use clap::Parser;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use crate::{accounts::Credentials, knobs::Knobs};

/// Stands in for the messaging provider: its API on one port, control and ledger on another.
#[derive(Debug, Clone, Parser)]
#[command(name = "provider-sim", version)]
pub struct Options {
    /// Address of the provider's API.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Address of the control API.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub control: SocketAddr,
    /// Append-only JSON lines; an existing one is continued.
    #[arg(long)]
    pub ledger: PathBuf,
    /// Written as {"listen","control"} once both ports accept.
    #[arg(long)]
    pub ready_file: Option<PathBuf>,
    /// Where receipts go; none are pushed without it.
    #[arg(long)]
    pub push_url: Option<String>,
    /// Per segment and recipient.
    #[arg(long, default_value = "0.1400")]
    pub price: Decimal,
    /// Of the first account.
    #[arg(long, default_value = "demo")]
    pub userid: String,
    #[arg(long, default_value = "secret")]
    pub password: String,
    #[arg(long)]
    pub api_key: Option<String>,
    /// Further accounts, as `userid:password[:apikey]`. Repeatable.
    #[arg(long = "account")]
    pub accounts: Vec<Credentials>,
    /// Opening balance of every account; what the ledger shows as spent is taken off it.
    #[arg(long, default_value = "100000")]
    pub wallet: Decimal,
    /// Zone of report times and report days.
    #[arg(long, default_value = "Asia/Kolkata", value_parser = parse_zone)]
    pub zone: Tz,
    /// Between acceptance and answer.
    #[arg(long, default_value_t = 20)]
    pub latency_ms: u64,
    /// Knobs to start with, as a JSON patch, e.g. '{"reports":{"lag_ms":500}}'.
    #[arg(long, value_parser = parse_json)]
    pub knobs: Option<Value>,
}

impl Options {
    /// The defaults of the command line, with a ledger at `ledger`.
    pub fn new(ledger: impl Into<PathBuf>) -> Self {
        let ledger = ledger.into().into_os_string();
        Self::parse_from([std::ffi::OsString::from("provider-sim"), "--ledger".into(), ledger])
    }

    pub(crate) fn start_knobs(&self) -> anyhow::Result<Knobs> {
        let base = json!({ "send": { "latency_ms": self.latency_ms }, "push": { "url": self.push_url } });
        let knobs = Knobs::default().patched(&base).map_err(anyhow::Error::msg)?;
        match &self.knobs {
            Some(patch) => knobs.patched(patch).map_err(|message| anyhow::anyhow!("--knobs: {message}")),
            None => Ok(knobs),
        }
    }

    pub(crate) fn credentials(&self) -> impl Iterator<Item = Credentials> {
        let first =
            Credentials { userid: self.userid.clone(), password: self.password.clone(), api_key: self.api_key.clone() };
        std::iter::once(first).chain(self.accounts.clone())
    }
}

fn parse_zone(name: &str) -> Result<Tz, String> {
    crate::accounts::parse_zone(name).map_err(|error| error.to_string())
}

fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
