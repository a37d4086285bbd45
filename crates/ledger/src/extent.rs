//! What readers of the ledger see: [`Extent`], [`Residency`], [`Range`].
//! In: nothing. Out: plain data. Knows nothing of how the ledger keeps it.

use tiercel_machine::NodeId;
use tiercel_wire::Version;

/// For so long, at least and at most, it is believed where an extent was found, milliseconds. At
/// least: the shortest tick. At most: chosen, not measured; what the kernel moves is found then.
const BELIEVED_MS: (u64, u64) = (32, 10_000);

/// One piece of an object, tiered on its own. A copy: it does not change with the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct Extent<'a> {
    /// Names the extent while it lives; reused after its death.
    pub id: ExtentId,
    /// Process whose memory it is.
    pub pid: u32,
    /// The process's place in [`crate::Ledger::places`]: a small number for tables.
    pub place: u16,
    /// First byte.
    pub addr: u64,
    /// Bytes, a multiple of the OS page size.
    pub bytes: u64,
    /// Index into the process's site table, 0 = unknown.
    pub site: u32,
    /// The use of the address that lives.
    pub version: Version,
    /// First extent of its object.
    pub is_head: bool,
    /// Last extent of its object.
    pub is_last: bool,
    /// A block of small slots, not one allocation.
    pub is_block: bool,
    /// Made by mmap, served by the kernel.
    pub is_mapped: bool,
    /// Arena it was born in; `None` where the kernel places it.
    pub arena: Option<u8>,
    /// When the object was born, daemon's clock.
    pub born_ms: u64,
    /// Its averages began with those of its site's other objects, not from zero.
    pub is_warm: bool,
    /// When an access was last observed, daemon's clock; `None`: never.
    pub last_access_ms: Option<u64>,
    /// Weighted average of reads per second (MAT Eq. 1); accesses of unknown kind are reads.
    pub reads_per_s: f32,
    /// Weighted average of writes per second.
    pub writes_per_s: f32,
    /// Weighted average of stall time, nanoseconds per second: accesses x latency / 4.
    pub cost_ns_per_s: f32,
    /// Mean latency of its accesses, as sampled or assumed, nanoseconds; 0 without accesses.
    pub latency_ns: f32,
    /// Rates hold as of this time (the end of the last closed interval), daemon's clock.
    pub as_of_ms: u64,
    /// Where it lies.
    pub residency: Residency<'a>,
}

impl Extent<'_> {
    /// Reads and writes per second.
    #[inline]
    pub fn accesses_per_s(&self) -> f32 {
        self.reads_per_s + self.writes_per_s
    }

    /// True of a block that several sites share.
    #[inline]
    pub fn is_mixed(&self) -> bool {
        self.is_block && self.site == 0
    }

    /// Whether it is time to look again where it lies, as memory is touched after its birth and the
    /// kernel moves it as well. What was found at an age is believed for as long again; where the
    /// extent was never looked up, that is asked for elsewhere.
    pub fn is_residency_stale(&self, now_ms: u64) -> bool {
        self.residency.as_of_ms.is_some_and(|as_of_ms| {
            let (least_ms, most_ms) = BELIEVED_MS;
            let believed_ms = as_of_ms.saturating_sub(self.born_ms).clamp(least_ms, most_ms);
            now_ms.saturating_sub(as_of_ms) >= believed_ms
        })
    }

    /// Bytes it takes in memory: its resident bytes where they are known, else its size
    /// (MAT 3.3.1 finds the size a good estimate).
    #[inline]
    pub fn footprint_bytes(&self) -> u64 {
        if self.residency.as_of_ms.is_some() { self.residency.total_bytes() } else { self.bytes }
    }
}

/// Names an extent while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u32);

/// A range of one process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// Process.
    pub pid: u32,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Residency of an extent, as far as it was scanned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residency<'a> {
    /// Time of the scan on the daemon's clock; `None`: never scanned.
    pub as_of_ms: Option<u64>,
    /// Most bytes first.
    pub(crate) first: [(NodeId, u64); 2],
    pub(crate) more: &'a [(NodeId, u64)],
}

impl<'a> Residency<'a> {
    /// Nodes with bytes on them, in no order of merit.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u64)> + use<'a> {
        let all = self.first.into_iter().chain(self.more.iter().copied());
        all.filter(|&(_, bytes)| bytes > 0)
    }

    /// Bytes on one node.
    pub fn bytes_on(&self, node: NodeId) -> u64 {
        self.iter().filter(|(n, _)| *n == node).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes with physical memory behind them.
    #[inline]
    pub fn total_bytes(&self) -> u64 {
        let [(_, most), (_, second)] = self.first;
        most + second + self.more.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// The node with most of it; the lower number where two have as much. `None`: never scanned, or
    /// nothing is there.
    #[inline]
    pub fn main_node(&self) -> Option<NodeId> {
        // They are kept with most bytes first.
        let [(node, bytes), _] = self.first;
        (bytes > 0).then_some(node)
    }
}
