//! How much slower a program is expected to be with less fast memory.
//! In: a profile, a plan. Out: a [`Prediction`]. Knows nothing of how it is shown.
//!
//! The model walks the recorded run interval by interval, sub-interval by sub-interval
//! ([`crate::intervals`]). In each, a core computes and waits for misses while each memory serves
//! the bytes drawn from it. The sub-interval takes as long as the slowest of these.
//!
//! ```text
//!   recorded      took = rest + waits        the rest is what no placement changes
//!   elsewhere     longest of: rest + waits there, what each memory has to do
//! ```
//!
//! The rest is the measured time less the waits. Sampling noise can make it negative in a
//! sub-interval; it is not clipped there, because only the unclipped sum is unbiased. What a memory
//! served in a sub-interval it served in that time, whatever throughput was measured.
//!
//! The core waits for overlapping misses together, for as long as the slowest of them takes.
//! Samples do not show which misses overlap; independence between blocks is assumed, and the lines
//! of one block overlap. A wait therefore counts for a memory when at least one of its blocks comes
//! from that memory and none comes from a slower one.
//!
//! The kernel zeroes fresh OS pages on first touch, which no sample shows. The model adds that time
//! from the measured write throughput of each memory. Nothing is known of the time before a run's
//! first sample.
//!
//! Waits of the recorded run are the measured ones where the sampler reports latencies, otherwise
//! those of the memories that served the accesses. The baseline has everything in the fastest
//! memory.

use tiercel_machine::Machine;
use tiercel_planner::{
    BLOCK_BYTES, LINE_BYTES, Memory, Object, Use, demand, evaluate, object_cost,
};

use tiercel_wire::layout::CUT_BYTES;

use crate::ceiling::{DEVIATIONS, Known};
use crate::input::{PlannerInput, WHOLE_WEIGHT, unobserved, use_of, weight_of};
use crate::intervals::{ExtentAccesses, Interval, Intervals};
use crate::parts::Layout;
use crate::place::Parts;
use crate::throughput::{apply_measurements, rank_of};
use tiercel_plan::{Plan, Prediction};
use tiercel_profile::{Access, Profile};

/// Where the sampler does not report MLP, it may be lower than assumed by up to this factor.
/// Chosen, not measured: the assumed four outstanding misses become two.
const UNSEEN_TIMES: f64 = 2.0;

/// Placements that are evaluated, in this order: everything in the fastest memory, as planned,
/// everything in the slowest.
const CASES: usize = 3;

/// Predicts the effect of a plan on the machine it was made for.
pub fn predict(profile: &Profile, machine: &Machine, plan: &Plan) -> Prediction {
    let input = PlannerInput::of(profile);
    predict_of(profile, (&input, &Intervals::of(profile, &input)), machine, plan)
}

/// The same of one of several plans: with the profile's workload and intervals.
pub(crate) fn predict_of(
    profile: &Profile,
    (input, intervals): (&PlannerInput, &Intervals),
    machine: &Machine,
    plan: &Plan,
) -> Prediction {
    let (mut memories, _) = Memory::of_machine(machine, None);
    let throughput = apply_measurements(profile, machine, &mut memories);
    let Some(fastest) = memories.first_mut() else { return no_difference() };
    fastest.capacity_bytes = fastest.capacity_bytes.min(plan.fast_bytes());
    let layout = Layout::new(plan, profile, input, &memories);
    let cut = input.cut(CUT_BYTES);
    let placements = layout.placements(&cut);
    let (_, moves) = evaluate(&cut.input.workload, &memories, &throughput.copy, &placements);
    let model = Model::new(profile, machine, &memories);
    let totals = model.totals(input, intervals, &layout);
    let rest_ns = totals.rest_ns + intervals.idle_ns;
    let [fast_ns, planned_ns, slow_ns] = totals.cases_ns.map(|ns| ns + intervals.idle_ns);
    if fast_ns <= 0.0 {
        return no_difference();
    }
    let planned_ns = planned_ns + moves.time_ns;
    let unsure = DEVIATIONS * chance(profile, input, &memories) + unseen(profile, input, &memories);
    let is_all_fast = layout.is_all_fast();
    let fast_share = (totals.accesses > 0.0).then(|| totals.fast / totals.accesses);
    let moves = moves.time_ns / fast_ns;
    let known = Known { profile, memories: &memories, is_all_fast, fast_share, moves };
    Prediction {
        slowdown: planned_ns / fast_ns,
        error: unsure * (planned_ns - fast_ns).max(0.0) / fast_ns,
        all_slow: slow_ns / fast_ns,
        rest_ns,
        fast_share,
        bounds: known.bounds(),
    }
}

