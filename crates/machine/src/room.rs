//! How much of each node's memory a program could still get.
//! In: `/proc/zoneinfo` once, a node's meminfo at each question. Out: bytes.
//! Knows nothing of budgets, or of who wants memory.
//!
//! This is not the free memory: below each zone's low watermark and reserve an ordinary allocation
//! goes to the next node. The page cache counts as available, since the kernel drops it on demand.
//! What moves find is another question: see [`crate::MoveRoom`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::discover::{NODE_DIR, meminfo_bytes};
use crate::machine::NodeId;
use crate::zones::Zone;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Room {
    root: PathBuf,
    /// Bytes of each node that no program gets.
    floors: BTreeMap<NodeId, u64>,
}

impl Room {
    /// Of the machine below `root` (`/` for this one), whose OS pages have so many bytes. Where its
    /// watermarks cannot be read they count as zero.
    pub fn of(root: &Path, os_page_bytes: u64) -> Room {
        let zones = fs::read_to_string(root.join("proc/zoneinfo")).unwrap_or_default();
        let floors = by_node(&zones, |zone| zone.floor().min(zone.managed), os_page_bytes);
        Room { root: root.to_owned(), floors }
    }

    /// Bytes that are left on a node now; `None` where the kernel does not report it.
    pub fn left_bytes(&self, node: NodeId) -> Option<u64> {
        let path = self.root.join(format!("{NODE_DIR}/node{node}/meminfo"));
        let meminfo = fs::read_to_string(path).ok()?;
        let free = meminfo_bytes(&meminfo, "MemFree:")?;
        let of_files = ["Active(file):", "Inactive(file):"]
            .iter()
            .filter_map(|key| meminfo_bytes(&meminfo, key))
            .fold(0, u64::saturating_add);
        let floor = self.floors.get(&node).copied().unwrap_or(0);
        Some(free.saturating_add(of_files).saturating_sub(floor))
    }
}

/// The sum of a figure over each node's zones, as far as these have memory at all, bytes.
fn by_node(
    zoneinfo: &str,
    os_pages: impl Fn(&Zone) -> u64,
    os_page_bytes: u64,
) -> BTreeMap<NodeId, u64> {
    let mut sums: BTreeMap<NodeId, u64> = BTreeMap::new();
    for zone in Zone::all(zoneinfo) {
        let sum = sums.entry(zone.node).or_default();
        let bytes = if zone.managed == 0 { 0 } else { os_pages(&zone) };
        *sum = sum.saturating_add(bytes.saturating_mul(os_page_bytes));
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const OS_PAGE_BYTES: u64 = 4096;

    const ZONES: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 11
  pages free     3840
        boost    0
        min      66
        low      82
        high     98
        managed  3998
        protection: (0, 600, 700, 700, 0)
Node 0, zone    DMA32
  pages free     71967
        min      2749
        low      3436
        managed  90000
        protection: (0, 0, 0, 0, 0)
Node 1, zone   Device
  pages free     0
        low      5
        managed  0
        protection: (0, 0, 0, 0, 0)
";

    #[test]
    fn watermarks_and_reserves_are_no_room() {
        let floor = |zone: &Zone| zone.floor().min(zone.managed);
        let floors = by_node(ZONES, floor, OS_PAGE_BYTES);
        assert_eq!(floors[&NodeId(0)], (82 + 700 + 3436) * OS_PAGE_BYTES);
        assert_eq!(floors[&NodeId(1)], 0, "a zone without memory keeps none back");
        assert!(by_node("Node x, zone DMA\nlow many\n", floor, OS_PAGE_BYTES).is_empty());
    }

    #[test]
    fn what_is_left_is_free_or_of_files_above_the_floor() {
        let root = tempfile::tempdir().expect("a folder");
        let node = root.path().join(NODE_DIR).join("node0");
        fs::create_dir_all(&node).expect("made");
        fs::create_dir_all(root.path().join("proc")).expect("made");
        fs::write(root.path().join("proc/zoneinfo"), ZONES).expect("written");
        let meminfo = |free: u64, file: u64| {
            let text = format!(
                "Node 0 MemTotal: 400000 kB\nNode 0 MemFree: {free} kB\nNode 0 Active: 9 kB\n\
                 Node 0 Active(file): {file} kB\nNode 0 Inactive(file): {file} kB\n"
            );
            fs::write(node.join("meminfo"), text).expect("written");
            Room::of(root.path(), OS_PAGE_BYTES).left_bytes(NodeId(0))
        };
        let floor_kib = (82 + 700 + 3436) * 4;
        assert_eq!(meminfo(floor_kib + 100, 10), Some(120 << 10));
        assert_eq!(meminfo(floor_kib - 100, 10), Some(0));
        assert_eq!(Room::of(root.path(), OS_PAGE_BYTES).left_bytes(NodeId(1)), None);
        fs::write(node.join("meminfo"), "garbage").expect("written");
        assert_eq!(Room::of(root.path(), OS_PAGE_BYTES).left_bytes(NodeId(0)), None);
    }
}
