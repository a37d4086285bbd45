//! What `move_pages` grants on each node: how much can be moved there before it is refused.
//! In: the text of `/proc/zoneinfo`. Out: bytes. Knows nothing of who moves what.
//!
//! The kernel allocates the target of a move from one node only (`GFP_HIGHUSER_MOVABLE |
//! __GFP_THISNODE`), one OS page after another, and asks each zone before each:
//!
//! ```text
//!   free   .--------- high ---- low ---- min + protection ---- 0     per zone
//!   moves   granted             granted; |                 refused: no-memory
//!                               reclaim starts
//! ```
//! A zone cannot use another's memory, so what is left is added up zone by zone. OS pages on the
//! CPUs' own lists are not free to that test, but an allocation that passes it comes from the list
//! of its CPU. A list without movable memory is refilled by a batch, the next time by two, up to
//! 32. Near the mark one refill takes the zone below it, and then all is refused, whatever the list
//! has.
//! File cache is not counted: the kernel drops it only after the test has failed. Nor are blocks
//! that are set aside for urgent allocations, of which zoneinfo says nothing.

use std::collections::BTreeMap;

use crate::machine::NodeId;
use crate::zones::Zone;

/// The largest refill of a list, in batches (`CONFIG_PCP_BATCH_SCALE_MAX` is 5 by default).
const BATCHES_MAX: u64 = 1 << 5;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveRoom {
    nodes: BTreeMap<NodeId, Granted>,
}

/// What a node grants to moves, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Free above the mark below which moves are refused.
    pub bytes: u64,
    /// Of those, what moves get even if the next refill of a list is as large as can be.
    pub certain_bytes: u64,
    /// What they get if no allocations came before: then the first refill is the smallest.
    pub likely_bytes: u64,
    /// From that mark up to the low watermark, where nodes that programs have filled stay: moves
    /// that take these bytes start the kernel's reclaim.
    pub to_low_bytes: u64,
    /// From there up to the high watermark, from which on the kernel counts a node as balanced.
    pub to_high_bytes: u64,
}

impl MoveRoom {
    /// What a node grants; nothing on a node without zones.
    pub fn granted(&self, node: NodeId) -> Granted {
        self.nodes.get(&node).copied().unwrap_or_default()
    }

    /// Whether no zone of any node has memory: then what was read is not what the kernel has.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// With so many bytes until moves are refused, no watermarks and no lists.
    pub fn of_bytes(nodes: impl IntoIterator<Item = (NodeId, u64)>) -> MoveRoom {
        let granted = |bytes| Granted {
            bytes,
            certain_bytes: bytes,
            likely_bytes: bytes,
            ..Granted::default()
        };
        MoveRoom { nodes: nodes.into_iter().map(|(node, bytes)| (node, granted(bytes))).collect() }
    }

    /// By the text of `/proc/zoneinfo`, of a machine whose OS pages have so many bytes.
    pub fn of(zoneinfo: &str, os_page_bytes: u64) -> MoveRoom {
        let mut nodes: BTreeMap<NodeId, Granted> = BTreeMap::new();
        for zone in Zone::all(zoneinfo) {
            if zone.managed == 0 {
                continue;
            }
            let granted = nodes.entry(zone.node).or_default();
            let refused = zone.min.saturating_add(zone.reserve);
            if zone.managed <= refused {
                continue;
            }
            let add = |sum: &mut u64, os_pages: u64| {
                *sum = sum.saturating_add(os_pages.saturating_mul(os_page_bytes));
            };
            let free = zone.free.saturating_sub(refused);
            add(&mut granted.bytes, free);
            add(&mut granted.certain_bytes, free.saturating_sub(zone.batch.max(1) * BATCHES_MAX));
            add(&mut granted.likely_bytes, likely(free, zone.batch));
            add(&mut granted.to_low_bytes, zone.low.saturating_sub(zone.min));
            add(&mut granted.to_high_bytes, zone.high.saturating_sub(zone.min));
        }
        MoveRoom { nodes }
    }
}

