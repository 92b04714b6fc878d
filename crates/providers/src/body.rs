//! A request body that leaves at most once and knows whether it did. It refuses to be cloned, to be handed over after its
//! deadline, and to be handed over after its owner stopped waiting.
//!
//! The three refusals are what makes "not sent" a proof. A body that cannot be cloned cannot be replayed by any layer
//! (retry, redirect). The deadline is read in the same call that gives the bytes away. And since a connection task may
//! still hold the body when the caller already has its error, the caller *closes* the body before it draws a conclusion:
//! one atomic step decides between "handed" and "never will be".

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use sendonce_core::clock::Deadline;

const WAITING: u8 = 0;
const HANDED: u8 = 1;
const TOO_LATE: u8 = 2;
const CLOSED: u8 = 3;

/// What became of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The bytes were given to a connection: they may have left.
    Handed,
    /// They were asked for after the deadline and not given; nothing left and nothing will.
    TooLate,
    /// They were never asked for, and can no longer be had.
    Kept,
}

/// The caller's end of a [`OnceBody`].
#[derive(Debug)]
pub struct Handle(Arc<AtomicU8>);

impl Handle {
    /// Forbids any later hand-over and says what happened until now. The answer is final.
    #[must_use]
    pub fn close(&self) -> Fate {
        match self.0.compare_exchange(WAITING, CLOSED, Ordering::SeqCst, Ordering::SeqCst) {
            Err(HANDED) => Fate::Handed,
            Err(TOO_LATE) => Fate::TooLate,
            Ok(_) | Err(_) => Fate::Kept,
        }
    }
}

/// The body itself.
pub struct OnceBody {
    bytes: Option<Bytes>,
    deadline: Deadline,
    fate: Arc<AtomicU8>,
}

/// The bytes were asked for when they were no longer to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body was asked for too late and kept")]
pub struct Withheld;

impl OnceBody {
    /// `None` for empty bytes: an empty body is complete without ever being asked for, so nothing would be proved.
    #[must_use]
    pub fn new(bytes: Bytes, deadline: Deadline) -> Option<(Self, Handle)> {
        if bytes.is_empty() {
            return None;
        }
        let fate = Arc::new(AtomicU8::new(WAITING));
        let handle = Handle(Arc::clone(&fate));
        Some((Self { bytes: Some(bytes), deadline, fate }, handle))
    }
}

impl Body for OnceBody {
    type Data = Bytes;
    type Error = Withheld;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Withheld>>> {
        // Taken out first: whatever is decided below, there is no second chance.
        let Some(bytes) = self.bytes.take() else { return Poll::Ready(None) };
        let wanted = if self.deadline.is_over() { TOO_LATE } else { HANDED };
        let decided = self.fate.compare_exchange(WAITING, wanted, Ordering::SeqCst, Ordering::SeqCst);
        Poll::Ready(Some(match decided {
            Ok(_) if wanted == HANDED => Ok(Frame::data(bytes)),
            Ok(_) | Err(_) => Err(Withheld),
        }))
    }
    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }
    /// Exact, so that the request carries a Content-Length and a body that stays behind leaves it incomplete.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// Never shows the bytes: they hold a number, a text and a password.
impl fmt::Debug for OnceBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OnceBody({} bytes)", self.bytes.as_ref().map_or(0, Bytes::len))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::task::Waker;
    use std::time::Duration;

    use chrono::{DateTime, Utc};
    use sendonce_core::clock::{Clock, SystemClock};

    use super::*;

    #[derive(Debug)]
    struct Stopped(Duration);
    impl Clock for Stopped {
        fn boot(&self) -> Duration {
            self.0
        }
        fn wall(&self) -> DateTime<Utc> {
            DateTime::UNIX_EPOCH
        }
    }

    fn within(budget: Duration) -> (OnceBody, Handle) {
        let deadline = Deadline::after(Arc::new(Stopped(Duration::from_secs(100))), budget);
        OnceBody::new(Bytes::from_static(b"bill me"), deadline).unwrap()
    }
    fn ask(body: &mut OnceBody) -> Option<Result<Bytes, Withheld>> {
        match Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(frame) => frame.map(|frame| frame.map(|frame| frame.into_data().unwrap())),
            Poll::Pending => panic!("a body in memory is never pending"),
        }
    }

    #[test]
    fn i2_the_bytes_are_given_once() {
        let (mut body, handle) = within(Duration::from_secs(1));
        assert_eq!(body.size_hint().exact(), Some(7));
        assert_eq!(ask(&mut body), Some(Ok(Bytes::from_static(b"bill me"))));
        assert_eq!(ask(&mut body), None);
        assert!(body.is_end_stream());
        assert_eq!(handle.close(), Fate::Handed);
    }

    #[test]
    fn i1_past_the_deadline_the_bytes_stay() {
        let (mut body, handle) = within(Duration::ZERO);
        assert_eq!(ask(&mut body), Some(Err(Withheld)));
        assert_eq!(ask(&mut body), None);
        assert_eq!(handle.close(), Fate::TooLate);
    }

    #[test]
    fn i1_after_the_owner_closed_it_the_bytes_stay() {
        let (mut body, handle) = within(Duration::from_secs(1));
        assert_eq!(handle.close(), Fate::Kept);
        assert_eq!(ask(&mut body), Some(Err(Withheld)));
        assert_eq!(handle.close(), Fate::Kept);
    }

    /// A timeout fires in one thread while the connection asks for the body in another: the two never disagree.
    #[test]
    fn i1_closing_and_handing_over_at_once_agree() {
        for _ in 0..2_000 {
            let (mut body, handle) = within(Duration::from_secs(1));
            let start = Barrier::new(2);
            let (given, fate) = std::thread::scope(|scope| {
                let asking = scope.spawn(|| {
                    start.wait();
                    matches!(ask(&mut body), Some(Ok(_)))
                });
                start.wait();
                let fate = handle.close();
                (asking.join().unwrap(), fate)
            });
            assert_eq!(given, fate == Fate::Handed);
        }
    }

    #[test]
    fn an_empty_body_proves_nothing_and_is_refused() {
        let deadline = Deadline::after(Arc::new(SystemClock), Duration::from_secs(1));
        assert!(OnceBody::new(Bytes::new(), deadline).is_none());
    }

    #[test]
    fn i11_the_bytes_never_print() {
        assert_eq!(format!("{:?}", within(Duration::ZERO).0), "OnceBody(7 bytes)");
    }
}
