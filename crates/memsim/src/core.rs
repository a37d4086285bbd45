//! One core (private caches, miss window, prefetcher, clock), and what all cores share.
//! In: a core's accesses in program order. Out: what served each, when it is done; the clock.
//! Knows nothing of other cores' clocks. Not modelled: coherence between cores (two cores that
//! write one line both keep it) and back-invalidation (a line may outlive its copy in the shared
//! cache).
//!
//! Split in two so that several threads can run a core each and lock what they share only for
//! misses.

use tiercel_machine::number::index;
use tiercel_machine::{Machine, NodeId};

use crate::cache::{Cache, CacheShape};
use crate::memory::{Memory, Port};
use crate::prefetch::{PrefetchShape, Prefetcher};
use crate::window::{Progress, Window, WindowShape};
use crate::{LINE_BYTES, ModelError, place};

/// Most levels, the shared one included.
pub const MAX_LEVELS: usize = 4;
/// Entries of the filter in front of the first level.
const FILTER: usize = 64;
/// Lines whose arrival is known, some times as many as are in flight. A line that takes another
/// one's place in the table lets that one count as arrived.
const FLIGHT: u64 = 256;

/// One cache level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelShape {
    /// Its size.
    pub cache: CacheShape,
    /// From the access to its data, picoseconds.
    pub latency_ps: u64,
}

/// A core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreShape {
    /// Its caches, the closest first.
    pub levels: Vec<LevelShape>,
    /// What limits misses in flight.
    pub window: WindowShape,
    /// `None` switches it off.
    pub prefetch: Option<PrefetchShape>,
    /// Time of an instruction that waits for nothing, picoseconds.
    pub instruction_ps: u64,
    /// The node the core sits beside; `None`: it is near to all memory.
    pub home: Option<NodeId>,
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
    /// When its address is known: `done_ps` of the access it was read by, as in a pointer chase; 0
    /// for an address that depends on nothing.
    pub after_ps: u64,
}

/// How an access was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// 0 is the level closest to the core; as many as there are levels: by memory.
    pub level: usize,
    /// When the data is there.
    pub done_ps: u64,
    /// From when the address was known to then.
    pub latency_ps: u64,
    /// A store changed a line that was clean in all of the core's own caches, and in the shared
    /// cache if that was looked up. If it was clean there too ([`Uncore::holds_dirty`]), it goes
    /// back to memory once more.
    pub dirtied: bool,
}

/// The integral of outstanding misses over time, and the time with at least one: their ratio is the
/// MLP, as processors count it (`l3_miss_demand_data_rd` of Intel's OFFCORE_REQUESTS_OUTSTANDING,
/// and the cycles with any).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Times of all lines added up, picoseconds.
    pub lines_ps: u64,
    /// Time in which there was any.
    pub any_ps: u64,
}

/// What a prefetcher did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefetches {
    /// Lines fetched.
    pub issued: u64,
    /// Lines not fetched because too many were in flight.
    pub dropped: u64,
    /// Misses of the first level that found their line on its way.
    pub late: u64,
}

/// What the cores share: the last level, and the memories.
#[derive(Clone, Debug)]
pub struct Uncore {
    shared: Option<Cache>,
    latency_ps: u64,
    memory: Memory,
}

/// One core.
#[derive(Clone, Debug)]
pub struct Core {
    shape: CoreShape,
    now_ps: u64,
    instruction: u64,
    /// The clock when the last access was over.
    since_ps: u64,
    private: Vec<Cache>,
    /// By first-level set: the line used last in it, shifted left, and whether it is dirty. A use
    /// of that line again changes nothing in the cache, so that it need not be asked.
    filter: [u64; FILTER],
    window: Window,
    prefetcher: Option<Prefetcher>,
    prefetches: Prefetches,
    /// When each of the prefetcher's lines in flight comes, and the one that is used next.
    fetched_ps: Vec<u64>,
    fetch: usize,
    flight: Flight,
    pending: Pending,
    /// Until when something is pending.
    pending_until_ps: u64,
    /// Accesses by level; the one behind the last level is memory.
    served: [u64; MAX_LEVELS + 1],
    port: Port,
}

