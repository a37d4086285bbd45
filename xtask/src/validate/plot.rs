//! Plots of one machine. In: what was seen; figures. Out: SVG by kind.
//! Knows nothing of limits.

use anyhow::Result;
use tiercel_machine::{Machine, Node};
use tiercel_report::{Lines, Series};

use super::Figure;
use super::expect::{View, load, mix};
use super::guests::{Boot, Path, Seen, is_main, paths};

/// Points of a machine's curve that are drawn.
const CURVE_POINTS: u32 = 60;
/// A plot of latency ends at this multiple of the idle one: beyond peak bandwidth, queues grow.
const LATENCY_MAX: f64 = 4.0;
/// Bytes of a cache line.
const LINE_BYTES: f64 = 64.0;

/// Latency by footprint, latency under load.
pub fn all(machine: &Machine, seen: &[(Boot, Vec<Seen>)]) -> Result<Vec<(&'static str, String)>> {
    let footprint = Lines {
        powers: true,
        ..lines(
            &machine.name,
            ("latency by footprint", "KiB", "ns a load"),
            footprint_series(machine, seen),
        )
    };
    let (series, expected) = loaded_series(machine, seen);
    let names = ("latency under load; lines: the file, dots: measured", "GB/s of the node", "ns");
    let loaded = Lines { expected, ..lines(&machine.name, names, series) };
    let mut plots = Vec::new();
    for (kind, plot) in [("footprint", footprint), ("loaded", loaded)] {
        if plot.series.iter().any(|series| !series.points.is_empty()) {
            plots.push((kind, plot.svg()?));
        }
    }
    Ok(plots)
}

/// Independent chains, with all numbers of virtual CPUs that `figures` have of a machine.
pub fn chains(machine: &str, figures: &[&Figure]) -> Result<Option<String>> {
    let series = chain_series(machine, figures);
    let names = ("independent chains", "chains of each CPU", "GB/s of 64-byte loads");
    (!series.is_empty()).then(|| Ok(lines(machine, names, series).svg()?)).transpose()
}

fn lines(machine: &str, names: (&str, &str, &str), series: Vec<Series>) -> Lines {
    let (title, x, y) = names;
    Lines {
        title: format!("{machine}: {title}"),
        x: x.to_owned(),
        y: y.to_owned(),
        series,
        errors: Vec::new(),
        expected: Vec::new(),
        powers: false,
        mark: None,
    }
}

fn main_paths(machine: &Machine) -> Vec<Path> {
    paths(machine).into_iter().filter(|path| is_main(machine, *path)).collect()
}

fn label(machine: &Machine, path: Path) -> String {
    machine.node(path.to).map(Node::label).unwrap_or_default()
}

/// All lines of a kind on a path, with their boot.
fn of<'a>(
    seen: &'a [(Boot, Vec<Seen>)],
    path: Path,
    kind: &'static str,
) -> impl Iterator<Item = (Boot, &'a Seen)> {
    let lines = seen.iter().flat_map(|(boot, lines)| lines.iter().map(move |line| (*boot, line)));
    lines.filter(move |(_, line)| line.path == path && line.kind == kind)
}

fn footprint_series(machine: &Machine, seen: &[(Boot, Vec<Seen>)]) -> Vec<Series> {
    let series = |path: Path| {
        let one = of(seen, path, "level").filter(|(boot, _)| boot.vcpus == 1);
        let point = |(_, line): (Boot, &Seen)| {
            Some((line.setting.first()?.parse::<f64>().ok()?.log2(), line.ns))
        };
        Series { name: label(machine, path), points: one.filter_map(point).collect() }
    };
    main_paths(machine).into_iter().map(series).collect()
}

fn chain_series(machine: &str, figures: &[&Figure]) -> Vec<Series> {
    let point = |figure: &Figure| {
        let chains = figure.what.strip_suffix(" chains, a load")?.parse::<f64>().ok()?;
        Some((chains, f64::from(figure.vcpus) * LINE_BYTES / figure.measured))
    };
    let mut all: Vec<Series> = Vec::new();
    for figure in figures.iter().filter(|figure| figure.machine == machine) {
        let Some(point) = point(figure) else { continue };
        let name = format!("{}, {} CPU", figure.path, figure.vcpus);
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => all.push(Series { name, points: vec![point] }),
        }
    }
    all
}

/// Of each node the measured points and the file's curve, reads only and half reads.
fn loaded_series(machine: &Machine, seen: &[(Boot, Vec<Seen>)]) -> (Vec<Series>, Vec<Series>) {
    let (mut measured, mut expected) = (Vec::new(), Vec::new());
    for path in main_paths(machine) {
        for (stores, read_share) in [(0, 1.0), (4, 0.5)] {
            let mut points = Vec::new();
            let mut view_here = None;
            for (boot, line) in of(seen, path, "load").filter(|(boot, _)| boot.vcpus == 1) {
                let Some(view) = View::new(machine, boot, path) else { continue };
                if let Some(load) = load(&view, line).filter(|_| mix(line) == stores)
                    && load.ns < LATENCY_MAX * view.latency_ns(1.0, 0.0)
                {
                    points.push((load.gb_s, load.ns));
                }
                view_here = Some(view);
            }
            let Some(view) = view_here else { continue };
            let peak = view.peak_gb_s(read_share);
            let at = |i: u32| peak * f64::from(i) / f64::from(CURVE_POINTS);
            let file = (0..=CURVE_POINTS).map(|i| (at(i), view.latency_ns(read_share, at(i))));
            let name = format!("{} {:.0}% reads", label(machine, path), read_share * 100.0);
            expected.push(Series { name: name.clone(), points: file.collect() });
            measured.push(Series { name, points });
        }
    }
    (measured, expected)
}
