//! The second half: a planned batch is made durable, its jobs are published, and only then is it acked. Our own fault
//! holds, under the same ids; a value that the database refuses is bisected to its event.

use std::collections::{BTreeMap, HashMap};

use anyhow::Context as _;
use sendonce_core::broker::{Delivery, IDLE_BEAT, envelope};
use sendonce_core::domain::message::{AttemptKey, JobId};
use sendonce_core::gate::Mark;
use sendonce_core::service::Context;
use sendonce_core::store::{
    Admitted, JobIds, MessageIds, NewJob, NewMessage, ParkKind, ParkReason, StoreError, ToPark,
};
use sendonce_core::telemetry::traces::{self, Operation};
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;

use crate::aside::{Aside, Original, to_park};
use crate::intake::{BEAT, Batch};
use crate::pack::{Packing, Row, transactions};
use crate::plan::{Draft, Ids};

type Events = [(Delivery, Original)];

#[derive(Debug)]
pub(crate) struct Commit {
    ctx: Context,
    beat: &'static str,
    message_ids: Mutex<MessageIds>,
    job_ids: Mutex<JobIds>,
}

/// What became of a batch's messages.
#[derive(Debug, Default)]
struct Tally {
    admitted: usize,
    duplicates: usize,
    conflicts: usize,
    refused: usize,
}

impl Commit {
    pub(crate) fn new(ctx: Context, beat: &'static str) -> Self {
        Self { ctx, beat, message_ids: Mutex::default(), job_ids: Mutex::default() }
    }

    /// Commits batches until the intake ends.
    pub(crate) async fn run(mut self, mut batches: mpsc::Receiver<Batch>) -> anyhow::Result<()> {
        loop {
            self.ctx.health.beat(self.beat, BEAT);
            let batch = tokio::select! {
                batch = batches.recv() => batch,
                () = sleep(IDLE_BEAT) => continue,
            };
            let Some(batch) = batch else { return Ok(()) };
            self.batch(batch).await?;
        }
    }

    /// Everything of a batch, acks last.
    pub(crate) async fn batch(&mut self, batch: Batch) -> anyhow::Result<()> {
        let Batch { events, drafts, parked, cancels } = batch;
        let parts = parked.len();
        let processing = processing(&events);
        self.park(parked).await?;
        self.ctx.hold(self.beat, || self.ctx.store.cancel(&cancels)).await.context("cancel")?;
        let mut tally = Tally::default();
        let drafts = self.drop_settled(drafts, &mut tally).await;
        let of_event: Vec<usize> = drafts.iter().map(|(event, _)| *event).collect();
        let mut drafts = drafts.into_iter();
        for run in transactions(&of_event, self.ctx.config.ingest.transaction_rows) {
            let rows = self.draw(drafts.by_ref().take(run.len()).collect()).await?;
            self.admit(rows, &events, &mut tally).await?;
        }
        tracing::debug!(
            events = events.len(),
            admitted = tally.admitted,
            duplicates = tally.duplicates,
            conflicts = tally.conflicts,
            refused = tally.refused,
            parked = parts,
            "a batch is durable"
        );
        events.into_iter().for_each(|(delivery, _)| delivery.done());
        drop(processing);
        Ok(())
    }

    /// Drops what Redis knows to be decided; about everything else it may say what it likes, PostgreSQL decides.
    async fn drop_settled(&self, drafts: Vec<(usize, Draft)>, tally: &mut Tally) -> Vec<(usize, Draft)> {
        let marks: Vec<Mark> = drafts.iter().map(|(_, draft)| draft.mark()).collect();
        let settled = self.ctx.gate.find_settled(&marks).await;
        let mut open = Vec::with_capacity(drafts.len());
        for (draft, settled) in drafts.into_iter().zip(settled) {
            if settled {
                self.ctx.metrics.count_duplicates("redis", 1);
                self.ctx.metrics.count_events(draft.1.class(), "duplicate", 1);
                tally.duplicates += 1;
            } else {
                open.push(draft);
            }
        }
        open
    }

