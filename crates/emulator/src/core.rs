// SPDX-License-Identifier: GPL-2.0-or-later
//! One virtual CPU's caches and misses, and what all of them share.
//! In: accesses by virtual address, with the physical address on demand. Out: stalls, picoseconds.
//! Knows nothing of QEMU or of how accesses are seen.
//!
//! ```text
//!   Core    l1    [line % 512]      virtual line, its physical line, dirty   the first test
//!           pages [page % 4096]     virtual OS page -> physical              dropped on CR3 writes
//!           l2                      physical, 16 ways
//!           loads, stores           what is outstanding
//!   Shared  llc, memory             behind one lock, taken for second-level misses only
//! ```

use std::sync::Mutex;

use anyhow::Result;
use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::{
    Cache, CacheShape, LINE_BYTES, Memory, Outcome, PS_PER_NS, Window, WindowShape,
};

use crate::config::Config;
use crate::stats::{NodeStats, VcpuStats};

/// 32 KiB of lines.
const L1_LINES: usize = 512;
/// Reach of the address cache: 16 MiB.
const PAGES: usize = 4096;
const PAGE_BYTES: u64 = 4096;
const WAYS: u32 = 16;
/// Values of outstanding loads that are remembered, to find loads that depend on them.
const VALUES: usize = 16;
/// No virtual line or OS page has this number.
const NONE: u64 = u64::MAX;

/// Where `VcpuStats::served` counts.
const BY_L2: usize = 0;
const BY_LLC: usize = 1;
const BY_MEMORY: usize = 2;

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

/// When an access happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Instructions of this virtual CPU so far.
    pub instruction: u64,
    /// The virtual CPU's time, picoseconds.
    pub now_ps: u64,
}

/// A device's register takes this long.
const DEVICE_PS: u64 = 1_000_000;

/// What virtual CPUs have in common.
pub struct Shared {
    config: Config,
    inside: Mutex<Inside>,
    /// By virtual CPU and node number: what a distant node takes longer.
    detour_ps: Vec<Vec<u64>>,
}

struct Inside {
    llc: Cache,
    memory: Memory,
}

/// One virtual CPU.
pub struct Core {
    index: usize,
    l1: Box<[L1Line; L1_LINES]>,
    pages: Box<[(u64, u64); PAGES]>,
    l2: Cache,
    loads: Window,
    stores: Window,
    /// What outstanding loads returned, and when.
    values: [(u64, u64); VALUES],
    next_value: usize,
    /// Counts; the plugin fills in instructions and busy time.
    pub stats: VcpuStats,
}

#[derive(Clone, Copy)]
struct L1Line {
    virtual_line: u64,
    physical_line: u64,
    dirty: bool,
}

const EMPTY: L1Line = L1Line { virtual_line: NONE, physical_line: 0, dirty: false };

impl Shared {
    /// Everything idle and empty.
    pub fn new(config: Config, machine: &Machine) -> Result<Shared> {
        let llc = Cache::new(CacheShape { bytes: config.llc_bytes, ways: WAYS })?;
        let detours = config.cpu_nodes.iter().map(|&from| detours(machine, from));
        let detour_ps = detours.collect();
        let inside = Mutex::new(Inside { llc, memory: Memory::new(machine)? });
        Ok(Shared { config, inside, detour_ps })
    }

