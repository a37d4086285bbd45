//! Cores and what they share, together: streams of accesses become time.
//! In: accesses of each core in program order. Out: each core's clock, hits by level.
//! Knows nothing of which core should run next: the caller takes the one whose clock is behind.

use tiercel_machine::{Machine, NodeId};

use crate::ModelError;
use crate::core::{Access, Core, CoreShape, LevelShape, Prefetches, Served, Uncore};
use crate::memory::Memory;

/// A processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatorShape {
    /// Its cores.
    pub cores: Vec<CoreShape>,
    /// The last level, of all cores together.
    pub shared: Option<LevelShape>,
}

/// A processor with its memories.
#[derive(Clone, Debug)]
pub struct Simulator {
    cores: Vec<Core>,
    uncore: Uncore,
}

impl Simulator {
    /// Everything idle and empty.
    pub fn new(machine: &Machine, shape: &SimulatorShape) -> Result<Simulator, ModelError> {
        Simulator::with_memory(Memory::new(machine)?, shape)
    }

    /// The same before these memories.
    pub fn with_memory(memory: Memory, shape: &SimulatorShape) -> Result<Simulator, ModelError> {
        let mut uncore = Uncore::with_memory(memory, shape.shared)?;
        let cores = shape.cores.iter().map(|core| Core::new(core, &mut uncore));
        Ok(Simulator { cores: cores.collect::<Result<_, _>>()?, uncore })
    }

    /// The next access of a core. `node_of` places what memory reads or takes back.
    #[inline]
    pub fn access(
        &mut self,
        core: usize,
        access: &Access,
        node_of: impl Fn(u64) -> NodeId,
    ) -> Served {
        self.cores[core].access(access, &mut self.uncore, node_of)
    }

    /// A core's clock, picoseconds; what is in flight is not waited for.
    pub fn now_ps(&self, core: usize) -> u64 {
        self.cores[core].now_ps()
    }

    /// Waits for everything a core has in flight; its clock then.
    pub fn drain(&mut self, core: usize) -> u64 {
        self.cores[core].drain()
    }

    /// Accesses of a core by the level that served them, the closest first, memory last.
    pub fn served(&self, core: usize) -> &[u64] {
        let levels = self.cores[core].levels(&self.uncore);
        &self.cores[core].served()[..=levels]
    }

    /// What a core's prefetcher did.
    pub fn prefetches(&self, core: usize) -> Prefetches {
        self.cores[core].prefetches()
    }

    /// The memories and what went through them.
    pub fn memory(&self) -> &Memory {
        self.uncore.memory()
    }
}
