//! The programs of OAM's evaluation: our workloads and mixes of two, built by `tiercel cc` and
//! recorded. In: nothing. Out: profiles, and how long each program takes without checks. Knows
//! nothing of replays.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{build, compiler, exec, measure};

/// What runs in a recording: workloads with their arguments, all at once.
pub struct Program {
    /// Its name in tables.
    pub name: &'static str,
    runs: &'static [Workload],
}

type Workload = (&'static str, &'static [&'static str]);

const XSBENCH: Workload = ("xsbench", &["mib=96", "lookups=300k"]);
const BFS: Workload = ("bfs", &["mib=96"]);
const PAGERANK: Workload = ("pagerank", &["mib=96", "iterations=4"]);
const KV: Workload = ("kv", &["mib=96", "operations=300k"]);
const DICT: Workload = ("dict", &["mib=64", "lookups=300k"]);
const NETLIST: Workload = ("netlist", &["mib=64", "swaps=300k"]);
const CLUSTER: Workload = ("cluster", &["mib=64", "candidates=10"]);
const CG: Workload = ("cg", &["iterations=8"]);

/// The twelve after the papers' programs, those with small objects or in Fortran, a stream, and
/// four mixes of two programs, as OAM's table 3 has mixes. Sizes are those of
/// lab/experiments/oam.toml: a fraction of a second each, and several times the caches.
pub const PROGRAMS: &[Program] = &[
    Program { name: "xsbench", runs: &[XSBENCH] },
    Program { name: "minife", runs: &[("minife", &["mib=96", "digits=3"])] },
    Program { name: "lulesh", runs: &[("lulesh", &["mib=96", "steps=3"])] },
    Program { name: "bfs", runs: &[BFS] },
    Program { name: "pagerank", runs: &[PAGERANK] },
    Program { name: "kv", runs: &[KV] },
    Program { name: "dnn", runs: &[("dnn", &["mib=64"])] },
    Program { name: "phases", runs: &[("phases", &["mib=96", "phases=20", "rounds=6"])] },
    Program { name: "pair", runs: &[("pair", &["mib=96"])] },
    Program { name: "scan", runs: &[("scan", &["mib=96"])] },
    Program { name: "bt", runs: &[("bt", &["mib=64", "steps=3"])] },
    Program { name: "bwaves", runs: &[("bwaves", &["mib=64", "steps=2"])] },
    Program { name: "dict", runs: &[DICT] },
    Program { name: "netlist", runs: &[NETLIST] },
    Program { name: "cluster", runs: &[CLUSTER] },
    Program { name: "cg", runs: &[CG] },
    Program { name: "stream", runs: &[("stream", &["kib=32768"])] },
    Program { name: "xsbench+dict", runs: &[XSBENCH, DICT] },
    Program { name: "pagerank+netlist", runs: &[PAGERANK, NETLIST] },
    Program { name: "bfs+cluster", runs: &[BFS, CLUSTER] },
    Program { name: "kv+cg", runs: &[KV, CG] },
];

/// Share of the lines that is sampled: inputs are small ([docs/compiler.md], how true a share is).
const RATE: &str = "1/8";
/// Caches of an ordinary server, as `./x bench probe` has them.
const CACHES: &str = "32K/8,1M/16,4M/16";
/// Runs of which the shortest counts: other work only adds to it.
const ROUNDS: usize = 3;
/// What flang's programs are linked with instead of gfortran's library.
const FLANG_LIBRARIES: &str = "FLIBS=-L/usr/lib/llvm-19/lib -lFortranRuntime -lFortranDecimal";

/// The command, and where the workloads are.
pub struct Built {
    /// In release mode.
    pub tiercel: PathBuf,
    plain: PathBuf,
    checked: PathBuf,
}

/// A recorded program.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Recorded {
    /// The folder of its profile.
    pub profile: PathBuf,
    /// CPU time without checks, seconds.
    pub lasts_s: f64,
}

const PLAIN: &str = "workloads-clang";
const CHECKED: &str = "workloads-checked";

impl Built {
    /// What an earlier call built.
    pub fn earlier() -> Built {
        let [plain, checked] = [PLAIN, CHECKED].map(|folder| exec::target().join(folder));
        Built { tiercel: exec::target().join("release/tiercel"), plain, checked }
    }
}

/// Builds the command, and the workloads with and without checks.
pub fn build_all() -> Result<Built> {
    build::runtime(&[])?;
    compiler::build()?;
    let tiercel = build::tiercel()?;
    let (cc, fc) = (format!("CC={} cc", tiercel.display()), format!("FC={} fc", tiercel.display()));
    let names = PROGRAMS.iter().flat_map(|program| program.runs).map(|(name, _)| *name);
    let names: Vec<&str> = names.collect::<BTreeSet<_>>().into_iter().collect();
    build::clang_workloads(PLAIN, &["CC=clang-19"], &names)?;
    build::clang_workloads(CHECKED, &[&cc, &fc, "FFLAGS=-O3 -g -J$(@D)", FLANG_LIBRARIES], &names)?;
    Ok(Built::earlier())
}

impl Program {
    /// Records it, and measures it without checks.
    pub fn recorded(&self, built: &Built) -> Result<Recorded> {
        let profile = exec::target().join("oam").join(format!("{}.profile", self.name));
        std::fs::create_dir_all(exec::target().join("oam"))?;
        let mut record = Command::new(&built.tiercel);
        record.args(["record", "--quiet", "--sampler", "compiled", "--rate", RATE]);
        record.args(["--caches", CACHES, "-o"]).arg(&profile);
        exec::quietly(record.args(["--", "sh", "-c", &self.script(&built.checked)]))?;
        Ok(Recorded { profile, lasts_s: self.lasts_s(built)? })
    }

    /// Its workloads, all at once, as a command of the shell.
    fn script(&self, folder: &Path) -> String {
        let one = |(name, arguments): &Workload| {
            format!("{} {}", folder.join(name).display(), arguments.join(" "))
        };
        match self.runs {
            [only] => format!("exec {}", one(only)),
            runs => runs.iter().map(|run| one(run) + " & ").collect::<String>() + "wait",
        }
    }

    fn lasts_s(&self, built: &Built) -> Result<f64> {
        let report = exec::target().join("oam/lasts.jsonl");
        let mut least_s = f64::INFINITY;
        for _ in 0..ROUNDS {
            let _ = std::fs::remove_file(&report);
            let mut run = Command::new(std::env::current_exe()?);
            run.args(["measure", "--report"]).arg(&report);
            exec::quietly(run.args(["--", "sh", "-c", &self.script(&built.plain)]))?;
            least_s = least_s.min(measure::read(&report)?.cpu_s);
        }
        Ok(least_s)
    }
}
