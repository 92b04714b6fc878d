//! What is deployed, checked where no container engine is at hand: rules, image, compose file, health checks, runbooks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on says so")]

mod compose;
mod health;
mod image;
mod rules;
mod runbooks;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The top of the repository.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = top().join(path);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// A YAML file with its merges done.
fn yaml(path: &str) -> Result<Value> {
    let mut value: serde_yaml_ng::Value = serde_yaml_ng::from_str(&read(path)?)?;
    value.apply_merge()?;
    Ok(serde_json::to_value(value)?)
}

fn words(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What `./dev test` fetches lies here.
fn tools() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools")
}

/// Runs a program to its end; whether it succeeded, and everything it said.
fn run(command: &mut Command, input: &str) -> Result<(bool, String)> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), text))
}

/// The binaries that the workspace builds, with their main files.
fn binaries() -> Result<BTreeMap<String, PathBuf>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(top());
    let output = cargo.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let targets = metadata["packages"].as_array().into_iter().flatten().flat_map(|p| p["targets"].as_array().unwrap());
    let bins = targets.filter(|target| words(&target["kind"]) == ["bin"]);
    Ok(bins
        .map(|bin| (bin["name"].as_str().unwrap().to_owned(), PathBuf::from(bin["src_path"].as_str().unwrap())))
        .collect())
}

/// The binaries that run in the shell of the fleet.
fn workers() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (name, main) in binaries()? {
        if read(main)?.contains("service::run(") {
            found.insert(name);
        }
    }
    ensure!(found.len() >= 4, "too few workers: {found:?}");
    Ok(found)
}
