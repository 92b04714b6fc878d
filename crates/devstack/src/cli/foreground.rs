//! `test` and `run`: a stack that lives as long as one command. However this process ends, the stack ends with it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sendonce_devstack::proc::{Child, Program, Signal};
use sendonce_devstack::{STACK_FILE_ENV, Stack, StackOptions, stack_root};

use super::signals::StopSignal;
use super::term;

/// What tests copy for a database of their own.
const TEMPLATE: &str = "sendonce_template";

pub async fn run(root: &Path, name: &str, command: &[OsString]) -> Result<u8> {
    let (program, args) = command.split_first().context("no command")?;
    on_a_stack(root, name, None, Program::new("the command", program).args(args)).await
}

pub async fn test(clone: &Path, packages: &[String], args: &[OsString]) -> Result<u8> {
    let mut cargo = Program::new("cargo test", "cargo").args(["test", "--no-fail-fast"]).dir(clone);
    if packages.is_empty() {
        cargo = cargo.arg("--workspace");
    }
    for package in packages {
        cargo = cargo.args(["--package", package]);
    }
    let cargo = cargo.arg("--").args(args);
    // The death signal reaches cargo only: cargo's own children, the test programs, are tied to it in the same way.
    let runner = format!("CARGO_TARGET_{}_RUNNER", host_triple()?.to_uppercase().replace('-', "_"));
    let cargo = cargo.env(runner, "setpriv --pdeathsig KILL --");
    on_a_stack(&stack_root(clone), &format!("test-{}", std::process::id()), Some(TEMPLATE), cargo).await
}

/// Starts a throwaway stack, runs `program` on it and returns its exit code, or that of the signal that cut it short.
async fn on_a_stack(root: &Path, name: &str, template: Option<&str>, program: Program) -> Result<u8> {
    let mut stop = StopSignal::new()?;
    let options = StackOptions::throwaway(root, name).progress(term::progress());
    let start = async {
        let mut stack = Stack::start(options).await?;
        if let Some(template) = template {
            stack.make_template(template).await?;
        }
        anyhow::Ok(stack)
    };
    let stack = tokio::select! {
        stack = start => stack?,
        code = stop.wait() => return Ok(code),
    };
    let file = stack.data_dir().join("stack.json");
    stack.handle().save(&file)?;
    let child = stack.spawner().spawn(program.env(STACK_FILE_ENV, &file))?;
    let code = tokio::select! {
        status = ended(&child) => exit_code(status?),
        code = stop.wait() => {
            // The whole group: compilers that cargo started would go on otherwise.
            child.signal_group(Signal::SIGTERM)?;
            child.stop(Signal::SIGTERM, Duration::from_secs(5)).await?;
            code
        }
    };
    stack.shutdown().await?;
    Ok(code)
}

async fn ended(child: &Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// As a shell puts it: 128 and the signal for a program that a signal ended.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn host_triple() -> Result<String> {
    let output = std::process::Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    ensure!(output.status.success(), "rustc -vV failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}
