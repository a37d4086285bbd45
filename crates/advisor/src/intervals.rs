//! A run as intervals of time, each with its accesses: one resource limits the program in one
//! interval, and another resource in the next.
//! In: a [`Profile`] and its [`PlannerInput`]. Out: [`Intervals`]. Knows nothing of memories.
//!
//! An interval is one time slot of a phase, or as many as it takes to collect enough samples: the
//! prediction takes the maximum of several noisy estimates, which is biased upwards where samples
//! are few. Slots without samples belong to no interval: the program computed. Within an interval,
//! sub-intervals show which accesses came together: accesses of different sub-intervals cannot
//! overlap.

use std::collections::BTreeMap;

use crate::input::{PlannerInput, phase_of};
use tiercel_machine::number::index_u32;
use tiercel_profile::{Access, Profile};

/// Fewest samples of an interval, if its phase has as many: counts are right to a sixteenth.
const SAMPLES_MIN: u64 = 256;

/// Fewest samples of a sub-interval: enough to show which objects a loop accesses.
const SUB_INTERVAL_SAMPLES_MIN: u64 = 16;

/// Objects born this long before the first sample may have been touched when that was taken: two
/// drains of the sampler's buffer, nanoseconds.
const BEFORE_NS: u64 = 20_000_000;

/// A part of a phase in which something was accessed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Interval {
    /// Index of the phase in the workload.
    pub phase: u32,
    /// How long it took, without what sampling took, nanoseconds.
    pub took_ns: f64,
    /// Threads that accessed something, at least 1.
    pub threads: u32,
    /// What was accessed, one row for each object: shares from few samples mean nothing.
    pub accesses: Vec<Access>,
    /// In order of time.
    pub sub_intervals: Vec<SubInterval>,
}

/// A part of an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SubInterval {
    /// How much of the interval it took, 0 to 1.
    pub share: f64,
    /// By row of the interval: which share of its accesses, and in which extents.
    pub accesses: Vec<(usize, f64, ExtentAccesses)>,
}

/// Accesses by extent of an object, ascending.
pub(crate) type ExtentAccesses = BTreeMap<u32, u64>;

/// All of a profile's runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Intervals {
    /// In order of time.
    pub all: Vec<Interval>,
    /// Time in which nothing was accessed, nanoseconds.
    pub idle_ns: f64,
    /// What the kernel zeroed while the sampler was running: object of the workload, bytes.
    pub fresh_bytes: Vec<(usize, f64)>,
}

impl Intervals {
    /// The intervals of `profile`, of which `input` was made.
    pub(crate) fn of(profile: &Profile, input: &PlannerInput) -> Intervals {
        intervals_of(profile, input)
    }

    /// Adds the rest of a phase whose intervals begin at `from`. It is too short for an interval of
    /// its own, unless there is no other.
    fn add_rest(&mut self, from: usize, rest: Interval) {
        match self.all[from..].last_mut() {
            None => self.all.push(rest),
            Some(last) => last.extend(rest),
        }
    }
}

fn intervals_of(profile: &Profile, input: &PlannerInput) -> Intervals {
    let mut found = Intervals::default();
    let run_of = |phase: &u32| profile.phases[*phase as usize].run;
    let by_run = accesses_by_run(profile);
    let mut first = 0;
    for phases in input.phases.chunk_by(|a, b| run_of(a) == run_of(b)) {
        let ends = &input.workload.phases;
        let end_ns = ends.get(first + phases.len()).map_or(input.workload.end_ns, |n| n.start_ns);
        let run = run_of(&phases[0]);
        add_run(profile, run, &by_run[run as usize], phases, (first, end_ns), input, &mut found);
        first += phases.len();
    }
    found.fresh_bytes = fresh_bytes(profile, input);
    found
}