/// The prediction where nothing is known that placement could change.
fn no_difference() -> Prediction {
    Prediction { slowdown: 1.0, all_slow: 1.0, ..Prediction::default() }
}

/// The place in the workload of each object of the profile.
fn places_in_workload(profile: &Profile, input: &PlannerInput) -> Vec<usize> {
    let mut places = vec![usize::MAX; profile.objects.len()];
    (0..).zip(&input.objects).for_each(|(at, index)| places[*index as usize] = at);
    places
}

/// The share of an object that one extent is; 0 if it is not divided.
fn extent_share(object: &tiercel_profile::Object) -> f64 {
    let is_cut = object.bytes >= CUT_BYTES;
    let extent_bytes = if is_cut { object.extent_bytes } else { 0 };
    extent_bytes as f64 / object.bytes.max(1) as f64
}

/// The sums over all intervals, nanoseconds.
#[derive(Default)]
struct Totals {
    cases_ns: [f64; CASES],
    rest_ns: f64,
    /// Accesses, and how many of them the fastest memory serves as planned.
    accesses: f64,
    fast: f64,
}

impl Totals {
    fn count(&mut self, accesses: f64, parts: &Parts) {
        self.accesses += accesses;
        self.fast += accesses * parts[0];
    }

    /// Adds a sub-interval.
    fn add(&mut self, sums: &Sums, threads: f64) {
        for (sum_ns, work) in self.cases_ns.iter_mut().zip(&sums.cases) {
            let waits_ns = sums.waits.with(&work.blocks) / threads;
            *sum_ns += sums.recorded.elsewhere_ns(waits_ns, work);
        }
    }
}

/// What a sub-interval adds up to.
#[derive(Default)]
struct Sums {
    cases: [Work; CASES],
    waits: Waits,
    recorded: Recorded,
}

impl Sums {
    fn over(took_ns: f64) -> Sums {
        Sums { recorded: Recorded { took_ns, ..Recorded::default() }, ..Sums::default() }
    }

    fn add_waits(&mut self, demands: &Demands, share: f64, threads: f64) {
        self.waits.count += share * demands.waits;
        self.recorded.waits_ns += share * demands.recorded_ns / threads;
    }

    /// Adds the parts of an object's demands that a memory has to serve in each case.
    fn add_work(&mut self, memory: usize, demands: &Demands, share: f64, parts: [f64; CASES]) {
        for (work, part) in self.cases.iter_mut().zip(parts) {
            work.blocks[memory] += share * part * demands.blocks;
            work.memory_ns[memory] += share * part * demands.memory_ns[memory];
        }
    }
}

/// What each memory has to do in a sub-interval.
#[derive(Clone, Copy, Default)]
struct Work {
    /// Blocks that come from it.
    blocks: Parts,
    /// Its time for them, nanoseconds.
    memory_ns: Parts,
}

/// What a sub-interval took when it was recorded, nanoseconds.
#[derive(Clone, Copy, Default)]
struct Recorded {
    took_ns: f64,
    /// How long misses were waited for.
    waits_ns: f64,
    /// Each memory's time for what it served.
    memory_ns: Parts,
}

/// What the accesses to one object in an interval cost.
#[derive(Clone, Copy, Default)]
struct Demands {
    /// How many.
    accesses: f64,
    /// How long the recorded run waited for them, nanoseconds.
    recorded_ns: f64,
    /// How many waits.
    waits: f64,
    /// Blocks they draw.
    blocks: f64,
    /// Waits and the memory's time if all were in one memory, by memory, nanoseconds.
    core_ns: Parts,
    memory_ns: Parts,
}

/// Everything that is waited for in a sub-interval.
#[derive(Clone, Copy, Default)]
struct Waits {
    /// How many.
    count: f64,
    /// How long they take if everything is in one memory, by memory, nanoseconds.
    all_in_ns: Parts,
}

/// What the run time of an interval is computed from.
struct Model<'a> {
    profile: &'a Profile,
    memories: &'a [Memory],
    /// Memories of the machine that recorded, with the share of the accesses that each served.
    recorded: Vec<Memory>,
    served: Vec<f64>,
    /// Whether the plan is for the machine that recorded.
    same: bool,
}

