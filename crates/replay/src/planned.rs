//! Plans in the model: the planner's placements, made from the stream itself.
//! In: a stream, its lives, a strategy. Out: objects born where the plan has them, and moves.
//! Knows nothing of how placements are found.
//!
//! ```text
//! lives     cut into chunks of equal size, at most 64 of 64 KiB or more
//! work      cut into 64 slots: phases that a run could recognise
//! births    where the plan has them, for free; memory that a dead object left there does not bind
//! moves     at the entry of a slot, by the mover beside the program
//! ```

use std::collections::{BTreeMap, VecDeque};

use tiercel_ledger::movement::{Move, Reason};
use tiercel_machine::number::{index, index_u32};
use tiercel_planner::{
    Memory, MoveSpeed, Object, Objective, Options, Phase, Placements, PlanError, Scaling, Strategy,
    Use, Workload, plan,
};
use tiercel_wire::Record;
use tiercel_wire::layout::OS_PAGE_BYTES;

use crate::bound::Life;
use crate::memory::{Pages, pages_of};
use crate::speed::Speeds;
use crate::stream::{Accesses, BASE, Stream, What};
use crate::world::World;

/// Slots of a stream: a twentieth of a whole life (OAM 3.4) is 3 of them.
const SLOTS: u64 = 64;
/// Most chunks of an object: as many as ranges in which an object's accesses are counted.
const CHUNKS_MAX: u64 = 64;
/// Fewest OS pages of a chunk: 64 KiB.
const CHUNK_OS_PAGES_MIN: u64 = 16;
/// Weight of a latency that is waited for alone, against the eighth of H2M Eq. 1.
const WHOLE_WEIGHT: f64 = 8.0;
/// Share of lines that are their block's first where all lines follow one another: 64 of 256 bytes.
const DENSE: f64 = 0.25;
/// Bytes of a line.
const LINE_BYTES: f64 = 64.0;

/// How a plan is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanSetting {
    /// How placements are found.
    pub strategy: Strategy,
    /// What is minimized. Without known energies: time.
    pub objective: Objective,
}

/// A part of a life.
#[derive(Clone, Debug, PartialEq)]
struct Chunk {
    life: usize,
    pages: Pages,
}

/// Carries a plan out.
#[derive(Debug)]
pub struct PlanDriver {
    chunks: Vec<Chunk>,
    /// Chunks of each life: the first, and the one after the last.
    of_life: Vec<(usize, usize)>,
    placements: Placements,
    slot_ns: u64,
    /// The slot that the program is in.
    slot: u32,
    next_move: usize,
    next_life: usize,
    /// By first byte.
    living: BTreeMap<u64, usize>,
    waiting: VecDeque<(usize, bool)>,
}

impl PlanDriver {
    /// Plans a stream for so much fast memory.
    pub fn new(
        (stream, lives): (&Stream, &[Life]),
        (speeds, room_bytes): (&Speeds, u64),
        setting: PlanSetting,
    ) -> Result<PlanDriver, PlanError> {
        let mut input = Input::new(stream, lives);
        input.follow(stream, speeds);
        let Input { chunks, of_life, workload, .. } = input.finished();
        let memories = memories(speeds, room_bytes);
        let knows_energy = memories.iter().all(|memory| memory.energy.is_some());
        let mut copy = MoveSpeed::default();
        copy.measured_ns[1][0] = speeds.promote_ns_per_byte();
        copy.measured_ns[0][1] = speeds.demote_ns_per_byte();
        let objective = if knows_energy { setting.objective } else { Objective::Time };
        let strategy = setting.strategy;
        let options = Options { strategy, objective, copy, ..Options::default() };
        Ok(PlanDriver {
            placements: plan(&workload, &memories, &options)?,
            chunks,
            of_life,
            slot_ns: slot_ns(stream),
            slot: 0,
            next_move: 0,
            next_life: 0,
            living: BTreeMap::new(),
            waiting: VecDeque::new(),
        })
    }

