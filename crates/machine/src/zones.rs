//! Zones of the machine's nodes, as the kernel counts them.
//! In: the text of `/proc/zoneinfo`. Out: [`Zone`]s, in OS pages. Knows nothing of what a count is
//! for; what is missing or no number is 0.

use crate::machine::NodeId;

/// A part of a node's memory with watermarks of its own. All figures are OS pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Whose it is.
    pub node: NodeId,
    /// Free.
    pub free: u64,
    /// On the CPUs' own lists (per-CPU pagesets).
    pub listed: u64,
    /// How many an empty list takes from the zone at first (pageset's batch); of CPUs that differ,
    /// the most.
    pub batch: u64,
    /// The minimum watermark: below it ordinary allocations and moves are refused.
    pub min: u64,
    /// The low watermark: below it ordinary allocations go to the next node.
    pub low: u64,
    /// The high watermark: the kernel reclaims up to it, and by itself migrates nothing to a zone
    /// below it.
    pub high: u64,
    /// The zone's `lowmem_reserve`: kept for allocations that can use no other zone.
    pub reserve: u64,
    /// Memory it has.
    pub managed: u64,
    /// Number of the first one.
    pub start: u64,
    /// From the first to the last, with holes.
    pub spanned: u64,
}

impl Zone {
    /// All zones; those of a node without a number are left out.
    pub fn all(zoneinfo: &str) -> Vec<Zone> {
        let mut zones: Vec<Option<Zone>> = Vec::new();
        for line in zoneinfo.lines() {
            let words: Vec<&str> =
                line.split([' ', ',', '(', ')', '\t']).filter(|word| !word.is_empty()).collect();
            if let ["Node", node, "zone", ..] = words[..] {
                zones.push(node.parse().ok().map(|number| Zone::of(NodeId(number))));
                continue;
            }
            let Some(Some(zone)) = zones.last_mut() else { continue };
            let number = |text: &str| text.parse().unwrap_or(0);
            match words[..] {
                ["pages", "free", count] => zone.free = number(count),
                ["count:", count] => zone.listed += number(count),
                ["batch:", count] => zone.batch = zone.batch.max(number(count)),
                ["min", count] => zone.min = number(count),
                ["low", count] => zone.low = number(count),
                ["high", count] => zone.high = number(count),
                ["managed", count] => zone.managed = number(count),
                ["spanned", count] => zone.spanned = number(count),
                ["start_pfn:", count] => zone.start = number(count),
                ["protection:", ref rest @ ..] => {
                    zone.reserve = rest.iter().map(|text| number(text)).max().unwrap_or(0);
                }
                _ => {}
            }
        }
        zones.into_iter().flatten().collect()
    }

    fn of(node: NodeId) -> Zone {
        let [free, listed, batch, min, low, high, reserve, managed, start, spanned] = [0; 10];
        Zone { node, free, listed, batch, min, low, high, reserve, managed, start, spanned }
    }

    /// Bytes that ordinary allocations never get.
    pub fn floor(&self) -> u64 {
        self.low.saturating_add(self.reserve)
    }
}
