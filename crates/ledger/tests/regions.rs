//! The ledger of OS pages against a slow, obvious one.
//! In: mappings, accesses, residency and windows by chance. Out: where the two differ. Knows
//! nothing of bit planes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tiercel_ledger::regions::{
    Accessor, Area, Demand, Early, Evidence, GroupId, LEVEL_MAX, Regions, RegionsConfig, Unit, View,
};
use tiercel_machine::NodeId;

const OS_PAGE: u64 = 4096;
const PIDS: [u32; 3] = [7, 8, 9];
/// OS pages of a process in these tests: two pieces and a half, not aligned to one.
const PAGES: u64 = 1300;
const BASE: u64 = 0x7000_0010_0000;

fn config(history: u8) -> RegionsConfig {
    let view = |node: u16| View { node: NodeId(node), best: vec![NodeId(node)] };
    RegionsConfig {
        history,
        evidence: Evidence::Complete,
        demand: Demand::Running,
        nodes: (0..4).map(NodeId).collect(),
        views: vec![view(0), view(1)],
        fast: vec![NodeId(0), NodeId(1)],
    }
}

/// An OS page of the slow ledger: one bit of `history` for each window, the open one first.
#[derive(Clone, Debug)]
struct Page {
    history: Vec<bool>,
    node: Option<NodeId>,
    accessor: Option<NodeId>,
    /// The window in which another accessor came, and the block's turn to forget it.
    is_shared: bool,
}

#[derive(Debug)]
struct Slow {
    history: usize,
    pages: BTreeMap<(u32, u64), Page>,
    groups: BTreeMap<u32, (GroupId, bool)>,
    demand: Vec<(u32, u64)>,
    window: u64,
    /// The window in which each piece of 2 MiB was mapped.
    since: BTreeMap<(u32, u64), u64>,
}

impl Slow {
    fn map(&mut self, pid: u32, group: GroupId, areas: &[Area]) {
        let has = |addr: u64| areas.iter().any(|area| (area.start..area.end).contains(&addr));
        let piece = |addr: u64| addr / (2 << 20);
        let kept = |addr: u64| {
            areas
                .iter()
                .any(|area| (piece(area.start)..=piece(area.end - 1)).contains(&piece(addr)))
        };
        self.pages.retain(|(one, addr), _| *one != pid || kept(*addr));
        for ((_, addr), page) in self.pages.iter_mut().filter(|((one, _), _)| *one == pid) {
            if !has(*addr) {
                page.node = None;
            }
        }
        let pages = self.pages.keys().map(|(pid, addr)| (*pid, piece(*addr)));
        let known: BTreeSet<(u32, u64)> = pages.collect();
        self.since.retain(|key, _| known.contains(key));
        for area in areas {
            for addr in (area.start..area.end).step_by(OS_PAGE as usize) {
                self.since.entry((pid, piece(addr))).or_insert(self.window);
                self.pages.entry((pid, addr)).or_insert(Page {
                    history: vec![false; self.history],
                    node: None,
                    accessor: None,
                    is_shared: false,
                });
            }
        }
        self.groups.insert(pid, (group, areas.iter().all(|area| area.of_file)));
        self.areas(pid, areas);
    }

    fn areas(&mut self, pid: u32, areas: &[Area]) {
        let mapped = areas.iter().any(|area| area.start < area.end);
        if !mapped {
            self.groups.remove(&pid);
        }
    }

    fn touch(&mut self, pid: u32, addr: u64, from: NodeId, is_mapped: bool) {
        let Some(page) = self.pages.get_mut(&(pid, addr)).filter(|_| is_mapped) else { return };
        let is_first = !page.history[0];
        let was = self.history > 1 && page.history[1];
        page.history[0] = true;
        let is_same = page.accessor == Some(from);
        if !is_same {
            page.is_shared = page.accessor.is_some() && (was || !is_first);
            page.accessor = Some(from);
        }
        let is_settled = match page.node {
            Some(node) if page.is_shared => node.0 < 2,
            node => node == Some(from),
        };
        if page.node.is_some() && is_first && was && is_same && !is_settled {
            self.demand.push((pid, addr));
        }
    }

