//! The area that a timed guest's emulator and the sampler in the guest share, as
//! `include/tiercel_emulator.h` lays it out. In: a file or a device's memory. Out: rings of
//! [`Observation`]s, control words. Knows nothing of QEMU or PCI. Neither side trusts the other:
//! whatever the area holds, every call returns in bounded time and none panics.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bits::{high32, index, low16, low32};
use crate::mapping::Mapping;
use crate::ring::Words;
use crate::{AccessKind, layout::OS_PAGE_BYTES};

/// "TCLE", little endian.
pub const MAGIC: u64 = 0x454c_4354;
/// Version of the layout; both sides must agree exactly.
pub const VERSION: u64 = 3;
/// Bytes of the area.
pub const AREA_BYTES: usize = 8 << 20;
/// Rings of the area.
pub const VCPUS_MAX: usize = 16;
/// Records of a ring.
pub const RING_RECORDS: usize = 4096;
/// Most misses per sample.
pub const PERIOD_MAX: u64 = 1 << 24;
/// Words of a record.
pub const RECORD_WORDS: usize = 8;

/// Offset of the emulator's control words.
pub const MAGIC_AT: usize = 0;
/// Offset of the version.
pub const VERSION_AT: usize = 8;
/// Offset of the number of rings in use.
pub const VCPUS_AT: usize = 16;
/// Offset of the guest's clock.
pub const CLOCK_AT: usize = 24;
/// Offset of the sampler's process.
pub const OWNER_AT: usize = 64;
/// Offset of the period.
pub const PERIOD_AT: usize = 72;
/// Offset of the position of a CPU's running task.
pub const CURRENT_AT: usize = 80;
/// Offset of the positions of a task's numbers.
pub const TASK_AT: usize = 88;
/// Offset of what the sampler requests besides misses.
pub const WANTS_AT: usize = 96;
/// Offset of the emulator's clock at the beginning of the sampler's.
pub const ORIGIN_AT: usize = 104;
/// Bytes of a block, for memories that read and write more than a line at once (Optane).
pub const BLOCK_BYTES: u64 = 256;
/// Recent blocks: as many as Optane's buffer of 16 KiB holds.
pub const BLOCKS: usize = 64;
/// Offset of the rings.
pub const RINGS_AT: usize = index(OS_PAGE_BYTES);
/// Bytes of a ring.
pub const RING_BYTES: usize = RING_SLOTS + RING_RECORDS * RECORD_WORDS * 8;
/// Offset of the records lost, in a ring.
pub const RING_LOST: usize = 8;
/// Offset of the records read, in a ring.
pub const RING_TAIL: usize = 64;
/// Offset of the records, in a ring.
pub const RING_SLOTS: usize = 4096;

/// A record as it is in the ring.
pub type RawObservation = [u64; RECORD_WORDS];
/// One virtual CPU's ring.
pub type Ring<'a> = Words<'a, AtomicU64, RECORD_WORDS>;

// Kinds, flags and requests as the emulator writes them; these values are the format.
const COUNT: u64 = 1;
const READ: u64 = 2;
const WRITE: u64 = 3;
const DIRTIED: u64 = 4;
const APART: u64 = 1;
const WANTS_DIRTIED: u64 = 1;
/// Outstanding misses are stated in hundredths.
const AT_ONCE_PARTS: f32 = 100.0;

/// One record: counts, and mostly a sampled miss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    /// The guest's clock, nanoseconds.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread; 0 if it is unknown.
    pub tid: u32,
    /// Misses of this process on this virtual CPU since the previous record.
    pub misses: u32,
    /// Instructions in user mode, likewise.
    pub instructions: u32,
    /// The sampled access; `None`: only counts.
    pub access: Option<Miss>,
}

/// An access that memory served, or a store that made a line dirty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Miss {
    /// Read, write, or [`AccessKind::Dirtied`].
    pub kind: AccessKind,
    /// Virtual address, bytes.
    pub addr: u64,
    /// Physical address, bytes.
    pub physical: u64,
    /// Virtual address of the instruction.
    pub instruction: u64,
    /// Time from the address to the data.
    pub latency_ns: u32,
    /// The node, as the guest's kernel numbers it.
    pub node: u16,
    /// Misses, or dirtied lines, that it represents.
    pub weight: u32,
    /// Mean outstanding misses in the preceding burst of 64, while there were any, to a hundredth,
    /// at most 655; `None`: unknown.
    pub at_once: Option<f32>,
    /// Its block was none of the last [`BLOCKS`] that misses were in.
    pub apart: bool,
}

