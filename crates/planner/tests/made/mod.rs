//! Small workloads, and an obvious way to check and to find plans. Used by several tests.
#![allow(dead_code)]

use tiercel_planner::{
    Cost, Energy, Memory, MoveSpeed, Object, Phase, Placement, Placements, Use, Workload, evaluate,
};

pub fn memory(name: &str, capacity_bytes: u64, latency_ns: f64, gb_s: f64) -> Memory {
    Memory {
        name: name.into(),
        nodes: Vec::new(),
        capacity_bytes,
        read_latency_ns: latency_ns,
        write_latency_ns: latency_ns,
        read_gb_s: gb_s,
        write_gb_s: gb_s,
        isolated_read_factor: 1.0,
        isolated_write_factor: 1.0,
        scaling: Vec::new(),
        energy: None,
    }
}

pub fn with_energy(memory: Memory, read: f64, write: f64, static_w_per_byte: f64) -> Memory {
    let energy = Energy { read_pj_per_bit: read, write_pj_per_bit: write, static_w_per_byte };
    Memory { energy: Some(energy), ..memory }
}

pub fn reads(phase: u32, reads: f64) -> Use {
    Use {
        phase,
        reads,
        writes: 0.0,
        hit_ratio: 0.0,
        latency_weight: 1.0,
        drawn_bytes: 0.0,
        isolated: None,
        threads: 1,
    }
}

pub fn object(bytes: u64, lives: (u64, u64), uses: Vec<Use>) -> Object {
    let name = format!("{bytes} bytes from {}", lives.0);
    Object { name, bytes, birth_ns: lives.0, death_ns: lives.1, uses }
}

/// Phases of 100 ns.
pub fn workload(phases: u64, objects: Vec<Object>) -> Workload {
    let phase = |index| Phase { name: format!("{index}"), start_ns: index * 100, compute_ns: 0.0 };
    let phases: Vec<Phase> = (0..phases).map(phase).collect();
    Workload { objects, end_ns: phases.len() as u64 * 100, phases, sample_period: 1.0 }
}

/// Where an object lies in a phase.
pub fn memory_in(placement: &Placement, phase: usize) -> usize {
    let before = placement.moves.iter().take_while(|(at, _)| *at as usize <= phase);
    usize::from(before.last().map_or(placement.birth, |(_, to)| *to))
}

/// Whether no memory holds more than it has at any birth or phase start, which is when it can be
/// fullest.
pub fn keeps_capacities(workload: &Workload, memories: &[Memory], all: &[Placement]) -> bool {
    let births = workload.objects.iter().map(|object| object.birth_ns);
    let times = births.chain(workload.phases.iter().map(|phase| phase.start_ns));
    times.into_iter().all(|now| {
        let phase = workload.phases.iter().rposition(|phase| phase.start_ns <= now).unwrap_or(0);
        let mut taken = vec![0; memories.len()];
        for (object, placement) in workload.objects.iter().zip(all) {
            if object.birth_ns <= now && now < object.death_ns {
                taken[memory_in(placement, phase)] += object.bytes;
            }
        }
        taken.iter().zip(memories).all(|(taken, memory)| *taken <= memory.capacity_bytes)
    })
}

/// Carries out the moves one by one, and says by how much a memory overflows at worst; panics when
/// a move leaves a memory the object is not in, or the end is not where the placements say.
pub fn worst_overflow(workload: &Workload, memories: &[Memory], plan: &Placements) -> u64 {
    let mut at: Vec<usize> = plan.placements.iter().map(|one| usize::from(one.birth)).collect();
    let (mut moves, mut worst) = (plan.moves.iter().peekable(), 0);
    for (phase, started) in workload.phases.iter().enumerate() {
        let now = started.start_ns;
        let lives = |object: &Object| object.birth_ns < now && now < object.death_ns;
        while let Some(one) = moves.next_if(|one| one.phase as usize == phase) {
            assert_eq!(at[one.object], usize::from(one.from), "{one:?}");
            at[one.object] = usize::from(one.to);
            for (index, memory) in memories.iter().enumerate() {
                let here = workload.objects.iter().zip(&at);
                let here = here.filter(|(object, at)| lives(object) && **at == index);
                let taken: u64 = here.map(|(object, _)| object.bytes).sum();
                worst = worst.max(taken.saturating_sub(memory.capacity_bytes));
            }
        }
        for (index, placement) in plan.placements.iter().enumerate() {
            let (first, last) = workload.phases_of(&workload.objects[index]);
            if (first..=last).contains(&phase) {
                assert_eq!(at[index], memory_in(placement, phase), "object {index} in {phase}");
            }
        }
    }
    assert!(moves.next().is_none(), "no move after the last phase");
    worst
}

/// All placements there are, with (`by_phase`) or without moves; for few small objects.
pub fn all_placements(workload: &Workload, memories: usize, by_phase: bool) -> Vec<Vec<Placement>> {
    let mut all = vec![Vec::new()];
    for object in &workload.objects {
        let (first, last) = workload.phases_of(object);
        let length = if by_phase { last - first + 1 } else { 1 };
        let ways = memories.pow(u32::try_from(length).unwrap());
        let own = (0..ways).map(|way| {
            let digit = |at: usize| {
                u8::try_from(way / memories.pow(u32::try_from(at).unwrap()) % memories).unwrap()
            };
            let moves = (1..length).filter(|at| digit(*at) != digit(at - 1));
            let moves = moves.map(|at| (u32::try_from(first + at).unwrap(), digit(at))).collect();
            Placement { birth: digit(0), moves }
        });
        let own: Vec<Placement> = own.collect();
        let with = |some: &Vec<Placement>, one: &Placement| {
            let mut longer = some.clone();
            longer.push(one.clone());
            longer
        };
        all = all.iter().flat_map(|some| own.iter().map(|one| with(some, one))).collect();
    }
    all
}

/// The least value of all placements that keep the capacities.
pub fn least(
    workload: &Workload,
    memories: &[Memory],
    copy: &MoveSpeed,
    by_phase: bool,
    value: impl Fn(Cost) -> f64,
) -> Option<f64> {
    all_placements(workload, memories.len(), by_phase)
        .iter()
        .filter(|all| keeps_capacities(workload, memories, all))
        .map(|all| value(evaluate(workload, memories, copy, all).0))
        .reduce(f64::min)
}
