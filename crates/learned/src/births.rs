//! Of what is known, where the next run's objects are to be born.
//! In: [`Known`], the memories with their room. Out: [`Births`]: a plan without phases. Pure.
//!
//! Sites compete for room by value per live byte and second, densest first; what lives at the same
//! moments of a run competes, what lives at others does not. The last one that fits is cut. What
//! is less dense is born in slower memory, so that the fast one has room for what is denser and is
//! born later. Where all of it fits nothing is said, and sites of which too little is known are not
//! named: the budget decides, as without this.

use tiercel_machine::NodeId;
use tiercel_machine::number::saturating_u64;
use tiercel_plan::{
    CLASS_MIN, Expected, Plan, PlanOptions, PlannedClass, PlannedMachine, PlannedMemory,
    PlannedPlacement, PlannedProgram, PlannedRange, PlannedSite, Unplanned,
};
use tiercel_wire::layout::CUT_BYTES;

use crate::figures::{Known, PARTS, SiteFigures, SiteUse};

/// Samples that hit a site, or would if it were like the others, from which on it is named: with
/// four the deviation is half of the value.
const SAMPLES_MIN: f64 = 4.0;
/// A site that is cut has at least so many bytes in the faster memory: less is not worth two
/// arenas. Chosen, not measured: 256 OS pages. On `xsbench-last` an eighth of the site instead left
/// 5 of 25 MiB unused, beside a grid of 75 MiB.
const CUT_BYTES_MIN: f64 = (1u64 << 20) as f64;
/// Parts of objects differ if a sum of squares says so that chance makes in 0.1% of the cases: the
/// 99.9th percentile of chi-square with `PARTS - 1`, 7, degrees of freedom.
const UNEVEN: f64 = 24.32;
/// Largest size class of a plan: 256 TiB.
const CLASS_MAX: u32 = 48;

/// One kind of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The name that users see.
    pub name: String,
    /// Its nodes, one at least; objects go to the first.
    pub nodes: Vec<NodeId>,
    /// Room for the program's objects, bytes. The slowest takes what is left, whatever its room.
    pub bytes: u64,
}

/// Where objects are to be born.
#[derive(Clone, Debug, PartialEq)]
pub struct Births {
    /// Rows by site; sites without one are born as the budget allows.
    pub plan: Plan,
    /// Share of the accesses that the fastest memory should serve then, 0 to 1.
    pub fast_share: f64,
}

/// Places the sites in these memories, fastest first, of the machine of that name. `None`: nothing
/// is known, or all of it fits the fastest.
pub fn place(known: &Known, machine: &str, memories: &[Memory]) -> Option<Births> {
    let means = Means::of(known)?;
    if memories.len() < 2 {
        return None;
    }
    let mut items: Vec<Item> =
        known.sites.iter().enumerate().flat_map(|(at, site)| means.items(at, site)).collect();
    items.sort_by(|a, b| b.density.total_cmp(&a.density).then(a.key().cmp(&b.key())));
    let mut room = Room::new(known, memories);
    let placed: Vec<(Item, Place)> = items
        .into_iter()
        .map(|item| {
            let place = room.take(&item);
            (item, place)
        })
        .collect();
    if placed.iter().all(|(_, place)| place.tier == 0 && place.share >= 1.0) {
        return None;
    }
    let all: f64 = placed.iter().map(|(item, _)| item.accesses).sum();
    let fast = placed.iter().filter(|(_, place)| place.tier == 0);
    let fast: f64 = fast.map(|(item, place)| item.accesses * place.share).sum();
    let fast_share = if all > 0.0 { fast / all } else { 0.0 };
    Some(Births { plan: plan_of(known, machine, memories, &placed, &means), fast_share })
}

/// The means of a program, towards which sites are drawn of which little is known.
struct Means {
    /// Value of a sample, nanoseconds.
    sample_ns: f64,
    /// Value per live byte and second.
    density: f64,
}

/// What is placed together: a site, or the same part of all of its objects.
struct Item {
    site: usize,
    part: Option<usize>,
    /// Value per live byte and second.
    density: f64,
    /// Bytes at the moments of the last whole run.
    live_bytes: Vec<f64>,
    accesses: f64,
}

