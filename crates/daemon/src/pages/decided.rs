//! What was decided last on each unit, for those who ask why it is where it is.
//! In: decisions, outcomes. Out: [`LastDecision`]s. Knows nothing of how anything is decided.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tiercel_ledger::movement::{Failure, Outcome, Reason};
use tiercel_ledger::regions::UnitKey;
use tiercel_machine::NodeId;
use tiercel_machine::number::whole_ms;
use tiercel_policy::pages::{PageDecision, Stay};

/// Units of a generation; two are kept, the older of which is forgotten as a whole. As many as
/// stay and move in a full tick, 12 MB each.
const UNITS_MAX: usize = 81_920;

/// What was decided on a unit, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastDecision {
    /// Milliseconds since then.
    pub ago_ms: u64,
    /// In which window, from 1.
    pub window: u64,
    /// What.
    pub what: Decision,
}

/// See [`LastDecision`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// It asked to move and stays.
    Stays(Stay),
    /// It moves.
    Moves {
        /// From where.
        from: Option<NodeId>,
        /// Where to.
        to: NodeId,
        /// Why.
        reason: Reason,
        /// Stall time that it saves by estimate, nanoseconds a second; negative: it costs that.
        gain_ns_per_s: f64,
        /// What moving costs once by estimate, nanoseconds.
        cost_ns: f64,
        /// What became of it; `None`: it is under way.
        result: Option<MoveResult>,
    },
}

/// What became of a move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveResult {
    /// All of it is where it should be.
    Done,
    /// Some of it is not, mostly for this reason; `None`: it is nowhere.
    Failed(Option<Failure>),
}

/// See the module.
pub(super) struct Decided {
    began: Instant,
    newer: BTreeMap<UnitKey, Entry>,
    older: BTreeMap<UnitKey, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    bytes: u64,
    at_ms: u64,
    window: u64,
    what: Decision,
}

impl Default for Decided {
    fn default() -> Decided {
        Decided { began: Instant::now(), newer: BTreeMap::new(), older: BTreeMap::new() }
    }
}

impl Decided {
    /// Notes a tick's decisions, made in a window.
    pub fn note(&mut self, decision: &PageDecision, window: u64) {
        for stayed in &decision.stays {
            // It says less than the move that brought it there.
            if stayed.why == Stay::Settled && self.knows(stayed.unit.key()) {
                continue;
            }
            let what = Decision::Stays(stayed.why);
            self.add(stayed.unit.key(), stayed.unit.bytes, window, what);
        }
        for asked in &decision.moves {
            let what = Decision::Moves {
                from: asked.from,
                to: asked.to,
                reason: asked.reason,
                gain_ns_per_s: asked.gain_ns_per_s,
                cost_ns: asked.cost_ns,
                result: None,
            };
            self.add((asked.pid, asked.addr), asked.bytes, window, what);
        }
    }

    fn knows(&self, key: UnitKey) -> bool {
        self.newer.contains_key(&key) || self.older.contains_key(&key)
    }

    fn add(&mut self, key: UnitKey, bytes: u64, window: u64, what: Decision) {
        if self.newer.len() >= UNITS_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        let at_ms = whole_ms(self.began.elapsed());
        self.newer.insert(key, Entry { bytes, at_ms, window, what });
    }

    /// Notes what became of a move.
    pub fn learn(&mut self, outcome: &Outcome) {
        let key = (outcome.asked.pid, outcome.asked.addr);
        let entry = self.newer.get_mut(&key).or_else(|| self.older.get_mut(&key));
        if let Some(Entry { what: Decision::Moves { result, .. }, .. }) = entry {
            let is_done = outcome.resident_bytes == outcome.asked.bytes;
            let why = outcome.failed.first().map(|(why, _)| *why);
            *result = Some(if is_done { MoveResult::Done } else { MoveResult::Failed(why) });
        }
    }

    /// The last decision on the unit that had an address then.
    pub fn last(&self, key: UnitKey) -> Option<LastDecision> {
        let Entry { at_ms, window, what, .. } =
            covering(&self.newer, key).or_else(|| covering(&self.older, key))?;
        let ago_ms = whole_ms(self.began.elapsed()).saturating_sub(*at_ms);
        Some(LastDecision { ago_ms, window: *window, what: what.clone() })
    }
}