impl<'a> Model<'a> {
    fn new(profile: &'a Profile, machine: &Machine, memories: &'a [Memory]) -> Model<'a> {
        let recorded = recorded(profile);
        let served = served(profile, &recorded);
        Model { profile, memories, recorded, served, same: profile.machine == *machine }
    }

    /// Over all intervals, zeroing included.
    fn totals(&self, input: &PlannerInput, intervals: &Intervals, layout: &Layout<'_>) -> Totals {
        let mut totals = Totals::default();
        let places = places_in_workload(self.profile, input);
        let parts_of = |object: usize, phase, extents: &ExtentAccesses| {
            let share = extent_share(&self.profile.objects[object]);
            layout.parts_hit(places[object], phase, extents, share)
        };
        intervals.all.iter().for_each(|one| self.add_interval(one, parts_of, &mut totals));
        let zeroing_ns = self.zeroing_ns((input, intervals), layout);
        totals.cases_ns.iter_mut().zip(zeroing_ns).for_each(|(sum_ns, ns)| *sum_ns += ns);
        totals
    }

    fn add_interval(
        &self,
        interval: &Interval,
        parts_of: impl Fn(usize, usize, &ExtentAccesses) -> Parts,
        sum: &mut Totals,
    ) {
        let objects: Vec<Demands> =
            interval.accesses.iter().map(|one| self.demands(interval, one)).collect();
        let threads = f64::from(interval.threads);
        let recorded_ns: f64 = objects.iter().map(|demands| demands.recorded_ns).sum();
        sum.rest_ns += (interval.took_ns - recorded_ns / threads).max(0.0);
        for sub_interval in &interval.sub_intervals {
            let mut sums = Sums::over(interval.took_ns * sub_interval.share);
            for (at, share, extents) in &sub_interval.accesses {
                let (demands, object) = (&objects[*at], interval.accesses[*at].object as usize);
                let parts = parts_of(object, interval.phase as usize, extents);
                sum.count(share * demands.accesses, &parts);
                sums.add_waits(demands, *share, threads);
                self.add_memories(&mut sums, demands, *share, &parts);
            }
            sum.add(&sums, threads);
        }
    }

    /// Adds what accesses demand of each memory.
    fn add_memories(&self, sums: &mut Sums, demands: &Demands, share: f64, parts: &Parts) {
        let last = self.memories.len() - 1;
        for (memory, planned) in parts.iter().enumerate().take(last + 1) {
            sums.waits.all_in_ns[memory] += share * demands.core_ns[memory];
            let memory_ns = demands.memory_ns[memory] * self.part_served(memory);
            sums.recorded.memory_ns[memory] += share * memory_ns;
            let whole = |is: bool| f64::from(u8::from(is));
            sums.add_work(
                memory,
                demands,
                share,
                [whole(memory == 0), *planned, whole(memory == last)],
            );
        }
    }

    /// How much longer than in the recorded run zeroing takes.
    fn zeroing_ns(
        &self,
        (input, intervals): (&PlannerInput, &Intervals),
        layout: &Layout<'_>,
    ) -> [f64; CASES] {
        let byte_ns = |memory: &Memory| memory.write_gb_s_with(1).recip();
        let recorded_ns = self.recorded_mean(byte_ns);
        let last = self.memories.len() - 1;
        let mut cases_ns = [0.0; CASES];
        for (at, fresh_bytes) in &intervals.fresh_bytes {
            let phase = input.workload.phases_of(&input.workload.objects[*at]).0;
            let place = layout.place(*at, phase);
            for (memory, part) in self.memories.iter().zip(&place.parts) {
                cases_ns[1] += fresh_bytes * part * (byte_ns(memory) - recorded_ns);
            }
            cases_ns[0] += fresh_bytes * (byte_ns(&self.memories[0]) - recorded_ns);
            cases_ns[CASES - 1] += fresh_bytes * (byte_ns(&self.memories[last]) - recorded_ns);
        }
        cases_ns
    }

    /// A figure of the recording machine's memories, weighted by the accesses that each served.
    fn recorded_mean(&self, figure: impl Fn(&Memory) -> f64) -> f64 {
        let served = self.recorded.iter().zip(&self.served);
        served.map(|(memory, part)| part * figure(memory)).sum()
    }

    /// The demands of the accesses to one object in an interval, whichever memory serves them.
    fn demands(&self, interval: &Interval, access: &Access) -> Demands {
        let object = &self.profile.objects[access.object as usize];
        let weight = weight_of(self.profile, self.profile.run_of(object));
        let one = Use { threads: interval.threads, ..use_of(interval.phase, access, weight) };
        let (recorded_ns, loaded) = self.recorded_ns(access, &one);
        let accesses = one.reads + one.writes;
        let (waits, blocks) = (waits_of(&one), blocks_of(&one));
        let mut demands = Demands { accesses, recorded_ns, waits, blocks, ..Demands::default() };
        self.fill_demands(&mut demands, &one, loaded);
        demands
    }

    /// Waits and times of each memory, if all accesses were in it.
    fn fill_demands(&self, demands: &mut Demands, one: &Use, loaded: f64) {
        for (at, memory) in self.memories.iter().enumerate() {
            let demand = demand(one, memory);
            let loaded = 1.0 + (loaded - 1.0) * self.part_served(at);
            demands.core_ns[at] = demand.core_ns * loaded;
            demands.memory_ns[at] = demand.memory_ns;
        }
    }

    /// How long the recorded run waited for accesses, and how many times the wait of idle memory
    /// that is.
    fn recorded_ns(&self, access: &Access, one: &Use) -> (f64, f64) {
        let (idle_ns, latency_ns) = self.idle_ns(one);
        let timed = (access.timed_reads + access.timed_writes) as f64;
        if timed == 0.0 || latency_ns <= 0.0 {
            return (idle_ns, 1.0);
        }
        let loaded = (access.read_ns + access.write_ns) as f64 / timed / latency_ns;
        (idle_ns * loaded, loaded)
    }

    /// How long the accesses would have waited for idle memory, and their mean latency there.
    fn idle_ns(&self, one: &Use) -> (f64, f64) {
        let memories = self.recorded.iter().zip(&self.served).filter(|(_, part)| **part > 0.0);
        memories.fold((0.0, 0.0), |(idle_ns, latency_ns), (memory, part)| {
            let core_ns = demand(one, memory).core_ns;
            (idle_ns + part * core_ns, latency_ns + part * memory.read_latency_ns)
        })
    }

    /// Which share of the recorded accesses a memory served: for those the measurements hold.
    fn part_served(&self, at: usize) -> f64 {
        if self.same { self.served.get(at).copied().unwrap_or(0.0) } else { 0.0 }
    }
}

