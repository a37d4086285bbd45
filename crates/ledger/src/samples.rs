//! Samples given to what lived at their address at their time.
//! In: [`Sample`]s. Out: averages per extent (MAT Eq. 1), heat of sites, and counts of what hit
//! nothing. Knows nothing of where samples come from.
//!
//! Most samples hit an object that lives and was born before them: one search of the index. The
//! others are looked for among the lives that have ended, all at once: the addresses of the samples
//! are sorted, and each ended life looks up what falls on it.

use tiercel_machine::NodeId;
use tiercel_machine::number::clamped_u32;
use tiercel_wire::{AccessKind, Sample};

use crate::config::AT_ONCE;
use crate::event_buffer::Event;
use crate::ledger::Ledger;
use crate::lives::{EndedLife, SKEW_NS};
use crate::row::{FRESH, Stamp, VAGUE};

/// Lives that share what was seen of one area between two looks, at most. Those beyond get nothing,
/// and the sample counts as undecided.
pub const SHARING_MAX: usize = 1024;

/// Sites that are in doubt about one sample, at most: the parts of further ones are taken for
/// certain. What is left to each of so many is little.
const DOUBTED_MAX: usize = 16;

/// What a sampled access hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Index into the process's site table, 0 = unknown.
    pub site: u32,
    /// The node its extent lies on; `None` when it is on several, or its residency is unknown, or
    /// the extent has ended.
    pub home: Option<NodeId>,
}

/// A sample, or the part of one, that belongs to one life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attributed {
    /// Its weight is that of the part, and its time within the life.
    pub sample: Sample,
    /// What it hit.
    pub hit: Hit,
    /// Accesses of the sample that may be of this site or of another one whose life had the address
    /// in turns: a standard deviation.
    pub doubt: f64,
}

/// Where a sample belongs.
enum Found {
    Live(u32),
    /// Perhaps to a life that has ended.
    Late,
    Outside,
}

/// A sample that ended lives may have a part in.
struct Late {
    slot: u16,
    sample: Sample,
    /// Lives that had the address at its time, in the order in which they ended.
    lives: Vec<Part>,
    /// One that ended just before, or began just after, as far as clocks agree.
    near: Option<Part>,
    is_incomplete: bool,
}

/// A life that may have a part in a sample.
#[derive(Clone, Copy)]
struct Part {
    /// Number of an ended life; `None`: what lives.
    life: Option<u64>,
    site: u32,
    /// The beginning may be too early: then the life before had the address meanwhile.
    born_ns: u64,
    died_ns: u64,
    /// It surely lived at this time.
    sure_ns: u64,
}

impl Ledger {
    /// Attributes one observed access at once, by the records applied so far. It counts in the open
    /// interval whatever its own time says: a sampler's buffer is drained at every tick.
    /// [`AccessKind::Dirtied`] is no access and does not count. Returns what it hit, of several
    /// lives the last.
    pub fn sample(&mut self, sample: &Sample) -> Option<Hit> {
        if sample.kind != AccessKind::Dirtied {
            self.count_sample(sample);
        }
        let slot = self.slot(sample.pid)?;
        match self.find_life(slot, sample) {
            Found::Live(number) => Some(self.hit_live(slot, number, sample)),
            Found::Outside => {
                self.count_outside(sample);
                None
            }
            Found::Late => {
                let mut out = Vec::new();
                self.attribute_late(vec![Late::new(slot, *sample)], &mut out);
                out.last().map(|one| one.hit)
            }
        }
    }

    pub(crate) fn count_sample(&mut self, sample: &Sample) {
        self.counts.samples += 1;
        self.counts.sampled_accesses += u64::from(sample.weight);
        self.counts.samples_with_latency += u64::from(sample.latency_ns.is_some());
        let is_unknown = self.slot(sample.pid).is_none();
        self.counts.samples_of_unknown_processes += u64::from(is_unknown);
    }

