//! The three servers of one stack: started together, each stopped and started again at will, ended together.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::handle::StackHandle;
use crate::net::free_ports;
use crate::options::{DataDir, Progress, StackOptions};
use crate::postgres::{Postgres, SUPERUSER};
use crate::proc::{Child, Signal, Spawner};
use crate::rabbitmq::RabbitMq;
use crate::redis::Redis;
use crate::scan;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Postgres,
    Redis,
    RabbitMq,
}

impl Service {
    pub const ALL: [Self; 3] = [Self::Postgres, Self::Redis, Self::RabbitMq];
}

/// How a server goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// In order; RabbitMQ takes about 6 s.
    Clean,
    /// PostgreSQL without a checkpoint (crash recovery at the next start); the others as [`StopMode::Kill`].
    Immediate,
    /// `kill -9`. RabbitMQ 3.10 then sometimes forgets a queue declared moments before, though it had answered: a durable
    /// classic queue was gone in 1 of 24 kills right after the answer.
    Kill,
}

/// A running stack. Dropping it ends the servers, and removes the folder of a throwaway one.
#[derive(Debug)]
pub struct Stack {
    // Fields are dropped in this order: the servers before the epmd they need, all of them before the folder.
    running: Running,
    _epmd: Child,
    spawner: Spawner,
    servers: Servers,
    name: String,
    template: Option<String>,
    throwaway: bool,
    dir: DataDir,
}

/// How each server is started.
#[derive(Debug)]
struct Servers {
    postgres: Postgres,
    redis: Redis,
    rabbitmq: RabbitMq,
}

/// `None`: stopped on purpose.
#[derive(Debug, Default)]
struct Running {
    postgres: Mutex<Option<Child>>,
    redis: Mutex<Option<Child>>,
    rabbitmq: Mutex<Option<Child>>,
}

impl Stack {
    /// Starts all three at once and returns when each answers. Safe to cancel: what has started ends with the future.
    pub async fn start(options: StackOptions) -> Result<Self> {
        let dir = DataDir::claim(&options)?;
        // Servers of an owner that was killed may still be going down in this folder.
        scan::wait_until_unused(&dir.path, Duration::from_secs(20)).await?;
        let spawner = Spawner::new()?;
        let mut tries = 3;
        let (servers, epmd, running) = loop {
            tries -= 1;
            let servers = Servers::new(&dir.path)?;
            match servers.start(&spawner, &options.progress).await {
                Ok((epmd, running)) => break (servers, epmd, running),
                // Nobody holds a port for us between the choice and the server's start.
                Err(error) if tries > 0 && is_port_clash(&error) => {
                    options.progress.tell("a port was taken meanwhile: once more with others");
                }
                Err(error) => return Err(error.context(format!("stack {} did not start", options.name))),
            }
        };
        let (name, throwaway) = (options.name, options.throwaway);
        Ok(Self { running, _epmd: epmd, spawner, servers, name, template: None, throwaway, dir })
    }

    /// The stack as plain data, with the pids of now.
    pub fn handle(&self) -> StackHandle {
        let Servers { postgres, redis, rabbitmq } = &self.servers;
        StackHandle {
            name: self.name.clone(),
            data_dir: self.dir.path.clone(),
            pg_port: postgres.port,
            pg_superuser: SUPERUSER.into(),
            pg_bin: postgres.bin.clone(),
            redis_port: redis.port,
            amqp_port: rabbitmq.amqp_port,
            management_port: rabbitmq.management_port,
            postgres_pid: self.pid(Service::Postgres),
            redis_pid: self.pid(Service::Redis),
            rabbitmq_pid: self.pid(Service::RabbitMq),
            template: self.template.clone(),
        }
    }

    /// Makes `name` an empty database, migrates it, and offers it as what tests copy.
    pub async fn make_template(&mut self, name: &str) -> Result<()> {
        let handle = self.handle();
        handle.create_database(name, None).await?;
        crate::migrate(&handle, name).await?;
        self.template = Some(name.to_owned());
        Ok(())
    }

    pub fn data_dir(&self) -> &Path {
        &self.dir.path
    }

    /// Starts further programs (workers, the simulator) that end with this process as the servers do.
    pub fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// `None` while it is stopped.
    pub fn pid(&self, service: Service) -> Option<u32> {
        self.slot(service).as_ref().map(Child::pid)
    }

    /// Sends a signal to a server's main process (SIGSTOP stops RabbitMQ and Redis whole, of PostgreSQL the postmaster only).
    pub fn signal(&self, service: Service, signal: Signal) -> Result<()> {
        let slot = self.slot(service);
        slot.as_ref().with_context(|| format!("{service:?} is stopped"))?.signal(signal)
    }

