//! `./x bench instructions`, `plan-overhead` and `vmem-instructions`: overhead in instructions,
//! counted in a guest, where no noise changes them. In: real programs, each hosted in several ways
//! on one virtual CPU. Out: rows: instructions of user, kernel and daemon over those of the plain
//! program. Knows nothing of caches: their cost shows in measured times alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tiercel_lab::{Acceleration, Cache, Guest, Model, Payload, Request, Size, Streams, Timing};
use tiercel_lab::{Topology, cli};

use super::idle_plan::{PLANNED_SITES, idle_plan};
use super::limits::{LIMITS, Limits, PLANNED_LIMITS};
use crate::lab::{plugin, program};
use crate::{exec, programs};
use tiercel_bench::BenchResult;

/// A real program and what its script needs in the guest.
struct Counted {
    name: &'static str,
    /// Commands, looked up in PATH or by `gcc -print-prog-name`.
    commands: &'static [&'static str],
    /// How much of it is run: some billion instructions.
    size: u32,
    /// A shell command that prints a folder whose files the program opens.
    folder: Option<&'static str>,
}

const PROGRAMS: &[Counted] = &[
    Counted { name: "sqlite3", commands: &["sqlite3"], size: 1, folder: None },
    Counted { name: "zstd", commands: &["zstd", "xz"], size: 1, folder: None },
    Counted {
        name: "redis",
        commands: &["redis-server", "redis-cli", "redis-benchmark"],
        size: 1,
        folder: None,
    },
    Counted {
        name: "gcc",
        commands: &["gcc", "cc1", "as"],
        size: 1,
        folder: Some("gcc -print-file-name=include"),
    },
    Counted {
        name: "python",
        commands: &["/usr/bin/python3"],
        size: 1,
        folder: Some("/usr/bin/python3 -c 'import os; print(os.path.dirname(os.__file__))'"),
    },
    // The guest emulates floating point ten times as slowly as anything else.
    Counted { name: "liblinear", commands: &["liblinear-train"], size: 2, folder: None },
];

/// A program that does nothing, which leaves the cost of start and end.
const START: Counted = Counted { name: "start", commands: &["sleep"], size: 1, folder: None };

/// A way of hosting: its name and its command line.
type Way = (&'static str, &'static str);

/// Ways of hosting; the first is the plain one.
const WAYS: &[Way] = &[
    PLAIN,
    TRACKED,
    ("everything", "tiercel run --quiet --fast all --sampler probe --"),
    (PLANNED, "tiercel run --quiet --fast all --sampler none --plan /root/idle.plan --"),
];
const PLAIN: Way = ("plain", "");
const TRACKED: Way = (TRACKING, "tiercel run --quiet --fast all --sampler none --");
const TRACKING: &str = "tracking";

/// The heap as vregions, which are never moved.
const VMEM_WAYS: &[Way] =
    &[PLAIN, TRACKED, ("vmem", "tiercel run --quiet --fast all --sampler none --backing vmem --")];
/// Two whose CPU time ratio in `./x bench vmem-apps` is 1 within its noise, and one where it is
/// not.
const VMEM_PROGRAMS: &[&str] = &["sqlite3", "gcc", "python"];
/// With a plan that changes nothing: the cost of each birth's look-up, compared with tracking.
const PLANNED: &str = "planned";

/// Sites of that plan. H2M's programs have some dozens.
const SITES: usize = 100;
/// A large plan that changes nothing.
const PLAN_WAYS: &[Way] = &[
    PLAIN,
    TRACKED,
    (PLANNED, "tiercel run --quiet --fast all --sampler none --plan /root/large.plan --"),
];

/// Programs that are built here and copied into the guest.
const OURS: [&str; 3] = ["tiercel", "libtiercel.so", "marked"];

/// A machine without counters: the probe, the most expensive sampler, is used.
const MACHINE: &str = "spr-cxl";
const SIZE: Size = Size { memory_bytes: 3 << 30, cpus: 1 };
/// A guest takes one to five minutes a program on a quiet machine.
const LIMIT: Duration = Duration::from_secs(2400);

/// The part of the plugin's statistics that is used here.
#[derive(Deserialize)]
struct Stats {
    regions: Vec<Region>,
    regions_left_out: u64,
}

#[derive(Deserialize)]
struct Region {
    vcpus: Vec<Vcpu>,
}

#[derive(Deserialize)]
struct Vcpu {
    instructions: u64,
}

pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    let mut rows = Vec::new();
    for (name, counts) in counted(quick, PROGRAMS.iter(), WAYS)? {
        let Some(Counts { ways: counts, .. }) = counts else {
            rows.push(not_counted(name));
            continue;
        };
        rows.extend(over_plain(name, WAYS, &counts));
        rows.push(look_ups(name, &counts));
    }
    rows.extend(means(WAYS, &rows));
    rows.extend(mean_of(&rows, LOOK_UPS, &PLANNED_LIMITS));
    Ok(rows)
}

/// `./x bench vmem-instructions`: a heap of vregions, which `./x bench vmem-apps` times.
pub fn vmem_rows(quick: bool) -> Result<Vec<BenchResult>> {
    let mut rows = Vec::new();
    let programs = PROGRAMS.iter().filter(|program| VMEM_PROGRAMS.contains(&program.name));
    for (name, counts) in counted(quick, programs, VMEM_WAYS)? {
        match counts {
            Some(counts) => rows.extend(over_plain(name, VMEM_WAYS, &counts.ways)),
            None => rows.push(not_counted(name)),
        }
    }
    rows.extend(means(VMEM_WAYS, &rows));
    Ok(rows)
}

/// `./x bench plan-overhead`: interception, stack walk and look-up under a large plan. The cost of
/// starting and ending `tiercel run` is counted with a program that does nothing and subtracted,
/// because it does not depend on how long a program runs.
pub fn planned_rows() -> Result<Vec<BenchResult>> {
    let programs = [&START].into_iter().chain(PROGRAMS);
    let mut counted = counted(false, programs, PLAN_WAYS)?.into_iter();
    let start = counted.next().and_then(|(_, counts)| counts);
    let Counts { ways: start, .. } = start.context("starting could not be counted")?;
    let mut rows = starts(&start);
    for (name, counts) in counted {
        match counts {
            Some(counts) => rows.extend(beyond_start(name, &start, &counts)),
            None => rows.push(not_counted(name)),
        }
    }
    rows.extend(mean_of(&rows, BEYOND_START, &PLANNED_LIMITS));
    Ok(rows)
}

/// The suffix of the second row of [`beyond_start`].
const BEYOND_START: &str = ", planned, start apart, instructions";

/// Rows of the cost of starting and ending, which has no limit.
fn starts(counts: &[u64]) -> Vec<BenchResult> {
    let millions = |count: u64| count.saturating_sub(counts[0]) as f64 / 1e6;
    let row = |((way, _), count): (&Way, &u64)| {
        BenchResult::alone(format!("start and end, {way}"), millions(*count), None, "million")
    };
    PLAN_WAYS.iter().zip(counts).skip(1).map(row).collect()
}

/// A program under the plan, with and without the cost of starting and ending its commands.
fn beyond_start(name: &str, start: &[u64], counts: &Counts) -> Vec<BenchResult> {
    let billions = |count: u64| count as f64 / 1e9;
    let last = PLAN_WAYS.len() - 1;
    let (plain, planned) = (counts.ways[0], counts.ways[last]);
    let starting = start[last].saturating_sub(start[0]) * counts.commands;
    let row = |suffix: &str, count: u64| {
        let (name, plain) = (format!("{name}{suffix}"), billions(plain));
        PLANNED_LIMITS.over_plain(name, billions(count), plain, None, "billion")
    };
    let whole = row(", planned, whole, instructions", planned);
    let apart = row(BEYOND_START, planned.saturating_sub(starting));
    vec![BenchResult { limit: None, holds: true, ..whole }, apart]
}

/// Instructions by way, and how many commands each way hosted.
struct Counts {
    ways: Vec<u64>,
    commands: u64,
}

