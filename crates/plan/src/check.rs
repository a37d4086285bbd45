//! The invariants of a plan.
//! In: a [`Plan`]. Out: the first violation. Knows nothing of files.

use std::collections::HashSet;

use tiercel_wire::layout::{ARENAS_MAX, PHASES_MAX, PLAN_RANGES, PLAN_ROWS_MAX, SITE_FRAMES};

use crate::model::{Plan, PlannedClass, PlannedMove, PlannedPlacement, PlannedRange, PlannedSite};

/// Most placements of one plan: what a session has room for.
pub const PLACEMENTS_MAX: usize = PLAN_ROWS_MAX;

/// Longest text of a plan, bytes.
const TEXT_BYTES_MAX: usize = 1 << 16;
/// Most frames of a stack, inlined functions included.
const FRAMES_MAX: usize = SITE_FRAMES * 64;
/// Most modules of a plan.
const MODULES_MAX: usize = 1 << 16;
/// Smallest and largest size class: an OS page, 256 TiB.
const CLASSES: std::ops::RangeInclusive<u8> = 12..=48;

/// Checks all invariants of a plan; the error is the first violation.
pub fn check_plan(plan: &Plan) -> Result<(), String> {
    check_machine(plan)?;
    check_phases(plan)?;
    if plan.modules.len() > MODULES_MAX {
        return Err(format!("{} modules; at most {MODULES_MAX}", plan.modules.len()));
    }
    let count = plan.placements().count();
    if count > PLACEMENTS_MAX {
        return Err(format!("{count} places; at most {PLACEMENTS_MAX}, plan with fewer phases"));
    }
    let figures = [
        plan.expected.access_ns,
        plan.expected.in_slowest_ns,
        plan.expected.in_fastest_ns,
        plan.expected.gap.unwrap_or(0.0),
    ];
    let time = plan.expected.time.unwrap_or_default();
    let fast_share = time.fast_share.unwrap_or(0.0);
    let time = [time.slowdown, time.error, time.all_slow, time.rest_ns, fast_share];
    if !figures.iter().chain(&time).all(|figure| figure.is_finite()) {
        return Err("an expected figure is no number".to_owned());
    }
    if plan.small_objects.is_some_and(|node| plan.rank_of(node).is_none()) {
        return Err("small objects on a node that is none of the machine's".to_owned());
    }
    let mut hashes = HashSet::with_capacity(plan.sites.len());
    for (index, site) in plan.sites.iter().enumerate() {
        if !hashes.insert(site.hash) {
            return Err(format!("site {index}: there are two of hash {:016x}", site.hash));
        }
        check_site(plan, site).map_err(|what| format!("site {index}: {what}"))?;
    }
    let texts = plan.modules.iter().flat_map(|module| [&module.path, &module.build_id]);
    let more = [&plan.program.path, &plan.program.build_id, &plan.machine.name];
    let more = more.into_iter().chain([&plan.options.strategy, &plan.options.objective]);
    match texts.chain(more).find(|text| text.len() > TEXT_BYTES_MAX) {
        Some(_) => Err(format!("a text of more than {TEXT_BYTES_MAX} bytes")),
        None => Ok(()),
    }
}

fn check_machine(plan: &Plan) -> Result<(), String> {
    let memories = &plan.machine.memories;
    if memories.is_empty() || memories.len() > ARENAS_MAX {
        return Err(format!("{} memories; from 1 to {ARENAS_MAX}", memories.len()));
    }
    let mut nodes = HashSet::new();
    for memory in memories {
        if memory.nodes.is_empty() || !memory.nodes.iter().all(|node| nodes.insert(*node)) {
            return Err(format!("memory {} has no node, or another's", memory.name));
        }
    }
    let between = |one: &PlannedMove| nodes.contains(&one.from) && nodes.contains(&one.to);
    let costs = |one: &PlannedMove| one.ns_per_byte.is_finite() && one.ns_per_byte >= 0.0;
    let moves = &plan.machine.moves;
    if moves.len() > ARENAS_MAX * ARENAS_MAX || !moves.iter().all(|one| between(one) && costs(one))
    {
        return Err("a move that cannot be, or costs what nothing can".to_owned());
    }
    Ok(())
}