    /// Attributes samples that are counted already.
    pub(crate) fn attribute_all(&mut self, samples: &[Sample], out: &mut Vec<Attributed>) {
        let mut late = Vec::new();
        for sample in samples {
            let Some(slot) = self.slot(sample.pid) else { continue };
            match self.find_life(slot, sample) {
                Found::Live(number) => {
                    let hit = self.hit_live(slot, number, sample);
                    out.push(Attributed { sample: *sample, hit, doubt: 0.0 });
                }
                Found::Late => late.push(Late::new(slot, *sample)),
                Found::Outside => self.count_outside(sample),
            }
        }
        self.attribute_late(late, out);
    }

    fn find_life(&self, slot: u16, sample: &Sample) -> Found {
        let row = self.row_at(slot, sample.addr);
        let born_ns = row.map(|number| self.rows[number].born_ns());
        match (row, born_ns) {
            (Some(number), Some(born_ns))
                if born_ns <= sample.from_ns && !self.rows[number].has(VAGUE) =>
            {
                Found::Live(number)
            }
            _ if self.process(slot).ended.len() > 0 => Found::Late,
            (Some(number), Some(born_ns)) if born_ns < sample.until_ns + SKEW_NS => {
                Found::Live(number)
            }
            _ => Found::Outside,
        }
    }

    fn row_at(&self, slot: u16, addr: u64) -> Option<u32> {
        let found = self.process(slot).index.at_or_below(addr);
        found.filter(|number| addr < self.rows[*number].end())
    }

    fn count_outside(&mut self, sample: &Sample) {
        self.counts.samples_outside += u64::from(sample.kind != AccessKind::Dirtied);
    }

    // ---- Ended lives ---------------------------------------------------------------------------

    fn attribute_late(&mut self, mut late: Vec<Late>, out: &mut Vec<Attributed>) {
        late.sort_by_key(|one| (one.slot, one.sample.addr));
        for of_process in late.chunk_by_mut(|a, b| a.slot == b.slot) {
            self.find_ended(of_process);
            for one in of_process {
                self.add_live(one);
                self.give(one, out);
            }
        }
    }

    /// Lets each ended life of a process look up the samples that fall on it, which are sorted by
    /// address.
    fn find_ended(&self, late: &mut [Late]) {
        let Some(slot) = late.first().map(|one| one.slot) else { return };
        for (number, life) in self.process(slot).ended.iter() {
            let first = late.partition_point(|one| one.sample.addr < life.addr);
            for one in late[first..].iter_mut().take_while(|one| one.sample.addr < life.end) {
                let EndedLife { born_ns, died_ns, sure_ns, site, .. } = *life;
                one.add(Part { life: Some(number), site, born_ns, died_ns, sure_ns });
            }
        }
    }

    /// What lives at the sample's address.
    fn add_live(&self, late: &mut Late) {
        if let Some(number) = self.row_at(late.slot, late.sample.addr) {
            let row = &self.rows[number];
            let (site, born_ns) = (row.site(), row.born_ns());
            late.add(Part { life: None, site, born_ns, died_ns: u64::MAX, sure_ns: u64::MAX });
        }
    }

    /// Gives each life its part, in proportion to the time that it had the address.
    fn give(&mut self, late: &Late, out: &mut Vec<Attributed>) {
        let is_access = late.sample.kind != AccessKind::Dirtied;
        let Some(shares) = late.shares() else {
            // Around a loss of records two lives may have had it.
            self.counts.samples_undecided += u64::from(is_access);
            return;
        };
        let Some((first, _)) = shares.first() else { return self.count_outside(&late.sample) };
        let is_shared = shares.iter().any(|(part, _)| part.site != first.site);
        self.counts.samples_undecided += u64::from(is_access && (is_shared || late.is_incomplete));
        let all_ns: u128 = shares.iter().map(|(_, ns)| u128::from(*ns)).sum();
        let mut doubts = if is_shared { doubts(&shares, late.sample.weight) } else { Vec::new() };
        let (mut so_far_ns, mut given) = (0, 0);
        for (part, ns) in &shares {
            so_far_ns += u128::from(*ns);
            let until_here = u128::from(late.sample.weight) * so_far_ns / all_ns;
            let until_here = u64::try_from(until_here).expect("at most the weight");
            let weight = clamped_u32(until_here - given);
            given = until_here;
            if weight > 0 {
                let until_ns = late.sample.until_ns.min(part.died_ns);
                let from_ns = late.sample.from_ns.min(until_ns);
                let sample = Sample { weight, from_ns, until_ns, ..late.sample };
                let hit = self.give_part(late.slot, &sample, part);
                // Once for all parts of a site.
                let of_site = doubts.iter_mut().find(|(site, _)| *site == part.site);
                let doubt = of_site.map_or(0.0, |(_, doubt)| std::mem::take(doubt));
                out.push(Attributed { sample, hit, doubt });
            }
        }
    }