/// A program and its counts; `None` when counting failed, which was reported.
type Program = (&'static str, Option<Counts>);

/// Counts each program.
fn counted(
    quick: bool,
    programs: impl Iterator<Item = &'static Counted>,
    ways: &[Way],
) -> Result<Vec<Program>> {
    ensure!(!quick, "instructions are counted for minutes, and once: there is no quick run");
    let mut progress = |line: &str| eprintln!("{line}");
    let guest = Guest::prepare(&Cache::of_user()?, Acceleration::Tcg, &mut progress)?;
    let plugin = plugin(false)?;
    let ours = OURS.map(|name| Ok((name, program(name, false)?)));
    let ours = ours.into_iter().collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for program in programs {
        // One failure does not lose the counts of the others.
        let counts = count(&guest, &plugin, &ours, program, ways);
        match &counts {
            Ok(Counts { ways, .. }) => eprintln!("counted: {}: {ways:?}", program.name),
            Err(error) => eprintln!("{}: {error:#}", program.name),
        }
        all.push((program.name, counts.ok()));
    }
    Ok(all)
}

/// A row that misses its limit, for a program that could not be counted.
fn not_counted(name: &str) -> BenchResult {
    BenchResult::alone(format!("{name}, not counted"), 1.0, Some(0.0), "failure")
}

/// A row for each way but the plain one.
fn over_plain(name: &str, ways: &[Way], counts: &[u64]) -> Vec<BenchResult> {
    let billions = |count: u64| count as f64 / 1e9;
    let row = |((way, _), count): (&Way, &u64)| {
        let name = format!("{name}, {way}, instructions");
        LIMITS.over_plain(name, billions(*count), billions(counts[0]), None, "billion")
    };
    ways.iter().zip(counts).skip(1).map(row).collect()
}

/// A mean for each way but the plain one.
fn means(ways: &[Way], rows: &[BenchResult]) -> Vec<BenchResult> {
    let mean = |(way, _): &Way| mean_of(rows, &format!(", {way}, instructions"), &LIMITS);
    ways.iter().skip(1).filter_map(mean).collect()
}

/// The mean of the rows whose names end in `suffix`, if there are any.
fn mean_of(rows: &[BenchResult], suffix: &str, limits: &Limits) -> Option<BenchResult> {
    let of_all = rows.iter().filter(|row| row.name.ends_with(suffix));
    let ratios: Vec<f64> = of_all.filter_map(|row| row.ratio).collect();
    (!ratios.is_empty()).then(|| limits.mean(&format!("mean{suffix}"), &ratios))
}

/// The suffix of the row of [`look_ups`].
const LOOK_UPS: &str = ", planned over tracking, instructions";

/// The planned way compared with the one that only tracks.
fn look_ups(name: &str, counts: &[u64]) -> BenchResult {
    let of = |way: &str| {
        let all = WAYS.iter().zip(counts);
        all.filter(|((name, _), _)| *name == way).map(|(_, count)| *count as f64 / 1e9).sum()
    };
    let name = format!("{name}{LOOK_UPS}");
    let row = PLANNED_LIMITS.over_plain(name, of(PLANNED), of(TRACKING), None, "billion");
    BenchResult { peer_name: Some(TRACKING.into()), ..row }
}

/// Counts a program's instructions.
fn count(
    guest: &Guest,
    plugin: &Path,
    ours: &[(&str, PathBuf)],
    counted: &Counted,
    ways: &[Way],
) -> Result<Counts> {
    let machine = cli::find_machine(MACHINE, &[&exec::root().join("lab/machines")])?;
    let topology = Topology::of(&machine, SIZE)?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let request = Request {
        topology: &topology,
        payload: payload(ours, counted)?,
        command: &script(counted, ways),
        environment: &[],
        timeout: LIMIT,
        out: None,
        timing: Some(Timing { plugin, machine: &machine, model: Model::default(), trace: None }),
    };
    let outcome = guest.run(request, Streams { stdout: &mut stdout, stderr: &mut stderr })?;
    ensure!(outcome.status == 0, "{}", String::from_utf8_lossy(&stderr));
    let stats = outcome.timing.context("the plugin wrote no statistics")?;
    by_way(&serde_json::from_str(&stats)?, ways.len())
}

fn by_way(stats: &Stats, ways: usize) -> Result<Counts> {
    let regions = &stats.regions;
    let each = regions.len() / ways;
    let whole = each > 0 && regions.len().is_multiple_of(ways) && stats.regions_left_out == 0;
    ensure!(whole, "{} marked commands for {ways} ways", regions.len());
    let of = |region: &Region| region.vcpus.iter().map(|vcpu| vcpu.instructions).sum::<u64>();
    let sum = |some: &[Region]| some.iter().map(of).sum();
    Ok(Counts { ways: regions.chunks(each).map(sum).collect(), commands: each as u64 })
}

/// Runs the program in every way. Only the hosted commands are inside marks, so that generating
/// their input does not count. Detailed timing ends at once, which is ten times faster and counts
/// the same instructions.
fn script(counted: &Counted, ways: &[Way]) -> String {
    let Counted { name, size, .. } = counted;
    let run = if *name == START.name {
        "bash -c '$HOST sleep 0'".to_owned()
    } else {
        format!("bash /root/programs/{name}.sh")
    };
    let mut text = format!("/lab/end\nexport PATH=$PATH:/root/bin SIZE={size}\n");
    for (way, words) in ways {
        text += &format!(
            "mkdir /root/work && cd /root/work\n\
             HOST='marked {words}' {run} > ../{way}.out 2> ../{way}.err\n\
             status=$?\n\
             cd /root && rm -rf work\n\
             if [ $status -ne 0 ]; then cat {way}.err >&2; exit $status; fi\n\
             if ! cmp {way}.out {plain}.out >&2; then exit 1; fi\n",
            plain = PLAIN.0
        );
    }
    text
}

fn payload(ours: &[(&str, PathBuf)], counted: &Counted) -> Result<Payload> {
    let mut payload = Payload::default();
    for (name, path) in ours {
        payload.program(path, &format!("/root/bin/{name}"))?;
    }
    for name in counted.commands.iter().chain(&["bash"]) {
        // At the same path as on the host: the compiler finds its parts relative to its own path.
        let path = found(name)?;
        payload.program(&path, &path.display().to_string())?;
    }
    if let Some(folder) = counted.folder {
        let folder = exec::output(exec::command("sh").args(["-c", folder]))?;
        payload.tree(Path::new(folder.trim()), folder.trim())?;
    }
    payload.tree(&programs::folder(), "/root/programs")?;
    payload.text("/root/idle.plan", 0o644, &idle_plan(SITES));
    payload.text("/root/large.plan", 0o644, &idle_plan(PLANNED_SITES));
    Ok(payload)
}

fn found(name: &str) -> Result<PathBuf> {
    let shell = format!("command -v {name} || gcc -print-prog-name={name}");
    let printed = exec::output(exec::command("sh").args(["-c", &shell]))?;
    let path = Path::new(printed.trim());
    ensure!(path.is_absolute(), "{name} is not installed: ./x setup");
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(instructions: &[u64]) -> Stats {
        let region = |count: &u64| Region { vcpus: vec![Vcpu { instructions: *count }] };
        Stats { regions: instructions.iter().map(region).collect(), regions_left_out: 0 }
    }

    #[test]
    fn a_plan_is_compared_with_tracking() {
        let row = look_ups("x", &[1_000, 2_000, 9_000, 2_010]);
        assert!((row.ratio.expect("a ratio") - 1.005).abs() < 1e-9 && row.holds, "{row:?}");
        assert!(!look_ups("x", &[1_000, 2_000, 9_000, 2_020]).holds);
    }

    #[test]
    fn each_mode_is_compared_with_plain_runs() {
        let mut rows = over_plain("x", VMEM_WAYS, &[1_000_000_000, 1_010_000_000, 1_030_000_000]);
        rows.extend(over_plain("y", VMEM_WAYS, &[1_000_000_000, 1_000_000_000, 1_000_000_000]));
        rows.extend(means(VMEM_WAYS, &rows));
        let printed: Vec<(&str, bool)> =
            rows.iter().map(|row| (row.name.as_str(), row.holds)).collect();
        assert_eq!(printed[1], ("x, vmem, instructions", false));
        assert_eq!(printed[5], ("mean, vmem, instructions", false));
        assert_eq!(printed[4], ("mean, tracking, instructions", true));
    }

    #[test]
    fn the_cost_of_starting_is_subtracted() {
        let start = [1_000_000, 5_000_000, 21_000_000];
        let ways = vec![1_000_000_000, 1_010_000_000, 1_042_000_000];
        let rows = beyond_start("x", &start, &Counts { ways, commands: 2 });
        assert_eq!(rows[0].ratio, Some(1.042));
        assert_eq!((rows[1].ratio, rows[1].holds), (Some(1.002), true));
        let dear = Counts { ways: vec![1_000_000_000, 0, 1_050_000_000], commands: 2 };
        assert!(!beyond_start("x", &start, &dear)[1].holds);
        assert_eq!(starts(&start)[1].ours, 20.0);
    }

    #[test]
    fn commands_of_a_mode_are_added_up() {
        assert_eq!(
            by_way(&stats(&[1, 2, 10, 20, 100, 200, 5, 5]), 4).expect("whole").ways,
            [3, 30, 300, 10]
        );
        assert!(by_way(&stats(&[1, 2, 3, 4, 5, 6]), 4).is_err(), "a command was not marked");
        assert!(by_way(&stats(&[]), 4).is_err());
    }
}
