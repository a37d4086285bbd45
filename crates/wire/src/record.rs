//! Records: the 32 bytes of a ring slot, and what they mean.
//! In: four words out of a ring. Out: a [`Record`], or nothing when the words make no sense.
//! Knows nothing of where the words came from.

use std::cmp::Ordering;

use crate::bits::{high32, low8, low16, low32};
use crate::layout::{ARENA_UNKNOWN, ARENAS_MAX, OS_PAGE_BYTES, SIZE_BITS};

/// A ring slot as it lies in memory: four little-endian words.
pub type RawRecord = [u64; 4];

/// Addresses end here: 57 bits is the widest user address space of the machines we know.
pub(crate) const ADDR_END: u64 = 1 << 57;

/// Which use of an address a record speaks of; totally orders all uses of one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// Counts changes of shape of the address range (process-wide).
    pub carve: u32,
    /// Counts reuses of an unchanged shape.
    pub generation: u16,
}

impl Version {
    /// Orders two versions with wrap-around, `carve` first. Meaningful for versions less than half
    /// the counters' range apart, and so not an `Ord`: it is not transitive around the circle.
    #[must_use]
    pub fn cmp_wrapping(self, other: Self) -> Ordering {
        let carve = self.carve.wrapping_sub(other.carve).cast_signed();
        let generation = self.generation.wrapping_sub(other.generation).cast_signed();
        carve.cmp(&0).then(generation.cmp(&0))
    }

    /// True when `self` is a later use than `other`.
    #[must_use]
    pub fn is_newer_than(self, other: Self) -> bool {
        self.cmp_wrapping(other) == Ordering::Greater
    }
}

/// What kind of object a record speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// A block of small slots, not one allocation.
    pub const BLOCK: Flags = Flags(1);
    /// Made by mmap, served by the kernel.
    pub const MAPPED: Flags = Flags(1 << 1);
    /// Born by a realloc that moved; the old address dies in the next record.
    pub const CONTINUED: Flags = Flags(1 << 2);
    /// Nothing had most of its memory before: the kernel zeroes it when it is touched.
    pub const FRESH: Flags = Flags(1 << 3);

    // All of the above.
    const KNOWN: u8 = 0b1111;

    /// True when every bit of `other` is set.
    #[must_use]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn from_wire(bits: u8) -> Flags {
        Flags(bits & Self::KNOWN)
    }
}

/// What happened to an object, or to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An object lives from now on.
    Born {
        /// First byte.
        addr: u64,
        /// Bytes, a multiple of an OS page.
        bytes: u64,
        /// Index into the site table, 0 = unknown.
        site: u32,
        /// Which use of the address.
        version: Version,
        /// Arena it was born in; `None` where the kernel places it.
        arena: Option<u8>,
        /// Kind of object.
        flags: Flags,
        /// Session clock, milliseconds.
        time_ms: u64,
    },
    /// An object is gone. May arrive before its `Born`, from another thread's ring.
    Died {
        /// First byte.
        addr: u64,
        /// Bytes it had.
        bytes: u64,
        /// The use of the address that ends.
        version: Version,
        /// Kind of object.
        flags: Flags,
        /// Session clock, milliseconds.
        time_ms: u64,
    },
    /// An object grew or shrank where it stands.
    Resized {
        /// First byte.
        addr: u64,
        /// Bytes from now on, a multiple of an OS page.
        bytes: u64,
        /// Index into the site table, 0 = unknown.
        site: u32,
        /// Version from now on.
        version: Version,
        /// Arena; `None` where the kernel places it.
        arena: Option<u8>,
        /// Kind of object.
        flags: Flags,
        /// Session clock, milliseconds.
        time_ms: u64,
    },
    /// This range left whatever mapped objects it overlapped.
    Cut {
        /// First byte.
        addr: u64,
        /// Bytes, a multiple of an OS page.
        bytes: u64,
        /// Objects with a newer version are not touched.
        version: Version,
        /// Session clock, milliseconds.
        time_ms: u64,
    },
    /// The program entered a phase.
    Phase {
        /// Its number.
        number: u64,
        /// Session clock, milliseconds.
        time_ms: u64,
    },
    /// The process is about to exec.
    Exec {
        /// Session clock, milliseconds.
        time_ms: u64,
    },
    /// The process leaves in an orderly way.
    Exit {
        /// Session clock, milliseconds.
        time_ms: u64,
    },
}

