//! An overview of a profile: its sites and phases with their sums, and the difference of two
//! profiles. In: profiles. Out: plain data, for tables and JSON. Knows nothing of how it is shown.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::keep::peak_bytes;
use crate::profile::{Access, Coarsening, Object, Profile, Run};
use crate::site_label::site_label;
use tiercel_machine::number::index_u32;

/// Sums over a profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overview {
    /// Name of the machine.
    pub machine: String,
    /// The runs.
    pub runs: Vec<Run>,
    /// Processes of all runs.
    pub processes: usize,
    /// Allocations.
    pub objects: u64,
    /// Their bytes.
    pub born_bytes: u64,
    /// Objects; merged ones count as one.
    pub object_rows: usize,
    /// Entries of accesses.
    pub access_rows: usize,
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
    /// Length of a time slot, nanoseconds.
    pub slot_ns: u64,
    /// Size before compression, bytes.
    pub bytes: u64,
    /// What is coarser than it was observed.
    pub coarsening: Coarsening,
    /// Sites, most accesses first, then most bytes.
    pub sites: Vec<SiteSums>,
    /// Phases by name, in the order in which they were first entered.
    pub phases: Vec<PhaseSums>,
    /// Code that accessed, most accesses first; empty where no sampler reported it.
    pub access_sites: Vec<AccessSums>,
}

/// Accesses by one place in the code to objects of one site.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AccessSums {
    /// What people know the code by.
    pub code: String,
    /// What they know the objects' site by.
    pub site: String,
    /// In what order it accesses.
    pub pattern: String,
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
    /// Share of all loads and stores whose code is known, 0 to 1.
    pub share: f64,
}

/// Sums over the objects of a site.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SiteSums {
    /// What people know it by.
    pub label: String,
    /// Its hash, hexadecimal, as in plans.
    pub hash: String,
    /// It stands for all objects whose site is unknown.
    pub is_unknown: bool,
    /// Allocations.
    pub objects: u64,
    /// Their bytes.
    pub born_bytes: u64,
    /// Most bytes that lived at a time in one run.
    pub peak_bytes: u64,
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
    /// Mean latency of those measured, nanoseconds.
    pub latency_ns: Option<f64>,
    /// Share of all loads and stores, 0 to 1.
    pub share: f64,
}

/// Sums over the executions of a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PhaseSums {
    /// Its name.
    pub name: String,
    /// Detected, not marked by the program.
    pub detected: bool,
    /// How often it was entered, over all processes.
    pub entries: u64,
    /// Time in it, nanoseconds, over all processes that entered it.
    pub time_ns: u64,
    /// Loads in it.
    pub reads: u64,
    /// Stores in it.
    pub writes: u64,
}

/// The difference of two profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// Sites of either profile, those whose share of the accesses changed most first.
    pub sites: Vec<SiteDiff>,
    /// Phases of either profile, by name.
    pub phases: Vec<PhaseDiff>,
}

/// A site in two profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SiteDiff {
    /// What people know it by.
    pub label: String,
    /// Matched by function and line, not by hash: the program was rebuilt.
    pub matched_by_label: bool,
    /// In the first; `None`: not there.
    pub before: Option<SiteSums>,
    /// In the second.
    pub after: Option<SiteSums>,
}

/// A phase in two profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseDiff {
    /// Its name.
    pub name: String,
    /// In the first; `None`: not there.
    pub before: Option<PhaseSums>,
    /// In the second.
    pub after: Option<PhaseSums>,
}

impl Profile {
    /// Computes all sums.
    pub fn overview(&self) -> Overview {
        let sum = |of: fn(&Object) -> u64| self.objects.iter().map(of).fold(0, u64::saturating_add);
        let accesses =
            |of: fn(&Access) -> u64| self.accesses.iter().map(of).fold(0, u64::saturating_add);
        Overview {
            machine: self.machine.name.clone(),
            runs: self.runs.clone(),
            processes: self.processes.len(),
            objects: sum(|object| object.count),
            born_bytes: sum(|object| object.born_bytes),
            object_rows: self.objects.len(),
            access_rows: self.accesses.len(),
            reads: accesses(|access| access.reads),
            writes: accesses(|access| access.writes),
            slot_ns: self.slot_ns,
            bytes: self.bytes(),
            coarsening: self.coarsening.clone(),
            sites: self.site_sums(),
            phases: self.phase_sums(),
            access_sites: self.access_sums(),
        }
    }

