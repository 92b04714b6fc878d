//! A test's own world on the shared stack.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use sendonce_core::config::{Config, Database};
use sendonce_core::store::{Store, Timing};
use sendonce_devstack::StackHandle;
use sendonce_devstack::fleet::{Fleet, FleetOptions};

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A name that no other test of this run has: for a vhost, a database and a folder.
fn unique(test: &str) -> String {
    let number = NEXT.fetch_add(1, Ordering::SeqCst);
    let short: String = test.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(30).collect();
    format!("t_{}_{number}_{short}", std::process::id())
}

/// A migrated database of its own, and a store on it as a worker connects.
pub async fn database(test: &str, timing: Timing) -> Result<(StackHandle, String, Store)> {
    let stack = StackHandle::from_env()?;
    let name = unique(test);
    stack.create_database(&name, stack.template.as_deref()).await?;
    let store = open(&stack, &name, timing)?;
    Ok((stack, name, store))
}

fn open(stack: &StackHandle, name: &str, timing: Timing) -> Result<Store> {
    let database = Database { url: stack.database_url(name, "sendonce_worker").into(), max_connections: 4 };
    Ok(Store::open(&database, timing, "sendonce-test")?)
}

/// A fleet of real binaries with a simulator, and a store to look with.
#[derive(Debug)]
pub struct World {
    pub fleet: Fleet,
    pub store: Store,
}

impl World {
    /// Prepares a world; `change` may override settings. Nothing is started yet.
    pub async fn prepare(test: &str, change: impl FnOnce(FleetOptions) -> FleetOptions) -> Result<Self> {
        Self::prepare_on(&StackHandle::from_env()?, test, change).await
    }

    /// Prepares a world on a stack of the test's own.
    pub async fn prepare_on(
        stack: &StackHandle,
        test: &str,
        change: impl FnOnce(FleetOptions) -> FleetOptions,
    ) -> Result<Self> {
        let name = unique(test);
        let folder = stack.data_dir.join("worlds").join(&name);
        let options = change(FleetOptions::new(name.clone(), folder));
        let fleet = Fleet::prepare(stack, options).await?;
        let store = open(stack, &name, Timing::of(&Config::default()))?;
        Ok(Self { fleet, store })
    }

    /// Prepares a world and starts one of everything.
    pub async fn start(test: &str, change: impl FnOnce(FleetOptions) -> FleetOptions) -> Result<Self> {
        let mut world = Self::prepare(test, change).await?;
        world.fleet.start().await?;
        Ok(world)
    }

    /// SQL as superuser, for looking and for arranging what no worker may do.
    pub async fn sql(&self, sql: &str) -> Result<String> {
        self.fleet.stack.psql(&self.fleet.name, sql).await
    }

    /// Rows in `state`.
    pub async fn count(&self, state: &str) -> Result<i64> {
        Ok(self.sql(&format!("select count(*) from outbound_message where state = '{state}'")).await?.parse()?)
    }

    /// Ends everything.
    pub async fn end(self) -> Result<()> {
        self.store.close().await;
        self.fleet.remove().await
    }
}
