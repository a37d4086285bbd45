//! The planner's input, made from a profile.
//! In: a [`Profile`]. Out: a [`PlannerInput`]: a [`Workload`], and the profile's indices of its
//! objects and phases. Knows nothing of memories or plans.
//!
//! Runs follow one another on one time axis, so that objects that never lived together never
//! compete for capacity. The phases of a run are those of the process with the most accesses,
//! or the detected ones if unmarked processes have more. Accesses of other processes count in
//! the phase that covers the middle of their time slot.

use std::collections::BTreeMap;

use tiercel_planner::{self as planner, LINE_BYTES, Use, Workload};
use tiercel_wire::layout::CUT_BYTES;

use crate::spread::Spread;
use crate::votes::phase_names;
use tiercel_machine::number::{index_u32, saturating_u64};
use tiercel_plan::PlannedRange;
use tiercel_profile::{Access, Object, Profile};

/// Weight of a latency that is waited for to the end, against the eighth of H2M Eq. 1.
pub(crate) const WHOLE_WEIGHT: f64 = 8.0;

/// Weight of a latency where each counted access missed the caches and is a line of its own: the
/// whole latency divided by an MLP of 4, which the ledger assumes too. Used where the sampler does
/// not report the MLP.
pub const MISS_WEIGHT: f64 = WHOLE_WEIGHT / 4.0;

/// The same where all accesses were counted: H2M Eq. 1 as it is.
pub const ACCESS_WEIGHT: f64 = 1.0;

/// Bytes that an access which missed the caches draws from memory: a line.
const MISS_BYTES: f64 = LINE_BYTES;

/// The same where all accesses were counted: eight share a line, as in H2M Eq. 1.
const ACCESS_BYTES: f64 = LINE_BYTES / 8.0;

/// A workload, and where its parts come from.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannerInput {
    /// For the planner. Counts are of accesses, not of samples: its sample period is 1.
    pub workload: Workload,
    /// Index in the profile of each of its objects.
    pub objects: Vec<u32>,
    /// Index in the profile of each of its phases.
    pub phases: Vec<u32>,
    /// Of each object that a run can keep in two memories, where in it accesses fall.
    spreads: BTreeMap<usize, Spread>,
}

/// A workload whose large objects are several, each a part of what they were.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Parts that are adjacent in memory are adjacent here.
    pub input: PlannerInput,
    /// What each of its objects is a part of.
    pub parts: Vec<Part>,
}

/// Part of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Index of the object in the workload that was cut.
    pub whole: usize,
    /// Which part of that object it is; `None`: it is the whole object.
    pub range: Option<PlannedRange>,
    /// It is the first one.
    pub is_first: bool,
}

/// Most parts of an object.
const PARTS_MAX: u64 = 16;

/// Fewest bytes of a part.
const PART_BYTES_MIN: u64 = 1 << 20;

impl PlannerInput {
    /// Splits objects of at least `bytes_min` bytes that a run can keep in two memories, and
    /// smaller ones where parts differ in their density of accesses. Within such a part accesses
    /// are assumed to be spread evenly.
    pub fn cut(&self, bytes_min: u64) -> Cut {
        let names = phase_names(&self.workload).of_phase;
        let Workload { phases, end_ns, sample_period, .. } = &self.workload;
        let workload = Workload {
            objects: Vec::new(),
            phases: phases.clone(),
            end_ns: *end_ns,
            sample_period: *sample_period,
        };
        let (objects, spreads) = (Vec::new(), BTreeMap::new());
        let input = PlannerInput { workload, objects, phases: self.phases.clone(), spreads };
        let mut cut = Cut { input, parts: Vec::new() };
        for (whole, (object, index)) in self.workload.objects.iter().zip(&self.objects).enumerate()
        {
            let spread = self.spreads.get(&whole).filter(|_| bytes_min < u64::MAX);
            let ranges = spread.map_or(Vec::new(), |spread| {
                pieces(object.bytes, &spread.ranges(&names), object.bytes >= bytes_min)
            });
            cut.input.objects.extend(std::iter::repeat_n(*index, ranges.len().max(1)));
            if ranges.len() <= 1 {
                cut.input.workload.objects.push(object.clone());
                cut.parts.push(Part { whole, range: None, is_first: true });
                continue;
            }
            for (at, range) in ranges.iter().enumerate() {
                let spread = &self.spreads[&whole];
                cut.input.workload.objects.push(part_of(object, spread, range));
                cut.parts.push(Part { whole, range: Some(*range), is_first: at == 0 });
            }
        }
        cut
    }
}