fn check_phases(plan: &Plan) -> Result<(), String> {
    // Phase 0 is the time before the first name.
    if plan.phases.len() >= PHASES_MAX {
        return Err(format!("{} phases; at most {}", plan.phases.len(), PHASES_MAX - 1));
    }
    let mut names = HashSet::new();
    let odd = plan.phases.iter().find(|phase| {
        phase.name.len() > TEXT_BYTES_MAX
            || phase.name.contains('\0')
            || !names.insert(phase.name.as_str())
    });
    if odd.is_some() {
        return Err("a phase is there twice, or has a name that cannot be".to_owned());
    }
    let mut next = plan.phases.iter().filter_map(|phase| phase.next.as_deref());
    match next.all(|next| names.contains(next)) {
        true => Ok(()),
        false => Err("a phase is followed by one that is not in the list".to_owned()),
    }
}

fn check_site(plan: &Plan, site: &PlannedSite) -> Result<(), String> {
    if site.stack.len() > FRAMES_MAX || site.classes.is_empty() {
        return Err("no objects, or a stack that is deeper than it may be".to_owned());
    }
    for frame in &site.stack {
        let module = frame.module.is_none_or(|module| (module as usize) < plan.modules.len());
        let long = frame.function.len().max(frame.file.len()) > TEXT_BYTES_MAX;
        if !module || long {
            return Err("a frame in a module that is not there, or a long name".to_owned());
        }
    }
    if !site.classes.is_sorted_by(|a, b| a.up_to_bytes < b.up_to_bytes) {
        return Err("size classes do not ascend".to_owned());
    }
    site.classes.iter().try_for_each(|class| check_class(plan, class))
}

fn check_class(plan: &Plan, class: &PlannedClass) -> Result<(), String> {
    let bytes = class.up_to_bytes;
    if !bytes.is_power_of_two() || !CLASSES.contains(&class.size_class()) {
        return Err(format!("{bytes} bytes are no size class: powers of two from 4096 on"));
    }
    if class.placements.first().is_none_or(|place| place.phase.is_some()) {
        return Err(format!("class {bytes} has no place without a phase"));
    }
    if !class.placements.is_sorted_by(|a, b| a.phase < b.phase) {
        return Err(format!("class {bytes}: places do not ascend by phase"));
    }
    let known = |name: &String| plan.phases.iter().any(|phase| phase.name == *name);
    if !class.prefetch.iter().all(known) || class.prefetch.len() > PHASES_MAX {
        return Err(format!("class {bytes} moves early in a phase that is not in the list"));
    }
    class.placements.iter().try_for_each(|place| check_place(plan, place))
}

fn check_place(plan: &Plan, place: &PlannedPlacement) -> Result<(), String> {
    let rank = plan.rank_of(place.node);
    let slower = |other| rank.zip(plan.rank_of(other)).is_some_and(|(rank, other)| rank < other);
    if rank.is_none() || !place.other.is_none_or(slower) {
        return Err(format!(
            "node {} is none of the machine's, or the other is in no slower memory",
            place.node
        ));
    }
    check_ranges(place)?;
    if !place.gain_ns.is_finite() || !(0.0..=1.0).contains(&place.confidence) {
        return Err("a gain or confidence that is none".to_owned());
    }
    let phase = |name: &str| plan.phases.iter().any(|phase| phase.name == name);
    match &place.phase {
        Some(name) if !phase(name) => Err(format!("phase {name:?} is not in the list of phases")),
        _ => Ok(()),
    }
}

fn check_ranges(place: &PlannedPlacement) -> Result<(), String> {
    let ranges = &place.ranges;
    if ranges.is_empty() != place.other.is_none() || ranges.len() > PLAN_RANGES {
        return Err(format!(
            "{} ranges: from 1 to {PLAN_RANGES} with another node, none without",
            ranges.len()
        ));
    }
    let is_range = |one: &PlannedRange| 0.0 <= one.from && one.from < one.to && one.to <= 1.0;
    if !ranges.iter().all(is_range) || !ranges.is_sorted_by(|a, b| a.to <= b.from) {
        return Err("ranges that do not ascend from 0 to 1".to_owned());
    }
    Ok(())
}
