//! What both senders share: slots ▶ claim ▶ send ▶ record. A delivery only says which job to work on; the claim takes as
//! many rows as slots are free; each request is answered once, and its outcome is recorded before its job is acked.

mod alarm;
mod attempt;
mod hand;
mod recorder;

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use self::hand::Hands;
use self::recorder::{EndedRequest, Recorder};
use crate::broker::envelope::JobMessage;
use crate::broker::{Consume, Deliveries, Delivery, consume, topology};
use crate::clock::Deadline;
use crate::domain::message::{AttemptKey, Channel, Class, JobId, LeaseToken};
use crate::domain::outcome::{Ambiguity, NotSent, Outcome};
use crate::provider::{Answer, Provider, SendRequest};
use crate::service::Context;
use crate::store::{Claim, ClaimJob, ClaimedMessage, Ended, JobAfterClaim, JobFate, StoreError};

/// The accounts of a channel, by name.
pub type Accounts = HashMap<String, Arc<dyn Provider>>;

/// Rows that one claim may read. More reads more than it can take.
const CLAIM_ROWS: usize = 600;
const TICK: Duration = Duration::from_millis(50);
const BEAT: Duration = Duration::from_secs(30);

/// Starts the consumers, the claim loop and the recorder of one channel.
///
/// # Errors
/// None at present: everything that can fail later is supervised.
pub async fn run(ctx: Context, channel: Channel, accounts: Accounts) -> anyhow::Result<()> {
    let (deliveries, incoming) = mpsc::channel(usize::from(ctx.config.sender.prefetch) * Class::ALL.len());
    for &class in Class::ALL {
        let spec = Consume {
            queue: topology::send_queue(channel, class),
            prefetch: ctx.config.sender.prefetch,
            careful_start: false,
        };
        let (link, into, stop, metrics) =
            (ctx.link.clone(), deliveries.clone(), ctx.tasks.draining().clone(), ctx.metrics.clone());
        ctx.tasks.spawn("job consumer", async move { Ok(consume(link, spec, into, stop, metrics).await?) });
    }
    drop(deliveries);
    ctx.tasks.spawn("send alarm", alarm::keep_armed(ctx.config.budgets.send, ctx.tasks.draining().clone()));

    let (ended, to_record) = mpsc::unbounded_channel();
    let (recorded, reports) = mpsc::unbounded_channel();
    let token = LeaseToken(ctx.entropy.uuid());
    let recorder = Recorder::new(ctx.clone(), token, recorded);
    ctx.tasks.spawn("recorder", recorder.run(to_record));
    let claimer = Claimer {
        channel,
        accounts,
        token,
        free: ctx.config.sender.slots,
        hands: Hands::default(),
        held_accounts: BTreeMap::new(),
        ended,
        ctx: ctx.clone(),
    };
    ctx.tasks.spawn("claimer", claimer.run(incoming, reports));
    Ok(())
}

/// What the recorder tells the claimer.
#[derive(Debug)]
pub(crate) enum Report {
    /// A request left its slot; its account asked to be left alone until then.
    Answered { hold: Option<(String, Instant)> },
    /// Outcomes of these jobs are durable.
    Recorded(Vec<JobId>),
}

struct Claimer {
    ctx: Context,
    channel: Channel,
    accounts: Accounts,
    token: LeaseToken,
    free: usize,
    hands: Hands,
    held_accounts: BTreeMap<String, Instant>,
    ended: mpsc::UnboundedSender<EndedRequest>,
}

