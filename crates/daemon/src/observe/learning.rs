//! What a run shows of its sites, for the next run of the program.
//! In: attributed samples, scans of what lives, clients that leave. Out: [`RunFigures`]. Knows
//! nothing of where they are kept, or of what is made of them.
//!
//! ```text
//!   sample              value of its site
//!   scan at a tick      live bytes x time; what lives now; heat by part of large objects
//!   a client leaves     births, stacks: from now on its sites are known by hash
//! ```
//! Sites that no sample hits and no scan meets are nothing to learn from. What lives shorter than a
//! tick is met at as many scans as its bytes live long.

use crate::clients::client::Client;
use crate::clients::origin::Origin;
use crate::clients::site_use::Use;
use crate::clients::within::spread;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use tiercel_learned::{
    FRAMES_MAX, LearnedFrame, PARTS, RunFigures, SNAPSHOTS_MAX, SiteFigures, SiteUse,
};
use tiercel_ledger::{AccessValue, Attributed, Extent};
use tiercel_machine::Machine;
use tiercel_symbolize::hex;
use tiercel_wire::AccessKind;
use tiercel_wire::layout::CUT_BYTES;

/// Sites of processes that are followed, and of those that have left: 16 times as many as are kept
/// of a program, at 0.4 KiB.
const SITES_FOLLOWED_MAX: usize = 16 * tiercel_learned::SITES_MAX;

/// Length of a moment at the start of a run, milliseconds: the shortest tick. It doubles as the run
/// goes on.
const MOMENT_MS: u64 = 32;

/// What lives of a site, as a scan counts it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SiteLives {
    bytes: u64,
    /// Accesses per second by part of its large objects.
    heat_by_part: [f64; PARTS],
}

/// Of one client, counted extent by extent, which come by address.
#[derive(Debug, Default)]
pub(crate) struct LivesScan {
    lives: HashMap<u32, SiteLives>,
    /// Extents of the object that is being counted: address, bytes, heat.
    object: Vec<(u64, u64, f64)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Learning {
    value: AccessValue,
    has_dirtied: bool,
    /// By process and its number of the site.
    present: HashMap<(u32, u32), Gathered>,
    /// Of processes that have left.
    ended: HashMap<u64, SiteFigures>,
    moments: Moments,
    /// When what lives was counted last, milliseconds.
    counted_ms: u64,
    is_over: bool,
}

/// What was gathered of a site of a process.
#[derive(Clone, Debug, Default)]
struct Gathered {
    samples: u64,
    accesses: f64,
    value_ns: f64,
    live_byte_s: f64,
    peak_bytes: u64,
    /// Heat times how long it lasted, by part of its large objects.
    accesses_by_part: [f64; PARTS],
    live_bytes: Vec<u64>,
}

/// Moments of a run, equally long. Of the scans in one that counts at which most lived.
#[derive(Debug)]
struct Moments {
    length_ms: u64,
    /// Bytes that lived, by moment.
    totals: Vec<u64>,
}

impl LivesScan {
    pub(crate) fn see(&mut self, extent: &Extent<'_>) {
        self.lives.entry(extent.site).or_default().bytes += extent.bytes;
        if extent.is_head {
            self.object.clear();
        }
        if extent.is_head && extent.is_last {
            return; // nothing is known of its parts
        }
        self.object.push((extent.addr, extent.bytes, f64::from(extent.accesses_per_s())));
        if extent.is_last {
            self.end_object(extent.site);
        }
    }

    fn end_object(&mut self, site: u32) {
        let (Some(first), Some(last)) = (self.object.first(), self.object.last()) else { return };
        let (start, bytes) = (first.0, last.0 + last.1 - first.0);
        if bytes < CUT_BYTES {
            return;
        }
        let lives = self.lives.entry(site).or_default();
        for (addr, of_extent, heat) in self.object.drain(..).filter(|(.., heat)| *heat > 0.0) {
            let extent = ((addr - start) as f64, of_extent as f64);
            spread(&mut lives.heat_by_part, bytes, extent, heat);
        }
    }

