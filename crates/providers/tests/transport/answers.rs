//! Answers that came whole: redirects are not followed, proxies not asked, long ones not swallowed.

use std::process::Command;
use std::time::Duration;

use sendonce_core::domain::outcome::Ambiguity;
use sendonce_providers::http::{ANSWER_CAP, Reply};

use crate::peer::{OK, Peer};
use crate::{bill, cut, patient, plain};

async fn saying(answer: String) -> Peer {
    Peer::new(move |mut conn, _| {
        let answer = answer.clone();
        async move {
            while conn.request().await.is_some() {
                conn.say(&answer).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn i2_redirects_are_not_followed() {
    for code in [301, 302, 303, 307, 308] {
        let second = saying(OK.to_owned()).await;
        let location = plain(second.at);
        let first = saying(format!("HTTP/1.1 {code} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")).await;
        let reply = bill(&plain(first.at), &patient()).await.unwrap();
        assert_eq!(reply, Reply { status: code, retry_after: None, text: String::new() });
        assert_eq!(first.settle().await.requests.len(), 1, "{code}");
        let second = second.settle().await;
        assert_eq!((second.connections, second.requests.len()), (0, 0), "{code}");
    }
}

#[tokio::test]
async fn an_answer_is_read_up_to_the_cap_and_not_beyond() {
    let answer = |length: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{}", "a".repeat(length));
    let peer = saying(answer(ANSWER_CAP)).await;
    assert_eq!(bill(&plain(peer.at), &patient()).await.unwrap().text.len(), ANSWER_CAP);
    let peer = saying(answer(ANSWER_CAP + 1)).await;
    assert_eq!(bill(&plain(peer.at), &patient()).await, cut(Ambiguity::Unreadable, 200));
}

#[tokio::test]
async fn an_answer_without_end_is_cut_at_the_cap() {
    let peer = Peer::new(|mut conn, _| async move {
        conn.request().await;
        conn.say("HTTP/1.1 200 OK\r\n\r\n").await;
        for _ in 0..4 * ANSWER_CAP / 1024 {
            conn.say(&"a".repeat(1024)).await;
        }
        conn.stall().await;
    })
    .await;
    assert_eq!(bill(&plain(peer.at), &patient()).await, cut(Ambiguity::Unreadable, 200));
}

#[tokio::test]
async fn the_reply_carries_retry_after_and_text_that_is_not_utf8() {
    let peer = Peer::new(|mut conn, _| async move {
        use tokio::io::AsyncWriteExt;
        conn.request().await;
        conn.say("HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\n").await;
        conn.stream.write_all(b"ok\xff!").await.unwrap();
    })
    .await;
    let reply = bill(&plain(peer.at), &patient()).await.unwrap();
    assert_eq!(reply, Reply { status: 429, retry_after: Some(Duration::from_secs(7)), text: "ok\u{fffd}!".into() });
}

const TARGET: &str = "SENDONCE_TEST_TARGET";

/// The environment is a process's, so the client under test runs in one of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_a_proxy_in_the_environment_is_not_asked() {
    let (proxy, target) = (saying(OK.to_owned()).await, saying(OK.to_owned()).await);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "answers::in_an_environment_with_a_proxy", "--ignored"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"] {
        child.env(name, plain(proxy.at));
    }
    child.env_remove("no_proxy").env_remove("NO_PROXY").env(TARGET, plain(target.at));
    let output = tokio::task::spawn_blocking(move || child.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(proxy.settle().await.connections, 0);
    assert_eq!(target.settle().await.requests.len(), 1);
}

#[tokio::test]
#[ignore = "run by i2_a_proxy_in_the_environment_is_not_asked"]
async fn in_an_environment_with_a_proxy() {
    let target = std::env::var_os(TARGET).unwrap();
    assert_eq!(bill(target.to_str().unwrap(), &patient()).await.unwrap().text, "ok");
}
