//! What a program should measure. In: a machine's figures, measurements. Out: figures with limits.
//! Knows nothing of how the model turns figures into time: it derives expectations from the
//! machine's file directly, without the model.

use tiercel_machine::{Machine, Node, loaded_latency_ns, peak_gb_s};

use super::Figure;
use super::guests::{Boot, Path, Seen};

/// The lab's targets for the relative error: idle latency, bandwidth, latency below the knee.
const IDLE: f64 = 0.03;
const SATURATION: f64 = 0.05;
const KNEE: f64 = 0.05;
/// The knee: beyond it, 1% more traffic is several per cent more latency.
pub const KNEE_SHARE: f64 = 0.9;
/// How much a prefetcher may slow down a pointer chase. A stream must not get slower.
const UNCHANGED: f64 = 0.01;
/// Bytes of a cache line.
const LINE_BYTES: f64 = 64.0;
/// Figures of the timed guest's processor, as `docs/lab.md` has them, nanoseconds: 18 instructions
/// of 250 ps for 16 loads; second level; shared level; and the footprints, KiB, that each must
/// hold.
const LEVELS: [(f64, u64, u64); 3] =
    [(0.25 * 18.0 / 16.0, 0, 16), (4.0, 64, 512), (20.0, 2048, 3072)];

/// A node as seen over a path, of which a part of the bandwidth is the guest's.
pub struct View<'a> {
    node: &'a Node,
    idle_ns: f64,
    read_gb_s: f64,
    write_gb_s: f64,
    /// Above 0, at most 1.
    pub share: f64,
}

/// One setting of the probe's load, read back.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub read_share: f64,
    /// Lines written at all.
    pub writes: bool,
    /// Of the whole node.
    pub gb_s: f64,
    pub ns: f64,
}

