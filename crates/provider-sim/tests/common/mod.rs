//! A simulator per test and a raw HTTP client: it shows resets, closes and silence as they are on the wire.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use provider_sim::{Options, Running, start};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

/// How long an answer may take on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(20);
/// What counts as silence where silence is expected.
pub const SILENCE: Duration = Duration::from_millis(500);

pub struct Bench {
    pub sim: Running,
    pub ledger: PathBuf,
}

#[derive(Debug, PartialEq)]
pub enum Seen {
    Answer { status: u16, head: String, body: String },
    Reset { received: String },
    Closed { received: String },
    Silence { received: String },
}

impl Seen {
    pub fn body(&self) -> &str {
        let Self::Answer { status: 200, body, .. } = self else { panic!("not a 200: {self:?}") };
        body
    }

    pub fn status(&self) -> u16 {
        let Self::Answer { status, .. } = self else { panic!("not an answer: {self:?}") };
        *status
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(self.body()).unwrap()
    }
}

pub fn fresh_ledger() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("sim-{}-{}.jsonl", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    if path.exists() {
        std::fs::remove_file(&path).unwrap();
    }
    path
}

pub fn options(ledger: &PathBuf) -> Options {
    Options { latency_ms: 0, api_key: Some("KEY1".to_owned()), ..Options::new(ledger) }
}

impl Bench {
    pub async fn new() -> Self {
        let ledger = fresh_ledger();
        Self::on(options(&ledger)).await
    }

    pub async fn on(options: Options) -> Self {
        let ledger = options.ledger.clone();
        Self { sim: start(options).await.unwrap(), ledger }
    }

    /// Fields of a correct request, then `changes`: a changed field replaces, `None` removes.
    pub async fn send(&self, mobile: &str, changes: &[(&str, Option<&str>)]) -> Seen {
        self.post("/SMSApi/send", &form(mobile, changes), "").await
    }

    pub async fn post(&self, path: &str, body: &str, headers: &str) -> Seen {
        exchange(self.sim.listen, &request("POST", path, body, headers)).await
    }

    pub async fn get(&self, path: &str) -> Seen {
        exchange(self.sim.listen, &request("GET", path, "", "")).await
    }

    pub async fn list(&self, extra: &str) -> Value {
        let path = format!("/SMSApi/reports/status?{CREDENTIALS}&method=getDlr&{}&{extra}", today());
        self.get(&path).await.json()
    }

    pub async fn turn(&self, patch: &str) -> Value {
        let headers = "Content-Type: application/json\r\n";
        let raw = request("PATCH", "/control", patch, headers).replace(FORM, "");
        exchange(self.sim.control, &raw).await.json()
    }

    pub async fn control(&self, method: &str, path: &str, body: &str) -> Seen {
        let raw = request(method, path, body, "Content-Type: application/json\r\n").replace(FORM, "");
        exchange(self.sim.control, &raw).await
    }

    pub async fn entries(&self) -> Vec<Value> {
        self.control("GET", "/ledger", "").await.json().as_array().unwrap().clone()
    }

    pub async fn summary(&self) -> Value {
        self.control("GET", "/ledger/summary", "").await.json()
    }

    /// The lines on disk, read past the simulator.
    pub fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.ledger).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

const FORM: &str = "Content-Type: application/x-www-form-urlencoded\r\n";
pub const CREDENTIALS: &str = "userid=demo&password=secret&output=json";

pub fn form(mobile: &str, changes: &[(&str, Option<&str>)]) -> String {
    let mut fields = vec![
        ("userid", "demo"),
        ("password", "secret"),
        ("sendMethod", "quick"),
        ("mobile", mobile),
        ("msg", "Hello"),
        ("senderid", "SNDONC"),
        ("msgType", "text"),
        ("dltEntityId", "1101"),
        ("dltTemplateId", "1107"),
        ("output", "json"),
    ];
    for (name, value) in changes {
        fields.retain(|(field, _)| field != name);
        fields.extend(value.map(|value| (*name, value)));
    }
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

pub fn request(method: &str, path: &str, body: &str, headers: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n{FORM}{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends raw bytes and reports how the connection ended.
pub async fn exchange(address: SocketAddr, raw: &str) -> Seen {
    exchange_within(address, raw, PATIENCE).await
}

pub async fn exchange_within(address: SocketAddr, raw: &str, patience: Duration) -> Seen {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(raw.as_bytes()).await.unwrap();
    read_within(&mut stream, patience).await
}

pub async fn read_all(stream: &mut TcpStream) -> Seen {
    read_within(stream, PATIENCE).await
}

/// Reads until the connection ends or nothing comes for that long.
pub async fn read_within(stream: &mut TcpStream, patience: Duration) -> Seen {
    let mut received = Vec::new();
    let mut buffer = vec![0; 65_536];
    let ended = loop {
        match timeout(patience, stream.read(&mut buffer)).await {
            Ok(Ok(0)) => break Ok(true),
            Ok(Ok(read)) => received.extend_from_slice(&buffer[..read]),
            Ok(Err(error)) => break Err(error.kind()),
            Err(_) => break Ok(false),
        }
    };
    let received = String::from_utf8(received).unwrap();
    match ended {
        Err(ErrorKind::ConnectionReset) => Seen::Reset { received },
        Err(kind) => panic!("{kind:?}"),
        Ok(false) => Seen::Silence { received },
        Ok(true) => match received.split_once("\r\n\r\n") {
            Some((head, body)) => Seen::Answer {
                status: head.split(' ').nth(1).unwrap().parse().unwrap(),
                head: head.to_owned(),
                body: body.to_owned(),
            },
            None => Seen::Closed { received },
        },
    }
}

/// `fromdate` and `todate` of the account's day.
pub fn today() -> String {
    #[expect(clippy::disallowed_methods, reason = "the simulator's own clock is the wall clock")]
    let day = chrono::Utc::now().with_timezone(&chrono_tz::Asia::Kolkata).format("%Y-%m-%d");
    format!("fromdate={day}&todate={day}")
}

pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
