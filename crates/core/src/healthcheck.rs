//! What a container's health check runs: one question to the health port of the process beside it, over plain TCP, so
//! that an image needs neither a shell nor a client. It refuses a port that only the running process knows.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail};

/// Above the time that `/readyz` gives the database.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_ANSWER: u64 = 64 * 1024;

/// The body of `path`, which is an error's text unless the process answers 200.
pub(crate) fn ask(listen: &str, path: &str) -> anyhow::Result<String> {
    let address = address(listen)?;
    let text = exchange(address, path).with_context(|| format!("http://{address}{path} does not answer"))?;
    let (head, body) = text.split_once("\r\n\r\n").context("the answer has no end of headers")?;
    let body = body.trim_end().to_owned();
    match head.split_ascii_whitespace().nth(1) {
        Some("200") => Ok(body),
        Some(status) => bail!("{status} {body}"),
        None => bail!("the answer has no status"),
    }
}

/// HTTP/1.0: the answer is everything up to the end of the stream.
fn exchange(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Where a process that listens on `listen` is reached from beside it.
fn address(listen: &str) -> anyhow::Result<SocketAddr> {
    let mut found = listen.to_socket_addrs().with_context(|| format!("`admin.listen` is no address: {listen}"))?;
    let mut address = found.next().with_context(|| format!("`admin.listen` names no host: {listen}"))?;
    if address.port() == 0 {
        bail!("`admin.listen` ({listen}) has no fixed port: only the running process knows it");
    }
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_is_asked_over_loopback() {
        assert_eq!(address("0.0.0.0:9090").unwrap().to_string(), "127.0.0.1:9090");
        assert_eq!(address("[::]:9090").unwrap().to_string(), "[::1]:9090");
        assert_eq!(address("10.1.2.3:9090").unwrap().to_string(), "10.1.2.3:9090");
    }

    #[test]
    fn a_port_that_only_the_process_knows_is_refused() {
        assert!(address("127.0.0.1:0").unwrap_err().to_string().contains("no fixed port"));
    }
}
