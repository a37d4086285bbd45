//! Residency of a running control group, and migration, as the kernel reports them.
//! In: the guest's file system. Out: [`Resident`], [`Moved`]. Knows nothing of programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::run_result::{Moved, Resident};

/// Bytes of an OS page: guests are x86-64, or arm64 with 4 KiB.
const OS_PAGE_BYTES: u64 = 4096;

/// Observes the residency of a control group's programs: of anonymous memory, and of shared memory
/// without a file, which holds the vregions of a heap.
#[derive(Debug, Default)]
pub(crate) struct ResidencyTracker {
    seen: Resident,
    shares: f64,
    found: u64,
    most: u64,
}

impl ResidencyTracker {
    /// Observes once. The kernel sums counters for the file; it walks no page table.
    pub(crate) fn observe(&mut self, group: &Path, fast_nodes: &[u16]) {
        let text = fs::read_to_string(group.join("memory.numa_stat")).unwrap_or_default();
        self.note(&text, fast_nodes);
    }

    fn note(&mut self, text: &str, fast_nodes: &[u16]) {
        let nodes = of_programs(text);
        let on = |are_fast: bool| -> u64 {
            nodes.iter().filter(|(n, _)| fast_nodes.contains(n) == are_fast).map(|(_, b)| b).sum()
        };
        let (fast, slow) = (on(true), on(false));
        self.seen.observations += 1;
        if fast + slow == 0 {
            return;
        }
        self.found += 1;
        self.shares += fast as f64 / (fast + slow) as f64;
        self.seen.fast_bytes_max = self.seen.fast_bytes_max.max(fast);
        // The program frees its memory at its end: the last observation of nearly all of it counts.
        self.most = self.most.max(fast + slow);
        if (fast + slow) * 10 >= self.most * 9 {
            (self.seen.fast_bytes, self.seen.slow_bytes) = (fast, slow);
            self.seen.node_bytes = nodes;
        }
    }

    /// The result of all observations.
    pub(crate) fn resident(self) -> Resident {
        let fast_share = if self.found == 0 { 0.0 } else { self.shares / self.found as f64 };
        Resident { fast_share, ..self.seen }
    }
}

/// Bytes of the lines `anon N0=4096 N1=0` and `shmem ...` by node.
fn of_programs(text: &str) -> BTreeMap<u16, u64> {
    let is_theirs = |line: &&str| line.starts_with("anon ") || line.starts_with("shmem ");
    let mut bytes = BTreeMap::new();
    for word in text.lines().filter(is_theirs).flat_map(str::split_whitespace) {
        let pair = word.strip_prefix('N').and_then(|word| word.split_once('='));
        let Some((node, count)) = pair else { continue };
        let (Ok(node), Ok(count)) = (node.parse::<u16>(), count.parse::<u64>()) else { continue };
        *bytes.entry(node).or_default() += count;
    }
    bytes
}

/// Counters of `/proc/vmstat`.
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// As they are now.
    pub(crate) fn read(root: &Path) -> Counters {
        Counters::parse(&fs::read_to_string(root.join("proc/vmstat")).unwrap_or_default())
    }

    fn parse(text: &str) -> Counters {
        let pair = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.trim().parse().ok()?))
        };
        Counters(text.lines().filter_map(pair).collect())
    }

    /// The difference since `before`.
    pub(crate) fn since(&self, before: &Counters) -> Moved {
        let count = |name: &str| {
            let at = |counters: &Counters| counters.0.get(name).copied().unwrap_or(0);
            at(self).saturating_sub(at(before))
        };
        let bytes =
            |names: &[&str]| names.iter().map(|name| count(name)).sum::<u64>() * OS_PAGE_BYTES;
        Moved {
            migrated_bytes: bytes(&["pgmigrate_success"]),
            failed_bytes: bytes(&["pgmigrate_fail"]),
            promoted_bytes: bytes(&["pgpromote_success"]),
            demoted_bytes: bytes(&["pgdemote_kswapd", "pgdemote_direct", "pgdemote_khugepaged"]),
            hint_faults: count("numa_hint_faults"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residency_is_measured_when_the_program_is_largest() {
        let mut tracker = ResidencyTracker::default();
        for text in [
            "anon N0=0 N1=0\nfile N0=9 N1=9\n",
            "anon N0=70 N1=25\nshmem N0=5 N1=0\n",
            "anon N0=50 N1=50\nanon_thp N0=7 N1=7\n",
            "anon N0=4 N1=0\n",
            "nothing",
        ] {
            tracker.note(text, &[0]);
        }
        let seen = tracker.resident();
        assert_eq!((seen.observations, seen.fast_bytes_max), (5, 75));
        assert_eq!((seen.fast_bytes, seen.slow_bytes), (50, 50));
        assert_eq!(seen.node_bytes, BTreeMap::from([(0, 50), (1, 50)]));
        assert!((seen.fast_share - (0.75 + 0.5 + 1.0) / 3.0).abs() < 1e-9, "{seen:?}");
    }

    #[test]
    fn counters_are_differences() {
        let before = Counters::parse("pgmigrate_success 10\nnuma_hint_faults 5\n");
        let after = Counters::parse(
            "pgmigrate_success 12\npgdemote_kswapd 1\npgdemote_direct 2\nnuma_hint_faults 9\n",
        );
        let moved = after.since(&before);
        assert_eq!((moved.migrated_bytes, moved.demoted_bytes), (8192, 12288));
        assert_eq!((moved.hint_faults, moved.promoted_bytes), (4, 0));
    }
}