/// Where an item is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    tier: usize,
    /// Of its bytes; the rest is in `other`.
    share: f64,
    other: usize,
}

impl Means {
    fn of(known: &Known) -> Option<Means> {
        let (value_ns, samples) = (known.value_ns(), known.samples());
        let live: f64 = known.sites.iter().map(|site| site.live_byte_s).sum();
        let is_known = value_ns > 0.0 && samples > 0.0 && live > 0.0;
        is_known.then(|| Means { sample_ns: value_ns / samples, density: value_ns / live })
    }

    /// Value per live byte and second, drawn to the program's as if one sample more had hit it, in
    /// the time in which one hits as many bytes on average.
    fn density(&self, value_ns: f64, live_byte_s: f64, weight: f64) -> f64 {
        let (more_ns, more_byte_s) =
            (self.sample_ns * weight, self.sample_ns / self.density * weight);
        (value_ns + more_ns) / (live_byte_s + more_byte_s)
    }

    /// Samples that a site was given the chance to have.
    fn evidence(&self, site: &SiteFigures) -> f64 {
        site.samples.max(site.live_byte_s * self.density / self.sample_ns)
    }

    fn items(&self, at: usize, site: &SiteFigures) -> Vec<Item> {
        let live_bytes = live_bytes(site);
        let whole = Item {
            site: at,
            part: None,
            density: self.density(site.value_ns, site.live_byte_s, 1.0),
            live_bytes: live_bytes.clone(),
            accesses: site.accesses,
        };
        let Some(shares) = self.uneven_parts(site) else { return vec![whole] };
        let part_of = 1.0 / PARTS as f64;
        let part = |(part, share): (usize, f64)| Item {
            site: at,
            part: Some(part),
            density: self.density(site.value_ns * share, site.live_byte_s * part_of, part_of),
            live_bytes: live_bytes.iter().map(|bytes| bytes * part_of).collect(),
            accesses: site.accesses * share,
        };
        shares.into_iter().enumerate().map(part).collect()
    }

    /// Shares of the value by part, where they differ by more than chance.
    fn uneven_parts(&self, site: &SiteFigures) -> Option<Vec<f64>> {
        let sum: f64 = site.part_value_ns.iter().sum();
        if site.kind != SiteUse::Objects || sum <= 0.0 {
            return None;
        }
        let mean = sum / self.sample_ns / PARTS as f64;
        let squares = site.part_value_ns.iter().map(|ns| (ns / self.sample_ns - mean).powi(2));
        let is_uneven = squares.sum::<f64>() / mean > UNEVEN;
        is_uneven.then(|| site.part_value_ns.iter().map(|ns| ns / sum).collect())
    }
}

/// At the moments of the last whole run. What lived too shortly to be met at one takes a birth's
/// room at all of them.
fn live_bytes(site: &SiteFigures) -> Vec<f64> {
    let was_met = site.live_bytes.iter().any(|bytes| *bytes > 0);
    let bytes = site.birth_bytes();
    match was_met || site.unseen_runs > 0 {
        true => site.live_bytes.iter().map(|bytes| *bytes as f64).collect(),
        false => vec![bytes; crate::figures::SNAPSHOTS_MAX],
    }
}

impl Item {
    /// At the moment with most.
    fn most_bytes(&self) -> f64 {
        self.live_bytes.iter().copied().fold(0.0, f64::max)
    }

    fn key(&self) -> (usize, Option<usize>) {
        (self.site, self.part)
    }
}

/// What is left of each memory but the slowest, at each moment, bytes.
struct Room {
    left: Vec<Vec<f64>>,
}

impl Room {
    fn new(known: &Known, memories: &[Memory]) -> Room {
        let moments = known.sites.iter().map(|site| site.live_bytes.len()).max().unwrap_or(0);
        let faster = memories.split_last().map_or(&[][..], |(_, faster)| faster);
        Room { left: faster.iter().map(|one| vec![one.bytes as f64; moments.max(1)]).collect() }
    }

