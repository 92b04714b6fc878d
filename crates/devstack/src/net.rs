//! Free ports, and waiting until a server answers.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::proc::{Child, POLL};

/// Ports handed out by this process: stacks that start at the same time in one process must not meet.
static HANDED_OUT: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Usual ports of RabbitMQ inside the range we draw from: free today, its owner's tomorrow.
const LEAVE_ALONE: [u16; 3] = [15_672, 15_692, 25_672];

/// `N` ports that nobody listens on, below the range the kernel draws outgoing ports from. A port of that range may be
/// taken by any connection between here and the server's start, and while a server is down, a client that keeps dialling
/// its port can connect to itself and hold it.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    const LOWEST: u16 = 12_000;
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end: u16 = range.split_ascii_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768);
    let count = end.saturating_sub(LOWEST);
    // A range of its own to draw from is a convenience; where the kernel's leaves none, take what it gives.
    let start = if count < 1_000 { 0 } else { random() % u64::from(count) };
    let candidates = (0..u64::from(count)).map(|step| (start + step) % u64::from(count.max(1)));
    let mut candidates = candidates.filter_map(|offset| u16::try_from(u64::from(LOWEST) + offset).ok());

    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut held = Vec::with_capacity(N);
    while held.len() < N {
        let port = if count < 1_000 { 0 } else { candidates.next().context("no free port on 127.0.0.1")? };
        if LEAVE_ALONE.contains(&port) || handed_out.contains(&port) {
            continue;
        }
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            handed_out.insert(listener.local_addr()?.port());
            held.push(listener);
        }
    }
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Waits until `probe` says yes. An error tells why not: the server ended, or took longer than `patience`.
pub(crate) async fn wait_ready(child: &Child, patience: Duration, probe: impl AsyncFn() -> bool) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("{} ended while starting ({status})\n{}", child.name(), child.log_tail());
        }
        if matches!(tokio::time::timeout(Duration::from_secs(5), probe()).await, Ok(true)) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("{} does not answer after {patience:?}\n{}", child.name(), child.log_tail());
        }
        tokio::time::sleep(POLL * 2).await;
    }
}

/// Whether something accepts connections on a loopback port.
pub async fn accepts(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok()
}

/// Sends `request` and tells whether the answer starts with `expected`.
pub(crate) async fn answers(port: u16, request: &[u8], expected: &[u8]) -> bool {
    let ask = async || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(request).await?;
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer == expected)
    };
    ask().await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_not_handed_out_twice() {
        let first: [u16; 6] = free_ports().unwrap();
        let second: [u16; 6] = free_ports().unwrap();
        let all: BTreeSet<u16> = first.into_iter().chain(second).collect();
        assert_eq!(all.len(), 12);
    }
}
