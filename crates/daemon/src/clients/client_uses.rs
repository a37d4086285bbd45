//! What one client's sites did, by the client's own site numbers, and which sites it has.
//! In: births, samples, live extents by site; the session's sites and modules. Out: [`Use`]s;
//! stacks and hashes of sites. Knows nothing of other clients, or of names.

use super::live::LiveUse;
use super::origin::Origins;
use super::sharers::{Shared, Sharer, most_sharing};
use super::site_use::{Fits, USE_BYTES, Use};
use crate::quota::Allowance;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tiercel_ledger::confidence::{Evidence, EvidenceOfAll};
use tiercel_symbolize::SiteFrame;
use tiercel_wire::layout::{OS_PAGE_BYTES, SITES_NAMED};
use tiercel_wire::{AccessKind, Frame, Sample, Session};

/// What a frame of its stack takes, bytes.
pub(super) const FRAME_BYTES: usize = size_of::<SiteFrame>();

/// What a module takes, bytes: a path (224) and a build-id (20) with their headers.
const MODULE_BYTES: usize = 320;

/// What a scan counts for at least: the first one follows none. A millisecond, the clock's unit.
const SCAN_S_MIN: f64 = 1e-3;

/// Hash of the row for objects without a site.
pub(super) const UNKNOWN_SITE: u64 = 0;

/// The uses of one client, by its own site numbers. What its user's share of memory has no room for
/// is counted as the unknown site's.
#[derive(Debug)]
pub struct ClientUses {
    allowance: Allowance,
    /// What was taken of the share.
    taken_bytes: usize,
    uses: HashMap<u32, Use>,
    /// Sites that were read from the session: they are written once.
    known: HashMap<u32, Known>,
    /// Their numbers, in the order in which they were read.
    learned: Vec<u32>,
    /// Who shares mixed blocks: site and sampled births, most first; and all sampled births.
    mixed: (Vec<(u32, u64)>, u64),
    modules: HashMap<u16, (Arc<Path>, Arc<[u8]>)>,
    /// Sites that samples hit in the open round, or in the one before.
    sampled: Vec<u32>,
    pub(crate) origins: Origins,
    /// When what lives was counted last, milliseconds.
    scanned_ms: Option<u64>,
}

/// A site as its session describes it.
#[derive(Clone, Debug)]
struct Known {
    hash: u64,
    frames: Arc<[SiteFrame]>,
}

impl ClientUses {
    /// Of a client that has used nothing yet.
    pub(crate) fn new(allowance: Allowance) -> ClientUses {
        ClientUses {
            allowance,
            taken_bytes: 0,
            uses: HashMap::new(),
            known: HashMap::new(),
            learned: Vec::new(),
            mixed: Default::default(),
            modules: HashMap::new(),
            sampled: Vec::new(),
            origins: Origins::default(),
            scanned_ms: None,
        }
    }

    /// The use of `site`. A number beyond the client's site table, or beyond its user's share of
    /// memory, becomes the unknown site.
    pub fn use_of(&mut self, site: u32) -> &mut Use {
        let is_new = site != 0 && !self.uses.contains_key(&site);
        let is_foreign = site >= self.origins.end();
        let site = if is_new && (is_foreign || !self.charge_quota(USE_BYTES)) { 0 } else { site };
        self.uses.entry(site).or_default()
    }

    /// Charges its user's share of memory; whether there is room.
    pub(super) fn charge_quota(&mut self, bytes: usize) -> bool {
        let is_taken = self.allowance.take(bytes);
        self.taken_bytes += if is_taken { bytes } else { 0 };
        is_taken
    }

    /// Counts births and their bytes.
    pub fn born(&mut self, site: u32, births: u64, bytes: u64, is_block: bool) {
        let used = self.use_of(site);
        used.births += births;
        used.born_bytes = used.born_bytes.saturating_add(bytes);
        used.blocks |= is_block;
    }

    /// Counts a sample that hit an object of `site`; `doubt` is by how many accesses it may be off.
    pub fn sampled(&mut self, site: u32, sample: &Sample, doubt: f64) {
        let used = self.use_of(site);
        used.samples += 1;
        match sample.kind {
            AccessKind::Write => used.writes += u64::from(sample.weight),
            _ => used.reads += u64::from(sample.weight),
        }
        if used.evidence.add(f64::from(sample.weight), doubt) {
            self.sampled.push(site);
        }
    }