    pub(crate) fn take(&mut self) -> HashMap<u32, SiteLives> {
        self.object.clear();
        std::mem::take(&mut self.lives)
    }
}

impl Learning {
    /// `None` where there is one kind of memory.
    pub(crate) fn of(machine: &Machine) -> Option<Learning> {
        Some(Learning {
            value: AccessValue::of(machine)?,
            has_dirtied: false,
            present: HashMap::new(),
            ended: HashMap::new(),
            moments: Moments { length_ms: MOMENT_MS, totals: Vec::new() },
            counted_ms: 0,
            is_over: false,
        })
    }

    /// A sample hit an object.
    pub(crate) fn sampled(&mut self, one: &Attributed) {
        let sample = &one.sample;
        self.has_dirtied |= sample.kind == AccessKind::Dirtied;
        self.value.observe(sample);
        let value_ns = self.value.ns(sample, !self.has_dirtied);
        let Some(gathered) = self.gathered(sample.pid, one.hit.site) else { return };
        gathered.value_ns += value_ns.max(0.0);
        if sample.kind != AccessKind::Dirtied {
            gathered.samples += 1;
            gathered.accesses += f64::from(sample.weight);
        }
    }

    fn gathered(&mut self, pid: u32, site: u32) -> Option<&mut Gathered> {
        let has_room = self.present.len() < SITES_FOLLOWED_MAX;
        match self.present.entry((pid, site)) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) if has_room => Some(new.insert(Gathered::default())),
            Entry::Vacant(_) => {
                self.is_over = true;
                None
            }
        }
    }

    /// What lives of all clients, by process and site, was counted at this time.
    pub(crate) fn counted(
        &mut self,
        lives: impl Iterator<Item = (u32, HashMap<u32, SiteLives>)>,
        now_ms: u64,
    ) {
        let elapsed_s = now_ms.saturating_sub(self.counted_ms) as f64 / 1e3;
        self.counted_ms = now_ms;
        let mut live: Vec<((u32, u32), u64)> = Vec::new();
        for (pid, sites) in lives {
            for (site, lives) in sites {
                live.push(((pid, site), lives.bytes));
                if let Some(gathered) = self.gathered(pid, site) {
                    gathered.lived(&lives, elapsed_s);
                }
            }
        }
        self.note_moment(&live, now_ms);
    }

    fn note_moment(&mut self, live: &[((u32, u32), u64)], now_ms: u64) {
        while self.moments.at(now_ms) >= SNAPSHOTS_MAX {
            self.halve_moments();
        }
        let at = self.moments.at(now_ms);
        if !self.moments.is_fuller(at, live.iter().map(|(_, bytes)| bytes).sum()) {
            return;
        }
        let ended = self.ended.values_mut().map(|site| &mut site.live_bytes);
        let present = self.present.values_mut().map(|gathered| &mut gathered.live_bytes);
        ended.chain(present).filter_map(|lives| lives.get_mut(at)).for_each(|bytes| *bytes = 0);
        for (key, bytes) in live {
            if let Some(gathered) = self.present.get_mut(key) {
                gathered.live_bytes.resize(gathered.live_bytes.len().max(at + 1), 0);
                gathered.live_bytes[at] = *bytes;
            }
        }
    }

    /// Two moments become one: of both that at which more lived.
    fn halve_moments(&mut self) {
        let kept = self.moments.halve();
        let halve = |lives: &mut Vec<u64>| {
            let had = !lives.is_empty();
            *lives = kept.iter().map(|at| lives.get(*at).copied().unwrap_or(0)).collect();
            lives.truncate(if had { kept.len() } else { 0 });
        };
        self.ended.values_mut().map(|site| &mut site.live_bytes).for_each(halve);
        self.present.values_mut().map(|gathered| &mut gathered.live_bytes).for_each(halve);
    }

    /// A client has left; its sites are known, and what it had at its end was counted.
    pub(crate) fn client_left(&mut self, client: &Client, now_ms: u64) {
        let since_ms = self.counted_ms.max(client.since_ms);
        let elapsed_s = now_ms.saturating_sub(since_ms) as f64 / 1e3;
        for (site, used) in client.uses.by_site() {
            let key = (client.pid, site);
            let has_lived = used.live_bytes > 0;
            let gathered = match self.present.remove(&key) {
                None if !has_lived || self.ended.len() >= SITES_FOLLOWED_MAX => continue,
                known => known.unwrap_or_default(),
            };
            let lives = SiteLives { bytes: used.live_bytes, ..SiteLives::default() };
            let gathered = Gathered::with(gathered, &lives, elapsed_s);
            let Some(figures) = figures(client, (site, used), gathered) else { continue };
            add(self.ended.entry(figures.hash).or_default(), figures);
        }
        self.present.retain(|(pid, _), _| *pid != client.pid);
    }

    /// Whether there were more sites than are followed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// What was learned, when all clients have left.
    pub(crate) fn finish(self, elapsed_ms: u64, peak_bytes: u64) -> RunFigures {
        let elapsed_s = elapsed_ms as f64 / 1e3;
        RunFigures { elapsed_s, peak_bytes, sites: self.ended.into_values().collect() }
    }
}

