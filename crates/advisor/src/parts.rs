//! Where a plan places the objects of a profile.
//! In: a [`Plan`], a profile, its workload. Out: [`Layout`]: by object and phase, which part of it
//! lies in which memory, and what is moved. Knows nothing of what that costs.

use std::collections::HashMap;

use tiercel_planner::{self as planner, MEMORIES_MAX, Memory, Options, Placement, Strategy};

use crate::input::{Cut, Part, PlannerInput};
use crate::intervals::ExtentAccesses;
use crate::place::{Parts, Place};
use tiercel_machine::number::{index_u8, index_u32};
use tiercel_plan::{Plan, PlannedClass, PlannedPlacement, Unplanned};
use tiercel_profile::{Object, Profile};

/// Where objects of one kind are.
struct Kind<'a> {
    usual: Place,
    by_phase: HashMap<&'a str, Place>,
}

impl Kind<'_> {
    fn is_fast(&self) -> bool {
        std::iter::once(&self.usual).chain(self.by_phase.values()).all(Place::is_fast)
    }
}

/// A plan, laid out over a profile.
pub(crate) struct Layout<'a> {
    kinds: Vec<Kind<'a>>,
    /// By object of the workload.
    kind_of: Vec<usize>,
    /// By phase of the workload.
    names: Vec<&'a str>,
}

/// The kinds that every layout begins with: all in the slowest memory, and where the plan has small
/// objects.
const SLOWEST: usize = 0;
const SMALL: usize = 1;

/// The kinds of a plan's size classes.
#[derive(Default)]
struct Classes {
    /// By site and class.
    of_size: HashMap<(u64, u32), usize>,
    /// By site, where it has one class.
    alone: HashMap<u64, Option<usize>>,
}

impl Classes {
    /// As in a run: a site with one size class has that place for all sizes.
    fn kind_of(&self, site: u64, object: &Object) -> Option<usize> {
        let class = object.size_class().max(tiercel_plan::CLASS_MIN);
        let found = self.of_size.get(&(site, class)).copied();
        found.or(self.alone.get(&site).copied().flatten())
    }
}

