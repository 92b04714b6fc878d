//! Receipts: stored once, reduced in any order, matched whoever comes first, never believed about a row they do not fit.

use std::time::Duration;

use anyhow::Result;
use sendonce_core::domain::message::{MessageId, ProviderRef};
use sendonce_core::domain::outcome::{Accepted, Outcome};
use sendonce_core::domain::receipt::{ReceiptKind, Reduced};
use sendonce_core::domain::state::State;
use sendonce_core::store::{Applied, NewReceipt};
use serde_json::{Value, json};

use crate::support::{ACCOUNT, ANNA, BERT, Bench, CARL, accepted, receipt};

const DAY: Duration = Duration::from_secs(86_400);

/// What must not depend on order.
async fn outcome(bench: &Bench, id: MessageId) -> Result<[Value; 5]> {
    let row = bench.row(id).await?;
    Ok(["receipt_state", "receipt_conflict", "delivered_at", "read_at", "provider_status_code"]
        .map(|of| row[of].clone()))
}

fn permutations(of: &[NewReceipt]) -> Vec<Vec<NewReceipt>> {
    if of.len() <= 1 {
        return vec![of.to_vec()];
    }
    let mut all = Vec::new();
    for (n, first) in of.iter().enumerate() {
        let rest: Vec<NewReceipt> = [&of[..n], &of[n + 1..]].concat();
        all.extend(permutations(&rest).into_iter().map(|tail| [vec![first.clone()], tail].concat()));
    }
    all
}

/// I10, execution 12: every order, one by one, repeated, in one batch, and before the record, gives one result.
#[tokio::test]
async fn i10_receipts_reduce_alike_in_every_order() -> Result<()> {
    use ReceiptKind::{Delivered, Failed, Read, Submitted};
    let bench = Bench::new("orders").await?;
    let at = bench.store.clock_now().await?;
    let mut number = 0;
    for kinds in [vec![Submitted, Delivered, Read], vec![Delivered, Failed], vec![Submitted, Failed, Read]] {
        let reduced: Reduced = kinds.iter().copied().collect();
        let mut results = Vec::new();
        let mut check = |row: [Value; 5], what: &str| {
            assert_eq!(row[0], reduced.state.unwrap().as_str(), "{what}");
            assert_eq!(row[1], reduced.conflict, "{what}");
            results.push((row, what.to_owned()));
        };
        let of = |txn: &str| -> Vec<NewReceipt> {
            let stamped = kinds.iter().zip(1..).map(|(&kind, n)| NewReceipt {
                done_at: Some(at + Duration::from_secs(n)),
                ..receipt(txn, ANNA, kind)
            });
            stamped.collect()
        };
        for order in 0..permutations(&of("x")).len() {
            for way in ["one by one", "one batch", "before the record", "across the record"] {
                number += 1;
                let txn = format!("txn-{number}");
                let receipts = permutations(&of(&txn)).swap_remove(order);
                let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
                let before = match way {
                    "before the record" => receipts.len(),
                    "across the record" => 1,
                    _ => 0,
                };
                let (early, late) = receipts.split_at(before);
                if !early.is_empty() {
                    bench.store.apply_receipts(early).await?;
                }
                bench.record(&made, &rows, accepted(&txn)).await?;
                bench.store.apply_early(ACCOUNT, std::slice::from_ref(&txn)).await?;
                if way == "one by one" {
                    for one in late {
                        // Each of them twice.
                        bench.store.apply_receipts(&[one.clone(), one.clone()]).await?;
                        bench.store.apply_receipts(std::slice::from_ref(one)).await?;
                    }
                } else if !late.is_empty() {
                    bench.store.apply_receipts(late).await?;
                }
                check(outcome(&bench, rows[0].id).await?, &format!("{kinds:?} order {order} {way}"));
                assert_eq!(
                    bench.count(&format!("receipt where provider_txn_id = '{txn}'")).await?,
                    i64::try_from(kinds.len())?
                );
                assert!(bench.state(rows[0].id).await?.is_final());
            }
        }
        for (row, what) in &results {
            assert_eq!(row, &results[0].0, "{what} against {}", results[0].1);
        }
    }
    Ok(())
}

