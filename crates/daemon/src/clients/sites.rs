//! What became of the objects of each site, dead ones included, over all processes.
//! In: births, samples, live extents by (client, site); clients that leave. Out: [`SiteRow`]s.
//! Knows nothing of names: rows carry frames.

use super::client_uses::{ClientUses, FRAME_BYTES, UNKNOWN_SITE, add_bytes};
use super::origin::Origin;
use super::sharers::Shared;
use super::site_use::{Fits, USE_BYTES, Use};
use crate::quota::{Account, Allowance};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tiercel_ledger::confidence::{self, Estimate, EvidenceOfAll, Ranking};
use tiercel_symbolize::SiteFrame;
use tiercel_wire::layout::OS_PAGE_BYTES;

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
pub struct ClientSites<'a> {
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
    allowances: HashMap<u32, Allowance>,
}

impl Sites {
    /// None have left yet.
    pub(crate) fn new(memory: Account) -> Sites {
        Sites { left: HashMap::new(), memory, allowances: HashMap::new() }
    }

    /// Keeps what a leaving client's sites did. Its objects are dead, and processes that come after
    /// it use the same memory again: peaks of departed clients are not added up.
    pub fn keep(&mut self, client: &ClientSites<'_>) {
        let mut gone = HashMap::new();
        merge_client(&mut gone, client);
        for row in gone.values_mut() {
            row.used.live_bytes = 0;
            row.used.heat = 0.0;
            row.used.nodes.clear();
            row.used.fits = Fits::default();
        }
        let allowance =
            self.allowances.entry(client.uid).or_insert_with(|| self.memory.allowance());
        merge_later(&mut self.left, gone, |row| {
            allowance.take(USE_BYTES + row.frames.len() * FRAME_BYTES)
        });
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
        present: impl Iterator<Item = ClientSites<'a>>,
        fast_bytes: u64,
    ) -> Vec<SiteRow> {
        let mut here = HashMap::new();
        for client in present {
            merge_client(&mut here, &client);
        }
        let mut rows = self.left.clone();
        merge_later(&mut rows, here, |_| true);
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

/// Adds what a client's sites did to what those of other present clients did.
fn merge_client(rows: &mut HashMap<SiteKey, SiteRow>, client: &ClientSites<'_>) {
    for (number, used) in client.uses.by_site() {
        let known = client.uses.site(number);
        let hash = known.map_or(UNKNOWN_SITE, |(hash, _)| hash);
        let row = rows.entry((client.uid, hash)).or_insert_with(|| SiteRow {
            hash,
            uid: client.uid,
            program: client.program.to_owned(),
            frames: known.map(|(_, frames)| Arc::clone(frames)).unwrap_or_default(),
            origin: client.uses.origins.of(number),
            ..SiteRow::default()
        });
        if number == 0 && used.blocks {
            row.shared.absorb(&client.uses.shared());
        }
        row.used.absorb(used);
        if used.peak_bytes == 0 {
            // No scan while it lived: at most what was born, at most all that the process had.
            row.used.peak_bytes += used.born_bytes.min(client.peak_bytes);
            row.used.peak_is_bound |= used.births > 1;
        }
    }
}

/// Merges rows of clients that came later. Rows that do not fit are merged into the unknown site of
/// their user.
fn merge_later(
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

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_wire::client::SessionBuilder;
    use tiercel_wire::{Frame as WireFrame, Session, Site};

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

    /// What a client did that used so many sites, with the hashes from `first` on.
    fn uses(allowance: Allowance, first: u64, count: u32) -> ClientUses {
        let session = SessionBuilder::new().build().unwrap();
        let mut uses = ClientUses::new(allowance);
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

    #[test]
    fn a_peak_that_no_scan_saw_is_known_as_a_bound() {
        let there = Account::new(400_000, 100_000);
        let mut uses = uses(there.allowance(), 0, 2);
        (0..9).for_each(|_| uses.born(1, 1, 4096, false));
        let sites = Sites::new(Account::new(400_000, 100_000));
        let client = ClientSites { peak_bytes: 8192, ..present(0, &uses) };
        let mut rows = sites.rows(std::iter::once(client), 0);
        rows.sort_by_key(|row| row.hash);
        let peaks = rows.iter().map(|row| (row.used.peak_bytes, row.used.peak_is_bound));
        // Ten in turns, and a single one.
        assert_eq!(peaks.collect::<Vec<_>>(), [(8192, true), (4096, false)]);
    }

    fn present(uid: u32, uses: &ClientUses) -> ClientSites<'_> {
        ClientSites { uid, program: "p", uses, peak_bytes: 0 }
    }

    #[test]
    fn sites_of_one_user_are_bounded_in_bytes_and_change_nothing_of_another() {
        let (there, gone) = (Account::new(400_000, 100_000), Account::new(400_000, 100_000));
        let mut sites = Sites::new(gone);
        let honest = uses(there.allowance(), 0, 10);
        let hostile = there.allowance();
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
