//! Child processes that cannot outlive their owner.
//!
//! Every child is started as `setsid setpriv --pdeathsig SIG … program`: a session of its own, and a signal from the kernel
//! when its parent dies, so a `kill -9` of the owner leaves nothing behind. The chain only ever execs: the pid in hand is
//! the program's own. That signal fires when the *thread* that spawned the child ends, hence the [`Spawner`]: one thread
//! that does nothing else and lives as long as any child. It covers direct children only; a program that starts others
//! has to tie them to itself.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
pub use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::scan;

/// How often a wait looks again: short beside every start and stop this crate waits for.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// How long a dropped child may take to follow its death signal before it is killed.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

/// Ends the start if the owner died between fork and the request for the death signal: the kernel would not tell any more.
const PARENT_GUARD: &str = r#"[ "$PPID" = "$0" ] || exit 125; exec "$@""#;

/// A program to start.
#[derive(Debug, Clone)]
pub struct Program {
    name: String,
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    clean_env: bool,
    dir: Option<PathBuf>,
    log: Option<PathBuf>,
    death_signal: Signal,
    prefix: Vec<OsString>,
}

impl Program {
    /// `program` is a path, or a name that is looked up in PATH. `name` is for messages.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            clean_env: false,
            dir: None,
            log: None,
            death_signal: Signal::SIGKILL,
            prefix: Vec::new(),
        }
    }

    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Starts from an empty environment but for PATH and LANG, so that a developer's `PGHOST` or `RABBITMQ_*` changes nothing.
    #[must_use]
    pub fn clean_env(mut self) -> Self {
        self.clean_env = true;
        self
    }

    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Appends stdout and stderr to this file; without it both are the owner's.
    #[must_use]
    pub fn log(mut self, path: impl Into<PathBuf>) -> Self {
        self.log = Some(path.into());
        self
    }

    /// What the kernel sends when the owner dies; SIGKILL unless set.
    #[must_use]
    pub fn death_signal(mut self, signal: Signal) -> Self {
        self.death_signal = signal;
        self
    }

    /// Words put in front: they change the user. They come before the death signal is asked for, which a change of user clears.
    #[must_use]
    pub(crate) fn prefix(mut self, words: &[OsString]) -> Self {
        self.prefix = words.to_vec();
        self
    }

    fn command(&self) -> Result<Command> {
        // Checked here because a missing program would otherwise only be seen as exit code 127 of the guard.
        find_program(&self.program).with_context(|| format!("{} cannot start", self.name))?;
        let mut command = Command::new("setsid");
        command.args(&self.prefix).arg("setpriv");
        command.arg("--pdeathsig").arg(self.death_signal.as_str().trim_start_matches("SIG"));
        command.args(["--", "sh", "-c", PARENT_GUARD]).arg(std::process::id().to_string());
        command.arg(&self.program).args(&self.args);
        if self.clean_env {
            clean_env(&mut command);
        }
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::null());
        if let Some(path) = &self.log {
            let log = OpenOptions::new().create(true).append(true).open(path);
            let log = log.with_context(|| format!("cannot open the log {}", path.display()))?;
            command.stdout(log.try_clone()?).stderr(log);
        }
        Ok(command)
    }
}

pub(crate) fn clean_env(command: &mut Command) {
    command.env_clear();
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("LANG", "C.UTF-8");
}

/// The file that `program` names, looked up in PATH when it is a bare name.
pub(crate) fn find_program(program: &Path) -> Result<PathBuf> {
    if program.components().count() > 1 {
        ensure!(program.is_file(), "{} does not exist", program.display());
        return Ok(program.to_path_buf());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.with_context(|| format!("{} is not in PATH", program.display()))
}

type Started = io::Result<std::process::Child>;

/// Starts children from one thread that lives as long as the spawner, its clones and their children.
#[derive(Debug, Clone)]
pub struct Spawner {
    jobs: mpsc::Sender<(Command, mpsc::Sender<Started>)>,
}

impl Spawner {
    pub fn new() -> Result<Self> {
        let (jobs, inbox) = mpsc::channel::<(Command, mpsc::Sender<Started>)>();
        let thread = thread::Builder::new().name("spawner".into());
        thread.spawn(move || {
            for (mut command, reply) in inbox {
                // The asker waits for the answer, so the send cannot fail but while the process ends.
                drop(reply.send(command.spawn()));
            }
        })?;
        Ok(Self { jobs })
    }

    /// Returns as soon as the process exists; whether it is of use is for the caller to find out.
    pub fn spawn(&self, program: Program) -> Result<Child> {
        let command = program.command()?;
        let (reply, answer) = mpsc::channel();
        self.jobs.send((command, reply)).ok().context("the spawner thread is gone")?;
        let process = answer.recv().context("the spawner thread is gone")?;
        let process = process.with_context(|| format!("cannot start {}", program.name))?;
        Ok(Child {
            pid: process.id(),
            name: program.name,
            log: program.log,
            death_signal: program.death_signal,
            process: Mutex::new(process),
            _spawner: self.clone(),
        })
    }
}

/// A running or ended child. Dropping it ends it: with its death signal first, then with SIGKILL.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    name: String,
    log: Option<PathBuf>,
    death_signal: Signal,
    process: Mutex<std::process::Child>,
    /// Keeps the thread alive that the kernel takes for this child's parent.
    _spawner: Spawner,
}

