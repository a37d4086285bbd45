// SPDX-License-Identifier: GPL-2.0-or-later
//! What was counted between a program's marks around its region of interest.
//! In: everything counted so far, at each mark. Out: the differences.
//! Knows nothing of what a mark looks like.

use crate::stats::{NodeStats, RegionStats, Stats, VcpuStats};

/// Regions kept; what comes after is left out and counted.
const REGIONS_MAX: usize = 256;

/// All regions so far.
#[derive(Debug, Default)]
pub struct Regions {
    open: Option<Stats>,
    done: Vec<RegionStats>,
    left_out: u64,
}

impl Regions {
    /// None yet.
    pub const fn new() -> Regions {
        Regions { open: None, done: Vec::new(), left_out: 0 }
    }

    /// A region begins, with everything counted so far; one that is open ends.
    pub fn begin(&mut self, now: Stats) {
        if self.open.is_some() {
            self.end(&now);
        }
        self.open = Some(now);
    }

    /// The open region ends; without one nothing happens.
    pub fn end(&mut self, now: &Stats) {
        let Some(before) = self.open.take() else { return };
        if self.done.len() < REGIONS_MAX {
            self.done.push(between(&before, now));
        } else {
            self.left_out += 1;
        }
    }

    /// All that have ended; `None`: there were more than are kept.
    pub fn all(&self) -> Option<&[RegionStats]> {
        (self.left_out == 0).then_some(&self.done)
    }

    /// All that have ended, and how many more there were.
    pub fn take(&mut self) -> (Vec<RegionStats>, u64) {
        (std::mem::take(&mut self.done), self.left_out)
    }
}

/// What was counted from one moment to another.
pub fn between(before: &Stats, now: &Stats) -> RegionStats {
    let vcpus = before.vcpus.iter().zip(&now.vcpus).map(|(before, now)| VcpuStats {
        instructions: now.instructions - before.instructions,
        busy_ps: now.busy_ps - before.busy_ps,
        stalled_ps: now.stalled_ps - before.stalled_ps,
        served: std::array::from_fn(|level| now.served[level] - before.served[level]),
    });
    let nodes = before.nodes.iter().zip(&now.nodes).map(|(before, now)| NodeStats {
        node: now.node,
        reads: now.reads - before.reads,
        writes: now.writes - before.writes,
        device_read_bytes: now.device_read_bytes - before.device_read_bytes,
        device_written_bytes: now.device_written_bytes - before.device_written_bytes,
        access_j: now.access_j.zip(before.access_j).map(|(now, before)| now - before),
    });
    RegionStats {
        began_ns: before.elapsed_ns,
        elapsed_ns: now.elapsed_ns - before.elapsed_ns,
        vcpus: vcpus.collect(),
        nodes: nodes.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_machine::NodeId;

    fn at(elapsed_ns: i64, count: u64) -> Stats {
        let vcpu = VcpuStats {
            instructions: count,
            busy_ps: count * 3,
            stalled_ps: count,
            served: [count, 0, 2 * count],
        };
        let node = NodeStats {
            node: NodeId(3),
            reads: count,
            writes: 0,
            device_read_bytes: 4 * count,
            device_written_bytes: 0,
            access_j: None,
        };
        Stats { elapsed_ns, vcpus: vec![vcpu], nodes: vec![node], ..Stats::default() }
    }

    #[test]
    fn a_region_is_the_difference_between_its_marks() {
        let mut regions = Regions::new();
        regions.end(&at(5, 5));
        regions.begin(at(10, 100));
        regions.begin(at(30, 150));
        regions.end(&at(35, 151));
        let (done, left_out) = regions.take();
        assert_eq!((done.len(), left_out), (2, 0));
        assert_eq!((done[0].began_ns, done[0].elapsed_ns), (10, 20));
        assert_eq!(done[0].vcpus[0].served, [50, 0, 100]);
        assert_eq!((done[1].elapsed_ns, done[1].nodes[0].reads), (5, 1));
        assert_eq!(done[1].nodes[0].device_read_bytes, 4);
    }

    #[test]
    fn regions_without_end_are_bounded() {
        let mut regions = Regions::new();
        for i in 0..REGIONS_MAX as i64 + 11 {
            regions.begin(at(i, 0));
        }
        let (done, left_out) = regions.take();
        assert_eq!((done.len(), left_out), (REGIONS_MAX, 10));
    }
}