    /// All samples that the sampler brought at one time were counted.
    pub(crate) fn end_round(&mut self, of_all: &EvidenceOfAll) {
        let mut sampled = std::mem::take(&mut self.sampled);
        sampled.retain(|site| self.use_of(*site).evidence.end_round(of_all));
        self.sampled = sampled;
    }

    /// What samples said of each site, and its bytes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Evidence, u64)> {
        let bytes = |used: &Use| used.peak_bytes.max(used.live_bytes).max(OS_PAGE_BYTES);
        self.uses.values().map(move |used| (used.evidence, bytes(used)))
    }

    /// No round follows.
    pub(crate) fn end_rounds(&mut self) {
        for site in std::mem::take(&mut self.sampled) {
            self.use_of(site).evidence.end();
        }
    }

    /// Reads from the session the sites that are used and not known yet.
    pub fn learn(&mut self, session: &Session) {
        let sharers = self.mixed.0.iter().map(|(site, _)| site);
        let of_session = |number: &&u32| **number != 0 && (**number as usize) < SITES_NAMED;
        let wanted = self.uses.keys().chain(sharers).filter(of_session);
        let unknown: Vec<u32> = wanted.filter(|n| !self.known.contains_key(n)).copied().collect();
        for number in unknown {
            // Not published yet: it stays unknown until the next call.
            let Some(site) = session.site(number) else { continue };
            if !self.charge_quota(site.frames.len() * FRAME_BYTES) {
                return;
            }
            let frames = site.frames.iter().map(|frame| self.frame(*frame, session)).collect();
            self.known.insert(number, Known { hash: site.hash, frames });
            self.learned.push(number);
            self.origins.learn(number, site.kind, &self.known[&number].frames);
        }
    }

    /// The number of a site that no session has: a symbol of static data. `None`: there is no room.
    pub(super) fn name_site(&mut self, hash: u64, frame: SiteFrame, name: Arc<str>) -> Option<u32> {
        let number =
            self.charge_quota(FRAME_BYTES + name.len()).then(|| self.origins.take_number())??;
        self.origins.name(number, name);
        self.known.insert(number, Known { hash, frames: [frame].into() });
        self.learned.push(number);
        Some(number)
    }

    /// Takes over the sites that another process knows, which forked this one.
    pub(super) fn inherit(&mut self, parent: &ClientUses) {
        for (number, known) in &parent.known {
            if self.charge_quota(known.frames.len() * FRAME_BYTES) {
                self.known.insert(*number, known.clone());
                self.learned.push(*number);
            }
        }
        self.origins = parent.origins.clone();
    }

    /// Reads from the session which sites share its mixed blocks, then [`ClientUses::learn`].
    pub(crate) fn learn_all(&mut self, session: &Session) {
        self.mixed = most_sharing(&session.smalls());
        self.learn(session);
    }

    /// Who shares its mixed blocks, as far as their sites are known.
    pub(super) fn shared(&self) -> Shared {
        let sharer = |&(site, samples): &(u32, u64)| {
            let known = self.known.get(&site)?;
            Some(Sharer { hash: known.hash, frames: Arc::clone(&known.frames), samples })
        };
        Shared { sharers: self.mixed.0.iter().filter_map(sharer).collect(), samples: self.mixed.1 }
    }

    fn frame(&mut self, frame: Frame, session: &Session) -> SiteFrame {
        let module = frame.module.and_then(|number| {
            if !self.modules.contains_key(&number) && self.charge_quota(MODULE_BYTES) {
                let read = session.module(number).map(|m| (m.path.into(), m.build_id.into()));
                self.modules.insert(number, read.unwrap_or_else(no_module));
            }
            self.modules.get(&number).cloned()
        });
        let (path, build_id) = module.unwrap_or_else(no_module);
        SiteFrame { path, build_id, addr: frame.offset }
    }

    /// Number and hash of every known site.
    pub(crate) fn known(&self) -> impl Iterator<Item = (u32, u64)> {
        self.known.iter().map(|(number, known)| (*number, known.hash))
    }

    /// Hash and stack of a known site.
    pub(crate) fn site(&self, number: u32) -> Option<(u64, &Arc<[SiteFrame]>)> {
        self.known.get(&number).map(|known| (known.hash, &known.frames))
    }

    /// Hash of a known site; number 0 is [`UNKNOWN_SITE`].
    pub(crate) fn hash(&self, site: u32) -> Option<u64> {
        if site == 0 {
            return Some(UNKNOWN_SITE);
        }
        self.known.get(&site).map(|known| known.hash)
    }

    /// What each used site did, by number.
    pub(crate) fn by_site(&self) -> impl Iterator<Item = (u32, &Use)> {
        self.uses.iter().map(|(number, used)| (*number, used))
    }

    /// How many sites were used.
    pub(crate) fn len(&self) -> usize {
        self.uses.len()
    }

    /// How many sites are known.
    pub(crate) fn known_len(&self) -> usize {
        self.learned.len()
    }

    /// Sites that became known after the first `after`, with their stacks.
    pub(crate) fn stacks(&self, after: usize) -> impl Iterator<Item = (u64, &Arc<[SiteFrame]>)> {
        let later = self.learned.iter().skip(after).filter_map(|number| self.known.get(number));
        later.map(|known| (known.hash, &known.frames))
    }

    /// Adds the bytes born at each site, by hash, without mixed blocks.
    pub(crate) fn add_born_bytes(&self, sums: &mut HashMap<u64, u64>) {
        for (number, used) in self.uses.iter().filter(|(site, used)| **site != 0 || !used.blocks) {
            let hash = self.hash(*number).unwrap_or(UNKNOWN_SITE);
            add_bytes(sums, hash, used.born_bytes);
        }
    }

    /// Sets what fits, by site, as a scan found it. While a site's objects die one by one, the row
    /// keeps what fitted when they all lived: until less than half of those bytes are left.
    pub(crate) fn set_fits(&mut self, fits: impl Iterator<Item = (u32, Fits)>) {
        self.uses.values_mut().for_each(|used| used.fits = Fits::default());
        fits.for_each(|(site, fits)| self.use_of(site).fits.absorb(&fits));
        for used in self.uses.values_mut().filter(|used| used.fits.of_bytes > 0) {
            if used.fits.of_bytes >= used.last_fits.of_bytes / 2 {
                used.last_fits.clone_from(&used.fits);
            }
        }
    }

    /// True when a sample hit any of its objects.
    pub(crate) fn were_sampled(&self) -> bool {
        self.uses.values().any(|used| used.samples > 0)
    }

    /// Sets what lives, by site, as a scan counted it.
    pub(crate) fn set_live(&mut self, live: impl Iterator<Item = (u32, LiveUse)>, now_ms: u64) {
        let before_ms = self.scanned_ms.replace(now_ms);
        let seconds = now_ms.saturating_sub(before_ms.unwrap_or(now_ms)) as f64 / 1e3;
        for used in self.uses.values_mut() {
            used.live_bytes = 0;
            used.heat = 0.0;
            used.nodes.clear();
        }
        for (site, live) in live {
            let used = self.use_of(site);
            used.live_bytes += live.bytes;
            used.heat += live.heat;
            used.within.add(&live.largest, seconds.max(SCAN_S_MIN));
            for (node, bytes) in live.nodes {
                *used.nodes.entry(node).or_default() += bytes;
            }
        }
        for used in self.uses.values_mut() {
            used.peak_bytes = used.peak_bytes.max(used.live_bytes);
            used.heat_max = used.heat_max.max(used.heat);
            if !used.nodes.is_empty() {
                used.last_nodes.clone_from(&used.nodes);
            }
        }
    }
}

impl Drop for ClientUses {
    fn drop(&mut self) {
        self.allowance.give_back(self.taken_bytes);
    }
}

/// The module of a frame in generated code, or in a module that the session does not describe.
fn no_module() -> (Arc<Path>, Arc<[u8]>) {
    (Path::new("").into(), [].into())
}

/// Programs state sizes, so that a sum may be anything: it ends at the largest number.
pub(super) fn add_bytes(sums: &mut HashMap<u64, u64>, hash: u64, bytes: u64) {
    let sum = sums.entry(hash).or_default();
    *sum = sum.saturating_add(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Account;

    #[test]
    fn a_fit_outlives_objects_that_die_one_by_one() {
        let mut uses = ClientUses::new(Account::new(1 << 20, 1 << 20).allowance());
        for (of_bytes, expect) in [(64, 64), (40, 40), (10, 40), (0, 40), (80, 80)] {
            uses.use_of(1);
            uses.set_fits([(1, Fits { of_bytes, ..Fits::default() })].into_iter());
            assert_eq!(uses.use_of(1).last_fits.of_bytes, expect);
        }
    }
}
