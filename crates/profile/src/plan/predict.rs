//! How much slower a program is expected to be with less fast memory.
//! In: a profile, plans made from it. Out: [`Prediction`]s. Knows nothing of how they are shown.
//!
//! The time that no placement changes is what is left of the recorded time after its accesses, and
//! after what recording took. Those are reckoned to have been served by the memories whose nodes
//! the samples name; where they name none by the fastest one of the machine that recorded.
//! Slowdown = (rest + accesses as planned) / (rest + all fast).

use serde::{Deserialize, Serialize};
use tiercel_planner::{Memory, Object, object_cost};

use super::Drafted;
use super::pace::{pace_of, rank_of};
use crate::profile::Profile;

/// Standard deviations of an error bar: 95 of 100 times the true value of the counts lies within.
const DEVIATIONS: f64 = 1.96;

/// Misses at once that nobody counted may be so many times fewer than believed.
const UNSEEN_TIMES: f64 = 2.0;

/// What is expected of a plan, against all memory being fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Time over that with everything in the fastest memory; 1: as fast.
    pub slowdown: f64,
    /// Half an error bar: what chance in the samples does, and what the sampler could not see. The
    /// model's own error comes on top.
    pub error: f64,
    /// The same with everything in the slowest memory.
    pub all_slow: f64,
    /// Time no placement changes, nanoseconds.
    pub rest_ns: f64,
}

/// What a plan is expected to do on the machine it was made for.
pub fn predict(profile: &Profile, drafted: &Drafted) -> Prediction {
    let expected = &drafted.plan.expected;
    let rest_ns = rest_ns(profile, drafted);
    let fast_ns = rest_ns + expected.in_fastest_ns;
    if fast_ns <= 0.0 {
        return Prediction { slowdown: 1.0, all_slow: 1.0, ..Prediction::default() };
    }
    let over = |access_ns: f64| (rest_ns + access_ns) / fast_ns;
    let slower_ns = (expected.access_ns - expected.in_fastest_ns).max(0.0);
    let unsure = DEVIATIONS * chance(drafted) + unseen(profile, drafted);
    Prediction {
        slowdown: over(expected.access_ns),
        error: unsure * slower_ns / fast_ns,
        all_slow: over(expected.in_slowest_ns),
        rest_ns,
    }
}

/// What can be won and was not seen, of what can be won: lines that go back to memory where nobody
/// told which do, and latencies that are waited for one by one, not four at a time, but two.
fn unseen(profile: &Profile, drafted: &Drafted) -> f64 {
    let (workload, memories) = (&drafted.told.workload, &drafted.memories);
    let (Some(fastest), Some(slowest)) = (memories.first(), memories.last()) else { return 0.0 };
    let (dirtied, around) = profile.unseen();
    let (mut seen_ns, mut most_ns) = (0.0, 0.0);
    for (object, index) in workload.objects.iter().zip(&drafted.told.objects) {
        let gain = |object: &Object| {
            let cost = |memory| object_cost(workload, object, memory).time_ns;
            cost(slowest) - cost(fastest)
        };
        let mut most = object.clone();
        for one in &mut most.uses {
            if dirtied[*index as usize] {
                (one.reads, one.writes) = (0.0, one.reads + one.writes);
            }
            if around[*index as usize] {
                one.latency_weight *= UNSEEN_TIMES;
            }
        }
        seen_ns += gain(object);
        most_ns += gain(&most).max(gain(object));
    }
    if seen_ns > 0.0 { most_ns / seen_ns - 1.0 } else { 0.0 }
}

fn rest_ns(profile: &Profile, drafted: &Drafted) -> f64 {
    let took = (0..).zip(&profile.runs).map(|(at, run)| {
        // Threads were held up beside each other.
        let of_run = profile.processes.iter().filter(|process| process.run == at);
        let threads = of_run.map(|process| process.threads.len()).sum::<usize>().max(1);
        run.duration_ns as f64 - run.seen.sampling_ns as f64 / threads as f64
    });
    let took_ns: f64 = took.sum();
    let workload = &drafted.told.workload;
    let in_memory = |memory: &Memory| -> f64 {
        workload.objects.iter().map(|object| object_cost(workload, object, memory).time_ns).sum()
    };
    let memories = recorded(profile);
    let accesses_ns = match served(profile, &memories) {
        Some(shares) => {
            let parts = memories.iter().zip(shares).filter(|(_, share)| *share > 0.0);
            parts.map(|(memory, share)| in_memory(memory) * share).sum()
        }
        None => memories.first().map_or(0.0, in_memory),
    };
    (took_ns - accesses_ns).max(0.0)
}

/// Which part of the accesses each of the memories served; `None` where the sampler did not tell.
fn served(profile: &Profile, memories: &[Memory]) -> Option<Vec<f64>> {
    let mut parts = vec![0.0; memories.len()];
    for one in profile.runs.iter().flat_map(|run| &run.served) {
        if let Some(at) = rank_of(memories, one.node) {
            parts[at] += one.accesses as f64;
        }
    }
    let all: f64 = parts.iter().sum();
    (all > 0.0).then(|| parts.into_iter().map(|part| part / all).collect())
}

/// Memories of the machine that recorded, at the pace that was measured there.
fn recorded(profile: &Profile) -> Vec<Memory> {
    let (mut memories, _) = Memory::of_machine(&profile.machine, None);
    pace_of(profile, &profile.machine, &mut memories);
    memories
}

/// Relative standard error of what can be won, from the samples of each object: n of them are right
/// to 1 / sqrt(n).
fn chance(drafted: &Drafted) -> f64 {
    let (workload, memories) = (&drafted.told.workload, &drafted.memories);
    let (Some(fastest), Some(slowest)) = (memories.first(), memories.last()) else { return 0.0 };
    let (mut variance, mut sum) = (0.0, 0.0);
    for (object, group) in workload.objects.iter().zip(&drafted.groups) {
        let cost = |memory| object_cost(workload, object, memory).time_ns;
        let gain = cost(slowest) - cost(fastest);
        sum += gain;
        variance += gain * gain / group.samples.max(1) as f64;
    }
    if sum > 0.0 { variance.sqrt() / sum } else { 0.0 }
}
