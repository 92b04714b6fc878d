//! Packing rows into jobs and transactions. A job's rows share tenant, channel, class, account and due time, and are
//! inserted by one statement, so that they share `created_at`. A transaction ends where an event ends, if it can.

use std::collections::HashMap;
use std::ops::Range;

use chrono::{DateTime, Utc};
use sendonce_core::domain::message::{Channel, Class, JobId};
use sendonce_core::gate::Mark;
use sendonce_core::store::{NewJob, NewMessage};

/// A message with its ids, and where it comes from.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Position of its event in the batch.
    pub(crate) event: usize,
    /// None: at once.
    pub(crate) due: Option<DateTime<Utc>>,
    pub(crate) message: NewMessage,
}

impl Row {
    /// What the gate learns about it.
    pub(crate) fn mark(&self) -> Mark {
        Mark { key: self.message.business_key, input: self.message.input_hash }
    }
}

/// Splits rows, ordered by event, into runs of at most `limit`. An event is cut only if it is larger than that alone.
pub(crate) fn transactions(events: &[usize], limit: usize) -> Vec<Range<usize>> {
    let limit = limit.max(1);
    let (mut runs, mut start, mut event_start) = (Vec::new(), 0, 0);
    for i in 0..events.len() {
        if i > 0 && events[i] != events[i - 1] {
            event_start = i;
        }
        if i - start == limit {
            let end = if event_start > start { event_start } else { i };
            runs.push(start..end);
            start = end;
        }
    }
    if start < events.len() {
        runs.push(start..events.len());
    }
    runs
}

type LaneKey = (String, Channel, Class, String, Option<DateTime<Utc>>);

/// Which job of how many each row belongs to, in order, at most `limit` rows a job.
#[derive(Debug, Default)]
pub(crate) struct Packing {
    job_of_row: Vec<usize>,
    lanes: Vec<LaneKey>,
}

impl Packing {
    pub(crate) fn of(rows: &[Row], limit: usize) -> Self {
        let mut packing = Self::default();
        let mut open: HashMap<LaneKey, (usize, usize)> = HashMap::new();
        for Row { due, message, .. } in rows {
            let lane = (message.tenant.clone(), message.channel, message.class, message.account.clone(), *due);
            let (job, used) = open.get(&lane).copied().filter(|(_, used)| *used < limit).unwrap_or_else(|| {
                packing.lanes.push(lane.clone());
                (packing.lanes.len() - 1, 0)
            });
            packing.job_of_row.push(job);
            open.insert(lane, (job, used + 1));
        }
        packing
    }

    pub(crate) fn jobs(&self) -> usize {
        self.lanes.len()
    }

