//! Applying a fate to the answer: by now the ledger holds the decision, so whatever the client sees or does not see here
//! changes nothing about what was accepted.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};

use crate::{
    codes::{self, Code},
    fate::{After, Before, Fate},
    knobs::{Knobs, SendKnobs},
    ledger::Kind,
    node::{Node, Output},
    send_sms::FOLLOWED,
    send_wa,
    sim::Sim,
    socket::Line,
};

const HTML_502: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n";
const HTML_404: &str = "<html><head><title>404 Not Found</title></head><body><h1>Not Found</h1></body></html>\n";
const SECOND_ANSWER: &str = r#"{"status":"error","statusCode":"188","reason":"unasked"}"#;

/// What the provider says, before the fate distorts it.
#[derive(Debug)]
pub enum Reply {
    Success(Success),
    Refusal(Code),
    Nothing,
}

#[derive(Debug)]
pub struct Success {
    pub mobile: String,
    pub invalid_mobile: String,
    /// Of the transaction; of the message on WhatsApp.
    pub id: String,
}

#[derive(Debug)]
pub struct Answer {
    pub kind: Kind,
    pub fate: Fate,
    pub reply: Reply,
    pub output: Output,
}

pub async fn deliver(sim: &Sim, line: &Line, answer: Answer) -> Response {
    let knobs = sim.knobs();
    let send = &knobs.send;
    let jitter = sim.book().rng.up_to(send.latency_jitter_ms);
    pause(send.latency_ms + jitter).await;
    let response = match answer.fate {
        Fate::Ignore(before) => ignore(sim, line, before, answer.kind).await,
        Fate::Refuse(_) => plain(&knobs, &answer, StatusCode::OK),
        Fate::Accept(after) => accept(sim, line, &answer, after, &knobs).await,
    };
    let closes = sim.book().rng.hit(send.close_idle_rate);
    if closes {
        let delay = sim.book().rng.up_to(send.close_idle_max_ms);
        line.close_after_answer(Duration::from_millis(delay));
    }
    response
}

/// Latency zero means no timer at all: a sleep of zero still costs a tick.
pub async fn pause(ms: u64) {
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// The ledger could not be written: nothing may be answered as if it had been.
pub fn broken() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, "the simulator's ledger is broken").into_response()
}

pub fn not_found() -> Response {
    html(StatusCode::NOT_FOUND, HTML_404)
}

async fn ignore(sim: &Sim, line: &Line, before: Before, kind: Kind) -> Response {
    match before {
        Before::Hang => hang(sim, line).await,
        Before::Error => html(StatusCode::BAD_GATEWAY, HTML_502),
        Before::Reset => reset(line),
        Before::Redirect307 => redirect(StatusCode::TEMPORARY_REDIRECT, kind),
        Before::Redirect308 => redirect(StatusCode::PERMANENT_REDIRECT, kind),
        Before::NotFound => not_found(),
        Before::Down => html(StatusCode::SERVICE_UNAVAILABLE, "<html><body>Service Unavailable</body></html>\n"),
    }
}

async fn accept(sim: &Sim, line: &Line, answer: &Answer, after: After, knobs: &Knobs) -> Response {
    match after {
        After::Plain | After::LeadingZeros | After::NoId | After::ZeroId => plain(knobs, answer, StatusCode::OK),
        After::Hang => hang(sim, line).await,
        After::Reset => reset(line),
        After::Error => html(StatusCode::BAD_GATEWAY, HTML_502),
        After::Empty => (StatusCode::OK, "").into_response(),
        After::Truncated => {
            let mut body = render(knobs, answer).into_bytes();
            body.truncate(body.len() / 2);
            typed(&knobs.send, answer.output, body.into())
        }
        After::HalfBody => half_body(line, knobs, answer),
        After::Trickle => trickle(knobs, answer),
        After::TwoAnswers => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", SECOND_ANSWER.len());
            line.send_after_answer((head + SECOND_ANSWER).into_bytes());
            plain(knobs, answer, StatusCode::OK)
        }
        After::Late => {
            pause(knobs.send.late_ms).await;
            plain(knobs, answer, StatusCode::OK)
        }
    }
}

