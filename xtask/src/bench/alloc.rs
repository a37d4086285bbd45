//! `./x bench alloc`: the runtime's allocator against glibc, mimalloc, jemalloc and tcmalloc. In:
//! patterns of `workloads/bench-alloc`, each run in a process of its own under each allocator, all
//! in turns. Out: rows of CPU time and of peak memory. Knows nothing of how any of them works.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{build, exec};
use tiercel_bench::BenchResult;

/// Rounds of a full run; each runs every pattern under every allocator once.
const ROUNDS: usize = 15;
/// No further round begins after this in a quick run, which must end within 40 s.
const QUICK: Duration = Duration::from_secs(20);
/// Fewer rounds have no median.
const ROUNDS_MIN: usize = 2;

/// The project's targets for small objects, as a geometric mean over their patterns: a quarter less
/// CPU time than glibc, and at most 5% more than mimalloc, whose code serves them.
const SMALL_LIMIT_GLIBC: f64 = 0.75;
const SMALL_LIMIT_MIMALLOC: f64 = 1.05;
/// The project's target: no pattern costs more than 10% over glibc.
const WORST_LIMIT: f64 = 1.1;
/// The project's target for peak memory over mimalloc's.
const MEMORY_LIMIT: f64 = 1.05;

/// The patterns and their rounds: 20 to 150 ms each.
const PATTERNS: &[(&str, u32)] = &[
    ("small-zipf", 1_500_000),
    ("small-fixed", 2_000_000),
    ("small-lists", 1_500_000),
    ("small-threads", 2_500_000),
    ("small-larson", 1_500_000),
    ("medium", 300_000),
    ("large", 1_000),
    ("cross", 500_000),
    ("cross-medium", 50_000),
    ("grow", 8),
    ("grow-many", 5),
    ("calloc-large", 250),
    ("memory", 400_000),
];
const MEMORY: &str = "memory";

/// Ours first. A peer's library and the package that has it; glibc is what runs without a preload.
const PEERS: &[(&str, &str, &str)] = &[
    ("glibc", "", ""),
    ("mimalloc", "libmimalloc.so.2.0", "libmimalloc2.0"),
    ("jemalloc", "libjemalloc.so.2", "libjemalloc2"),
    ("tcmalloc", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
];
const OURS: &str = "ours";

/// The cost of one run of a pattern.
#[derive(Clone, Copy)]
struct Cost {
    cpu_ms: f64,
    peak_mib: f64,
}

/// By pattern and allocator, one cost per round.
type Costs = BTreeMap<(&'static str, &'static str), Vec<Cost>>;

/// Measures and returns the rows of the bench.
pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    build::runtime(&[])?;
    let program = build::program("bench-alloc", &["-fno-builtin"])?;
    let mut allocators = vec![(OURS, Some(exec::target().join("runtime/libtiercel.so")))];
    for &(name, library, package) in PEERS {
        allocators.push((name, find(library, package)?));
    }
    let mut costs = Costs::new();
    let start = Instant::now();
    for round in 0..ROUNDS {
        if quick && round >= ROUNDS_MIN && start.elapsed() > QUICK {
            break;
        }
        for &(pattern, count) in PATTERNS {
            for (name, library) in &allocators {
                let cost = run(&program, pattern, count, library.as_deref())
                    .with_context(|| format!("{pattern} under {name}"))?;
                costs.entry((pattern, name)).or_default().push(cost);
            }
        }
    }
    Ok(PEERS.iter().flat_map(|(peer, ..)| rows_against(peer, &costs)).collect())
}

/// Where the loader would find a peer's library; `None` for glibc.
pub(super) fn find(library: &str, package: &str) -> Result<Option<PathBuf>> {
    if library.is_empty() {
        return Ok(None);
    }
    let folders = [format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH), "/usr/lib64".into()];
    let found = folders.iter().map(|folder| Path::new(folder).join(library)).find(|p| p.exists());
    match found {
        Some(path) => Ok(Some(path)),
        None => bail!("{library} is not installed: apt-get install {package}"),
    }
}

fn run(program: &Path, pattern: &str, count: u32, library: Option<&Path>) -> Result<Cost> {
    let mut command = exec::command(&program.display().to_string());
    command.arg(pattern).arg(count.to_string()).env_remove("LD_PRELOAD");
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let printed = exec::output(&mut command)?;
    let mut figures = printed.split_whitespace().map(str::parse::<f64>);
    match (figures.next(), figures.next()) {
        (Some(Ok(cpu_ns)), Some(Ok(peak_kib))) => {
            Ok(Cost { cpu_ms: cpu_ns / 1e6, peak_mib: peak_kib / 1024.0 })
        }
        _ => bail!("bench-alloc printed {printed:?}"),
    }
}

fn rows_against(peer: &'static str, costs: &Costs) -> Vec<BenchResult> {
    let mut rows = vec![small_row(peer, costs)];
    for &(pattern, _) in PATTERNS {
        if pattern == MEMORY {
            let limit = (peer == "mimalloc").then_some(MEMORY_LIMIT);
            rows.push(row("peak memory", pattern, peer, costs, limit, |cost| cost.peak_mib, "MiB"));
        }
        let limit = (peer == "glibc").then_some(WORST_LIMIT);
        rows.push(row(pattern, pattern, peer, costs, limit, |cost| cost.cpu_ms, "ms CPU"));
    }
    rows
}

fn row(
    name: &str,
    pattern: &'static str,
    peer: &'static str,
    costs: &Costs,
    limit: Option<f64>,
    figure: fn(&Cost) -> f64,
    unit: &str,
) -> BenchResult {
    let of = |who| -> Vec<f64> { costs[&(pattern, who)].iter().map(figure).collect() };
    BenchResult::of_pairs(name.into(), peer, &of(OURS), &of(peer), limit, unit)
}

/// All small patterns as one: the geometric mean, round by round.
fn small_row(peer: &'static str, costs: &Costs) -> BenchResult {
    let small: Vec<&'static str> =
        PATTERNS.iter().map(|(name, _)| *name).filter(|name| name.starts_with("small")).collect();
    let of = |who: &'static str| -> Vec<f64> {
        let rounds = costs[&(small[0], who)].len();
        let mean = |round: usize| {
            small.iter().map(|name| costs[&(*name, who)][round].cpu_ms.ln()).sum::<f64>()
                / small.len() as f64
        };
        (0..rounds).map(|round| mean(round).exp()).collect()
    };
    let limit = match peer {
        "glibc" => Some(SMALL_LIMIT_GLIBC),
        "mimalloc" => Some(SMALL_LIMIT_MIMALLOC),
        _ => None,
    };
    let name = "small (geometric mean)".into();
    BenchResult::of_pairs(name, peer, &of(OURS), &of(peer), limit, "ms CPU")
}
