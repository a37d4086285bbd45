// SPDX-License-Identifier: GPL-2.0-or-later
//! One virtual CPU in front of its modelled core, and what all of them share.
//! In: accesses by virtual address, with the physical address on demand. Out: stalls, picoseconds.
//! Knows nothing of QEMU or of how accesses are seen.
//!
//! ```text
//!   Core    filter [line % 256]      virtual lines used last, and whether written   the first test
//!           pages  [page % 65536]    virtual OS page -> physical
//!           epoch                    part of every virtual tag; counts CR3 writes
//!           values                   what outstanding loads return
//!           model                    caches, window, prefetcher: memsim
//!   Shared  uncore                   last level and memories, behind one lock
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::{
    Access as Asked, CacheShape, CoreShape, LINE_BYTES, LevelShape, Memory, ModelError, Pending,
    PrefetchShape, Uncore, WindowShape,
};

use crate::config::Config;
use crate::stats::{NodeStats, VcpuStats};

/// Lines of the filter; half of what the first level has, so that what it passes is there.
const FILTER: usize = 256;
/// Reach of the address cache: 256 MiB. Asking QEMU for an address costs ten times as much.
const PAGES: usize = 1 << 16;
const PAGE_BYTES: u64 = 4096;
/// Bits of a virtual line or OS page that tags keep: 48-bit addresses in lines of 64 bytes.
const TAG_BITS: u32 = 42;
/// The first level: 32 KiB in 8 ways, and its latency is part of an instruction's time.
const L1: LevelShape = LevelShape { cache: CacheShape { bytes: 32 << 10, ways: 8 }, latency_ps: 0 };
const WAYS: u32 = 16;
/// The streamer of Intel's second levels: up to 20 lines ahead, two at a time (its optimisation
/// manual, Data Prefetch to L2); Golden Cove's second level has 48 misses in flight.
const PREFETCH: PrefetchShape = PrefetchShape { degree: 2, ahead: 20, lines: 48 };
/// Values of loads that are remembered, to find loads that depend on them: of more than can be
/// outstanding at once.
const VALUES: usize = 32;
/// A value that could be an address of the guest has these bits all clear or all set, and is not
/// in the first OS page. Only such values are remembered: others would push them out.
const SIGN_BITS: u32 = 47;
/// Second-level translation buffer of Sunny Cove and later, direct-mapped here. It counts misses
/// only, for the ageing of accessed bits.
const STLB_ENTRIES: usize = 2048;
/// The kernel's tick at 250 Hz. What it touches, and who runs then, replaces translations too: how
/// many is not known, but readers of accessed bits rely on it.
const TICK_PS: u64 = 4_000_000_000;
/// Memory, as a level: behind a first, a second and a shared one.
const MEMORY: usize = 3;
/// No tag is this.
const NONE: u64 = u64::MAX;
/// Latency of an access to a device's register.
const DEVICE_PS: u64 = 1_000_000;

/// What an access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Load,
    /// A write.
    Store,
}

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory, by physical address.
    Memory(u64),
    /// A device.
    Device,
}

/// What an access that the filter does not have costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// By how long the virtual CPU is held up, picoseconds.
    pub stall_ps: u64,
    /// What memory had to do for it; `None`: a cache or a device served it.
    pub fetched: Option<Fetched>,
    /// The line that became dirty by it, having been clean in all caches.
    pub dirtied: Option<Dirtied>,
}

/// A line that will go back to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirtied {
    /// The access's physical address.
    pub physical: u64,
    /// Whose memory it is.
    pub node: NodeId,
}

/// A line that came from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The access's physical address.
    pub physical: u64,
    /// Whose memory it is.
    pub node: NodeId,
    /// From when the address was known to the data, picoseconds.
    pub latency_ps: u64,
}

/// When an access happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Instructions of this virtual CPU so far.
    pub instruction: u64,
    /// The virtual CPU's time, picoseconds.
    pub now_ps: u64,
}

/// What virtual CPUs have in common.
pub struct Shared {
    config: Config,
    uncore: Mutex<Uncore>,
    /// Stands for what is no memory of the machine: firmware, holes.
    elsewhere: NodeId,
}

/// One virtual CPU.
pub struct Core {
    filter: Box<[Line; FILTER]>,
    pages: Box<[(u64, u64)]>,
    /// Above the bits of a tag. Old tags never match; after 2^22 CR3 writes one might, for as long
    /// as its line was not used: rare, and wrong by one stall.
    epoch: u64,
    /// What loads returned that could be an address, and when, picoseconds.
    values: [u64; VALUES],
    values_ps: [u64; VALUES],
    next_value: usize,
    model: tiercel_memsim::Core,
    instruction: u64,
    stalled_ps: u64,
    /// OS pages translated last, and how often one was not among them since the last question.
    buffer: Box<[u64; STLB_ENTRIES]>,
    walks: u64,
    replaced_ps: u64,
}

