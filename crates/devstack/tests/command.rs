//! The program itself: nothing survives its death, and `up`, `status` and `down` find each other.
//!
//! Each test has a clone folder of its own that only its user can enter: as root that needs the user namespace.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside the functions that clippy takes for tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use sendonce_devstack::state::State;
use sendonce_devstack::{binary, scan, stack_root};

const PATIENCE: Duration = Duration::from_secs(60);
const DEVSTACK: &str = env!("CARGO_BIN_EXE_sendonce-devstack");

struct Clone(PathBuf);

impl Clone {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sendonce-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self(path.canonicalize().unwrap())
    }

    fn stack(&self, name: &str) -> PathBuf {
        stack_root(&self.0).join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(DEVSTACK).arg("--clone").arg(&self.0).args(args).stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Starts `devstack run -- sleep` below a shell, as `./dev` does, and returns the shell when the command runs.
fn start_below_a_shell(clone: &Path, stack: &Path) -> Child {
    // The `true` keeps the shell: it would exec the last command.
    let script = r#"setpriv --pdeathsig KILL "$0" --clone "$1" run --name it -- sleep 1000; true"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, DEVSTACK]).arg(clone).stdin(Stdio::null()).stderr(Stdio::null());
    let mut shell = shell.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !stack.join("stack.json").exists() {
        assert!(shell.try_wait().unwrap().is_none(), "devstack did not start");
        assert!(Instant::now() < deadline, "devstack does not get ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    shell
}

/// The process among those of the stack that is devstack.
fn devstack_pid(stack: &Path) -> u32 {
    let parent = stack.parent().unwrap().parent().unwrap();
    let is_devstack = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(DEVSTACK));
    scan::processes_in(parent).into_iter().find(is_devstack).unwrap()
}

async fn assert_nothing_left(clone: &Clone) {
    scan::wait_until_unused(&clone.0, PATIENCE).await.unwrap();
    // What a killed owner could not remove, the next start of anything does.
    clone.run(&["status"]);
    assert!(!clone.stack("it").exists());
}

#[tokio::test]
async fn kill_9_of_devstack_leaves_nothing() {
    let clone = Clone::new("kill");
    let mut shell = start_below_a_shell(&clone.0, &clone.stack("it"));
    assert!(scan::processes_in(&clone.stack("it")).len() > 4, "the scan sees too little to prove anything");
    let pid = devstack_pid(&clone.stack("it"));
    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    shell.wait().unwrap();
    assert_nothing_left(&clone).await;
}

#[tokio::test]
async fn kill_9_of_what_started_devstack_leaves_nothing() {
    let clone = Clone::new("orphan");
    let mut shell = start_below_a_shell(&clone.0, &clone.stack("it"));
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert_nothing_left(&clone).await;
}

#[tokio::test]
async fn a_command_runs_on_a_stack_and_its_exit_code_comes_back() {
    let clone = Clone::new("run");
    let output = clone.run(&["run", "--", "sh", "-c", "test -s \"$DEVSTACK_FILE\" && echo found; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "found\n");
    scan::wait_until_unused(&clone.0, PATIENCE).await.unwrap();
    assert_eq!(fs::read_dir(stack_root(&clone.0)).unwrap().count(), 0);
}

#[tokio::test]
async fn up_returns_and_down_finds_it() {
    binary("sendonce").unwrap();
    let clone = Clone::new("up");
    assert_eq!(clone.run(&["status"]).status.code(), Some(3));
    assert_eq!(clone.run(&["down"]).status.code(), Some(0));

    let up = clone.run(&["up"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    let state = State::find_live(&clone.stack("dev")).unwrap().unwrap();
    let handle = state.stack.as_ref().unwrap();
    handle.psql("sendonce", "CREATE TABLE kept AS SELECT 7 AS n").await.unwrap();
    assert_eq!(clone.run(&["status"]).status.code(), Some(0));
    assert!(clone.run(&["up"]).status.success(), "a second up finds the first");
    assert!(state.is_live());

    assert!(clone.run(&["down"]).status.success());
    assert!(!state.is_live());
    scan::wait_until_unused(&clone.0, PATIENCE).await.unwrap();
    assert_eq!(clone.run(&["status"]).status.code(), Some(3));

    // The data is still there after a supervisor that was killed.
    assert!(clone.run(&["up"]).status.success());
    let state = State::find_live(&clone.stack("dev")).unwrap().unwrap();
    let kept = state.stack.as_ref().unwrap().psql("sendonce", "SELECT n FROM kept").await.unwrap();
    assert_eq!(kept, "7");
    Command::new("kill").args(["-9", &state.supervisor_pid.to_string()]).status().unwrap();
    scan::wait_until_unused(&clone.stack("dev"), PATIENCE).await.unwrap();
    assert_eq!(clone.run(&["status"]).status.code(), Some(3));
    assert!(clone.run(&["down", "--wipe"]).status.success());
    assert!(!clone.stack("dev").exists());
}
