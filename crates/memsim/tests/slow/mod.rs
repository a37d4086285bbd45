//! The same rules as the crate's, said slowly: lists that are searched, nothing that is skipped.
//! In: the same accesses. Out: the same answers, or the crate is wrong.
//! Knows nothing of the crate's data. Memory's latency is not said twice: both ask a `Memory`.
//! Every access must have at least one instruction.

use tiercel_machine::{Machine, NodeId};
use tiercel_memsim::{Access, CacheShape, LINE_BYTES, Memory, Port, SimulatorShape};

const FLIGHT: u64 = 256;
const STREAMS: u64 = 64;
const REGION_LINES: u64 = 64;

/// Where a number has its place in a table: the highest bits of its product with 2^64 over the
/// golden ratio.
fn place(number: u64, places: u64) -> usize {
    let product = u128::from(number) * 0x9E37_79B9_7F4A_7C15 % (1 << 64);
    ((product * u128::from(places)) >> 64) as usize
}

/// A set is a list of ways with their three facts.
#[derive(Clone)]
pub struct SlowCache {
    sets: Vec<Vec<Option<Way>>>,
}

#[derive(Clone, Copy)]
struct Way {
    line: u64,
    dirty: bool,
    recent: bool,
}

impl SlowCache {
    pub fn new(shape: CacheShape) -> SlowCache {
        let sets = shape.bytes / LINE_BYTES / u64::from(shape.ways);
        SlowCache { sets: vec![vec![None; shape.ways as usize]; sets as usize] }
    }

    fn set(&mut self, line: u64) -> &mut Vec<Option<Way>> {
        let count = self.sets.len() as u64;
        &mut self.sets[(line % count) as usize]
    }

    pub fn holds(&mut self, line: u64) -> bool {
        self.set(line).iter().flatten().any(|way| way.line == line)
    }

    /// `None`: it was there; else what left: nothing, or a line and whether it was dirty.
    pub fn access(&mut self, line: u64, write: bool) -> Option<Option<(u64, bool)>> {
        let set = self.set(line);
        let found = set.iter().position(|way| way.is_some_and(|way| way.line == line));
        let at = found.unwrap_or_else(|| {
            let empty = set.iter().position(Option::is_none);
            let idle = set.iter().position(|way| way.is_some_and(|way| !way.recent));
            empty.or(idle).unwrap_or(0)
        });
        let before = set[at];
        let dirty = write || found.is_some() && before.is_some_and(|way| way.dirty);
        set[at] = Some(Way { line, dirty, recent: true });
        if set.iter().all(|way| way.is_some_and(|way| way.recent)) {
            for (other, way) in set.iter_mut().flatten().enumerate() {
                way.recent = other == at;
            }
        }
        match found {
            Some(_) => None,
            None => Some(before.map(|way| (way.line, way.dirty))),
        }
    }
}

#[derive(Clone, Default)]
struct SlowCore {
    now_ps: u64,
    instruction: u64,
    /// Every load there was: its instruction, and when it is done.
    loads: Vec<(u64, u64)>,
    /// When every store there was leaves.
    stores: Vec<u64>,
    mshrs: Vec<u64>,
    /// By the region's place: the region, the lines missed in it, the lines named since its stride
    /// changed.
    streams: Vec<(u64, Vec<i64>, Vec<i64>)>,
    /// By the line's place.
    flight: Vec<Option<(u64, u64)>>,
    /// When each prefetched line comes, in their order.
    fetched: Vec<u64>,
}

pub struct Slow {
    shape: SimulatorShape,
    /// Of each core; the last row is the shared one.
    caches: Vec<Vec<SlowCache>>,
    cores: Vec<SlowCore>,
    ports: Vec<Port>,
    pub memory: Memory,
    node_of: fn(u64) -> NodeId,
}