// TCL_BORN and the kinds after it, of include/tiercel_wire.h.
const BORN: u8 = 1;
const DIED: u8 = 2;
const RESIZED: u8 = 3;
const CUT: u8 = 4;
const PHASE: u8 = 5;
const EXEC: u8 = 6;
const EXIT: u8 = 7;

impl Record {
    /// Decodes a ring slot. `clock_ms` is the session clock now: the record carries its low 32
    /// bits, which lie at most 24 days back. `None` when the words are no valid record.
    #[must_use]
    pub fn decode(raw: &RawRecord, clock_ms: u64) -> Option<Record> {
        let fields = Fields::split(raw, clock_ms);
        let Fields { addr, bytes, site, version, arena, flags, time_ms, kind } = fields;
        match kind {
            BORN if fields.is_range() => {
                Some(Record::Born { addr, bytes, site, version, arena, flags, time_ms })
            }
            DIED if fields.is_range() => {
                Some(Record::Died { addr, bytes, version, flags, time_ms })
            }
            RESIZED if fields.is_range() => {
                Some(Record::Resized { addr, bytes, site, version, arena, flags, time_ms })
            }
            CUT if fields.is_range() => Some(Record::Cut { addr, bytes, version, time_ms }),
            PHASE => Some(Record::Phase { number: addr, time_ms }),
            EXEC => Some(Record::Exec { time_ms }),
            EXIT => Some(Record::Exit { time_ms }),
            _ => None,
        }
    }

    /// When it happened, session clock, milliseconds.
    #[must_use]
    pub fn time_ms(&self) -> u64 {
        match *self {
            Record::Born { time_ms, .. }
            | Record::Died { time_ms, .. }
            | Record::Resized { time_ms, .. }
            | Record::Cut { time_ms, .. }
            | Record::Phase { time_ms, .. }
            | Record::Exec { time_ms }
            | Record::Exit { time_ms } => time_ms,
        }
    }

    /// Encodes as the runtime would write it.
    #[must_use]
    pub fn encode(&self) -> RawRecord {
        let blank = Fields::default();
        let fields = match *self {
            Record::Born { addr, bytes, site, version, arena, flags, time_ms } => {
                Fields { addr, bytes, site, version, arena, flags, time_ms, kind: BORN }
            }
            Record::Died { addr, bytes, version, flags, time_ms } => {
                Fields { addr, bytes, version, flags, time_ms, kind: DIED, ..blank }
            }
            Record::Resized { addr, bytes, site, version, arena, flags, time_ms } => {
                Fields { addr, bytes, site, version, arena, flags, time_ms, kind: RESIZED }
            }
            Record::Cut { addr, bytes, version, time_ms } => {
                Fields { addr, bytes, version, time_ms, kind: CUT, ..blank }
            }
            Record::Phase { number, time_ms } => {
                Fields { addr: number, time_ms, kind: PHASE, ..blank }
            }
            Record::Exec { time_ms } => Fields { time_ms, kind: EXEC, ..blank },
            Record::Exit { time_ms } => Fields { time_ms, kind: EXIT, ..blank },
        };
        fields.join()
    }
}

/// The fields of `tcl_record`, apart.
#[derive(Clone, Copy, Default)]
struct Fields {
    addr: u64,
    bytes: u64,
    site: u32,
    version: Version,
    arena: Option<u8>,
    flags: Flags,
    time_ms: u64,
    kind: u8,
}

impl Fields {
    fn split(raw: &RawRecord, clock_ms: u64) -> Fields {
        let [addr, size, site_carve, rest] = *raw;
        Fields {
            addr,
            bytes: size & ((1 << SIZE_BITS) - 1),
            site: low32(site_carve),
            version: Version { carve: high32(site_carve), generation: low16(rest >> 32) },
            arena: arena_from_wire(low8(size >> SIZE_BITS)),
            flags: Flags::from_wire(low8(rest >> 56)),
            time_ms: expand_time(low32(rest), clock_ms),
            kind: low8(rest >> 48),
        }
    }

