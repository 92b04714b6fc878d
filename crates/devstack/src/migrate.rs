//! Migrating is the product's own business: it runs the `sendonce` command.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::handle::StackHandle;
use crate::proc::{Program, Spawner};

/// A program of this workspace, found where the running one was built; tests run from the `deps` folder below it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut folder = own.parent().context("this program has no folder")?;
    if folder.ends_with("deps") {
        folder = folder.parent().unwrap_or(folder);
    }
    let path = folder.join(name);
    if !path.is_file() {
        bail!("{} is not built; run: cargo build --workspace --bins", path.display());
    }
    Ok(path)
}

/// Brings database `db` to the newest schema, as superuser.
pub async fn migrate(handle: &StackHandle, db: &str) -> Result<()> {
    let log = handle.data_dir.join("migrate.log");
    let command = Program::new("sendonce migrate", binary("sendonce")?).arg("migrate");
    let command = command.arg("--database-url").arg(handle.superuser_url(db)).log(&log);
    let child = Spawner::new()?.spawn(command)?;
    let status = child.wait(Duration::from_secs(300)).await?;
    ensure!(status.success(), "migrating database {db} failed ({status})\n{}", child.log_tail());
    Ok(())
}
