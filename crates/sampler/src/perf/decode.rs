//! Decodes one hardware record: load or store, served by memory or by a cache, and its latency. In:
//! a [`RawSample`] and the event's [`Decode`]. Out: an [`Access`], or `None` for one that a cache
//! served. Knows nothing of processes, nodes or weights.

use tiercel_wire::AccessKind;

use super::events::Decode;
use super::record::RawSample;

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Virtual address.
    pub addr: u64,
    /// Load or store.
    pub kind: AccessKind,
    /// Load-to-use latency in core cycles; 0 when not measured.
    pub latency_cycles: u64,
}

/// Decodes a record; `None` when it has no address or never reached memory.
pub fn access(decode: Decode, sample: &RawSample) -> Option<Access> {
    let by_kernel = |kind| Access { addr: sample.addr, kind, latency_cycles: sample.weight };
    match decode {
        Decode::LoadMiss => some_address(by_kernel(AccessKind::Read)),
        Decode::Store if hit_first_level(sample.data_src) => None,
        Decode::Store => some_address(Access { latency_cycles: 0, ..by_kernel(AccessKind::Write) }),
        Decode::Ibs if sample.raw.is_empty() => ibs_by_kernel(sample),
        Decode::Ibs => ibs(&sample.raw),
        Decode::Fault => {
            some_address(Access { latency_cycles: 0, ..by_kernel(AccessKind::Unknown) })
        }
        Decode::Spe => None, // Comes through AUX, see `spe`.
    }
}

fn some_address(access: Access) -> Option<Access> {
    (access.addr != 0).then_some(access)
}

/// PERF_MEM_LVL_HIT and PERF_MEM_LVL_L1 of `mem_lvl`, which begins at bit 5 of the data source.
fn hit_first_level(data_src: u64) -> bool {
    // PERF_MEM_* of linux/perf_event.h.
    const LEVEL_SHIFT: u32 = 5;
    const HIT: u64 = 0x02;
    const L1: u64 = 0x08;
    let level = data_src >> LEVEL_SHIFT & 0x3fff;
    level & (HIT | L1) == HIT | L1
}

/// IBS without the raw part (BPF): by the data source that the kernel derives from it.
fn ibs_by_kernel(sample: &RawSample) -> Option<Access> {
    // PERF_MEM_OP_* and PERF_MEM_LVL_* of linux/perf_event.h.
    const LOAD: u64 = 0x02;
    const STORE: u64 = 0x04;
    const LEVEL_SHIFT: u32 = 5;
    /// PERF_MEM_LVL_LOC_RAM, REM_RAM1, REM_RAM2.
    const RAM: u64 = 0x80 | 0x100 | 0x200;
    const HIT: u64 = 0x02;
    const LEVEL_NUMBER_SHIFT: u32 = 33;
    /// PERF_MEM_LVLNUM_CXL, RAM, PMEM.
    const MEMORY: [u64; 3] = [0x9, 0xd, 0xe];
    let level = sample.data_src >> LEVEL_SHIFT & 0x3fff;
    let number = sample.data_src >> LEVEL_NUMBER_SHIFT & 0xf;
    let (kind, reached_memory) = if sample.data_src & STORE != 0 {
        (AccessKind::Write, level & HIT == 0)
    } else if sample.data_src & LOAD != 0 {
        (AccessKind::Read, level & RAM != 0 || MEMORY.contains(&number))
    } else {
        return None;
    };
    let latency_cycles = if kind == AccessKind::Read { sample.weight } else { 0 };
    reached_memory
        .then_some(Access { addr: sample.addr, kind, latency_cycles })
        .and_then(some_address)
}

