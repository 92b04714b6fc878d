//! The SMS sender.

use std::process::ExitCode;

use sendonce_core::service;

fn main() -> ExitCode {
    service::run("sms-sender", sendonce_sms_sender::run)
}
