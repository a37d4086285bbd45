//! From a plan to the rows that a runtime reads, for this machine and the builds that run.
//! In: a [`Plan`], the machine, its arenas. Out: [`Fit`]: rows, what happens at phase entries, and
//! what did not match. Knows nothing of sessions.
//!
//! Memories are matched by rank: the plan's fastest is this machine's fastest. A node of the plan
//! that has the same rank here is the same node.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use tiercel_machine::number::saturating_u64;
use tiercel_machine::{Machine, NodeId};
use tiercel_wire::layout::{PLAN_CLASS_ANY, PLAN_PARTS, PLAN_RANGES, PLAN_SHARE_ALL};
use tiercel_wire::{PlanRange, PlanRow, phase_hash};

use crate::model::{Plan, PlannedPhase, PlannedPlacement, PlannedRange, PlannedSite, Unplanned};
use crate::stack_keys::{StackKeys, base, numbered};

/// A plan that was fitted to a machine.
#[derive(Clone, Debug, Default)]
pub struct Fit {
    /// Rows of all sites, by the hashes of the builds that the plan was made from.
    pub rows: Vec<PlanRow>,
    /// Arena of births without a row; `None`: as the budget allows.
    pub unplanned: Option<u8>,
    /// Arena of new blocks of small slots.
    pub small: Option<u8>,
    /// Hashes of the phases at whose entry objects move.
    pub stops: Vec<u64>,
    /// The phase that follows each one, by hash, where it is known.
    pub next: HashMap<u64, u64>,
    /// Names of the plan's phases by hash.
    pub phases: HashMap<u64, String>,
    /// What does not match, for the user.
    pub remarks: Vec<String>,
    /// Arena of each node of the plan.
    arenas: HashMap<NodeId, u8>,
    /// Made when the first stack is looked up: most runs use the build that was recorded.
    stacks: OnceCell<Stacks>,
    /// Build-ids of the plan's modules, by file name.
    builds: HashMap<String, HashSet<String>>,
}

/// Sites (indices into the plan's) by those keys of their stacks that only one site has.
#[derive(Clone, Debug, Default)]
struct Stacks {
    by_lines: HashMap<String, usize>,
    by_functions: HashMap<String, usize>,
}

/// Fits a plan to a machine whose arena `k` is memory of node `arenas[k]`.
pub fn fit(plan: &Plan, machine: &Machine, arenas: &[NodeId]) -> Fit {
    let mut fit = Fit { arenas: arenas_of(plan, machine, arenas), ..Fit::default() };
    fit.remarks = remarks(plan, machine);
    fit.unplanned = match plan.unplanned {
        Unplanned::Budget => None,
        Unplanned::Slowest => arenas.len().checked_sub(1).and_then(|last| u8::try_from(last).ok()),
    };
    fit.small = plan.small_objects.and_then(|node| fit.arenas.get(&node).copied());
    let moving = plan.phases.iter().filter(|phase| phase.moves);
    fit.stops = moving.map(|phase| phase_hash(&phase.name)).collect();
    let follows =
        |phase: &PlannedPhase| Some((phase_hash(&phase.name), phase_hash(phase.next.as_deref()?)));
    fit.next = plan.phases.iter().filter_map(follows).collect();
    let names = plan.phases.iter().map(|phase| (phase_hash(&phase.name), phase.name.clone()));
    fit.phases = names.collect();
    for module in &plan.modules {
        let builds = fit.builds.entry(base(&module.path).to_owned()).or_default();
        builds.insert(module.build_id.clone());
    }
    let mut rows = Vec::with_capacity(plan.placements().count());
    plan.sites.iter().for_each(|site| rows.extend(fit.rows_of(site, site.hash)));
    fit.rows = rows;
    fit
}

impl Fit {
    /// Rows of a site under another hash: that of the same site in another build.
    pub fn rows_of(&self, site: &PlannedSite, hash: u64) -> impl Iterator<Item = PlanRow> {
        // A site with objects of one class has the same placement for sizes that the profile did
        // not have.
        let alone = site.classes.len() == 1 && hash != 0;
        site.classes.iter().flat_map(move |class| {
            let size_class = if alone { PLAN_CLASS_ANY } else { class.size_class() };
            class.placements.iter().filter_map(move |place| self.row(place, hash, size_class))
        })
    }

    /// The site (an index into the plan's) with this stack: by lines, else by functions. Only for
    /// stacks that are unambiguous.
    pub fn site_of(&self, plan: &Plan, keys: &StackKeys) -> Option<usize> {
        let stacks = self.stacks.get_or_init(|| Stacks::of(plan));
        let exact = keys.by_lines.as_ref().and_then(|key| stacks.by_lines.get(key));
        let near = keys.by_functions.as_ref().and_then(|key| stacks.by_functions.get(key));
        exact.or(near).copied()
    }

    /// Build-ids that the plan knows of modules with this file name; `None`: it knows no such
    /// module.
    pub fn builds_of(&self, file_name: &str) -> Option<&HashSet<String>> {
        self.builds.get(file_name)
    }

