//! The append-only ledger: one JSON line per send request, whatever became of it, on disk before its fate is applied.
//! One line holds the decision and every accepted recipient, so a crash cannot leave half an acceptance. Lines of
//! concurrent requests share one fsync. The audit trusts this file alone, so a failed write stops the simulator.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

use anyhow::{Context, bail};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    SmsSend,
    WaSend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// At least one recipient was accepted and billed.
    Accepted,
    /// The provider answered; nothing was accepted.
    Refused,
    /// Nothing was accepted and the provider said nothing of its own.
    None,
}

/// One request. Texts and numbers are in clear: this is a test instrument.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    pub seq: u64,
    /// Epoch milliseconds of the decision; never decreases within a ledger.
    pub at: i64,
    pub kind: Kind,
    /// Header `X-Request-Id`.
    pub request_id: Option<String>,
    /// As sent.
    pub userid: Option<String>,
    /// The account, if the credentials were right.
    pub account: Option<String>,
    pub body_sha256: String,
    /// `senderid`, or `wabaNumber`.
    pub sender: Option<String>,
    pub text: Option<String>,
    pub msg_type: Option<String>,
    pub send_method: Option<String>,
    pub dlt_entity_id: Option<String>,
    pub dlt_template_id: Option<String>,
    pub schedule_time: Option<String>,
    /// As sent, in order.
    pub recipients: Vec<String>,
    pub decision: Decision,
    /// The code of the provider's answer, even where the fate hides it.
    pub code: Option<String>,
    /// The true transaction id, even where the answer hides it. WhatsApp has none: its one id is the message's.
    pub txn: Option<String>,
    pub accepted: Vec<Accepted>,
    pub invalid: Vec<String>,
    pub duplicates: Vec<String>,
    pub units: u64,
    pub amount: Decimal,
    pub fate: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Accepted {
    pub mobile: String,
    pub msg_id: String,
    pub units: u32,
    /// Per unit.
    pub price: Decimal,
    pub amount: Decimal,
    /// Epoch milliseconds at which the handset decides.
    pub done_at: i64,
    /// Delivery code from then on; `None` stays submitted.
    pub outcome: Option<String>,
}

#[derive(Debug)]
struct Line {
    seq: u64,
    entry: Arc<Entry>,
    durable: oneshot::Sender<()>,
}

#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    writer: Mutex<Option<Writer>>,
    durable_seq: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Writer {
    queue: mpsc::Sender<Line>,
    thread: JoinHandle<()>,
}

impl Ledger {
    /// Opens or creates the file, hands every whole line to `replay`, and cuts off a torn last one, which was never
    /// acknowledged. `broken` is cancelled when a line cannot be written.
    pub fn open(path: &Path, broken: CancellationToken, mut replay: impl FnMut(Entry)) -> anyhow::Result<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot open ledger {}", path.display()))?;
        file.try_lock().with_context(|| format!("ledger {} is in use", path.display()))?;
        let last = load(&mut file, &mut replay)?;
        sync_directory(path)?;

        let durable_seq = Arc::new(AtomicU64::new(last));
        let (queue, lines) = mpsc::channel();
        let watermark = Arc::clone(&durable_seq);
        let thread = std::thread::Builder::new().name("ledger".to_owned()).spawn(move || {
            if let Err(error) = write_batches(&mut file, &lines, &watermark) {
                tracing::error!(%error, "the ledger cannot be written: stopping");
                broken.cancel();
            }
        })?;
        Ok(Self { path: path.to_owned(), writer: Mutex::new(Some(Writer { queue, thread })), durable_seq })
    }

    /// Queues a line. Called in order of `seq`, under the book's lock. The receiver fails if the line is not durable.
    pub fn append(&self, entry: Arc<Entry>) -> oneshot::Receiver<()> {
        let (durable, receiver) = oneshot::channel();
        let line = Line { seq: entry.seq, entry, durable };
        let writer = self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(writer) = writer.as_ref()
            && let Err(unsent) = writer.queue.send(line)
        {
            drop(unsent);
        }
        receiver
    }

    /// Entries up to this one are on disk.
    pub fn durable_seq(&self) -> u64 {
        self.durable_seq.load(Ordering::Acquire)
    }

    /// Durable lines after `since`, as one JSON array. Reads the file: what an auditor gets is what is on disk.
    pub fn read_since(&self, since: u64) -> anyhow::Result<Vec<u8>> {
        #[derive(Deserialize)]
        struct SeqOnly {
            seq: u64,
        }
        let upto = self.durable_seq();
        let mut out = vec![b'['];
        for line in BufReader::new(File::open(&self.path)?).split(b'\n') {
            let line = line?;
            let Ok(SeqOnly { seq }) = serde_json::from_slice(&line) else { break };
            if seq > upto {
                break;
            }
            if seq > since {
                if out.len() > 1 {
                    out.push(b',');
                }
                out.extend_from_slice(&line);
            }
        }
        out.push(b']');
        Ok(out)
    }

    /// Writes what is queued and releases the file. Later appends fail.
    pub fn close(&self) {
        let writer = self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(Writer { queue, thread }) = writer {
            drop(queue);
            if thread.join().is_err() {
                tracing::error!("the ledger's writer panicked");
            }
        }
    }
}

fn load(file: &mut File, replay: &mut impl FnMut(Entry)) -> anyhow::Result<u64> {
    let mut reader = BufReader::new(&*file);
    let (mut whole, mut last, mut line) = (0_u64, 0, Vec::new());
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            if read > 0 {
                tracing::warn!(bytes = read, "cutting a torn last line off the ledger");
            }
            break;
        }
        let entry: Entry = serde_json::from_slice(&line).with_context(|| format!("ledger damaged after seq {last}"))?;
        if entry.seq != last + 1 {
            bail!("ledger jumps from seq {last} to {}", entry.seq);
        }
        last = entry.seq;
        whole += read as u64;
        replay(entry);
    }
    drop(reader);
    file.set_len(whole)?;
    file.seek(SeekFrom::End(0))?;
    file.sync_all()?;
    Ok(last)
}

fn sync_directory(path: &Path) -> anyhow::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    File::open(directory)?.sync_all()?;
    Ok(())
}

fn write_batches(file: &mut File, lines: &mpsc::Receiver<Line>, durable_seq: &AtomicU64) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    let mut waiting = Vec::new();
    while let Ok(first) = lines.recv() {
        bytes.clear();
        let mut last = first.seq;
        for line in std::iter::once(first).chain(lines.try_iter()) {
            serde_json::to_writer(&mut bytes, &*line.entry)?;
            bytes.push(b'\n');
            last = line.seq;
            waiting.push(line.durable);
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
        durable_seq.store(last, Ordering::Release);
        for durable in waiting.drain(..) {
            if durable.send(()).is_err() {
                tracing::debug!("a ledger line had nobody waiting for it");
            }
        }
    }
    Ok(())
}
