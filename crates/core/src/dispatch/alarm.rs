//! A worker that was stopped past its send budget must not write when it wakes up: between looking at the deadline and
//! writing there is always a gap. A pending SIGALRM ends the process before any instruction of ours runs. It narrows the
//! gap and proves nothing; the age bound on absence does.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Re-arms the alarm while the runtime lives; disarms it at the drain.
pub(super) async fn keep_armed(budget: Duration, drain: CancellationToken) -> anyhow::Result<()> {
    let seconds = u32::try_from(budget.as_secs_f64().ceil() as u64).unwrap_or(u32::MAX).max(1);
    while !drain.is_cancelled() {
        nix::unistd::alarm::set(seconds);
        tokio::select! {
            () = sleep(Duration::from_millis(250)) => {}
            () = drain.cancelled() => {}
        }
    }
    nix::unistd::alarm::cancel();
    Ok(())
}