impl Gathered {
    fn lived(&mut self, lives: &SiteLives, elapsed_s: f64) {
        self.live_byte_s += lives.bytes as f64 * elapsed_s;
        self.peak_bytes = self.peak_bytes.max(lives.bytes);
        let parts = self.accesses_by_part.iter_mut().zip(lives.heat_by_part);
        parts.for_each(|(sum, heat)| *sum += heat * elapsed_s);
    }

    fn with(mut self, lives: &SiteLives, elapsed_s: f64) -> Gathered {
        self.lived(lives, elapsed_s);
        self
    }

    /// The value by part of large objects; nothing where none had parts that differ.
    fn part_value_ns(&self) -> Vec<f64> {
        let all: f64 = self.accesses_by_part.iter().sum();
        let share = |accesses: &f64| self.value_ns * accesses / all;
        if all > 0.0 { self.accesses_by_part.iter().map(share).collect() } else { Vec::new() }
    }
}

impl Moments {
    fn at(&self, now_ms: u64) -> usize {
        usize::try_from(now_ms / self.length_ms).unwrap_or(usize::MAX)
    }

    /// Whether at least as much lives as at the scans of this moment before.
    fn is_fuller(&mut self, at: usize, bytes: u64) -> bool {
        self.totals.resize(self.totals.len().max(at + 1), 0);
        let is_fuller = bytes >= self.totals[at];
        self.totals[at] = self.totals[at].max(bytes);
        is_fuller
    }

    /// Makes moments twice as long; which of the old ones each has become.
    fn halve(&mut self) -> Vec<usize> {
        self.length_ms *= 2;
        let of = |at: usize| self.totals.get(at).copied().unwrap_or(0);
        let pairs = (0..self.totals.len()).step_by(2);
        let kept: Vec<usize> =
            pairs.map(|at| if of(at + 1) > of(at) { at + 1 } else { at }).collect();
        self.totals = kept.iter().map(|at| of(*at)).collect();
        kept
    }
}

/// A site of a client under its hash; `None` where its session does not describe it.
fn figures(
    client: &Client,
    (number, used): (u32, &Use),
    gathered: Gathered,
) -> Option<SiteFigures> {
    let hash = client.uses.hash(number)?;
    let origin = client.uses.origins.of(number);
    let frames = client.uses.site(number).map(|(_, frames)| frames.iter().take(FRAMES_MAX));
    let frame = |frame: &tiercel_symbolize::SiteFrame| LearnedFrame {
        module: frame.path.to_string_lossy().into_owned(),
        build_id: hex::text(&frame.build_id),
        address: frame.addr,
    };
    Some(SiteFigures {
        hash,
        kind: match origin {
            Origin::Call if number == 0 && used.blocks => SiteUse::Mixed,
            Origin::Call => SiteUse::Objects,
            _ => SiteUse::Data,
        },
        name: if let Origin::Data(name) = &origin { name.to_string() } else { String::new() },
        frames: frames.into_iter().flatten().map(frame).collect(),
        births: used.births as f64,
        born_bytes: used.born_bytes as f64,
        samples: gathered.samples as f64,
        accesses: gathered.accesses,
        value_ns: gathered.value_ns,
        live_byte_s: gathered.live_byte_s,
        peak_bytes: gathered.peak_bytes.max(used.peak_bytes),
        part_value_ns: gathered.part_value_ns(),
        live_bytes: gathered.live_bytes,
        unseen_runs: 0,
    })
}

