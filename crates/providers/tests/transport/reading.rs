//! The client for reading: it asks again where the one for submissions never does, and is as strict otherwise.

use std::time::Duration;

use sendonce_core::config::Budgets;
use sendonce_core::domain::outcome::Ambiguity;
use sendonce_providers::http::{NoReply, PAGE_CAP, Reach, ReadingClient, Reply};

use crate::peer::{OK, Peer};
use crate::{ambiguous, cut, hasty, install_tls, patient, plain, post_of};

const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";

async fn ask(at: &Peer, budgets: &Budgets) -> Result<Reply, NoReply> {
    install_tls();
    let client = ReadingClient::new(Duration::from_secs(10), budgets, &Reach::default()).unwrap();
    client.read(&post_of(&plain(at.at), "tell me", budgets)).await
}

/// Says the answers one after the other, a connection each, then the last of them for ever.
async fn saying(answers: &[&'static str]) -> Peer {
    let answers = answers.to_vec();
    Peer::new(move |mut conn, number| {
        let answer = answers[number.min(answers.len() - 1)];
        async move {
            if conn.request().await.is_some() {
                // An empty one is a reset.
                if answer.is_empty() {
                    conn.reset();
                } else {
                    conn.say(answer).await;
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn i2_reading_is_tried_again_after_a_reset_a_5xx_and_half_an_answer() {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nok";
    for troubles in [&["", OK][..], &[BUSY, OK], &[half, OK], &["", BUSY, OK]] {
        let peer = saying(troubles).await;
        assert_eq!(ask(&peer, &patient()).await.unwrap().text, "ok", "{troubles:?}");
        assert_eq!(peer.settle().await.requests.len(), troubles.len(), "{troubles:?}");
    }
}

#[tokio::test]
async fn i2_reading_gives_up_after_three_tries() {
    let peer = saying(&[BUSY]).await;
    assert_eq!(ask(&peer, &patient()).await.unwrap().status, 503);
    assert_eq!(peer.settle().await.requests.len(), 3);
    let peer = saying(&[""]).await;
    assert_eq!(ask(&peer, &patient()).await, ambiguous(Ambiguity::Reset));
    assert_eq!(peer.settle().await.requests.len(), 3);
    let peer = Peer::new(|conn, _| conn.stall()).await;
    assert_eq!(
        ask(&peer, &Budgets { http: Duration::from_millis(200), ..hasty() }).await,
        ambiguous(Ambiguity::Timeout)
    );
    assert_eq!(peer.settle().await.requests.len(), 3);
}

#[tokio::test]
async fn a_pause_that_the_provider_names_is_kept_or_left_to_the_caller() {
    let soon = "HTTP/1.1 429 Slow\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n";
    let peer = saying(&[soon, OK]).await;
    assert_eq!(ask(&peer, &patient()).await.unwrap().text, "ok");
    assert_eq!(peer.settle().await.requests.len(), 2);
    let peer = saying(&["HTTP/1.1 429 Slow\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n", OK]).await;
    let reply = ask(&peer, &patient()).await.unwrap();
    assert_eq!((reply.status, reply.retry_after), (429, Some(Duration::from_secs(60))));
    assert_eq!(peer.settle().await.requests.len(), 1);
}

#[tokio::test]
async fn an_answer_that_would_be_the_same_again_is_not_asked_for_again() {
    let refusals = [
        "HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
    ];
    for (answer, status) in std::iter::zip(refusals, [404, 401, 307]) {
        let peer = saying(&[answer]).await;
        assert_eq!(ask(&peer, &patient()).await.unwrap().status, status);
        assert_eq!(peer.settle().await.requests.len(), 1, "{status}");
    }
    let peer = saying(&["garbage garbage\r\n\r\n"]).await;
    assert_eq!(ask(&peer, &patient()).await, ambiguous(Ambiguity::Unreadable));
    assert_eq!(peer.settle().await.requests.len(), 1);
}

#[tokio::test]
async fn a_page_is_read_up_to_the_cap_and_not_beyond() {
    for (length, fits) in [(PAGE_CAP, true), (PAGE_CAP + 1, false)] {
        let peer = Peer::new(move |mut conn, _| async move {
            if conn.request().await.is_some() {
                let page = "a".repeat(length);
                conn.say(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}")).await;
            }
        })
        .await;
        match ask(&peer, &patient()).await {
            Ok(reply) => assert!(fits && reply.text.len() == length),
            unread => assert!(!fits && unread == cut(Ambiguity::Unreadable, 200), "{unread:?}"),
        }
        assert_eq!(peer.settle().await.requests.len(), 1);
    }
}
