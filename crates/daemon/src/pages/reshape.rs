//! Huge OS pages that are broken up, and small ones that become one, where that pays.
//! In: decisions, the ledger. Out: [`Reshape`]s, what became of them. Knows nothing of what pays.

use tiercel_ledger::regions::{Regions, UnitKey};
use tiercel_mover::{Errno, HUGE_BYTES, collapse, split};
use tiercel_policy::pages::{
    Estimate, Mode, PageDecision, Places, Stay, should_collapse, should_split,
};

/// Most of a tick: 32 MiB, whose copies take some 10 ms.
const RESHAPES_MAX: usize = 16;

/// What happens to 2 MiB of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshape {
    /// The huge OS page there is broken up.
    Split(UnitKey),
    /// Its OS pages become a huge one.
    Collapse(UnitKey),
}

impl Reshape {
    /// Asks the kernel for it.
    pub fn execute(self) -> Result<(), Errno> {
        match self {
            Reshape::Split((pid, addr)) => split(pid, addr),
            Reshape::Collapse((pid, addr)) => collapse(pid, addr),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Reshaper {
    may_split: bool,
    may_collapse: bool,
}

impl Reshaper {
    /// Only mode `benefit` knows what pays.
    pub fn new(mode: Mode) -> Reshaper {
        let is_benefit = mode == Mode::Benefit;
        Reshaper { may_split: is_benefit, may_collapse: is_benefit }
    }

    /// What to do after a decision.
    pub fn choose(
        &self,
        decision: &PageDecision,
        regions: &mut Regions,
        places: &Places,
        estimate: &Estimate,
    ) -> Vec<Reshape> {
        let mut chosen = Vec::new();
        if self.may_split {
            let stay = decision.stays.iter().filter(|one| one.unit.bytes == HUGE_BYTES);
            let stay = stay.filter(|one| matches!(one.why, Stay::NoRoom | Stay::NoGain { .. }));
            let warm = stay.filter_map(|one| Some((one.unit, regions.warm_pages(one.unit.key())?)));
            let split = warm.filter(|(unit, warm)| should_split(estimate, places, unit, *warm));
            chosen.extend(split.take(RESHAPES_MAX).map(|(unit, _)| Reshape::Split(unit.key())));
        }
        if self.may_collapse {
            let hot = regions.to_collapse(RESHAPES_MAX - chosen.len());
            let hot = hot.iter().filter(|unit| should_collapse(estimate, unit));
            chosen.extend(hot.map(|unit| Reshape::Collapse(unit.key())));
        }
        chosen
    }

    /// Notes what became of them. Without the right to, nothing of the kind is tried again.
    pub fn learn(&mut self, done: &[(Reshape, Result<(), Errno>)], regions: &mut Regions) {
        let is_refusal = |errno: Errno| {
            [libc::EPERM, libc::EACCES, libc::ENOENT, libc::ENOSYS, libc::EROFS].contains(&errno.0)
        };
        for (what, result) in done {
            let is_refused = result.is_err_and(is_refusal);
            match what {
                Reshape::Split(key) if result.is_ok() => regions.set_huge_at(*key, false),
                Reshape::Collapse(key) if result.is_ok() => regions.set_huge_at(*key, true),
                Reshape::Split(_) => self.may_split &= !is_refused,
                Reshape::Collapse(_) => self.may_collapse &= !is_refused,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{estimate, places};
    use super::*;
    use tiercel_ledger::regions::{Area, Demand, Evidence, GroupId, RegionsConfig, View};
    use tiercel_machine::NodeId;
    use tiercel_policy::pages::Stayed;

    const OS_PAGE: u64 = 4096;

    /// A process whose first 2 MiB are huge and accessed in one place, and whose second are small
    /// and accessed all over, in Optane of socket 0.
    fn regions() -> Regions {
        let view = |node| View { node: NodeId(node), best: vec![NodeId(node)] };
        let mut regions = Regions::new(RegionsConfig {
            history: 8,
            evidence: Evidence::Sampled,
            demand: Demand::Running,
            nodes: (0..4).map(NodeId).collect(),
            views: vec![view(0), view(1)],
            fast: vec![NodeId(0), NodeId(1)],
        })
        .unwrap();
        let area = Area { start: HUGE_BYTES, end: 3 * HUGE_BYTES, of_file: false };
        regions.set_mappings(7, GroupId(0), &[area]);
        regions.set_residency(7, HUGE_BYTES, &[Some(NodeId(2)); 1024]);
        regions.set_huge(7, std::slice::from_ref(&(HUGE_BYTES..2 * HUGE_BYTES)));
        for _ in 0..8 {
            for page in (0..20).map(|nth| nth % 4).chain(512..1024).chain(512..1024) {
                regions.touch(7, HUGE_BYTES + page * OS_PAGE, Some(NodeId(0)));
            }
            regions.close_window();
        }
        regions
    }

    fn choose(reshaper: &Reshaper, regions: &mut Regions, why: Stay) -> Vec<Reshape> {
        let unit = regions.find((7, HUGE_BYTES)).unwrap();
        let stays = vec![Stayed { unit, why }];
        let decision = PageDecision { stays, ..PageDecision::default() };
        reshaper.choose(&decision, regions, &places(), &estimate())
    }

    #[test]
    fn what_pays_is_reshaped_and_the_ledger_follows() {
        let (mut regions, mut reshaper) = (regions(), Reshaper::new(Mode::Benefit));
        let (split, whole) =
            (Reshape::Split((7, HUGE_BYTES)), Reshape::Collapse((7, 2 * HUGE_BYTES)));
        assert_eq!(choose(&reshaper, &mut regions, Stay::NoRoom), [split, whole]);
        assert_eq!(choose(&reshaper, &mut regions, Stay::Settled), [whole], "it is well there");
        reshaper.learn(&[(split, Ok(())), (whole, Ok(()))], &mut regions);
        let bytes = |addr| regions.find((7, addr)).unwrap().bytes;
        assert_eq!([bytes(HUGE_BYTES), bytes(2 * HUGE_BYTES)], [OS_PAGE, HUGE_BYTES]);
    }

    #[test]
    fn without_the_right_to_it_is_not_tried_again() {
        let (mut regions, mut reshaper) = (regions(), Reshaper::new(Mode::Benefit));
        let first = choose(&reshaper, &mut regions, Stay::NoRoom);
        let busy: Vec<_> = first.iter().map(|one| (*one, Err(Errno(libc::EBUSY)))).collect();
        reshaper.learn(&busy, &mut regions);
        assert_eq!(choose(&reshaper, &mut regions, Stay::NoRoom), first, "for now it is busy");
        let refused: Vec<_> = first.iter().map(|one| (*one, Err(Errno(libc::EPERM)))).collect();
        reshaper.learn(&refused, &mut regions);
        assert_eq!(choose(&reshaper, &mut regions, Stay::NoRoom), []);
        assert_eq!(choose(&Reshaper::new(Mode::Opm), &mut regions, Stay::NoRoom), []);
    }
}