#[derive(Clone, Copy)]
struct Line {
    tag: u64,
    written: bool,
}

impl Shared {
    /// Everything idle and empty.
    pub fn new(config: Config, machine: &Machine) -> Result<Shared, ModelError> {
        let cache = CacheShape { bytes: config.llc_bytes, ways: WAYS };
        let last = LevelShape { cache, latency_ps: config.llc_ps };
        let memory = match config.share {
            true => Memory::for_cpus(machine, &config.cpu_nodes)?,
            false => Memory::new(machine)?,
        };
        let uncore = Mutex::new(Uncore::with_memory(memory, Some(last))?);
        Ok(Shared { elsewhere: config.ranges[0].node, config, uncore })
    }

    /// A virtual CPU's core, empty.
    pub fn core(&self, index: usize) -> Result<Core, ModelError> {
        let config = &self.config;
        let cache = CacheShape { bytes: config.l2_bytes, ways: WAYS };
        let shape = CoreShape {
            levels: vec![L1, LevelShape { cache, latency_ps: config.l2_ps }],
            window: WindowShape {
                instructions: config.window,
                mshrs: config.mshrs,
                stores: config.store_buffer,
            },
            prefetch: config.prefetch.then_some(PREFETCH),
            // Translated code counts the time of instructions.
            instruction_ps: 0,
            home: config.cpu_nodes.get(index).copied(),
        };
        Ok(Core {
            filter: Box::new([Line { tag: NONE, written: false }; FILTER]),
            pages: vec![(NONE, 0); PAGES].into_boxed_slice(),
            epoch: 0,
            values: [0; VALUES],
            values_ps: [0; VALUES],
            next_value: 0,
            model: tiercel_memsim::Core::new(&shape, &mut self.lock())?,
            instruction: 0,
            stalled_ps: 0,
            buffer: Box::new([NONE; STLB_ENTRIES]),
            walks: 0,
            replaced_ps: 0,
        })
    }

