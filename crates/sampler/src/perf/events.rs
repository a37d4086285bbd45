//! The table of precise memory events, per vendor and microarchitecture, as data. In: a processor's
//! vendor, family and model. Out: the events that sample memory accesses there. Knows nothing of
//! how events are opened. Sources: Intel's event lists (perfmon), AMD's PPRs for families 17h to
//! 1Ah (IBS), Arm DDI 0487 (SPE).

use super::attr::{SW_PAGE_FAULTS, TYPE_RAW, TYPE_SOFTWARE, flag};

/// An event that samples accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// As the vendor spells it.
    pub name: &'static str,
    /// Which PMU it belongs to.
    pub pmu: Pmu,
    /// perf_event_attr.config, config1, config2.
    pub config: [u64; 3],
    /// Lowest usable precise_ip; 0 if the PMU needs none.
    pub precise: u8,
    /// Events per sample = [`crate::Config::period`] times this; 1 for the rarest events.
    pub period_factor: u64,
    /// How its records are decoded.
    pub decode: Decode,
}

/// Source of an event's type number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pmu {
    /// PERF_TYPE_RAW, or on hybrid CPUs the type of the performance cores (`cpu_core`).
    Core,
    /// The kernel's own events.
    Software,
    /// A PMU named in /sys/bus/event_source/devices.
    Named(&'static str),
}

/// How to decode a record, and which records to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decode {
    /// A load that is a miss by the event's definition; the kernel gives address, latency and
    /// level.
    LoadMiss,
    /// A store; kept unless the kernel's data source says that it hit the first-level cache.
    Store,
    /// IBS registers in the raw part; kept when memory served it.
    Ibs,
    /// Packets in the AUX area; kept when the last-level cache missed.
    Spe,
    /// A page fault: the first access to an OS page; the kernel does not report whether it reads or
    /// writes.
    Fault,
}

/// Page faults in user mode: available on every machine.
pub const PAGE_FAULTS: Event = Event {
    name: "page-faults",
    pmu: Pmu::Software,
    config: [SW_PAGE_FAULTS, 0, 0],
    precise: 0,
    period_factor: 1,
    decode: Decode::Fault,
};

/// Processors, by vendor string and model numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors {
    /// As /proc/cpuinfo spells the vendor; `Arm` stands for all AArch64.
    pub vendor: &'static str,
    /// Families that this row covers; empty for all.
    pub families: &'static [u32],
    /// Models of them; empty for all.
    pub models: &'static [u32],
    /// What to open.
    pub events: &'static [Event],
}

/// `mem_load_retired.l3_miss` (0xd1/0x20), the same code from Haswell (there `mem_load_uops_...`).
pub const L3_MISS: Event = core("mem_load_retired.l3_miss", 0x20d1, 1, Decode::LoadMiss);
/// `mem_load_l3_miss_retired.local_dram` (0xd3/0x01): what MAT 4.5.1 samples for DRAM.
pub const LOCAL_DRAM: Event =
    core("mem_load_l3_miss_retired.local_dram", 0x01d3, 1, Decode::LoadMiss);
/// `mem_load_l3_miss_retired.remote_dram` (0xd3/0x02).
pub const REMOTE_DRAM: Event =
    core("mem_load_l3_miss_retired.remote_dram", 0x02d3, 1, Decode::LoadMiss);
/// `mem_load_retired.local_pmm` (0xd1/0x80): what MAT 4.5.1 samples for NVM.
pub const LOCAL_PMM: Event = core("mem_load_retired.local_pmm", 0x80d1, 1, Decode::LoadMiss);
/// `mem_inst_retired.all_stores` (0xd0/0x82). About one instruction in ten is a store, one in
/// hundreds a miss: sixteen times the period balances their samples with those of loads.
pub const ALL_STORES: Event = core("mem_inst_retired.all_stores", 0x82d0, 16, Decode::Store);
/// Load latency (0xcd/0x01) with a threshold of 128 cycles: more than a hit in any last-level
/// cache.
pub const LOAD_LATENCY: Event = Event {
    config: [0x01cd, 128, 0],
    ..core("mem_trans_retired.load_latency_gt_128", 0, 1, Decode::LoadMiss)
};
/// IBS op sampling, counting dispatched ops (bit 19). The period counts all ops, not misses, so it
/// is 64 times as long; the software filter for user mode is config2 bit 0 (Linux 6.12).
pub const IBS_OP: Event = Event {
    name: "ibs_op",
    pmu: Pmu::Named("ibs_op"),
    config: [1 << 19, 0, 1],
    precise: 0,
    period_factor: 64,
    decode: Decode::Ibs,
};
/// Statistical profiling: loads and stores (bits 33, 34) with jitter (bit 16) that missed the
/// last-level cache or took at least 64 cycles. The period counts all operations.
pub const SPE: Event = Event {
    name: "arm_spe_0",
    pmu: Pmu::Named("arm_spe_0"),
    config: [1 << 33 | 1 << 34 | 1 << 16, 0, 64],
    precise: 0,
    period_factor: 4,
    decode: Decode::Spe,
};