impl Slow {
    pub fn new(machine: &Machine, shape: &SimulatorShape, node_of: fn(u64) -> NodeId) -> Slow {
        let level = |level: &tiercel_memsim::LevelShape| SlowCache::new(level.cache);
        let mut caches: Vec<Vec<SlowCache>> =
            shape.cores.iter().map(|core| core.levels.iter().map(level).collect()).collect();
        caches.push(shape.shared.iter().map(level).collect());
        let core = |core: &tiercel_memsim::CoreShape| SlowCore {
            mshrs: vec![0; core.window.mshrs],
            streams: vec![(u64::MAX, Vec::new(), Vec::new()); STREAMS as usize],
            flight: vec![None; FLIGHT as usize],
            ..SlowCore::default()
        };
        let cores = shape.cores.iter().map(core).collect();
        let mut memory = Memory::new(machine).unwrap();
        let ports = shape.cores.iter().map(|core| memory.port(core.home)).collect();
        Slow { shape: shape.clone(), caches, cores, ports, memory, node_of }
    }

    pub fn now_ps(&self, core: usize) -> u64 {
        self.cores[core].now_ps
    }

    /// The level that served it, and when it is done.
    pub fn access(&mut self, core: usize, access: &Access) -> (usize, u64) {
        let shape = self.shape.cores[core].clone();
        let line = access.addr / LINE_BYTES;
        let state = &mut self.cores[core];
        // Instruction by instruction: none runs while a load a window before it is not done.
        for _ in 0..access.instructions {
            state.instruction += 1;
            state.now_ps += shape.instruction_ps;
            let behind = state.instruction.checked_sub(shape.window.instructions);
            for &(instruction, done_ps) in &state.loads {
                if Some(instruction) == behind {
                    state.now_ps = state.now_ps.max(done_ps);
                }
            }
        }
        let known_ps = state.now_ps.max(access.after_ps);
        let (level, back) = self.bring(core, 0, line, access.write);
        let flight_ps = self.flight_ps(core, line);
        if level == 0 {
            let done_ps = (known_ps + shape.levels[0].latency_ps).max(flight_ps);
            if !access.write && access.after_ps > self.cores[core].now_ps {
                let instruction = self.cores[core].instruction;
                self.cores[core].loads.push((instruction, done_ps));
            }
            return (0, done_ps);
        }
        let mshr = self.mshr(core, known_ps);
        let out_ps = known_ps.max(self.cores[core].mshrs[mshr]);
        let mut done_ps = out_ps + self.latency_ps(core, level, line, out_ps);
        if level < self.levels(core) {
            done_ps = done_ps.max(flight_ps);
        }
        self.cores[core].mshrs[mshr] = done_ps;
        self.cores[core].flight[place(line, FLIGHT)] = Some((line, done_ps));
        if access.write {
            self.store(core, done_ps, shape.window.stores);
        } else {
            let instruction = self.cores[core].instruction;
            self.cores[core].loads.push((instruction, done_ps));
        }
        self.write_back(core, &back);
        self.prefetch(core, line);
        (level, done_ps)
    }

    pub fn drain(&mut self, core: usize) -> u64 {
        let state = &mut self.cores[core];
        let loads = state.loads.iter().map(|&(_, done_ps)| done_ps);
        let last_ps = loads.chain(state.stores.iter().copied()).max().unwrap_or(0);
        state.now_ps = state.now_ps.max(last_ps);
        state.now_ps
    }

    fn levels(&self, core: usize) -> usize {
        self.caches[core].len() + usize::from(self.shape.shared.is_some())
    }

    fn cache(&mut self, core: usize, level: usize) -> &mut SlowCache {
        let private = self.caches[core].len();
        let row = if level < private { core } else { self.shape.cores.len() };
        &mut self.caches[row][if level < private { level } else { 0 }]
    }

    /// Of the MSHRs free by then the last one to be free, else the first one.
    fn mshr(&self, core: usize, known_ps: u64) -> usize {
        let mshrs = &self.cores[core].mshrs;
        let by_time = |&at: &usize| mshrs[at];
        let free = (0..mshrs.len()).filter(|&at| mshrs[at] <= known_ps).max_by_key(by_time);
        free.or((0..mshrs.len()).min_by_key(by_time)).unwrap()
    }

    fn store(&mut self, core: usize, done_ps: u64, most: usize) {
        let state = &mut self.cores[core];
        let waiting: Vec<u64> =
            state.stores.iter().copied().filter(|&leaves_ps| leaves_ps > state.now_ps).collect();
        if waiting.len() >= most {
            state.now_ps = *waiting.iter().min().unwrap();
        }
        let last_ps = state.stores.iter().copied().max().unwrap_or(0);
        state.stores.push(done_ps.max(last_ps));
    }

