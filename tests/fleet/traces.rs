//! F4: one trace from the event to the receipt. The collector and the provider are the test's own, so that both ends of each
//! hand-over are seen.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, Consumer};
use sendonce_core::broker::Outgoing;
use sendonce_devstack::fleet::{FleetOptions, Role};
use sendonce_tests::{Collector, Event, Spanned, World, eventually, publish};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::flow::{number, orders};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const EVENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const EVENT_SPAN: &str = "00f067aa0ba902b7";
const PUSH: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TXN: &str = "6305583318236810379";
const BODY: &str = "A canary that no span may sing";

#[tokio::test]
async fn f4_one_trace_runs_from_the_event_to_the_receipt() -> Result<()> {
    let collector = Collector::start().await?;
    let provider = FakeProvider::start().await?;
    // No sweep: it may be quicker than the applier to match a receipt that was just stored.
    let traced = |options: FleetOptions| {
        provider.serve(options).set("traces.endpoint", &collector.endpoint()).set("sweeps.receipts_every", "\"1h\"")
    };
    let mut world = World::prepare("one_trace", traced).await?;
    world.fleet.start_workers().await?;
    let mut jobs = tap_jobs(&world).await?;
    publish(&world.fleet.amqp_url(), &[event("E-traced", &number(77), Some(EVENT))]).await?;
    let job = next_trace_parent(&mut jobs).await?;
    world.reach("submitted", 1).await;
    push_receipt(&world, &number(77)).await?;
    world.reach("delivered", 1).await;

    let names = ["process ingest.transactional", "send send.sms.transactional", "submit sgc-main", "process receipts"];
    let [process, send, submit, receipt] = spans_of(&collector, TRACE, names).await;
    for (span, service, kind) in [
        (&process, "sendonce-ingest", 5),
        (&send, "sendonce-ingest", 4),
        (&submit, "sendonce-sms-sender", 3),
        (&receipt, "sendonce-dlr-ingester", 5),
    ] {
        assert_eq!((span.service.as_str(), span.kind, span.parent.as_str()), (service, kind, EVENT_SPAN), "{span:?}");
        assert!(!span.failed && span.events == 0, "{span:?}");
    }
    assert_eq!(job, Some(send.trace_parent()), "the job's header is the span that sent it");
    assert_eq!(provider.trace_parents(), [Some(submit.trace_parent())], "the provider's header is the attempt's span");
    assert_eq!(world.sql("select trace_parent from outbound_message").await?, EVENT, "the row bears the event's");

    let push = one(&collector, "POST /v1/receipts/{account}/{secret}").await;
    assert_eq!(
        (push.kind, push.trace_parent().get(..35), push.attributes["http.response.status_code"].as_str()),
        (2, PUSH.get(..35), "200")
    );
    assert_eq!(receipt.links, [(push.trace.clone(), push.id.clone())], "the receipt links to the push that brought it");

    let row = world
        .sql("select m.id, encode(m.business_key, 'hex'), s.attempt_key from outbound_message m join submission s on s.job_id = m.job_id")
        .await?;
    let [id, key, attempt]: [&str; 3] = row.split('|').collect::<Vec<_>>().try_into().unwrap();
    for (name, value) in [
        ("sendonce.message.id", id),
        ("sendonce.business.key", key),
        ("sendonce.attempt.key", attempt),
        ("sendonce.attempt.count", "1"),
        ("sendonce.recipients", "1"),
        ("sendonce.account", "sgc-main"),
        ("sendonce.verdict", "accepted"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(submit.attributes.get(name).map(String::as_str), Some(value), "{name}");
    }
    for (span, operation, destination) in [
        (&process, "process", "ingest.transactional"),
        (&send, "send", "send.sms.transactional"),
        (&receipt, "process", "receipts"),
    ] {
        for (name, value) in [
            ("messaging.system", "rabbitmq"),
            ("messaging.operation.name", operation),
            ("messaging.operation.type", operation),
            ("messaging.destination.name", destination),
        ] {
            assert_eq!(span.attributes.get(name).map(String::as_str), Some(value), "{}: {name}", span.name);
        }
    }
    let id: i64 = id.parse()?;
    eventually("support finds it by its trace id, which has an index (T27)", async || {
        ensure!(world.store.find_messages(TRACE).await? == [id]);
        let used =
            "select coalesce(sum(idx_scan), 0) > 0 from pg_stat_user_indexes where indexrelname like '%substring%'";
        ensure!(world.sql(used).await? == "t", "the index was not used");
        Ok(())
    })
    .await;
    assert_eq!(world.fleet.drain(std::time::Duration::from_secs(30)).await?, Vec::<String>::new());
    i11_nothing_personal_or_secret(&collector);
    world.end().await
}

fn i11_nothing_personal_or_secret(collector: &Collector) {
    let exports = collector.bytes();
    assert!(!exports.is_empty());
    let number = number(77);
    for canary in [&number, &number[2..], BODY, "canary", "stack-secret", "1207161000000000042", "ACMEIN", "password"] {
        let found = exports.iter().any(|bytes| bytes.windows(canary.len()).any(|part| part == canary.as_bytes()));
        assert!(!found, "I11: an exported span holds {canary}");
    }
}

#[tokio::test]
async fn f4_a_batch_links_to_the_trace_of_each_event_and_an_event_without_one_gets_one() -> Result<()> {
    let collector = Collector::start().await?;
    // Two events, no sooner and no later, make a batch.
    let batch = |options: FleetOptions| options.set("ingest.batch", "2").set("ingest.linger", "\"60s\"");
    let world =
        World::start("batch_trace", |options| batch(options).set("traces.endpoint", &collector.endpoint())).await?;
    let mut jobs = tap_jobs(&world).await?;
    let mut with = Event::sms("E-with", &[&number(1)], "It brings a trace").outgoing();
    let mut envelope: Value = serde_json::from_slice(&with.body)?;
    envelope["traceparent"] = EVENT.into();
    with.body = envelope.to_string().into_bytes();
    publish(&world.fleet.amqp_url(), &[with, event("E-without", &number(2), None)]).await?;
    world.reach("delivered", 2).await;

    let create = one(&collector, "create ingest.transactional").await;
    assert_eq!((create.kind, create.parent.as_str()), (4, ""));
    let rows = world.sql("select event_id, trace_parent from outbound_message order by 1").await?;
    assert_eq!(rows, format!("E-with|{EVENT}\nE-without|{}", create.trace_parent()));
    let links = [(TRACE.to_owned(), EVENT_SPAN.to_owned()), (create.trace.clone(), create.id.clone())];
    let process = one(&collector, "process ingest.transactional").await;
    let send = one(&collector, "send send.sms.transactional").await;
    for span in [&process, &send] {
        assert_eq!(span.parent, "", "it belongs to neither: {span:?}");
        assert!(span.links.len() == 2 && links.iter().all(|link| span.links.contains(link)), "{span:?}");
    }
    assert_eq!(process.attributes["messaging.batch.message_count"], "2");
    assert_eq!(next_trace_parent(&mut jobs).await?, Some(send.trace_parent()));
    // After the batch each message is on its own again.
    for trace in [TRACE, &create.trace] {
        spans_of(&collector, trace, ["submit sgc-main", "process receipts"]).await;
        assert_eq!(world.store.find_messages(trace).await?.len(), 1, "{trace}");
    }
    world.end().await
}

#[tokio::test]
async fn f4_with_traces_off_the_trace_of_an_event_is_still_handed_on() -> Result<()> {
    let provider = FakeProvider::start().await?;
    let mut world = World::prepare("no_traces", |options| provider.serve(options)).await?;
    world.fleet.start_workers().await?;
    let mut jobs = tap_jobs(&world).await?;
    publish(&world.fleet.amqp_url(), &[event("E-traced", &number(77), Some(EVENT))]).await?;
    assert_eq!(next_trace_parent(&mut jobs).await?.as_deref(), Some(EVENT));
    world.reach("submitted", 1).await;
    assert_eq!(provider.trace_parents(), [Some(EVENT.to_owned())]);
    publish(&world.fleet.amqp_url(), &[event("E-untraced", &number(78), None)]).await?;
    assert_eq!(next_trace_parent(&mut jobs).await?, None);
    world.reach("submitted", 2).await;
    assert_eq!(provider.trace_parents()[1], None);
    world.end().await
}

/// A collector that refuses, and one that takes the connection and never says a word.
#[tokio::test]
async fn f4_a_dead_collector_slows_nothing() -> Result<()> {
    let silent = TcpListener::bind(("127.0.0.1", 0)).await?;
    let silent_at = format!("http://{}", silent.local_addr()?);
    let closed = TcpListener::bind(("127.0.0.1", 0)).await?;
    let closed_at = format!("http://{}", closed.local_addr()?);
    drop(closed);
    let mut world = World::prepare("dead_collector", |options| options.set("traces.export_timeout", "\"10m\"")).await?;
    world.fleet.start_simulator().await?;
    for role in Role::ALL {
        let endpoint = if role == Role::DlrIngester { &closed_at } else { &silent_at };
        world.fleet.spawn_with(role, 0, &[("SENDONCE_TRACES__ENDPOINT", endpoint)])?;
    }
    for role in Role::ALL {
        world.fleet.wait_ready(role, 0).await?;
    }
    publish(&world.fleet.amqp_url(), &orders(300).iter().map(Event::outgoing).collect::<Vec<_>>()).await?;
    world.reach("delivered", 300).await;
    let log = world.fleet.log_path(Role::SmsSender, 0);
    // A drain of 8 s and 3 s for the collector; what is lost is said and changes no exit code.
    assert_eq!(world.fleet.drain(std::time::Duration::from_secs(30)).await?, Vec::<String>::new());
    let log = std::fs::read_to_string(log)?;
    assert!(log.contains("the collector did not take the last traces"), "{}", log.lines().last().unwrap_or_default());
    assert_eq!(world.assert_clean().await.accepted, 300);
    world.end().await
}

fn event(id: &str, number: &str, trace_parent: Option<&str>) -> Outgoing {
    Event::sms(id, &[number], BODY).outgoing().traced(trace_parent.map(str::to_owned))
}

/// Waits for one span of each name in a trace.
async fn spans_of<const N: usize>(collector: &Collector, trace: &str, names: [&str; N]) -> [Spanned; N] {
    eventually("the spans of the trace", async || {
        let spans: Vec<_> = collector.spans().into_iter().filter(|span| span.trace == trace).collect();
        let found: Vec<_> =
            names.iter().filter_map(|name| spans.iter().find(|span| span.name == *name).cloned()).collect();
        found.try_into().map_err(|_| format!("{:?}", spans.iter().map(|span| &span.name).collect::<Vec<_>>()))
    })
    .await
}

/// Waits for a span that there is only one of.
async fn one(collector: &Collector, name: &str) -> Spanned {
    eventually(name, async || {
        let mut found: Vec<_> = collector.spans().into_iter().filter(|span| span.name == name).collect();
        ensure!(found.len() == 1, "{} spans", found.len());
        found.pop().context("it is there")
    })
    .await
}

/// A provider that accepts one message a request and notes where each came from.
#[derive(Debug, Clone)]
struct FakeProvider {
    port: u16,
    seen: Arc<Mutex<Vec<Option<String>>>>,
}

impl FakeProvider {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let provider = Self { port: listener.local_addr()?.port(), seen: Arc::default() };
        let router = Router::new().route("/SMSApi/send", post(accept)).with_state(provider.seen.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(provider)
    }

    fn serve(&self, options: FleetOptions) -> FleetOptions {
        options.set("accounts.sgc-main.base_url", &format!("\"http://127.0.0.1:{}\"", self.port))
    }

    fn trace_parents(&self) -> Vec<Option<String>> {
        self.seen.lock().unwrap().clone()
    }
}

async fn accept(State(seen): State<Arc<Mutex<Vec<Option<String>>>>>, headers: HeaderMap) -> String {
    let mut seen = seen.lock().unwrap();
    seen.push(headers.get("traceparent").map(|value| value.to_str().unwrap().to_owned()));
    let txn = TXN.parse::<u64>().unwrap() + seen.len() as u64 - 1;
    json!({"status": "success", "transactionId": txn.to_string(), "statusCode": "200", "reason": "success"}).to_string()
}

async fn push_receipt(world: &World, number: &str) -> Result<()> {
    let url = world.fleet.intake_url();
    let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).context("a URL")?;
    let body = format!("transId={TXN}&errorCode=000&dlrTime=1700117940000&mobile={number}");
    let mut stream = TcpStream::connect(host).await?;
    let head = format!(
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\ntraceparent: {PUSH}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(())
}

/// A queue of the test's own that gets every job of the lane too.
async fn tap_jobs(world: &World) -> Result<(Connection, Consumer)> {
    let connection = Connection::connect(&world.fleet.amqp_url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("tap".into(), options, FieldTable::default()).await?;
    let (bind, key) = (QueueBindOptions::default(), "send.sms.transactional");
    channel.queue_bind("tap".into(), "sendonce.jobs".into(), key.into(), bind, FieldTable::default()).await?;
    let consume = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let consumer = channel.basic_consume("tap".into(), "".into(), consume, FieldTable::default()).await?;
    Ok((connection, consumer))
}

/// The `traceparent` of the next job.
async fn next_trace_parent((_, jobs): &mut (Connection, Consumer)) -> Result<Option<String>> {
    let job = tokio::time::timeout(sendonce_tests::PATIENCE, jobs.next()).await?.context("the tap ended")??;
    let headers = job.properties.headers().clone().unwrap_or_default();
    Ok(match headers.inner().get("traceparent") {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        _ => None,
    })
}
