//! Delivery reports, `GET|POST /SMSApi/reports/status` (list) and `/SMSApi/report/status` (by transaction). The documents
//! swap the two paths and working clients disagree with them, so which handler lives where is a knob. Only what is
//! durable, past the lag and not withheld is ever shown.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use chrono_tz::Tz;

use crate::{
    answer::pause,
    book::Record,
    clock,
    codes::{self, Code, DeliveryCode, delivery_code},
    form::Fields,
    knobs::{Down, Knobs, ReportKnobs, Routing, Words},
    node::{Node, Output},
    sim::Sim,
};

/// Spelt "0" by the provider where there is no time yet.
const NO_TIME: &str = "0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// `/SMSApi/reports/status`
    Plural,
    /// `/SMSApi/report/status`
    Singular,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    List,
    Transaction,
}

pub async fn plural(state: State<Arc<Sim>>, query: RawQuery, headers: HeaderMap, body: Bytes) -> Response {
    read(state, Path::Plural, query, headers, body).await
}

pub async fn singular(state: State<Arc<Sim>>, query: RawQuery, headers: HeaderMap, body: Bytes) -> Response {
    read(state, Path::Singular, query, headers, body).await
}

async fn read(
    State(sim): State<Arc<Sim>>,
    path: Path,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let fields = Fields::read(query.as_deref(), &headers, &body);
    let output = Output::parse(fields.get("output"));
    let knobs = sim.knobs();
    pause(knobs.reports.latency_ms).await;
    if knobs.down != Down::No || knobs.reports.down {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let throttled = sim.book().rng.hit(knobs.reports.throttle_rate);
    if throttled {
        return respond(StatusCode::TOO_MANY_REQUESTS, &refusal(codes::THROTTLED), output);
    }
    let api_key = headers.get("apikey").and_then(|value| value.to_str().ok());
    let node = look_up(&sim, &knobs, path, &fields, api_key).unwrap_or_else(refusal);
    respond(StatusCode::OK, &node, output)
}

fn respond(status: StatusCode, node: &Node, output: Output) -> Response {
    (status, [(header::CONTENT_TYPE, output.content_type())], node.render(output)).into_response()
}

fn look_up(sim: &Sim, knobs: &Knobs, path: Path, fields: &Fields, api_key: Option<&str>) -> Result<Node, Code> {
    let book = sim.book();
    let account = book.accounts.authenticate(fields, api_key)?.clone();
    let view = View {
        knobs: &knobs.reports,
        zone: account.zone,
        now: clock::now_ms(),
        durable: sim.ledger.durable_seq(),
        salt: sim.ids.salt,
    };
    match wanted(knobs.reports.routing, path, fields)? {
        Wanted::List => {
            let page = Page::read(fields, &knobs.reports, account.zone, view.now)?;
            let records = book.records_between(&account.userid, page.from, page.to);
            let rows = page.cut(records.iter().filter(|record| view.shows(record))).map(|r| view.flat(r)).collect();
            Ok(envelope("reports", "getDlr", "reports_dlrList", rows))
        }
        Wanted::Transaction => {
            let records = book.records_of_txn(&account.userid, fields.filled("uuid").ok_or(codes::REPORT_PARAMETER)?);
            let rows = records
                .iter()
                .filter(|record| view.shows(record))
                .map(|record| Node::Object(vec![("status", view.spaced(record))]))
                .collect();
            Ok(envelope("send", "status", "report_statusList", rows))
        }
    }
}

fn wanted(routing: Routing, path: Path, fields: &Fields) -> Result<Wanted, Code> {
    let by_parameters = if fields.get("method") == Some("getDlr") {
        Wanted::List
    } else if fields.filled("uuid").is_some() {
        Wanted::Transaction
    } else {
        return Err(codes::REPORT_PARAMETER);
    };
    let by_path = match (routing, path) {
        (Routing::ByParameters, _) => by_parameters,
        (Routing::Siblings, Path::Plural) | (Routing::Documents, Path::Singular) => Wanted::List,
        (Routing::Siblings, Path::Singular) | (Routing::Documents, Path::Plural) => Wanted::Transaction,
    };
    if by_path == by_parameters { Ok(by_path) } else { Err(codes::REPORT_PATH) }
}

fn envelope(api: &str, action: &str, list: &'static str, rows: Vec<Node>) -> Node {
    Node::Object(vec![(
        "response",
        Node::Object(vec![
            ("api", Node::text(api)),
            ("action", Node::text(action)),
            ("status", Node::text("success")),
            ("msg", Node::text("success")),
            ("code", Node::text(codes::SUCCESS)),
            ("count", Node::Number(rows.len() as u64)),
            (list, Node::List(rows)),
        ]),
    )])
}

fn refusal(code: Code) -> Node {
    Node::Object(vec![(
        "response",
        Node::Object(vec![
            ("api", Node::text("reports")),
            ("action", Node::text("status")),
            ("status", Node::text("error")),
            ("msg", Node::text(code.reason)),
            ("code", Node::text(code.number)),
        ]),
    )])
}

/// One page of the list: `startCursor` is a 1-based position, oldest first, so that new records never shift a page.
struct Page<'a> {
    from: i64,
    to: i64,
    skip: usize,
    limit: usize,
    mobile: Option<&'a str>,
    txn: Option<&'a str>,
}

