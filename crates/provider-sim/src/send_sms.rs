//! `POST /SMSApi/send`: reading the request and ruling on it, which [`crate::send_wa`] shares. The ruling is made under the book's lock and touches
//! nothing but the book, so wallet, duplicates and ledger order agree; [`crate::answer`] then applies the fate.

mod rule;

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{ConnectInfo, RawQuery, State},
    http::HeaderMap,
    response::Response,
};
use sha2::{Digest, Sha256};

use crate::{
    answer::{self, Answer, Reply},
    clock,
    fate::Fate,
    form::Fields,
    ledger::{Entry, Kind},
    node::Output,
    push,
    sim::Sim,
    socket::Line,
};

/// Answer of a request that followed our redirect: taken at face value, so that following it shows in the ledger.
pub const FOLLOWED: &str = "followed=1";

#[derive(Debug)]
pub struct SendRequest {
    kind: Kind,
    request_id: Option<String>,
    api_key: Option<String>,
    fields: Fields,
    body_sha256: String,
    recipients: Vec<String>,
    output: Output,
    followed: bool,
}

impl SendRequest {
    pub fn read(kind: Kind, query: Option<&str>, headers: &HeaderMap, body: &[u8]) -> Self {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let fields = Fields::read(None, headers, body);
        let recipients = fields.filled("mobile").map(|list| list.split(',').map(str::to_owned).collect());
        Self {
            kind,
            request_id: header("x-request-id"),
            api_key: header("apikey"),
            output: Output::parse(fields.get("output")),
            body_sha256: hex(&Sha256::digest(body)),
            recipients: recipients.unwrap_or_default(),
            followed: query == Some(FOLLOWED),
            fields,
        }
    }
}

/// What the handler has to do once the entry is durable.
#[derive(Debug)]
struct Ruled {
    fate: Fate,
    reply: Reply,
    first_tries: Vec<tokio::sync::oneshot::Receiver<()>>,
}

pub async fn handle(
    State(sim): State<Arc<Sim>>,
    ConnectInfo(line): ConnectInfo<Line>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    take(&sim, &line, SendRequest::read(Kind::SmsSend, query.as_deref(), &headers, &body)).await
}

/// Rules on a request of either channel and applies its fate.
pub async fn take(sim: &Arc<Sim>, line: &Line, request: SendRequest) -> Response {
    let (kind, output) = (request.kind, request.output);
    let ruled = sim.tasks.spawn(submit(Arc::clone(sim), request)).await;
    let Ok(Some(Ruled { fate, reply, first_tries })) = ruled else {
        return answer::broken();
    };
    for first_try in first_tries {
        if first_try.await.is_err() {
            tracing::trace!("a receipt due before the answer was withheld");
        }
    }
    answer::deliver(sim, line, Answer { kind, fate, reply, output }).await
}

/// Rules on the request and makes the ruling durable. `None` if the ledger could not be written.
async fn submit(sim: Arc<Sim>, request: SendRequest) -> Option<Ruled> {
    let inbox = sim.knobs().send.inbox_ms;
    answer::pause(inbox).await;
    let (entry, durable, fate, reply, zone) = {
        let knobs = sim.knobs();
        let mut book = sim.book();
        let at = book.monotone(clock::now_ms());
        let seq = book.next_seq();
        let account = book.accounts.authenticate(&request.fields, request.api_key.as_deref()).cloned();
        let ruling = rule::on(&request, account.clone(), &mut book, &knobs, rule::Stamp { at, seq, ids: sim.ids });
        let entry = Arc::new(entry_of(request, &account.as_ref().ok().map(|a| a.userid.clone()), &ruling, at, seq));
        book.apply(Arc::clone(&entry));
        let durable = sim.ledger.append(Arc::clone(&entry));
        (entry, durable, ruling.fate, ruling.reply, account.map_or(chrono_tz::UTC, |account| account.zone))
    };
    durable.await.ok()?;
    let first_tries = push::schedule(&sim, &entry, zone);
    Some(Ruled { fate, reply, first_tries })
}

fn entry_of(request: SendRequest, account: &Option<String>, ruling: &rule::Ruling, at: i64, seq: u64) -> Entry {
    let fields = &request.fields;
    let (sender, schedule) = match request.kind {
        Kind::SmsSend => ("senderid", "scheduleTime"),
        Kind::WaSend => ("wabaNumber", "scheduletime"),
    };
    Entry {
        seq,
        at,
        kind: request.kind,
        userid: fields.owned("userid"),
        account: account.clone(),
        sender: fields.owned(sender),
        text: fields.owned("msg"),
        msg_type: fields.owned("msgType"),
        send_method: fields.owned("sendMethod"),
        dlt_entity_id: fields.owned("dltEntityId"),
        dlt_template_id: fields.owned("dltTemplateId"),
        schedule_time: fields.owned(schedule),
        request_id: request.request_id,
        body_sha256: request.body_sha256,
        recipients: request.recipients,
        decision: ruling.decision,
        code: ruling.code.map(str::to_owned),
        txn: ruling.txn.clone(),
        units: ruling.accepted.iter().map(|one| u64::from(one.units)).sum(),
        amount: ruling.accepted.iter().map(|one| one.amount).sum(),
        accepted: ruling.accepted.clone(),
        invalid: ruling.invalid.clone(),
        duplicates: ruling.duplicates.clone(),
        fate: ruling.word.to_owned(),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // Writing to a string cannot fail.
        write!(out, "{byte:02x}").unwrap_or_default();
        out
    })
}