    /// The fastest memory with room for it; of a whole site perhaps for a share of it alone.
    fn take(&mut self, item: &Item) -> Place {
        let slowest = self.left.len();
        let fits = |from: usize| (from..slowest).find(|tier| self.share_in(*tier, item) >= 1.0);
        let bytes_in = |tier: usize| self.share_in(tier, item) * item.most_bytes();
        let cut = (0..slowest)
            .find(|tier| self.share_in(*tier, item) >= 1.0 || bytes_in(*tier) >= CUT_BYTES_MIN);
        let place = match (item.part, cut) {
            (None, Some(tier)) => {
                let (share, other) = (self.share_in(tier, item), fits(tier + 1));
                Place { tier, share: share.min(1.0), other: other.unwrap_or(slowest) }
            }
            _ => Place { tier: fits(0).unwrap_or(slowest), share: 1.0, other: slowest },
        };
        self.charge(place.tier, item, place.share);
        self.charge(place.other, item, 1.0 - place.share);
        place
    }

    /// How much of it a memory has room for, at all moments.
    fn share_in(&self, tier: usize, item: &Item) -> f64 {
        let both = self.left[tier].iter().zip(&item.live_bytes);
        let share = both.filter(|(_, bytes)| **bytes > 0.0).map(|(left, bytes)| left / bytes);
        share.fold(1.0, f64::min).max(0.0)
    }

    fn charge(&mut self, tier: usize, item: &Item, share: f64) {
        let Some(left) = self.left.get_mut(tier) else { return };
        left.iter_mut().zip(&item.live_bytes).for_each(|(left, bytes)| *left -= bytes * share);
    }
}

fn plan_of(
    known: &Known,
    machine: &str,
    memories: &[Memory],
    placed: &[(Item, Place)],
    means: &Means,
) -> Plan {
    let mut of_site: Vec<Vec<&(Item, Place)>> = vec![Vec::new(); known.sites.len()];
    placed.iter().for_each(|one| of_site[one.0.site].push(one));
    let node = |tier: usize| memories[tier].nodes[0];
    let mixed = known.sites.iter().position(|site| site.kind == SiteUse::Mixed);
    let mixed = mixed.and_then(|at| of_site[at].first()).map(|(_, place)| place.tier);
    let sites = known.sites.iter().zip(&mut of_site).filter_map(|(site, items)| {
        let is_named = site.kind == SiteUse::Objects && site.hash != 0;
        let is_known = is_named && means.evidence(site) >= SAMPLES_MIN;
        items.sort_by_key(|(item, _)| item.part);
        is_known.then(|| planned_site(site, items, &node, memories.len() - 1))
    });
    let memory = |one: &Memory| PlannedMemory {
        name: one.name.clone(),
        nodes: one.nodes.clone(),
        capacity_bytes: one.bytes,
    };
    let build_id = known.identity.as_str().to_owned();
    Plan {
        program: PlannedProgram { path: known.program.clone(), build_id },
        machine: PlannedMachine {
            name: machine.to_owned(),
            memories: memories.iter().map(memory).collect(),
            ..PlannedMachine::default()
        },
        options: PlanOptions { strategy: "learned".to_owned(), ..PlanOptions::default() },
        expected: Expected::default(),
        unplanned: Unplanned::Budget,
        small_objects: mixed.filter(|tier| *tier > 0).map(node),
        phases: Vec::new(),
        modules: Vec::new(),
        sites: sites.collect(),
    }
}