impl Child {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its exit status if it has ended.
    pub fn try_wait(&self) -> Result<Option<ExitStatus>> {
        self.process().try_wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    pub fn is_running(&self) -> bool {
        matches!(self.try_wait(), Ok(None))
    }

    /// Waits until it ends; an error, and the child untouched, if that takes longer than `patience`.
    pub async fn wait(&self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} (pid {}) still runs after {patience:?}\n{}", self.name, self.pid, self.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Sends a signal; to a child that has ended this is a success without effect.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // While the lock is held nobody else reaps, so the pid cannot have gone to another process.
        let mut process = self.process();
        if process.try_wait()?.is_some() {
            return Ok(());
        }
        nix::sys::signal::kill(Pid::from_raw(self.pid.cast_signed()), signal)
            .with_context(|| format!("cannot send {signal} to {} (pid {})", self.name, self.pid))
    }

    /// Sends a signal to it and to every process it started that has stayed in its session's first group.
    pub fn signal_group(&self, signal: Signal) -> Result<()> {
        let mut process = self.process();
        if process.try_wait()?.is_some() {
            return Ok(());
        }
        nix::sys::signal::killpg(Pid::from_raw(self.pid.cast_signed()), signal)
            .with_context(|| format!("cannot send {signal} to the group of {} (pid {})", self.name, self.pid))
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill(&self) -> Result<ExitStatus> {
        self.signal(Signal::SIGKILL)?;
        self.wait(Duration::from_secs(30)).await
    }

    /// Asks it to end (SIGTERM); does not wait.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::SIGTERM)
    }

    /// Sends `signal`, waits for `patience`, kills what is left.
    pub async fn stop(&self, signal: Signal, patience: Duration) -> Result<ExitStatus> {
        self.signal(signal)?;
        match self.wait(patience).await {
            Ok(status) => Ok(status),
            Err(_) => self.kill().await,
        }
    }

    /// SIGSTOP, and waits until the kernel shows it as stopped.
    pub async fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while scan::run_state(self.pid) != Some('T') {
            ensure!(self.is_running(), "{} ended instead of pausing", self.name);
            ensure!(Instant::now() < deadline, "{} (pid {}) does not pause", self.name, self.pid);
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// The end of its log, for an error message.
    pub fn log_tail(&self) -> String {
        self.log.as_deref().map(log_tail).unwrap_or_default()
    }

    fn process(&self) -> MutexGuard<'_, std::process::Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Child {
    /// Blocks until the child is reaped, so that whoever removes its folder next finds nobody writing there.
    fn drop(&mut self) {
        if !self.is_running() || self.signal(self.death_signal).is_err() {
            return;
        }
        let deadline = Instant::now() + DROP_PATIENCE;
        while self.is_running() && Instant::now() < deadline {
            thread::sleep(POLL / 5);
        }
        if self.signal(Signal::SIGKILL).is_ok() {
            drop(self.process().wait());
        }
    }
}

/// The last lines of a log, introduced by its path; says so when there is nothing.
pub(crate) fn log_tail(path: &Path) -> String {
    const BYTES: u64 = 4096;
    const LINES: usize = 15;
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let start = file.metadata()?.len().saturating_sub(BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LINES)..];
    if tail.is_empty() {
        return format!("  (nothing in {})", path.display());
    }
    format!("  end of {}:\n    {}", path.display(), tail.join("\n    "))
}

/// Runs a short-lived helper to its end and returns its output; an error carries what it wrote.
pub(crate) async fn run_tool<A: AsRef<OsStr>>(program: &Path, args: &[A]) -> Result<String> {
    let mut command = Command::new(program);
    clean_env(&mut command);
    command.args(args).stdin(Stdio::null());
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await;
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", program.display(), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
