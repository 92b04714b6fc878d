//! Plain connections: from the name that does not resolve to the answer that stops halfway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use sendonce_core::clock::Deadline;
use sendonce_core::config::Budgets;
use sendonce_core::domain::outcome::{Ambiguity, NotSent};
use sendonce_providers::http::Reach;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::peer::{OK, Peer, black_hole};
use crate::{
    HandClock, ambiguous, bill, client, cut, hasty, in_time, is_not_sent, not_sent, once, patient, plain, post_of,
};

#[tokio::test]
async fn i1_connection_refused_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(bill(&plain(at), &patient()).await, not_sent(NotSent::Refused));
}

#[tokio::test]
async fn i1_a_name_that_does_not_resolve_is_not_sent() {
    assert_eq!(bill("http://nonexistent.invalid/", &patient()).await, not_sent(NotSent::Dns));
}

struct NeverResolves;
impl Resolve for NeverResolves {
    fn resolve(&self, _: Name) -> Resolving {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn i1_a_resolver_that_stalls_is_not_sent_by_whichever_timeout() {
    let reach = Reach { resolver: Some(Arc::new(NeverResolves)), ..Reach::default() };
    let by_connect = once("http://slow.example/", "bill me", &hasty(), &reach).await;
    assert_eq!(by_connect, not_sent(NotSent::ConnectTimeout));
    // The whole-call timeout first: the error no longer names the phase, the body does.
    let total = Budgets { connect: Duration::from_secs(20), ..hasty() };
    assert_eq!(once("http://slow.example/", "bill me", &total, &reach).await, not_sent(NotSent::ConnectTimeout));
}

#[tokio::test]
async fn i1_a_black_hole_is_not_sent() {
    let (at, _filling, _socket) = black_hole().await;
    assert_eq!(bill(&plain(at), &hasty()).await, not_sent(NotSent::ConnectTimeout));
}

/// Whether the body was given away before the reset came in is a race; that the verdict fits what arrived is not.
#[tokio::test]
async fn i1_a_reset_or_close_at_accept_never_lies() {
    for reset in [true, false] {
        for _ in 0..20 {
            let peer = Peer::new(move |conn, _| async move {
                if reset {
                    conn.reset();
                }
            })
            .await;
            let result = bill(&plain(peer.at), &patient()).await;
            assert!(
                result == not_sent(NotSent::Connection) || result == ambiguous(Ambiguity::Reset),
                "reset {reset}: {result:?}"
            );
            assert_eq!(peer.settle().await.requests.len(), 0);
        }
    }
}

#[tokio::test]
async fn i1_a_close_after_the_body_is_ambiguous() {
    let peer = Peer::new(|mut conn, _| async move { drop(conn.request().await) }).await;
    assert_eq!(bill(&plain(peer.at), &patient()).await, ambiguous(Ambiguity::Reset));
    assert_eq!(peer.settle().await.requests.len(), 1);
}

#[tokio::test]
async fn i1_a_reset_after_the_body_is_ambiguous() {
    let peer = Peer::new(|mut conn, _| async move {
        if conn.request().await.is_some() {
            conn.reset();
        }
    })
    .await;
    assert_eq!(bill(&plain(peer.at), &patient()).await, ambiguous(Ambiguity::Reset));
    assert_eq!(peer.settle().await.requests.len(), 1);
}

#[tokio::test]
async fn i1_a_close_in_the_middle_of_the_body_is_ambiguous() {
    let peer = Peer::new(|mut conn, _| async move { conn.sip(1024).await }).await;
    let result = once(&plain(peer.at), vec![b'x'; 8 << 20], &patient(), &Reach::default()).await;
    assert_eq!(result, ambiguous(Ambiguity::Reset));
    assert_eq!(peer.settle().await.requests.len(), 0);
}

#[tokio::test]
async fn i1_a_stall_in_the_middle_of_the_body_is_ambiguous() {
    let (open, closed) = watch::channel(());
    let peer = Peer::new(move |mut conn, _| {
        let mut closed = closed.clone();
        async move {
            conn.sip(1024).await;
            // Open and unread until the client gave up.
            drop(closed.changed().await);
        }
    })
    .await;
    let result = once(&plain(peer.at), vec![b'x'; 8 << 20], &hasty(), &Reach::default()).await;
    assert_eq!(result, ambiguous(Ambiguity::Timeout));
    drop(open);
    assert_eq!(peer.settle().await.requests.len(), 0);
}

#[tokio::test]
async fn i1_no_answer_in_time_is_ambiguous() {
    let peer = Peer::new(|conn, _| conn.stall()).await;
    assert_eq!(bill(&plain(peer.at), &hasty()).await, ambiguous(Ambiguity::Timeout));
    assert_eq!(peer.settle().await.requests.len(), 1);
}

/// Reads the request, says `answer` and closes.
async fn answering(answer: &'static str) -> Peer {
    Peer::new(move |mut conn, _| async move {
        if conn.request().await.is_some() {
            conn.say(answer).await;
        }
    })
    .await
}

#[tokio::test]
async fn i1_half_a_head_or_garbage_is_ambiguous() {
    for (answer, reason) in [
        ("HTTP/1.1 200 OK\r\ncontent-le", Ambiguity::Reset),
        ("garbage garbage\r\n\r\n", Ambiguity::Unreadable),
        ("{\"status\":\"success\"}\r\n\r\n", Ambiguity::Unreadable),
    ] {
        let peer = answering(answer).await;
        assert_eq!(bill(&plain(peer.at), &patient()).await, ambiguous(reason), "{answer}");
        assert_eq!(peer.settle().await.requests.len(), 1);
    }
}

#[tokio::test]
async fn i1_an_answer_cut_short_is_ambiguous_and_keeps_its_status() {
    let peer = answering("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nok").await;
    assert_eq!(bill(&plain(peer.at), &patient()).await, cut(Ambiguity::Truncated, 200));
    assert_eq!(peer.settle().await.requests.len(), 1);
    let peer = answering("HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel").await;
    assert_eq!(bill(&plain(peer.at), &patient()).await, cut(Ambiguity::Truncated, 503));
    assert_eq!(peer.settle().await.requests.len(), 1);
}

#[tokio::test]
async fn i1_an_answer_that_stalls_is_ambiguous_and_keeps_its_status() {
    let peer = Peer::new(|mut conn, _| async move {
        conn.request().await;
        conn.say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nok").await;
        conn.stall().await;
    })
    .await;
    assert_eq!(bill(&plain(peer.at), &hasty()).await, cut(Ambiguity::Timeout, 200));
    assert_eq!(peer.settle().await.requests.len(), 1);
}

#[tokio::test]
async fn i2_a_deadline_that_is_over_opens_no_connection() {
    let peer = answering(OK).await;
    let late = Deadline::after(Arc::new(HandClock::default()), Duration::ZERO);
    let client = client(&patient(), &Reach::default());
    let result = client.post(post_of(&plain(peer.at), "bill me", &patient()), late).await;
    drop(client);
    assert_eq!(result, not_sent(NotSent::BudgetOver));
    let tally = peer.settle().await;
    assert_eq!((tally.connections, tally.requests.len()), (0, 0));
}

/// Resolves to `at` and lets the send budget pass meanwhile.
struct SlowResolver {
    at: SocketAddr,
    clock: Arc<HandClock>,
}
impl Resolve for SlowResolver {
    fn resolve(&self, _: Name) -> Resolving {
        self.clock.advance(Duration::from_secs(11));
        let found: Addrs = Box::new(std::iter::once(self.at));
        Box::pin(std::future::ready(Ok(found)))
    }
}

/// The check sits where the bytes are given away, not only before the call.
#[tokio::test]
async fn i2_a_deadline_that_passes_while_connecting_sends_nothing() {
    let peer = answering(OK).await;
    let clock = Arc::new(HandClock::default());
    let resolver = SlowResolver { at: peer.at, clock: Arc::clone(&clock) };
    let client = client(&patient(), &Reach { resolver: Some(Arc::new(resolver)), ..Reach::default() });
    let url = format!("http://sms.example:{}/", peer.at.port());
    for (budget, sent) in [(10, false), (60, true)] {
        let deadline = Deadline::after(Arc::clone(&clock) as _, Duration::from_secs(budget));
        let result = client.post(post_of(&url, "bill me", &patient()), deadline).await;
        if sent {
            assert_eq!(result.unwrap().status, 200);
        } else {
            assert_eq!(result, not_sent(NotSent::BudgetOver));
            assert_eq!(peer.requests().len(), 0);
        }
    }
    drop(client);
    assert_eq!(peer.settle().await.requests.len(), 1);
}

#[tokio::test]
async fn i1_an_empty_body_is_refused_since_it_would_prove_nothing() {
    let peer = answering(OK).await;
    let result = once(&plain(peer.at), "", &patient(), &Reach::default()).await;
    assert_eq!(result, not_sent(NotSent::Request));
    assert_eq!(peer.settle().await.connections, 0);
}

/// Answers before it could have read anything. No such answer may count as one to our request unless the body left.
#[tokio::test]
async fn i1_an_answer_ahead_of_the_request_never_lies() {
    for _ in 0..20 {
        let peer = Peer::new(|mut conn, _| async move {
            conn.say("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            conn.stall().await;
        })
        .await;
        let client = client(&patient(), &Reach::default());
        let result = client.post(post_of(&plain(peer.at), "bill me", &patient()), in_time()).await;
        drop(client);
        let arrived = peer.settle().await.requests.len();
        assert!(arrived <= 1 && !(is_not_sent(&result) && arrived == 1), "{result:?} {arrived}");
    }
}
