//! A run in stretches of time, each with the accesses in it: where one thing limits a program, and
//! where another.
//! In: a [`Profile`], its workload. Out: [`Stretches`]. Knows nothing of memories.
//!
//! A stretch is a time slot of a phase, or as many of them as it takes to have enough samples: what
//! is longer, of two things, is overrated where both are seen badly. Slots without samples are no
//! part of any: the program computed. Within a stretch laps tell what was accessed at a time: what
//! follows one another does not overlap.

use std::collections::BTreeMap;

use crate::profile::{Access, Profile};
use crate::workload::Told;

/// Samples of a stretch at least, if its phase has as many: counts are right to a sixteenth.
const SAMPLES_MIN: u64 = 256;

/// Samples of a lap at least: as many as tell which objects a loop is at.
const LAP_SAMPLES_MIN: u64 = 16;

/// What is born so long before the first sample may have been touched when that was taken: two
/// looks at the sampler's buffer, nanoseconds.
const BEFORE_NS: u64 = 20_000_000;

/// A part of a phase in which something was accessed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stretch {
    /// Index of the phase in the workload.
    pub phase: u32,
    /// How long it took, without what sampling took, nanoseconds.
    pub took_ns: f64,
    /// Threads that accessed something, at least 1.
    pub threads: u32,
    /// What was accessed, a row for each object: shares of few samples are no shares.
    pub accesses: Vec<Access>,
    /// In order of time.
    pub laps: Vec<Lap>,
}

/// A part of a stretch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lap {
    /// How much of the stretch it took, 0 to 1.
    pub share: f64,
    /// By row of the stretch: which share of its accesses, and in which extents.
    pub accesses: Vec<(usize, f64, Extents)>,
}

/// Accesses by extent of an object, ascending.
pub(crate) type Extents = BTreeMap<u32, u64>;

/// All of a profile's runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stretches {
    /// In order of time.
    pub all: Vec<Stretch>,
    /// Time in which nothing was accessed, nanoseconds.
    pub idle_ns: f64,
    /// What the kernel zeroed while somebody looked: object of the workload, bytes.
    pub fresh_bytes: Vec<(usize, f64)>,
}

impl Profile {
    /// `told` is the profile's.
    pub(crate) fn stretches(&self, told: &Told) -> Stretches {
        let mut found = Stretches::default();
        let run_of = |phase: &u32| self.phases[*phase as usize].run;
        let mut by_run: Vec<Vec<u32>> = vec![Vec::new(); self.runs.len()];
        for (index, access) in (0..).zip(&self.accesses) {
            by_run[self.run_of(&self.objects[access.object as usize]) as usize].push(index);
        }
        let mut first = 0;
        for phases in told.phases.chunk_by(|a, b| run_of(a) == run_of(b)) {
            let ends = &told.workload.phases;
            let end_ns =
                ends.get(first + phases.len()).map_or(told.workload.end_ns, |n| n.start_ns);
            let run = run_of(&phases[0]);
            self.add_run(run, &by_run[run as usize], phases, (first, end_ns), told, &mut found);
            first += phases.len();
        }
        found.fresh_bytes = self.fresh_bytes(told);
        found
    }

    /// Of objects that were accessed at all. Before the first sample of a run nobody looked.
    fn fresh_bytes(&self, told: &Told) -> Vec<(usize, f64)> {
        let mut is_accessed = vec![false; self.objects.len()];
        let mut first_ns = vec![u64::MAX; self.runs.len()];
        for one in &self.accesses {
            let run = self.run_of(&self.objects[one.object as usize]) as usize;
            is_accessed[one.object as usize] = true;
            first_ns[run] = first_ns[run].min(u64::from(one.slot) * self.slot_ns);
        }
        let numbered = told.objects.iter().enumerate();
        let fresh = numbered.filter_map(|(at, index)| {
            let object = &self.objects[*index as usize];
            let is_seen = object.birth_ns + BEFORE_NS >= first_ns[self.run_of(object) as usize];
            let is_zeroed = is_accessed[*index as usize] && is_seen && object.fresh_bytes > 0;
            is_zeroed.then_some((at, object.fresh_bytes as f64))
        });
        fresh.collect()
    }