/// Reads the IBS op registers themselves: kernels before 6.2 fill neither address nor data source.
/// Raw part: u32 capabilities, then u64 CTL, RIP, DATA, DATA2, DATA3, DC_LIN_AD, ... (AMD PPR,
/// MSRC001_1035 to 1039).
fn ibs(raw: &[u8]) -> Option<Access> {
    // Bits of IBS_OP_DATA3.
    const LOAD: u64 = 1 << 0;
    const STORE: u64 = 1 << 1;
    const ADDRESS_VALID: u64 = 1 << 17;
    const MISSED_L2: u64 = 1 << 20;
    const LATENCY_SHIFT: u32 = 32;
    /// DRAM, long-latency DIMM, extension memory (CXL).
    const MEMORY: [u64; 3] = [3, 6, 8];
    let register = |index: usize| {
        let at = 4 + index * 8;
        let bytes = raw.get(at..at + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
    };
    let (data2, data3, addr) = (register(3)?, register(4)?, register(5)?);
    if data3 & ADDRESS_VALID == 0 || addr == 0 {
        return None;
    }
    // A locked or read-modify-write op sets both bits; its store is what matters for placement.
    let kind = match (data3 & LOAD != 0, data3 & STORE != 0) {
        (_, true) => AccessKind::Write,
        (true, false) => AccessKind::Read,
        (false, false) => return None,
    };
    let source = data2 & 0x7 | (data2 >> 6 & 0x3) << 3;
    // The data source is defined for loads only; a store counts when it missed the second level.
    let reached_memory = match kind {
        AccessKind::Read => MEMORY.contains(&source),
        _ => data3 & MISSED_L2 != 0,
    };
    let latency_cycles = if kind == AccessKind::Read { data3 >> LATENCY_SHIFT & 0xffff } else { 0 };
    reached_memory.then_some(Access { addr, kind, latency_cycles })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ibs_raw(data2: u64, data3: u64, addr: u64) -> Vec<u8> {
        let mut raw = 0x3ffu32.to_ne_bytes().to_vec();
        for register in [0x2_0000, 0x40_1000, 0, data2, data3, addr, 0] {
            raw.extend(u64::to_ne_bytes(register));
        }
        raw
    }

    fn check_ibs(data2: u64, data3: u64, expect: Option<(AccessKind, u64)>) {
        let sample = RawSample { raw: ibs_raw(data2, data3, 0x7000), ..RawSample::default() };
        let expect =
            expect.map(|(kind, latency_cycles)| Access { addr: 0x7000, kind, latency_cycles });
        assert_eq!(access(Decode::Ibs, &sample), expect, "{data2:#x} {data3:#x}");
    }

    #[test]
    fn ibs_keeps_what_memory_served() {
        let valid = 1 << 17;
        let latency = 431 << 32;
        check_ibs(3, valid | latency | 1, Some((AccessKind::Read, 431)));
        check_ibs(1, valid | latency | 1, None); // this core complex's L3
        check_ibs(1 << 6, valid | latency | 1, Some((AccessKind::Read, 431))); // CXL: 8
        check_ibs(0, valid | 1 << 20 | 2, Some((AccessKind::Write, 0)));
        check_ibs(0, valid | 2, None); // a store that hit the L2
        check_ibs(3, 1, None); // no valid address
        check_ibs(3, valid, None); // neither load nor store
        check_ibs(3, valid | 1 << 20 | 3, Some((AccessKind::Write, 0))); // locked
    }

    #[test]
    fn ibs_without_registers_uses_the_data_source() {
        let check = |data_src, expect: Option<AccessKind>| {
            let sample = RawSample { addr: 64, weight: 9, data_src, ..RawSample::default() };
            assert_eq!(access(Decode::Ibs, &sample).map(|a| a.kind), expect, "{data_src:#x}");
        };
        let (load, store, hit) = (0x02, 0x04, 0x02 << 5);
        check(load | 0x80 << 5 | hit, Some(AccessKind::Read)); // local RAM
        check(load | 0x9 << 33 | hit, Some(AccessKind::Read)); // CXL
        check(load | 0x08 << 5 | hit, None); // first level
        check(store | 0x08 << 5 | hit, None);
        check(store, Some(AccessKind::Write));
        check(0x01, None); // neither
    }

    #[test]
    fn intel_records_use_the_kernels_data_source() {
        let sample = |data_src| RawSample { addr: 64, weight: 300, data_src, ..Default::default() };
        let read = Access { addr: 64, kind: AccessKind::Read, latency_cycles: 300 };
        assert_eq!(access(Decode::LoadMiss, &sample(0)), Some(read));
        let write = Access { kind: AccessKind::Write, latency_cycles: 0, ..read };
        assert_eq!(access(Decode::Store, &sample(0)), Some(write));
        assert_eq!(access(Decode::Store, &sample((0x02 | 0x08) << 5)), None, "L1 hit");
        assert_eq!(access(Decode::Store, &sample((0x04 | 0x08) << 5)), Some(write), "L1 miss");
        assert_eq!(access(Decode::LoadMiss, &RawSample::default()), None, "no address");
    }

    proptest! {
        #[test]
        fn any_raw_part_is_safe(raw in prop::collection::vec(any::<u8>(), 0..120)) {
            let sample = RawSample { raw, ..RawSample::default() };
            let _ = access(Decode::Ibs, &sample);
        }
    }
}