    /// Use of all nodes so far.
    pub fn nodes(&self, machine: &Machine) -> Vec<NodeStats> {
        let inside = self.lock();
        let of = |node: NodeId| {
            let used = inside.memory.used(node);
            NodeStats { node, reads: used.reads, writes: used.writes, access_j: used.access_j }
        };
        machine.memory_nodes().map(|node| of(node.id)).collect()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Latency of a line that the second level does not have, and who had it.
    fn fetch(&self, core: usize, line: u64, at_ps: u64) -> (u64, usize) {
        let mut inside = self.lock();
        match inside.llc.access(line, false) {
            Outcome::Hit => (self.config.llc_ps, BY_LLC),
            Outcome::Miss(victim) => {
                if let Some(victim) = victim.filter(|victim| victim.dirty) {
                    self.write_back(&mut inside, victim.line, at_ps);
                }
                let addr = line * LINE_BYTES;
                // What is no memory of the machine (firmware, holes) is as near as a cache.
                let Some(node) = self.config.node_of(addr) else {
                    return (self.config.llc_ps, BY_LLC);
                };
                let detour = self.detour_ps[core].get(usize::from(node.0)).copied();
                let latency = inside.memory.read(node, addr, at_ps) + detour.unwrap_or(0);
                (latency, BY_MEMORY)
            }
        }
    }

    /// A dirty line leaves a second level.
    fn evict(&self, line: u64, at_ps: u64) {
        let mut inside = self.lock();
        if let Outcome::Miss(Some(victim)) = inside.llc.access(line, true)
            && victim.dirty
        {
            self.write_back(&mut inside, victim.line, at_ps);
        }
    }

    fn write_back(&self, inside: &mut Inside, line: u64, at_ps: u64) {
        let addr = line * LINE_BYTES;
        if let Some(node) = self.config.node_of(addr) {
            inside.memory.write(node, addr, at_ps);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inside> {
        // A panic under the lock ends QEMU anyway; statistics are still worth having.
        self.inside.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// By node number, what its memory takes longer from `from` than from its nearest CPUs.
fn detours(machine: &Machine, from: NodeId) -> Vec<u64> {
    let count = machine.nodes.last().map_or(0, |node| usize::from(node.id.0) + 1);
    let mut detours = vec![0; count];
    for node in machine.memory_nodes() {
        let near = node.figures.read_latency_ns.unwrap_or(0.0);
        let seen = machine.figures(Some(from), node.id).read_latency_ns.unwrap_or(near);
        detours[usize::from(node.id.0)] = ((seen - near).max(0.0) * PS_PER_NS) as u64;
    }
    detours
}

impl Core {
    /// Everything empty.
    pub fn new(index: usize, config: &Config) -> Result<Core> {
        let window = |instructions, registers| Window::new(WindowShape { instructions, registers });
        Ok(Core {
            index,
            l1: Box::new([EMPTY; L1_LINES]),
            pages: Box::new([(NONE, 0); PAGES]),
            l2: Cache::new(CacheShape { bytes: config.l2_bytes, ways: WAYS })?,
            loads: window(config.window, config.miss_registers)?,
            // Stores leave the reorder window when they retire: only the buffer limits them.
            stores: window(u64::MAX / 2, config.store_buffer)?,
            values: [(NONE, 0); VALUES],
            next_value: 0,
            stats: VcpuStats::default(),
        })
    }

    /// The test that most accesses pass: the line is in the first level.
    #[inline]
    pub fn hits(&mut self, address: u64, access: Access) -> bool {
        let line = address / LINE_BYTES;
        let slot = &mut self.l1[line as usize % L1_LINES];
        if slot.virtual_line != line {
            return false;
        }
        slot.dirty |= access == Access::Store;
        true
    }

    /// An access that the first level does not have. `place` and `value` are asked at most once,
    /// `value` for loads only. Returns by how many picoseconds the virtual CPU is held up.
    pub fn miss(
        &mut self,
        shared: &Shared,
        address: u64,
        access: Access,
        at: Moment,
        place: impl FnOnce() -> Place,
        value: impl FnOnce() -> u64,
    ) -> u64 {
        let Some(physical_line) = self.translate(address, place) else { return DEVICE_PS };
        let Moment { instruction, now_ps } = at;
        self.fill_l1(shared, address / LINE_BYTES, physical_line, access, now_ps);
        let reached = self.loads.reach(instruction, now_ps);
        let in_l2 = match self.l2.access(physical_line, false) {
            Outcome::Hit => true,
            Outcome::Miss(victim) => {
                if let Some(victim) = victim.filter(|victim| victim.dirty) {
                    shared.evict(victim.line, reached);
                }
                false
            }
        };
        let known_ps = if access == Access::Load { self.depends_on(address) } else { 0 };
        let (core, l2_ps) = (self.index, shared.config.l2_ps);
        let mut served = BY_L2;
        let latency = |out_ps| {
            if in_l2 {
                return l2_ps;
            }
            let (latency, by) = shared.fetch(core, physical_line, out_ps);
            served = by;
            latency
        };
        let window = match access {
            Access::Load => &mut self.loads,
            Access::Store => {
                self.stores.reach(instruction, reached);
                &mut self.stores
            }
        };
        let miss = window.miss(instruction, reached, known_ps, latency);
        self.stats.served[served] += 1;
        if access == Access::Load {
            self.values[self.next_value] = (value(), miss.done_ps);
            self.next_value = (self.next_value + 1) % VALUES;
        }
        let stall_ps = miss.now_ps - now_ps;
        self.stats.stalled_ps += stall_ps;
        stall_ps
    }

    /// Address spaces changed: virtual addresses mean something else now.
    pub fn forget_addresses(&mut self, shared: &Shared, now_ps: u64) {
        for index in 0..L1_LINES {
            let line = std::mem::replace(&mut self.l1[index], EMPTY);
            if line.virtual_line != NONE && line.dirty {
                self.write_l2(shared, line.physical_line, now_ps);
            }
        }
        self.pages.fill((NONE, 0));
    }

    fn translate(&mut self, address: u64, place: impl FnOnce() -> Place) -> Option<u64> {
        let page = address / PAGE_BYTES;
        let slot = &mut self.pages[page as usize % PAGES];
        if slot.0 != page {
            match place() {
                Place::Memory(physical) => *slot = (page, physical & !(PAGE_BYTES - 1)),
                Place::Device => return None,
            }
        }
        Some((slot.1 + address % PAGE_BYTES) / LINE_BYTES)
    }

    fn fill_l1(
        &mut self,
        shared: &Shared,
        virtual_line: u64,
        physical_line: u64,
        access: Access,
        now_ps: u64,
    ) {
        let slot = &mut self.l1[virtual_line as usize % L1_LINES];
        let dirty = access == Access::Store;
        let old = std::mem::replace(slot, L1Line { virtual_line, physical_line, dirty });
        if old.virtual_line != NONE && old.dirty {
            self.write_l2(shared, old.physical_line, now_ps);
        }
    }

    fn write_l2(&mut self, shared: &Shared, line: u64, now_ps: u64) {
        if let Outcome::Miss(Some(victim)) = self.l2.access(line, true)
            && victim.dirty
        {
            shared.evict(victim.line, now_ps);
        }
    }

    /// When the address is known: at once, unless it lies within an OS page of what an outstanding
    /// load returns, as in a pointer chase.
    fn depends_on(&self, address: u64) -> u64 {
        let near =
            |value: u64| address.wrapping_sub(value).wrapping_add(PAGE_BYTES) < 2 * PAGE_BYTES;
        let known = self.values.iter().filter(|(value, _)| *value != NONE && near(*value));
        known.map(|(_, done_ps)| *done_ps).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    /// Makes `count` loads a line apart in a node's memory, 8 instructions each; the time they take
    /// per load in nanoseconds. `chase`: each address is the value of the load before it.
    fn time_per_load(base: u64, count: u64, chase: bool) -> f64 {
        let (config, machine) = config();
        let instruction_ps = config.instruction_ps;
        let shared = Shared::new(config, &machine).expect("valid");
        let mut core = Core::new(0, shared.config()).expect("valid");
        let mut at = Moment { instruction: 0, now_ps: 0 };
        // A stride that spreads over sets and exceeds every cache.
        let address = |i: u64| base + i * 4160 % 0x3000_0000;
        for i in 0..count {
            at.instruction += 8;
            at.now_ps += 8 * instruction_ps;
            assert!(!core.hits(address(i), Access::Load));
            let place = || Place::Memory(address(i));
            let value = || if chase { address(i + 1) } else { 0 };
            at.now_ps += core.miss(&shared, address(i), Access::Load, at, place, value);
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
    fn independent_loads_overlap_until_the_bandwidth_ends() {
        let near = time_per_load(0, 20_000, false);
        // 12 outstanding of 80 ns each.
        assert!((near - 80.0 / 12.0).abs() < 0.7, "{near} ns");
        // 4 GB/s: 16 ns a line; 12 outstanding of 250 ns would be 20.8.
        let far = time_per_load(0x1_0000_0000, 20_000, false);
        assert!((far - 20.8).abs() < 1.1, "{far} ns");
    }

    #[test]
    fn a_line_that_is_there_costs_nothing_and_is_dirty_once_written() {
        let (config, machine) = config();
        let shared = Shared::new(config, &machine).expect("valid");
        let mut core = Core::new(0, shared.config()).expect("valid");
        let at = Moment { instruction: 1, now_ps: 0 };
        core.miss(&shared, 64, Access::Load, at, || Place::Memory(64), || 0);
        assert!(core.hits(100, Access::Store));
        core.forget_addresses(&shared, 0);
        assert!(!core.hits(100, Access::Load));
        // It waits in the second level, so nothing was written yet.
        assert_eq!(shared.nodes(&machine)[0].writes, 0);
        assert_eq!(shared.nodes(&machine)[0].reads, 1);
    }

    #[test]
    fn dirty_lines_end_in_memory() {
        let (config, machine) = config();
        let shared = Shared::new(config, &machine).expect("valid");
        let mut core = Core::new(0, shared.config()).expect("valid");
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
    fn a_device_takes_its_time() {
        let (config, machine) = config();
        let shared = Shared::new(config, &machine).expect("valid");
        let mut core = Core::new(0, shared.config()).expect("valid");
        let at = Moment { instruction: 1, now_ps: 0 };
        let stall = core.miss(&shared, 64, Access::Load, at, || Place::Device, || 0);
        assert_eq!(stall, DEVICE_PS);
    }
}