    fn give_part(&mut self, slot: u16, sample: &Sample, part: &Part) -> Hit {
        let live = if part.life.is_none() { self.row_at(slot, sample.addr) } else { None };
        match (part.life, live) {
            (Some(life), _) => self.hit_ended(slot, (part, life), sample),
            (None, Some(number)) => self.hit_live(slot, number, sample),
            (None, None) => Hit { site: part.site, home: None },
        }
    }

    // ---- What a sample adds --------------------------------------------------------------------

    fn hit_live(&mut self, slot: u16, number: u32, sample: &Sample) -> Hit {
        self.emit(slot, Event::Accessed { sample: *sample, life: None });
        if sample.kind == AccessKind::Dirtied {
            self.count_value(number, sample);
            return Hit { site: self.rows[number].site(), home: self.home(number) };
        }
        let number = if self.rows[number].has(FRESH) {
            self.hit_fresh(slot, number, sample.addr)
        } else {
            self.counts.samples_attributed += 1;
            number
        };
        self.count_latency(number, sample);
        self.count_value(number, sample);
        self.add(number, sample);
        Hit { site: self.rows[number].site(), home: self.home(number) }
    }

    fn hit_ended(&mut self, slot: u16, (part, life): (&Part, u64), sample: &Sample) -> Hit {
        let site = part.site;
        let lived_ns = part.died_ns.saturating_sub(part.born_ns);
        self.count_value_of_ended((slot, site), lived_ns, sample);
        self.emit(slot, Event::Accessed { sample: *sample, life: Some(life) });
        if sample.kind != AccessKind::Dirtied {
            self.counts.samples_of_ended += 1;
            self.count_site(slot, site, sample);
        }
        Hit { site, home: None }
    }

    /// A fresh object is one row: a large one is split now, so that its extents differ from the
    /// start.
    fn hit_fresh(&mut self, slot: u16, number: u32, addr: u64) -> u32 {
        self.split(number);
        let found = self.process(slot).index.at_or_below(addr);
        let number = found.expect("a split row's extents cover what it covered");
        let row = &mut self.rows[number];
        if row.hits == u16::MAX {
            self.counts.samples_attributed += 1;
        } else {
            row.hits += 1;
        }
        number
    }

    fn add(&mut self, number: u32, sample: &Sample) {
        let latency_ns = self.latency_of(sample);
        let share = self.share * sample.weight as f32;
        let is_fresh = self.rows[number].has(FRESH);
        let interval = self.interval;
        let decay = if is_fresh { 1.0 } else { self.decay(interval - self.rows[number].clock) };
        let row = &mut self.rows[number];
        if !is_fresh {
            row.clock = interval;
        }
        row.reads *= decay;
        row.writes *= decay;
        row.stall_ns = row.stall_ns * decay + share * latency_ns / AT_ONCE;
        let is_write = sample.kind == AccessKind::Write;
        *(if is_write { &mut row.writes } else { &mut row.reads }) += share;
        let at_ms = (sample.until_ns / 1_000_000).min(self.now_ms);
        row.last_access = row.last_access.max(Stamp::at(at_ms));
        let (slot, site) = (row.process, row.site());
        self.count_site(slot, site, sample);
        if !is_fresh {
            self.count_within(number, sample.addr, share);
        }
    }