/// OS pages of the refills, from the smallest on, that leave a zone above its mark, which has so
/// many free above it.
fn likely(free: u64, batch: u64) -> u64 {
    let batch = batch.max(1);
    let (mut refills, mut next) = (0, batch);
    while refills + next < free {
        refills += next;
        next = (2 * next).min(batch * BATCHES_MAX);
    }
    refills
}

#[cfg(test)]
mod tests {
    use super::*;

    const OS_PAGE: u64 = 4096;

    const ZONES: &str = "\
Node 0, zone      DMA
  pages free     3840
        boost    0
        min      66
        low      82
        high     98
        managed  3998
        protection: (0, 600, 700, 700, 0)
  pagesets
    cpu: 0
              count:    50
              high:     60
              batch:    63
              high_min: 60
    cpu: 1
              count:    0
              batch:    31
Node 0, zone    DMA32
  pages free     2700
        min      2749
        low      3436
        high     4123
        managed  90000
        protection: (0, 0, 0, 0, 0)
Node 1, zone      DMA
  pages free     3840
        min      10
        low      20
        high     30
        managed  3840
        protection: (0, 3840, 3840, 3840, 0)
Node 2, zone   Normal
  pages free     130
        min      100
        low      125
        high     150
        managed  30000
        protection: (0, 0, 0, 0, 0)
";

    #[test]
    fn each_zone_grants_what_is_above_its_own_minimum() {
        let room = MoveRoom::of(ZONES, OS_PAGE);
        let pages = |node| room.granted(NodeId(node)).bytes / OS_PAGE;
        // Zone DMA32 is 49 below its minimum, for which zone DMA does not pay.
        assert_eq!(pages(0), 3840 - 66 - 700);
        assert_eq!(pages(1), 0, "all of this zone is protected");
        assert_eq!(pages(2), 30);
        assert_eq!(pages(7), 0);
    }

    #[test]
    fn a_refill_must_not_pass_the_mark() {
        let cases = [(0, 0), (10, 0), (11, 10), (30, 10), (31, 30)];
        for (free, expected) in cases {
            assert_eq!(likely(free, 10), expected, "{free} free");
        }
        // Refills of 10, 20, 40, 80, 160, then 320 each.
        assert_eq!(likely(310 + 2 * 320 + 320, 10), 310 + 2 * 320);
        assert_eq!(likely(4, 0), 3, "without a figure as if it were one");
        let room = MoveRoom::of(ZONES, OS_PAGE);
        // Of 3074 in zone DMA: 63 + 126 + 252 + 504 + 1008.
        assert_eq!(room.granted(NodeId(0)).likely_bytes / OS_PAGE, 1953);
        // The largest refill is 32 times 63.
        assert_eq!(room.granted(NodeId(0)).certain_bytes / OS_PAGE, 3074 - 2016);
        assert_eq!(room.granted(NodeId(2)).certain_bytes, 0);
        assert_eq!(MoveRoom::of_bytes([(NodeId(0), 8)]).granted(NodeId(0)).certain_bytes, 8);
    }

    #[test]
    fn bands_are_those_of_zones_that_grant_anything() {
        let room = MoveRoom::of(ZONES, OS_PAGE);
        let bands = |node| {
            let granted = room.granted(NodeId(node));
            (granted.to_low_bytes / OS_PAGE, granted.to_high_bytes / OS_PAGE)
        };
        assert_eq!(bands(0), (82 - 66 + 3436 - 2749, 98 - 66 + 4123 - 2749));
        assert_eq!(bands(1), (0, 0));
        assert_eq!(bands(2), (25, 50));
    }

    #[test]
    fn what_cannot_be_read_grants_nothing() {
        assert_eq!(MoveRoom::of("Node x, zone DMA\nmin many\n", OS_PAGE), MoveRoom::default());
        assert_eq!(MoveRoom::of("", OS_PAGE).granted(NodeId(0)), Granted::default());
    }
}