    /// Use of all nodes so far.
    pub fn nodes(&self, machine: &Machine) -> Vec<NodeStats> {
        let uncore = self.lock();
        let of = |node: NodeId| {
            let used = uncore.memory().used(node);
            NodeStats {
                node,
                reads: used.reads,
                writes: used.writes,
                device_read_bytes: used.device_read_bytes,
                device_written_bytes: used.device_written_bytes,
                access_j: used.access_j,
            }
        };
        machine.memory_nodes().map(|node| of(node.id)).collect()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn node_of(&self, physical: u64) -> NodeId {
        self.config.node_of(physical).unwrap_or(self.elsewhere)
    }

    fn lock(&self) -> MutexGuard<'_, Uncore> {
        // A panic under the lock ends QEMU anyway; statistics are still worth having.
        self.uncore.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// The test that most accesses pass: the line was used lately.
    #[inline]
    pub fn hits(&mut self, address: u64, access: Access) -> bool {
        let line = address / LINE_BYTES;
        let found = self.filter[line as usize % FILTER];
        found.tag == self.tag(line) && (found.written || access == Access::Load)
    }

    /// An access that the filter does not have. `place` and `value` are asked at most once, `value`
    /// for loads only.
    pub fn miss(
        &mut self,
        shared: &Shared,
        address: u64,
        access: Access,
        at: Moment,
        place: impl FnOnce() -> Place,
        value: impl FnOnce() -> u64,
    ) -> Cost {
        let Some(physical) = self.translate(address, place) else {
            return Cost { stall_ps: DEVICE_PS, fetched: None, dirtied: None };
        };
        let line = address / LINE_BYTES;
        let write = access == Access::Store;
        self.filter[line as usize % FILTER] = Line { tag: self.tag(line), written: write };
        let after_ps = if write { 0 } else { self.known_ps(address) };
        let instructions =
            at.instruction - std::mem::replace(&mut self.instruction, at.instruction);
        let asked = Asked { instructions, addr: physical, write, after_ps };
        self.model.advance(at.now_ps);
        let served = self.model.hit(&asked).unwrap_or_else(|| {
            self.model.access(&asked, &mut shared.lock(), |addr| shared.node_of(addr))
        });
        if !write && served.done_ps > at.now_ps {
            self.remember(value(), served.done_ps);
        }
        let stall_ps = self.model.now_ps() - at.now_ps;
        self.stalled_ps += stall_ps;
        let fetched = (served.level == MEMORY).then(|| {
            let node = shared.node_of(physical);
            Fetched { physical, node, latency_ps: served.latency_ps }
        });
        let dirtied = served.dirtied && !shared.lock().holds_dirty(physical);
        let dirtied = dirtied.then(|| Dirtied { physical, node: shared.node_of(physical) });
        Cost { stall_ps, fetched, dirtied }
    }

    /// What was on its way from memory so far.
    pub fn pending(&self) -> Pending {
        self.model.pending()
    }

    /// Whether a TLB would have been refilled since this last was true: after that many page walks,
    /// or a tick of the kernel.
    pub fn replaced_translations(&mut self, walks: u64, now_ps: u64) -> bool {
        let replaced = self.walks >= walks || now_ps >= self.replaced_ps + TICK_PS;
        if replaced {
            (self.walks, self.replaced_ps) = (0, now_ps);
        }
        replaced
    }

    /// Address spaces changed: virtual addresses mean something else now.
    pub fn forget_addresses(&mut self) {
        self.epoch = self.epoch.wrapping_add(1 << TAG_BITS);
    }

    /// What was counted; instructions and busy time are the caller's to fill in.
    pub fn stats(&self) -> VcpuStats {
        let [_, l2, llc, memory, _] = *self.model.served();
        let served = [l2, llc, memory];
        VcpuStats { stalled_ps: self.stalled_ps, served, ..VcpuStats::default() }
    }

    fn translate(&mut self, address: u64, place: impl FnOnce() -> Place) -> Option<u64> {
        let page = address / PAGE_BYTES;
        let tag = self.tag(page);
        let buffered = &mut self.buffer[page as usize % STLB_ENTRIES];
        self.walks += u64::from(std::mem::replace(buffered, tag) != tag);
        let slot = &mut self.pages[page as usize % PAGES];
        if slot.0 != tag {
            match place() {
                Place::Memory(physical) => *slot = (tag, physical & !(PAGE_BYTES - 1)),
                Place::Device => return None,
            }
        }
        Some(slot.1 + address % PAGE_BYTES)
    }

    /// A line's or OS page's number together with the epoch.
    #[inline]
    fn tag(&self, number: u64) -> u64 {
        number & ((1 << TAG_BITS) - 1) | self.epoch
    }

    fn remember(&mut self, value: u64, done_ps: u64) {
        let sign = value.cast_signed() >> SIGN_BITS;
        if (sign == 0 || sign == -1) && value >= PAGE_BYTES {
            self.values[self.next_value] = value;
            self.values_ps[self.next_value] = done_ps;
            self.next_value = (self.next_value + 1) % VALUES;
        }
    }

    /// When the address is known: at once, unless it lies within an OS page of what an outstanding
    /// load returns, as in a pointer chase. Without branches: it runs for every miss.
    fn known_ps(&self, address: u64) -> u64 {
        let first = address.wrapping_sub(PAGE_BYTES - 1);
        let near = |value: u64| value.wrapping_sub(first) < 2 * PAGE_BYTES - 1;
        let known = self.values.iter().zip(&self.values_ps);
        known
            .fold(0, |latest, (&value, &done_ps)| latest.max(if near(value) { done_ps } else { 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    fn one_core() -> (Shared, Core, Machine) {
        let (config, machine) = config();
        let shared = Shared::new(config, &machine).expect("valid");
        let core = shared.core(0).expect("valid");
        (shared, core, machine)
    }

    /// Makes `count` loads a line apart in a node's memory, 8 instructions each; the time they take
    /// per load in nanoseconds. `chase`: each address is the value of the load before it.
    fn time_per_load(base: u64, count: u64, chase: bool) -> f64 {
        let (shared, mut core, _) = one_core();
        let mut at = Moment { instruction: 0, now_ps: 0 };
        // A stride that spreads over sets and exceeds every cache.
        let address = |i: u64| base + i * 4160 % 0x3000_0000;
        for i in 0..count {
            at.instruction += 8;
            at.now_ps += 8 * shared.config().instruction_ps;
            assert!(!core.hits(address(i), Access::Load));
            let place = || Place::Memory(address(i));
            let value = || if chase { address(i + 1) } else { 0 };
            at.now_ps += core.miss(&shared, address(i), Access::Load, at, place, value).stall_ps;
        }
        at.now_ps as f64 / 1000.0 / count as f64
    }

    #[test]
    fn a_chase_costs_the_nodes_latency() {
        let near = time_per_load(0, 20_000, true);
        assert!((near - 80.0).abs() < 2.4, "{near} ns");
        let far = time_per_load(0x1_0000_0000, 20_000, true);
        assert!((far - 250.0).abs() < 7.5, "{far} ns");
    }

    #[test]
    fn independent_loads_overlap_as_far_as_there_are_registers() {
        // 16 outstanding, of 80 and of 250 ns; bandwidth is far away.
        let near = time_per_load(0, 20_000, false);
        assert!((near - 80.0 / 16.0).abs() < 0.5, "{near} ns");
        let far = time_per_load(0x1_0000_0000, 20_000, false);
        assert!((far - 250.0 / 16.0).abs() < 0.8, "{far} ns");
    }

    #[test]
    fn a_chase_is_one_beside_independent_loads() {
        let (shared, mut core, _) = one_core();
        let (link, other) = (|i: u64| ((i % 2) << 29) | (i * 4160), |i: u64| 0x3000_0000 + i * 64);
        let mut at = Moment { instruction: 0, now_ps: 0 };
        for i in 0..1000 {
            for k in 0..41 {
                let address = if k == 0 { link(i) } else { other(i * 40 + k) };
                at.instruction += 1;
                at.now_ps += 250;
                // Numbers that are no addresses.
                let value = || if k == 0 { link(i + 1) } else { k.wrapping_sub(20) << 48 | k };
                let place = || Place::Memory(address);
                at.now_ps += core.miss(&shared, address, Access::Load, at, place, value).stall_ps;
            }
        }
        let ns = at.now_ps as f64 / 1e6;
        assert!(ns > 77.0, "{ns} ns for a chase of 80 and forty loads beside it");
    }

    #[test]
    fn a_share_of_the_machine_passes_its_part() {
        // Far memory passes 40 GB/s, one of two CPUs half of it.
        for (share, gb_s) in [(false, 40.0), (true, 20.0)] {
            let (mut config, machine) = config();
            (config.share, config.mshrs) = (share, 256);
            config.cpu_nodes.truncate(1);
            let shared = Shared::new(config, &machine).expect("valid");
            let mut core = shared.core(0).expect("valid");
            let mut at = Moment { instruction: 0, now_ps: 0 };
            let count = 100_000;
            for i in 0..count {
                let address = 0x1_0000_0000 + i * 64;
                at.instruction += 1;
                at.now_ps += 250;
                let place = || Place::Memory(address);
                at.now_ps += core.miss(&shared, address, Access::Load, at, place, || 0).stall_ps;
            }
            let seen = (count * 64) as f64 * 1000.0 / at.now_ps as f64;
            assert!((seen / gb_s - 1.0).abs() < 0.05, "{seen} GB/s for {gb_s}");
        }
    }

    #[test]
    fn a_prefetcher_makes_a_stream_faster_and_a_chase_no_other() {
        let time = |prefetch: bool, chase: bool| {
            let (mut config, machine) = config();
            (config.prefetch, config.mshrs) = (prefetch, 4);
            let shared = Shared::new(config, &machine).expect("valid");
            let mut core = shared.core(0).expect("valid");
            let mut at = Moment { instruction: 0, now_ps: 0 };
            let address = |i: u64| if chase { i * 4160 % 0x3000_0000 } else { i * 64 };
            for i in 0..20_000 {
                at.instruction += 30;
                at.now_ps += 30 * 250;
                let value = || if chase { address(i + 1) } else { 0 };
                let place = || Place::Memory(address(i));
                at.now_ps +=
                    core.miss(&shared, address(i), Access::Load, at, place, value).stall_ps;
            }
            at.now_ps as f64
        };
        assert!(time(true, false) * 1.5 < time(false, false));
        assert_eq!(time(true, true), time(false, true));
    }

    #[test]
    fn a_line_used_lately_costs_nothing_in_its_address_space() {
        let (shared, mut core, machine) = one_core();
        let at = Moment { instruction: 1, now_ps: 0 };
        core.miss(&shared, 64, Access::Load, at, || Place::Memory(64), || 0);
        assert!(core.hits(100, Access::Load));
        assert!(!core.hits(100, Access::Store), "the model must hear of the first write");
        core.miss(&shared, 100, Access::Store, at, || unreachable!("the page is known"), || 0);
        assert!(core.hits(64, Access::Store));
        core.forget_addresses();
        assert!(!core.hits(64, Access::Load));
        let node = &shared.nodes(&machine)[0];
        assert_eq!((node.reads, node.writes), (1, 0), "it waits in the caches");
    }

    #[test]
    fn dirty_lines_end_in_memory() {
        let (shared, mut core, machine) = one_core();
        let lines = 200_000;
        for i in 0..lines {
            let (address, at) = (i * 64, Moment { instruction: i, now_ps: i * 100_000 });
            core.miss(&shared, address, Access::Store, at, || Place::Memory(address), || 0);
        }
        let node = &shared.nodes(&machine)[0];
        assert_eq!(node.reads, lines);
        // All but what the caches hold: 4 MiB, 1 MiB and 32 KiB.
        let cached = (5 << 20) / 64 + 512;
        assert!((lines - cached..=lines).contains(&node.writes), "{}", node.writes);
    }

    #[test]
    fn a_line_becomes_dirty_once_until_it_is_written_back() {
        let (shared, mut core, machine) = one_core();
        let mut at = Moment { instruction: 0, now_ps: 0 };
        let mut dirtied = 0;
        // Load, then store, a line of 200,000 again and again, two rounds: none stays in a cache.
        let lines = 200_000;
        for i in 0..2 * lines {
            let address = i % lines * 64;
            for access in [Access::Load, Access::Store, Access::Store] {
                at.instruction += 1;
                at.now_ps += 30_000;
                let place = || Place::Memory(address);
                let cost = core.miss(&shared, address, access, at, place, || 0);
                dirtied += u64::from(cost.dirtied.is_some());
            }
        }
        assert_eq!(dirtied, 2 * lines);
        let written = shared.nodes(&machine)[0].writes;
        let cached = (5 << 20) / 64 + 512;
        assert!((dirtied - cached..=dirtied).contains(&written), "{written} of {dirtied}");
    }

    #[test]
    fn pending_misses_distinguish_a_chase_from_independent_loads() {
        for (chase, at_once) in [(true, 1.0), (false, 16.0)] {
            let (shared, mut core, _) = one_core();
            let mut at = Moment { instruction: 0, now_ps: 0 };
            let address = |i: u64| i * 4160 % 0x3000_0000;
            for i in 0..10_000 {
                at.instruction += 8;
                at.now_ps += 8 * shared.config().instruction_ps;
                let place = || Place::Memory(address(i));
                let value = || if chase { address(i + 1) } else { 0 };
                at.now_ps +=
                    core.miss(&shared, address(i), Access::Load, at, place, value).stall_ps;
            }
            let Pending { lines_ps, any_ps } = core.pending();
            let seen = lines_ps as f64 / any_ps as f64;
            assert!((seen / at_once - 1.0).abs() < 0.05, "{seen} at once, not {at_once}");
        }
    }

    #[test]
    fn a_device_takes_its_time() {
        let (shared, mut core, _) = one_core();
        let at = Moment { instruction: 1, now_ps: 0 };
        let cost = core.miss(&shared, 64, Access::Load, at, || Place::Device, || 0);
        assert_eq!(cost, Cost { stall_ps: DEVICE_PS, fetched: None, dirtied: None });
    }

    #[test]
    fn an_access_that_memory_serves_has_its_node_and_latency() {
        let (shared, mut core, _) = one_core();
        let physical = 0x1_0000_1040;
        let mut load = |now_ps| {
            let at = Moment { instruction: 1, now_ps };
            core.forget_addresses();
            core.miss(&shared, 64, Access::Load, at, || Place::Memory(physical), || 0).fetched
        };
        let fetched = load(0).expect("nothing is cached yet");
        assert_eq!((fetched.physical, fetched.node), (physical, NodeId(1)));
        assert!((250_000..251_000).contains(&fetched.latency_ps), "{} ps", fetched.latency_ps);
        assert_eq!(load(1_000_000), None, "a cache has it");
    }

    #[test]
    fn walks_are_counted_once_for_an_os_page_that_stays_in_use() {
        let (shared, mut core, _) = one_core();
        let at = Moment { instruction: 1, now_ps: 0 };
        for line in 0..128 {
            let address = line * LINE_BYTES;
            core.miss(&shared, address, Access::Load, at, || Place::Memory(address), || 0);
        }
        assert!(!core.replaced_translations(3, 0));
        assert!(core.replaced_translations(2, 0));
        core.forget_addresses();
        core.miss(&shared, 0, Access::Load, at, || Place::Memory(0), || 0);
        assert!(core.replaced_translations(1, 0));
        assert!(!core.replaced_translations(1, TICK_PS - 1));
        assert!(core.replaced_translations(1, TICK_PS), "a tick is as good");
        assert!(!core.replaced_translations(1, TICK_PS + 1));
    }
}
