//! What earlier runs of a program learned: looked up before a run, added to after it.
//! In: a program, an engine. Out: births for the engine; a file of the user's. Knows nothing of how
//! births are decided, or of what a file holds.
//!
//! Nothing here keeps a program from running: what does not work is a remark.

use crate::engine::Engine;
use crate::program::find;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tiercel_daemon::{PlanChoice, PlanRole};
use tiercel_learned::{
    Births, Identity, Known, Memory, RunFigures, Store, StoreError, place, usual_folder,
};
use tiercel_machine::{Machine, NodeId, Room, Tier};
use tiercel_policy::Limit;
use twox_hash::xxhash3_128::Hasher;

/// Longest program without a build-id that is identified by its bytes: 0.1 s of reading.
const HASHED_BYTES_MAX: u64 = 256 << 20;

/// Part of the fastest memory that is left to what is no object: the program's stacks and code, the
/// runtime's tables, page tables. Chosen, not measured: one of the pieces that move as a whole.
const HELD_BACK_DIVISOR: u64 = 16;

/// A program, and where what is known of it is kept.
pub struct Learner {
    identity: Identity,
    program: String,
    folder: PathBuf,
}

/// What a run began with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recalled {
    /// Runs that it was learned from.
    pub runs: u64,
    /// When the last of them ended, seconds since 1970.
    pub updated_s: u64,
    /// Sites whose births it decides.
    pub sites: usize,
    /// Share of the accesses that fast memory should serve then, 0 to 1.
    pub fast_share: f64,
}

/// The user's folder.
pub fn folder() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name);
    usual_folder(of("XDG_DATA_HOME").as_deref(), of("HOME").as_deref())
}

/// Which build a file is; `None` where it cannot be read, or is too large to be identified.
pub fn identity(file: &Path) -> Option<Identity> {
    match tiercel_symbolize::build_id(file) {
        Some(id) => Identity::of_build_id(&id),
        None => Identity::of_hash(&hash(file)?.to_be_bytes()),
    }
}

