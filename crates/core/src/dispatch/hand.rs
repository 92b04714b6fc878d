//! The jobs in this worker's hand: what is queued for a claim, what is on the wire, which deliveries wait for their ack.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::broker::Delivery;
use crate::broker::envelope::JobMessage;
use crate::domain::message::{Class, JobId};

/// One job.
#[derive(Debug)]
pub(super) struct Hand {
    pub(super) message: JobMessage,
    pub(super) class: Class,
    pub(super) since: Instant,
    /// The first message, and copies that came meanwhile.
    deliveries: Vec<Delivery>,
    /// Requests whose outcome is not durable yet; the recorder counts it down.
    outstanding: Arc<AtomicUsize>,
    queued: bool,
    /// Requests that its rows still due will make, as far as the last claim tells.
    requests_left: Option<usize>,
}

impl Hand {
    /// How many slots the job can use: as learned, else as few as grouping allows.
    pub(super) fn requests_left(&self, max_recipients: u16) -> usize {
        self.requests_left.unwrap_or_else(|| self.message.rows.div_ceil(usize::from(max_recipients))).max(1)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Hands {
    jobs: HashMap<JobId, Hand>,
    queues: [VecDeque<JobId>; 3],
}

impl Hands {
    pub(super) fn take(&mut self, message: JobMessage, class: Class, delivery: Delivery) {
        let id = message.job;
        let hand = self.jobs.entry(id).or_insert_with(|| Hand {
            message,
            class,
            since: Instant::now(),
            deliveries: Vec::new(),
            outstanding: Arc::default(),
            queued: false,
            requests_left: None,
        });
        hand.deliveries.push(delivery);
        if !hand.queued {
            hand.queued = true;
            self.queues[class as usize].push_back(id);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn any_queued(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    pub(super) fn has_queued(&self, class: Class) -> bool {
        !self.queues[class as usize].is_empty()
    }

    /// Queued jobs, OTP before transactional before promotional, oldest first.
    pub(super) fn queued(&self) -> impl Iterator<Item = (JobId, &Hand)> {
        self.queues.iter().flatten().filter_map(|id| Some((*id, self.jobs.get(id)?)))
    }

    pub(super) fn unqueue(&mut self, id: JobId) {
        let Some(hand) = self.jobs.get_mut(&id) else { return };
        hand.queued = false;
        self.queues[hand.class as usize].retain(|queued| *queued != id);
    }

    /// A claim took `rows` of the job as `requests`, and left `due` rows for the next one.
    pub(super) fn learn(&mut self, id: JobId, requests: usize, rows: usize, due: usize) {
        if let Some(hand) = self.jobs.get_mut(&id) {
            hand.requests_left = (due * requests).checked_div(rows);
        }
    }

    /// A request of the job goes on the wire.
    pub(super) fn add_request(&mut self, id: JobId) {
        if let Some(hand) = self.jobs.get_mut(&id) {
            hand.outstanding.fetch_add(1, Ordering::SeqCst);
            hand.since = Instant::now();
        }
    }

    /// The counter of the job's requests, for whoever records them.
    pub(super) fn outstanding(&self, id: JobId) -> Arc<AtomicUsize> {
        self.jobs.get(&id).map(|hand| hand.outstanding.clone()).unwrap_or_default()
    }

    /// Acks the job's deliveries when nothing of it is queued or on the wire: its row owns whatever follows.
    pub(super) fn finish_if_idle(&mut self, id: JobId) {
        let idle = self.jobs.get(&id).is_some_and(|hand| !hand.queued && hand.outstanding.load(Ordering::SeqCst) == 0);
        if idle && let Some(hand) = self.jobs.remove(&id) {
            hand.deliveries.into_iter().for_each(Delivery::done);
        }
    }

    /// Jobs of a class that have been queued for longer than `limit` with nothing on the wire.
    pub(super) fn overdue(&self, class: Class, limit: Duration) -> Vec<JobId> {
        let idle = |hand: &Hand| hand.since.elapsed() > limit && hand.outstanding.load(Ordering::SeqCst) == 0;
        self.queues[class as usize].iter().copied().filter(|id| self.jobs.get(id).is_some_and(idle)).collect()
    }

    /// Acks a job that was handed back to its row.
    pub(super) fn release(&mut self, id: JobId) {
        self.unqueue(id);
        self.finish_if_idle(id);
    }

    /// During a drain: deliveries with nothing on the wire go to another worker at once.
    pub(super) fn give_back_idle(&mut self) {
        let idle: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, hand)| hand.outstanding.load(Ordering::SeqCst) == 0)
            .map(|(id, _)| *id)
            .collect();
        for id in idle {
            if let Some(hand) = self.jobs.remove(&id) {
                hand.deliveries.into_iter().for_each(Delivery::give_back);
            }
        }
        for queue in &mut self.queues {
            queue.clear();
        }
    }
}