    /// An object is born or dies.
    pub fn record(&mut self, world: &mut World<'_>, record: &Record) {
        match *record {
            Record::Born { addr, .. } => {
                let life = self.next_life;
                self.next_life += 1;
                self.living.insert(addr, life);
                let (first, end) = self.of_life[life];
                for at in first..end {
                    let is_fast = self.placements.placements[at].birth == 0;
                    let pages = self.chunks[at].pages.clone();
                    world.memory.bind(pages.clone(), !is_fast);
                    world.memory.place(pages.clone(), is_fast, pages.end - pages.start);
                }
            }
            Record::Died { addr, .. } => {
                self.living.remove(&addr);
            }
            _ => {}
        }
    }

    /// The program has done so much work.
    pub fn on_time(&mut self, world: &mut World<'_>, work_ns: u64) {
        self.slot = index_u32(index(work_ns / self.slot_ns));
        let moves = &self.placements.moves;
        while let Some(one) = moves.get(self.next_move).filter(|one| one.phase <= self.slot) {
            self.waiting.push_back((one.object, one.to == 0));
            self.next_move += 1;
        }
        while world.mover.collect().is_some() {}
        if !self.waiting.is_empty() && !world.mover.is_busy() {
            let waiting = std::mem::take(&mut self.waiting);
            let moves = waiting.into_iter().filter_map(|one| self.asked(world, one));
            let moves: Vec<Move> = moves.collect();
            if !moves.is_empty() {
                world.mover.submit(moves);
            }
        }
    }

    /// A move of a chunk whose object lives.
    fn asked(&self, world: &World<'_>, (object, is_up): (usize, bool)) -> Option<Move> {
        let Chunk { life, pages } = &self.chunks[object];
        let (first, _) = self.of_life[*life];
        let addr = |page: u64| BASE + page * OS_PAGE_BYTES;
        let is_living = self.living.get(&addr(self.chunks[first].pages.start)) == Some(life);
        let speeds = world.speeds;
        is_living.then(|| Move {
            pid: 0,
            addr: addr(pages.start),
            bytes: (pages.end - pages.start) * OS_PAGE_BYTES,
            from: None,
            to: if is_up { speeds.fast } else { speeds.slow },
            reason: if is_up { Reason::Promote } else { Reason::Demote },
            gain_ns_per_s: 0.0,
            cost_ns: 0.0,
        })
    }
}

fn slot_ns(stream: &Stream) -> u64 {
    stream.work_ns.div_ceil(SLOTS).max(1)
}

/// The two memories as the planner sees them: one thread has what one CPU has.
fn memories(speeds: &Speeds, room_bytes: u64) -> Vec<Memory> {
    let (mut memories, _) = Memory::of_machine(&speeds.machine, None);
    for (memory, is_fast) in memories.iter_mut().zip([true, false]) {
        let (read_gb_s, write_gb_s) = speeds.gb_s(is_fast);
        memory.scaling = vec![Scaling { threads: 1, read_gb_s, write_gb_s }];
        // Slow memory is never full in the model.
        memory.capacity_bytes = if is_fast { room_bytes } else { u64::MAX };
    }
    memories
}

/// What accesses to a chunk in a slot sum up to.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    misses: f64,
    dirtied: f64,
    /// Misses over how many were under way at once.
    waited: f64,
    apart: f64,
}

/// The planner's input while it is made.
struct Input {
    chunks: Vec<Chunk>,
    of_life: Vec<(usize, usize)>,
    workload: Workload,
    slot_ns: u64,
    sums: BTreeMap<(usize, u32), Sum>,
}

impl Input {
    fn new(stream: &Stream, lives: &[Life]) -> Input {
        let (mut chunks, mut of_life) = (Vec::new(), Vec::new());
        for (life, one) in lives.iter().enumerate() {
            let first = chunks.len();
            let all = pages_of(one.addr, one.bytes);
            let most = (all.end - all.start).div_ceil(CHUNKS_MAX).max(CHUNK_OS_PAGES_MIN);
            let mut begin = all.start;
            while begin < all.end {
                let end = (begin + most).min(all.end);
                chunks.push(Chunk { life, pages: begin..end });
                begin = end;
            }
            of_life.push((first, chunks.len()));
        }
        let slot_ns = slot_ns(stream);
        let count = stream.work_ns.div_ceil(slot_ns).max(1);
        let phase = |slot: u64| Phase {
            name: format!("slot {slot}"),
            start_ns: slot * slot_ns,
            compute_ns: slot_ns as f64,
        };
        let end_ns = (count * slot_ns).max(stream.work_ns + 1);
        let object = |chunk: &Chunk| Object {
            name: String::new(),
            bytes: (chunk.pages.end - chunk.pages.start) * OS_PAGE_BYTES,
            birth_ns: 0,
            death_ns: end_ns,
            uses: Vec::new(),
        };
        let objects = chunks.iter().map(object).collect();
        let phases = (0..count).map(phase).collect();
        let workload = Workload { objects, phases, end_ns, sample_period: 1.0 };
        Input { chunks, of_life, workload, slot_ns, sums: BTreeMap::new() }
    }

