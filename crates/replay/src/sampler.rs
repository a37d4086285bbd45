//! The sampler: every access is seen with the same chance.
//! In: accesses, where they lie, a seed. Out: samples, as a sampler of misses reports them. Knows
//! nothing of what they are used for.
//!
//! Thinning of a stream of accesses is a Poisson process on their count: the distance to the next
//! sample is exponential with the period as its mean, so that rare accesses cost nothing.

use tiercel_machine::number::{nearest_f32, saturating_u32};
use tiercel_wire::layout::OS_PAGE_BYTES;
use tiercel_wire::{AccessKind, Around, Sample};

use crate::chance::Chance;
use crate::memory::{Memory, pages_of};
use crate::speed::Speeds;
use crate::stream::Accesses;

/// See the module.
#[derive(Debug)]
pub struct Sampler {
    period: f64,
    /// How many times too large the latency of slow memory is reported.
    scale: f64,
    chance: Chance,
    until_next: f64,
}

impl Sampler {
    /// One sample in so many accesses. The gap between the memories is reported `scale` times as
    /// large as it is.
    pub fn new(period: u32, scale: f64, seed: u64) -> Sampler {
        let period = f64::from(period.max(1));
        let mut chance = Chance::new(seed);
        let until_next = chance.gap(period);
        Sampler { period, scale, chance, until_next }
    }

    /// Samples of accesses of a process now.
    pub fn see(
        &mut self,
        (pid, accesses): (u32, &Accesses),
        (memory, speeds): (&Memory, &Speeds),
        now_ns: u64,
        out: &mut Vec<Sample>,
    ) {
        let mut left = accesses.misses() as f64;
        while self.until_next < left {
            left -= self.until_next;
            self.until_next = self.chance.gap(self.period);
            out.push(self.sample(pid, accesses, (memory, speeds), now_ns));
        }
        self.until_next -= left;
    }

    fn sample(
        &mut self,
        pid: u32,
        accesses: &Accesses,
        (memory, speeds): (&Memory, &Speeds),
        now_ns: u64,
    ) -> Sample {
        let page = self.chance.below(accesses.bytes / OS_PAGE_BYTES);
        let addr = accesses.addr + page * OS_PAGE_BYTES;
        let is_write = self.chance.below(accesses.misses()) < accesses.writes;
        let is_fast = memory.is_fast(pages_of(addr, OS_PAGE_BYTES).start);
        let fast_ns = speeds.latency_ns(accesses, true, is_write);
        let gap_ns = speeds.latency_ns(accesses, false, is_write) - fast_ns;
        let latency_ns = if is_fast { fast_ns } else { fast_ns + gap_ns * self.scale };
        let node = if is_fast { speeds.fast } else { speeds.slow };
        Sample {
            from_ns: now_ns,
            until_ns: now_ns,
            pid,
            tid: pid,
            addr: addr + self.chance.below(OS_PAGE_BYTES / 64) * 64,
            kind: if is_write { AccessKind::Write } else { AccessKind::Read },
            latency_ns: Some(saturating_u32(latency_ns.max(1.0).round())),
            node: Some(node.0),
            weight: saturating_u32(self.period),
            cpu: None,
            by: None,
            around: Some(Around { at_once: nearest_f32(accesses.at_once), apart: accesses.apart }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::BASE;
    use tiercel_machine::Machine;

    #[test]
    fn samples_stand_for_all_accesses_wherever_they_lie() {
        let machine = Machine::builtin("cascadelake-optane").unwrap().unwrap();
        let speeds = Speeds::new(&machine).unwrap();
        let mut memory = Memory::new(100, 25);
        memory.touch(0..100);
        let bytes = 100 * OS_PAGE_BYTES;
        let accesses = Accesses {
            addr: BASE,
            bytes,
            reads: 75,
            writes: 25,
            dirtied: 25,
            at_once: 2.0,
            apart: false,
        };
        let (mut sampler, mut samples) = (Sampler::new(50, 1.0, 9), Vec::new());
        (0..10_000).for_each(|now_ns| {
            sampler.see((1, &accesses), (&memory, &speeds), now_ns, &mut samples);
        });
        let count = samples.len() as f64;
        assert!((count - 20_000.0).abs() < 5.0 * 20_000f64.sqrt(), "{count}");
        let share = |is: &dyn Fn(&Sample) -> bool| {
            samples.iter().filter(|one| is(one)).count() as f64 / count
        };
        let fast = share(&|one| one.node == Some(speeds.fast.0));
        assert!((fast - 0.25).abs() < 0.02, "{fast}");
        let writes = share(&|one| one.kind == AccessKind::Write);
        assert!((writes - 0.25).abs() < 0.02, "{writes}");
        assert!(samples.iter().all(|one| (BASE..BASE + bytes).contains(&one.addr)));
    }
}