/// The state takes the first final receipt and stays; the disagreement is flagged.
#[tokio::test]
async fn i10_the_first_final_receipt_decides_the_state_and_a_conflict_is_flagged() -> Result<()> {
    use ReceiptKind::{Delivered, Failed};
    let bench = Bench::new("first").await?;
    for (n, (first, second, state)) in
        [(Delivered, Failed, State::Delivered), (Failed, Delivered, State::Failed)].into_iter().enumerate()
    {
        let txn = format!("txn-{n}");
        let id = bench.submitted(&[ANNA], &txn).await?[0].id;
        let applied = bench.store.apply_receipts(&[receipt(&txn, ANNA, first)]).await?;
        assert_eq!(applied, Applied { applied: 1, finished: 1, ..Applied::default() });
        let final_at = bench.row(id).await?["final_at"].clone();
        let applied = bench.store.apply_receipts(&[receipt(&txn, ANNA, second)]).await?;
        assert_eq!(applied, Applied { applied: 1, contradicting: 1, ..Applied::default() });
        let row = bench.row(id).await?;
        assert_eq!(
            (bench.state(id).await?, &row["receipt_state"], &row["receipt_conflict"]),
            (state, &json!("delivered"), &json!(true))
        );
        assert_eq!((&row["final_at"], &row["cost"].is_null()), (&final_at, &false), "billed all the same");
    }
    Ok(())
}

/// T21: delivered when the provider says so; what it does not tell stays NULL, and a failure's time is nobody's delivery.
#[tokio::test]
async fn t21_delivered_at_is_the_earliest_delivery() -> Result<()> {
    use ReceiptKind::{Delivered, Failed, Read};
    let bench = Bench::new("times").await?;
    let at = bench.store.clock_now().await?;
    let id = bench.submitted(&[ANNA], "txn-1").await?[0].id;
    bench.store.apply_receipts(&[receipt("txn-1", ANNA, Delivered)]).await?;
    let failed = NewReceipt { done_at: Some(at - Duration::from_secs(500)), ..receipt("txn-1", ANNA, Failed) };
    bench.store.apply_receipts(&[failed]).await?;
    assert_eq!(bench.row(id).await?["delivered_at"], Value::Null);

    let id = bench.submitted(&[BERT], "txn-2").await?[0].id;
    let of = |kind, secs| NewReceipt { done_at: Some(at + Duration::from_secs(secs)), ..receipt("txn-2", BERT, kind) };
    bench.store.apply_receipts(&[of(Read, 90), of(Delivered, 30)]).await?;
    let times = format!("select extract(epoch from read_at - delivered_at)::int from outbound_message where id = {id}");
    assert_eq!(bench.sql(&times).await?, "60");
    Ok(())
}

/// Execution 23: a receipt before its submission waits as early; the record's own look or the sweep finds it.
#[tokio::test]
async fn e23_an_early_receipt_waits_for_its_row() -> Result<()> {
    let bench = Bench::new("early").await?;
    for (txn, by_sweep) in [("txn-1", false), ("txn-2", true)] {
        let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
        let applied = bench.store.apply_receipts(&[receipt(txn, ANNA, ReceiptKind::Delivered)]).await?;
        assert_eq!(applied, Applied { early: 1, ..Applied::default() });
        assert_eq!(bench.store.sweep_receipts(100, DAY).await?, (Applied::default(), 0));
        bench.record(&made, &rows, accepted(txn)).await?;
        assert_eq!(bench.state(rows[0].id).await?, State::Submitted, "stored just after the record looked");
        let applied = if by_sweep {
            bench.store.sweep_receipts(100, DAY).await?.0
        } else {
            assert_eq!(
                bench.store.apply_early("other", &[txn.into()]).await?,
                Applied::default(),
                "another account's id"
            );
            bench.store.apply_early(ACCOUNT, &[txn.into()]).await?
        };
        assert_eq!(applied, Applied { applied: 1, finished: 1, ..Applied::default() });
        assert_eq!(bench.state(rows[0].id).await?, State::Delivered);
        assert_eq!(bench.sql("select distinct disposition from receipt").await?, "applied");
    }
    Ok(())
}

/// The answer gave a message id and the receipt names nothing else.
#[tokio::test]
async fn e23_a_receipt_that_names_only_the_message_finds_its_row() -> Result<()> {
    let bench = Bench::new("by_id").await?;
    let by_id = |id: &str| NewReceipt {
        txn_id: None,
        recipient: None,
        message_id: ProviderRef::clean(id),
        ..receipt("x", ANNA, ReceiptKind::Delivered)
    };
    for (id, early) in [("m-1", false), ("m-2", true)] {
        let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
        if early {
            assert_eq!(bench.store.apply_receipts(&[by_id(id)]).await?.early, 1);
        }
        let given = Accepted { message_id: ProviderRef::clean(id), ..Accepted::default() };
        let recorded = bench.record(&made, &rows, Outcome::Accepted(given)).await?;
        assert_eq!(recorded.foreign_ids, 0);
        let applied = if early {
            bench.store.apply_early(ACCOUNT, &[id.into()]).await?
        } else {
            bench.store.apply_receipts(&[by_id(id)]).await?
        };
        assert_eq!(applied, Applied { applied: 1, finished: 1, ..Applied::default() }, "{id}");
        assert_eq!(bench.state(rows[0].id).await?, State::Delivered);
    }
    Ok(())
}