/// Ranges of an object, where `is_large` in as many equal pieces each as make the pieces of the
/// object about equal.
fn pieces(bytes: u64, ranges: &[PlannedRange], is_large: bool) -> Vec<PlannedRange> {
    let mut counts = vec![1u64; ranges.len()];
    let size = |range: &PlannedRange| range.share() * bytes as f64;
    while is_large && counts.iter().sum::<u64>() < PARTS_MAX {
        let sizes = ranges.iter().zip(&counts).map(|(range, count)| size(range) / *count as f64);
        let largest = sizes.enumerate().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let Some((at, _)) = largest else { break };
        if size(&ranges[at]) / ((counts[at] + 1) as f64) < PART_BYTES_MIN as f64 {
            break;
        }
        counts[at] += 1;
    }
    let cut = |(range, count): (&PlannedRange, u64)| {
        let (from, step) = (range.from, range.share() / count as f64);
        let end = range.to;
        let at = move |k: u64| if k == count { end } else { from + step * k as f64 };
        (0..count).map(move |k| PlannedRange { from: at(k), to: at(k + 1) })
    };
    ranges.iter().zip(counts).flat_map(cut).collect()
}

fn part_of(object: &planner::Object, spread: &Spread, range: &PlannedRange) -> planner::Object {
    let at = |share: f64| saturating_u64((object.bytes as f64 * share).round());
    let mut uses = object.uses.clone();
    for one in &mut uses {
        let (accesses, written) = spread.shares(one.phase, range);
        let all = (one.reads + one.writes) * accesses;
        one.writes = (one.writes * written).min(all);
        one.reads = all - one.writes;
    }
    planner::Object { bytes: (at(range.to) - at(range.from)).max(1), uses, ..object.clone() }
}

impl PlannerInput {
    /// The workload of `profile`. A profile without runs yields a workload without objects.
    pub fn of(profile: &Profile) -> PlannerInput {
        workload_of(profile)
    }
}

fn workload_of(profile: &Profile) -> PlannerInput {
    let mut input = PlannerInput {
        workload: Workload {
            objects: Vec::new(),
            phases: Vec::new(),
            end_ns: 0,
            sample_period: 1.0,
        },
        objects: Vec::new(),
        phases: Vec::new(),
        spreads: BTreeMap::new(),
    };
    let mut of_object: Vec<&[Access]> = vec![&[]; profile.objects.len()];
    for part in profile.accesses.chunk_by(|a, b| a.object == b.object) {
        of_object[part[0].object as usize] = part;
    }
    for run in 0..index_u32(profile.runs.len()) {
        add_run(profile, run, &of_object, &mut input);
    }
    if input.workload.phases.is_empty() {
        input.workload.phases.push(phase("A", 0));
        input.workload.end_ns = 1;
    }
    input
}

fn add_run(profile: &Profile, run: u32, of_object: &[&[Access]], input: &mut PlannerInput) {
    let base_ns = input.workload.end_ns;
    let first_phase = index_u32(input.workload.phases.len());
    let phases = leading_phases(profile, run);
    let starts: Vec<u64> = phases.iter().map(|at| profile.phases[*at as usize].start_ns).collect();
    let of_run = |object: &Object| profile.run_of(object) == run;
    let last_death = profile.objects.iter().filter(|o| of_run(o)).map(|o| o.death_ns).max();
    let last_phase = phases.iter().map(|at| profile.phases[*at as usize].end_ns).max();
    let duration_ns = profile.runs[run as usize].duration_ns;
    let length_ns = duration_ns.max(last_death.unwrap_or(0)).max(last_phase.unwrap_or(1));
    input.workload.end_ns = base_ns + length_ns + 1;
    for (index, at) in phases.iter().enumerate() {
        let one = &profile.phases[*at as usize];
        // What happens before the first phase belongs to it.
        let start_ns = if index == 0 { base_ns } else { base_ns + one.start_ns };
        input.workload.phases.push(phase(&one.name, start_ns));
        input.phases.push(*at);
    }
    let weight = weight_of(profile, run);
    for (index, object) in profile.objects_of(run) {
        let site = profile.sites[object.site as usize].hash;
        let mut planned = planner::Object {
            name: format!("{site:016x}/{}", object.size_class()),
            bytes: object.peak_bytes,
            birth_ns: base_ns + object.birth_ns,
            death_ns: base_ns + object.death_ns,
            uses: Vec::new(),
        };
        let (first, last) = input.workload.phases_of(&planned);
        let in_phase = |access: &Access| {
            let phase = phase_of(profile, access, &phases, &starts) + first_phase;
            phase.clamp(index_u32(first), index_u32(last))
        };
        let mut uses: BTreeMap<u32, Access> = BTreeMap::new();
        for access in of_object[index as usize] {
            uses.entry(in_phase(access)).or_insert(Access::none_of(index)).absorb(access);
        }
        // A merged object may stand for many small ones.
        if object.bytes >= CUT_BYTES {
            let accesses = of_object[index as usize].iter();
            let sizes = (planned.bytes, object.extent_bytes);
            let spread = Spread::of(sizes, accesses.map(|access| (access, in_phase(access))));
            input.spreads.insert(input.objects.len(), spread);
        }
        planned.uses = uses.into_iter().map(|(phase, all)| use_of(phase, &all, weight)).collect();
        input.workload.objects.push(planned);
        input.objects.push(index);
    }
}