    fn site_sums(&self) -> Vec<SiteSums> {
        let mut members: BTreeMap<(u32, u32), Vec<&Object>> = BTreeMap::new();
        for object in &self.objects {
            members.entry((object.site, self.run_of(object))).or_default().push(object);
        }
        let site = |site: &crate::Site| SiteSums {
            label: site_label(site),
            hash: format!("{:016x}", site.hash),
            is_unknown: site.is_unknown(),
            ..SiteSums::default()
        };
        let mut sums: Vec<SiteSums> = self.sites.iter().map(site).collect();
        for ((site, _), objects) in members {
            let sum = &mut sums[site as usize];
            for object in &objects {
                sum.objects = sum.objects.saturating_add(object.count);
                sum.born_bytes = sum.born_bytes.saturating_add(object.born_bytes);
            }
            sum.peak_bytes = sum.peak_bytes.max(peak_bytes(objects.into_iter()));
        }
        let mut seen = vec![Access::default(); sums.len()];
        for access in &self.accesses {
            seen[self.objects[access.object as usize].site as usize].absorb(access);
        }
        let all: f64 = seen.iter().map(|access| access.accesses() as f64).sum();
        for (sum, seen) in sums.iter_mut().zip(&seen) {
            (sum.reads, sum.writes) = (seen.reads, seen.writes);
            let timed = seen.timed_reads.saturating_add(seen.timed_writes);
            let latency_ns = seen.read_ns.saturating_add(seen.write_ns) as f64;
            sum.latency_ns = (timed > 0).then(|| latency_ns / timed as f64);
            sum.share = seen.accesses() as f64 / all.max(1.0);
        }
        sums.retain(|sum| sum.objects > 0);
        sums.sort_by(|a, b| {
            let accesses = |sum: &SiteSums| sum.reads.saturating_add(sum.writes);
            let size = || b.peak_bytes.cmp(&a.peak_bytes).then_with(|| a.hash.cmp(&b.hash));
            accesses(b).cmp(&accesses(a)).then_with(size)
        });
        sums
    }

    /// Instructions of one line are one.
    fn access_sums(&self) -> Vec<AccessSums> {
        let mut by_label: BTreeMap<(String, String, &str), [u64; 2]> = BTreeMap::new();
        for one in &self.access_sites {
            let label = |site: u32| site_label(&self.sites[site as usize]);
            let key = (label(one.code), label(one.site), &*one.pattern);
            let [reads, writes] = by_label.entry(key).or_default();
            *reads = reads.saturating_add(one.reads);
            *writes = writes.saturating_add(one.writes);
        }
        let all: f64 = self.access_sites.iter().map(|one| one.accesses() as f64).sum();
        let one = |((code, site, pattern), [reads, writes]): ((String, String, &str), [u64; 2])| {
            let share = (reads as f64 + writes as f64) / all.max(1.0);
            AccessSums { code, site, pattern: pattern.to_owned(), reads, writes, share }
        };
        let mut sums: Vec<AccessSums> = by_label.into_iter().map(one).collect();
        sums.sort_by(|a, b| b.share.total_cmp(&a.share));
        sums
    }

