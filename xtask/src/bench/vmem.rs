//! `./x bench vmem`: first touches and migrations of vregions (VMem table 2, figure 4) on this
//! machine. In: whether to be quick. Out: rows of CPU time for 4 KiB against the kernel's, of the
//! same round, and the longest stall. Knows nothing of how vregions work.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::{build, exec};
use tiercel_bench::{BenchResult, median};

/// Rounds of a full run, and of a quick one.
const ROUNDS: [usize; 2] = [9, 3];
/// Size of the region in MiB. VMem has 1 GiB; eight segments of a pool exceed every cache as well.
const MIB: [u64; 2] = [512, 128];
/// First touch must not be slower than the kernel's, nor reads (5% is the difference of two runs).
const WRITE_LIMIT: f64 = 1.0;
const READ_LIMIT: f64 = 1.05;

/// Kinds of vregions, and the kernel's memory with OS pages of that size.
const PAIRS: &[(&str, &str)] =
    &[("vmem4k", "mmap"), ("eager", "mmap"), ("vmem64k", "mmap"), ("vmem2m", "thp")];

/// Vregions filled through userfaultfd, `user:KIB:US`: KiB filled per fault, microseconds that the
/// thread polls for the next fault before it sleeps. The first is VMem's way.
const FILLED: &[&str] =
    &["user:4:0", "user:4:50", "user:64:0", "user:64:50", "user:256:50", "user:2048:50"];

/// Rounds within a run that compares copies: the first of a run is always slower.
const COPY_ROUNDS: &str = "3";

/// A node that no machine has: its pool is emulated, and the host's own memory is copied.
const PAPER: &str = "900";

/// What the bench program printed, by name.
pub type Figures = BTreeMap<String, f64>;

/// Measures and returns the rows of the bench.
pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    build::runtime(&[])?;
    let tiercel = build::tiercel()?;
    let program = build::program("bench-vmem", &["-Werror", "-D_GNU_SOURCE", "-ldl"])?;
    let (rounds, mib) = (ROUNDS[usize::from(quick)], MIB[usize::from(quick)]);
    let mut rows = Vec::new();
    let pairs = |ours: &str, peer: &str| -> Result<Vec<(Figures, Figures)>> {
        let touch = |kind| run(&tiercel, &program, &["touch", kind, &mib.to_string()], mib);
        (0..rounds).map(|_| Ok((touch(ours)?, touch(peer)?))).collect()
    };
    for (ours, peer) in PAIRS {
        let pairs = pairs(ours, peer)?;
        let limits = [
            ("write", Some(WRITE_LIMIT)),
            ("register+write", None),
            ("write_elapsed", None),
            ("read", Some(READ_LIMIT)),
        ];
        for (what, limit) in limits {
            rows.push(row(ours, peer, what, limit, &pairs)?);
        }
    }
    for kind in FILLED {
        // The touching thread waits for another one: its CPU time would miss half of the cost.
        rows.push(row(kind, "mmap", "write_elapsed", None, &pairs(kind, "mmap")?)?);
    }
    for kind in ["vmem4k", "vmem2m"] {
        let arguments = ["copy", kind, &mib.to_string(), COPY_ROUNDS];
        let runs: Result<Vec<Figures>> =
            (0..rounds).map(|_| run(&tiercel, &program, &arguments, mib)).collect();
        rows.extend(copied(kind, &runs?)?);
    }
    for kind in ["vmem4k", "vmem64k", "vmem2m"] {
        for writers in ["0", "1"] {
            let arguments = ["move", kind, &mib.to_string(), PAPER, writers];
            let runs: Result<Vec<Figures>> =
                (0..rounds).map(|_| run(&tiercel, &program, &arguments, mib)).collect();
            rows.extend(moved(kind, writers, &runs?)?);
        }
    }
    Ok(rows)
}

/// One run under a daemon with pools that are large enough for the region, its twin and the rest.
fn run(tiercel: &Path, program: &Path, arguments: &[&str], mib: u64) -> Result<Figures> {
    let mut command = exec::command(&tiercel.to_string_lossy());
    command.args(["run", "--sampler", "none", "--output", "/dev/null"]);
    for node in ["0", PAPER] {
        command.args(["--pool", &format!("{node}={}MiB", 2 * mib + 128)]);
    }
    command.arg("--").arg(program).args(arguments);
    let output = command.output().with_context(|| format!("{}", tiercel.display()))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "bench-vmem {}: {errors}", arguments.join(" "));
    Ok(figures(&printed))
}

/// Its `name value` lines.
pub fn figures(printed: &str) -> Figures {
    let figure = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    printed.lines().filter_map(figure).collect()
}

/// One of them, or the sum of several, `a+b`.
pub fn value(figures: &Figures, what: &str) -> Result<f64> {
    let part = |name: &str| {
        figures.get(name).copied().with_context(|| format!("bench-vmem printed no `{name}`"))
    };
    what.split('+').map(part).sum()
}

fn row(
    kind: &str,
    peer: &str,
    what: &str,
    limit: Option<f64>,
    pairs: &[(Figures, Figures)],
) -> Result<BenchResult> {
    let ours: Vec<f64> = pairs.iter().map(|(o, _)| value(o, what)).collect::<Result<_>>()?;
    let theirs: Vec<f64> = pairs.iter().map(|(_, p)| value(p, what)).collect::<Result<_>>()?;
    Ok(BenchResult::of_pairs(format!("{kind}: {what}, 4 KiB"), peer, &ours, &theirs, limit, "ns"))
}

/// Copies ahead by two threads over those by one, of the same run; elapsed, and none faster where
/// other programs keep the CPUs busy.
fn copied(kind: &str, runs: &[Figures]) -> Result<Vec<BenchResult>> {
    let by = |way: &str, threads: u32| {
        runs.iter()
            .map(|run| value(run, &format!("{way}_by_{threads}")))
            .collect::<Result<Vec<_>>>()
    };
    let row = |way: &str| {
        let name = format!("{kind}: {way} copy by two threads, 4 KiB");
        Ok(BenchResult::of_pairs(name, "by one", &by(way, 2)?, &by(way, 1)?, None, "ns"))
    };
    ["first", "again"].into_iter().map(row).collect()
}

/// Figure 4, reported without a peer, because this machine may have one node. `./x bench
/// vmem-moves` compares with the kernel's moves.
fn moved(kind: &str, writers: &str, runs: &[Figures]) -> Result<Vec<BenchResult>> {
    let mut rows = Vec::new();
    let ways = ["whole", "back", "copy", "switch"];
    for (suffix, per) in [("", "4 KiB"), ("_stall", "longest stall")] {
        for way in ways {
            let what = format!("{way}{suffix}");
            let all: Vec<f64> = runs.iter().map(|run| value(run, &what)).collect::<Result<_>>()?;
            let name = format!("{kind}, {writers} writers: {way}, {per}");
            rows.push(BenchResult::alone(name, median(&all), None, "ns"));
        }
    }
    Ok(rows)
}