/// Outstanding fills: lines that the caches hold already, and when they arrive. By hash of the
/// line.
#[derive(Clone, Debug)]
struct Flight {
    lines: [u64; index(FLIGHT)],
    done_ps: [u64; index(FLIGHT)],
    /// The last of all.
    until_ps: u64,
}

/// Lines that memory must take; one may leave for each level that takes one in.
#[derive(Default)]
struct Back {
    lines: [u64; MAX_LEVELS],
    count: usize,
}

impl Uncore {
    /// The memories of a machine behind a last level, if there is one; idle and empty.
    pub fn new(machine: &Machine, shared: Option<LevelShape>) -> Result<Uncore, ModelError> {
        Uncore::with_memory(Memory::new(machine)?, shared)
    }

    /// Memories behind a last level, if there is one.
    pub fn with_memory(memory: Memory, shared: Option<LevelShape>) -> Result<Uncore, ModelError> {
        Ok(Uncore {
            shared: shared.map(|level| Cache::new(level.cache)).transpose()?,
            latency_ps: shared.map_or(0, |level| level.latency_ps),
            memory,
        })
    }

    /// The memories and what went through them.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether the last level has the line of an address as one that must go back to memory.
    pub fn holds_dirty(&self, addr: u64) -> bool {
        self.shared.as_ref().is_some_and(|cache| cache.holds_dirty(addr / LINE_BYTES))
    }
}

impl Core {
    /// Empty caches, time 0. `uncore` is what it will be used with.
    pub fn new(shape: &CoreShape, uncore: &mut Uncore) -> Result<Core, ModelError> {
        let levels = shape.levels.len() + usize::from(uncore.shared.is_some());
        if shape.levels.is_empty() || levels > MAX_LEVELS {
            return Err(ModelError::Shape("1 to 4 cache levels are needed, the first of a core"));
        }
        if shape.prefetch.is_some() && levels < 2 {
            return Err(ModelError::Shape("a prefetcher needs a level behind the first"));
        }
        let private = shape.levels.iter().map(|level| Cache::new(level.cache));
        Ok(Core {
            now_ps: 0,
            instruction: 0,
            since_ps: 0,
            private: private.collect::<Result<_, _>>()?,
            filter: [0; FILTER],
            window: Window::new(shape.window)?,
            prefetcher: shape.prefetch.map(Prefetcher::new).transpose()?,
            prefetches: Prefetches::default(),
            fetched_ps: vec![0; shape.prefetch.map_or(0, |prefetch| prefetch.lines as usize)],
            fetch: 0,
            flight: Flight { lines: [0; index(FLIGHT)], done_ps: [0; index(FLIGHT)], until_ps: 0 },
            pending: Pending::default(),
            pending_until_ps: 0,
            served: [0; MAX_LEVELS + 1],
            port: uncore.memory.port(shape.home),
            shape: shape.clone(),
        })
    }

    /// The next access, if the first level has it; `None` changes nothing. [`Core::access`] does
    /// this itself: it is for callers that must lock what the cores share.
    #[inline]
    pub fn hit(&mut self, access: &Access) -> Option<Served> {
        let line = access.addr / LINE_BYTES;
        let key = (line + 1) << 1;
        let slot = self.private[0].set_of(line) % FILTER;
        let entry = self.filter[slot];
        let mut dirtied = false;
        if entry != key | 1 && (entry != key || access.write) {
            dirtied = access.write && self.is_clean(line);
            if !self.private[0].hit(line, access.write) {
                return None;
            }
            self.filter[slot] = key | u64::from(access.write);
        }
        self.step(access);
        self.served[0] += 1;
        let known_ps = self.now_ps.max(access.after_ps);
        let mut done_ps = known_ps + self.shape.levels[0].latency_ps;
        if self.flight.until_ps > done_ps {
            done_ps = done_ps.max(self.flight.done_ps(line));
        }
        // An access that waits for nothing ends with its instruction.
        if access.after_ps > self.now_ps && !access.write {
            self.now_ps = self.window.load(self.instruction, self.now_ps, done_ps);
        }
        self.since_ps = self.now_ps;
        Some(Served { level: 0, done_ps, latency_ps: done_ps - known_ps, dirtied })
    }