/// A receipt that no row ever claims is kept, counted and listed; a row that comes later still takes it.
#[tokio::test]
async fn a_receipt_without_a_row_becomes_an_orphan_and_is_kept() -> Result<()> {
    let mut bench = Bench::new("orphan").await?;
    let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
    let receipts = [receipt("txn-1", ANNA, ReceiptKind::Delivered), receipt("nobody", BERT, ReceiptKind::Failed)];
    assert_eq!(bench.store.apply_receipts(&receipts).await?.early, 2);
    bench.shift_clock("23 hours").await?;
    assert_eq!(bench.store.sweep_receipts(100, DAY).await?.1, 0, "not before its day is over");
    bench.shift_clock("25 hours").await?;
    assert_eq!(bench.store.sweep_receipts(100, DAY).await?.1, 2);
    assert_eq!(bench.store.sweep_receipts(100, DAY).await?.1, 0);
    assert_eq!(bench.count("receipt where disposition = 'orphan'").await?, 2);
    bench.record(&made, &rows, accepted("txn-1")).await?;
    assert_eq!(bench.store.apply_early(ACCOUNT, &["txn-1".into()]).await?.applied, 1);
    assert_eq!(bench.state(rows[0].id).await?, State::Delivered);
    assert_eq!(bench.count("outbound_message").await?, 1, "a receipt never creates a row");
    Ok(())
}

/// However many strays there are, the sweep reaches what has its row.
#[tokio::test]
async fn e23_strays_do_not_hide_the_early_receipts_behind_them() -> Result<()> {
    let bench = Bench::new("strays").await?;
    let strays: Vec<NewReceipt> = (0..50).map(|n| receipt(&format!("stray-{n}"), BERT, ReceiptKind::Failed)).collect();
    bench.store.apply_receipts(&strays).await?;
    let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
    bench.store.apply_receipts(&[receipt("txn-1", ANNA, ReceiptKind::Delivered)]).await?;
    bench.record(&made, &rows, accepted("txn-1")).await?;
    assert_eq!(bench.store.sweep_receipts(10, DAY).await?.0.applied, 1);
    Ok(())
}

/// Execution 15: two recipients of one transaction, no message id, same code and minute: each gets its own.
#[tokio::test]
async fn e15_two_recipients_of_one_transaction_keep_a_receipt_each() -> Result<()> {
    let bench = Bench::new("recipients").await?;
    let at = bench.store.clock_now().await?;
    let rows = bench.submitted(&[ANNA, BERT, CARL], "txn-1").await?;
    let of = |to: &str| NewReceipt { done_at: Some(at), ..receipt("txn-1", to, ReceiptKind::Delivered) };
    let applied = bench.store.apply_receipts(&[of(ANNA), of(BERT)]).await?;
    assert_eq!((applied.applied, applied.repeated), (2, 0));
    for row in rows {
        let expected = if row.recipient.expose() == CARL { State::Submitted } else { State::Delivered };
        assert_eq!(bench.state(row.id).await?, expected);
    }
    assert_eq!(bench.sql("select count(distinct digest), count(distinct message_id) from receipt").await?, "2|2");
    Ok(())
}

/// I17: pushed twice, in one batch or in two or by two processes at once, stored once; over a month boundary too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i17_a_receipt_is_stored_once() -> Result<()> {
    let mut bench = Bench::new("once").await?;
    bench.submitted(&[ANNA], "txn-1").await?;
    let one = receipt("txn-1", ANNA, ReceiptKind::Delivered);
    assert_eq!(bench.store.apply_receipts(&[one.clone(), one.clone()]).await?.repeated, 1);
    let again = bench.store.apply_receipts(std::slice::from_ref(&one)).await?;
    assert_eq!(again, Applied { repeated: 1, ..Applied::default() });
    // The provider formats it anew: what identifies it is the same.
    let anew = NewReceipt { raw: b"{ }".to_vec(), trace_parent: Some("x".into()), ..one.clone() };
    assert_eq!(bench.store.apply_receipts(&[anew]).await?.repeated, 1);

    let other = bench.another()?;
    for n in 0..30 {
        let batch: Vec<NewReceipt> =
            (0..20).map(|m| receipt(&format!("t-{n}-{m}"), ANNA, ReceiptKind::Failed)).collect();
        let reversed: Vec<NewReceipt> = batch.iter().rev().cloned().collect();
        let (a, b) = tokio::join!(bench.store.apply_receipts(&batch), other.apply_receipts(&reversed));
        assert_eq!(a?.repeated + b?.repeated, 20, "round {n}");
    }
    other.close().await;
    assert_eq!(bench.count("receipt").await?, 601);
    bench.shift_clock("40 days").await?;
    assert_eq!(bench.store.apply_receipts(std::slice::from_ref(&one)).await?.repeated, 1);
    Ok(())
}