    fn bring(&mut self, core: usize, from: usize, line: u64, write: bool) -> (usize, Vec<u64>) {
        let levels = self.levels(core);
        let (mut served, mut left) = (levels, Vec::new());
        for level in from..levels {
            match self.cache(core, level).access(line, write && level == 0) {
                None => {
                    served = level;
                    break;
                }
                Some(victim) => left.push((level, victim)),
            }
        }
        let mut back = Vec::new();
        for (from, victim) in left.into_iter().rev() {
            let mut leaving = victim;
            for level in from + 1..levels {
                let Some((line, true)) = leaving else { break };
                leaving = self.cache(core, level).access(line, true).flatten();
            }
            if let Some((line, true)) = leaving {
                back.push(line);
            }
        }
        (served, back)
    }

    fn latency_ps(&mut self, core: usize, level: usize, line: u64, out_ps: u64) -> u64 {
        if level == self.levels(core) {
            let (addr, now_ps) = (line * LINE_BYTES, self.cores[core].now_ps);
            let node = (self.node_of)(addr);
            return self.memory.read(self.ports[core], node, addr, now_ps, out_ps - now_ps);
        }
        let own = &self.shape.cores[core].levels;
        own.get(level).or(self.shape.shared.as_ref()).unwrap().latency_ps
    }

    fn write_back(&mut self, core: usize, back: &[u64]) {
        for line in back {
            let (addr, now_ps) = (line * LINE_BYTES, self.cores[core].now_ps);
            self.memory.write(self.ports[core], (self.node_of)(addr), addr, now_ps);
        }
    }

    fn flight_ps(&self, core: usize, line: u64) -> u64 {
        let entry = self.cores[core].flight[place(line, FLIGHT)];
        entry.filter(|&(of, _)| of == line).map_or(0, |(_, done_ps)| done_ps)
    }

    fn prefetch(&mut self, core: usize, line: u64) {
        let most = self.shape.cores[core].prefetch.map_or(0, |prefetch| prefetch.lines as usize);
        for line in self.ahead(core, line) {
            if self.cache(core, 1).holds(line) {
                continue;
            }
            let now_ps = self.cores[core].now_ps;
            let fetched = &self.cores[core].fetched;
            // The one as many before as may be in flight must have come.
            if fetched.len() >= most && fetched[fetched.len() - most] > now_ps {
                continue;
            }
            let (level, back) = self.bring(core, 1, line, false);
            let done_ps = now_ps + self.latency_ps(core, level, line, now_ps);
            self.cores[core].fetched.push(done_ps);
            self.cores[core].flight[place(line, FLIGHT)] = Some((line, done_ps));
            self.write_back(core, &back);
        }
    }

    fn ahead(&mut self, core: usize, line: u64) -> Vec<u64> {
        let Some(shape) = self.shape.cores[core].prefetch else { return Vec::new() };
        let (region, at) = (line / REGION_LINES, (line % REGION_LINES) as i64);
        let stream = &mut self.cores[core].streams[place(region, STREAMS)];
        if stream.0 != region {
            *stream = (region, vec![at], Vec::new());
            return Vec::new();
        }
        let (_, missed, named) = stream;
        if missed.last() == Some(&at) {
            return Vec::new();
        }
        missed.push(at);
        let strides: Vec<i64> = missed.windows(2).rev().map(|pair| pair[1] - pair[0]).collect();
        if strides.len() < 2 || strides[0] != strides[1] {
            named.clear();
            return Vec::new();
        }
        let wanted = (1..=i64::from(shape.ahead)).map(|k| at + k * strides[0]);
        let fresh = wanted.filter(|line| (0..REGION_LINES as i64).contains(line));
        let lines: Vec<i64> =
            fresh.filter(|line| !named.contains(line)).take(shape.degree as usize).collect();
        named.extend(&lines);
        lines.into_iter().map(|line| region * REGION_LINES + line as u64).collect()
    }
}