fn planned_site(
    site: &SiteFigures,
    items: &[&(Item, Place)],
    node: &dyn Fn(usize) -> NodeId,
    slowest: usize,
) -> PlannedSite {
    let (tier, other, mut ranges) =
        if items.len() == PARTS { by_parts(items) } else { whole(items) };
    // What of a large object finds no room is then cut off, instead of the object as a whole.
    if ranges.is_empty() && tier < slowest && site.birth_bytes() >= CUT_BYTES as f64 {
        ranges.push(PlannedRange { from: 0.0, to: 1.0 });
    }
    let other = if other > tier { other } else { slowest };
    let is_cut = !ranges.is_empty();
    let placement = PlannedPlacement {
        phase: None,
        node: node(tier),
        other: is_cut.then(|| node(other)),
        ranges,
        gain_ns: if tier == 0 { site.value_ns } else { 0.0 },
        confidence: 1.0 - site.uncertainty(),
    };
    let pages = saturating_u64(site.birth_bytes()).max(1).next_power_of_two();
    let class = PlannedClass {
        up_to_bytes: pages.clamp(1 << CLASS_MIN, 1 << CLASS_MAX),
        objects: saturating_u64(site.births),
        peak_bytes: site.peak_bytes,
        placements: vec![placement],
        prefetch: Vec::new(),
    };
    PlannedSite { hash: site.hash, label: String::new(), stack: Vec::new(), classes: vec![class] }
}

/// The tier, the other tier, and what of each object is in the first; no ranges: all of it.
fn whole(items: &[&(Item, Place)]) -> (usize, usize, Vec<PlannedRange>) {
    let Some((_, Place { tier, share, other })) = items.first() else { return (0, 0, Vec::new()) };
    let head = PlannedRange { from: 0.0, to: *share };
    (*tier, *other, if *share < 1.0 { vec![head] } else { Vec::new() })
}

