//! Loaded latency: what an access takes while the node is busy.
//! In: one fitted line per read share. Out: latency and peak bandwidth at any load and mix.
//! Knows nothing of queues or devices: it draws a shape through idle, knee and peak.
//!
//! ```text
//!   latency = idle + (peak latency - idle) x f(u)          u = traffic / peak traffic, 0 to 1
//!   f(u) = slope x u + (1 - slope) x u (bend - 1) / (bend - u)
//! ```
//!
//! The second term is a queue's: flat, then a knee, steep before the peak. The closer `bend` is to
//! 1, the later and sharper the knee. Fitted to measured curves of DDR4, DDR5, HBM2e and CXL
//! (bsc-mem/Mess-Results) it is off by 3 to 4% at most, where a straight line from idle to peak is
//! too high by 50 to 100% below the knee.

use serde::{Deserialize, Serialize};

/// `slope` and `bend` of a line that was not fitted: the middle of the fits of DDR4, DDR5 and
/// CXL, read-only and mixed (0 to 0.43, and 1.02 to 1.12).
const SLOPE: f64 = 0.1;
const BEND: f64 = 1.04;

/// Latency over traffic at one read share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurveLine {
    /// Share of reads in the traffic, 0 to 1.
    pub read_share: f64,
    /// Mean read latency without other traffic, nanoseconds.
    pub idle_ns: f64,
    /// Most traffic that flows, reads and writes together, GB/s.
    pub peak_gb_s: f64,
    /// Mean read latency where the peak is first reached, nanoseconds. More load than that is a
    /// queue, and as long as the load makes it.
    pub peak_ns: f64,
    /// Part of the rise that is proportional to the traffic, 0 to 1.
    #[serde(default = "slope")]
    pub slope: f64,
    /// Where the other part would be infinite, in peaks; above 1.
    #[serde(default = "bend")]
    pub bend: f64,
}

/// Read latency at `gb_s` of traffic of which `read_share` are reads, nanoseconds; `None` for an
/// empty curve. Between two read shares both lines are taken as near their peaks as the load is,
/// and mixed; beyond the first and the last it is theirs. More than the peak cannot flow.
/// `curve` ascends by read share.
pub fn loaded_latency_ns(curve: &[CurveLine], read_share: f64, gb_s: f64) -> Option<f64> {
    let (a, b, way) = around(curve, read_share)?;
    let used = gb_s / mix(a.peak_gb_s, b.peak_gb_s, way);
    Some(mix(a.latency_ns(used), b.latency_ns(used), way))
}

/// Most traffic that flows at this read share, GB/s; `None` for an empty curve.
pub fn peak_gb_s(curve: &[CurveLine], read_share: f64) -> Option<f64> {
    let (a, b, way) = around(curve, read_share)?;
    Some(mix(a.peak_gb_s, b.peak_gb_s, way))
}

/// The lines below and above a read share, and how far it is from the one to the other.
fn around(curve: &[CurveLine], read_share: f64) -> Option<(&CurveLine, &CurveLine, f64)> {
    let above = curve.partition_point(|line| line.read_share < read_share);
    let b = curve.get(above).or(curve.last())?;
    let a = if above == 0 { b } else { &curve[above - 1] };
    let distance = b.read_share - a.read_share;
    let way = if distance > 0.0 { (read_share - a.read_share) / distance } else { 0.0 };
    Some((a, b, way))
}

impl CurveLine {
    /// At a share of the peak, 0 to 1.
    fn latency_ns(&self, used: f64) -> f64 {
        let used = used.clamp(0.0, 1.0);
        let bent = used * (self.bend - 1.0) / (self.bend - used);
        self.idle_ns + (self.peak_ns - self.idle_ns) * mix(bent, used, self.slope)
    }
}

fn mix(a: f64, b: f64, way: f64) -> f64 {
    a + (b - a) * way
}

fn slope() -> f64 {
    SLOPE
}

fn bend() -> f64 {
    BEND
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Vec<CurveLine> {
        let line = |read_share, idle_ns, peak_gb_s, peak_ns| CurveLine {
            read_share,
            idle_ns,
            peak_gb_s,
            peak_ns,
            slope: 0.2,
            bend: 1.25,
        };
        vec![line(0.5, 100.0, 200.0, 500.0), line(1.0, 112.0, 250.0, 292.0)]
    }

    #[test]
    fn exact_at_both_ends_bent_between_flat_outside() {
        let at = |share, load| loaded_latency_ns(&curve(), share, load).unwrap();
        assert_eq!(at(1.0, 0.0), 112.0);
        assert_eq!(at(1.0, 250.0), 292.0);
        assert_eq!(at(1.0, 9999.0), 292.0);
        // Half the peak: 0.2 x 0.5 straight, 0.8 x 0.5 x 0.25 / 0.75 bent.
        assert!((at(1.0, 125.0) - (112.0 + 180.0 * (0.1 + 0.8 / 6.0))).abs() < 1e-9);
        assert_eq!(at(0.75, 0.0), 106.0);
        assert_eq!(at(0.0, 0.0), 100.0, "below the lowest read share it is the lowest's");
        assert_eq!(loaded_latency_ns(&[], 1.0, 1.0), None);
    }

    #[test]
    fn more_load_is_never_faster() {
        for share in [0.0, 0.5, 0.6, 0.8, 1.0] {
            let at = |load| loaded_latency_ns(&curve(), share, f64::from(load)).unwrap();
            assert!((0..300).all(|load| at(load) <= at(load + 1)), "read share {share}");
        }
    }

    #[test]
    fn peak_between_shares() {
        assert_eq!(peak_gb_s(&curve(), 0.75), Some(225.0));
        assert_eq!(peak_gb_s(&curve(), 0.1), Some(200.0));
        assert_eq!(peak_gb_s(&[], 0.1), None);
    }
}