/// Indices of the accesses of each run.
fn accesses_by_run(profile: &Profile) -> Vec<Vec<u32>> {
    let mut by_run: Vec<Vec<u32>> = vec![Vec::new(); profile.runs.len()];
    for (index, access) in (0..).zip(&profile.accesses) {
        by_run[profile.run_of(&profile.objects[access.object as usize]) as usize].push(index);
    }
    by_run
}

/// Only of objects that were accessed at all. The time before a run's first sample is unknown.
fn fresh_bytes(profile: &Profile, input: &PlannerInput) -> Vec<(usize, f64)> {
    let (is_accessed, first_ns) = first_accesses(profile);
    let numbered = input.objects.iter().enumerate();
    let fresh = numbered.filter_map(|(at, index)| {
        let object = &profile.objects[*index as usize];
        let is_seen = object.birth_ns + BEFORE_NS >= first_ns[profile.run_of(object) as usize];
        let is_zeroed = is_accessed[*index as usize] && is_seen && object.fresh_bytes > 0;
        is_zeroed.then_some((at, object.fresh_bytes as f64))
    });
    fresh.collect()
}

/// Which objects were accessed, and the time of the first access in each run.
fn first_accesses(profile: &Profile) -> (Vec<bool>, Vec<u64>) {
    let mut is_accessed = vec![false; profile.objects.len()];
    let mut first_ns = vec![u64::MAX; profile.runs.len()];
    for one in &profile.accesses {
        let run = profile.run_of(&profile.objects[one.object as usize]) as usize;
        is_accessed[one.object as usize] = true;
        first_ns[run] = first_ns[run].min(u64::from(one.slot) * profile.slot_ns);
    }
    (is_accessed, first_ns)
}

/// Adds a run with its accesses. Its phases begin at an index of the workload's phases; it ends at
/// a time of the workload.
fn add_run(
    profile: &Profile,
    run: u32,
    accesses: &[u32],
    phases: &[u32],
    (first, end_ns): (usize, u64),
    input: &PlannerInput,
    found: &mut Intervals,
) {
    let of_workload = &input.workload.phases[first..first + phases.len()];
    let base_ns = of_workload[0].start_ns;
    let hits = samples_of(profile, accesses);
    let all = hits.max(profile.runs[run as usize].observed.samples).max(1);
    let a_sample_ns = sampling_ns(profile, run) / all as f64;
    found.idle_ns -= (all - hits) as f64 * a_sample_ns;
    for (at, cells) in cells_by_phase(profile, accesses, phases).into_iter().enumerate() {
        let next = of_workload.get(at + 1).map_or(end_ns, |next| next.start_ns);
        let span = (of_workload[at].start_ns - base_ns, next - base_ns);
        let from = found.all.len();
        add_phase(profile, index_u32(first + at), span, cells, found);
        let mut left_ns = (span.1 - span.0) as f64;
        for interval in &mut found.all[from..] {
            left_ns -= interval.took_ns;
            interval.subtract_sampling(a_sample_ns);
        }
        found.idle_ns += left_ns;
    }
    found.idle_ns = found.idle_ns.max(0.0);
}

fn samples_of(profile: &Profile, accesses: &[u32]) -> u64 {
    accesses.iter().map(|one| profile.accesses[*one as usize].samples).sum()
}

/// Accesses of a time slot, by slot.
type Cells = BTreeMap<u64, Vec<u32>>;

/// The accesses of a run, by phase.
fn cells_by_phase(profile: &Profile, accesses: &[u32], phases: &[u32]) -> Vec<Cells> {
    let starts: Vec<u64> = phases.iter().map(|at| profile.phases[*at as usize].start_ns).collect();
    let mut cells = vec![Cells::new(); phases.len()];
    for index in accesses {
        let access = &profile.accesses[*index as usize];
        let phase = phase_of(profile, access, phases, &starts) as usize;
        cells[phase].entry(u64::from(access.slot)).or_default().push(*index);
    }
    cells
}