impl Claimer {
    async fn run(
        mut self,
        mut incoming: Deliveries,
        mut reports: mpsc::UnboundedReceiver<Report>,
    ) -> anyhow::Result<()> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let drain = self.ctx.tasks.draining().clone();
        while !drain.is_cancelled() {
            tokio::select! {
                Some(delivery) = incoming.recv() => {
                    let mut deliveries = vec![delivery];
                    while let Ok(more) = incoming.try_recv() {
                        deliveries.push(more);
                    }
                    self.take(deliveries).await;
                }
                Some(report) = reports.recv() => {
                    self.learn(report);
                    while let Ok(more) = reports.try_recv() {
                        self.learn(more);
                    }
                }
                _ = tick.tick() => self.release_overdue().await?,
                () = drain.cancelled() => break,
            }
            self.ctx.health.beat("claimer", BEAT);
            while self.may_claim() && self.worth_claiming() && !drain.is_cancelled() {
                if !self.claim().await? {
                    break;
                }
            }
        }
        self.drain(incoming, reports).await
    }

    /// Takes jobs in hand, but for those that another worker has, as Redis says: their rows own what follows. A copy, or
    /// a delivery that was made before, may be all that is left of its job: those are not asked about.
    async fn take(&mut self, deliveries: Vec<Delivery>) {
        let read: Vec<_> = deliveries.into_iter().filter_map(|delivery| self.read(delivery)).collect();
        let is_first = |(message, delivery): &&(JobMessage, Delivery)| !message.copy && !delivery.redelivered;
        let asked: Vec<JobId> = read.iter().filter(is_first).map(|(message, _)| message.job).collect();
        let taken = self.ctx.gate.find_taken(&asked, self.token).await;
        for (message, delivery) in read {
            if !message.copy && !delivery.redelivered && taken.contains(&message.job) {
                delivery.done();
                continue;
            }
            let class = Class::ALL
                .iter()
                .copied()
                .find(|&class| topology::send_queue(self.channel, class) == delivery.routing_key);
            self.hands.take(message, class.unwrap_or(Class::Promotional), delivery);
        }
    }

    fn read(&self, delivery: Delivery) -> Option<(JobMessage, Delivery)> {
        match serde_json::from_slice(&delivery.body) {
            Ok(message) => Some((message, delivery)),
            // Not ours, or of a newer release. Acking loses nothing: a job's deadline publishes it again.
            Err(error) => {
                tracing::warn!(%error, "a job message does not parse");
                self.ctx.metrics.count_anomalies("job_message_unreadable", 1);
                delivery.done();
                None
            }
        }
    }

    fn learn(&mut self, report: Report) {
        match report {
            Report::Answered { hold } => {
                self.free += 1;
                if let Some((account, until)) = hold {
                    tracing::warn!(account, "the lane holds: the account was throttled or refused");
                    self.held_accounts.insert(account, until);
                }
            }
            Report::Recorded(jobs) => {
                for job in jobs {
                    self.hands.finish_if_idle(job);
                }
            }
        }
    }

    /// A job that waited too long for a slot is handed back: its row publishes it again soon, to whoever has slots, and
    /// nothing is held unacked for long. While the database is away it stays in hand.
    async fn release_overdue(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        self.held_accounts.retain(|_, until| *until > now);
        for &class in Class::ALL {
            let limit = self.ctx.config.classes.of(class).max_hold;
            let overdue = self.hands.overdue(class, limit);
            if overdue.is_empty() {
                continue;
            }
            match self.ctx.store.release_jobs(&overdue, limit).await {
                Ok(()) => overdue.into_iter().for_each(|id| self.hands.release(id)),
                Err(StoreError::Unavailable(error)) => tracing::debug!(%error, "jobs stay in hand"),
                Err(error @ (StoreError::Data(_) | StoreError::Unexpected(_))) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Not in safe mode. Jobs in hand go back to their rows when they are overdue, and come again.
    fn may_claim(&self) -> bool {
        let doubt = self.ctx.gate.doubt();
        self.ctx.health.halt("claimer", doubt.map(|doubt| doubt.to_string()));
        doubt.is_none()
    }

    /// Few slots are worth a claim only when nothing else is coming: each claim reads whole jobs.
    fn worth_claiming(&self) -> bool {
        let enough = self.free * 2 >= self.ctx.config.sender.slots;
        self.free > 0 && (enough || self.hands.has_queued(Class::Otp)) && self.hands.any_queued()
    }

    /// Jobs that fill the free slots, OTP first.
    fn choose(&self) -> Vec<ClaimJob> {
        let (mut requests, mut rows, mut chosen) = (0, 0, Vec::new());
        for (id, hand) in self.hands.queued() {
            let Some(account) = self.ctx.config.accounts.get(&hand.message.account) else { continue };
            if self.held_accounts.contains_key(&hand.message.account) {
                continue;
            }
            if requests >= self.free || rows >= CLAIM_ROWS || chosen.len() >= self.ctx.config.sender.claim_jobs {
                break;
            }
            // An OTP never shares a request.
            let max_recipients = if hand.class == Class::Otp { 1 } else { account.max_recipients() };
            requests += hand.requests_left(max_recipients);
            rows += hand.message.rows;
            chosen.push(ClaimJob { id, max_recipients });
        }
        chosen
    }

    /// One claim; false when another would change nothing now.
    async fn claim(&mut self) -> anyhow::Result<bool> {
        let jobs = self.choose();
        if jobs.is_empty() {
            return Ok(false);
        }
        let claim = Claim {
            token: self.token,
            jobs,
            attempt_keys: (0..self.free).map(|_| AttemptKey(self.ctx.entropy.uuid())).collect(),
            repeated: false,
        };
        // Read before the claim: the budget covers it.
        let deadline = Deadline::after(self.ctx.clock.clone(), self.ctx.config.budgets.send);
        let (rows, after) = self.claim_until_answered(&claim).await?;
        let requests = group(rows);
        let left_hand = |job: &JobAfterClaim| job.released.is_some_and(|fate| fate != JobFate::Due);
        let progressed = !requests.is_empty() || after.iter().any(left_hand);
        self.settle_hands(&after, &requests);
        self.free -= requests.len();
        for rows in requests {
            self.send(rows, deadline.clone());
        }
        Ok(progressed)
    }

    /// Repeats a claim whose answer was lost, with the same keys, also past the budget: what it took is then provably
    /// not sent, and says so instead of becoming unknown.
    async fn claim_until_answered(&self, claim: &Claim) -> anyhow::Result<(Vec<ClaimedMessage>, Vec<JobAfterClaim>)> {
        let repeated = AtomicBool::new(false);
        Ok(self
            .ctx
            .hold("claimer", || {
                let again = repeated.swap(true, Ordering::SeqCst);
                let claim = Claim { repeated: again, ..claim.clone() };
                async move { self.ctx.store.claim(&claim).await }
            })
            .await?)
    }

    fn settle_hands(&mut self, after: &[JobAfterClaim], requests: &[Vec<ClaimedMessage>]) {
        let mut taken: HashMap<JobId, (usize, usize)> = HashMap::new();
        for rows in requests {
            if let Some(job) = rows.first().map(|row| row.job_id) {
                self.hands.add_request(job);
                let (requests, messages) = taken.entry(job).or_default();
                (*requests, *messages) = (*requests + 1, *messages + rows.len());
            }
        }
        for job in after {
            if let Some((requests, messages)) = taken.get(&job.id) {
                self.hands.learn(job.id, *requests, *messages, usize::try_from(job.due).unwrap_or(0));
            }
            match job.released {
                None if job.due > 0 => {}
                // Rows beyond the free slots stay queued.
                Some(JobFate::Due) => {}
                None => self.hands.unqueue(job.id),
                Some(JobFate::Gone | JobFate::Leased | JobFate::Waiting | JobFate::Parked) => {
                    self.hands.unqueue(job.id);
                    self.hands.finish_if_idle(job.id);
                }
            }
        }
    }

    /// Puts one request on the wire, in a slot of its own.
    fn send(&self, rows: Vec<ClaimedMessage>, deadline: Deadline) {
        let Some(first) = rows.first().cloned() else { return };
        let operation = attempt::begin(&first, &rows);
        let request = SendRequest {
            attempt_key: first.attempt_key,
            channel: first.channel,
            class: first.class,
            sender_id: first.sender_id.clone(),
            body: first.body.clone(),
            encoding: first.encoding,
            dlt_entity_id: first.dlt_entity_id.clone(),
            dlt_template_id: first.dlt_template_id.clone(),
            recipients: rows.iter().map(|row| row.recipient.clone()).collect(),
            trace_parent: operation.trace_parent(),
        };
        let provider = self.accounts.get(&first.account).cloned();
        let outstanding = self.hands.outstanding(first.job_id);
        let (ctx, ended) = (self.ctx.clone(), self.ended.clone());
        self.ctx.tasks.spawn_work(async move {
            let started = Instant::now();
            let not_sent = |cause| Answer { outcome: Outcome::NotSent(cause), http_status: None };
            let answer = match provider {
                // The budget ends before a lease does, unless the database's clock jumped: no lease, no request.
                _ if first.lease_ended => not_sent(NotSent::BudgetOver),
                Some(provider) => send_once(provider.as_ref(), &request, deadline).await,
                // The account left the configuration after the job was made: provably nothing was sent.
                None => not_sent(NotSent::Request),
            };
            let took = started.elapsed();
            attempt::end(operation, &first, rows.len(), &answer, took);
            let verdict = answer.outcome.verdict();
            ctx.metrics.count_attempt(&first.account, first.channel, first.class, verdict, took.as_secs_f64());
            let ended_request = EndedRequest { ended: ended_of(&first, &rows, answer), rows_attempts: first.attempt_count, outstanding };
            if ended.send(ended_request).is_err() {
                tracing::error!(attempt.key = %first.attempt_key, "an outcome came after the recorder ended; its lease decides");
            }
        });
    }

    /// Gives back what is not begun, then waits for every outcome to be durable.
    async fn drain(
        mut self,
        mut incoming: Deliveries,
        mut reports: mpsc::UnboundedReceiver<Report>,
    ) -> anyhow::Result<()> {
        while let Ok(delivery) = incoming.try_recv() {
            delivery.give_back();
        }
        self.hands.give_back_idle();
        while !self.hands.is_empty() {
            tokio::select! {
                report = reports.recv() => match report {
                    Some(report) => self.learn(report),
                    None => break,
                },
                delivery = incoming.recv() => if let Some(delivery) = delivery { delivery.give_back() } else {
                    sleep(Duration::from_millis(5)).await;
                },
            }
            self.hands.give_back_idle();
        }
        while let Some(delivery) = incoming.recv().await {
            delivery.give_back();
        }
        Ok(())
    }
}

/// A dialect that panics half way may have sent: its slot comes back, and its rows are in doubt like any other.
async fn send_once(provider: &dyn Provider, request: &SendRequest, deadline: Deadline) -> Answer {
    let answer = AssertUnwindSafe(provider.send(request, deadline)).catch_unwind().await;
    answer.unwrap_or_else(|_| {
        tracing::error!(attempt.key = %request.attempt_key, "the provider's dialect panicked");
        Answer { outcome: Outcome::Ambiguous(Ambiguity::Unreadable), http_status: None }
    })
}

/// Rows by request: those that share an attempt key travel together.
fn group(rows: Vec<ClaimedMessage>) -> Vec<Vec<ClaimedMessage>> {
    let mut by_key: BTreeMap<AttemptKey, Vec<ClaimedMessage>> = BTreeMap::new();
    for row in rows {
        by_key.entry(row.attempt_key).or_default().push(row);
    }
    by_key.into_values().collect()
}

fn ended_of(first: &ClaimedMessage, rows: &[ClaimedMessage], answer: Answer) -> Ended {
    Ended {
        attempt_key: first.attempt_key,
        job_id: first.job_id,
        message_created_at: first.created_at,
        claimed_at: first.claimed_at,
        tenant: first.tenant.clone(),
        channel: first.channel,
        class: first.class,
        account: first.account.clone(),
        messages: rows.iter().map(|row| (row.id, row.recipient.clone())).collect(),
        answer,
        retry_after: Duration::ZERO,
    }
}