/// XXH3 of a file's bytes: it distinguishes builds, and does not protect against forgery.
fn hash(file: &Path) -> Option<u128> {
    let mut file = std::fs::File::open(file).ok()?.take(HASHED_BYTES_MAX + 1);
    let (mut hasher, mut buffer) = (Hasher::new(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut buffer).ok()? {
            0 if file.limit() == 0 => return None,
            0 => return Some(hasher.finish_128()),
            bytes => hasher.write(&buffer[..bytes]),
        }
    }
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

impl Learner {
    /// `None` where the program is not found, or the user has no folder.
    pub fn of(program: &OsStr) -> Option<Learner> {
        let file = find(program, std::env::var_os("PATH").as_deref())?;
        let file = std::fs::canonicalize(&file).unwrap_or(file);
        let program = file.to_string_lossy().into_owned();
        Some(Learner { identity: identity(&file)?, program, folder: folder()? })
    }

    /// Lets the engine begin with what is known; what that is, if there is something to begin with.
    pub fn recall(&self, engine: &mut Engine, fast: Limit) -> Option<Recalled> {
        let known = match Store::open(&self.folder).and_then(|store| self.read(store.as_ref())) {
            Ok(known) => known?,
            Err(error) => {
                engine.remarks.push(format!("what earlier runs learned is not used: {error}"));
                return None;
            }
        };
        let (machine, is_modelled) = (&engine.parts.machine, engine.parts.mover.is_modelled());
        let memories = memories(machine, fast, known.peak_bytes, is_modelled);
        let Births { plan, fast_share } = place(&known, &machine.name, &memories)?;
        let sites = plan.sites.len();
        engine.config.plan =
            Some(PlanChoice { plan: Arc::new(plan), role: PlanRole::Prior { fast_share } });
        Some(Recalled { runs: known.runs, updated_s: known.updated_s, sites, fast_share })
    }

    fn read(&self, store: Option<&Store>) -> Result<Option<Known>, StoreError> {
        store.map_or(Ok(None), |store| store.read(&self.identity))
    }

    /// Adds what a run learned. A run without samples makes no folder.
    ///
    /// # Errors
    /// Where it is not kept.
    pub fn keep(&self, run: RunFigures) -> Result<(), StoreError> {
        if run.samples() <= 0.0 {
            return Ok(());
        }
        Store::make(&self.folder)?.absorb(&self.identity, &self.program, run, now_s())
    }
}

/// The machine's memories with the room that a program has in them, fastest first.
fn memories(machine: &Machine, fast: Limit, peak_bytes: u64, is_modelled: bool) -> Vec<Memory> {
    let os_page_bytes = rustix::param::page_size() as u64;
    let room = (!is_modelled).then(|| Room::of(Path::new("/"), os_page_bytes));
    let left = |node: &NodeId| room.as_ref().and_then(|room| room.left_bytes(*node));
    let memory = |(rank, tier): (usize, &Tier)| {
        let left: Option<u64> = tier.nodes.iter().map(left).sum();
        let bytes = tier.capacity_bytes.min(left.unwrap_or(u64::MAX));
        let bytes = if rank == 0 { fast.bytes(peak_bytes, bytes) } else { bytes };
        let named = tier.nodes.first().and_then(|node| machine.node(*node));
        let name = named.map(|node| node.label()).unwrap_or_default();
        Memory { name, nodes: tier.nodes.clone(), bytes: bytes - bytes / HELD_BACK_DIVISOR }
    };
    let tiers = machine.tiers();
    tiers.iter().enumerate().filter(|(_, tier)| !tier.nodes.is_empty()).map(memory).collect()
}

/// `3 runs, the last 2 hours ago`.
pub fn history(runs: u64, updated_s: u64, now_s: u64) -> String {
    let runs = crate::figures::plural(runs, "run", "runs");
    format!("{runs}, the last {} ago", age(now_s.saturating_sub(updated_s)))
}

/// A time in the largest unit that it has at least one of.
pub fn age(seconds: u64) -> String {
    const UNITS: [(u64, &str, &str); 4] = [
        (86_400, "day", "days"),
        (3_600, "hour", "hours"),
        (60, "minute", "minutes"),
        (1, "second", "seconds"),
    ];
    let unit = UNITS.iter().find(|(unit, ..)| seconds >= *unit).unwrap_or(&UNITS[3]);
    crate::figures::plural(seconds / unit.0, unit.1, unit.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_a_build_id_is_known_by_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| folder.path().join(name));
        std::fs::write(&a, "#!/bin/sh\n:\n").unwrap();
        std::fs::write(&b, "#!/bin/sh\n:\n").unwrap();
        std::fs::write(&c, "#!/bin/sh\ntrue\n").unwrap();
        let of = |path: &Path| identity(path).unwrap();
        assert!(of(&a) == of(&b) && of(&a) != of(&c), "wherever it lies");
        assert!(of(&a).as_str().starts_with("file-"));
        assert_eq!(identity(&folder.path().join("none")), None);
        let own = identity(Path::new("/proc/self/exe")).unwrap();
        assert!(own.as_str().starts_with("build-") || own.as_str().starts_with("file-"));
    }

    #[test]
    fn room_is_the_budget_and_at_most_what_there_is() {
        let machine = Machine::builtin("spr-cxl").unwrap().unwrap();
        let fast = |fast| memories(&machine, fast, 64 << 20, true)[0].bytes;
        assert_eq!(fast(Limit::Bytes(16 << 20)), 15 << 20);
        assert_eq!(fast(Limit::ShareOfPeak(0.5)), 30 << 20);
        let all = machine.tiers()[0].capacity_bytes;
        assert_eq!(fast(Limit::Capacity), all - all / 16);
        assert_eq!(fast(Limit::Bytes(u64::MAX)), all - all / 16);
    }

    #[test]
    fn ages_are_in_one_unit() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (119, "1 minute"),
            (7200, "2 hours"),
            (200_000, "2 days"),
        ] {
            assert_eq!(age(seconds), text);
        }
        assert_eq!(history(1, 100, 160), "1 run, the last 1 minute ago");
    }
}