    fn follow(&mut self, stream: &Stream, speeds: &Speeds) {
        let (mut living, mut next): (BTreeMap<u64, usize>, usize) = (BTreeMap::new(), 0);
        for event in &stream.events {
            match &event.what {
                What::Record(Record::Born { addr, .. }) => {
                    living.insert(*addr, next);
                    self.lifetime(next, |object| object.birth_ns = event.at_ns);
                    next += 1;
                }
                What::Record(Record::Died { addr, .. }) => {
                    if let Some(life) = living.remove(addr) {
                        let at_ns = event.at_ns;
                        self.lifetime(life, |object| {
                            object.death_ns = at_ns.max(object.birth_ns + 1);
                        });
                    }
                }
                What::Record(_) => {}
                What::Accesses(accesses) => {
                    if let Some((_, life)) = living.range(..=accesses.addr).next_back() {
                        self.access(*life, event.at_ns, accesses, speeds);
                    }
                }
            }
        }
    }

    fn lifetime(&mut self, life: usize, change: impl Fn(&mut Object)) {
        let (first, end) = self.of_life[life];
        self.workload.objects[first..end].iter_mut().for_each(change);
    }

    fn access(&mut self, life: usize, at_ns: u64, accesses: &Accesses, speeds: &Speeds) {
        let phases = &mut self.workload.phases;
        let slot = index(at_ns / self.slot_ns).min(phases.len() - 1);
        let compute_ns = &mut phases[slot].compute_ns;
        *compute_ns = (*compute_ns - speeds.fast_ns(accesses)).max(0.0);
        let pages = pages_of(accesses.addr, accesses.bytes);
        let count = (pages.end - pages.start) as f64;
        let (first, end) = self.of_life[life];
        let chunks = &self.chunks[first..end];
        let from = first + chunks.partition_point(|chunk| chunk.pages.end <= pages.start);
        let to = first + chunks.partition_point(|chunk| chunk.pages.start < pages.end);
        for at in from..to {
            let own = &self.chunks[at].pages;
            let shared = own.end.min(pages.end) - own.start.max(pages.start);
            let share = shared as f64 / count;
            let sum = self.sums.entry((at, index_u32(slot))).or_default();
            let misses = accesses.misses() as f64 * share;
            sum.misses += misses;
            sum.dirtied += accesses.dirtied as f64 * share;
            sum.waited += misses / accesses.at_once;
            sum.apart += if accesses.apart { misses } else { 0.0 };
        }
    }

    fn finished(mut self) -> Input {
        let workload = &mut self.workload;
        for ((chunk, slot), sum) in &self.sums {
            let object = &workload.objects[*chunk];
            let (first, last) = workload.phases_of(object);
            let phase = (*slot).clamp(index_u32(first), index_u32(last));
            let is_new = object.uses.last().is_none_or(|last| last.phase < phase);
            if sum.misses > 0.0 && is_new {
                workload.objects[*chunk].uses.push(use_of(phase, sum));
            }
        }
        self
    }
}

fn use_of(phase: u32, sum: &Sum) -> Use {
    Use {
        phase,
        reads: sum.misses - sum.dirtied,
        writes: sum.dirtied,
        hit_ratio: 0.0,
        latency_weight: WHOLE_WEIGHT * sum.waited / sum.misses,
        drawn_bytes: LINE_BYTES,
        isolated: Some(DENSE + (1.0 - DENSE) * (sum.apart / sum.misses).min(1.0)),
        threads: 1,
    }
}
