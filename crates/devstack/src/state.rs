//! The state file: how `down` and `status` find what `up` left running.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::handle::StackHandle;
use crate::scan;

/// The migrated database of a lasting stack.
pub const LASTING_DATABASE: &str = "sendonce";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    pub supervisor_pid: u32,
    /// See [`scan::start_ticks`]: tells the supervisor from a later process with its pid.
    pub supervisor_start: u64,
    /// `None` while it is starting.
    pub stack: Option<StackHandle>,
}

impl State {
    /// A state whose supervisor is this process.
    pub fn own(stack: Option<StackHandle>) -> Self {
        let supervisor_pid = std::process::id();
        Self { supervisor_pid, supervisor_start: scan::start_ticks(supervisor_pid).unwrap_or_default(), stack }
    }

    pub fn path(data_dir: &Path) -> PathBuf {
        data_dir.join("state.json")
    }

    pub fn save(&self, data_dir: &Path) -> Result<()> {
        write_json(&Self::path(data_dir), self)
    }

    /// The state if its supervisor lives; a file left by one that was killed counts as none.
    pub fn find_live(data_dir: &Path) -> Result<Option<Self>> {
        let path = Self::path(data_dir);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let state: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{} is no state file of this version; remove it", path.display()))?;
        Ok(state.is_live().then_some(state))
    }

    pub fn is_live(&self) -> bool {
        scan::is_alive(self.supervisor_pid, self.supervisor_start)
    }

    pub fn remove(data_dir: &Path) -> Result<()> {
        match fs::remove_file(Self::path(data_dir)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("cannot remove the state file"),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Written beside and renamed, so that a reader never sees half of it.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let unfinished = path.with_extension(format!("{}.new", std::process::id()));
    let written = fs::write(&unfinished, serde_json::to_vec_pretty(value)?);
    written.with_context(|| format!("cannot write {}", unfinished.display()))?;
    fs::rename(&unfinished, path).with_context(|| format!("cannot write {}", path.display()))
}
