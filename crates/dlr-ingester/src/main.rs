//! The receipt ingester.

use std::process::ExitCode;

use sendonce_core::service;

fn main() -> ExitCode {
    service::run("dlr-ingester", sendonce_dlr_ingester::run)
}
