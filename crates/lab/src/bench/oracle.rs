//! Estimates the run time of the best static placement, which never moves anything. In: bytes and
//! accesses of each allocation site, from a recorded run. Out: a time. Knows nothing of runs.
//!
//! Sites fill fast memory in order of accesses per byte. An access that fast memory serves takes
//! its share of the all-fast time, any other its share of the all-slow time. All objects of a site
//! are assumed equal: a placement that distinguishes them may be better.

/// What is known of a site: its peak bytes, and its accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Site {
    pub(crate) bytes: f64,
    pub(crate) accesses: f64,
}

/// Nanoseconds with `fast_bytes` of fast memory; `None` if no access was seen.
pub(crate) fn estimate(sites: &[Site], fast_bytes: u64, fast_ns: f64, slow_ns: f64) -> Option<f64> {
    let all: f64 = sites.iter().map(|site| site.accesses).sum();
    if all <= 0.0 {
        return None;
    }
    let mut order: Vec<&Site> = sites.iter().filter(|site| site.bytes > 0.0).collect();
    order.sort_by(|a, b| (b.accesses / b.bytes).total_cmp(&(a.accesses / a.bytes)));
    let mut free = fast_bytes as f64;
    let mut served = 0.0;
    for site in order {
        let share = (free / site.bytes).min(1.0);
        served += share * site.accesses;
        free -= share * site.bytes;
    }
    Some(fast_ns + (1.0 - served / all) * (slow_ns - fast_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_densest_sites_come_first_and_the_last_one_is_split() {
        let site = |bytes, accesses| Site { bytes, accesses };
        let sites = [site(100.0, 10.0), site(10.0, 80.0), site(40.0, 10.0)];
        let time = |room| estimate(&sites, room, 100.0, 300.0).expect("accesses were seen");
        assert_eq!(time(0), 300.0);
        assert_eq!(time(10), 140.0);
        // The third site has 0.25 accesses per byte, the first 0.1: half of the third fits.
        assert_eq!(time(30), 130.0);
        assert_eq!(time(1000), 100.0);
        assert_eq!(estimate(&[site(5.0, 0.0)], 5, 1.0, 2.0), None);
        assert_eq!(estimate(&[], 5, 1.0, 2.0), None);
    }
}