    fn phase_sums(&self) -> Vec<PhaseSums> {
        let mut at: HashMap<(bool, &str), usize> = HashMap::new();
        let mut sums: Vec<PhaseSums> = Vec::new();
        // Detected phases of a run in which everything was marked are empty and omitted.
        let used: HashSet<u32> = self.accesses.iter().map(|access| access.phase).collect();
        let any_marked = self.phases.iter().any(|phase| phase.process.is_some());
        let mut of_phase = vec![None; self.phases.len()];
        for (index, phase) in self.phases.iter().enumerate() {
            let detected = phase.process.is_none();
            if detected && any_marked && !used.contains(&index_u32(index)) {
                continue;
            }
            let place = *at.entry((detected, &phase.name)).or_insert_with(|| {
                let name = phase.name.to_string();
                sums.push(PhaseSums { name, detected, ..PhaseSums::default() });
                sums.len() - 1
            });
            let sum = &mut sums[place];
            sum.entries += 1;
            sum.time_ns = sum.time_ns.saturating_add(phase.end_ns - phase.start_ns);
            of_phase[index] = Some(place);
        }
        for access in &self.accesses {
            if let Some(place) = of_phase[access.phase as usize] {
                let sum = &mut sums[place];
                sum.reads = sum.reads.saturating_add(access.reads);
                sum.writes = sum.writes.saturating_add(access.writes);
            }
        }
        sums
    }
}

/// The difference of the second profile from the first. Sites match by hash; the remaining ones by
/// function and line, if these are unique in both.
pub fn diff(before: &Overview, after: &Overview) -> Diff {
    let by = |sums: &[SiteSums], key: fn(&SiteSums) -> &str| -> HashMap<String, Vec<usize>> {
        let mut by: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, sum) in sums.iter().enumerate() {
            by.entry(key(sum).to_owned()).or_default().push(at);
        }
        by
    };
    let (a, b) = (&before.sites, &after.sites);
    let hashes = by(b, |sum| &sum.hash);
    let (old_labels, new_labels) = (by(a, |sum| &sum.label), by(b, |sum| &sum.label));
    let known: HashSet<&str> = a.iter().map(|sum| &*sum.hash).collect();
    let mut found = HashSet::new();
    let mut sites: Vec<SiteDiff> = Vec::new();
    for sum in a {
        let same = hashes.get(&sum.hash).map(|at| at[0]);
        let alike = || match (&old_labels[&sum.label][..], new_labels.get(&sum.label)) {
            ([_], Some(new)) if new.len() == 1 && !known.contains(&*b[new[0]].hash) => Some(new[0]),
            _ => None,
        };
        let other = same.or_else(alike);
        found.extend(other);
        sites.push(SiteDiff {
            label: sum.label.clone(),
            matched_by_label: same.is_none() && other.is_some(),
            before: Some(sum.clone()),
            after: other.map(|at| b[at].clone()),
        });
    }
    let fresh = b.iter().enumerate().filter(|(at, _)| !found.contains(at));
    sites.extend(fresh.map(|(_, sum)| SiteDiff {
        label: sum.label.clone(),
        matched_by_label: false,
        before: None,
        after: Some(sum.clone()),
    }));
    sites.sort_by(|x, y| y.change().total_cmp(&x.change()).then_with(|| x.label.cmp(&y.label)));
    Diff { sites, phases: phase_diff(&before.phases, &after.phases) }
}

fn phase_diff(before: &[PhaseSums], after: &[PhaseSums]) -> Vec<PhaseDiff> {
    let of = |sums: &[PhaseSums], one: &PhaseSums| {
        let same = |sum: &&PhaseSums| (sum.detected, &sum.name) == (one.detected, &one.name);
        sums.iter().find(same).cloned()
    };
    let both = before.iter().map(|one| (one, Some(one.clone()), of(after, one)));
    let fresh = after.iter().filter(|one| of(before, one).is_none());
    let fresh = fresh.map(|one| (one, None, Some(one.clone())));
    let diff = |(one, before, after): (&PhaseSums, _, _)| PhaseDiff {
        name: one.name.clone(),
        before,
        after,
    };
    both.chain(fresh).map(diff).collect()
}

impl SiteDiff {
    /// The change of its share of the accesses, 0 to 1.
    pub fn change(&self) -> f64 {
        let share = |sums: &Option<SiteSums>| sums.as_ref().map_or(0.0, |sums| sums.share);
        (share(&self.after) - share(&self.before)).abs()
    }
}