fn add_phase(
    profile: &Profile,
    phase: u32,
    (start_ns, end_ns): (u64, u64),
    cells: Cells,
    found: &mut Intervals,
) {
    let (mut open, from) = (OpenInterval::default(), found.all.len());
    let traits = traits_by_site(profile, cells.values().flatten());
    for (slot, accesses) in cells {
        let slot_ns = slot * profile.slot_ns;
        let sub_interval_ns =
            end_ns.min(slot_ns + profile.slot_ns).saturating_sub(start_ns.max(slot_ns));
        open.add(sub_interval_ns as f64, samples_of(profile, &accesses), accesses);
        if open.samples >= SAMPLES_MIN {
            found.all.push(closed(profile, phase, std::mem::take(&mut open), &traits));
        }
    }
    if !open.sub_intervals.is_empty() {
        found.add_rest(from, closed(profile, phase, open, &traits));
    }
}

/// How the accesses of a phase arrive, by site. One interval has too few samples of an object for
/// that: chance would only add to a share that has a lower bound, and only take from one that has
/// an upper bound.
fn traits_by_site<'a>(
    profile: &Profile,
    accesses: impl Iterator<Item = &'a u32>,
) -> BTreeMap<u32, SiteTraits> {
    let mut sums: BTreeMap<u32, Access> = BTreeMap::new();
    for access in accesses.map(|one| &profile.accesses[*one as usize]) {
        let none = || Access::none_of(access.object);
        sums.entry(site_at(profile, access)).or_insert_with(none).absorb(access);
    }
    let part = |count: u64, of: u64| count as f64 / of.max(1) as f64;
    let traits = |sum: Access| SiteTraits {
        isolated: part(sum.isolated, sum.mlp_known),
        dirtied: sum.dirtied.map(|dirtied| part(dirtied, sum.accesses())),
    };
    sums.into_iter().map(|(site, sum)| (site, traits(sum))).collect()
}

fn site_at(profile: &Profile, access: &Access) -> u32 {
    profile.objects[access.object as usize].site
}

/// A complete interval, with its accesses and how those of each site arrive.
fn closed(
    profile: &Profile,
    phase: u32,
    open: OpenInterval,
    traits: &BTreeMap<u32, SiteTraits>,
) -> Interval {
    let (rows, threads) = rows_of(profile, &open, traits);
    let row_of: BTreeMap<u32, usize> = rows.keys().copied().zip(0..).collect();
    let accesses: Vec<Access> = rows.into_values().collect();
    let took_ns: f64 = open.sub_intervals.iter().map(|sub_interval| sub_interval.took_ns).sum();
    let sub_intervals = open.sub_intervals.iter().map(|open| SubInterval {
        share: if took_ns > 0.0 { open.took_ns / took_ns } else { 0.0 },
        accesses: shares_of_rows(profile, open, &row_of, &accesses),
    });
    let sub_intervals = sub_intervals.collect();
    Interval { phase, took_ns, threads: threads.count_ones().max(1), accesses, sub_intervals }
}

/// The accesses of an interval by object, and the threads that made them, one bit each.
fn rows_of(
    profile: &Profile,
    open: &OpenInterval,
    traits: &BTreeMap<u32, SiteTraits>,
) -> (BTreeMap<u32, Access>, u64) {
    let (mut rows, mut threads) = (BTreeMap::new(), 0u64);
    let all = open.sub_intervals.iter().flat_map(|sub_interval| &sub_interval.accesses);
    for access in all.map(|one| &profile.accesses[*one as usize]) {
        threads |= access.threads;
        let none = || Access::none_of(access.object);
        rows.entry(access.object).or_insert_with(none).absorb(access);
    }
    rows.values_mut().for_each(|row| traits[&site_at(profile, row)].apply(row));
    (rows, threads)
}