    /// The next access. `node_of` places what memory reads or takes back.
    #[inline]
    pub fn access(
        &mut self,
        access: &Access,
        uncore: &mut Uncore,
        node_of: impl Fn(u64) -> NodeId,
    ) -> Served {
        match self.hit(access) {
            Some(served) => served,
            None => self.miss(access, uncore, &node_of),
        }
    }

    /// The clock, picoseconds; what is in flight is not waited for.
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// The core ran until `now_ps`, without the accesses it reports next; an earlier time changes
    /// nothing.
    pub fn advance(&mut self, now_ps: u64) {
        self.now_ps = self.now_ps.max(now_ps);
    }

    /// Waits for everything in flight; the clock then.
    pub fn drain(&mut self) -> u64 {
        self.now_ps = self.window.drain(self.now_ps);
        self.since_ps = self.now_ps;
        self.now_ps
    }

    /// Accesses by the level that served them, the closest first; all that follow the last level
    /// are memory's.
    pub fn served(&self) -> &[u64; MAX_LEVELS + 1] {
        &self.served
    }

    /// What was on its way from memory for this core's accesses so far.
    pub fn pending(&self) -> Pending {
        self.pending
    }

    /// What the prefetcher did.
    pub fn prefetches(&self) -> Prefetches {
        self.prefetches
    }

    #[inline]
    fn step(&mut self, access: &Access) {
        let from = Progress { instruction: self.instruction, now_ps: self.since_ps };
        self.instruction += access.instructions;
        let wanted_ps = self.now_ps + access.instructions * self.shape.instruction_ps;
        let to = Progress { instruction: self.instruction, now_ps: wanted_ps };
        self.now_ps = self.window.reach(from, to);
    }

    fn miss(
        &mut self,
        access: &Access,
        uncore: &mut Uncore,
        node_of: &impl Fn(u64) -> NodeId,
    ) -> Served {
        self.step(access);
        let line = access.addr / LINE_BYTES;
        let dirtied = access.write && self.is_clean(line) && !uncore.holds_dirty(access.addr);
        let (level, back) = self.bring(0, line, access.write, uncore);
        let slot = self.private[0].set_of(line) % FILTER;
        self.filter[slot] = (line + 1) << 1 | u64::from(access.write);
        self.served[level] += 1;
        let known_ps = self.now_ps.max(access.after_ps);
        let mshr = self.window.mshr(self.now_ps, known_ps);
        // Memory sees it when it goes out, not when the core comes to it.
        let ahead_ps = mshr.out_ps - self.now_ps;
        let latency_ps = self.latency_ps(level, line, ahead_ps, uncore, node_of);
        let mut done_ps = mshr.out_ps + latency_ps;
        let flight_ps = self.flight.done_ps(line);
        if level < self.levels(uncore) && flight_ps > done_ps {
            (self.prefetches.late, done_ps) = (self.prefetches.late + 1, flight_ps);
        }
        self.window.take(mshr, done_ps);
        self.flight.add(line, done_ps);
        if level == self.levels(uncore) {
            self.count_outstanding(mshr.out_ps, done_ps);
        }
        self.now_ps = if access.write {
            self.window.store(self.now_ps, done_ps)
        } else {
            self.window.load(self.instruction, self.now_ps, done_ps)
        };
        self.since_ps = self.now_ps;
        self.write_back(&back, uncore, node_of);
        if let Some(prefetcher) = &mut self.prefetcher {
            let ahead = prefetcher.miss(line);
            ahead.lines().for_each(|line| self.prefetch(line, uncore, node_of));
        }
        Served { level, done_ps, latency_ps: done_ps - known_ps, dirtied }
    }

    /// Accounts for one outstanding miss.
    fn count_outstanding(&mut self, out_ps: u64, done_ps: u64) {
        self.pending.lines_ps += done_ps - out_ps;
        self.pending.any_ps += done_ps.saturating_sub(out_ps.max(self.pending_until_ps));
        self.pending_until_ps = self.pending_until_ps.max(done_ps);
    }

    fn is_clean(&self, line: u64) -> bool {
        !self.private.iter().any(|cache| cache.holds_dirty(line))
    }

