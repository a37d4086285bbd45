// SPDX-License-Identifier: GPL-2.0-or-later
//! What was counted between the lab's marks around a command, as a whole and in the regions of
//! interest that the command marked. In: everything counted so far at each mark, misses of user
//! code. Out: [`WindowStats`]. Knows nothing of what a mark looks like.

use crate::ideal::Ideal;
use crate::regions::between;
use crate::stats::{RegionStats, SpanStats, Stats, VcpuStats, WindowStats};

/// Windows kept: several times the runs of one boot. The first are dropped: the lab executes its
/// own marks before a run.
const WINDOWS_MAX: usize = 256;

/// All windows so far.
#[derive(Debug, Default)]
pub struct Windows {
    open: Option<Stats>,
    whole: Ideal,
    regions: Ideal,
    done: Vec<WindowStats>,
}

impl Windows {
    /// A command begins, with everything counted so far.
    pub fn begin(&mut self, now: Stats) {
        (self.whole, self.regions) = (Ideal::default(), Ideal::default());
        self.open = Some(now);
    }

    /// It ends, with the regions that it marked; `None`: not all are known.
    pub fn end(&mut self, now: &Stats, regions: Option<&[RegionStats]>) {
        let Some(before) = self.open.take() else { return };
        let whole = between(&before, now);
        if self.done.len() == WINDOWS_MAX {
            self.done.remove(0);
        }
        let regions = regions.filter(|regions| !regions.is_empty());
        self.done.push(WindowStats {
            whole: span(std::slice::from_ref(&whole), &mut self.whole),
            regions: regions.map(|regions| span(regions, &mut self.regions)),
        });
    }

    /// Whether a command runs.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The misses of the command, and of its regions where it is in one.
    pub fn ideals(&mut self, is_in_region: bool) -> impl Iterator<Item = &mut Ideal> {
        [Some(&mut self.whole), is_in_region.then_some(&mut self.regions)].into_iter().flatten()
    }

    /// All that have ended.
    pub fn take(&mut self) -> Vec<WindowStats> {
        std::mem::take(&mut self.done)
    }
}

fn span(parts: &[RegionStats], ideal: &mut Ideal) -> SpanStats {
    let vcpus = || parts.iter().flat_map(|part| &part.vcpus);
    let sum = |of: fn(&VcpuStats) -> u64| vcpus().map(of).sum();
    SpanStats {
        elapsed_ns: parts.iter().map(|part| part.elapsed_ns).sum(),
        busy_ps: sum(|vcpu| vcpu.busy_ps),
        stalled_ps: sum(|vcpu| vcpu.stalled_ps),
        best: ideal.take(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(elapsed_ns: i64, busy_ps: u64) -> Stats {
        let vcpu = VcpuStats { busy_ps, stalled_ps: busy_ps / 2, ..VcpuStats::default() };
        Stats { elapsed_ns, vcpus: vec![vcpu], ..Stats::default() }
    }

    #[test]
    fn a_window_has_what_came_between_its_marks() {
        let mut windows = Windows::default();
        windows.end(&at(5, 5), None);
        windows.begin(at(10, 100));
        for (address, is_in_region) in [(0, false), (4096, true), (8192, true)] {
            windows.ideals(is_in_region).for_each(|ideal| ideal.missed(address, 1, 0));
        }
        let region = between(&at(20, 140), &at(25, 150));
        windows.end(&at(40, 300), Some(&[region]));
        windows.begin(at(50, 400));
        windows.end(&at(60, 410), None);
        let [first, second] = &windows.take()[..] else { panic!("two windows") };
        assert_eq!((first.whole.elapsed_ns, first.whole.stalled_ps), (30, 100));
        assert_eq!(first.whole.best.misses, 3);
        let regions = first.regions.as_ref().expect("one was marked");
        assert_eq!((regions.elapsed_ns, regions.busy_ps, regions.best.misses), (5, 10, 2));
        assert_eq!((second.whole.best.misses, second.regions.is_none()), (0, true));
    }

    #[test]
    fn the_latest_windows_are_kept() {
        let mut windows = Windows::default();
        for i in 0..WINDOWS_MAX as i64 + 3 {
            windows.begin(at(0, 0));
            windows.end(&at(i, 0), None);
        }
        let kept = windows.take();
        assert_eq!((kept.len(), kept[0].whole.elapsed_ns), (WINDOWS_MAX, 3));
    }
}
