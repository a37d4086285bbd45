//! How much of a node of the best tier stays free, so that a promotion need not wait for a
//! demotion.
//! In: the size of units, CPUs. Out: a [`Reserve`]. Knows nothing of which node.

/// Units of a reserve as published, small and huge (AutoTiering 4.3).
const UNITS: u64 = 16;
const HUGE_UNITS: u64 = 4;
/// Units below which nothing is promoted out of it (AutoTiering 4.3: 4; its code has 3 for huge
/// ones, with 4 the reserve would be of no use).
const THRESHOLD: u64 = 4;
const HUGE_THRESHOLD: u64 = 3;
/// From these bytes on a unit is huge.
const HUGE_BYTES: u64 = 2 << 20;
const OS_PAGE_BYTES: u64 = 4096;

/// Bytes that are kept free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// When full.
    pub bytes: u64,
    /// Below this, nothing is promoted out of it before it is refilled.
    pub threshold_bytes: u64,
}

impl Reserve {
    /// As published, for units of this size.
    pub fn published(unit_bytes: u64) -> Reserve {
        let (units, threshold) = if unit_bytes >= HUGE_BYTES {
            (HUGE_UNITS, HUGE_THRESHOLD)
        } else {
            (UNITS, THRESHOLD)
        };
        Reserve { bytes: units * unit_bytes, threshold_bytes: threshold * unit_bytes }
    }

    /// For a mover that works on many units at once: as published for each CPU, and no less than
    /// what the kernel keeps free anyway; refilled at a quarter.
    pub fn for_batches(cpus: u64, kept_bytes: u64) -> Reserve {
        Reserve::of_bytes((UNITS * cpus * OS_PAGE_BYTES).max(kept_bytes))
    }

    /// So many bytes, refilled at a quarter.
    pub fn of_bytes(bytes: u64) -> Reserve {
        Reserve { bytes, threshold_bytes: bytes / UNITS * THRESHOLD }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sizes() {
        let pages =
            |reserve: Reserve, unit: u64| (reserve.bytes / unit, reserve.threshold_bytes / unit);
        assert_eq!(pages(Reserve::published(4096), 4096), (16, 4));
        assert_eq!(pages(Reserve::published(HUGE_BYTES), HUGE_BYTES), (4, 3));
        assert_eq!(pages(Reserve::for_batches(32, 0), 4096), (512, 128));
        assert_eq!(Reserve::for_batches(1, 8 << 20).bytes, 8 << 20);
    }
}