    fn locate(&mut self, pid: u32, addr: u64, node: Option<NodeId>) {
        let Some(page) = self.pages.get_mut(&(pid, addr)) else { return };
        if page.node.is_none() && node.is_some() {
            page.history.fill(true);
        }
        page.node = node;
    }

    /// All pieces of these tests are in the first block, whose turn to forget is every eighth.
    fn close(&mut self) {
        let turn = self.window.is_multiple_of(8);
        self.window += 1;
        for page in self.pages.values_mut() {
            page.history.pop();
            page.history.insert(0, false);
            page.is_shared &= !turn;
        }
    }

    fn unit(&self, key: (u32, u64)) -> Option<Unit> {
        let page = self.pages.get(&key)?;
        let (group, of_file) = *self.groups.get(&key.0)?;
        let accessor = match page.accessor {
            None => Accessor::Unknown,
            Some(_) if page.is_shared => Accessor::Several,
            Some(node) => Accessor::Node(node),
        };
        let level = page.history.iter().map(|bit| u8::from(*bit)).sum();
        Some(Unit {
            pid: key.0,
            addr: key.1,
            bytes: OS_PAGE,
            group,
            node: page.node?,
            level,
            early: self.early(key, level),
            samples: None,
            accessor,
            of_file,
        })
    }
}