impl<'a> Layout<'a> {
    /// `memories` are those of the machine; the fastest has the capacity that the plan has in it.
    pub(crate) fn new(
        plan: &'a Plan,
        profile: &Profile,
        input: &'a PlannerInput,
        memories: &[Memory],
    ) -> Layout<'a> {
        let names = input.workload.phases.iter().map(|phase| phase.name.as_str()).collect();
        let mut layout = Layout { kinds: Vec::new(), kind_of: Vec::new(), names };
        let last = memories.len() - 1;
        let rank = |node| plan.rank_of(node).unwrap_or(last).min(last);
        layout.kinds.push(Kind::of(Place::whole(last)));
        layout.kinds.push(Kind::of(Place::whole(plan.small_objects.map_or(last, rank))));
        let classes = layout.add_classes(plan, &rank);
        let births = first_come(plan, input, memories);
        for (at, index) in input.objects.iter().enumerate() {
            let object = &profile.objects[*index as usize];
            let found = match profile.is_mixed(object) {
                true => plan.small_objects.map(|_| SMALL),
                false => classes.kind_of(profile.site_of(object).hash, object),
            };
            let kind = found.unwrap_or_else(|| layout.unplanned(births.get(at)));
            layout.kind_of.push(kind);
        }
        layout
    }

    /// Adds a kind for each size class of the plan.
    fn add_classes(
        &mut self,
        plan: &'a Plan,
        rank: &impl Fn(tiercel_machine::NodeId) -> usize,
    ) -> Classes {
        let mut classes = Classes::default();
        let all =
            plan.sites.iter().flat_map(|site| site.classes.iter().map(move |one| (site, one)));
        for (site, class) in all {
            let kind = self.kinds.len();
            classes.of_size.insert((site.hash, u32::from(class.size_class())), kind);
            classes.alone.insert(site.hash, (site.classes.len() == 1).then_some(kind));
            self.kinds.push(Kind::of_class(class, rank));
        }
        classes
    }

    /// The kind of an object that the plan does not know.
    fn unplanned(&mut self, birth: Option<&Placement>) -> usize {
        let Some(birth) = birth else { return SLOWEST };
        self.kinds.push(Kind::of(Place::whole(usize::from(birth.birth))));
        self.kinds.len() - 1
    }

    /// Where an object of the workload is in a phase of it.
    pub(crate) fn place(&self, object: usize, phase: usize) -> &Place {
        let kind = &self.kinds[self.kind_of[object]];
        kind.by_phase.get(self.names[phase]).unwrap_or(&kind.usual)
    }

    /// Whether every object is in the fastest memory all its life.
    pub(crate) fn is_all_fast(&self) -> bool {
        self.kind_of.iter().all(|kind| self.kinds[*kind].is_fast())
    }

    /// What each memory has of the accesses in a phase: parts of a cut object are known by the
    /// extents that were hit, each `extent_share` of the object, and not by its size.
    pub(crate) fn parts_hit(
        &self,
        object: usize,
        phase: usize,
        extents: &ExtentAccesses,
        extent_share: f64,
    ) -> Parts {
        let place = self.place(object, phase);
        let all: u64 = extents.values().sum();
        if extent_share <= 0.0 || all == 0 || place.ranges.is_empty() {
            return place.parts;
        }
        let mut hit = [0.0; MEMORIES_MAX];
        for (extent, accesses) in extents {
            // The last extent may reach beyond the object's end.
            let from = (f64::from(*extent) * extent_share).min(1.0 - f64::EPSILON);
            let inside = place.share_of_part(from, (from + extent_share).min(1.0));
            let accesses = *accesses as f64 / all as f64;
            hit[place.memory] += accesses * inside;
            hit[place.other] += accesses * (1.0 - inside);
        }
        hit
    }

    /// Where objects and parts of them go, and when; whole objects that are split stay.
    pub(crate) fn placements(&self, cut: &Cut) -> Vec<Placement> {
        let workload = &cut.input.workload;
        let of = |(object, part): (&planner::Object, &Part)| {
            let (first, last) = workload.phases_of(object);
            let whole = |phase| self.place(part.whole, phase).memory_of(part.range);
            let mut here = whole(first).unwrap_or(0);
            let mut placement = Placement { birth: index_u8(here), moves: Vec::new() };
            for phase in first + 1..=last {
                let Some(to) = whole(phase).filter(|to| *to != here) else { continue };
                // Where a split left them is unknown.
                if whole(phase - 1).is_some() {
                    placement.moves.push((index_u32(phase), index_u8(to)));
                }
                here = to;
            }
            placement
        };
        workload.objects.iter().zip(&cut.parts).map(of).collect()
    }
}

impl<'a> Kind<'a> {
    fn of(usual: Place) -> Kind<'a> {
        Kind { usual, by_phase: HashMap::new() }
    }

    fn of_class(class: &'a PlannedClass, rank: &impl Fn(tiercel_machine::NodeId) -> usize) -> Self {
        let place = |one: &PlannedPlacement| match one.other.map(rank) {
            Some(other) if other != rank(one.node) => {
                Place::cut(rank(one.node), other, one.ranges.clone())
            }
            _ => Place::whole(rank(one.node)),
        };
        let mut kind = Kind::of(class.placements.first().map_or(Place::whole(0), place));
        for one in &class.placements {
            match &one.phase {
                Some(phase) => drop(kind.by_phase.insert(phase, place(one))),
                None => kind.usual = place(one),
            }
        }
        kind
    }
}

/// Births of objects that a plan does not know, where those get the fastest memory while there is
/// room: first come, first served. Empty where they get the slowest.
fn first_come(plan: &Plan, input: &PlannerInput, memories: &[Memory]) -> Vec<Placement> {
    if plan.unplanned == Unplanned::Slowest {
        return Vec::new();
    }
    let options = Options { strategy: Strategy::FirstCome, ..Options::default() };
    // Where not even all memory together holds the objects, a run places what it can.
    planner::plan(&input.workload, memories, &options).map_or(Vec::new(), |found| found.placements)
}
