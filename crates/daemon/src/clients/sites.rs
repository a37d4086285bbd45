//! What became of the objects of each site, dead ones included, over all processes.
//! In: births, samples, live extents by (client, site); clients that leave. Out: [`SiteRow`]s.
//! Knows nothing of names: rows carry frames. Long, because what a client does and what is kept of
//! it are merged by the same rules.

use super::live::LiveUse;
use super::origin::{Origin, Origins};
use super::sharers::{Shared, Sharer, most_sharing};
use super::site_use::{Fits, USE_BYTES, Use};
use crate::quota::{Account, Share};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;
use tiercel_ledger::confidence::{self, Estimate, Evidence, EvidenceOfAll, Ranking};
use tiercel_symbolize::SiteFrame;
use tiercel_wire::layout::{OS_PAGE_BYTES, SITES_NAMED};
use tiercel_wire::{AccessKind, Frame, Sample, Session};

/// What a frame of its stack takes, bytes.
const FRAME_BYTES: usize = size_of::<SiteFrame>();

/// What a module takes, bytes: a path (224) and a build-id (20) with their headers.
const MODULE_BYTES: usize = 320;

/// Hash of the row for objects without a site.
pub const UNKNOWN_SITE: u64 = 0;

/// The uses of one client, by its own site numbers. What its user's share of memory has no room for
/// is counted as the unknown site's.
#[derive(Debug)]
pub struct ClientUses {
    share: Share,
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
}

/// A site as its session describes it.
#[derive(Clone, Debug)]
struct Known {
    hash: u64,
    frames: Arc<[SiteFrame]>,
}

impl ClientUses {
    /// Of a client that has used nothing yet.
    pub(crate) fn new(share: Share) -> ClientUses {
        ClientUses {
            share,
            taken_bytes: 0,
            uses: HashMap::new(),
            known: HashMap::new(),
            learned: Vec::new(),
            mixed: Default::default(),
            modules: HashMap::new(),
            sampled: Vec::new(),
            origins: Origins::default(),
        }
    }

