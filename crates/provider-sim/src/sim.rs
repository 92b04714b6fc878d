//! What every handler shares: the book and its ledger, the knobs, the receipts, and the tasks that outlive a connection.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering},
};

use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    book::Book,
    ids::{Ids, Rng},
    knobs::{Down, Knobs},
    ledger::Ledger,
    push::Pushes,
};

#[derive(Debug)]
pub struct Sim {
    pub ledger: Ledger,
    pub ids: Ids,
    pub pushes: Pushes,
    /// Accepting a request must not end because its client went away.
    pub tasks: TaskTracker,
    pub stopping: CancellationToken,
    /// Read by the listener; mirrors `knobs.down`.
    pub shut: Arc<AtomicBool>,
    book: Mutex<Book>,
    /// What the command line asked for; `PUT /control` goes back to it.
    start: Arc<Knobs>,
    knobs: RwLock<Arc<Knobs>>,
}

impl Sim {
    pub fn new(ledger: Ledger, book: Book, knobs: Knobs, pushes: Pushes, ids: Ids) -> Self {
        let start = Arc::new(knobs);
        Self {
            ledger,
            ids,
            pushes,
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            shut: Arc::new(AtomicBool::new(start.down == Down::Close)),
            book: Mutex::new(book),
            knobs: RwLock::new(Arc::clone(&start)),
            start,
        }
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn knobs(&self) -> Arc<Knobs> {
        Arc::clone(&self.knobs.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Merges `patch` into the current knobs, or into those of the start with `replace`.
    pub fn turn(&self, patch: &Value, replace: bool) -> Result<Arc<Knobs>, String> {
        let mut current = self.knobs.write().unwrap_or_else(PoisonError::into_inner);
        let base = Arc::clone(if replace { &self.start } else { &current });
        let next = Arc::new(base.patched(patch)?);
        *current = Arc::clone(&next);
        self.shut.store(next.down == Down::Close, Ordering::Release);
        drop(current);
        if replace || patch.get("seed").is_some() {
            self.book().rng = Rng::seeded(next.seed);
        }
        Ok(next)
    }
}
