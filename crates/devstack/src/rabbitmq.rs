//! The private RabbitMQ with its management API, and an epmd of its own.
//!
//! Without an epmd that is already there the node starts `epmd -daemon`, which outlives it. With one for each stack every
//! node can have the same name, which is part of its data.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::http;
use crate::net::{accepts, answers, wait_ready};
use crate::proc::{Child, Program, Spawner, find_program};

/// The package's own script: the wrapper in PATH becomes the system user and refuses everyone else.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// Two schedulers that do not spin: a small machine is shared with the workers under test.
const ERLANG_ARGS: &str = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none \
                           -kernel inet_dist_use_interface {127,0,0,1} -start_epmd false";

#[derive(Debug, Clone)]
pub(crate) struct RabbitMq {
    pub(crate) amqp_port: u16,
    pub(crate) management_port: u16,
    pub(crate) epmd_port: u16,
    dist_port: u16,
    /// The stack's folder.
    stack: PathBuf,
    dir: PathBuf,
}

impl RabbitMq {
    pub(crate) fn new(stack: &Path, [amqp_port, management_port, epmd_port, dist_port]: [u16; 4]) -> Self {
        let dir = stack.join("rabbitmq");
        Self { amqp_port, management_port, epmd_port, dist_port, stack: stack.to_path_buf(), dir }
    }

    /// Lives as long as the stack, through every restart of the node.
    pub(crate) async fn start_epmd(&self, spawner: &Spawner) -> Result<Child> {
        let epmd = Program::new("epmd", epmd()?).clean_env().env("SENDONCE_STACK", &self.stack).dir(&self.stack);
        let epmd = epmd.args(["-port", &self.epmd_port.to_string(), "-address", "127.0.0.1"]);
        let child = spawner.spawn(epmd.log(self.stack.join("epmd.log")))?;
        wait_ready(&child, Duration::from_secs(60), async || accepts(self.epmd_port).await).await?;
        Ok(child)
    }

    pub(crate) async fn start(&self, spawner: &Spawner) -> Result<Child> {
        self.write_files().with_context(|| format!("cannot write to {}", self.dir.display()))?;
        let child = spawner.spawn(self.program())?;
        wait_ready(&child, Duration::from_secs(180), async || self.answers().await).await?;
        Ok(child)
    }

    /// The port accepts long before the broker can work; it sends its first frame only when it can.
    pub(crate) async fn answers(&self) -> bool {
        answers(self.amqp_port, b"AMQP\0\0\x09\x01", &[1]).await
            && http::call(self.management_port, "GET", "/api/overview?columns=node", "")
                .await
                .is_ok_and(|answer| answer.status == 200)
    }

    fn program(&self) -> Program {
        let program = Program::new("rabbitmq", SERVER).clean_env().env("SENDONCE_STACK", &self.stack);
        let paths = [
            ("HOME", ""),
            // Set to anything, it makes the script exec the VM, so that the pid in hand is the broker's.
            ("NOTIFY_SOCKET", "none"),
            ("RABBITMQ_CONFIG_FILE", "rabbitmq.conf"),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", "advanced.config"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "enabled_plugins"),
            ("RABBITMQ_PLUGINS_EXPAND_DIR", "expand"),
            ("RABBITMQ_GENERATED_CONFIG_DIR", "generated"),
            ("RABBITMQ_MNESIA_BASE", "mnesia"),
            ("RABBITMQ_LOG_BASE", "log"),
            ("RABBITMQ_FEATURE_FLAGS_FILE", "feature_flags"),
            ("RABBITMQ_PID_FILE", "node.pid"),
        ];
        let program = paths.iter().fold(program, |program, (key, file)| program.env(key, self.dir.join(file)));
        program
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_CRASH_DUMP", "/dev/null")
            .env("RABBITMQ_NODENAME", "sendonce@localhost")
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG_ARGS)
            .dir(&self.stack)
            .log(self.stack.join("rabbitmq.log"))
    }

    fn write_files(&self) -> Result<()> {
        fs::create_dir_all(self.dir.join("log"))?;
        // The short statistics interval makes queue counts fresh enough for a test to wait on; the small write-ahead log of
        // the quorum queues keeps a node with little traffic from holding half a gigabyte.
        let conf = format!(
            "listeners.tcp.1 = 127.0.0.1:{}\n\
             management.tcp.ip = 127.0.0.1\n\
             management.tcp.port = {}\n\
             collect_statistics_interval = 1000\n\
             disk_free_limit.absolute = 64MB\n\
             vm_memory_high_watermark.absolute = 1GB\n\
             raft.wal_max_size_bytes = 67108864\n\
             log.console = true\n\
             log.console.level = warning\n\
             log.file = false\n",
            self.amqp_port, self.management_port
        );
        fs::write(self.dir.join("rabbitmq.conf"), conf)?;
        fs::write(self.dir.join("advanced.config"), "[].\n")?;
        fs::write(self.dir.join("enabled_plugins"), "[rabbitmq_management].\n")?;
        self.write_cookie()
    }

    /// Made before the start: a node that makes its own does so in the caller's home.
    fn write_cookie(&self) -> Result<()> {
        use std::io::{Read, Write};
        let path = self.dir.join(".erlang.cookie");
        if path.exists() {
            return Ok(());
        }
        // Whoever knows it can run code in the node, so it must not be guessed by another user of this machine.
        let mut secret = [0; 16];
        fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path)?;
        write!(file, "{:032X}", u128::from_ne_bytes(secret))?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o400))?)
    }
}

fn epmd() -> Result<PathBuf> {
    if let Ok(found) = find_program(Path::new("epmd")) {
        return Ok(found);
    }
    let entries = fs::read_dir("/usr/lib/erlang").into_iter().flatten().flatten();
    let found = entries.map(|entry| entry.path().join("bin/epmd")).find(|path| path.is_file());
    found.context("no epmd found; on Debian and Ubuntu: apt-get install rabbitmq-server")
}