/// First match wins.
pub const TABLE: &[Processors] = &[
    // Cascade Lake shares its model with Skylake-SP; Ice Lake-SP: both may have persistent memory.
    intel(&[0x55, 0x6a, 0x6c], &[L3_MISS, LOCAL_PMM, ALL_STORES]),
    // Haswell, Broadwell, Skylake, Kaby, Comet, Ice, Tiger, Rocket Lake.
    intel(
        &[
            0x3c, 0x3f, 0x45, 0x46, 0x3d, 0x47, 0x4f, 0x56, 0x4e, 0x5e, 0x8e, 0x9e, 0xa5, 0xa6,
            0x7d, 0x7e, 0x8c, 0x8d, 0xa7,
        ],
        &[L3_MISS, ALL_STORES],
    ),
    // Sapphire, Emerald, Granite Rapids; Alder, Raptor, Meteor, Arrow, Lunar Lake (P-cores).
    intel(
        &[0x8f, 0xcf, 0xad, 0xae, 0x97, 0x9a, 0xb7, 0xba, 0xbf, 0xaa, 0xac, 0xc5, 0xc6, 0xbd],
        &[L3_MISS, ALL_STORES],
    ),
    // Sandy and Ivy Bridge have no precise miss event with an address; load latency serves instead.
    intel(&[0x2a, 0x2d, 0x3a, 0x3e], &[LOAD_LATENCY]),
    // Any Intel core that is not listed: these codes have been stable since Haswell.
    intel(&[], &[L3_MISS, ALL_STORES]),
    Processors {
        vendor: "AuthenticAMD",
        families: &[0x17, 0x19, 0x1a],
        models: &[],
        events: &[IBS_OP],
    },
    Processors { vendor: "HygonGenuine", families: &[0x18], models: &[], events: &[IBS_OP] },
    Processors { vendor: "Arm", families: &[], models: &[], events: &[SPE] },
];

/// Every event that a user may request by name instead of the processor's default set.
pub const NAMED: &[Event] =
    &[L3_MISS, LOCAL_DRAM, REMOTE_DRAM, LOCAL_PMM, ALL_STORES, LOAD_LATENCY, IBS_OP, SPE];

/// The events for a processor; empty when none are known for it.
pub fn for_processor(vendor: &str, family: u32, model: u32) -> &'static [Event] {
    let any = |list: &[u32], value| list.is_empty() || list.contains(&value);
    TABLE
        .iter()
        .find(|p| p.vendor == vendor && any(p.families, family) && any(p.models, model))
        .map_or(&[], |p| p.events)
}

/// Bits of perf_event_attr.flags for an event's precision.
pub fn precise_flags(event: &Event) -> u64 {
    u64::from(event.precise) << flag::PRECISE_SHIFT
}

/// The attribute type of an event, given the contents of sysfs for its PMU.
pub fn attr_type(pmu: Pmu, type_of: impl Fn(&str) -> Option<u32>) -> Option<u32> {
    match pmu {
        Pmu::Software => Some(TYPE_SOFTWARE),
        Pmu::Named(name) => type_of(name),
        Pmu::Core => type_of("cpu").map(|_| TYPE_RAW).or_else(|| type_of("cpu_core")),
    }
}

const fn core(name: &'static str, config: u64, period_factor: u64, decode: Decode) -> Event {
    Event { name, pmu: Pmu::Core, config: [config, 0, 0], precise: 2, period_factor, decode }
}

const fn intel(models: &'static [u32], events: &'static [Event]) -> Processors {
    Processors { vendor: "GenuineIntel", families: &[6], models, events }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(vendor: &str, family: u32, model: u32) -> Vec<&'static str> {
        for_processor(vendor, family, model).iter().map(|e| e.name).collect()
    }

    #[test]
    fn processors_get_their_events() {
        let (miss, stores) = ("mem_load_retired.l3_miss", "mem_inst_retired.all_stores");
        assert_eq!(names("GenuineIntel", 6, 0x8f), [miss, stores]);
        assert_eq!(names("GenuineIntel", 6, 0x6a), [miss, "mem_load_retired.local_pmm", stores]);
        assert_eq!(names("GenuineIntel", 6, 0x2d), ["mem_trans_retired.load_latency_gt_128"]);
        assert_eq!(names("GenuineIntel", 6, 0xfff), [miss, stores], "newer than the table");
        assert_eq!(names("AuthenticAMD", 0x19, 1), ["ibs_op"]);
        assert_eq!(names("AuthenticAMD", 0x10, 1), [""; 0]);
        assert_eq!(names("Arm", 0, 0), ["arm_spe_0"]);
        assert_eq!(names("CentaurHauls", 6, 0x8f), [""; 0]);
    }

    #[test]
    fn hybrid_machines_use_the_performance_cores() {
        let hybrid = |name: &str| (name == "cpu_core").then_some(10);
        assert_eq!(attr_type(Pmu::Core, hybrid), Some(10));
        assert_eq!(attr_type(Pmu::Core, |name| (name == "cpu").then_some(4)), Some(TYPE_RAW));
        assert_eq!(attr_type(Pmu::Core, |_| None), None);
        assert_eq!(attr_type(Pmu::Named("ibs_op"), |_| Some(9)), Some(9));
    }

    #[test]
    fn intel_events_request_precise_addresses() {
        for event in [L3_MISS, LOCAL_DRAM, REMOTE_DRAM, LOCAL_PMM, ALL_STORES, LOAD_LATENCY] {
            assert_eq!(precise_flags(&event), 2 << 15, "{}", event.name);
        }
        assert_eq!(precise_flags(&IBS_OP), 0);
    }
}
