//! Records: the 32 bytes of a ring slot, and what they mean.
//! In: four words of a ring. Out: a [`Record`], or nothing when the words are invalid.
//! Knows nothing of where the words came from.

use std::cmp::Ordering;

use crate::access::{AccessedBy, Pattern};
use crate::bits::{high32, low8, low16, low32};
use crate::clock::Timeline;
use crate::layout::{ARENA_UNKNOWN, ARENAS_MAX, OS_PAGE_BYTES, SIZE_BITS};

/// A ring slot as it lies in memory: four little-endian words.
pub type RawRecord = [u64; 4];

/// Addresses end here: 57 bits is the widest user address space of the machines we know.
pub(crate) const ADDR_END: u64 = 1 << 57;

/// Which use of an address a record is about; orders all uses of one address.
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

/// The kind of object that a record is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// A block of small slots, not one allocation.
    pub const BLOCK: Flags = Flags(1);
    /// Made by mmap, served by the kernel.
    pub const MAPPED: Flags = Flags(1 << 1);
    /// Born by a realloc that moved; the old address dies in the next record.
    pub const CONTINUED: Flags = Flags(1 << 2);
    /// Most of its memory was never used before: the kernel zeroes it when it is touched.
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
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
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
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
    },
    /// An object grew or shrank in place.
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
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
    },
    /// This range left whatever mapped objects it overlapped.
    Cut {
        /// First byte.
        addr: u64,
        /// Bytes, a multiple of an OS page.
        bytes: u64,
        /// Objects with a newer version are not touched.
        version: Version,
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
    },
    /// The program entered a phase.
    Phase {
        /// Its number.
        number: u64,
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
    },
    /// The process is about to exec.
    Exec {
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
    },
    /// The process leaves in an orderly way.
    Exit {
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
    },
    /// The object that was born last at this address shows memory that others may show too.
    Share {
        /// First byte of the object.
        addr: u64,
        /// A name of that memory, the same in all processes of a user.
        share: u64,
        /// The object's use of the address.
        version: Version,
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
    },
    /// The first part of the object that was born last at this address will be in an arena when it
    /// is touched; a budget and no plan ended it there.
    Head {
        /// First byte of the object.
        addr: u64,
        /// Bytes of the part, a multiple of an OS page.
        bytes: u64,
        /// The object's use of the address.
        version: Version,
        /// The arena, which was charged.
        arena: u8,
        /// Daemon's clock, nanoseconds.
        time_ns: u64,
    },
    /// Compiled code missed the caches of the model, in one OS page.
    Misses {
        /// First byte of the OS page.
        addr: u64,
        /// Loads that missed.
        reads: u32,
        /// Stores that missed.
        writes: u32,
        /// Lines that stores made dirty.
        dirtied: u32,
        /// The code that missed last; `None`: it has no number.
        by: Option<AccessedBy>,
        /// The thread; 0 until a session that knows it fills it in.
        tid: u32,
        /// When the last of them was, daemon's clock, nanoseconds.
        time_ns: u64,
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
const SHARE: u8 = 8;
const HEAD: u8 = 9;
const MISSES: u8 = 10;

/// TCL_TICKS of its flags.
const TICKS: u8 = 1 << 7;

impl Record {
    /// Decodes a ring slot. `None` when the words are no valid record.
    #[must_use]
    pub fn decode(raw: &RawRecord, timeline: &Timeline) -> Option<Record> {
        let fields = Fields::split(raw, timeline);
        let Fields { addr, bytes, site, version, arena, flags, time_ns, kind } = fields;
        match kind {
            BORN if fields.is_range() => {
                Some(Record::Born { addr, bytes, site, version, arena, flags, time_ns })
            }
            DIED if fields.is_range() => {
                Some(Record::Died { addr, bytes, version, flags, time_ns })
            }
            RESIZED if fields.is_range() => {
                Some(Record::Resized { addr, bytes, site, version, arena, flags, time_ns })
            }
            CUT if fields.is_range() => Some(Record::Cut { addr, bytes, version, time_ns }),
            PHASE => Some(Record::Phase { number: addr, time_ns }),
            EXEC => Some(Record::Exec { time_ns }),
            EXIT => Some(Record::Exit { time_ns }),
            SHARE if bytes != 0 => Some(Record::Share { addr, share: bytes, version, time_ns }),
            HEAD if fields.is_range() => {
                Some(Record::Head { addr, bytes, version, arena: arena?, time_ns })
            }
            MISSES if is_object_range(addr, OS_PAGE_BYTES) => Some(Record::Misses {
                addr,
                reads: low32(raw[1]),
                writes: high32(raw[1]),
                dirtied: version.carve,
                by: accessed_by(site, version.generation),
                tid: 0,
                time_ns,
            }),
            _ => None,
        }
    }

    /// The same, by a thread, where that matters.
    pub(crate) fn of_thread(mut self, thread: u32) -> Record {
        if let Record::Misses { tid, .. } = &mut self {
            *tid = thread;
        }
        self
    }

    /// When it happened: nanoseconds of the daemon's clock.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        match *self {
            Record::Born { time_ns, .. }
            | Record::Died { time_ns, .. }
            | Record::Resized { time_ns, .. }
            | Record::Cut { time_ns, .. }
            | Record::Phase { time_ns, .. }
            | Record::Exec { time_ns }
            | Record::Exit { time_ns }
            | Record::Share { time_ns, .. }
            | Record::Head { time_ns, .. }
            | Record::Misses { time_ns, .. } => time_ns,
        }
    }

    /// Encodes as the runtime would write it where the daemon's clock began with CLOCK_MONOTONIC.
    #[must_use]
    pub fn encode(&self) -> RawRecord {
        let blank = Fields::default();
        let fields = match *self {
            Record::Born { addr, bytes, site, version, arena, flags, time_ns } => {
                Fields { addr, bytes, site, version, arena, flags, time_ns, kind: BORN }
            }
            Record::Died { addr, bytes, version, flags, time_ns } => {
                Fields { addr, bytes, version, flags, time_ns, kind: DIED, ..blank }
            }
            Record::Resized { addr, bytes, site, version, arena, flags, time_ns } => {
                Fields { addr, bytes, site, version, arena, flags, time_ns, kind: RESIZED }
            }
            Record::Cut { addr, bytes, version, time_ns } => {
                Fields { addr, bytes, version, time_ns, kind: CUT, ..blank }
            }
            Record::Phase { number, time_ns } => {
                Fields { addr: number, time_ns, kind: PHASE, ..blank }
            }
            Record::Exec { time_ns } => Fields { time_ns, kind: EXEC, ..blank },
            Record::Exit { time_ns } => Fields { time_ns, kind: EXIT, ..blank },
            Record::Share { addr, share, version, time_ns } => {
                Fields { addr, bytes: share, version, time_ns, kind: SHARE, ..blank }
            }
            Record::Head { addr, bytes, version, arena, time_ns } => {
                let arena = Some(arena);
                Fields { addr, bytes, version, arena, time_ns, kind: HEAD, ..blank }
            }
            Record::Misses { addr, reads, writes, dirtied, by, time_ns, .. } => {
                let by = by.unwrap_or(AccessedBy { number: 0, pattern: Pattern::Random });
                let version = Version { carve: dirtied, generation: by.pattern as u16 };
                let site = by.number.into();
                let fields = Fields { addr, site, version, time_ns, kind: MISSES, ..blank };
                let [addr, _, site_carve, rest] = fields.join();
                return [addr, u64::from(reads) | u64::from(writes) << 32, site_carve, rest];
            }
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
    time_ns: u64,
    kind: u8,
}

impl Fields {
    fn split(raw: &RawRecord, timeline: &Timeline) -> Fields {
        let [addr, size, site_carve, rest] = *raw;
        let time = u64::from(low32(rest)) | u64::from(low16(site_carve >> 16)) << 32;
        Fields {
            addr,
            bytes: size & ((1 << SIZE_BITS) - 1),
            site: low16(site_carve).into(),
            version: Version { carve: high32(site_carve), generation: low16(rest >> 32) },
            arena: arena_from_wire(low8(size >> SIZE_BITS)),
            flags: Flags::from_wire(low8(rest >> 56)),
            time_ns: timeline.instant(time, low8(rest >> 56) & TICKS != 0),
            kind: low8(rest >> 48),
        }
    }

    fn join(&self) -> RawRecord {
        let arena = u64::from(self.arena.unwrap_or(ARENA_UNKNOWN));
        [
            self.addr,
            self.bytes | arena << SIZE_BITS,
            u64::from(low16(self.site.into()))
                | u64::from(low16(self.time_ns >> 32)) << 16
                | u64::from(self.version.carve) << 32,
            u64::from(low32(self.time_ns))
                | u64::from(self.version.generation) << 32
                | u64::from(self.kind) << 48
                | u64::from(self.flags.0) << 56,
        ]
    }

    fn is_range(&self) -> bool {
        is_object_range(self.addr, self.bytes)
    }
}

/// Number 0 is none; an unknown pattern is none that the code shows.
fn accessed_by(number: u32, pattern: u16) -> Option<AccessedBy> {
    let pattern = Pattern::ALL.get(usize::from(pattern)).copied().unwrap_or_default();
    let number = u16::try_from(number).ok().filter(|number| *number > 0)?;
    Some(AccessedBy { number, pattern })
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
        (range, 0u32..1 << 16, version, arena, 0u8..8, 1u64..1 << 47, 0u8..10).prop_map(
            |((addr, bytes), site, version, arena, flags, time_ns, pick)| {
                let flags = Flags(flags);
                match pick {
                    0 => Record::Born { addr, bytes, site, version, arena, flags, time_ns },
                    1 => Record::Died { addr, bytes, version, flags, time_ns },
                    2 => Record::Resized { addr, bytes, site, version, arena, flags, time_ns },
                    3 => Record::Cut { addr, bytes, version, time_ns },
                    4 => Record::Phase { number: addr, time_ns },
                    5 => Record::Exec { time_ns },
                    6 => Record::Share { addr, share: bytes, version, time_ns },
                    8 => {
                        let (reads, dirtied) = (version.carve, site);
                        let writes = version.carve.rotate_left(9);
                        let by = accessed_by(site, version.generation % 5);
                        Record::Misses { addr, reads, writes, dirtied, by, tid: 0, time_ns }
                    }
                    7 => {
                        let arena = arena.unwrap_or(0);
                        Record::Head { addr, bytes, version, arena, time_ns }
                    }
                    _ => Record::Exit { time_ns },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(record in any_record()) {
            prop_assert_eq!(Record::decode(&record.encode(), &Timeline::at(1 << 47)), Some(record));
        }

        #[test]
        fn any_words_decode_to_valid_ranges_or_nothing(raw in any::<[u64; 4]>(), clock: u64) {
            if let Some(
                Record::Born { addr, bytes, .. }
                | Record::Died { addr, bytes, .. }
                | Record::Resized { addr, bytes, .. }
                | Record::Cut { addr, bytes, .. },
            ) = Record::decode(&raw, &Timeline::at(clock))
            {
                prop_assert!(is_object_range(addr, bytes));
            }
        }
    }
}