    /// Brings a line into the second level, unless it is there or there are too many in flight.
    fn prefetch(&mut self, line: u64, uncore: &mut Uncore, node_of: &impl Fn(u64) -> NodeId) {
        if level_at(&mut self.private, uncore, 1).holds(line) {
            return;
        }
        if self.fetched_ps[self.fetch] > self.now_ps {
            self.prefetches.dropped += 1;
            return;
        }
        self.prefetches.issued += 1;
        let (level, back) = self.bring(1, line, false, uncore);
        let latency_ps = self.latency_ps(level, line, 0, uncore, node_of);
        let done_ps = self.now_ps + latency_ps;
        self.fetched_ps[self.fetch] = done_ps;
        self.fetch = if self.fetch + 1 == self.fetched_ps.len() { 0 } else { self.fetch + 1 };
        self.flight.add(line, done_ps);
        self.write_back(&back, uncore, node_of);
    }

    /// Looks for a line from a level on, and puts it into every level before the one that has it.
    /// Only the first level learns that it was written, the others when it is evicted. It is known
    /// that the first level looked at does not have it.
    fn bring(&mut self, from: usize, line: u64, write: bool, uncore: &mut Uncore) -> (usize, Back) {
        let levels = self.levels(uncore);
        let mut left = [0; MAX_LEVELS];
        let (mut served, mut dirty) = (from, false);
        loop {
            let cache = level_at(&mut self.private, uncore, served);
            if let Some(evicted) = cache.fill(line, write && served == 0)
                && evicted.dirty
            {
                (left[served], dirty) = (evicted.line + 1, true);
            }
            served += 1;
            if served == levels || level_at(&mut self.private, uncore, served).hit(line, false) {
                break;
            }
        }
        let mut back = Back::default();
        if !dirty {
            return (served, back);
        }
        // From the last level up: what leaves a level finds the one below as the fill left it.
        for level in (from..served).rev() {
            if left[level] != 0 {
                self.evict(left[level] - 1, level + 1, uncore, &mut back);
            }
        }
        (served, back)
    }

    /// A dirty line goes into a level, what that makes leave goes into the next one, and so on.
    fn evict(&mut self, line: u64, into: usize, uncore: &mut Uncore, back: &mut Back) {
        let mut line = line;
        for level in into..self.levels(uncore) {
            let cache = level_at(&mut self.private, uncore, level);
            if cache.hit(line, true) {
                return;
            }
            match cache.fill(line, true).filter(|evicted| evicted.dirty) {
                Some(evicted) => line = evicted.line,
                None => return,
            }
        }
        back.lines[back.count] = line;
        back.count += 1;
    }

    fn latency_ps(
        &self,
        level: usize,
        line: u64,
        ahead_ps: u64,
        uncore: &mut Uncore,
        node_of: &impl Fn(u64) -> NodeId,
    ) -> u64 {
        match self.shape.levels.get(level) {
            Some(level) => level.latency_ps,
            None if level < self.levels(uncore) => uncore.latency_ps,
            None => {
                let addr = line * LINE_BYTES;
                let node = node_of(addr);
                uncore.memory.read(self.port, node, addr, self.now_ps, ahead_ps)
            }
        }
    }

    fn write_back(&self, back: &Back, uncore: &mut Uncore, node_of: &impl Fn(u64) -> NodeId) {
        for line in &back.lines[..back.count] {
            let addr = line * LINE_BYTES;
            uncore.memory.write(self.port, node_of(addr), addr, self.now_ps);
        }
    }

    pub(crate) fn levels(&self, uncore: &Uncore) -> usize {
        self.private.len() + usize::from(uncore.shared.is_some())
    }
}

impl Flight {
    /// When the line comes; 0 if that is not known any more.
    #[inline]
    fn done_ps(&self, line: u64) -> u64 {
        let at = place(line, FLIGHT);
        if self.lines[at] == line + 1 { self.done_ps[at] } else { 0 }
    }

    fn add(&mut self, line: u64, done_ps: u64) {
        let at = place(line, FLIGHT);
        (self.lines[at], self.done_ps[at]) = (line + 1, done_ps);
        self.until_ps = self.until_ps.max(done_ps);
    }
}

/// A level of a core's, or behind them the shared one, which then exists.
#[inline]
fn level_at<'a>(private: &'a mut [Cache], uncore: &'a mut Uncore, level: usize) -> &'a mut Cache {
    match private.get_mut(level) {
        Some(cache) => cache,
        None => uncore.shared.as_mut().expect("levels are counted with the shared one"),
    }
}