/// The same of a site by its parts, which come in order: what is not in their fastest tier is in
/// one other.
fn by_parts(items: &[&(Item, Place)]) -> (usize, usize, Vec<PlannedRange>) {
    let tiers: Vec<usize> = items.iter().map(|(_, place)| place.tier).collect();
    let fastest = tiers.iter().copied().min().unwrap_or(0);
    let Some(other) = tiers.iter().copied().filter(|tier| *tier > fastest).min() else {
        return (fastest, fastest, Vec::new());
    };
    let at = |part: usize| part as f64 / PARTS as f64;
    let mut ranges: Vec<PlannedRange> = Vec::new();
    for (part, _) in tiers.iter().enumerate().filter(|(_, tier)| **tier == fastest) {
        match ranges.last_mut().filter(|last| last.to >= at(part)) {
            Some(last) => last.to = at(part + 1),
            None => ranges.push(PlannedRange { from: at(part), to: at(part + 1) }),
        }
    }
    (fastest, other, ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Identity;
    use tiercel_plan::check_plan;

    const MIB: u64 = 1 << 20;

    /// A site with so many MiB at each moment, and so many samples of one nanosecond each in a run
    /// of one second.
    fn site(hash: u64, live_mib: &[u64], samples: f64) -> SiteFigures {
        let mean = live_mib.iter().sum::<u64>() as f64 / live_mib.len() as f64;
        let peak_bytes = live_mib.iter().max().unwrap() * MIB;
        SiteFigures {
            hash,
            births: 1.0,
            born_bytes: peak_bytes as f64,
            samples,
            accesses: samples * 1000.0,
            value_ns: samples,
            live_byte_s: mean * MIB as f64,
            peak_bytes,
            live_bytes: live_mib.iter().map(|mib| mib * MIB).collect(),
            ..SiteFigures::default()
        }
    }

    fn known(sites: Vec<SiteFigures>) -> Known {
        Known { sites, ..Known::new(Identity::of_build_id(&[1]).unwrap(), "app") }
    }

    fn memories(fast_mib: u64) -> [Memory; 2] {
        let memory =
            |node, bytes| Memory { name: format!("m{node}"), nodes: vec![NodeId(node)], bytes };
        [memory(0, fast_mib * MIB), memory(2, 1 << 40)]
    }

    /// For each site its node, the other, and its ranges in eighths.
    fn placed(sites: Vec<SiteFigures>, fast_mib: u64) -> String {
        let Some(births) = place(&known(sites), "m", &memories(fast_mib)) else {
            return "nothing".to_owned();
        };
        check_plan(&births.plan).unwrap();
        let of = |site: &PlannedSite| {
            let place = &site.classes[0].placements[0];
            let ranges = place.ranges.iter().map(|r| format!(" {}-{}", r.from * 8.0, r.to * 8.0));
            let other = place.other.map(|node| format!("/{node}")).unwrap_or_default();
            format!("{}:{}{other}{}", site.hash, place.node, ranges.collect::<String>())
        };
        let mut sites: Vec<String> = births.plan.sites.iter().map(of).collect();
        sites.sort();
        sites.join(", ")
    }

    #[test]
    fn the_densest_are_born_in_fast_memory_and_the_last_one_is_cut() {
        let sites = || vec![site(1, &[8], 10.0), site(2, &[8], 900.0), site(3, &[8], 100.0)];
        assert_eq!(placed(sites(), 12), "1:2, 2:0/2 0-8, 3:0/2 0-4");
        assert_eq!(placed(sites(), 16), "1:2, 2:0/2 0-8, 3:0/2 0-8");
        assert_eq!(placed(sites(), 8), "1:2, 2:0/2 0-8, 3:2");
        assert_eq!(placed(sites(), 24), "nothing", "all of it fits");
        let births = place(&known(sites()), "m", &memories(16)).unwrap();
        assert!((births.fast_share - 1000.0 / 1010.0).abs() < 1e-9);
    }

    #[test]
    fn what_lives_at_other_moments_does_not_compete() {
        let sites =
            vec![site(1, &[8, 0, 8], 500.0), site(2, &[0, 8, 0], 100.0), site(3, &[8, 8, 8], 10.0)];
        assert_eq!(placed(sites, 8), "1:0/2 0-8, 2:0/2 0-8, 3:2");
    }

    #[test]
    fn a_site_of_which_little_is_known_is_not_named() {
        let small = SiteFigures { live_byte_s: 1.0, ..site(3, &[1], 2.0) };
        let sites = vec![site(1, &[8], 900.0), site(2, &[64], 0.0), small];
        assert_eq!(placed(sites, 9), "1:0/2 0-8, 2:2", "what no sample hits for long is known");
    }

    #[test]
    fn what_dies_between_moments_is_dense_and_has_a_births_room() {
        let brief = SiteFigures { live_bytes: vec![0, 0], live_byte_s: 0.0, ..site(1, &[2], 50.0) };
        let sites = vec![brief, site(2, &[8, 8], 100.0), site(3, &[8, 8], 1.0)];
        assert_eq!(placed(sites, 8), "1:0, 2:0/2 0-6, 3:2");
    }

    #[test]
    fn hot_parts_of_large_objects_are_born_fast() {
        let mut parts = site(1, &[64], 800.0);
        parts.part_value_ns = vec![10.0, 300.0, 300.0, 10.0, 10.0, 150.0, 10.0, 10.0];
        assert_eq!(placed(vec![parts.clone(), site(2, &[64], 10.0)], 24), "1:0/2 1-3 5-6, 2:2");
        parts.part_value_ns = vec![100.0; PARTS];
        assert_eq!(placed(vec![parts, site(2, &[64], 10.0)], 24), "1:0/2 0-3, 2:2");
    }

    #[test]
    fn mixed_blocks_go_where_they_belong_and_data_takes_room() {
        let mixed = SiteFigures { kind: SiteUse::Mixed, ..site(0, &[8], 1.0) };
        let data = SiteFigures { kind: SiteUse::Data, ..site(2, &[4], 500.0) };
        let sites = known(vec![mixed, data, site(1, &[8], 100.0)]);
        let births = place(&sites, "m", &memories(8)).unwrap();
        assert_eq!(births.plan.small_objects, Some(NodeId(2)));
        let only = &births.plan.sites[0].classes[0].placements[0];
        assert_eq!((births.plan.sites.len(), only.share()), (1, 0.5));
    }

    #[test]
    fn without_samples_or_a_second_memory_nothing_is_said() {
        assert_eq!(placed(vec![site(1, &[64], 0.0)], 8), "nothing");
        assert_eq!(placed(Vec::new(), 8), "nothing");
        let one = place(&known(vec![site(1, &[64], 9.0)]), "m", &memories(8)[..1]);
        assert_eq!(one, None);
    }
}