    fn row(&self, place: &PlannedPlacement, site: u64, size_class: u8) -> Option<PlanRow> {
        let arena = *self.arenas.get(&place.node)?;
        let other = place.other.and_then(|node| self.arenas.get(&node)).copied().unwrap_or(arena);
        let phase = place.phase.as_deref().map_or(0, phase_hash);
        let row = PlanRow { site, size_class, phase, arena, other, ..PlanRow::default() };
        // A machine with fewer memories may have both in one.
        if other == arena {
            return Some(PlanRow { share: PLAN_SHARE_ALL, ..row });
        }
        // Rounded up: three quarters of four births are three.
        let share = whole((place.share() * f64::from(PLAN_SHARE_ALL)).ceil());
        let share = u8::try_from(share).unwrap_or(u8::MAX).clamp(1, PLAN_SHARE_ALL - 1);
        Some(PlanRow { share, ranges: ranges(&place.ranges), ..row })
    }
}

/// In the parts that rows count in, the nearest.
fn ranges(planned: &[PlannedRange]) -> [PlanRange; PLAN_RANGES] {
    let part = |at: f64| whole((at * f64::from(PLAN_PARTS)).round());
    let mut ranges = [PlanRange::default(); PLAN_RANGES];
    for (range, one) in ranges.iter_mut().zip(planned) {
        *range = PlanRange { from: part(one.from), to: part(one.to) };
    }
    ranges
}

/// A whole number that has 16 bits; others are cut to the nearest that has.
fn whole(figure: f64) -> u16 {
    u16::try_from(saturating_u64(figure)).unwrap_or(u16::MAX)
}

impl Stacks {
    fn of(plan: &Plan) -> Stacks {
        let keys = plan.sites.iter().map(|site| StackKeys::of(frames(plan, site)));
        let (lines, functions): (Vec<_>, Vec<_>) =
            keys.map(|keys| (keys.by_lines, keys.by_functions)).unzip();
        Stacks { by_lines: unambiguous(lines), by_functions: unambiguous(functions) }
    }
}

fn frames<'a>(
    plan: &'a Plan,
    site: &'a PlannedSite,
) -> impl Iterator<Item = (&'a str, &'a str, &'a str, u32)> {
    site.stack.iter().map(|frame| {
        let module = frame.module.and_then(|module| plan.modules.get(module as usize));
        let path = module.map_or("", |module| module.path.as_str());
        let number = numbered(Some((frame.module.is_some(), frame.offset)));
        (path, frame.function.as_str(), frame.file.as_str(), frame.line.max(number))
    })
}

/// Keys that only one site has.
fn unambiguous(keys: Vec<Option<String>>) -> HashMap<String, usize> {
    let mut sites: HashMap<String, Option<usize>> = HashMap::new();
    for (index, key) in keys.into_iter().enumerate().filter_map(|(index, key)| Some((index, key?)))
    {
        sites.entry(key).and_modify(|known| *known = None).or_insert(Some(index));
    }
    sites.into_iter().filter_map(|(key, index)| Some((key, index?))).collect()
}

fn arenas_of(plan: &Plan, machine: &Machine, arenas: &[NodeId]) -> HashMap<NodeId, u8> {
    let tiers = machine.tiers();
    let place = |node: &NodeId| arenas.iter().position(|arena| arena == node);
    let mut found = HashMap::new();
    for (rank, memory) in plan.machine.memories.iter().enumerate() {
        let Some(tier) = tiers.get(rank).or(tiers.last()) else { continue };
        for node in &memory.nodes {
            let same = tier.nodes.contains(node).then_some(node);
            let arena = same.or(tier.nodes.first()).and_then(place);
            found.extend(arena.and_then(|arena| Some((*node, u8::try_from(arena).ok()?))));
        }
    }
    found
}

fn remarks(plan: &Plan, machine: &Machine) -> Vec<String> {
    let mut remarks = Vec::new();
    let tiers = machine.tiers();
    let theirs = &plan.machine;
    let same = theirs.memories.len() == tiers.len()
        && theirs.memories.iter().zip(&tiers).all(|(memory, tier)| {
            memory.nodes.len() == tier.nodes.len()
                && memory.nodes.iter().all(|node| tier.nodes.contains(node))
        });
    if !same || theirs.name != machine.name {
        remarks.push(format!(
            "the plan was made for {} with {} memories, this is {} with {}; they are matched from \
             the fastest on",
            theirs.name,
            theirs.memories.len(),
            machine.name,
            tiers.len(),
        ));
    }
    if let (Some(memory), Some(tier)) = (theirs.memories.first(), tiers.first()) {
        let nodes = tier.nodes.iter().filter_map(|id| machine.node(*id));
        let capacity_bytes: u64 = nodes.map(|node| node.capacity_bytes).sum();
        if memory.capacity_bytes > capacity_bytes {
            remarks.push(format!(
                "the plan fills {} bytes of the fastest memory, of which there are \
                 {capacity_bytes}; what does not fit goes to the next one",
                memory.capacity_bytes,
            ));
        }
    }
    remarks
}