    /// The use of `site`. A number beyond the client's site table, or beyond its user's share of
    /// memory, becomes the unknown site.
    pub fn of(&mut self, site: u32) -> &mut Use {
        let is_new = site != 0 && !self.uses.contains_key(&site);
        let is_foreign = site >= self.origins.end();
        let site = if is_new && (is_foreign || !self.take(USE_BYTES)) { 0 } else { site };
        self.uses.entry(site).or_default()
    }

    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let is_taken = self.share.take(bytes);
        self.taken_bytes += if is_taken { bytes } else { 0 };
        is_taken
    }

    /// Counts births and their bytes.
    pub fn born(&mut self, site: u32, births: u64, bytes: u64, is_block: bool) {
        let used = self.of(site);
        used.births += births;
        used.born_bytes = used.born_bytes.saturating_add(bytes);
        used.blocks |= is_block;
    }

    /// Counts a sample that hit an object of `site`.
    pub fn sampled(&mut self, site: u32, sample: &Sample) {
        let used = self.of(site);
        used.samples += 1;
        match sample.kind {
            AccessKind::Write => used.writes += u64::from(sample.weight),
            _ => used.reads += u64::from(sample.weight),
        }
        if used.evidence.add(f64::from(sample.weight)) {
            self.sampled.push(site);
        }
    }

    /// All samples that the sampler brought at one time were counted.
    pub(crate) fn end_round(&mut self, of_all: &EvidenceOfAll) {
        let mut sampled = std::mem::take(&mut self.sampled);
        sampled.retain(|site| self.of(*site).evidence.end_round(of_all));
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
            self.of(site).evidence.end();
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
            if !self.take(site.frames.len() * FRAME_BYTES) {
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
        let number = self.take(FRAME_BYTES + name.len()).then(|| self.origins.take_number())??;
        self.origins.name(number, name);
        self.known.insert(number, Known { hash, frames: [frame].into() });
        self.learned.push(number);
        Some(number)
    }

    /// Takes over the sites that another process knows, which forked this one.
    pub(super) fn inherit(&mut self, parent: &ClientUses) {
        for (number, known) in &parent.known {
            if self.take(known.frames.len() * FRAME_BYTES) {
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
    fn shared(&self) -> Shared {
        let sharer = |&(site, samples): &(u32, u64)| {
            let known = self.known.get(&site)?;
            Some(Sharer { hash: known.hash, frames: Arc::clone(&known.frames), samples })
        };
        Shared { sharers: self.mixed.0.iter().filter_map(sharer).collect(), samples: self.mixed.1 }
    }

    fn frame(&mut self, frame: Frame, session: &Session) -> SiteFrame {
        let module = frame.module.and_then(|number| {
            if !self.modules.contains_key(&number) && self.take(MODULE_BYTES) {
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
    pub(crate) fn site(&self, number: u32) -> Option<(u64, &[SiteFrame])> {
        self.known.get(&number).map(|known| (known.hash, &*known.frames))
    }

    /// Hash of a known site; number 0 is [`UNKNOWN_SITE`].
    pub(crate) fn hash(&self, site: u32) -> Option<u64> {
        if site == 0 {
            return Some(UNKNOWN_SITE);
        }
        self.known.get(&site).map(|known| known.hash)
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
        fits.for_each(|(site, fits)| self.of(site).fits.absorb(&fits));
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
    pub(crate) fn set_live(&mut self, live: impl Iterator<Item = (u32, LiveUse)>) {
        for used in self.uses.values_mut() {
            used.live_bytes = 0;
            used.heat = 0.0;
            used.nodes.clear();
        }
        for (site, live) in live {
            let used = self.of(site);
            used.live_bytes += live.bytes;
            used.heat += live.heat;
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
        self.share.give_back(self.taken_bytes);
    }
}

/// User and hash: a process may state any hash, but only among its own user's sites.
type SiteKey = (u32, u64);

/// One site over all processes of a user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SiteRow {
    /// Stable from run to run.
    pub hash: u64,
    /// The user whose processes allocated there. Symbols are read with this user's rights.
    pub uid: u32,
    /// Name of a program that allocated there.
    pub program: String,
    /// The stack, innermost first.
    pub frames: Arc<[SiteFrame]>,
    /// What made its objects.
    #[serde(default)]
    pub origin: Origin,
    /// What its objects did.
    pub used: Use,
    /// Among the sites that fill the fast budget best.
    pub deserves_fast: bool,
    /// Of the unknown site: who shares its blocks of small objects.
    #[serde(default, skip_serializing_if = "Shared::is_empty")]
    pub shared: Shared,
}

/// A client and what its sites did.
#[derive(Clone, Copy)]
pub struct Present<'a> {
    /// Whose process it is.
    pub uid: u32,
    /// Name of its program.
    pub program: &'a str,
    /// What its sites did; [`ClientUses::learn`] has been called.
    pub uses: &'a ClientUses,
    /// Most bytes that all its objects had at one time.
    pub peak_bytes: u64,
}

/// The sites of clients that have left; makes rows over these and the present ones. What a user's
/// share of memory has no room for is kept in the row of the user's unknown site, which is not
/// counted: at most 16 KiB for each user that was ever hosted, 8 stacks of sharers among them.
#[derive(Debug)]
pub struct Sites {
    left: HashMap<SiteKey, SiteRow>,
    memory: Account,
    shares: HashMap<u32, Share>,
}

impl Sites {
    /// None have left yet.
    pub(crate) fn new(memory: Account) -> Sites {
        Sites { left: HashMap::new(), memory, shares: HashMap::new() }
    }

    /// Keeps what a leaving client's sites did. Its objects are dead, and processes that come after
    /// it use the same memory again: peaks of departed clients are not added up.
    pub fn keep(&mut self, who: &Present<'_>) {
        let mut gone = HashMap::new();
        add(&mut gone, who);
        for row in gone.values_mut() {
            row.used.live_bytes = 0;
            row.used.heat = 0.0;
            row.used.nodes.clear();
            row.used.fits = Fits::default();
        }
        let share = self.shares.entry(who.uid).or_insert_with(|| self.memory.share());
        join(&mut self.left, gone, |row| share.take(USE_BYTES + row.frames.len() * FRAME_BYTES));
    }

    /// Bytes born at each site of clients that have left, by hash.
    pub(crate) fn born_bytes(&self) -> HashMap<u64, u64> {
        let is_counted = |row: &SiteRow| row.hash != UNKNOWN_SITE || !row.used.blocks;
        let rows = self.left.iter().filter(|(_, row)| is_counted(row));
        let mut bytes = HashMap::new();
        rows.for_each(|(&(_, hash), row)| add_bytes(&mut bytes, hash, row.used.born_bytes));
        bytes
    }

    /// All sites; those that deserve `fast_bytes` most are marked.
    pub fn rows<'a>(
        &self,
        present: impl Iterator<Item = Present<'a>>,
        fast_bytes: u64,
    ) -> Vec<SiteRow> {
        let mut here = HashMap::new();
        for who in present {
            add(&mut here, &who);
        }
        let mut rows = self.left.clone();
        join(&mut rows, here, |_| true);
        let mut rows: Vec<SiteRow> = rows.into_values().collect();
        mark_deserving(&mut rows, fast_bytes);
        rows
    }
}

/// States how sure the figures of rows are; how sure their order by accesses per byte is.
pub fn judge(rows: &mut [SiteRow], of_all: &EvidenceOfAll) -> Ranking {
    let bytes = |row: &SiteRow| row.used.peak_bytes.max(OS_PAGE_BYTES);
    let parts: Vec<_> = rows.iter().map(|row| (row.used.evidence, bytes(row))).collect();
    let (ranked, ranking) = confidence::rank(&parts, of_all);
    for (row, ranked) in rows.iter_mut().zip(ranked) {
        let used = &mut row.used;
        (used.share, used.settled) = (ranked.share, ranked.is_settled);
        let of = if used.live_bytes > 0 { used.heat } else { used.heat_max };
        let (low, high) = confidence::relative(&used.evidence, of_all);
        used.heat_range = Estimate { of, low: of * low, high: of * high };
    }
    ranking
}

/// Marks the sites that deserve fast memory: by what fits, where a scan found it out; else greedily
/// by accesses per byte, which is the best use of a budget when the pieces are small against it.
fn mark_deserving(rows: &mut [SiteRow], fast_bytes: u64) {
    rows.sort_by(|a, b| {
        b.used.density().total_cmp(&a.used.density()).then_with(|| a.hash.cmp(&b.hash))
    });
    let mut left = fast_bytes;
    for row in rows.iter_mut().filter(|row| row.used.samples > 0) {
        if row.used.peak_bytes <= left {
            left -= row.used.peak_bytes;
            row.deserves_fast = true;
        } else if left * 2 >= row.used.peak_bytes.min(fast_bytes) && left > 0 {
            // It is tiered by extent: at least half of it (or of the budget) fits.
            row.deserves_fast = true;
            left = 0;
        }
    }
    for row in rows.iter_mut().filter(|row| row.used.last_fits.of_bytes > 0) {
        row.deserves_fast = row.used.last_fits.bytes > 0;
    }
}

/// Programs state sizes, so that a sum may be anything: it ends at the largest number.
fn add_bytes(sums: &mut HashMap<u64, u64>, hash: u64, bytes: u64) {
    let sum = sums.entry(hash).or_default();
    *sum = sum.saturating_add(bytes);
}

/// Adds what a client's sites did to what those of other present clients did.
fn add(rows: &mut HashMap<SiteKey, SiteRow>, who: &Present<'_>) {
    for (number, used) in &who.uses.uses {
        let known = who.uses.known.get(number);
        let hash = known.map_or(UNKNOWN_SITE, |known| known.hash);
        let row = rows.entry((who.uid, hash)).or_insert_with(|| SiteRow {
            hash,
            uid: who.uid,
            program: who.program.to_owned(),
            frames: known.map(|known| Arc::clone(&known.frames)).unwrap_or_default(),
            origin: who.uses.origins.of(*number),
            ..SiteRow::default()
        });
        if *number == 0 && used.blocks {
            row.shared.absorb(&who.uses.shared());
        }
        row.used.absorb(used);
        if used.peak_bytes == 0 {
            // No scan while it lived: at most what was born, at most all that the process had.
            row.used.peak_bytes += used.born_bytes.min(who.peak_bytes);
        }
    }
}

/// Merges rows of clients that came later. Those that there is no room for become their user's
/// unknown site.
fn join(
    rows: &mut HashMap<SiteKey, SiteRow>,
    later: HashMap<SiteKey, SiteRow>,
    has_room: impl Fn(&SiteRow) -> bool,
) {
    for (mut key, mut row) in later {
        if key.1 != UNKNOWN_SITE && !rows.contains_key(&key) && !has_room(&row) {
            key.1 = UNKNOWN_SITE;
            (row.hash, row.frames, row.origin) = (UNKNOWN_SITE, [].into(), Origin::Call);
        }
        match rows.entry(key) {
            Entry::Vacant(entry) => drop(entry.insert(row)),
            Entry::Occupied(mut entry) => {
                entry.get_mut().shared.absorb(&row.shared);
                let used = &mut entry.get_mut().used;
                let peak_bytes = used.peak_bytes.max(row.used.peak_bytes);
                let fits = [&used.last_fits, &row.used.last_fits];
                let fits = fits.into_iter().max_by_key(|fits| fits.of_bytes).cloned();
                used.absorb(&row.used);
                used.peak_bytes = peak_bytes;
                used.last_fits = fits.unwrap_or_default();
            }
        }
    }
}

/// The module of a frame in generated code, or in a module that the session does not describe.
fn no_module() -> (Arc<Path>, Arc<[u8]>) {
    (Path::new("").into(), [].into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_wire::client::SessionBuilder;
    use tiercel_wire::{Frame as WireFrame, Site};

    fn row(hash: u64, peak_bytes: u64, reads: u64) -> SiteRow {
        let used = Use { peak_bytes, reads, samples: reads.min(1), ..Use::default() };
        SiteRow { hash, program: "p".into(), used, ..SiteRow::default() }
    }

    /// Hashes of those that deserve `fast` MiB; rows are (hash, MiB, accesses).
    fn check(fast: u64, rows: &[(u64, u64, u64)], expect: &[u64]) {
        let mut rows: Vec<_> = rows.iter().map(|&(h, mib, a)| row(h, mib << 20, a)).collect();
        mark_deserving(&mut rows, fast << 20);
        let got: Vec<u64> = rows.iter().filter(|r| r.deserves_fast).map(|r| r.hash).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn the_densest_sites_deserve_the_budget() {
        check(10, &[(1, 8, 10), (2, 4, 100), (3, 4, 50)], &[2, 3]);
        check(10, &[(1, 40, 1000), (2, 1, 1)], &[1]);
        check(10, &[(1, 4, 0)], &[]);
        check(0, &[(1, 4, 9)], &[]);
    }

    #[test]
    fn a_fit_scan_overrides_density() {
        let mut rows = vec![row(1, 4 << 20, 100), row(2, 40 << 20, 9)];
        rows[0].used.last_fits = Fits { of_bytes: 4 << 20, of_objects: 1, ..Fits::default() };
        let fits = Fits { bytes: 1 << 20, objects: 1, of_bytes: 40 << 20, of_objects: 40 };
        rows[1].used.last_fits = fits;
        mark_deserving(&mut rows, 4 << 20);
        assert_eq!(rows.iter().map(|row| row.deserves_fast).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_fit_outlives_objects_that_die_one_by_one() {
        let mut uses = ClientUses::new(Account::new(1 << 20, 1 << 20).share());
        for (of_bytes, expect) in [(64, 64), (40, 40), (10, 40), (0, 40), (80, 80)] {
            uses.of(1);
            uses.set_fits([(1, Fits { of_bytes, ..Fits::default() })].into_iter());
            assert_eq!(uses.of(1).last_fits.of_bytes, expect);
        }
    }

    /// What a client did that used so many sites, with the hashes from `first` on.
    fn uses(share: Share, first: u64, count: u32) -> ClientUses {
        let session = SessionBuilder::new().build().unwrap();
        let mut uses = ClientUses::new(share);
        for number in 1..=count {
            let frames = vec![WireFrame { module: None, offset: number.into() }; 30];
            session
                .put_site(
                    number,
                    &Site { hash: first + u64::from(number), frames, ..Site::default() },
                )
                .unwrap();
            uses.born(number, 1, 4096, false);
        }
        uses.learn(&Session::open(session.fd().unwrap()).unwrap());
        uses
    }

    fn present(uid: u32, uses: &ClientUses) -> Present<'_> {
        Present { uid, program: "p", uses, peak_bytes: 0 }
    }

    #[test]
    fn sites_of_one_user_are_bounded_in_bytes_and_change_nothing_of_another() {
        let (there, gone) = (Account::new(400_000, 100_000), Account::new(400_000, 100_000));
        let mut sites = Sites::new(gone);
        let honest = uses(there.share(), 0, 10);
        let hostile = there.share();
        // Many sites, some of them with the hashes of the other user's.
        let all: Vec<ClientUses> = (0..20).map(|nth| uses(hostile.clone(), nth * 5, 100)).collect();
        let used: usize = all.iter().map(ClientUses::len).sum();
        assert!(used * USE_BYTES <= 100_000 + 20 * USE_BYTES, "{used} sites");
        all.iter().for_each(|uses| sites.keep(&present(1001, uses)));
        sites.keep(&present(1000, &honest));
        let rows = sites.rows(std::iter::once(present(1000, &honest)), 0);
        let of = |uid| rows.iter().filter(move |row| row.uid == uid);
        let mut hashes: Vec<u64> = of(1000).map(|row| row.hash).collect();
        hashes.sort_unstable();
        assert_eq!(hashes, (1..=10).collect::<Vec<_>>());
        assert!(of(1000).all(|row| row.used.births == 2 && row.frames.len() == 30));
        assert_eq!(of(1001).map(|row| row.used.births).sum::<u64>(), 2000, "none is lost");
        // What its processes held the user may use again.
        drop(all);
        assert_eq!(uses(hostile, 0, 10).known_len(), 10);
    }
}