impl<'a> View<'a> {
    pub fn new(machine: &'a Machine, boot: Boot, path: Path) -> Option<View<'a>> {
        let node = machine.node(path.to)?;
        let seen = machine.figures(Some(path.from), path.to);
        let near = node.figures;
        let read_gb_s = seen.read_gb_s.or(near.read_gb_s)?;
        Some(View {
            node,
            idle_ns: seen.read_latency_ns.or(near.read_latency_ns)?,
            read_gb_s,
            write_gb_s: seen.write_gb_s.or(near.write_gb_s).unwrap_or(read_gb_s),
            share: if boot.model.share { share(machine, boot, node) } else { 1.0 },
        })
    }

    /// Peak bandwidth of the whole node.
    pub fn peak_gb_s(&self, read_share: f64) -> f64 {
        let apart = 1.0 / (read_share / self.read_gb_s + (1.0 - read_share) / self.write_gb_s);
        peak_gb_s(&self.node.curve, read_share).unwrap_or(apart)
    }

    /// Below the peak.
    pub fn latency_ns(&self, read_share: f64, gb_s: f64) -> f64 {
        let at = |gb_s| loaded_latency_ns(&self.node.curve, read_share, gb_s).unwrap_or(0.0);
        self.idle_ns + at(gb_s) - at(0.0)
    }

    /// Bytes that the device moves at a time.
    fn block_bytes(&self) -> f64 {
        self.node.granularity_bytes.map_or(LINE_BYTES, f64::from).max(LINE_BYTES)
    }

    fn has_blocks(&self) -> bool {
        self.block_bytes() > LINE_BYTES
    }

    /// Lines are written back in the order of evictions, so that a device with large blocks moves
    /// more than is written: how much more is not a figure of the machine.
    fn is_amplified(&self, load: Load) -> bool {
        load.writes && self.has_blocks()
    }

    /// Time of a load of each of some independent chains.
    fn chain_ns(&self, chains: f64) -> f64 {
        let bytes = self.block_bytes();
        let peak = self.peak_gb_s(1.0) * self.share;
        let mut ns = self.idle_ns;
        // More latency means less load, which means less latency: halving the step converges.
        for _ in 0..200 {
            let gb_s = (chains * bytes / ns).min(peak);
            ns = (ns + self.latency_ns(1.0, gb_s / self.share)) / 2.0;
        }
        (ns / chains).max(bytes / peak)
    }
}

/// The part of a node's CPUs that the guest stands for.
fn share(machine: &Machine, boot: Boot, node: &Node) -> f64 {
    let near = machine.nodes.iter().filter(|from| from.has_cpus() && node.is_near(from.id));
    let cpus: Vec<usize> = near.map(|from| from.cpus.len()).collect();
    f64::from(boot.vcpus) * cpus.len() as f64 / cpus.iter().sum::<usize>().max(1) as f64
}

/// Reads a line of the probe's mode `loads` back: chases, lines of streams, stores among them,
/// pause.
pub fn load(view: &View<'_>, seen: &Seen) -> Option<Load> {
    let numbers: Vec<f64> = seen.setting.iter().filter_map(|word| word.parse().ok()).collect();
    let [chases, lines, stores, pause] = numbers[..] else { return None };
    // A paused setting runs with two more chases too.
    let chases = if pause > 0.0 { chases + 1.0 } else { chases };
    let reads = chases + lines;
    Some(Load {
        read_share: reads / (reads + stores),
        writes: stores > 0.0,
        gb_s: seen.gb_s / view.share,
        ns: seen.ns,
    })
}

/// All figures of a machine.
pub fn figures(machine: &Machine, seen: &[(Boot, Vec<Seen>)]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (boot, lines) in seen {
        for line in lines {
            let Some(view) = View::new(machine, *boot, line.path) else { continue };
            let new = |what: String| Figure::new(machine, *boot, line.path, what);
            figures.extend(match line.kind.as_str() {
                "level" => level(&view, line, new),
                "idle" if !boot.model.share => {
                    let expected = view.chain_ns(f64::from(boot.vcpus)) * f64::from(boot.vcpus);
                    let figure = new("idle latency".to_owned()).is(line.ns, "ns");
                    Some(figure.should(expected, Some(IDLE)))
                }
                "chains" => chains(&view, *boot, line, new),
                "load" => loaded(&view, line, new),
                "stream" if boot.model.prefetch => stream(&view, line, new),
                _ => None,
            });
        }
        figures.extend(saturation(machine, *boot, lines));
    }
    figures.extend(prefetcher(machine, seen));
    figures
}

fn level(view: &View<'_>, line: &Seen, new: impl Fn(String) -> Figure) -> Option<Figure> {
    let kib: u64 = line.setting.first()?.parse().ok()?;
    let fits = |&&(_, from, to): &&(f64, u64, u64)| (from..=to).contains(&kib);
    let expected = LEVELS.iter().find(fits).map_or(view.chain_ns(1.0), |(ns, _, _)| *ns);
    let figure = new(format!("chase in {kib} KiB")).is(line.ns, "ns");
    Some(figure.should(expected, Some(IDLE)))
}

fn chains(
    view: &View<'_>,
    boot: Boot,
    line: &Seen,
    new: impl Fn(String) -> Figure,
) -> Option<Figure> {
    let chains: u32 = line.setting.first()?.parse().ok()?;
    let together = f64::from(chains * boot.vcpus);
    // Each virtual CPU has its own chains; all of them share the node.
    let expected = view.chain_ns(together) * f64::from(boot.vcpus);
    let figure = new(format!("{chains} chains, a load")).is(line.ns, "ns");
    Some(figure.should(expected, Some(SATURATION)))
}

fn loaded(view: &View<'_>, line: &Seen, new: impl Fn(String) -> Figure) -> Option<Figure> {
    let load = load(view, line)?;
    let used = load.gb_s / view.peak_gb_s(load.read_share);
    let percent = (load.read_share * 100.0).round();
    let what = format!("latency at {:.1} GB/s, {percent}% reads", load.gb_s);
    let limit = (used <= KNEE_SHARE && !view.is_amplified(load)).then_some(KNEE);
    let figure = new(what).is(load.ns, "ns");
    Some(figure.should(
        view.latency_ns(load.read_share, load.gb_s.min(view.peak_gb_s(load.read_share))),
        limit,
    ))
}

fn stream(view: &View<'_>, line: &Seen, new: impl Fn(String) -> Figure) -> Option<Figure> {
    let kernel = line.setting.first()?;
    // With the line that is read before it is written: copy and scale move three lines, add and
    // triad four.
    let read_share = if matches!(kernel.as_str(), "copy" | "scale") { 2.0 / 3.0 } else { 0.75 };
    let load = Load { read_share, writes: true, gb_s: line.gb_s / view.share, ns: line.ns };
    let limit = (!view.is_amplified(load)).then_some(SATURATION);
    let figure = new(format!("STREAM {kernel}")).is(load.gb_s, "GB/s");
    Some(figure.should(view.peak_gb_s(read_share), limit))
}

/// The highest bandwidth for each path and mix.
fn saturation(machine: &Machine, boot: Boot, lines: &[Seen]) -> Vec<Figure> {
    let mut best: Vec<(Path, u32, Load)> = Vec::new();
    for line in lines.iter().filter(|line| line.kind == "load") {
        let Some(view) = View::new(machine, boot, line.path) else { continue };
        let Some(load) = load(&view, line) else { continue };
        let mix = mix(line);
        match best.iter_mut().find(|(path, of, _)| (*path, *of) == (line.path, mix)) {
            Some(most) if most.2.gb_s < load.gb_s => most.2 = load,
            Some(_) => {}
            None => best.push((line.path, mix, load)),
        }
    }
    let figure = |(path, _, load): (Path, u32, Load)| {
        let view = View::new(machine, boot, path)?;
        let percent = (load.read_share * 100.0).round();
        let limit = (!view.is_amplified(load)).then_some(SATURATION);
        let figure = Figure::new(machine, boot, path, format!("peak bandwidth, {percent}% reads"));
        Some(figure.is(load.gb_s, "GB/s").should(view.peak_gb_s(load.read_share), limit))
    };
    best.into_iter().filter_map(figure).collect()
}

/// Of each group of four lines, how many are written.
pub fn mix(line: &Seen) -> u32 {
    let number =
        |at: usize| line.setting.get(at).and_then(|w| w.parse::<f64>().ok()).unwrap_or(0.0);
    let written = if number(1) > 0.0 { number(2) / number(1) * 4.0 } else { 0.0 };
    (0..4).find(|lines| written < f64::from(*lines) + 0.5).unwrap_or(4)
}

/// Streams get faster with it, or already run at the memory's speed; a chase is not a stream.
fn prefetcher(machine: &Machine, seen: &[(Boot, Vec<Seen>)]) -> Vec<Figure> {
    let find = |prefetch: bool| {
        let right = |(boot, _): &&(Boot, Vec<Seen>)| {
            boot.model.share && boot.model.prefetch == prefetch && boot.vcpus == 1
        };
        seen.iter().find(right)
    };
    let (Some((boot, with)), Some((_, without))) = (find(true), find(false)) else {
        return Vec::new();
    };
    let mut figures = Vec::new();
    for line in with.iter().filter(|line| line.kind == "stream" || line.kind == "idle") {
        let same = |other: &&Seen| {
            (other.path, &other.kind, &other.setting) == (line.path, &line.kind, &line.setting)
        };
        let Some(other) = without.iter().find(same) else { continue };
        let what =
            format!("{} {}: with the prefetcher over without", line.kind, line.setting.join(" "));
        let figure = Figure::new(machine, *boot, line.path, what);
        let blocks = View::new(machine, *boot, line.path).is_some_and(|view| view.has_blocks());
        figures.push(match line.kind.as_str() {
            // What it writes to large blocks depends on the order of evictions.
            _ if blocks && line.kind == "stream" => figure.is(line.gb_s / other.gb_s, ""),
            "idle" => figure.is(line.ns / other.ns, "").should(1.0, Some(UNCHANGED)),
            _ => figure.is(line.gb_s / other.gb_s, "").at_least(1.0 - UNCHANGED),
        });
    }
    figures
}

impl Figure {
    pub fn new(machine: &Machine, boot: Boot, path: Path, what: String) -> Figure {
        let label = |id| machine.node(id).map_or_else(|| format!("node{id}"), Node::label);
        Figure {
            machine: machine.name.clone(),
            vcpus: boot.vcpus,
            model: boot.model_name().to_owned(),
            path: format!("{}>{}", label(path.from), label(path.to)),
            what,
            measured: 0.0,
            expected: None,
            unit: String::new(),
            error: None,
            limit: None,
            holds: true,
        }
    }

    pub fn is(self, measured: f64, unit: &str) -> Figure {
        Figure { measured, unit: unit.to_owned(), ..self }
    }

    pub fn should(self, expected: f64, limit: Option<f64>) -> Figure {
        let error = self.measured / expected - 1.0;
        let holds = limit.is_none_or(|limit| error.abs() <= limit);
        Figure { expected: Some(expected), error: Some(error), limit, holds, ..self }
    }

    pub fn at_least(self, least: f64) -> Figure {
        let holds = self.measured >= least;
        Figure { expected: Some(least), error: None, limit: None, holds, ..self }
    }
}
