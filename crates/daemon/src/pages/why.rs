//! Where an OS page is and why: the answer to `tiercel why ADDRESS`.
//! In: what is known of tiered memory. Out: [`PageWhy`]. Knows nothing of sockets and terminals.

use serde::{Deserialize, Serialize};
use tiercel_ledger::regions::{Accessor, Regions, Unit, UnitKey};
use tiercel_machine::NodeId;
use tiercel_policy::pages::{Estimate, Places};

use super::decided::{Decided, LastDecision};

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageWhy {
    /// Its process.
    pub pid: u32,
    /// First byte of its unit: what moves with it.
    pub addr: u64,
    /// Bytes of its unit.
    pub bytes: u64,
    /// It is of a private mapping of a file.
    pub of_file: bool,
    /// Where it is.
    pub node: NodeId,
    /// Which tier that is as its accessor sees them, from 1.
    pub tier: usize,
    /// Of how many.
    pub tiers: usize,
    /// The best node for its accessor.
    pub best: NodeId,
    /// Which node's CPUs accessed it.
    pub accessor: Accessor,
    /// Windows in which it was accessed.
    pub accessed: u8,
    /// Of the last so many.
    pub windows: u8,
    /// Accesses a second by estimate; a lower bound where it was accessed in all windows. `None`:
    /// no window has ended since it was mapped.
    pub accesses_per_s: Option<f64>,
    /// Stall time that they cost a second beyond what they would on the best node, nanoseconds.
    pub lost_ns_per_s: Option<f64>,
    /// What was decided last, if that is remembered.
    pub last: Option<LastDecision>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyError {
    /// No process has it.
    #[error(
        "{0:#x} is in no memory that is tiered here: only private mappings are, and new ones are \
         seen after a second"
    )]
    Unmapped(u64),
    /// More than one process has it.
    #[error("processes {0:?} have this address: name one with --pid")]
    Several(Vec<u32>),
    /// No memory is behind it.
    #[error("{1:#x} of process {0} has no memory: it was never touched, or it is swapped out")]
    Absent(u32, u64),
}

/// The process that has an address: the named one, else the only one.
pub(super) fn owner(regions: &Regions, pid: Option<u32>, addr: u64) -> Result<u32, WhyError> {
    let is_it = |one: &u32| pid.is_none_or(|pid| pid == *one) && regions.is_mapped((*one, addr));
    let owners: Vec<u32> = regions.pids().filter(is_it).collect();
    match owners[..] {
        [only] => Ok(only),
        [] => Err(WhyError::Unmapped(addr)),
        _ => Err(WhyError::Several(owners)),
    }
}

/// What explains the place of an OS page.
pub(super) struct Known<'a> {
    pub regions: &'a Regions,
    pub places: &'a Places,
    pub estimate: &'a Estimate,
    pub decided: &'a Decided,
}

impl Known<'_> {
    /// Explains the OS page of a process that has an address.
    pub fn explain(&self, (pid, addr): UnitKey) -> Result<PageWhy, WhyError> {
        let unit = self.regions.find((pid, addr)).ok_or(WhyError::Absent(pid, addr))?;
        let (tier, tiers, best) = self.places.standing(&unit);
        let (accessed, windows) = seen(&unit, self.estimate.history);
        let is_known = windows > 0;
        Ok(PageWhy {
            pid,
            addr: unit.addr,
            bytes: unit.bytes,
            of_file: unit.of_file,
            node: unit.node,
            tier,
            tiers,
            best,
            accessor: unit.accessor,
            accessed,
            windows,
            accesses_per_s: is_known.then(|| self.estimate.rate_per_s(&unit)),
            lost_ns_per_s: is_known.then(|| self.estimate.lost_ns_per_s(self.places, &unit)),
            last: self.decided.last((pid, addr)),
        })
    }
}

/// Windows in which a unit was accessed, and of how many.
fn seen(unit: &Unit, history: u8) -> (u8, u8) {
    unit.early.map_or((unit.level, history), |early| (early.accessed, early.windows))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{estimate, places};
    use super::*;
    use tiercel_ledger::regions::{Area, Demand, Evidence, GroupId, RegionsConfig, View};

    const OS_PAGE: u64 = 4096;
    const ADDR: u64 = 0x7f00_0000_0000;

    /// Processes 1 and 2 with 2 MiB each at [`ADDR`], of which the first OS page of 1 is on node 2.
    fn regions() -> Regions {
        let nodes: Vec<NodeId> = (0..4).map(NodeId).collect();
        let view = |node| View { node: NodeId(node), best: vec![NodeId(node)] };
        let config = RegionsConfig {
            history: 8,
            evidence: Evidence::Complete,
            demand: Demand::Running,
            nodes,
            views: vec![view(0), view(1)],
            fast: vec![NodeId(0), NodeId(1)],
        };
        let mut regions = Regions::new(config).unwrap();
        let area = Area { start: ADDR, end: ADDR + (2 << 20), of_file: false };
        for pid in [1, 2] {
            regions.set_mappings(pid, GroupId(0), &[area]);
        }
        regions.set_residency(1, ADDR, &[Some(NodeId(2))]);
        regions
    }

    fn explain(regions: &Regions, key: UnitKey) -> Result<PageWhy, WhyError> {
        let (places, estimate, decided) = (places(), estimate(), Decided::default());
        let known = Known { regions, places: &places, estimate: &estimate, decided: &decided };
        known.explain(key)
    }

    #[test]
    fn an_address_has_one_owner_or_the_named_one() {
        let mut regions = regions();
        assert_eq!(owner(&regions, Some(2), ADDR), Ok(2));
        assert_eq!(owner(&regions, None, ADDR), Err(WhyError::Several(vec![1, 2])));
        assert_eq!(owner(&regions, Some(3), ADDR), Err(WhyError::Unmapped(ADDR)));
        assert_eq!(owner(&regions, None, ADDR - 1), Err(WhyError::Unmapped(ADDR - 1)));
        regions.gone(2);
        assert_eq!(owner(&regions, None, ADDR), Ok(1));
    }

    #[test]
    fn an_os_page_is_explained_by_what_was_seen_of_it() {
        let mut regions = regions();
        assert_eq!(explain(&regions, (1, ADDR + OS_PAGE)).unwrap_err().to_string(), {
            "0x7f0000001000 of process 1 has no memory: it was never touched, or it is swapped out"
        });
        let new = explain(&regions, (1, ADDR + 5)).unwrap();
        assert_eq!((new.addr, new.bytes, new.accesses_per_s), (ADDR, OS_PAGE, None));
        for _ in 0..3 {
            regions.close_window();
            regions.touch(1, ADDR, Some(NodeId(0)));
        }
        let why = explain(&regions, (1, ADDR)).unwrap();
        assert_eq!((why.node, why.tier, why.tiers, why.best), (NodeId(2), 3, 4, NodeId(0)));
        assert_eq!((why.accessor, why.accessed, why.windows), (Accessor::Node(NodeId(0)), 2, 2));
        assert!(why.accesses_per_s > Some(100.0), "a full history of 100 accesses a window");
        assert!(why.lost_ns_per_s > Some(0.0) && why.last.is_none());
    }
}
