//! The reconciler.

use std::process::ExitCode;

use sendonce_core::service;

fn main() -> ExitCode {
    service::run("reconciler", sendonce_reconciler::run)
}