impl Recorded {
    /// Duration of the sub-interval for a given wait of the core and given work of the memories.
    fn elsewhere_ns(&self, waits_ns: f64, work: &Work) -> f64 {
        let more_ns = waits_ns - self.waits_ns;
        // Where waits get shorter, the time falls at most in proportion: recorded waits may be
        // overestimated.
        let part = if more_ns < 0.0 { waits_ns / self.waits_ns } else { 0.0 };
        let core_ns = (self.took_ns + more_ns).max(self.took_ns * part);
        let served = work.memory_ns.iter().zip(&self.memory_ns);
        served.fold(core_ns, |most, (ns, recorded_ns)| {
            let fits = if *recorded_ns > self.took_ns { self.took_ns / recorded_ns } else { 1.0 };
            most.max(ns * fits)
        })
    }
}

impl Waits {
    /// How long it takes if these blocks come from each memory, nanoseconds.
    fn with(&self, blocks: &Parts) -> f64 {
        let all: f64 = blocks.iter().sum();
        if self.count <= 0.0 || all <= 0.0 {
            return 0.0;
        }
        let (mut waited_ns, mut so_far) = (0.0, 0.0);
        for at in self.slowest_first() {
            let before = self.hit(so_far);
            so_far += blocks[at];
            waited_ns += (self.hit(so_far) - before) / self.hit(all) * self.all_in_ns[at];
        }
        waited_ns
    }

    /// The share of waits with at least one of these blocks, if blocks are spread at random.
    fn hit(&self, blocks: f64) -> f64 {
        -(-blocks / self.count).exp_m1()
    }

    fn slowest_first(&self) -> Vec<usize> {
        let mut memories: Vec<usize> = (0..self.all_in_ns.len()).collect();
        memories.sort_by(|a, b| self.all_in_ns[*b].total_cmp(&self.all_in_ns[*a]));
        memories
    }
}