fn covering(units: &BTreeMap<UnitKey, Entry>, (pid, addr): UnitKey) -> Option<&Entry> {
    let ((of, first), entry) = units.range(..=(pid, addr)).next_back()?;
    (*of == pid && addr - first < entry.bytes).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_ledger::movement::Move;
    use tiercel_ledger::regions::{Accessor, GroupId, Unit};
    use tiercel_policy::pages::Stayed;

    const OS_PAGE: u64 = 4096;

    fn stays(nth: u64, bytes: u64) -> Stayed {
        let unit = Unit {
            pid: 1,
            addr: nth * OS_PAGE,
            bytes,
            group: GroupId(0),
            node: NodeId(2),
            level: 3,
            early: None,
            samples: None,
            accessor: Accessor::Node(NodeId(0)),
            of_file: false,
        };
        Stayed { unit, why: Stay::NoRoom }
    }

    fn moves(nth: u64) -> Move {
        Move {
            pid: 1,
            addr: nth * OS_PAGE,
            bytes: OS_PAGE,
            from: Some(NodeId(2)),
            to: NodeId(0),
            reason: Reason::Promote,
            gain_ns_per_s: 5.0,
            cost_ns: 7.0,
        }
    }

    fn result(decided: &Decided, nth: u64) -> Option<MoveResult> {
        match decided.last((1, nth * OS_PAGE))?.what {
            Decision::Moves { result, .. } => result,
            Decision::Stays(_) => None,
        }
    }

    #[test]
    fn the_last_decision_counts_for_all_of_a_unit() {
        let mut decided = Decided::default();
        let stays = vec![stays(16, 16 * OS_PAGE)];
        decided.note(&PageDecision { stays, ..PageDecision::default() }, 3);
        let why = |addr| decided.last((1, addr)).map(|last| (last.window, last.what));
        let stayed = Some((3, Decision::Stays(Stay::NoRoom)));
        assert_eq!(why(16 * OS_PAGE), stayed);
        assert_eq!(why(32 * OS_PAGE - 1), stayed);
        assert_eq!(why(32 * OS_PAGE), None);
        assert_eq!(why(16 * OS_PAGE - 1), None);
        assert_eq!(decided.last((2, 16 * OS_PAGE)), None, "of another process");
    }

    #[test]
    fn a_move_has_what_became_of_it() {
        let mut decided = Decided::default();
        let all = vec![moves(1), moves(2), moves(3)];
        decided.note(&PageDecision { moves: all, ..PageDecision::default() }, 1);
        let outcome = |nth| Outcome::of(moves(nth));
        decided.learn(&Outcome { resident_bytes: OS_PAGE, ..outcome(1) });
        decided.learn(&Outcome { failed: vec![(Failure::Busy, OS_PAGE)], ..outcome(2) });
        assert_eq!(result(&decided, 1), Some(MoveResult::Done));
        assert_eq!(result(&decided, 2), Some(MoveResult::Failed(Some(Failure::Busy))));
        assert_eq!(result(&decided, 3), None, "under way");
        let stays = vec![Stayed { why: Stay::Settled, ..stays(1, OS_PAGE) }];
        decided.note(&PageDecision { stays, ..PageDecision::default() }, 2);
        assert_eq!(result(&decided, 1), Some(MoveResult::Done), "what brought it there");
        decided.learn(&outcome(9));
        assert_eq!(decided.last((1, 9 * OS_PAGE)), None, "nothing was decided on it");
    }

    #[test]
    fn old_decisions_are_forgotten() {
        let mut decided = Decided::default();
        let units = |from: u64| (from..from + UNITS_MAX as u64).map(|nth| stays(nth, OS_PAGE));
        for from in [0, UNITS_MAX as u64] {
            let stays = units(from).collect();
            decided.note(&PageDecision { stays, ..PageDecision::default() }, 1);
        }
        assert!(decided.last((1, 0)).is_some(), "in the older generation");
        let stays = vec![stays(3 * UNITS_MAX as u64, OS_PAGE)];
        decided.note(&PageDecision { stays, ..PageDecision::default() }, 1);
        assert!(decided.last((1, 0)).is_none());
    }
}
