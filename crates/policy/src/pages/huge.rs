//! Which huge OS pages are better apart, and which small ones are better as one.
//! In: units, what of them is accessed. Out: yes or no. Knows nothing of how it is done.
//!
//! A huge OS page moves as a whole. Where a few of its OS pages are accessed and no room is found
//! for all of it, it is broken up: then those few ask to move alone.

use tiercel_ledger::regions::Unit;

use super::benefit::Estimate;
use super::places::Places;

/// Most OS pages of a huge one that are accessed more than once in a history where it is broken up
/// (pages.md 3: 64 of 512).
pub const WARM_MAX: usize = 64;
/// What an access to memory costs more where its translation has one level more: that entry comes
/// from the second-level cache, 14 cycles at 2.3 GHz on the paper's processors (Intel's
/// optimisation manual, Skylake server).
const WALK_NS: f64 = 6.0;
const OS_PAGE_BYTES: u64 = 4096;

/// Whether a huge unit that stays where it is should be broken up: what its `warm_pages` gain on
/// the best node is more than moving them and as many victims costs, and longer translations.
pub fn should_split(estimate: &Estimate, places: &Places, unit: &Unit, warm_pages: usize) -> bool {
    let (_, _, best) = places.standing(unit);
    let warm_bytes = OS_PAGE_BYTES * warm_pages as u64;
    let cost_ns = 2.0 * estimate.cost_ns(warm_bytes) * estimate.margin;
    let walks_ns = estimate.rate_per_s(unit) * WALK_NS * estimate.horizon_s;
    (1..=WARM_MAX).contains(&warm_pages)
        && estimate.saved_ns(places, unit, best) > cost_ns + walks_ns
}

/// Whether OS pages that are all accessed in all windows should be one huge one: shorter
/// translations save more than copying costs. Without counts the rate of `unit` is that of each of
/// its OS pages.
pub fn should_collapse(estimate: &Estimate, unit: &Unit) -> bool {
    let each = if unit.samples.is_some() { 1 } else { unit.bytes / OS_PAGE_BYTES };
    let walks_ns = estimate.rate_per_s(unit) * each as f64 * WALK_NS * estimate.horizon_s;
    walks_ns > estimate.cost_ns(unit.bytes) * estimate.margin
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiercel_ledger::regions::{Accessor, GroupId, LEVEL_MAX};
    use tiercel_machine::{Machine, NodeId};

    const HUGE: u64 = 2 << 20;

    fn places() -> Places {
        Places::new(&Machine::builtin("two-socket-optane").unwrap().unwrap(), 100.0).unwrap()
    }

    fn estimate() -> Estimate {
        Estimate {
            history: 8,
            window_s: 1.0,
            weight: 100.0,
            horizon_s: 30.0,
            margin: 1.0,
            parallelism: 2.0,
            move_ns_per_byte: 2.0,
        }
    }

    fn unit(node: u16, samples: Option<f64>) -> Unit {
        Unit {
            pid: 1,
            addr: HUGE,
            bytes: HUGE,
            group: GroupId(0),
            node: NodeId(node),
            level: LEVEL_MAX,
            early: None,
            samples,
            accessor: Accessor::Node(NodeId(0)),
            of_file: false,
        }
    }

    #[test]
    fn few_warm_places_in_slow_memory_are_worth_it() {
        let split = |node, samples, warm| {
            should_split(&estimate(), &places(), &unit(node, Some(samples)), warm)
        };
        // 2,000 accesses a second x 112 ns x 30 s are 6.7 ms; 128 KiB and victims cost 0.5 ms.
        assert!(split(2, 20.0, 32));
        assert!(split(2, 20.0, 64));
        assert!(!split(2, 20.0, 80), "too much of it is warm");
        assert!(!split(2, 20.0, 0), "nothing is");
        assert!(!split(2, 0.5, 32), "too rarely");
        assert!(!split(0, 20.0, 32), "it is where it should be");
    }

    #[test]
    fn hot_all_over_is_better_as_one() {
        // 2 MiB cost 4.2 ms; 100 samples x 100 accesses x 6 ns x 30 s are 1.8 ms.
        assert!(!should_collapse(&estimate(), &unit(0, Some(100.0))));
        assert!(should_collapse(&estimate(), &unit(0, Some(300.0))));
        // Of each of 512 OS pages 277 a second.
        assert!(should_collapse(&estimate(), &unit(0, None)));
        let dear = Estimate { move_ns_per_byte: 19.0, ..estimate() };
        assert!(!should_collapse(&dear, &unit(0, None)));
    }
}
