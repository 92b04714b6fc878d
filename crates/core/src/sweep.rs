//! The shape of every periodic job: a pass, a jittered wait, a report of life; after an error the waits grow. A pass is
//! safe with many replicas.

use std::future::Future;
use std::time::Duration;

use tokio::time::sleep;

use crate::service::Context;

const SLOWEST: Duration = Duration::from_secs(30);

/// Runs `pass` about every `every` until the drain. A pass says whether it found a full batch, after which the next one
/// follows at once.
///
/// # Errors
/// None: a failing pass is logged once per outage, counted and tried again.
pub async fn sweep<F, R>(ctx: Context, name: &'static str, every: Duration, mut pass: F) -> anyhow::Result<()>
where
    F: FnMut() -> R,
    R: Future<Output = anyhow::Result<More>>,
{
    let drain = ctx.tasks.draining().clone();
    let mut failures = 0u32;
    ctx.metrics.begin_sweep(name);
    while !drain.is_cancelled() {
        ctx.health.beat(name, every * 4 + SLOWEST * 2);
        let wait = match pass().await {
            Ok(more) => {
                if failures > 0 {
                    tracing::info!(sweep = name, failures, "the sweep works again");
                }
                failures = 0;
                ctx.metrics.count_sweep(name, true);
                if more == More::Yes { Duration::ZERO } else { every }
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(
                        sweep = name,
                        error = format!("{error:#}"),
                        "a sweep failed and will be tried again"
                    );
                }
                failures = failures.saturating_add(1);
                ctx.metrics.count_sweep(name, false);
                (every * 2u32.pow(failures.min(6))).min(SLOWEST.max(every))
            }
        };
        let jittered = wait.mul_f64(0.75 + ctx.entropy.fraction() / 2.0);
        tokio::select! {
            () = sleep(jittered) => {}
            () = drain.cancelled() => {}
        }
    }
    Ok(())
}

/// Whether a pass left work behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    Yes,
    No,
}