/// How many times the core waits for accesses: overlapping misses are one wait.
fn waits_of(one: &Use) -> f64 {
    (one.reads + one.writes) * one.latency_weight / WHOLE_WEIGHT
}

/// Blocks that accesses draw from memory; whole ones where the sampler does not report it. With few
/// samples the observed share may be below one line of a block, which is the least there can be.
fn blocks_of(one: &Use) -> f64 {
    let lines = (one.reads + one.writes) * one.drawn_bytes / LINE_BYTES;
    lines * one.isolated.unwrap_or(0.0).max(LINE_BYTES / BLOCK_BYTES)
}

/// The share of the possible gain that was not observed: write-backs that the sampler does not
/// report, and latencies that are waited for two at a time instead of four.
fn unseen(profile: &Profile, input: &PlannerInput, memories: &[Memory]) -> f64 {
    let workload = &input.workload;
    let (Some(fastest), Some(slowest)) = (memories.first(), memories.last()) else { return 0.0 };
    let (dirtied, around) = unobserved(profile);
    let (mut seen_ns, mut most_ns) = (0.0, 0.0);
    for (object, index) in workload.objects.iter().zip(&input.objects) {
        let most = with_unseen(object, dirtied[*index as usize], around[*index as usize]);
        let gain = gain_ns(workload, object, fastest, slowest);
        seen_ns += gain;
        most_ns += gain_ns(workload, &most, fastest, slowest).max(gain);
    }
    if seen_ns > 0.0 { most_ns / seen_ns - 1.0 } else { 0.0 }
}

/// The object with all its accesses written back, and with less overlap.
fn with_unseen(object: &Object, all_write: bool, fewer_overlap: bool) -> Object {
    let mut most = object.clone();
    for one in &mut most.uses {
        if all_write {
            (one.reads, one.writes) = (0.0, one.reads + one.writes);
        }
        one.latency_weight *= if fewer_overlap { UNSEEN_TIMES } else { 1.0 };
    }
    most
}

/// What an object gains in the fastest memory over the slowest, nanoseconds.
fn gain_ns(
    workload: &tiercel_planner::Workload,
    object: &Object,
    fastest: &Memory,
    slowest: &Memory,
) -> f64 {
    let cost = |memory| object_cost(workload, object, memory).time_ns;
    cost(slowest) - cost(fastest)
}

/// Share of the accesses that each memory served; all in the fastest one where the sampler did not
/// report it.
fn served(profile: &Profile, memories: &[Memory]) -> Vec<f64> {
    let mut parts = accesses_served(profile, memories);
    let all: f64 = parts.iter().sum();
    if all == 0.0 {
        parts.first_mut().into_iter().for_each(|fastest| *fastest = 1.0);
    } else {
        parts.iter_mut().for_each(|part| *part /= all);
    }
    parts
}

/// How many accesses each of the memories served.
fn accesses_served(profile: &Profile, memories: &[Memory]) -> Vec<f64> {
    let mut accesses = vec![0.0; memories.len()];
    for one in profile.runs.iter().flat_map(|run| &run.served) {
        if let Some(at) = rank_of(memories, one.node) {
            accesses[at] += one.accesses as f64;
        }
    }
    accesses
}

/// Memories of the machine that recorded, at the throughput that was measured there.
fn recorded(profile: &Profile) -> Vec<Memory> {
    let (mut memories, _) = Memory::of_machine(&profile.machine, None);
    apply_measurements(profile, &profile.machine, &mut memories);
    memories
}

/// Relative standard error of the possible gain, from the samples of each object: n of them are
/// right to 1 / sqrt(n).
fn chance(profile: &Profile, input: &PlannerInput, memories: &[Memory]) -> f64 {
    let workload = &input.workload;
    let samples = samples_by_object(profile);
    let (Some(fastest), Some(slowest)) = (memories.first(), memories.last()) else { return 0.0 };
    let (mut variance, mut sum) = (0.0, 0.0);
    for (object, index) in workload.objects.iter().zip(&input.objects) {
        let gain = gain_ns(workload, object, fastest, slowest);
        sum += gain;
        variance += gain * gain / samples[*index as usize].max(1) as f64;
    }
    if sum > 0.0 { variance.sqrt() / sum } else { 0.0 }
}

fn samples_by_object(profile: &Profile) -> Vec<u64> {
    let mut samples = vec![0u64; profile.objects.len()];
    profile.accesses.iter().for_each(|one| samples[one.object as usize] += one.samples);
    samples
}