    /// A run with its accesses, whose phases begin at an index of the workload's and end at a time
    /// of its.
    fn add_run(
        &self,
        run: u32,
        accesses: &[u32],
        phases: &[u32],
        (first, end_ns): (usize, u64),
        told: &Told,
        found: &mut Stretches,
    ) {
        let of_workload = &told.workload.phases[first..first + phases.len()];
        let base_ns = of_workload[0].start_ns;
        let starts: Vec<u64> = phases.iter().map(|at| self.phases[*at as usize].start_ns).collect();
        let mut cells: Vec<BTreeMap<u64, Vec<u32>>> = vec![BTreeMap::new(); phases.len()];
        for index in accesses {
            let access = &self.accesses[*index as usize];
            let phase = self.phase_of(access, phases, &starts) as usize;
            cells[phase].entry(u64::from(access.slot)).or_default().push(*index);
        }
        let hits: u64 = accesses.iter().map(|one| self.accesses[*one as usize].samples).sum();
        let all = hits.max(self.runs[run as usize].seen.samples).max(1);
        let a_sample_ns = self.sampling_ns(run) / all as f64;
        found.idle_ns -= (all - hits) as f64 * a_sample_ns;
        for (at, cells) in cells.into_iter().enumerate() {
            let next = of_workload.get(at + 1).map_or(end_ns, |next| next.start_ns);
            let span = (of_workload[at].start_ns - base_ns, next - base_ns);
            let from = found.all.len();
            self.add_phase((first + at) as u32, span, cells, found);
            let mut left_ns = (span.1 - span.0) as f64;
            for stretch in &mut found.all[from..] {
                left_ns -= stretch.took_ns;
                let samples: u64 = stretch.accesses.iter().map(|one| one.samples).sum();
                let sampling_ns = samples as f64 * a_sample_ns;
                stretch.took_ns = (stretch.took_ns - sampling_ns).max(0.0);
            }
            found.idle_ns += left_ns;
        }
        found.idle_ns = found.idle_ns.max(0.0);
    }

    fn add_phase(
        &self,
        phase: u32,
        (start_ns, end_ns): (u64, u64),
        cells: BTreeMap<u64, Vec<u32>>,
        found: &mut Stretches,
    ) {
        let (mut open, from) = (Open::default(), found.all.len());
        let ways = self.ways_of(cells.values().flatten());
        for (slot, accesses) in cells {
            let slot_ns = slot * self.slot_ns;
            let lap_ns = end_ns.min(slot_ns + self.slot_ns).saturating_sub(start_ns.max(slot_ns));
            let samples = accesses.iter().map(|one| self.accesses[*one as usize].samples).sum();
            open.add(lap_ns as f64, samples, accesses);
            if open.samples >= SAMPLES_MIN {
                found.all.push(self.closed(phase, std::mem::take(&mut open), &ways));
            }
        }
        if open.laps.is_empty() {
            return;
        }
        let left = self.closed(phase, open, &ways);
        // What is left is too little for a stretch of its own.
        match found.all[from..].last_mut() {
            None => found.all.push(left),
            Some(last) => last.extend(left),
        }
    }