/// T5, I6: a message id belongs to one message. A receipt that gives it to another is counted, and the id stays.
#[tokio::test]
async fn t5_a_provider_message_id_belongs_to_one_message() -> Result<()> {
    let bench = Bench::new("foreign").await?;
    let anna = bench.submitted(&[ANNA], "txn-1").await?[0].id;
    let bert = bench.submitted(&[BERT], "txn-2").await?[0].id;
    let with_id = |txn: &str, to: &str| NewReceipt {
        message_id: ProviderRef::clean("m-1"),
        ..receipt(txn, to, ReceiptKind::Delivered)
    };
    bench.store.apply_receipts(&[with_id("txn-1", ANNA)]).await?;
    let applied = bench.store.apply_receipts(&[with_id("txn-2", BERT)]).await?;
    assert_eq!(applied, Applied { applied: 1, contradicting: 1, finished: 1, ..Applied::default() });
    assert_eq!(bench.row(anna).await?["provider_message_id"], "m-1");
    assert_eq!(bench.row(bert).await?["provider_message_id"], Value::Null);
    assert_eq!(bench.sql("select provider_message_id, message_id from provider_message").await?, format!("m-1|{anna}"));
    // By its id alone it would have gone to Anna: the number says that it is not hers.
    assert_eq!(bench.count(&format!("receipt where message_id = {bert}")).await?, 1);

    // In one batch, and from an answer.
    let (carl, dora) = (bench.submitted(&[CARL], "txn-3").await?[0].id, bench.submitted(&[ANNA], "txn-4").await?[0].id);
    let pair = |txn: &str, to: &str| NewReceipt {
        message_id: ProviderRef::clean("m-2"),
        ..receipt(txn, to, ReceiptKind::Failed)
    };
    assert_eq!(bench.store.apply_receipts(&[pair("txn-3", CARL), pair("txn-4", ANNA)]).await?.contradicting, 1);
    let ids =
        [bench.row(carl).await?["provider_message_id"].clone(), bench.row(dora).await?["provider_message_id"].clone()];
    assert_eq!(ids, [json!("m-2"), Value::Null]);
    let (made, rows) = bench.on_the_wire(&[ANNA]).await?;
    let given =
        Accepted { txn_id: ProviderRef::clean("txn-5"), message_id: ProviderRef::clean("m-1"), ..Accepted::default() };
    assert_eq!(bench.record(&made, &rows, Outcome::Accepted(given)).await?.foreign_ids, 1);
    let row = bench.row(rows[0].id).await?;
    assert_eq!((&row["state"], &row["provider_message_id"]), (&json!("submitted"), &Value::Null));
    Ok(())
}

/// A receipt whose code nobody mapped says nothing: stored, matched, and the row stays as it is.
#[tokio::test]
async fn an_unmapped_receipt_changes_nothing() -> Result<()> {
    let bench = Bench::new("unmapped").await?;
    let id = bench.submitted(&[ANNA], "txn-1").await?[0].id;
    let mut before = bench.row(id).await?;
    let unmapped = NewReceipt { kind: None, code: Some("4711".into()), ..receipt("txn-1", ANNA, ReceiptKind::Failed) };
    let applied = bench.store.apply_receipts(&[unmapped]).await?;
    assert_eq!(applied, Applied { applied: 1, ..Applied::default() });
    let mut after = bench.row(id).await?;
    for row in [&mut before, &mut after] {
        row["updated_at"].take();
    }
    assert_eq!(after, before);
    assert_eq!(bench.sql(&format!("select code, kind is null from receipt where message_id = {id}")).await?, "4711|t");
    Ok(())
}

