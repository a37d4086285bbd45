//! Units on a machine, and what a list of moves makes of them.
//! In: units, decisions. Out: where everything is afterwards, and broken promises. Knows nothing
//! of how it is decided.

use std::collections::{BTreeMap, HashSet};

use tiercel_ledger::movement::Move;
use tiercel_ledger::regions::{Accessor, GroupId, Unit, UnitKey};
use tiercel_machine::{Machine, NodeId};
use tiercel_policy::pages::{
    Estimate, Mode, PageDecision, Places, Reserve, Residents, Rooms, Situation, Tiering,
};

pub const OS_PAGE: u64 = 4096;

/// Local DRAM of socket 0, of socket 1, Optane of socket 0, of socket 1.
pub fn machine() -> Machine {
    Machine::builtin("two-socket-optane").expect("builtin").expect("valid")
}

pub fn places() -> Places {
    Places::new(&machine(), 100.0).expect("four tiers")
}

pub fn estimate() -> Estimate {
    Estimate {
        history: 8,
        window_s: 1.0,
        weight: 100.0,
        horizon_s: 30.0,
        margin: 1.0,
        parallelism: 2.0,
        move_ns_per_byte: 2.0,
    }
}

/// A unit of one OS page of process 1, group 0, on a node, accessed from a node.
pub fn unit(nth: u64, node: u16, level: u8, accessor: Accessor) -> Unit {
    let (addr, bytes) = (0x10_0000 + nth * OS_PAGE, OS_PAGE);
    let (group, node) = (GroupId(0), NodeId(node));
    let (early, samples, of_file) = (None, None, false);
    Unit { pid: 1, addr, bytes, group, node, level, early, samples, accessor, of_file }
}

/// A slow, obvious ledger: all units in a list.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub units: Vec<Unit>,
    pub free: BTreeMap<NodeId, u64>,
    returned: HashSet<UnitKey>,
}

impl Residents for Model {
    fn next_victim(&mut self, group: GroupId, node: NodeId) -> Option<Unit> {
        let here = self.units.iter().filter(|unit| unit.group == group && unit.node == node);
        let left = here.filter(|unit| !self.returned.contains(&unit.key()));
        let next = *left.min_by_key(|unit| (unit.victim_level(), unit.key()))?;
        self.returned.insert(next.key());
        Some(next)
    }

    fn find(&self, key: UnitKey) -> Option<Unit> {
        self.units.iter().copied().find(|unit| unit.key() == key)
    }
}

impl Model {
    /// Free OS pages of nodes 0 to 3.
    pub fn new(units: Vec<Unit>, free: [u64; 4]) -> Model {
        let free = (0..4).map(|n| (NodeId(n), free[usize::from(n)] * OS_PAGE)).collect();
        Model { units, free, returned: HashSet::new() }
    }

    pub fn rooms(&self, reserve: Reserve) -> Rooms {
        let free: Vec<_> = self.free.iter().map(|(node, bytes)| (*node, *bytes)).collect();
        Rooms::new(&places(), &free, reserve)
    }

    /// One tick of a mode; nothing moves yet.
    pub fn tick(
        &mut self,
        tiering: &mut Tiering,
        demand: Vec<Unit>,
        rooms: Rooms,
        window: u64,
    ) -> PageDecision {
        self.returned.clear();
        let estimate = estimate();
        tiering.tick(Situation { demand, residents: self, rooms, estimate: &estimate, window })
    }

    /// Executes what was decided, and says so.
    pub fn carry_out(&mut self, tiering: &mut Tiering, decision: &PageDecision, window: u64) {
        for one in &decision.moves {
            self.execute(one);
            tiering.moved((one.pid, one.addr), window);
        }
    }

    /// Executes one move.
    ///
    /// # Panics
    /// When it has no room, or moves nothing.
    pub fn execute(&mut self, asked: &Move) {
        let key = (asked.pid, asked.addr);
        let unit = self.units.iter_mut().find(|unit| unit.key() == key).expect("a unit");
        assert_eq!(Some(unit.node), asked.from, "it is where the move says");
        assert_ne!(unit.node, asked.to, "a move moves");
        let room = self.free.get_mut(&asked.to).expect("a node");
        assert!(*room >= unit.bytes, "no room on node {} for {asked:?}", asked.to);
        *room -= unit.bytes;
        *self.free.get_mut(&unit.node).expect("a node") += unit.bytes;
        unit.node = asked.to;
    }
}

/// A tiering of this mode, and the reserve that it has on nodes 0 and 1.
pub fn tiering(mode: Mode) -> (Tiering, Reserve) {
    let reserve = if mode.has_reserve() { Reserve::published(OS_PAGE) } else { Reserve::default() };
    (Tiering::new(mode, places()), reserve)
}
