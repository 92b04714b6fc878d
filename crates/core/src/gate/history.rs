//! Whether the database is the one this fleet has worked with. A database restored from an older state has forgotten
//! messages that were sent: whoever claims from it sends them again, whoever believes its old hints loses their events.
//! Pure: what was read is given, what follows is returned.

use std::fmt;

use uuid::Uuid;

use crate::store::Position;

/// Why this database is not to be worked with yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// Its WAL position is below one that was seen before.
    Behind,
    /// It is on another timeline, and nothing says how far the fleet had come.
    NewTimeline,
    /// It is in another cluster than the one its epoch began in.
    OtherCluster,
    /// Its epoch was begun by a restore that has not ended.
    Incomplete,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            Self::Behind => "the database is behind what this fleet has seen: it was restored",
            Self::NewTimeline => {
                "the database is on a new timeline, and how far the fleet had come is not known: it may have been restored"
            }
            Self::OtherCluster => "the database is in another cluster than before: it was restored from a copy",
            Self::Incomplete => "the restore of the database has not ended",
        };
        write!(f, "safe mode: {why}; nothing is sent; see docs/runbooks/restored-database.md")
    }
}

/// What a process knows of the database's history.
#[derive(Debug, Default)]
pub(super) struct History {
    epoch: Option<Uuid>,
    timeline: i32,
    /// The highest WAL position that may count against the database.
    highest: Option<u64>,
    /// The position at the last look. It counts from the next look on: a synchronous standby has it by then.
    latest: Option<u64>,
    doubt: Option<Doubt>,
}

impl History {
    /// Takes in where the database is now; `shared` is the highest position that the fleet noted for this epoch, read
    /// before `position` was.
    pub(super) fn learn(&mut self, position: &Position, shared: Option<u64>) {
        if self.epoch != Some(position.epoch) {
            *self = Self { epoch: Some(position.epoch), ..Self::default() };
        }
        self.highest = self.highest.max(shared);
        // A restored database overtakes its former self in time. That proves nothing: only a new epoch does.
        if self.doubt != Some(Doubt::Behind) {
            self.doubt = doubt(position, self.highest);
        }
        if self.doubt.is_none() {
            if self.timeline != position.timeline {
                self.timeline = position.timeline;
                self.latest = None;
            }
            self.highest = self.highest.max(self.latest);
            self.latest = Some(position.wal);
        }
    }

    /// Whether the database that is at `position` is the one that was looked at last.
    pub(super) fn goes_on(&self, position: &Position) -> bool {
        self.doubt.is_none()
            && self.epoch == Some(position.epoch)
            && self.timeline == position.timeline
            && doubt(position, self.highest).is_none()
    }

    /// `None` before the first look, and in doubt.
    pub(super) fn trusted(&self) -> Option<(Uuid, i32)> {
        self.epoch.filter(|_| self.doubt.is_none()).map(|epoch| (epoch, self.timeline))
    }

    /// What the fleet should know of this epoch. Once it was behind it stays so, for workers started later too.
    pub(super) fn to_share(&self) -> Option<u64> {
        if self.doubt == Some(Doubt::Behind) { Some(u64::MAX) } else { self.highest }
    }

    pub(super) fn highest(&self) -> Option<u64> {
        self.highest
    }

    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }
}

fn doubt(position: &Position, highest: Option<u64>) -> Option<Doubt> {
    if !position.complete {
        return Some(Doubt::Incomplete);
    }
    if !position.same_cluster {
        return Some(Doubt::OtherCluster);
    }
    match highest {
        Some(highest) if position.wal < highest => Some(Doubt::Behind),
        // An ordinary failover.
        Some(_) => None,
        None if position.timeline != position.known_timeline => Some(Doubt::NewTimeline),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wal: u64) -> Position {
        Position { epoch: Uuid::from_u128(1), complete: true, same_cluster: true, known_timeline: 1, timeline: 1, wal }
    }

    #[test]
    fn execution_6_every_position_against_every_memory() {
        let failover = Position { timeline: 2, ..at(100) };
        let table = [
            (at(100), None, None),
            (at(100), Some(99), None),
            (at(100), Some(100), None),
            (at(100), Some(101), Some(Doubt::Behind)),
            (failover.clone(), Some(100), None),
            (failover.clone(), Some(101), Some(Doubt::Behind)),
            (failover, None, Some(Doubt::NewTimeline)),
            (Position { same_cluster: false, ..at(100) }, Some(1), Some(Doubt::OtherCluster)),
            (Position { complete: false, ..at(100) }, None, Some(Doubt::Incomplete)),
        ];
        for (position, highest, expected) in table {
            assert_eq!(doubt(&position, highest), expected, "{position:?} {highest:?}");
        }
    }

    #[test]
    fn execution_6_a_process_remembers_what_redis_forgot() {
        let mut history = History::default();
        history.learn(&at(1000), None);
        history.learn(&at(1010), None);
        assert_eq!((history.doubt(), history.to_share()), (None, Some(1000)));
        history.learn(&at(990), None);
        assert_eq!(history.doubt(), Some(Doubt::Behind));
        assert_eq!((history.trusted(), history.to_share()), (None, Some(u64::MAX)));
    }

    #[test]
    fn execution_6_a_restored_database_is_not_believed_when_it_has_caught_up() {
        let mut history = History::default();
        history.learn(&at(100), Some(500));
        history.learn(&at(900), Some(500));
        assert_eq!(history.doubt(), Some(Doubt::Behind));
        let restored = Position { epoch: Uuid::from_u128(2), ..at(901) };
        history.learn(&restored, None);
        assert_eq!(history.trusted(), Some((restored.epoch, 1)));
    }

    #[test]
    fn a_standby_that_lacks_the_last_moment_before_a_failover_is_no_restore() {
        let mut history = History::default();
        history.learn(&at(1000), None);
        history.learn(&at(2000), Some(1000));
        let promoted = Position { timeline: 2, ..at(1999) };
        assert!(!history.goes_on(&promoted), "hints of the old timeline are not for the new one");
        history.learn(&promoted, Some(1000));
        history.learn(&promoted, Some(1000));
        assert_eq!(history.trusted(), Some((promoted.epoch, 2)));
    }

    #[test]
    fn execution_6_a_hint_counts_only_while_the_database_goes_on() {
        let mut history = History::default();
        assert!(!history.goes_on(&at(1000)), "nothing was looked at yet");
        history.learn(&at(1000), None);
        assert!(history.goes_on(&at(1000)));
        history.learn(&at(1001), None);
        assert!(!history.goes_on(&at(999)));
        assert!(!history.goes_on(&Position { epoch: Uuid::from_u128(2), ..at(1001) }));
        assert!(!history.goes_on(&Position { timeline: 2, ..at(1001) }));
    }
}