/// Holds until the client gives up (its close drops this future) or the simulator stops.
async fn hang(sim: &Sim, line: &Line) -> Response {
    sim.stopping.cancelled().await;
    reset(line)
}

fn reset(line: &Line) -> Response {
    line.reset_instead_of_answer();
    StatusCode::OK.into_response()
}

fn redirect(status: StatusCode, kind: Kind) -> Response {
    let path = match kind {
        Kind::SmsSend => "/SMSApi/send",
        Kind::WaSend => "/WAApi/send",
    };
    (status, [(header::LOCATION, format!("{path}?{FOLLOWED}"))]).into_response()
}

fn html(status: StatusCode, page: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "text/html")], page).into_response()
}

fn plain(knobs: &Knobs, answer: &Answer, status: StatusCode) -> Response {
    let throttled = matches!(answer.reply, Reply::Refusal(code) if code == codes::THROTTLED);
    let mut response = typed(&knobs.send, answer.output, render(knobs, answer).into());
    *response.status_mut() =
        if throttled && knobs.send.throttle_http_429 { StatusCode::TOO_MANY_REQUESTS } else { status };
    response
}

fn typed(send: &SendKnobs, output: Output, body: Body) -> Response {
    let content_type = if send.wrong_content_type { "text/html" } else { output.content_type() };
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// Full Content-Length, half the bytes, then a reset.
fn half_body(line: &Line, knobs: &Knobs, answer: &Answer) -> Response {
    let body = render(knobs, answer);
    let half = Bytes::copy_from_slice(&body.as_bytes()[..body.len() / 2]);
    line.reset_on_close();
    let cut = stream::once(async {
        // Lets the first half leave before the close overtakes it.
        pause(50).await;
        Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
    });
    let stream = stream::once(async { Ok(half) }).chain(cut);
    let mut response = typed(&knobs.send, answer.output, Body::from_stream(stream));
    response.headers_mut().insert(header::CONTENT_LENGTH, body.len().into());
    response
}

fn trickle(knobs: &Knobs, answer: &Answer) -> Response {
    let body = render(knobs, answer).into_bytes();
    let (length, ms) = (body.len(), knobs.send.trickle_ms);
    let bytes = stream::iter(body).then(move |byte| async move {
        pause(ms).await;
        Ok::<_, std::io::Error>(Bytes::copy_from_slice(&[byte]))
    });
    let mut response = typed(&knobs.send, answer.output, Body::from_stream(bytes));
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response
}

fn render(knobs: &Knobs, answer: &Answer) -> String {
    let node = match answer.kind {
        Kind::SmsSend => spell(&knobs.send, answer),
        Kind::WaSend => send_wa::spell(knobs.wa.response_shape, answer),
    };
    node.render(answer.output)
}

fn spell(send: &SendKnobs, answer: &Answer) -> Node {
    let code = |number: &str| Node::digits(number, send.numeric_status_code);
    match &answer.reply {
        Reply::Success(success) => {
            let mut fields = vec![
                ("status", Node::text("success")),
                ("mobile", Node::text(&success.mobile)),
                ("invalidMobile", Node::text(&success.invalid_mobile)),
            ];
            match answer.fate {
                Fate::Accept(After::NoId) => {}
                Fate::Accept(After::ZeroId) => fields.push(("transactionId", Node::text("0"))),
                Fate::Accept(_) | Fate::Ignore(_) | Fate::Refuse(_) => {
                    fields.push(("transactionId", Node::digits(&success.id, send.numeric_transaction_id)));
                }
            }
            fields.push(("statusCode", code(codes::SUCCESS)));
            fields.push(("reason", Node::text("success")));
            fields.push(("msgId", Node::text("")));
            Node::Object(fields)
        }
        Reply::Refusal(refusal) => Node::Object(vec![
            ("status", Node::text("error")),
            ("statusCode", code(refusal.number)),
            ("reason", Node::text(refusal.reason)),
        ]),
        Reply::Nothing => Node::Object(Vec::new()),
    }
}