/// Weights of the latency and of the bytes drawn, for an access counted in this run.
pub(crate) fn weight_of(profile: &Profile, run: u32) -> (f64, f64) {
    match profile.runs[run as usize].misses_only {
        true => (MISS_WEIGHT, MISS_BYTES),
        false => (ACCESS_WEIGHT, ACCESS_BYTES),
    }
}

/// For each object: whether stores may have dirtied lines that the sampler did not report, and
/// whether the MLP is unknown. Only where misses were counted, and for objects that have any.
pub(crate) fn unobserved(profile: &Profile) -> (Vec<bool>, Vec<bool>) {
    let mut all = vec![Access { dirtied: Some(0), ..Access::default() }; profile.objects.len()];
    for access in &profile.accesses {
        all[access.object as usize].absorb(access);
    }
    // Where no stores were seen at all, any object may have been stored to.
    let sees_writes = all.iter().any(|sum| sum.writes > 0);
    let of = |is: &dyn Fn(&Access) -> bool| {
        let each = all.iter().zip(&profile.objects).map(|(sum, object)| {
            let run = &profile.runs[profile.run_of(object) as usize];
            run.misses_only && sum.accesses() > 0 && is(sum)
        });
        each.collect()
    };
    let dirtied = of(&|sum| sum.dirtied.is_none() && (sum.writes > 0 || !sees_writes));
    (dirtied, of(&|sum| sum.mlp_known == 0))
}

/// The phases of a run that the planner sees, ascending by start; at least one where it has
/// accesses.
fn leading_phases(profile: &Profile, run: u32) -> Vec<u32> {
    let mut accesses: BTreeMap<Option<u32>, u64> = BTreeMap::new();
    for access in &profile.accesses {
        let phase = &profile.phases[access.phase as usize];
        if phase.run == run {
            let sum = accesses.entry(phase.process).or_default();
            *sum = sum.saturating_add(access.accesses());
        }
    }
    let of_run = |at: &u32| profile.phases[*at as usize].run == run;
    let leader = match accesses.iter().max_by_key(|(_, count)| **count) {
        Some((leader, _)) => *leader,
        // Without accesses, marks say more than phases detected from nothing.
        None => (0..index_u32(profile.phases.len()))
            .filter(of_run)
            .filter_map(|at| profile.phases[at as usize].process)
            .next(),
    };
    let is_leading = |at: &u32| profile.phases[*at as usize].process == leader;
    (0..index_u32(profile.phases.len())).filter(of_run).filter(is_leading).collect()
}

/// Which of the leading phases an access belongs to.
pub(crate) fn phase_of(profile: &Profile, access: &Access, phases: &[u32], starts: &[u64]) -> u32 {
    if let Ok(at) = phases.binary_search(&access.phase) {
        return index_u32(at);
    }
    let middle_ns = u64::from(access.slot) * profile.slot_ns + profile.slot_ns / 2;
    index_u32(starts.partition_point(|start_ns| *start_ns <= middle_ns).saturating_sub(1))
}

fn phase(name: &str, start_ns: u64) -> planner::Phase {
    planner::Phase { name: name.to_owned(), start_ns, compute_ns: 0.0 }
}

/// A line that is written back counts as a written one: the cost of a write was measured as reading
/// the line, changing it and writing it back. Where write-backs are unknown, the counted stores are
/// taken instead.
pub(crate) fn use_of(phase: u32, all: &Access, (latency_weight, drawn_bytes): (f64, f64)) -> Use {
    let accesses = all.accesses().max(1) as f64;
    let written = all.dirtied.unwrap_or(all.writes).min(all.accesses());
    let seen = all.mlp_known.max(1) as f64;
    let is_seen = all.mlp_known > 0;
    Use {
        phase,
        reads: (all.accesses() - written) as f64,
        writes: written as f64,
        hit_ratio: all.cached.map_or(0.0, |cached| (cached as f64 / accesses).min(1.0)),
        latency_weight: match is_seen {
            true => WHOLE_WEIGHT * all.serialized as f64 / seen,
            false => latency_weight,
        },
        drawn_bytes,
        isolated: is_seen.then(|| all.isolated as f64 / seen),
        threads: all.threads.count_ones().max(1),
    }
}
