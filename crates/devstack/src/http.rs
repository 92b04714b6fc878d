//! The few loopback calls to RabbitMQ's management API: HTTP/1.0, so that an answer is everything up to the end of the
//! stream and needs no decoding. Nothing here is fit for another server.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

/// guest:guest, RabbitMQ's own default user, which it lets in over loopback only.
const AUTHORIZATION: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    /// The body of a 2xx answer; an error with what the server said otherwise.
    pub(crate) fn success(self, what: &str) -> Result<String> {
        ensure!((200..300).contains(&self.status), "{what}: RabbitMQ answered {} {}", self.status, self.body.trim());
        Ok(self.body)
    }
}

/// One request; `path` is already encoded.
pub(crate) async fn call(port: u16, method: &str, path: &str, body: &str) -> Result<Answer> {
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {AUTHORIZATION}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        std::io::Result::Ok(bytes)
    };
    let bytes = tokio::time::timeout(PATIENCE, exchange).await;
    let bytes = bytes.with_context(|| format!("{method} {path}: no answer within {PATIENCE:?}"))?;
    let bytes = bytes.with_context(|| format!("{method} http://127.0.0.1:{port}{path}"))?;
    parse(&String::from_utf8_lossy(&bytes)).with_context(|| format!("{method} {path}"))
}

fn parse(text: &str) -> Result<Answer> {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { bail!("the answer has no end of headers") };
    let status = head.split_ascii_whitespace().nth(1).and_then(|code| code.parse().ok());
    Ok(Answer { status: status.context("the answer has no status")?, body: body.to_owned() })
}

/// Percent-encodes everything but RFC 3986's unreserved characters, so it fits any part of a URL.
pub(crate) fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vhost_is_encoded_for_a_url() {
        assert_eq!(encode("/"), "%2F");
        assert_eq!(encode("test-1_a.b~ü %"), "test-1_a.b~%C3%BC%20%25");
    }

    #[test]
    fn an_answer_is_read_to_its_end() {
        let answer = parse("HTTP/1.1 201 Created\r\ndate: now\r\n\r\n{\"a\":1}").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (201, "{\"a\":1}"));
        assert!(parse("HTTP/1.1 200").is_err());
    }
}
