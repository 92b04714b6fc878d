//! Execution 6: a database that was restored is told from the one that was there before.

use anyhow::Result;
use uuid::Uuid;

use crate::support::{ANNA, Bench, claim};

#[tokio::test]
async fn the_database_says_where_it_is_and_its_position_grows() -> Result<()> {
    let bench = Bench::new("position").await?;
    let before = bench.store.position().await?;
    assert!(before.complete && before.same_cluster);
    assert_eq!((before.timeline, before.known_timeline), (1, 1));
    bench.queue(&[ANNA]).await?;
    let after = bench.store.position().await?;
    assert!(after.wal > before.wal, "{} {}", after.wal, before.wal);
    assert_eq!(after.epoch, before.epoch);
    bench.store.accept_timeline(after.epoch, 7).await?;
    assert_eq!(bench.store.position().await?.known_timeline, 7);
    Ok(())
}

#[tokio::test]
async fn execution_6_a_claim_takes_nothing_from_a_database_that_is_behind_or_of_another_epoch() -> Result<()> {
    let bench = Bench::new("followed").await?;
    let (job, _) = bench.queue(&[ANNA]).await?;
    let position = bench.store.position().await?;
    for (epoch, at_least) in [(position.epoch, u64::MAX), (position.epoch, 1 << 62), (Uuid::from_u128(1), 0)] {
        bench.store.follow(epoch, at_least);
        let (rows, after) = bench.store.claim(&claim(&[job], 4, 1)).await?;
        assert!(rows.is_empty(), "{epoch} {at_least}");
        assert!(after[0].released.is_some(), "its row owns what follows: {after:?}");
    }
    // A restore that began a new epoch.
    bench.store.follow(position.epoch, position.wal);
    bench.sql("insert into store_epoch (system_identifier) select system_identifier from store_epoch").await?;
    assert!(bench.store.claim(&claim(&[job], 4, 1)).await?.0.is_empty());
    let restored = bench.store.position().await?;
    assert!(!restored.complete && restored.epoch != position.epoch);
    bench.store.follow(restored.epoch, restored.wal);
    assert_eq!(bench.store.claim(&claim(&[job], 4, 1)).await?.0.len(), 1);
    Ok(())
}
