//! Measurements against figures that others published. In: `lab/validate/published.toml`,
//! measurements. Out: figures. Knows nothing of the machine's file but the share of it that the
//! guest had.

use anyhow::{Context, Result};
use serde::Deserialize;
use tiercel_machine::{Machine, Node};

use super::Figure;
use super::expect::{Load, View, load};
use super::guests::{Boot, Path, Seen};
use crate::exec;

/// Idle latencies are published as figures: the lab's 3%. Curves were fitted with up to 4% error,
/// which adds to the lab's 5% for latency under load.
const IDLE: f64 = 0.03;
const MOST: f64 = 0.05;
const LATENCY: f64 = 0.09;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    point: Vec<Point>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    machine: String,
    path: String,
    of: String,
    what: What,
    #[serde(default)]
    read_share: f64,
    #[serde(default)]
    gb_s: f64,
    value: f64,
}

#[derive(Clone, Copy, Deserialize)]
enum What {
    #[serde(rename = "peak")]
    Peak,
    #[serde(rename = "latency")]
    Latency,
    #[serde(rename = "idle")]
    Idle,
    #[serde(rename = "mixed over read")]
    MixedOverRead,
}

pub fn figures(machine: &Machine, seen: &[(Boot, Vec<Seen>)]) -> Result<Vec<Figure>> {
    let path = exec::root().join("lab/validate/published.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let published: Published = toml::from_str(&text).context("lab/validate/published.toml")?;
    let mut figures = Vec::new();
    for point in published.point.iter().filter(|point| point.machine == machine.name) {
        for (boot, lines) in seen {
            figures.extend(figure(machine, *boot, lines, point));
        }
    }
    Ok(figures)
}

fn figure(machine: &Machine, boot: Boot, lines: &[Seen], point: &Point) -> Option<Figure> {
    let label = |id| machine.node(id).map(Node::label).unwrap_or_default();
    let here = |path: Path| format!("{}>{}", label(path.from), label(path.to)) == point.path;
    let lines: Vec<&Seen> = lines.iter().filter(|line| here(line.path)).collect();
    let path = lines.first()?.path;
    let view = View::new(machine, boot, path)?;
    let loads: Vec<Load> = lines
        .iter()
        .filter(|line| line.kind == "load")
        .filter_map(|line| load(&view, line))
        .collect();
    let (what, measured, unit, limit) = match point.what {
        // It was one chase on an idle machine.
        What::Idle => {
            let alone = boot.vcpus == 1 && !boot.model.share;
            let idle = lines.iter().find(|line| line.kind == "idle" && alone)?;
            ("idle latency".to_owned(), idle.ns, "ns", IDLE)
        }
        What::Peak => {
            let what = format!("peak bandwidth, {:.0}% reads", point.read_share * 100.0);
            (what, most(&loads, point.read_share)?, "GB/s", MOST)
        }
        What::Latency => {
            let what =
                format!("latency at {} GB/s, {:.0}% reads", point.gb_s, point.read_share * 100.0);
            (what, latency_ns(&loads, point.read_share, point.gb_s)?, "ns", LATENCY)
        }
        What::MixedOverRead => {
            let over = most(&loads, 0.5)? / most(&loads, 1.0)?;
            ("peak bandwidth, half reads over reads only".to_owned(), over, "", MOST)
        }
    };
    let figure = Figure::new(machine, boot, path, format!("published: {what} ({})", point.of));
    Some(figure.is(measured, unit).should(point.value, Some(limit)))
}

/// The highest bandwidth near a read share.
fn most(loads: &[Load], read_share: f64) -> Option<f64> {
    let near = loads.iter().filter(|load| (load.read_share - read_share).abs() < 0.06);
    near.map(|load| load.gb_s).max_by(f64::total_cmp)
}

/// Between the two measurements around a traffic.
fn latency_ns(loads: &[Load], read_share: f64, gb_s: f64) -> Option<f64> {
    let near = loads.iter().filter(|load| (load.read_share - read_share).abs() < 0.06);
    let (below, above): (Vec<&Load>, Vec<&Load>) = near.partition(|load| load.gb_s <= gb_s);
    let below = below.into_iter().max_by(|a, b| a.gb_s.total_cmp(&b.gb_s))?;
    let above = above.into_iter().min_by(|a, b| a.gb_s.total_cmp(&b.gb_s))?;
    let way = (gb_s - below.gb_s) / (above.gb_s - below.gb_s);
    Some(below.ns + (above.ns - below.ns) * way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_interpolated_between_its_neighbours() {
        let load = |gb_s, ns| Load { read_share: 1.0, writes: false, gb_s, ns };
        let loads = [load(10.0, 100.0), load(30.0, 140.0), load(20.0, 110.0)];
        assert_eq!(latency_ns(&loads, 1.0, 25.0), Some(125.0));
        assert_eq!(latency_ns(&loads, 1.0, 35.0), None, "nothing was measured beyond");
        assert_eq!(latency_ns(&loads, 0.5, 25.0), None);
        assert_eq!(most(&loads, 1.0), Some(30.0));
    }
}
