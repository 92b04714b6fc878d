//! `provider-sim`: see the library.

use std::net::SocketAddr;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use provider_sim::Options;
use tracing_subscriber::EnvFilter;

#[derive(Debug, Parser)]
#[command(name = "provider-sim", version, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(flatten)]
    options: Option<Options>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Ask the simulator that runs beside this process whether it serves; the exit code is 0 if it does.
    Healthcheck {
        /// Its control port.
        #[arg(long)]
        control: SocketAddr,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Command::Healthcheck { control }) = arguments.command {
        return provider_sim::healthcheck(control);
    }
    let Some(options) = arguments.options else {
        Arguments::command().error(ErrorKind::MissingRequiredArgument, "--ledger is required").exit()
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    provider_sim::run(options).await
}