    fn count_site(&mut self, slot: u16, site: u32, sample: &Sample) {
        let weight = sample.weight as f32;
        let is_write = sample.kind == AccessKind::Write;
        let accesses = if is_write { (0.0, weight) } else { (weight, 0.0) };
        let stall_ns = weight * self.latency_of(sample) / AT_ONCE;
        self.count_heat(slot, site, accesses, stall_ns);
    }

    fn latency_of(&self, sample: &Sample) -> f32 {
        sample.latency_ns.map_or(self.config.assumed_latency_ns, |ns| ns as f32)
    }
}

impl Late {
    fn new(slot: u16, sample: Sample) -> Late {
        Late { slot, sample, lives: Vec::new(), near: None, is_incomplete: false }
    }

    fn is_instant(&self) -> bool {
        self.sample.from_ns >= self.sample.until_ns
    }

    fn add(&mut self, part: Part) {
        let Sample { from_ns, until_ns, .. } = self.sample;
        if overlap_ns(part.born_ns, part.died_ns, from_ns, until_ns) == 0 {
            self.near = if part.is_near(until_ns) { Some(part) } else { self.near };
        } else if self.lives.len() < SHARING_MAX {
            self.lives.push(part);
        } else {
            self.is_incomplete = true;
        }
    }

    /// The lives that share the sample, and the time for which each had the address, nanoseconds;
    /// `None` when it cannot be said whose it is.
    fn shares(&self) -> Option<Vec<(Part, u64)>> {
        let Sample { from_ns, until_ns, .. } = self.sample;
        if self.lives.is_empty() {
            return Some(self.near.map(|part| (part, 1)).into_iter().collect());
        }
        if self.is_instant() {
            // At one address one life follows another: it is of the one that ended first.
            let (first, others) = self.lives.split_first().expect("there is one");
            let is_sure = others.is_empty() || until_ns <= first.sure_ns;
            return is_sure.then(|| vec![(*first, 1)]);
        }
        let mut ended_ns = 0;
        let share = |part: &Part| {
            let born_ns = part.born_ns.max(ended_ns);
            ended_ns = ended_ns.max(part.died_ns);
            (*part, overlap_ns(born_ns, part.died_ns, from_ns, until_ns))
        };
        Some(self.lives.iter().map(share).filter(|(_, ns)| *ns > 0).collect())
    }
}

impl Part {
    /// Whether it lived within the disagreement of clocks around an instant.
    fn is_near(&self, ns: u64) -> bool {
        self.born_ns < ns.saturating_add(SKEW_NS) && ns < self.died_ns.saturating_add(SKEW_NS)
    }
}

/// By how many accesses the parts of sites may be off that shared a sample by time: a standard
/// deviation for each site. With the part f of the time the true share is taken to be distributed
/// as Beta(f, 1 - f), mostly all or nothing, of which the variance is f (1 - f) / 2.
fn doubts(shares: &[(Part, u64)], weight: u32) -> Vec<(u32, f64)> {
    let mut by_site: Vec<(u32, f64)> = Vec::new();
    for (part, ns) in shares {
        match by_site.iter().position(|(site, _)| *site == part.site) {
            Some(at) => by_site[at].1 += *ns as f64,
            None if by_site.len() < DOUBTED_MAX => by_site.push((part.site, *ns as f64)),
            None => (),
        }
    }
    let all: f64 = shares.iter().map(|(_, ns)| *ns as f64).sum();
    for (_, sum) in &mut by_site {
        let part = *sum / all;
        *sum = f64::from(weight) * (part * (1.0 - part) / 2.0).max(0.0).sqrt();
    }
    by_site
}

/// How long a life from `born_ns` to before `died_ns` overlaps a time, nanoseconds; an instant 1 or
/// 0.
fn overlap_ns(born_ns: u64, died_ns: u64, from_ns: u64, until_ns: u64) -> u64 {
    if from_ns >= until_ns {
        return u64::from(born_ns <= from_ns && from_ns < died_ns);
    }
    died_ns.min(until_ns).saturating_sub(born_ns.max(from_ns))
}