impl Observation {
    /// As it is in the ring.
    pub fn encode(&self) -> RawObservation {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let mut raw = [0; RECORD_WORDS];
        raw[0] = self.time_ns;
        raw[4] = pair(self.pid, self.tid);
        raw[7] = pair(self.misses, self.instructions);
        let kind = match &self.access {
            None => COUNT,
            Some(miss) => {
                (raw[1], raw[2], raw[3]) = (miss.addr, miss.physical, miss.instruction);
                raw[5] = pair(miss.latency_ns, miss.weight);
                let at_once = miss.at_once.map_or(0, hundredths);
                let flags = u64::from(miss.apart) * APART;
                raw[6] = u64::from(miss.node) | flags << 24 | u64::from(at_once) << 32;
                match miss.kind {
                    AccessKind::Write => WRITE,
                    AccessKind::Dirtied => DIRTIED,
                    AccessKind::Read | AccessKind::Unknown => READ,
                }
            }
        };
        raw[6] |= kind << 16;
        raw
    }

    /// Reads a record; `None` if the emulator never writes such a record.
    pub fn decode(raw: &RawObservation) -> Option<Observation> {
        let (flags, at_once) = (raw[6] >> 24 & 0xFF, low16(raw[6] >> 32));
        let kind = match raw[6] >> 16 & 0xFF {
            COUNT => None,
            READ => Some(AccessKind::Read),
            WRITE => Some(AccessKind::Write),
            DIRTIED => Some(AccessKind::Dirtied),
            _ => return None,
        };
        if raw[6] >> 48 != 0 || flags & !APART != 0 {
            return None;
        }
        let access = kind.map(|kind| Miss {
            kind,
            addr: raw[1],
            physical: raw[2],
            instruction: raw[3],
            latency_ns: low32(raw[5]),
            weight: high32(raw[5]),
            node: low16(raw[6]),
            at_once: (at_once > 0).then(|| f32::from(at_once) / AT_ONCE_PARTS),
            apart: flags & APART != 0,
        });
        Some(Observation {
            time_ns: raw[0],
            pid: low32(raw[4]),
            tid: high32(raw[4]),
            misses: low32(raw[7]),
            instructions: high32(raw[7]),
            access,
        })
    }
}

/// Where a running task and its numbers are in the guest kernel's memory, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskOffsets {
    /// Offset of the running task's address in the per-CPU data.
    pub current: u64,
    /// Offset of the thread's number in a task.
    pub thread: u32,
    /// Offset of the process's number in a task.
    pub process: u32,
}

/// Why memory is not a valid sample area.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AreaError {
    /// Another device's, or an emulator that does not sample.
    #[error("it does not begin with the emulator's magic")]
    Magic,
    /// Another version's.
    #[error("the emulator has version {0} of the sample area, not {VERSION}")]
    Version(u64),
    /// Impossible.
    #[error("the emulator claims {0} virtual CPUs")]
    Vcpus(u64),
}

/// The area, mapped.
pub struct Area {
    map: Mapping,
}

