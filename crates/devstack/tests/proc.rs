//! Children of the spawner: signals, deadlines, and that none outlives its owner.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use sendonce_devstack::proc::{Program, Spawner};
use sendonce_devstack::scan;

const PATIENCE: Duration = Duration::from_secs(60);

fn sleeper() -> Program {
    Program::new("sleeper", "sleep").arg("1000")
}

#[tokio::test]
async fn a_child_is_paused_resumed_and_killed() {
    let child = Spawner::new().unwrap().spawn(sleeper()).unwrap();
    child.pause().await.unwrap();
    assert_eq!(scan::run_state(child.pid()), Some('T'));
    child.resume().unwrap();
    child.wait(Duration::from_millis(1)).await.unwrap_err();
    assert!(child.is_running());
    assert_eq!(child.kill().await.unwrap().signal(), Some(9));
    child.terminate().unwrap();
}

#[tokio::test]
async fn a_child_gets_its_environment_and_its_log() {
    let log = std::env::temp_dir().join(format!("sendonce-proc-{}.log", std::process::id()));
    let program = Program::new("echo", "sh").args(["-c", "echo \"$A from $PWD\"; exit 7"]).env("A", "b c").dir("/");
    let child = Spawner::new().unwrap().spawn(program.log(&log)).unwrap();
    assert_eq!(child.wait(PATIENCE).await.unwrap().code(), Some(7));
    assert!(child.log_tail().contains("b c from /"), "{}", child.log_tail());
    std::fs::remove_file(log).unwrap();
}

#[tokio::test]
async fn a_child_outlives_the_thread_that_asked_for_it() {
    let spawner = Spawner::new().unwrap();
    let child = std::thread::spawn(move || spawner.spawn(sleeper()).unwrap()).join().unwrap();
    // Long enough for a death signal, which would be sent as that thread ended.
    child.wait(Duration::from_millis(300)).await.unwrap_err();
    let (pid, ticks) = (child.pid(), scan::start_ticks(child.pid()).unwrap());
    drop(child);
    assert!(!scan::is_alive(pid, ticks));
}

#[test]
fn a_missing_program_is_an_error_at_once() {
    let spawner = Spawner::new().unwrap();
    for program in ["no-such-program-of-sendonce", "/no/such/program"] {
        let error = spawner.spawn(Program::new("it", PathBuf::from(program))).unwrap_err();
        assert!(format!("{error:#}").contains("it cannot start"), "{error:#}");
    }
}
