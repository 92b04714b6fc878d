//! The demo: sends real traffic through a stack of its own and the simulator, and tells what happened.

use std::path::PathBuf;

use anyhow::Result;

use crate::options::Progress;

#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Where stacks keep their data, see [`crate::stack_root`].
    pub root: PathBuf,
    /// Ends after one round instead of waiting for a signal.
    pub once: bool,
    /// The result as JSON on stdout instead of text.
    pub json: bool,
}

/// Returns the exit code of `devstack demo`.
pub async fn run(_options: DemoOptions, progress: Progress) -> Result<u8> {
    progress.tell("the demo is not built yet");
    Ok(2)
}