impl Area {
    /// Maps the area; the caller knows that the file has [`AREA_BYTES`] and does not shrink.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn map(fd: impl AsFd) -> io::Result<Area> {
        Ok(Area { map: Mapping::new(fd, 0, AREA_BYTES)? })
    }

    /// The emulator: makes the area valid. It is zero before.
    pub fn publish(&self, vcpus: usize) {
        assert!(vcpus <= VCPUS_MAX, "{vcpus} virtual CPUs");
        self.map.word(VCPUS_AT).store(vcpus as u64, Ordering::Relaxed);
        self.map.word(VERSION_AT).store(VERSION, Ordering::Relaxed);
        // Pairs with the acquire in `check`.
        self.map.word(MAGIC_AT).store(MAGIC, Ordering::Release);
    }

    /// The sampler: checks that an emulator published the area. Returns the number of rings.
    ///
    /// # Errors
    /// What is wrong with the area.
    pub fn check(&self) -> Result<usize, AreaError> {
        if self.map.word(MAGIC_AT).load(Ordering::Acquire) != MAGIC {
            return Err(AreaError::Magic);
        }
        let version = self.map.word(VERSION_AT).load(Ordering::Relaxed);
        if version != VERSION {
            return Err(AreaError::Version(version));
        }
        let vcpus = self.map.word(VCPUS_AT).load(Ordering::Relaxed);
        match usize::try_from(vcpus) {
            Ok(vcpus @ 1..=VCPUS_MAX) => Ok(vcpus),
            _ => Err(AreaError::Vcpus(vcpus)),
        }
    }

    /// A virtual CPU's ring, below [`VCPUS_MAX`].
    pub fn ring(&self, vcpu: usize) -> Ring<'_> {
        assert!(vcpu < VCPUS_MAX, "ring {vcpu}");
        let at = RINGS_AT + vcpu * RING_BYTES;
        Words {
            head: self.map.word(at),
            lost: self.map.word(at + RING_LOST),
            tail: self.map.word(at + RING_TAIL),
            slots: self.map.words(at + RING_SLOTS, RING_RECORDS * RECORD_WORDS),
        }
    }

    /// The guest's clock as the emulator last wrote it, nanoseconds.
    pub fn clock_ns(&self) -> u64 {
        self.map.word(CLOCK_AT).load(Ordering::Relaxed)
    }

    /// The emulator: writes the clock.
    pub fn set_clock_ns(&self, now_ns: u64) {
        self.map.word(CLOCK_AT).store(now_ns, Ordering::Relaxed);
    }

    /// Misses per sample, at most [`PERIOD_MAX`]; `None`: no process samples.
    pub fn period(&self) -> Option<u64> {
        match self.map.word(PERIOD_AT).load(Ordering::Relaxed) {
            0 => None,
            period => Some(period.min(PERIOD_MAX)),
        }
    }

    /// The sampler: sets the misses per sample; `None` ends sampling.
    pub fn set_period(&self, period: Option<u64>) {
        let period = period.map_or(0, |period| period.clamp(1, PERIOD_MAX));
        self.map.word(PERIOD_AT).store(period, Ordering::Relaxed);
    }

    /// Whether lines that become dirty are reported as well.
    pub fn wants_dirtied(&self) -> bool {
        self.map.word(WANTS_AT).load(Ordering::Relaxed) & WANTS_DIRTIED != 0
    }

    /// The sampler: sets whether lines that become dirty are reported.
    pub fn set_wants_dirtied(&self, wants: bool) {
        self.map.word(WANTS_AT).store(u64::from(wants) * WANTS_DIRTIED, Ordering::Relaxed);
    }

    /// Offsets of a task's numbers; all zero before the sampler has set them.
    pub fn task_offsets(&self) -> TaskOffsets {
        let task = self.map.word(TASK_AT).load(Ordering::Relaxed);
        let current = self.map.word(CURRENT_AT).load(Ordering::Relaxed);
        TaskOffsets { current, thread: low32(task), process: high32(task) }
    }

    /// The sampler: sets where a task's numbers are, before it sets a period.
    pub fn set_task_offsets(&self, offsets: TaskOffsets) {
        let task = u64::from(offsets.thread) | u64::from(offsets.process) << 32;
        self.map.word(TASK_AT).store(task, Ordering::Relaxed);
        self.map.word(CURRENT_AT).store(offsets.current, Ordering::Relaxed);
    }

    /// The emulator's clock when the sampler's was 0, nanoseconds; `None`: it has not been stated.
    pub fn origin_ns(&self) -> Option<u64> {
        match self.map.word(ORIGIN_AT).load(Ordering::Relaxed) {
            0 => None,
            origin_ns => Some(origin_ns),
        }
    }

    /// The sampler: states what the emulator's clock was when its own was 0.
    pub fn set_origin_ns(&self, origin_ns: u64) {
        self.map.word(ORIGIN_AT).store(origin_ns, Ordering::Relaxed);
    }

    /// The process that samples; 0: none.
    pub fn owner(&self) -> u64 {
        self.map.word(OWNER_AT).load(Ordering::Acquire)
    }

    /// The sampler: takes the area over from `before`, or returns its current owner.
    ///
    /// # Errors
    /// The owner, if it is no longer `before`.
    pub fn take(&self, before: u64, owner: u64) -> Result<(), u64> {
        let word = self.map.word(OWNER_AT);
        let taken = word.compare_exchange(before, owner, Ordering::AcqRel, Ordering::Acquire);
        taken.map(|_| ())
    }
}