/// A receipt for a recipient whom the provider had refused: kept with the row, counted, and nothing is moved by it.
#[tokio::test]
async fn a_receipt_on_a_rejected_row_contradicts_and_moves_nothing() -> Result<()> {
    let bench = Bench::new("rejected").await?;
    let (made, rows) = bench.on_the_wire(&[ANNA, BERT]).await?;
    let bert = rows.iter().find(|row| row.recipient.expose() == BERT).unwrap();
    let outcome =
        Accepted { txn_id: ProviderRef::clean("txn-1"), invalid: vec![bert.recipient.clone()], ..Accepted::default() };
    bench.record(&made, &rows, Outcome::Accepted(outcome)).await?;
    let applied = bench.store.apply_receipts(&[receipt("txn-1", BERT, ReceiptKind::Delivered)]).await?;
    assert_eq!(applied, Applied { applied: 1, contradicting: 1, ..Applied::default() });
    let row = bench.row(bert.id).await?;
    assert_eq!(
        (&row["state"], &row["cost"], &row["receipt_state"]),
        (&json!("rejected"), &Value::Null, &json!("delivered"))
    );
    Ok(())
}

/// A transaction id that the provider gave twice fits two rows: never a guess between them.
#[tokio::test]
async fn t15_a_receipt_that_fits_two_rows_is_given_to_none() -> Result<()> {
    let bench = Bench::new("two_rows").await?;
    let one = bench.submitted(&[ANNA], "txn-1").await?[0].id;
    let two = bench.submitted(&[ANNA], "txn-1").await?[0].id;
    let applied = bench.store.apply_receipts(&[receipt("txn-1", ANNA, ReceiptKind::Delivered)]).await?;
    assert_eq!(applied, Applied { early: 1, ..Applied::default() });
    assert_eq!(bench.states(&[one, two]).await?, [State::Submitted, State::Submitted]);
    Ok(())
}

/// Forged or mistaken: right transaction, a number that was never in it; right number, another account.
#[tokio::test]
async fn i6_a_receipt_moves_only_the_row_it_names() -> Result<()> {
    let bench = Bench::new("forged").await?;
    let id = bench.submitted(&[ANNA], "txn-1").await?[0].id;
    bench.submitted(&[BERT], "txn-2").await?;
    let receipts = [
        receipt("txn-1", BERT, ReceiptKind::Failed),
        receipt("txn-1", CARL, ReceiptKind::Failed),
        NewReceipt { account: "other".into(), ..receipt("txn-1", ANNA, ReceiptKind::Failed) },
        NewReceipt { recipient: None, ..receipt("txn-9", ANNA, ReceiptKind::Failed) },
        NewReceipt { txn_id: None, ..receipt("txn-1", ANNA, ReceiptKind::Failed) },
    ];
    assert_eq!(bench.store.apply_receipts(&receipts).await?, Applied { early: 5, ..Applied::default() });
    assert_eq!(bench.state(id).await?, State::Submitted);
    assert_eq!(bench.count("outbound_message where receipt_state is not null").await?, 0);
    Ok(())
}

/// Appliers and the sweep at the same time, over the same rows in opposite orders: no deadlock, one result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i17_two_appliers_at_once_agree() -> Result<()> {
    use ReceiptKind::{Delivered, Read};
    let bench = Bench::new("appliers").await?;
    let other = bench.another()?;
    for round in 0..20 {
        let txn = format!("txn-{round}");
        let rows = bench.submitted(&[ANNA, BERT, CARL], &txn).await?;
        let of = |kind: ReceiptKind, order: [&str; 3]| -> Vec<NewReceipt> {
            let with_id = |to: &&str| NewReceipt {
                message_id: ProviderRef::clean(&format!("{txn}-{to}")),
                ..receipt(&txn, to, kind)
            };
            order.iter().map(with_id).collect()
        };
        let (there, back) = (of(Delivered, [ANNA, BERT, CARL]), of(Read, [CARL, BERT, ANNA]));
        let (a, b, c) = tokio::join!(
            bench.store.apply_receipts(&there),
            other.apply_receipts(&back),
            bench.store.sweep_receipts(100, DAY)
        );
        let (a, b, c) = (a?, b?, c?.0);
        assert_eq!([a, b, c].iter().map(|applied| applied.contradicting).sum::<usize>(), 0, "round {round}");
        bench.store.sweep_receipts(100, DAY).await?;
        for row in rows {
            let row = bench.row(row.id).await?;
            assert_eq!((&row["state"], &row["receipt_state"]), (&json!("delivered"), &json!("read")), "round {round}");
        }
    }
    assert_eq!(bench.count("receipt where disposition <> 'applied'").await?, 0);
    other.close().await;
    Ok(())
}
