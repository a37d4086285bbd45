//! Loaded latency: what an access takes while the node is busy.
//! In: points measured at (read share, bandwidth). Out: latency and peak bandwidth in between.
//! Knows nothing of queues or devices; it draws straight lines between what was measured.

use serde::{Deserialize, Serialize};

/// One measured point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurvePoint {
    /// Share of reads in the traffic, 0 to 1.
    pub read_share: f64,
    /// Traffic, reads and writes together, GB/s.
    pub gb_s: f64,
    /// Mean read latency at that traffic, nanoseconds.
    pub latency_ns: f64,
}

/// Read latency at `gb_s` of traffic of which `read_share` are reads, nanoseconds; `None` for an
/// empty curve. Linear between the points of one read share, then linear between the two nearest
/// read shares; left of the first point and right of the last one it stays what it was there (more
/// than the peak cannot flow, see [`peak_gb_s`]). `curve` ascends by (read share, bandwidth).
pub fn loaded_latency_ns(curve: &[CurvePoint], read_share: f64, gb_s: f64) -> Option<f64> {
    between_shares(curve, read_share, |line| latency_on(line, gb_s))
}

/// Most traffic that flows at this read share, GB/s; `None` for an empty curve.
pub fn peak_gb_s(curve: &[CurvePoint], read_share: f64) -> Option<f64> {
    between_shares(curve, read_share, |line| line[line.len() - 1].gb_s)
}

fn between_shares(
    curve: &[CurvePoint],
    read_share: f64,
    value: impl Fn(&[CurvePoint]) -> f64,
) -> Option<f64> {
    let mut below: Option<(f64, f64)> = None;
    for line in curve.chunk_by(|a, b| a.read_share == b.read_share) {
        let here = (line[0].read_share, value(line));
        if here.0 >= read_share {
            return Some(below.map_or(here.1, |below| mix(below, here, read_share)));
        }
        below = Some(here);
    }
    below.map(|(_, value)| value)
}

fn latency_on(line: &[CurvePoint], gb_s: f64) -> f64 {
    let right = line.partition_point(|point| point.gb_s < gb_s);
    let at = |index: usize| (line[index].gb_s, line[index].latency_ns);
    match right {
        0 => line[0].latency_ns,
        right if right == line.len() => line[right - 1].latency_ns,
        right => mix(at(right - 1), at(right), gb_s),
    }
}

/// The value at `x` on the straight line through two points (x ascending).
fn mix(a: (f64, f64), b: (f64, f64), x: f64) -> f64 {
    if b.0 <= a.0 { b.1 } else { a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Vec<CurvePoint> {
        [(0.5, 0.0, 100.0), (0.5, 200.0, 500.0), (1.0, 0.0, 112.0), (1.0, 250.0, 292.0)]
            .map(|(read_share, gb_s, latency_ns)| CurvePoint { read_share, gb_s, latency_ns })
            .to_vec()
    }

    #[test]
    fn exact_at_points_linear_between_flat_outside() {
        let at = |share, load| loaded_latency_ns(&curve(), share, load).unwrap();
        assert_eq!(at(1.0, 0.0), 112.0);
        assert_eq!(at(1.0, 250.0), 292.0);
        assert_eq!(at(1.0, 125.0), 202.0);
        assert_eq!(at(1.0, 9999.0), 292.0);
        assert_eq!(at(0.5, 100.0), 300.0);
        assert_eq!(at(0.75, 0.0), 106.0);
        assert_eq!(at(0.0, 0.0), 100.0, "below the lowest read share it is the lowest's");
        assert_eq!(loaded_latency_ns(&[], 1.0, 1.0), None);
    }

    #[test]
    fn peak_between_shares() {
        assert_eq!(peak_gb_s(&curve(), 0.75), Some(225.0));
        assert_eq!(peak_gb_s(&curve(), 0.1), Some(200.0));
        assert_eq!(peak_gb_s(&[], 0.1), None);
    }
}