impl Slow {
    fn early(&self, (pid, addr): (u32, u64), level: u8) -> Option<Early> {
        let observed = (self.window - self.since[&(pid, addr / (2 << 20))]) as usize;
        if observed >= self.history {
            return None;
        }
        let windows = observed.saturating_sub(1);
        let accessed = usize::from(level).saturating_sub(self.history - observed).min(windows);
        Some(Early { windows: windows as u8, accessed: accessed as u8 })
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Process, first OS page, OS pages, group, of a file.
    Map(usize, u64, u64, u16, bool),
    Touch(usize, u64, u64, u16),
    Locate(usize, u64, u64, Option<u16>),
    Close,
    Demand,
    Victims(u16, u16),
    Gone(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (pid, page) = (0usize..3, 0..PAGES);
    let many = 1u64..700;
    prop_oneof![
        2 => (pid.clone(), page.clone(), many.clone(), 0u16..2, any::<bool>())
            .prop_map(|(pid, at, pages, group, file)| Step::Map(pid, at, pages, group, file)),
        6 => (pid.clone(), page.clone(), 1u64..60, 0u16..2)
            .prop_map(|(pid, at, pages, node)| Step::Touch(pid, at, pages, node)),
        4 => (pid.clone(), page, many, proptest::option::weighted(0.9, 0u16..4))
            .prop_map(|(pid, at, pages, node)| Step::Locate(pid, at, pages, node)),
        5 => Just(Step::Close),
        2 => Just(Step::Demand),
        2 => (0u16..2, 0u16..4).prop_map(|(group, node)| Step::Victims(group, node)),
        1 => pid.prop_map(Step::Gone),
    ]
}

struct Both {
    fast: Regions,
    slow: Slow,
    areas: BTreeMap<u32, Area>,
}

impl Both {
    fn new(history: u8) -> Both {
        let slow = Slow {
            history: usize::from(history),
            pages: BTreeMap::new(),
            groups: BTreeMap::new(),
            demand: Vec::new(),
            window: 1,
            since: BTreeMap::new(),
        };
        let fast = Regions::new(config(history)).expect("valid");
        let mut both = Both { fast, slow, areas: BTreeMap::new() };
        for pid in PIDS {
            both.map(pid, Area { start: BASE, end: BASE + PAGES * OS_PAGE, of_file: false }, 0);
        }
        both
    }

    fn map(&mut self, pid: u32, area: Area, group: u16) {
        assert_eq!(self.fast.set_mappings(pid, GroupId(group), &[area]), 0);
        self.slow.map(pid, GroupId(group), &[area]);
        self.areas.insert(pid, area);
    }

    fn apply(&mut self, step: &Step) {
        let addr = |page: u64| BASE + page * OS_PAGE;
        match *step {
            Step::Map(pid, at, pages, group, of_file) => {
                let area = Area { start: addr(at), end: addr(at + pages), of_file };
                self.map(PIDS[pid], area, group);
            }
            Step::Touch(pid, at, pages, node) => {
                for page in at..at + pages {
                    let (pid, node) = (PIDS[pid], NodeId(node));
                    let area = self.areas.get(&pid);
                    let is_mapped =
                        area.is_some_and(|area| (area.start..area.end).contains(&addr(page)));
                    self.fast.touch(pid, addr(page) + 77, Some(node));
                    self.slow.touch(pid, addr(page), node, is_mapped);
                }
            }
            Step::Locate(pid, at, pages, node) => {
                let Some(area) = self.areas.get(&PIDS[pid]) else { return };
                let (start, end) = (addr(at).max(area.start), addr(at + pages).min(area.end));
                let nodes = vec![node.map(NodeId); end.saturating_sub(start) as usize / 4096];
                self.fast.set_residency(PIDS[pid], start, &nodes);
                for nth in 0..nodes.len() as u64 {
                    self.slow.locate(PIDS[pid], start + nth * OS_PAGE, node.map(NodeId));
                }
            }
            Step::Close => {
                self.fast.close_window();
                self.slow.close();
            }
            Step::Demand => self.compare_demand(),
            Step::Victims(group, node) => self.compare_victims(GroupId(group), NodeId(node)),
            Step::Gone(pid) => {
                self.fast.gone(PIDS[pid]);
                self.slow.pages.retain(|(one, _), _| *one != PIDS[pid]);
                self.slow.since.retain(|(one, _), _| *one != PIDS[pid]);
                self.slow.groups.remove(&PIDS[pid]);
                self.areas.remove(&PIDS[pid]);
            }
        }
    }

    fn compare_demand(&mut self) {
        let fast = self.fast.take_demand();
        let mut keys: Vec<_> = std::mem::take(&mut self.slow.demand);
        keys.sort_unstable();
        keys.dedup();
        let slow: Vec<Unit> = keys.iter().filter_map(|key| self.slow.unit(*key)).collect();
        let mut fast: Vec<Unit> = fast;
        fast.sort_by_key(Unit::key);
        // A piece that is freed and used again in between takes its demand with it.
        fast.retain(|unit| keys.binary_search(&unit.key()).is_ok());
        assert_eq!(fast, slow);
    }

    /// All victims, in order: each unit of the group on the node once, the lowest levels first.
    fn compare_victims(&mut self, group: GroupId, node: NodeId) {
        self.compare_demand();
        let mut seen = Vec::new();
        while let Some(unit) = self.fast.next_victim(group, node) {
            seen.push(unit);
        }
        assert!(seen.is_sorted_by_key(Unit::victim_level), "the lowest first");
        seen.sort_by_key(Unit::key);
        let all = self.slow.pages.keys().filter_map(|key| self.slow.unit(*key));
        let expected: Vec<Unit> =
            all.filter(|unit| unit.group == group && unit.node == node).collect();
        assert_eq!(seen, expected);
    }

    fn compare_all(&mut self) {
        for (pid, addr) in self.slow.pages.keys() {
            let area = self.areas.get(pid);
            let is_mapped = area.is_some_and(|area| (area.start..area.end).contains(addr));
            let expected = self.slow.unit((*pid, *addr)).filter(|_| is_mapped);
            assert_eq!(self.fast.find((*pid, *addr)), expected);
        }
        for node in (0..4).map(NodeId) {
            let mut counts = [0u64; LEVEL_MAX as usize + 1];
            let units = self.slow.pages.keys().filter_map(|key| self.slow.unit(*key));
            units.filter(|unit| unit.node == node).for_each(|unit| {
                counts[usize::from(unit.level)] += 1;
            });
            assert_eq!(self.fast.counts(node), counts);
        }
        let is_even = |node: NodeId| node.0.is_multiple_of(2);
        let mut expected: BTreeMap<GroupId, u64> = BTreeMap::new();
        let units = self.slow.pages.keys().filter_map(|key| self.slow.unit(*key));
        units.filter(|unit| is_even(unit.node)).for_each(|unit| {
            *expected.entry(unit.group).or_default() += 1;
        });
        let mut held = self.fast.held(is_even);
        held.retain(|_, count| *count > 0);
        assert_eq!(held, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn it_does_what_the_obvious_one_does(
        history in 1u8..=8, steps in proptest::collection::vec(step(), 1..60)
    ) {
        let mut both = Both::new(history);
        steps.iter().for_each(|step| both.apply(step));
        both.compare_all();
        for (group, node) in [(0, 0), (0, 3), (1, 1)] {
            both.compare_victims(GroupId(group), NodeId(node));
        }
    }
}

fn mapped(pages: u64, evidence: Evidence) -> Regions {
    let mut regions = Regions::new(RegionsConfig { evidence, ..config(8) }).expect("valid");
    let area = Area { start: 2 << 20, end: (2 << 20) + pages * OS_PAGE, of_file: false };
    regions.set_mappings(7, GroupId(0), &[area]);
    regions.set_residency(7, 2 << 20, &vec![Some(NodeId(2)); pages as usize]);
    regions
}

#[test]
fn thin_evidence_makes_units_of_one_history() {
    let mut regions = mapped(1024, Evidence::Sampled);
    let at = |page: u64| (7, (2 << 20) + page * OS_PAGE);
    for _ in 0..8 {
        (0..100).for_each(|page| regions.touch(7, at(page * 2).1, Some(NodeId(0))));
        regions.close_window();
    }
    // 100 samples on 100 OS pages are one each; on 13 units of 64 KiB nearly 8 a window.
    let unit = regions.find(at(17)).expect("mapped");
    assert_eq!((unit.addr, unit.bytes), (at(16).1, 16 * OS_PAGE));
    let levels: Vec<u8> =
        (0..200).map(|page| regions.find(at(page)).expect("mapped").level).collect();
    assert!(levels.iter().all(|level| *level == levels[0]), "{levels:?}");
    assert_eq!(levels[0], 7, "the open window has no access yet");
    assert_eq!(regions.find(at(600)).expect("mapped").level, 0, "the rest had none");
    assert_eq!(unit.samples, Some(8.0), "a window");
    assert_eq!(regions.find(at(600)).expect("mapped").samples, Some(0.0));
    assert_eq!(mapped(8, Evidence::Complete).find(at(0)).expect("mapped").samples, None);
}

#[test]
fn huge_os_pages_are_units_beside_others() {
    const HUGE: u64 = 2 << 20;
    let mut regions = mapped(1536, Evidence::Complete);
    regions.close_window();
    regions.touch(7, HUGE + 3 * OS_PAGE, None);
    regions.touch(7, 3 * HUGE + 5 * OS_PAGE, None);
    regions.set_huge(7, std::slice::from_ref(&(HUGE..3 * HUGE)));
    let unit = |regions: &Regions, page| regions.find((7, HUGE + page * OS_PAGE)).expect("it");
    let of = |unit: Unit| (unit.addr, unit.bytes, unit.level);
    assert_eq!(of(unit(&regions, 511)), (HUGE, HUGE, 8), "all have the access of one");
    assert_eq!(of(unit(&regions, 512)), (2 * HUGE, HUGE, 7));
    assert_eq!(of(unit(&regions, 1028)), (3 * HUGE + 4 * OS_PAGE, OS_PAGE, 7), "not a huge one");
    assert_eq!(of(unit(&regions, 1029)), (3 * HUGE + 5 * OS_PAGE, OS_PAGE, 8));
    regions.set_huge(7, std::slice::from_ref(&(HUGE + OS_PAGE..3 * HUGE)));
    assert_eq!(unit(&regions, 511).bytes, OS_PAGE, "it is not whole any more");
    assert_eq!(unit(&regions, 512).bytes, HUGE);
    let victims: Vec<u64> = {
        regions.take_demand();
        std::iter::from_fn(|| regions.next_victim(GroupId(0), NodeId(2))).map(|v| v.bytes).collect()
    };
    assert_eq!((victims.len(), victims.iter().sum::<u64>()), (1025, 3 * HUGE), "each once");
}

#[test]
fn what_is_accessed_now_and_then_asks_to_move_if_that_is_enough() {
    let asks = |demand, windows: &[u64]| {
        let mut regions = Regions::new(RegionsConfig { demand, ..config(8) }).expect("valid");
        let area = Area { start: 2 << 20, end: (2 << 20) + OS_PAGE, of_file: false };
        regions.set_mappings(7, GroupId(0), &[area]);
        regions.set_residency(7, 2 << 20, &[Some(NodeId(2))]);
        (0..9).for_each(|_| _ = regions.close_window());
        for window in 0..9 {
            regions.take_demand();
            if windows.contains(&window) {
                regions.touch(7, 2 << 20, Some(NodeId(0)));
                regions.touch(7, 2 << 20, Some(NodeId(0)));
            }
            regions.close_window();
        }
        regions.take_demand().len()
    };
    assert_eq!(asks(Demand::Running, &[7, 8]), 1);
    assert_eq!(asks(Demand::Running, &[5, 8]), 0);
    assert_eq!(asks(Demand::Repeated, &[5, 8]), 1, "three windows apart");
    assert_eq!(asks(Demand::Repeated, &[0, 8]), 0, "longer ago than a history");
    assert_eq!(asks(Demand::Repeated, &[8]), 0, "once");
}

#[test]
fn victims_take_turns() {
    let mut regions = mapped(64, Evidence::Complete);
    let next = |regions: &mut Regions| {
        regions.take_demand();
        regions.next_victim(GroupId(0), NodeId(2)).expect("some").addr
    };
    let first = next(&mut regions);
    assert_eq!(next(&mut regions), first + OS_PAGE, "the hand goes on");
}

#[test]
fn what_is_accessed_at_an_unknown_place_is_looked_up_first() {
    let mut regions = Regions::new(config(8)).expect("valid");
    let area = Area { start: 0, end: 64 << 20, of_file: false };
    regions.set_mappings(7, GroupId(0), &[area]);
    regions.touch(7, 41 << 20, Some(NodeId(0)));
    assert_eq!(regions.to_locate(1), [(7, 40 << 20, 512)]);
    let mut all: Vec<u64> = (0..32).flat_map(|_| regions.to_locate(512)).map(|one| one.1).collect();
    all.sort_unstable();
    assert_eq!(all, (0..32).map(|nth| nth << 21).collect::<Vec<_>>(), "then all in turns");
    regions.gone(7);
    assert_eq!(regions.to_locate(512), []);
}

#[test]
fn accesses_elsewhere_are_counted() {
    let mut regions = mapped(64, Evidence::Complete);
    regions.close_window(); // That in which the memory was new counts as accessed.
    regions.touch(7, 1 << 40, None);
    regions.touch(8, 2 << 20, None);
    regions.touch(7, 2 << 20, None);
    let window = regions.close_window();
    assert_eq!((window.number, window.strange, window.accessed), (2, 2, 1));
}
