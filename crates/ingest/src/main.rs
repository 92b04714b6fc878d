//! The ingest worker.

use std::process::ExitCode;

fn main() -> ExitCode {
    sendonce_core::service::run("ingest", sendonce_ingest::run)
}
