//! Cores, caches and memories together: a stream of accesses becomes time.
//! In: accesses of each core in program order. Out: each core's clock, hits by level, stalls.
//! Knows nothing of which core should run next: the caller takes the one whose clock is behind.

use tiercel_machine::{Machine, NodeId};

use crate::hierarchy::{Hierarchy, HierarchyShape, MAX_LEVELS};
use crate::memory::Memory;
use crate::window::{Window, WindowShape};
use crate::{LINE_BYTES, ModelError, PS_PER_NS};

/// A processor.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatorShape {
    /// Its caches.
    pub caches: HierarchyShape,
    /// Latency of each level, the closest first, nanoseconds; as many as there are levels.
    pub latency_ns: Vec<f64>,
    /// What limits misses in flight.
    pub window: WindowShape,
    /// Time of an instruction that waits for nothing, picoseconds.
    pub instruction_ps: u64,
}

/// One access of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Instructions since the core's previous access, this one included.
    pub instructions: u64,
    /// First byte.
    pub addr: u64,
    /// Whether it writes.
    pub write: bool,
    /// Whether the address comes from the core's previous miss, as in a pointer chase.
    pub depends: bool,
    /// Where the memory is.
    pub node: NodeId,
}

/// A processor with its memories.
#[derive(Clone, Debug)]
pub struct Simulator {
    shape: SimulatorShape,
    hierarchy: Hierarchy,
    memory: Memory,
    cores: Vec<Core>,
}

#[derive(Clone, Debug)]
struct Core {
    now_ps: u64,
    instruction: u64,
    /// When the data of the last miss is there.
    last_done_ps: u64,
    window: Window,
    /// Accesses by level; the one behind the last level is memory.
    served: [u64; MAX_LEVELS + 1],
}

impl Simulator {
    /// Everything idle and empty.
    pub fn new(machine: &Machine, shape: SimulatorShape) -> Result<Simulator, ModelError> {
        let hierarchy = Hierarchy::new(&shape.caches)?;
        if shape.latency_ns.len() != hierarchy.levels() {
            return Err(ModelError::Shape("each cache level needs a latency"));
        }
        let core = || {
            Ok(Core {
                now_ps: 0,
                instruction: 0,
                last_done_ps: 0,
                window: Window::new(shape.window)?,
                served: [0; MAX_LEVELS + 1],
            })
        };
        let cores = (0..shape.caches.cores).map(|_| core()).collect::<Result<_, ModelError>>()?;
        let memory = Memory::new(machine)?;
        Ok(Simulator { shape, hierarchy, memory, cores })
    }

    /// The next access of a core; returns the level that served it (as many as there are levels:
    /// memory). `node_of` places lines that are written back.
    pub fn access(
        &mut self,
        core: usize,
        access: &Access,
        node_of: impl Fn(u64) -> NodeId,
    ) -> usize {
        let served = self.hierarchy.access(core, access.addr, access.write);
        let state = &mut self.cores[core];
        state.served[served.level] += 1;
        state.instruction += access.instructions;
        let wanted_ps = state.now_ps + access.instructions * self.shape.instruction_ps;
        state.now_ps = state.window.reach(state.instruction, wanted_ps);
        // The first level's latency is part of the instruction's time; the others are waited for as
        // a miss is, and overlap in the same window.
        if served.level > 0 {
            let known_ps = if access.depends { state.last_done_ps } else { 0 };
            let level_ns = self.shape.latency_ns.get(served.level);
            let memory = &mut self.memory;
            let miss =
                state.window.miss(
                    state.instruction,
                    state.now_ps,
                    known_ps,
                    |out_ps| match level_ns {
                        Some(ns) => (ns * PS_PER_NS) as u64,
                        None => memory.read(access.node, access.addr, out_ps),
                    },
                );
            (state.now_ps, state.last_done_ps) = (miss.now_ps, miss.done_ps);
        }
        for line in served.written_back.iter() {
            let addr = line * LINE_BYTES;
            self.memory.write(node_of(addr), addr, state.now_ps);
        }
        served.level
    }

    /// A core's clock, picoseconds; what is in flight is not waited for.
    pub fn now_ps(&self, core: usize) -> u64 {
        self.cores[core].now_ps
    }

    /// Waits for everything a core has in flight; its clock then.
    pub fn drain(&mut self, core: usize) -> u64 {
        let core = &mut self.cores[core];
        core.now_ps = core.window.drain(core.now_ps);
        core.now_ps
    }

    /// Accesses of a core by the level that served them, the closest first, memory last.
    pub fn served(&self, core: usize) -> &[u64] {
        &self.cores[core].served[..=self.hierarchy.levels()]
    }

    /// The memories and what went through them.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}