    /// Draws the ids that stay with the messages from here on, whatever has to be repeated.
    async fn draw(&self, drafts: Vec<(usize, Draft)>) -> anyhow::Result<Vec<Row>> {
        let (store, count) = (&self.ctx.store, drafts.len());
        let draw = || async {
            let (mut block, mut ids) = (self.message_ids.lock().await, Vec::with_capacity(count));
            for _ in 0..count {
                ids.push(block.next(store).await?);
            }
            Ok(ids)
        };
        let ids = self.ctx.hold(self.beat, draw).await.context("draw message ids")?;
        let row = |((event, draft), message): ((usize, Draft), _)| {
            let attempt = AttemptKey(self.ctx.entropy.uuid());
            let (message, due) = draft.under(Ids { message, attempt }, JobId(0));
            Row { event, due, message }
        };
        Ok(drafts.into_iter().zip(ids).map(row).collect())
    }

    /// Packs rows into jobs with ids of their own.
    async fn pack(&self, rows: &mut [Row]) -> anyhow::Result<Vec<NewJob>> {
        let packing = Packing::of(rows, self.ctx.config.ingest.job_rows);
        let (store, count) = (&self.ctx.store, packing.jobs());
        let draw = || async {
            let (mut block, mut ids) = (self.job_ids.lock().await, Vec::with_capacity(count));
            for _ in 0..count {
                ids.push(block.next(store).await?);
            }
            Ok(ids)
        };
        let ids = self.ctx.hold(self.beat, draw).await.context("draw job ids")?;
        Ok(packing.under(rows, &ids))
    }

    /// Admits rows in one transaction, or in halves when one of their events holds a value that the database refuses.
    async fn admit(&self, rows: Vec<Row>, events: &Events, tally: &mut Tally) -> anyhow::Result<()> {
        let mut open = vec![rows];
        while let Some(mut rows) = open.pop() {
            // Anew for each half: a refused transaction wrote nothing, and a job lives in one transaction only.
            let jobs = self.pack(&mut rows).await?;
            let messages: Vec<NewMessage> = rows.iter().map(|row| row.message.clone()).collect();
            match self.ctx.hold(self.beat, || self.ctx.store.admit(&messages, &jobs)).await {
                Ok(admitted) => self.settle(&rows, &jobs, &admitted, events, tally).await?,
                Err(error) if is_the_events_fault(&error) => match halves(&rows) {
                    Some(middle) => {
                        let second = rows.split_off(middle);
                        open.extend([second, rows]);
                    }
                    None => self.refuse(&rows, events, &error, tally).await?,
                },
                Err(error) => return Err(anyhow::Error::new(error).context("admit")),
            }
        }
        Ok(())
    }

    /// After the commit: conflicts are parked, the new jobs are told to the senders, and Redis learns what is decided.
    async fn settle(
        &self,
        rows: &[Row],
        jobs: &[NewJob],
        admitted: &[Admitted],
        events: &Events,
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        let mut mine = HashMap::<JobId, Vec<Option<&str>>>::new();
        let mut durable = Vec::new();
        let mut conflicts = BTreeMap::<usize, Vec<Aside>>::new();
        for (row, outcome) in rows.iter().zip(admitted) {
            let result = match outcome {
                Admitted::Mine { .. } => {
                    durable.push(row.mark());
                    mine.entry(row.message.job_id).or_default().push(row.message.trace_parent.as_deref());
                    tally.admitted += 1;
                    "admitted"
                }
                Admitted::Duplicate { .. } => {
                    durable.push(row.mark());
                    self.ctx.metrics.count_duplicates("postgres", 1);
                    tally.duplicates += 1;
                    "duplicate"
                }
                Admitted::Conflict { winner } => {
                    let detail = format!("message {winner} was made under this key from other inputs");
                    conflicts.entry(row.event).or_default().push(Aside {
                        kind: ParkKind::KeyConflict,
                        reason: ParkReason::new("key_conflict", detail),
                        recipient: Some(row.message.recipient.expose().to_owned()),
                    });
                    tally.conflicts += 1;
                    "conflict"
                }
            };
            self.ctx.metrics.count_events(row.message.class, result, 1);
        }
        let of_event = |(event, asides)| events.get(event).map(|(_, original)| to_park(original, asides));
        self.park(conflicts.into_iter().filter_map(of_event).flatten().collect()).await?;
        self.publish(jobs, &mine).await?;
        self.ctx.gate.settle(&durable).await;
        Ok(())
    }

