//! What a stack is started with, and the folder that is its own.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Held for as long as a stack lives; the kernel lets go of it when the owner dies.
const LOCK: &str = "lock";

/// Marks a folder that nobody wants to keep.
const THROWAWAY: &str = "throwaway";

/// Where stacks of one clone keep their data.
pub fn stack_root(clone: &Path) -> PathBuf {
    clone.join(".stack")
}

/// Names become folder names and parts of command lines.
pub fn check_name(name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    ensure!(
        (1..=40).contains(&name.len()) && name.bytes().all(fits),
        "a stack's name has 1 to 40 characters of a-z, 0-9 and -, not {name:?}"
    );
    Ok(())
}

#[derive(Debug, Clone)]
pub struct StackOptions {
    pub name: String,
    /// Made if missing; holds data and logs of the three servers.
    pub data_dir: PathBuf,
    /// Empty at the start, killed rather than stopped at the end, and the folder removed.
    pub throwaway: bool,
    pub progress: Progress,
}

impl StackOptions {
    /// A stack that keeps its data in `root/name` between runs.
    pub fn lasting(root: &Path, name: &str) -> Self {
        Self { name: name.into(), data_dir: root.join(name), throwaway: false, progress: Progress::silent() }
    }

    /// A stack in `root/name` that leaves nothing behind.
    pub fn throwaway(root: &Path, name: &str) -> Self {
        Self { throwaway: true, ..Self::lasting(root, name) }
    }

    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }
}

/// Where the lines go that tell what a start is doing.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(&str) + Send + Sync>);

impl Progress {
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub fn silent() -> Self {
        Self::new(|_| {})
    }

    pub fn tell(&self, line: &str) {
        (self.0)(line);
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

/// A stack's folder while this process owns it. A throwaway one is removed on drop.
#[derive(Debug)]
pub(crate) struct DataDir {
    pub(crate) path: PathBuf,
    throwaway: bool,
    _lock: File,
}

impl DataDir {
    pub(crate) fn claim(options: &StackOptions) -> Result<Self> {
        check_name(&options.name)?;
        let made = fs::create_dir_all(&options.data_dir);
        made.with_context(|| format!("cannot make {}", options.data_dir.display()))?;
        // Absolute and without links, as the servers see it: processes are found by this path.
        let path = options.data_dir.canonicalize()?;
        // Whatever the caller's umask: the servers' own user may have to pass through.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let lock = lock(&path)?;
        ensure!(lock.is_some(), "another stack uses {}; `./dev status` shows it", path.display());
        let lock = lock.context("no lock")?;
        if options.throwaway {
            empty(&path)?;
            fs::write(path.join(THROWAWAY), "")?;
        }
        Ok(Self { path, throwaway: options.throwaway, _lock: lock })
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // What a killed server's children still write can make a removal fail; they are gone within moments.
        let mut tries = 100;
        while self.throwaway && tries > 0 && fs::remove_dir_all(&self.path).is_err() && self.path.exists() {
            tries -= 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// `None` when another process holds it.
fn lock(dir: &Path) -> Result<Option<File>> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

fn empty(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        let path = entry.path();
        let removed = if entry.file_type()?.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Removes folders of throwaway stacks whose owner was killed. One that is in use, or kept, stays.
pub fn sweep_stale(root: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(root) else { return Ok(()) };
    for dir in entries.flatten().map(|entry| entry.path()) {
        if !dir.join(THROWAWAY).exists() {
            continue;
        }
        // Two sweeps may meet in one folder: what is gone already, or cannot be locked, is no concern of this one.
        if let Ok(Some(held)) = lock(&dir) {
            fs::remove_dir_all(&dir).or_else(|error| if dir.exists() { Err(error) } else { Ok(()) })?;
            drop(held);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("sendonce-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        root
    }

    #[test]
    fn a_folder_has_one_owner() {
        let root = root("owner");
        let options = StackOptions::throwaway(&root, "a");
        let first = DataDir::claim(&options).unwrap();
        assert!(DataDir::claim(&options).is_err());
        drop(first);
        assert!(!root.join("a").exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_sweep_takes_only_what_was_left_behind() {
        let root = root("sweep");
        let held = DataDir::claim(&StackOptions::throwaway(&root, "held")).unwrap();
        let kept = DataDir::claim(&StackOptions::lasting(&root, "kept")).unwrap();
        drop(kept);
        fs::create_dir_all(root.join("left")).unwrap();
        fs::write(root.join("left").join(THROWAWAY), "").unwrap();
        sweep_stale(&root).unwrap();
        let stays = |name: &str| root.join(name).exists();
        assert_eq!((stays("held"), stays("kept"), stays("left")), (true, true, false));
        drop(held);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn names_are_plain() {
        for (name, fits) in [("dev", true), ("test-12", true), ("", false), ("a/b", false), ("A", false), ("..", false)]
        {
            assert_eq!(check_name(name).is_ok(), fits, "{name:?}");
        }
    }
}