/// Adds a site of another process of the run.
fn add(to: &mut SiteFigures, one: SiteFigures) {
    let sums = [
        (&mut to.births, one.births),
        (&mut to.born_bytes, one.born_bytes),
        (&mut to.samples, one.samples),
        (&mut to.accesses, one.accesses),
        (&mut to.value_ns, one.value_ns),
        (&mut to.live_byte_s, one.live_byte_s),
    ];
    sums.into_iter().for_each(|(sum, more)| *sum += more);
    add_each(&mut to.part_value_ns, &one.part_value_ns, |sum, more| *sum += more);
    add_each(&mut to.live_bytes, &one.live_bytes, |sum, more| *sum = sum.saturating_add(more));
    to.peak_bytes = to.live_bytes.iter().copied().fold(to.peak_bytes.max(one.peak_bytes), u64::max);
    (to.hash, to.kind, to.name, to.frames) = (one.hash, one.kind, one.name, one.frames);
}

fn add_each<T: Copy + Default>(to: &mut Vec<T>, more: &[T], add: impl Fn(&mut T, T)) {
    to.resize(to.len().max(more.len()), T::default());
    to.iter_mut().zip(more).for_each(|(sum, more)| add(sum, *more));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learning() -> Learning {
        let machine = Machine::builtin("spr-cxl").expect("built in").expect("valid");
        Learning::of(&machine).expect("it has two tiers")
    }

    fn lives(sites: &[(u32, u64)]) -> impl Iterator<Item = (u32, HashMap<u32, SiteLives>)> {
        let of = |(site, bytes): &(u32, u64)| {
            (*site, SiteLives { bytes: *bytes, ..SiteLives::default() })
        };
        std::iter::once((7, sites.iter().map(of).collect()))
    }

    #[test]
    fn bytes_count_for_the_time_that_they_live() {
        let mut learning = learning();
        for at in 1..=10 {
            learning.counted(lives(&[(1, 1000), (2, if at > 5 { 500 } else { 0 })]), at * 100);
        }
        let of = |site| learning.present[&(7, site)].live_byte_s;
        assert!((of(1) - 1000.0).abs() < 1e-6 && (of(2) - 250.0).abs() < 1e-6);
    }

    #[test]
    fn moments_double_and_keep_the_fullest() {
        let mut learning = learning();
        for at in 0..100 {
            let bytes = if at == 37 { 9000 } else { 1000 };
            learning.counted(lives(&[(1, bytes), (2, 10_000 - bytes)]), at * MOMENT_MS);
        }
        let of = |site| &learning.present[&(7, site)].live_bytes;
        assert!(of(1).len() <= SNAPSHOTS_MAX && of(1).len() > SNAPSHOTS_MAX / 2);
        let both: Vec<u64> = of(1).iter().zip(of(2)).map(|(a, b)| a + b).collect();
        assert!(both.iter().all(|bytes| *bytes == 10_000), "of one scan each: {both:?}");
        learning.counted(lives(&[(1, 20_000)]), 100 * MOMENT_MS);
        let of = |site: u32| learning.present[&(7, site)].live_bytes.get(25).copied();
        assert_eq!((of(1), of(2)), (Some(20_000), None), "the other one is dead");
    }

    #[test]
    fn a_scan_knows_which_part_of_a_large_object_is_hot() {
        let mut scan = LivesScan::default();
        let step = CUT_BYTES / 4;
        for (at, heat) in [8.0, 0.0, 0.0, 4.0].into_iter().enumerate() {
            scan.object.push((at as u64 * step, step, heat));
        }
        scan.end_object(3);
        let parts = scan.take().remove(&3).expect("it was seen").heat_by_part;
        assert_eq!(parts, [4.0, 4.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0]);
        scan.object.push((0, step, 1.0));
        scan.end_object(3);
        assert!(scan.take().is_empty(), "too small to be cut");
    }

    #[test]
    fn figures_of_processes_are_added() {
        let one = |live: Vec<u64>| SiteFigures {
            hash: 5,
            value_ns: 2.0,
            peak_bytes: 3,
            live_bytes: live,
            ..SiteFigures::default()
        };
        let mut sum = SiteFigures::default();
        add(&mut sum, one(vec![1, 3]));
        add(&mut sum, one(vec![1, 3, 2]));
        assert_eq!((sum.value_ns, sum.peak_bytes, sum.live_bytes), (4.0, 6, vec![2, 6, 2]));
    }
}