/// Outstanding misses in hundredths, clamped to what fits.
fn hundredths(at_once: f32) -> u16 {
    let parts = (at_once * AT_ONCE_PARTS).round().clamp(0.0, f32::from(u16::MAX));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
    let whole = parts as u16;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Cursor, WriteCursor, pull, push};
    use proptest::prelude::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn area() -> (File, Area) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(AREA_BYTES as u64).expect("sized");
        let area = Area::map(&file).expect("mapped");
        (file, area)
    }

    fn seen(area: &Area, vcpu: usize, cursor: &mut Cursor) -> Vec<Observation> {
        let mut out = Vec::new();
        pull(&area.ring(vcpu), cursor, 100, |raw| out.extend(Observation::decode(&raw)));
        out
    }

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let (file, emulator) = area();
        let sampler = Area::map(&file).expect("mapped twice");
        assert_eq!(sampler.check(), Err(AreaError::Magic));
        emulator.publish(2);
        assert_eq!(sampler.check(), Ok(2));
        assert_eq!(emulator.period(), None);
        sampler.set_period(Some(u64::MAX));
        assert_eq!(emulator.period(), Some(PERIOD_MAX));
        assert!(!emulator.wants_dirtied());
        sampler.set_wants_dirtied(true);
        assert!(emulator.wants_dirtied());
        let offsets = TaskOffsets { current: 1 << 40, thread: 7, process: u32::MAX };
        sampler.set_task_offsets(offsets);
        assert_eq!(emulator.task_offsets(), offsets);
        assert_eq!((sampler.take(0, 5), sampler.take(0, 6), sampler.take(5, 0)), {
            (Ok(()), Err(5), Ok(()))
        });
        let one = Observation { pid: 1, ..Observation::default() };
        let mut writer = WriteCursor::default();
        assert!(push(&emulator.ring(1), &mut writer, &one.encode()));
        assert_eq!(seen(&sampler, 0, &mut Cursor::default()), []);
        assert_eq!(seen(&sampler, 1, &mut Cursor::default()), [one]);
    }

    #[test]
    fn other_areas_are_refused() {
        let (file, area) = area();
        area.publish(1);
        let word = |at: usize, value: u64| file.write_all_at(&value.to_le_bytes(), at as u64);
        word(VCPUS_AT, 17).expect("written");
        assert_eq!(area.check(), Err(AreaError::Vcpus(17)));
        word(VCPUS_AT, 0).expect("written");
        assert_eq!(area.check(), Err(AreaError::Vcpus(0)));
        word(VERSION_AT, 1).expect("written");
        assert_eq!(area.check(), Err(AreaError::Version(1)));
    }

    #[test]
    fn a_late_reader_begins_with_new_records() {
        let (_file, area) = area();
        let mut writer = WriteCursor::default();
        let one = |pid| Observation { pid, ..Observation::default() };
        for pid in 0..=RING_RECORDS as u32 {
            push(&area.ring(0), &mut writer, &one(pid).encode());
        }
        let mut cursor = Cursor::at_end(&area.ring(0));
        assert_eq!(seen(&area, 0, &mut cursor), []);
        assert!(push(&area.ring(0), &mut writer, &one(9).encode()), "there is room again");
        assert_eq!(seen(&area, 0, &mut cursor), [one(9)]);
    }

    fn observation() -> impl Strategy<Value = Observation> {
        let kinds = [AccessKind::Read, AccessKind::Write, AccessKind::Dirtied];
        let kind = proptest::sample::select(kinds.to_vec());
        let around = (proptest::option::of(1..=u16::MAX), any::<bool>());
        let miss = (any::<[u64; 3]>(), any::<[u32; 2]>(), any::<u16>(), kind, around);
        let miss = miss.prop_map(|(words, [latency_ns, weight], node, kind, (at_once, apart))| {
            let [addr, physical, instruction] = words;
            let at_once = at_once.map(|parts| f32::from(parts) / AT_ONCE_PARTS);
            Miss { kind, addr, physical, instruction, latency_ns, node, weight, at_once, apart }
        });
        (any::<u64>(), any::<[u32; 4]>(), proptest::option::of(miss)).prop_map(
            |(time_ns, [pid, tid, misses, instructions], access)| Observation {
                time_ns,
                pid,
                tid,
                misses,
                instructions,
                access,
            },
        )
    }

    proptest! {
        #[test]
        fn records_pass_through_the_ring_unchanged(one in observation()) {
            prop_assert_eq!(Observation::decode(&one.encode()), Some(one));
        }

        #[test]
        fn any_words_are_safe(raw: RawObservation) {
            if let Some(read) = Observation::decode(&raw) {
                // Fields that the kind does not have are dropped.
                prop_assert_eq!(Observation::decode(&read.encode()), Some(read));
            }
        }
    }
}