    /// Puts each row under its job; `ids` are as many as there are jobs.
    pub(crate) fn under(self, rows: &mut [Row], ids: &[JobId]) -> Vec<NewJob> {
        for (row, job) in rows.iter_mut().zip(&self.job_of_row) {
            if let Some(id) = ids.get(*job) {
                row.message.job_id = *id;
            }
        }
        let job = |((tenant, channel, class, account, scheduled_for), id): (LaneKey, &JobId)| NewJob {
            id: *id,
            tenant,
            channel,
            class,
            account,
            scheduled_for,
        };
        self.lanes.into_iter().zip(ids).map(job).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::{BTreeMap, HashSet};
    use std::time::Duration;

    use proptest::prelude::*;
    use sendonce_core::domain::key::{BusinessKey, InputHash};
    use sendonce_core::domain::message::{AttemptKey, Body, Encoding, MessageId, Recipient};

    use super::*;

    pub(crate) fn row(event: usize, id: i64, tenant: &str, class: Class, due: Option<i64>) -> Row {
        let message = NewMessage {
            id: MessageId(id),
            job_id: JobId(0),
            attempt_key: AttemptKey(Default::default()),
            business_key: BusinessKey::from_bytes(&[0; 32]).unwrap(),
            input_hash: InputHash::from_bytes(&[0; 32]).unwrap(),
            tenant: tenant.to_owned(),
            channel: Channel::Sms,
            class,
            account: "main".to_owned(),
            recipient: Recipient::from_e164_digits("919876543210").unwrap(),
            sender_id: None,
            event_source: None,
            event_type: "t".to_owned(),
            event_id: "e".to_owned(),
            event_recipients: 1,
            step: None,
            campaign: None,
            trace_parent: None,
            template_id: None,
            body: Body::new("hi".to_owned()),
            encoding: Encoding::Gsm7,
            segments: 1,
            dlt_entity_id: None,
            dlt_template_id: None,
            scheduled_for: None,
            expires_at: None,
            ttl: Duration::from_secs(60),
            ttl_from: None,
            unit_price: Default::default(),
            currency: "INR".to_owned(),
            rate_id: 1,
            fallback_channels: Vec::new(),
            correlation_window: std::time::Duration::from_secs(90),
        };
        Row { event, due: due.and_then(|seconds| DateTime::from_timestamp(seconds, 0)), message }
    }

    fn pack(rows: &mut [Row], limit: usize) -> Vec<(i64, Vec<i64>)> {
        let packing = Packing::of(rows, limit);
        let ids: Vec<JobId> = (100..).take(packing.jobs()).map(JobId).collect();
        let jobs = packing.under(rows, &ids);
        let of_job =
            |job: &NewJob| rows.iter().filter(|r| r.message.job_id == job.id).map(|r| r.message.id.0).collect();
        jobs.iter().map(|job| (job.id.0, of_job(job))).collect()
    }

    #[test]
    fn a_job_holds_rows_of_one_lane_in_order_and_no_more_than_its_limit() {
        let promo = |id, due| row(0, id, "acme", Class::Promotional, due);
        let mut rows = vec![
            promo(1, None),
            row(1, 2, "acme", Class::Otp, None),
            promo(3, None),
            promo(4, Some(99)),
            row(2, 5, "other", Class::Promotional, None),
            promo(6, None),
            promo(7, Some(99)),
            promo(8, Some(98)),
        ];
        let jobs = pack(&mut rows, 2);
        let expected: [(i64, Vec<i64>); 6] =
            [(100, vec![1, 3]), (101, vec![2]), (102, vec![4, 7]), (103, vec![5]), (104, vec![6]), (105, vec![8])];
        assert_eq!(jobs, expected);
    }

    #[test]
    fn a_transaction_ends_where_an_event_ends_if_it_can() {
        let events = |sizes: &[usize]| -> Vec<usize> {
            sizes.iter().enumerate().flat_map(|(event, size)| std::iter::repeat_n(event, *size)).collect()
        };
        assert_eq!(transactions(&events(&[3, 4, 2]), 10).first(), Some(&(0..9)));
        assert_eq!(transactions(&events(&[3, 4, 5]), 10), [0..7, 7..12]);
        assert_eq!(transactions(&events(&[10, 10]), 10), [0..10, 10..20]);
        assert_eq!(transactions(&events(&[3, 25, 1]), 10), [0..3, 3..13, 13..23, 23..29]);
        assert!(transactions(&events(&[]), 10).is_empty());
        // An event of 10,000 recipients.
        assert_eq!(transactions(&events(&[10_000]), 2_000).len(), 5);
    }

    proptest! {
        #[test]
        fn transactions_cover_everything_once_within_the_limit(sizes in proptest::collection::vec(0usize..30, 0..20), limit in 1usize..25) {
            let events: Vec<usize> =
                sizes.iter().enumerate().flat_map(|(event, size)| std::iter::repeat_n(event, *size)).collect();
            let runs = transactions(&events, limit);
            let covered: Vec<usize> = runs.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..events.len()).collect::<Vec<_>>());
            for run in &runs {
                prop_assert!(!run.is_empty() && run.len() <= limit);
                // An event is cut only inside, and only if it is larger than the limit.
                let cut = run.end < events.len() && events[run.end - 1] == events[run.end];
                prop_assert!(!cut || sizes[events[run.end]] > limit);
            }
        }

        #[test]
        fn packing_loses_no_row_and_mixes_no_lane(
            lanes in proptest::collection::vec((0usize..2, 0usize..3, proptest::option::of(0i64..2)), 0..60), limit in 1usize..7,
        ) {
            let of = |(i, (tenant, class, due)): (usize, &(usize, usize, Option<i64>))| {
                row(i, i as i64, ["a", "b"][*tenant], Class::ALL[*class], *due)
            };
            let mut rows: Vec<Row> = lanes.iter().enumerate().map(of).collect();
            let jobs = pack(&mut rows, limit);
            let mut full = BTreeMap::new();
            for (_, members) in &jobs {
                prop_assert!(!members.is_empty() && members.len() <= limit && members.is_sorted());
                let keys: HashSet<_> = members.iter().map(|id| lanes[*id as usize]).collect();
                prop_assert_eq!(keys.len(), 1);
                *full.entry(lanes[members[0] as usize]).or_insert(0) += usize::from(members.len() < limit);
            }
            // At most one job of a lane is not full.
            prop_assert!(full.values().all(|open| *open <= 1));
            prop_assert_eq!(jobs.iter().map(|(_, members)| members.len()).sum::<usize>(), rows.len());
        }
    }
}
