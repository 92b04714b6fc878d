//! `up`, `down` and `status`: a stack that stays, kept by a supervisor that the state file names.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sendonce_devstack::state::{LASTING_DATABASE, State};
use sendonce_devstack::{Stack, StackHandle, StackOptions, accepts, migrate, scan, stack_root};

use super::signals::StopSignal;
use super::term;

const POLL: Duration = Duration::from_millis(50);

/// A clean stop of RabbitMQ takes 6 s on an idle machine.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

pub async fn up(clone: &Path, name: &str) -> Result<u8> {
    let root = stack_root(clone);
    let dir = root.join(name);
    if let Some(State { stack: Some(_), .. }) = State::find_live(&dir)? {
        term::tell(&format!("devstack: stack {name} is up already"));
        return status(&root, name).await;
    }
    let mut stop = StopSignal::new()?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let log_path = dir.join("supervisor.log");
    let log = File::create(&log_path).with_context(|| format!("cannot write {}", log_path.display()))?;
    let mut progress = File::open(&log_path)?;
    // A session of its own, and no death signal: it is meant to stay when this process ends.
    let mut supervisor = Command::new("setsid");
    supervisor.arg(std::env::current_exe()?).arg("supervise").args(["--name", name]).arg("--clone").arg(clone);
    supervisor.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).current_dir("/");
    let mut supervisor = supervisor.spawn().context("cannot start the supervisor")?;
    loop {
        let ended = supervisor.try_wait()?;
        relay(&mut progress)?;
        if let Some(status) = ended {
            bail!("stack {name} did not start (supervisor: {status}); logs are in {}", dir.display());
        }
        let state = State::find_live(&dir)?;
        if state.is_some_and(|state| state.supervisor_pid == supervisor.id() && state.stack.is_some()) {
            return status(&root, name).await;
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            code = stop.wait() => {
                kill(Pid::from_raw(supervisor.id().cast_signed()), Signal::SIGTERM)?;
                supervisor.wait()?;
                return Ok(code);
            }
        }
    }
}

/// Shows what the supervisor has written since the last call.
fn relay(log: &mut File) -> Result<()> {
    let at = log.stream_position()?;
    let mut text = String::new();
    log.read_to_string(&mut text)?;
    // Half a line stays for the next time.
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    text[..whole].lines().for_each(term::tell);
    log.seek(SeekFrom::Start(at + whole as u64))?;
    Ok(())
}

pub async fn supervise(root: &Path, name: &str) -> Result<u8> {
    let mut stop = StopSignal::new()?;
    let options = StackOptions::lasting(root, name).progress(term::progress());
    let dir = options.data_dir.clone();
    // For `status`; but two that start at once must not tell lies about each other: the stack's lock lets one of them pass.
    if State::find_live(&dir)?.is_none() && dir.exists() {
        State::own(None).save(&dir)?;
    }
    let start = async {
        let stack = Stack::start(options).await?;
        let handle = stack.handle();
        if handle.psql("postgres", &format!("SELECT 1 FROM pg_database WHERE datname = '{LASTING_DATABASE}'")).await?
            != "1"
        {
            handle.create_database(LASTING_DATABASE, None).await?;
        }
        migrate(&handle, LASTING_DATABASE).await?;
        State::own(Some(handle)).save(&dir)?;
        anyhow::Ok(stack)
    };
    let stack = tokio::select! {
        stack = start => stack?,
        code = stop.wait() => return Ok(code),
    };
    let mut told = None;
    loop {
        tokio::select! {
            _ = stop.wait() => break,
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                let ended = stack.find_ended();
                if let Some(service) = ended && told != ended {
                    term::tell(&format!("devstack: {service:?} ended by itself; its log is in {}", dir.display()));
                }
                told = ended;
            }
        }
    }
    stack.shutdown().await?;
    State::remove(&dir)?;
    Ok(0)
}

pub async fn down(root: &Path, name: &str, wipe: bool) -> Result<u8> {
    let dir = root.join(name);
    match State::find_live(&dir)? {
        Some(state) => {
            stop_supervisor(&state).await?;
            term::tell(&format!("devstack: stack {name} is down"));
        }
        None => term::tell(&format!("devstack: stack {name} is not up")),
    }
    if dir.exists() {
        scan::wait_until_unused(&dir.canonicalize()?, STOP_PATIENCE).await?;
        State::remove(&dir)?;
        if wipe {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
    }
    Ok(0)
}

/// First in order, then, past its time, with SIGKILL: the kernel then ends the servers.
async fn stop_supervisor(state: &State) -> Result<()> {
    let pid = Pid::from_raw(state.supervisor_pid.cast_signed());
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        // It may have ended by itself since it was looked at.
        if state.is_live() {
            kill(pid, signal).with_context(|| format!("cannot send {signal} to the supervisor (pid {pid})"))?;
        }
        let deadline = Instant::now() + STOP_PATIENCE;
        while state.is_live() && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
    }
    ensure!(!state.is_live(), "the supervisor (pid {pid}) does not end");
    Ok(())
}

pub async fn status(root: &Path, name: &str) -> Result<u8> {
    let dir = root.join(name);
    let Some(state) = State::find_live(&dir)? else {
        term::print(&format!("stack {name} is not up"));
        return Ok(3);
    };
    let Some(handle) = state.stack else {
        term::print(&format!("stack {name} is starting (supervisor {})", state.supervisor_pid));
        return Ok(3);
    };
    let up = show(&handle).await;
    term::print(&format!("\nsupervisor {}, data in {}", state.supervisor_pid, handle.data_dir.display()));
    Ok(if up { 0 } else { 3 })
}

/// Prints the table; whether every server answers.
async fn show(handle: &StackHandle) -> bool {
    let servers = [
        ("postgres", handle.postgres_pid, handle.pg_port, handle.superuser_url(LASTING_DATABASE)),
        ("redis", handle.redis_pid, handle.redis_port, handle.redis_url()),
        ("rabbitmq", handle.rabbitmq_pid, handle.amqp_port, handle.amqp_url("/")),
        ("management", handle.rabbitmq_pid, handle.management_port, handle.management_url()),
    ];
    let mut rows = vec![["service", "pid", "port", "state", "url"].map(String::from).to_vec()];
    let mut all = true;
    for (service, pid, port, url) in servers {
        let up = accepts(port).await;
        all &= up;
        let pid = pid.map_or_else(|| "-".into(), |pid| pid.to_string());
        rows.push(vec![service.into(), pid, port.to_string(), if up { "up" } else { "DOWN" }.into(), url]);
    }
    term::print_table(&rows);
    all
}
