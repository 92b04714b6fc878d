//! One business key, one message: over all time, all partitions and all processes.

use anyhow::Result;
use sendonce_core::domain::message::MessageId;
use sendonce_core::store::{Admitted, NewMessage};

use crate::support::{ANNA, BERT, Bench, admit, message, message_of, new_job, number};

/// The same event again, as a second delivery of it would be admitted: other ids, same key.
fn again(first: &NewMessage) -> NewMessage {
    let fresh = message(new_job(), first.recipient.expose());
    NewMessage { id: fresh.id, job_id: fresh.job_id, attempt_key: fresh.attempt_key, ..first.clone() }
}

/// T3: a unique index on the monthly table would guard nothing here.
#[tokio::test]
async fn t3_a_key_is_unique_across_a_month_boundary() -> Result<()> {
    let mut bench = Bench::new("month").await?;
    let first = message(new_job(), ANNA);
    bench.admit(std::slice::from_ref(&first)).await?;
    bench.shift_clock("40 days").await?;
    let second = again(&first);
    assert_eq!(bench.admit(std::slice::from_ref(&second)).await?, [Admitted::Duplicate { winner: first.id }]);
    assert_eq!(bench.count("outbound_message").await?, 1);
    assert_eq!(bench.count("send_job").await?, 1, "a duplicate makes no job");
    // The boundary was real: a new key goes to another partition.
    bench.queue(&[ANNA]).await?;
    assert_eq!(bench.sql("select count(distinct tableoid) from outbound_message").await?, "2");
    Ok(())
}

#[tokio::test]
async fn t3_first_wins_and_other_inputs_are_a_conflict() -> Result<()> {
    let bench = Bench::new("conflict").await?;
    let first = message(new_job(), ANNA);
    bench.admit(std::slice::from_ref(&first)).await?;
    let same = again(&first);
    let other = message_of(again(&first).id, new_job(), "acme", &first.event_id, ANNA, "Your order 18 has shipped");
    assert_eq!(other.business_key, first.business_key);
    let tenant = NewMessage { tenant: "other".into(), ..again(&first) };
    let admitted = bench.admit(&[same, other, tenant.clone()]).await?;
    assert_eq!(admitted[0], Admitted::Duplicate { winner: first.id });
    assert_eq!(admitted[1], Admitted::Conflict { winner: first.id });
    assert!(matches!(admitted[2], Admitted::Mine { .. }), "the same key of another tenant: {:?}", admitted[2]);
    assert_eq!(bench.sql("select string_agg(tenant_id, ' ' order by id) from outbound_message").await?, "acme other");
    assert_eq!(bench.row(first.id).await?["body"], "Your order 17 has shipped");
    Ok(())
}

/// One statement that holds a key twice: the lower id wins, the other is told so.
#[tokio::test]
async fn t3_a_key_twice_in_one_batch_is_one_message() -> Result<()> {
    let bench = Bench::new("twice").await?;
    let first = message(new_job(), ANNA);
    let copy = NewMessage { job_id: first.job_id, ..again(&first) };
    let admitted = bench.admit(&[copy, first.clone()]).await?;
    assert_eq!(admitted[0], Admitted::Duplicate { winner: first.id });
    assert!(matches!(admitted[1], Admitted::Mine { .. }));
    let job = bench.job(first.job_id).await?.unwrap();
    assert_eq!(job["message_ids"], serde_json::json!([first.id.0]));
    Ok(())
}

/// C9: the answer to COMMIT was lost, so the same ids come again, also when the month has turned meanwhile.
#[tokio::test]
async fn c9_repeating_an_admission_finds_its_own_rows() -> Result<()> {
    let mut bench = Bench::new("repeat").await?;
    let job = new_job();
    let messages = [message(job, ANNA), message(job, BERT)];
    let first = bench.admit(&messages).await?;
    assert_eq!(bench.admit(&messages).await?, first);
    bench.shift_clock("40 days").await?;
    assert_eq!(bench.admit(&messages).await?, first, "with the created_at of the row there is");
    assert_eq!((bench.count("outbound_message").await?, bench.count("send_job").await?), (2, 1));
    assert_eq!(bench.count("message_key").await?, 2);
    Ok(())
}

/// All rows of a job share one `created_at`, which is the key's: the claim finds them by it.
#[tokio::test]
async fn a_job_its_rows_and_their_keys_share_one_time() -> Result<()> {
    let bench = Bench::new("one_time").await?;
    bench.queue(&[ANNA, BERT]).await?;
    let times = "select count(distinct at) from (select created_at as at from outbound_message
        union all select created_at from send_job union all select message_created_at from message_key) as times";
    assert_eq!(bench.sql(times).await?, "1");
    Ok(())
}

/// Execution 11: two ingests insert the same keys at the same time, each in an order of its own. Nobody deadlocks, each
/// key gets exactly one winner, and the loser is told who it is although neither statement saw the other's rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e11_two_ingests_with_the_same_keys_agree_on_every_winner() -> Result<()> {
    let bench = Bench::new("race").await?;
    let other = bench.another()?;
    for round in 0..40 {
        let (mine_job, their_job) = (new_job(), new_job());
        let mine: Vec<NewMessage> = (0..60).map(|n| message(mine_job, &number(round * 100 + n))).collect();
        let mut theirs: Vec<NewMessage> = mine.iter().map(|m| NewMessage { job_id: their_job, ..again(m) }).collect();
        theirs.reverse();
        let (a, b) = tokio::join!(admit(&bench.store, &mine), admit(&other, &theirs));
        let (a, mut b) = (a?, b?);
        b.reverse();
        theirs.reverse();
        for (n, (a, b)) in a.iter().zip(&b).enumerate() {
            let (winner, told): (MessageId, _) = match (a, b) {
                (Admitted::Mine { .. }, Admitted::Duplicate { winner }) => (mine[n].id, *winner),
                (Admitted::Duplicate { winner }, Admitted::Mine { .. }) => (theirs[n].id, *winner),
                both => panic!("round {round}, key {n}: {both:?}"),
            };
            assert_eq!(told, winner, "round {round}, key {n}");
        }
    }
    assert_eq!(bench.count("outbound_message").await?, 40 * 60);
    let strays = "outbound_message m where not exists (select from message_key k where k.message_id = m.id)
        or not exists (select from send_job j where j.id = m.job_id and m.id = any(j.message_ids))";
    assert_eq!(bench.count(strays).await?, 0, "every row has its key and its job");
    other.close().await;
    Ok(())
}

/// Batches that overlap in part, in opposite orders, from three processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e11_overlapping_batches_never_deadlock() -> Result<()> {
    let bench = Bench::new("overlap").await?;
    let (two, three) = (bench.another()?, bench.another()?);
    for round in 0..25 {
        let pool: Vec<NewMessage> = (0..90).map(|n| message(new_job(), &number(round * 100 + n))).collect();
        let part = |from: usize, to: usize, reversed: bool| -> Vec<NewMessage> {
            let job = new_job();
            let mut part: Vec<NewMessage> =
                pool[from..to].iter().map(|m| NewMessage { job_id: job, ..again(m) }).collect();
            if reversed {
                part.reverse();
            }
            part
        };
        let (first, second, third) = (part(0, 60, false), part(30, 90, true), part(15, 75, true));
        let (a, b, c) = tokio::join!(admit(&bench.store, &first), admit(&two, &second), admit(&three, &third));
        let mine = [a?, b?, c?].iter().flatten().filter(|a| matches!(a, Admitted::Mine { .. })).count();
        assert_eq!(mine, 90, "round {round}");
    }
    two.close().await;
    three.close().await;
    Ok(())
}
