//! `sendonce-devstack`: the program behind `./dev`.

mod cli;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    cli::main().await
}