/// The rows that a sub-interval accesses, its share of each, and which extents of it.
fn shares_of_rows(
    profile: &Profile,
    open: &OpenSubInterval,
    row_of: &BTreeMap<u32, usize>,
    rows: &[Access],
) -> Vec<(usize, f64, ExtentAccesses)> {
    let mut extents: BTreeMap<usize, ExtentAccesses> = BTreeMap::new();
    for access in open.accesses.iter().map(|one| &profile.accesses[*one as usize]) {
        let of_row = extents.entry(row_of[&access.object]).or_default();
        *of_row.entry(access.extent).or_default() += access.accesses();
    }
    let share = |(row, extents): (usize, ExtentAccesses)| {
        let here: u64 = extents.values().sum();
        (row, here as f64 / rows[row].accesses().max(1) as f64, extents)
    };
    extents.into_iter().map(share).collect()
}

/// What sampling took from the programs of a run, nanoseconds of wall time: threads were held up in
/// parallel.
fn sampling_ns(profile: &Profile, run: u32) -> f64 {
    let seen = &profile.runs[run as usize].observed;
    let of_run = profile.processes.iter().filter(|process| process.run == run);
    let threads = of_run.map(|process| process.threads.len()).sum::<usize>().max(1);
    seen.sampling_ns as f64 / threads as f64
}

/// How accesses arrive.
struct SiteTraits {
    /// Share of the misses that are the only ones in their block.
    isolated: f64,
    /// Lines that become dirty for each access; `None`: not known.
    dirtied: Option<f64>,
}

impl SiteTraits {
    /// Gives a row with few samples the shares of its site.
    fn apply(&self, row: &mut Access) {
        row.isolated = part_of(row.mlp_known, self.isolated);
        row.dirtied = self.dirtied.map(|dirtied| part_of(row.accesses(), dirtied));
    }
}

fn part_of(count: u64, part: f64) -> u64 {
    tiercel_machine::number::saturating_u64((count as f64 * part).round())
}

/// An interval that is not complete.
#[derive(Default)]
struct OpenInterval {
    sub_intervals: Vec<OpenSubInterval>,
    samples: u64,
}

#[derive(Default)]
struct OpenSubInterval {
    took_ns: f64,
    samples: u64,
    /// Indices into the profile's accesses.
    accesses: Vec<u32>,
}

impl OpenInterval {
    fn add(&mut self, took_ns: f64, samples: u64, accesses: Vec<u32>) {
        self.samples += samples;
        let sub_interval = self.open_sub_interval();
        sub_interval.took_ns += took_ns;
        sub_interval.samples += samples;
        sub_interval.accesses.extend(accesses);
    }
}

impl OpenInterval {
    /// The last sub-interval, or a new one when the last has enough samples.
    fn open_sub_interval(&mut self) -> &mut OpenSubInterval {
        let is_open = |last: &OpenSubInterval| last.samples < SUB_INTERVAL_SAMPLES_MIN;
        if !self.sub_intervals.last().is_some_and(is_open) {
            self.sub_intervals.push(OpenSubInterval::default());
        }
        self.sub_intervals.last_mut().expect("one was put there")
    }
}

impl Interval {
    /// Subtracts what its samples took from the program.
    fn subtract_sampling(&mut self, a_sample_ns: f64) {
        let samples: u64 = self.accesses.iter().map(|one| one.samples).sum();
        self.took_ns = (self.took_ns - samples as f64 * a_sample_ns).max(0.0);
    }

    /// Continues with what followed it.
    fn extend(&mut self, mut next: Interval) {
        let took_ns = self.took_ns + next.took_ns;
        let part = |of_ns: f64| if took_ns > 0.0 { of_ns / took_ns } else { 0.0 };
        self.sub_intervals
            .iter_mut()
            .for_each(|sub_interval| sub_interval.share *= part(self.took_ns));
        let rows = self.accesses.len();
        for sub_interval in &mut next.sub_intervals {
            sub_interval.share *= part(next.took_ns);
            sub_interval.accesses.iter_mut().for_each(|(row, ..)| *row += rows);
        }
        self.took_ns = took_ns;
        self.threads = self.threads.max(next.threads);
        self.accesses.append(&mut next.accesses);
        self.sub_intervals.append(&mut next.sub_intervals);
    }
}
