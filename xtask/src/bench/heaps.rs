//! `./x bench heaps`: what programs with heaps of 1 to 60 MiB cost under the runtime, mimalloc and
//! glibc. In: patterns of `workloads/bench-heaps` and real programs, each in a process of its own,
//! under each allocator in turns. Out: rows of peak memory and of CPU time. Knows nothing of how
//! any of them works.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use super::alloc;
use crate::{build, exec};
use tiercel_bench::BenchResult;

/// Rounds; each runs every program under every allocator once.
const ROUNDS: usize = 11;
/// Rounds of a quick run: the least that have a median.
const ROUNDS_QUICK: usize = 3;

/// The project's targets for a program, over mimalloc: a tenth more peak memory, and CPU time equal
/// within the noise of a shared machine.
const MEMORY_LIMIT: f64 = 1.1;
const CPU_LIMIT: f64 = 1.05;

/// Patterns of `bench-heaps`.
const PATTERNS: &[&str] = &["servers", "stress", "minimiser", "factors"];

/// Writes the inputs of the real programs into the current folder.
const INPUTS: &str = r#"
perl -e 'for $i (1..400) { print "struct s$i { int a[$i]; struct s$i *n; };\nint f$i(struct s$i *p, int n) { int t = 0; for (int i = 0; i < n; i++) t += p->a[i % $i] * (i + $i); return p->n ? f$i(p->n, n - 1) + t : t; }\n" }' > big.c
perl -e 'print "[0"; print ",{\"id\":$_,\"name\":\"name $_\",\"tags\":[\"a$_\",\"b\"],\"x\":", $_ * 1.5, "}" for 1..20000; print "]\n"' > big.json
perl -e 'srand 1; print int(rand(1e6)), " some text ", int(rand(1e3)), "\n" for 1..200000' > big.txt
"#;

/// Real programs of 3 to 60 MiB, as shell commands.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "sqlite3",
        "exec sqlite3 :memory: \"create table t(a integer primary key, b text, c real);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
         insert into t select i, 'row ' || i || ' of text', i * 1.5 from n;
         create index k on t(b); select count(*) from t where b like '%77%';
         delete from t where a % 3 = 0; select count(*) from t group by substr(b, 1, 6);\"",
    ),
    ("cc1", "exec $(gcc -print-prog-name=cc1) -quiet -O1 big.c -o /dev/null"),
    (
        "python3",
        "PYTHONMALLOC=malloc exec /usr/bin/python3 -c 'import json
d = json.load(open(\"big.json\")); w = {}
for line in open(\"big.txt\"):
    p = line.split(); w.setdefault(p[3], []).append(int(p[0]))
print(len(d), sum(len(v) for v in w.values()), len(json.dumps(d[:9000])))'",
    ),
    (
        "jq",
        "exec jq -c '.[1:] | map({name, x: (.x * 2)}) | group_by(.x % 10) | map(length)' big.json",
    ),
    ("xz", "exec xz -1 -c big.txt"),
    ("perl", "exec perl -ne '@f = split; push @{$h{$f[3]}}, $f[0]; END { print %h + 0 }' big.txt"),
    ("bc", "echo 'scale=400; for (i = 0; i < 60; i++) x = x + sqrt(i) * 1.001^i; x' | bc -lq"),
    (
        "redis",
        "redis-server --port 0 --unixsocket $PWD/redis.sock --save '' --appendonly no &
         until redis-cli -s redis.sock ping 2>&1 | grep -q PONG; do :; done
         redis-benchmark -s redis.sock -q -n 20000 -r 10000 -d 100 -t set,lpush,sadd
         redis-cli -s redis.sock shutdown nosave; wait",
    ),
];

const OURS: &str = "ours";

#[derive(Clone, Copy)]
struct Cost {
    cpu_ms: f64,
    peak_mib: f64,
}

/// By program and allocator, one cost per round.
type Costs = BTreeMap<(&'static str, &'static str), Vec<Cost>>;

pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    build::runtime(&[])?;
    let bench = build::program("bench-heaps", &["-fno-builtin"])?;
    let folder = exec::target().join("bench-heaps-inputs");
    std::fs::create_dir_all(&folder)?;
    exec::run(exec::command("sh").args(["-c", INPUTS]).current_dir(&folder))?;
    let allocators = [
        (OURS, Some(exec::target().join("runtime/libtiercel.so"))),
        ("mimalloc", alloc::find("libmimalloc.so.2.0", "libmimalloc2.0")?),
        ("glibc", None),
    ];
    let commands = commands(&bench);
    let mut costs = Costs::new();
    for _ in 0..if quick { ROUNDS_QUICK } else { ROUNDS } {
        for (program, command) in &commands {
            for (name, library) in &allocators {
                let cost = run(&bench, &folder, command, library.as_deref())
                    .with_context(|| format!("{program} under {name}"))?;
                costs.entry((program, name)).or_default().push(cost);
            }
        }
    }
    let of_program = |program: &&'static str| {
        let program = *program;
        ["mimalloc", "glibc"].map(|peer| rows_of(program, peer, &costs)).concat()
    };
    Ok(commands.iter().map(|(name, _)| name).flat_map(of_program).collect())
}

fn commands(bench: &Path) -> Vec<(&'static str, String)> {
    let pattern = |name: &&'static str| (*name, format!("exec {} {name}", bench.display()));
    let program = |(name, command): &(&'static str, &str)| (*name, (*command).to_owned());
    PATTERNS.iter().map(pattern).chain(PROGRAMS.iter().map(program)).collect()
}

/// Runs a command under `bench-heaps cost`, which reports on descriptor 3.
fn run(bench: &Path, folder: &Path, command: &str, library: Option<&Path>) -> Result<Cost> {
    let report = folder.join("cost");
    let preload = library.map(|path| format!("LD_PRELOAD={} ", path.display())).unwrap_or_default();
    // `env` is what gets the library: neither the shell around it nor the measuring program does.
    let words = format!("exec {} cost env {preload}sh -c \"$COMMAND\" 3> cost", bench.display());
    let mut shell = exec::command("sh");
    shell.args(["-c", &words]).env("COMMAND", command).env_remove("LD_PRELOAD");
    let status = shell.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "{command}: {status}");
    let mut printed = String::new();
    File::open(&report)?.read_to_string(&mut printed)?;
    let mut figures = printed.split_whitespace().map(str::parse::<f64>);
    match (figures.next(), figures.next()) {
        (Some(Ok(cpu_ns)), Some(Ok(peak_kib))) => {
            Ok(Cost { cpu_ms: cpu_ns / 1e6, peak_mib: peak_kib / 1024.0 })
        }
        _ => bail!("bench-heaps printed {printed:?}"),
    }
}

/// Peak memory and CPU time of a program; only those over mimalloc have a limit.
fn rows_of(program: &'static str, peer: &'static str, costs: &Costs) -> Vec<BenchResult> {
    let row = |what: &str, limit: f64, figure: fn(&Cost) -> f64, unit| {
        let of = |who| -> Vec<f64> { costs[&(program, who)].iter().map(figure).collect() };
        let limit = (peer == "mimalloc").then_some(limit);
        BenchResult::of_pairs(format!("{program}, {what}"), peer, &of(OURS), &of(peer), limit, unit)
    };
    vec![
        row("peak memory", MEMORY_LIMIT, |cost| cost.peak_mib, "MiB"),
        row("CPU", CPU_LIMIT, |cost| cost.cpu_ms, "ms CPU"),
    ]
}