    /// Tells of the jobs that have rows; `mine` holds the trace of each. A job that is not confirmed is not lost: its row's
    /// deadline publishes it again.
    async fn publish(&self, jobs: &[NewJob], mine: &HashMap<JobId, Vec<Option<&str>>>) -> anyhow::Result<()> {
        let (mut outgoing, mut sending) = (Vec::new(), Vec::new());
        for job in jobs.iter().filter(|job| job.scheduled_for.is_none()) {
            let Some(origins) = mine.get(&job.id) else { continue };
            let rows = origins.len();
            let message = envelope::JobMessage { job: job.id, rows, account: job.account.clone(), copy: false };
            let message = envelope::job(job.channel, job.class, &message)?;
            let send = traces::send_job(&message.routing_key, job.id, origins.iter().copied());
            outgoing.push(message.traced(send.trace_parent()));
            sending.push(send);
        }
        if outgoing.is_empty() {
            return Ok(());
        }
        let results = self.ctx.publisher.publish(&outgoing).await;
        for (send, _) in sending.iter().zip(&results).filter(|(_, result)| result.is_err()) {
            send.fail("unconfirmed");
        }
        let confirmed = results.iter().filter(|result| result.is_ok()).count();
        self.ctx.metrics.count_jobs_published("ingest", true, confirmed);
        if confirmed < results.len() {
            self.ctx.metrics.count_jobs_published("ingest", false, results.len() - confirmed);
            tracing::warn!(jobs = results.len() - confirmed, "jobs are not confirmed; the sweep publishes them again");
        }
        Ok(())
    }

    /// The rows of one event that the database refuses.
    async fn refuse(&self, rows: &[Row], events: &Events, error: &StoreError, tally: &mut Tally) -> anyhow::Result<()> {
        let Some((row, (_, original))) = rows.first().and_then(|row| Some((row, events.get(row.event)?))) else {
            return Ok(());
        };
        let code = error.sqlstate().unwrap_or_default();
        let reason = ParkReason::new("data_refused", format!("the database refuses a value (SQLSTATE {code})"));
        self.park(to_park(original, vec![Aside::event(reason)])).await?;
        self.ctx.metrics.count_events(row.message.class, "parked", rows.len());
        tally.refused += rows.len();
        Ok(())
    }

    /// Parks and counts, a bounded number of bytes at a time.
    async fn park(&self, things: Vec<ToPark>) -> anyhow::Result<()> {
        let mut open: Vec<Vec<ToPark>> = portions(things);
        while let Some(mut portion) = open.pop() {
            match self.ctx.hold(self.beat, || self.ctx.store.park(&portion)).await {
                Ok(()) => {
                    for thing in &portion {
                        self.ctx.metrics.count_parked(thing.kind.as_str(), &thing.reason.code);
                    }
                }
                Err(StoreError::Data(_)) if portion.len() > 1 => {
                    let second = portion.split_off(portion.len() / 2);
                    open.extend([second, portion]);
                }
                Err(StoreError::Data(_)) if portion.iter().any(|thing| !thing.headers.is_null()) => {
                    open.push(portion.into_iter().map(bare).collect());
                }
                // Not acked: nothing may be lost, and a person must look.
                Err(error) => anyhow::bail!("parking is refused (SQLSTATE {})", error.sqlstate().unwrap_or_default()),
            }
        }
        Ok(())
    }
}

/// A span per queue: a batch may come from several.
fn processing(events: &Events) -> Vec<Operation> {
    let mut origins = BTreeMap::<&str, Vec<Option<&str>>>::new();
    for (delivery, original) in events {
        origins.entry(&delivery.queue).or_default().push(original.trace_parent.as_deref());
    }
    origins.into_iter().map(|(queue, origins)| traces::process_events(queue, origins.iter().copied())).collect()
}

