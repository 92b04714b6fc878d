//! Waiting for something to become true: polled with a deadline, never slept for.

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine before it counts as not happening.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until `probe` gives `Ok`; fails with the last `Err` after [`PATIENCE`].
///
/// # Panics
/// When the deadline passes.
pub async fn eventually<T, E, F, R>(what: &str, mut probe: F) -> T
where
    E: Debug,
    F: FnMut() -> R,
    R: Future<Output = Result<T, E>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(why) if Instant::now() > deadline => panic!("{what}: not within {PATIENCE:?}: {why:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(25)).await,
        }
    }
}