    /// Stops a server and returns when it is gone; its port stays its own. A stopped one is left alone.
    pub async fn stop(&self, service: Service, mode: StopMode) -> Result<()> {
        // Taken out of the slot at once: the lock is not held while waiting.
        let Some(child) = self.slot(service).take() else { return Ok(()) };
        let signal = match (service, mode) {
            (Service::Postgres, StopMode::Clean) => Signal::SIGINT,
            (Service::Postgres, StopMode::Immediate) => Signal::SIGQUIT,
            (Service::Redis | Service::RabbitMq, StopMode::Clean) => Signal::SIGTERM,
            (Service::Redis | Service::RabbitMq, StopMode::Immediate) => Signal::SIGKILL,
            (Service::Postgres | Service::Redis | Service::RabbitMq, StopMode::Kill) => Signal::SIGKILL,
        };
        child.stop(signal, Duration::from_secs(60)).await.map(drop)
    }

    /// Starts a stopped server on its old port and data, and returns when it answers.
    pub async fn start_service(&self, service: Service) -> Result<()> {
        if self.pid(service).is_some() {
            bail!("{service:?} is not stopped");
        }
        let child = match service {
            Service::Postgres => self.servers.postgres.start(&self.spawner).await?,
            Service::Redis => self.servers.redis.start(&self.spawner).await?,
            Service::RabbitMq => self.servers.rabbitmq.start(&self.spawner).await?,
        };
        *self.slot(service) = Some(child);
        Ok(())
    }

    pub async fn restart(&self, service: Service, mode: StopMode) -> Result<()> {
        self.stop(service, mode).await?;
        self.start_service(service).await
    }

    /// Whether a server answers its protocol.
    pub async fn answers(&self, service: Service) -> bool {
        match service {
            Service::Postgres => self.servers.postgres.answers().await,
            Service::Redis => self.servers.redis.answers().await,
            Service::RabbitMq => self.servers.rabbitmq.answers().await,
        }
    }

    /// A server that ended though nobody stopped it.
    pub fn find_ended(&self) -> Option<Service> {
        Service::ALL.into_iter().find(|service| self.slot(*service).as_ref().is_some_and(|child| !child.is_running()))
    }

    /// Ends all servers: in order, or at once if the stack is thrown away. Says what went wrong, which a drop cannot.
    pub async fn shutdown(self) -> Result<()> {
        let mode = if self.throwaway { StopMode::Immediate } else { StopMode::Clean };
        tokio::try_join!(
            self.stop(Service::Postgres, mode),
            self.stop(Service::Redis, mode),
            self.stop(Service::RabbitMq, mode)
        )?;
        Ok(())
    }

    fn slot(&self, service: Service) -> MutexGuard<'_, Option<Child>> {
        let slot = match service {
            Service::Postgres => &self.running.postgres,
            Service::Redis => &self.running.redis,
            Service::RabbitMq => &self.running.rabbitmq,
        };
        slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Servers {
    fn new(dir: &Path) -> Result<Self> {
        let [postgres, redis, amqp, management, epmd, dist] = free_ports()?;
        Ok(Self {
            postgres: Postgres::new(dir, postgres)?,
            redis: Redis::new(dir, redis),
            rabbitmq: RabbitMq::new(dir, [amqp, management, epmd, dist]),
        })
    }

    async fn start(&self, spawner: &Spawner, progress: &Progress) -> Result<(Child, Running)> {
        let begun = Instant::now();
        let ready = |name: &str, port: u16| {
            progress.tell(&format!("{name} ready on 127.0.0.1:{port} ({:.1} s)", begun.elapsed().as_secs_f32()));
        };
        progress.tell("starting postgres, redis and rabbitmq");
        let postgres = async {
            let child = self.postgres.start(spawner).await?;
            ready("postgres", self.postgres.port);
            anyhow::Ok(child)
        };
        let redis = async {
            let child = self.redis.start(spawner).await?;
            ready("redis", self.redis.port);
            anyhow::Ok(child)
        };
        let rabbitmq = async {
            let epmd = self.rabbitmq.start_epmd(spawner).await?;
            let child = self.rabbitmq.start(spawner).await?;
            ready("rabbitmq", self.rabbitmq.amqp_port);
            anyhow::Ok((epmd, child))
        };
        let (postgres, redis, (epmd, rabbitmq)) = tokio::try_join!(postgres, redis, rabbitmq)?;
        let slot = |child| Mutex::new(Some(child));
        Ok((epmd, Running { postgres: slot(postgres), redis: slot(redis), rabbitmq: slot(rabbitmq) }))
    }
}

/// As the servers put it in the end of their logs, which a failed start carries.
fn is_port_clash(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}").to_lowercase();
    ["already in use", "eaddrinuse", "in use by another"].iter().any(|words| text.contains(words))
}