impl<'a> Page<'a> {
    fn read(fields: &'a Fields, knobs: &ReportKnobs, zone: Tz, now: i64) -> Result<Self, Code> {
        // The page prints the names in lower case; working clients of sister deployments send them in camel case.
        let day = |lower: &str, camel: &str| {
            let text = fields.filled(lower).or_else(|| fields.filled(camel));
            text.and_then(clock::parse_day).ok_or(codes::REPORT_PARAMETER)
        };
        let (mut from, mut to) = clock::day_span(day("fromdate", "fromDate")?, day("todate", "toDate")?, zone);
        if knobs.current_day_only {
            let today = clock::day_of(now, zone);
            let (start, end) = clock::day_span(today, today, zone);
            (from, to) = (from.max(start), to.min(end));
        }
        let number = |name: &str| fields.filled(name).map(str::parse::<usize>).transpose();
        let limit = number("pageLimit").ok().flatten().filter(|limit| *limit > 0).ok_or(codes::REPORT_PARAMETER)?;
        let start = number("startCursor").map_err(|_| codes::REPORT_PARAMETER)?.unwrap_or(1);
        let most = usize::try_from(knobs.max_page).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
        Ok(Self {
            from,
            to,
            skip: if knobs.repeat_page { 0 } else { start.saturating_sub(1) },
            limit: limit.min(most),
            mobile: fields.filled("mobileNo"),
            txn: fields.filled("uuId"),
        })
    }

    fn cut<'r>(&self, records: impl Iterator<Item = &'r Record>) -> impl Iterator<Item = &'r Record> {
        records
            .filter(|record| self.mobile.is_none_or(|mobile| record.accepted().mobile == mobile))
            .filter(|record| self.txn.is_none_or(|txn| record.entry.txn.as_deref() == Some(txn)))
            .skip(self.skip)
            .take(self.limit)
    }
}

/// How one read sees the records.
struct View<'a> {
    knobs: &'a ReportKnobs,
    zone: Tz,
    now: i64,
    durable: u64,
    salt: u64,
}

impl View<'_> {
    fn shows(&self, record: &Record) -> bool {
        let lag = i64::try_from(self.knobs.lag_ms).unwrap_or(i64::MAX);
        let old_enough = record.entry.at.saturating_add(lag) <= self.now;
        !self.knobs.withheld && old_enough && record.entry.seq <= self.durable && !self.is_gap(record)
    }

    /// The same records are missing at every read.
    fn is_gap(&self, record: &Record) -> bool {
        let hash = record
            .accepted()
            .msg_id
            .bytes()
            .fold(self.salt, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        self.knobs.gap_rate > 0.0 && ((hash >> 32) as f64 / f64::from(u32::MAX)) < self.knobs.gap_rate
    }

    fn decided(&self, record: &Record) -> Option<DeliveryCode> {
        let accepted = record.accepted();
        let outcome = accepted.outcome.as_deref().filter(|_| accepted.done_at <= self.now)?;
        delivery_code(outcome)
    }

    fn word(&self, code: Option<DeliveryCode>) -> &'static str {
        code.map_or("SUBMITTED", |code| match self.knobs.words {
            Words::Smpp => code.smpp,
            Words::Plain => code.plain,
        })
    }

    fn time(&self, ms: i64) -> Node {
        Node::text(clock::spell(ms, self.zone, self.knobs.time_format))
    }

    /// Failed rows carry a delivery time too: it is the done time.
    fn done_time(&self, record: &Record, code: Option<DeliveryCode>) -> Node {
        code.map_or_else(|| Node::text(NO_TIME), |_| self.time(record.accepted().done_at))
    }

    fn mobile(&self, record: &Record) -> Node {
        Node::digits(&record.accepted().mobile, self.knobs.numeric_mobile)
    }

    /// A row of the list.
    fn flat(&self, record: &Record) -> Node {
        let (entry, accepted, code) = (&record.entry, record.accepted(), self.decided(record));
        Node::Object(vec![
            ("mobileNo", self.mobile(record)),
            ("msgId", Node::text(&accepted.msg_id)),
            ("uuId", optional(&entry.txn)),
            ("status", Node::text(self.word(code))),
            ("cause", Node::text(code.map_or("Submitted", |code| code.cause))),
            ("submitTime", self.time(entry.at)),
            ("deliveryTime", self.done_time(record, code)),
            ("dltTemplateId", optional(&entry.dlt_template_id)),
            ("cost", Node::text(accepted.amount.to_string())),
            ("length", Node::text(accepted.units.to_string())),
            ("network", Node::text("Airtel")),
            ("senderName", optional(&entry.sender)),
            ("text", optional(&entry.text)),
        ])
    }

    /// The inner object of a by-transaction row: capitals and spaces as the provider spells them.
    fn spaced(&self, record: &Record) -> Node {
        let (entry, accepted, code) = (&record.entry, record.accepted(), self.decided(record));
        Node::Object(vec![
            ("uuId", optional(&entry.txn)),
            ("msgId", Node::text(&accepted.msg_id)),
            ("mobileNo", self.mobile(record)),
            ("Status", Node::text(self.word(code))),
            ("Cause", Node::text(code.map_or("Submitted", |code| code.cause))),
            ("senderName", optional(&entry.sender)),
            ("text", optional(&entry.text)),
            ("msgType", optional(&entry.msg_type)),
            ("length", Node::text(accepted.units.to_string())),
            ("cost", Node::text(accepted.amount.to_string())),
            ("Submitted Time", self.time(entry.at)),
            ("Delivered Time", self.done_time(record, code)),
        ])
    }
}

fn optional(text: &Option<String>) -> Node {
    Node::text(text.as_deref().unwrap_or_default())
}
