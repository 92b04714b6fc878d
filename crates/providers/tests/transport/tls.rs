//! Connections over TLS: a handshake that fails is not sent, whatever the reason; after it the rows are those of plain ones.

use std::sync::Arc;

use reqwest::Certificate;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sendonce_core::config::Budgets;
use sendonce_core::domain::outcome::{Ambiguity, NotSent};
use sendonce_providers::http::{NoReply, Reach, Reply};
use tokio_rustls::TlsAcceptor;

use crate::peer::{OK, Peer};
use crate::{ambiguous, hasty, install_tls, is_not_sent, not_sent, once, patient};

struct Identity {
    cert: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    fn localhost() -> Self {
        install_tls();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        Self { cert: made.cert.der().clone(), key }
    }
    fn acceptor(&self) -> TlsAcceptor {
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![self.cert.clone()], self.key.clone_key()).unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
    fn wanting_client_certificates(&self) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(self.cert.clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        let config = config.with_single_cert(vec![self.cert.clone()], self.key.clone_key()).unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
    fn trusted(&self) -> Reach {
        Reach { roots: Some(vec![Certificate::from_der(&self.cert).unwrap()]), ..Reach::default() }
    }
}

async fn bill(peer: &Peer, budgets: &Budgets, reach: &Reach) -> Result<Reply, NoReply> {
    once(&format!("https://localhost:{}/", peer.at.port()), "bill me", budgets, reach).await
}

/// Secures each connection, reads a request and answers it with `answer`, or with a bare close.
async fn secured(acceptor: TlsAcceptor, answer: Option<&'static str>) -> Peer {
    Peer::new(move |conn, _| {
        let acceptor = acceptor.clone();
        async move {
            let Some(mut conn) = conn.secured(&acceptor).await else { return };
            if conn.request().await.is_some()
                && let Some(answer) = answer
            {
                conn.say(answer).await;
                conn.stall().await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn tls_works_at_all() {
    let identity = Identity::localhost();
    let peer = secured(identity.acceptor(), Some(OK)).await;
    assert_eq!(bill(&peer, &patient(), &identity.trusted()).await.unwrap().text, "ok");
    assert_eq!(peer.settle().await.requests.len(), 1);
}

#[tokio::test]
async fn i1_a_peer_that_speaks_no_tls_is_not_sent() {
    let identity = Identity::localhost();
    let peer = Peer::new(|mut conn, _| async move {
        conn.sip(4096).await;
        conn.say("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    })
    .await;
    assert_eq!(bill(&peer, &patient(), &identity.trusted()).await, not_sent(NotSent::Tls));
    assert_eq!(peer.settle().await.requests.len(), 0);
}

#[tokio::test]
async fn i1_a_close_or_reset_in_the_handshake_is_not_sent() {
    let identity = Identity::localhost();
    let peer = Peer::new(|mut conn, _| async move { conn.sip(4096).await }).await;
    assert_eq!(bill(&peer, &patient(), &identity.trusted()).await, not_sent(NotSent::Tls));
    assert_eq!(peer.settle().await.requests.len(), 0);
    let peer = Peer::new(|mut conn, _| async move {
        conn.sip(1).await;
        conn.reset();
    })
    .await;
    assert_eq!(bill(&peer, &patient(), &identity.trusted()).await, not_sent(NotSent::Connection));
    assert_eq!(peer.settle().await.requests.len(), 0);
}

#[tokio::test]
async fn i1_a_handshake_that_stalls_is_not_sent() {
    let identity = Identity::localhost();
    let peer = Peer::new(|conn, _| conn.stall()).await;
    assert_eq!(bill(&peer, &hasty(), &identity.trusted()).await, not_sent(NotSent::ConnectTimeout));
    assert_eq!(peer.settle().await.requests.len(), 0);
}

#[tokio::test]
async fn i1_an_untrusted_certificate_is_not_sent() {
    let (identity, other) = (Identity::localhost(), Identity::localhost());
    let peer = secured(identity.acceptor(), Some(OK)).await;
    assert_eq!(bill(&peer, &patient(), &other.trusted()).await, not_sent(NotSent::Tls));
    assert_eq!(peer.settle().await.requests.len(), 0);
}

#[tokio::test]
async fn i1_a_certificate_for_another_name_is_not_sent() {
    let identity = Identity::localhost();
    let peer = secured(identity.acceptor(), Some(OK)).await;
    let result = once(&format!("https://{}/", peer.at), "bill me", &patient(), &identity.trusted()).await;
    assert_eq!(result, not_sent(NotSent::Tls));
    assert_eq!(peer.settle().await.requests.len(), 0);
}

/// TLS 1.3 refuses a client only after the client's first flight, which may hold the body: a race that only the body settles.
#[tokio::test]
async fn i1_a_client_certificate_refused_late_never_lies() {
    let identity = Identity::localhost();
    for _ in 0..20 {
        let peer = secured(identity.wanting_client_certificates(), Some(OK)).await;
        let result = bill(&peer, &patient(), &identity.trusted()).await;
        assert!(is_not_sent(&result) || result == ambiguous(Ambiguity::Reset), "{result:?}");
        assert_eq!(peer.settle().await.requests.len(), 0);
    }
}

#[tokio::test]
async fn i1_a_close_after_the_body_over_tls_is_ambiguous() {
    let identity = Identity::localhost();
    let peer = secured(identity.acceptor(), None).await;
    assert_eq!(bill(&peer, &patient(), &identity.trusted()).await, ambiguous(Ambiguity::Reset));
    assert_eq!(peer.settle().await.requests.len(), 1);
}
