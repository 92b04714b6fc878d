//! What `/proc` says about other processes: who works in a data folder, and whether a pid is still the process it was.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::proc::POLL;

/// The state letter of a process (`R`, `S`, `T`, `Z`, …); `None` when it is gone.
pub fn run_state(pid: u32) -> Option<char> {
    stat_field(pid, 0)?.chars().next()
}

/// When a process started, in clock ticks since boot: with the pid it identifies a process, which a pid alone does not.
pub fn start_ticks(pid: u32) -> Option<u64> {
    stat_field(pid, 19)?.parse().ok()
}

/// Whether `pid` is the process that started then, and is not a zombie.
pub fn is_alive(pid: u32, ticks: u64) -> bool {
    start_ticks(pid) == Some(ticks) && !matches!(run_state(pid), None | Some('Z'))
}

/// Field of `/proc/PID/stat`, counted from the state letter; the command name before it may hold blanks and parentheses.
fn stat_field(pid: u32, index: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(index).map(ToOwned::to_owned)
}

/// Processes, zombies apart, that work in `dir`: it shows in their command line, environment or working folder. The
/// caller and its ancestors are left out. Servers overwrite their command line and environment, hence all three.
pub fn processes_in(dir: &Path) -> Vec<u32> {
    let own = ancestors();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| !own.contains(pid) && mentions(*pid, dir)).collect()
}

/// Waits until nobody works in `dir`; an error names who still does.
pub async fn wait_until_unused(dir: &Path, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let left = processes_in(dir);
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let left: Vec<String> = left.into_iter().map(describe).collect();
            bail!("after {patience:?} these still work in {}:\n  {}", dir.display(), left.join("\n  "));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn mentions(pid: u32, dir: &Path) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    if matches!(run_state(pid), None | Some('Z')) {
        return false;
    }
    let works_there = fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
    works_there || ["cmdline", "environ"].iter().any(|file| holds(&fs::read(proc.join(file)).unwrap_or_default(), dir))
}

/// Whether the folder's path occurs as a whole: `/x/a` is not in `/x/ab`.
fn holds(text: &[u8], dir: &Path) -> bool {
    let needle = dir.as_os_str().as_bytes();
    let ends = |after: Option<&u8>| after.is_none_or(|byte| !(byte.is_ascii_alphanumeric() || b"-_.".contains(byte)));
    text.windows(needle.len()).enumerate().any(|(at, window)| window == needle && ends(text.get(at + needle.len())))
}

fn ancestors() -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut pid = std::process::id();
    while pid > 0 && found.insert(pid) {
        pid = stat_field(pid, 1).and_then(|parent| parent.parse().ok()).unwrap_or(0);
    }
    found
}

fn describe(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{pid} {}", line.chars().take(120).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_matched_as_a_whole() {
        let dir = Path::new("/x/a");
        for (text, expected) in [("-D\0/x/a/pg", true), ("A=/x/a", true), ("/x/ab", false), ("/x/a-2/pg", false)] {
            assert_eq!(holds(text.as_bytes(), dir), expected, "{text}");
        }
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = std::process::id();
        let ticks = start_ticks(own).unwrap();
        assert!(is_alive(own, ticks));
        assert!(!is_alive(own, ticks + 1));
    }
}