    /// How accesses of a phase come, by site. A stretch has too few samples of an object to tell:
    /// chance would only ever add to a part that has a least, and take from one that has a most.
    fn ways_of<'a>(&self, accesses: impl Iterator<Item = &'a u32>) -> BTreeMap<u32, Ways> {
        let mut sums: BTreeMap<u32, Access> = BTreeMap::new();
        for access in accesses.map(|one| &self.accesses[*one as usize]) {
            let none = || Access::none_of(access.object);
            sums.entry(self.site_at(access)).or_insert_with(none).absorb(access);
        }
        let part = |count: u64, of: u64| count as f64 / of.max(1) as f64;
        let ways = |sum: Access| Ways {
            apart: part(sum.apart, sum.around),
            dirtied: sum.dirtied.map(|dirtied| part(dirtied, sum.accesses())),
        };
        sums.into_iter().map(|(site, sum)| (site, ways(sum))).collect()
    }

    fn site_at(&self, access: &Access) -> u32 {
        self.objects[access.object as usize].site
    }

    /// A stretch with its accesses, by index; and how those of each site come.
    fn closed(&self, phase: u32, open: Open, ways: &BTreeMap<u32, Ways>) -> Stretch {
        let mut rows: BTreeMap<u32, Access> = BTreeMap::new();
        let mut threads = 0u64;
        let all = open.laps.iter().flat_map(|lap| &lap.accesses);
        for access in all.map(|one| &self.accesses[*one as usize]) {
            threads |= access.threads;
            let none = || Access::none_of(access.object);
            rows.entry(access.object).or_insert_with(none).absorb(access);
        }
        for row in rows.values_mut() {
            let ways = &ways[&self.site_at(row)];
            let part = |count: u64, part: f64| (count as f64 * part).round() as u64;
            row.apart = part(row.around, ways.apart);
            row.dirtied = ways.dirtied.map(|dirtied| part(row.accesses(), dirtied));
        }
        let row_of: BTreeMap<u32, usize> = rows.keys().copied().zip(0..).collect();
        let accesses: Vec<Access> = rows.into_values().collect();
        let took_ns: f64 = open.laps.iter().map(|lap| lap.took_ns).sum();
        let laps = open.laps.iter().map(|lap| {
            let mut extents: BTreeMap<usize, Extents> = BTreeMap::new();
            for access in lap.accesses.iter().map(|one| &self.accesses[*one as usize]) {
                let of_row = extents.entry(row_of[&access.object]).or_default();
                *of_row.entry(access.extent).or_default() += access.accesses();
            }
            let share = |(row, extents): (usize, Extents)| {
                let of_lap: u64 = extents.values().sum();
                let of_row = accesses[row].accesses().max(1);
                (row, of_lap as f64 / of_row as f64, extents)
            };
            Lap {
                share: if took_ns > 0.0 { lap.took_ns / took_ns } else { 0.0 },
                accesses: extents.into_iter().map(share).collect(),
            }
        });
        let laps = laps.collect();
        Stretch { phase, took_ns, threads: threads.count_ones().max(1), accesses, laps }
    }

    /// What samples took from the programs of a run, nanoseconds of wall time: threads were held up
    /// beside each other.
    fn sampling_ns(&self, run: u32) -> f64 {
        let seen = &self.runs[run as usize].seen;
        let of_run = self.processes.iter().filter(|process| process.run == run);
        let threads = of_run.map(|process| process.threads.len()).sum::<usize>().max(1);
        seen.sampling_ns as f64 / threads as f64
    }
}

/// How accesses come.
struct Ways {
    /// Which part of the misses is by itself in its block.
    apart: f64,
    /// Lines that become dirty for each access; `None`: not known.
    dirtied: Option<f64>,
}

/// A stretch that is not complete.
#[derive(Default)]
struct Open {
    laps: Vec<OpenLap>,
    samples: u64,
}

#[derive(Default)]
struct OpenLap {
    took_ns: f64,
    samples: u64,
    /// By index.
    accesses: Vec<u32>,
}

impl Open {
    fn add(&mut self, took_ns: f64, samples: u64, accesses: Vec<u32>) {
        self.samples += samples;
        if self.laps.last().is_none_or(|lap| lap.samples >= LAP_SAMPLES_MIN) {
            self.laps.push(OpenLap::default());
        }
        let lap = self.laps.last_mut().expect("one was put there");
        lap.took_ns += took_ns;
        lap.samples += samples;
        lap.accesses.extend(accesses);
    }
}

impl Stretch {
    /// Goes on with what followed it.
    fn extend(&mut self, mut next: Stretch) {
        let took_ns = self.took_ns + next.took_ns;
        let part = |of_ns: f64| if took_ns > 0.0 { of_ns / took_ns } else { 0.0 };
        self.laps.iter_mut().for_each(|lap| lap.share *= part(self.took_ns));
        let rows = self.accesses.len();
        for lap in &mut next.laps {
            lap.share *= part(next.took_ns);
            lap.accesses.iter_mut().for_each(|(row, ..)| *row += rows);
        }
        self.took_ns = took_ns;
        self.threads = self.threads.max(next.threads);
        self.accesses.append(&mut next.accesses);
        self.laps.append(&mut next.laps);
    }
}