    fn join(&self) -> RawRecord {
        let arena = u64::from(self.arena.unwrap_or(ARENA_UNKNOWN));
        [
            self.addr,
            self.bytes | arena << SIZE_BITS,
            u64::from(self.site) | u64::from(self.version.carve) << 32,
            u64::from(low32(self.time_ms))
                | u64::from(self.version.generation) << 32
                | u64::from(self.kind) << 48
                | u64::from(self.flags.0) << 56,
        ]
    }

    fn is_range(&self) -> bool {
        is_object_range(self.addr, self.bytes)
    }
}

/// True for a non-empty range of whole OS pages in user space.
pub(crate) fn is_object_range(addr: u64, bytes: u64) -> bool {
    addr != 0
        && addr.is_multiple_of(OS_PAGE_BYTES)
        && bytes != 0
        && bytes.is_multiple_of(OS_PAGE_BYTES)
        && addr.checked_add(bytes).is_some_and(|end| end <= ADDR_END)
}

/// The arena byte of a record or table entry; anything outside the control page's arenas is none.
pub(crate) fn arena_from_wire(byte: u8) -> Option<u8> {
    (usize::from(byte) < ARENAS_MAX).then_some(byte)
}

/// The full time of a record whose low 32 bits are `low`, at most half a turn before `clock_ms`;
/// a time in the future is now.
fn expand_time(low: u32, clock_ms: u64) -> u64 {
    let age = low32(clock_ms).wrapping_sub(low);
    if age > u32::MAX / 2 { clock_ms } else { clock_ms.saturating_sub(u64::from(age)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_order_around_the_wrap() {
        let v = |carve, generation| Version { carve, generation };
        assert!(v(0, 0).is_newer_than(v(u32::MAX, u16::MAX)));
        assert!(v(5, 0).is_newer_than(v(5, u16::MAX)));
        assert!(v(6, 0).is_newer_than(v(5, 9)));
        assert!(!v(5, 9).is_newer_than(v(6, 0)));
        assert!(!v(5, 9).is_newer_than(v(5, 9)));
    }

    #[test]
    fn a_record_time_is_expanded_against_the_clock() {
        assert_eq!(expand_time(7, 9), 7);
        assert_eq!(expand_time(u32::MAX, (1 << 32) + 4), (1 << 32) - 1);
        assert_eq!(expand_time(10, 9), 9, "the future is now");
    }

    #[test]
    fn ranges_that_no_object_can_have_are_refused() {
        for (addr, bytes) in
            [(0, 4096), (4096, 0), (4097, 4096), (4096, 1), (ADDR_END, 4096), (!4095, 4096)]
        {
            assert!(!is_object_range(addr, bytes), "{addr:#x} {bytes:#x}");
        }
        assert!(is_object_range(ADDR_END - 4096, 4096));
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let range = (1u64..1 << 40, 1u64..1 << 16).prop_map(|(a, b)| (a << 12, b << 12));
        let version = (any::<u32>(), any::<u16>())
            .prop_map(|(carve, generation)| Version { carve, generation });
        let arena = proptest::option::of(0u8..8);
        (range, any::<u32>(), version, arena, 0u8..8, 0u64..1 << 31, 0u8..7).prop_map(
            |((addr, bytes), site, version, arena, flags, time_ms, pick)| {
                let flags = Flags(flags);
                match pick {
                    0 => Record::Born { addr, bytes, site, version, arena, flags, time_ms },
                    1 => Record::Died { addr, bytes, version, flags, time_ms },
                    2 => Record::Resized { addr, bytes, site, version, arena, flags, time_ms },
                    3 => Record::Cut { addr, bytes, version, time_ms },
                    4 => Record::Phase { number: addr, time_ms },
                    5 => Record::Exec { time_ms },
                    _ => Record::Exit { time_ms },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(record in any_record()) {
            prop_assert_eq!(Record::decode(&record.encode(), 1 << 31), Some(record));
        }

        #[test]
        fn garbage_decodes_to_sane_ranges_or_nothing(raw in any::<[u64; 4]>(), clock: u64) {
            if let Some(
                Record::Born { addr, bytes, .. }
                | Record::Died { addr, bytes, .. }
                | Record::Resized { addr, bytes, .. }
                | Record::Cut { addr, bytes, .. },
            ) = Record::decode(&raw, clock)
            {
                prop_assert!(is_object_range(addr, bytes));
            }
        }
    }
}
