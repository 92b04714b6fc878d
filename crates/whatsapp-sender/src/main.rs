//! The WhatsApp sender.

use std::process::ExitCode;

use sendonce_core::service;

fn main() -> ExitCode {
    service::run("whatsapp-sender", sendonce_whatsapp_sender::run)
}