/// Whether a value of an event is refused. A unique violation is none: ids that exist already mean that the sequences
/// are behind the tables, and parking every event would hide it.
fn is_the_events_fault(error: &StoreError) -> bool {
    matches!(error, StoreError::Data(_)) && error.sqlstate().is_some_and(|code| code != "23505")
}

/// Where to cut rows so that neither half is empty and no event is in both; None if they are all of one event.
fn halves(rows: &[Row]) -> Option<usize> {
    let cuts = (1..rows.len()).filter(|&i| rows[i].event != rows[i - 1].event);
    cuts.min_by_key(|cut| cut.abs_diff(rows.len() / 2))
}

/// The original and the reason alone: what surrounds them is not worth losing them for.
fn bare(thing: ToPark) -> ToPark {
    ToPark { tenant: None, event_id: None, recipient: None, headers: serde_json::Value::Null, ..thing }
}

/// What one statement parks at most, in bytes of originals and in number.
const PORTION_BYTES: usize = 8 * 1024 * 1024;
const PORTION: usize = 500;

fn portions(things: Vec<ToPark>) -> Vec<Vec<ToPark>> {
    let (mut portions, mut bytes) = (Vec::<Vec<ToPark>>::new(), 0);
    for thing in things {
        bytes += thing.original.len();
        match portions.last_mut().filter(|last| last.len() < PORTION && bytes <= PORTION_BYTES) {
            Some(last) => last.push(thing),
            None => {
                bytes = thing.original.len();
                portions.push(vec![thing]);
            }
        }
    }
    portions
}

#[cfg(test)]
mod tests {
    use sendonce_core::domain::message::Class;

    use super::*;
    use crate::pack::tests::row;

    fn thing(bytes: usize) -> ToPark {
        ToPark {
            kind: ParkKind::Event,
            reason: ParkReason::new("not_json", "no JSON"),
            tenant: None,
            event_id: None,
            recipient: None,
            original: vec![b'x'; bytes],
            headers: serde_json::Value::Null,
        }
    }

    fn cut(events: &[usize]) -> Option<usize> {
        halves(&events.iter().map(|&event| row(event, 1, "t", Class::Otp, None)).collect::<Vec<_>>())
    }

    /// Execution 17: one bad event must not take 499 others with it.
    #[test]
    fn a_refused_transaction_is_halved_between_events_down_to_one() {
        assert_eq!(cut(&[0, 1, 2, 3]), Some(2));
        assert_eq!(cut(&[0, 0, 0, 0, 0, 1]), Some(5));
        assert_eq!(cut(&[4, 5, 5, 5, 5, 5]), Some(1));
        assert_eq!(cut(&[3, 3, 3]), None);
        assert_eq!(cut(&[3]), None);
        // Every event ends up alone.
        let mut open = vec![(0..500).flat_map(|event| vec![event; 1 + event % 3]).collect::<Vec<usize>>()];
        let mut alone = Vec::new();
        while let Some(mut events) = open.pop() {
            match cut(&events) {
                Some(middle) => {
                    let second = events.split_off(middle);
                    assert!(!second.is_empty() && !events.is_empty());
                    open.extend([second, events]);
                }
                None => alone.push(events[0]),
            }
        }
        assert_eq!(alone, (0..500).collect::<Vec<_>>());
    }

    #[test]
    fn f17_parking_is_bounded_in_bytes_and_in_number() {
        let things: Vec<ToPark> = (0..2000).map(|i| thing(if i % 100 == 0 { 5_000_000 } else { 10 })).collect();
        let portions = portions(things);
        for portion in &portions {
            let bytes: usize = portion.iter().map(|thing| thing.original.len()).sum();
            assert!(portion.len() <= PORTION && bytes <= PORTION_BYTES, "{bytes}");
        }
        assert_eq!(portions.iter().map(Vec::len).sum::<usize>(), 2000);
        // One that is larger than a portion goes alone.
        assert_eq!(super::portions(vec![thing(1), thing(PORTION_BYTES + 1), thing(1)]).len(), 3);
    }
}
