//! `cargo xtask lab test`: the tests that need a kernel with several memory nodes, in a guest.
//! In: which tests. Out: a line a check, a table, the closing line `N passed, N failed`.
//! Knows nothing of what the tests check; they are scripts below `lab/tests`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::Value;
use tiercel_lab::suite::{self, Case, Test};
use tiercel_lab::{
    Acceleration, Cache, Guest, Model, Payload, Request, Size, Streams, Timing, Topology, cli,
};
use tiercel_machine::Machine;

use crate::{build, exec, validate};

/// How long a guest that hangs on purpose is given: first what suffices to boot on a quiet host,
/// then what suffices on a busy one.
const HANG_LIMITS: [Duration; 2] = [Duration::from_secs(12), Duration::from_secs(180)];
/// How long a guest that crashes on purpose is given; it ends by itself, and within seconds.
const CRASH_LIMIT: Duration = Duration::from_secs(300);

/// The test that the lab notices guests that hang or crash, as `--only` names it.
const MISBEHAVING: &str = "misbehaving-guests";

/// The test that every miss is counted for its site, as `--only` names it.
const TRUTHFUL: &str = "truth";
/// Lines that `lab/tests/shares.c` walks, by the function that allocates.
const KNOWN_LINES: [(&str, u32); 5] = [
    ("make_six", 6 * 60_000),
    ("make_three", 3 * 60_000),
    ("make_one", 60_000),
    ("make_walked", 4 * (8 << 20) / 64),
    ("make_idle", 0),
];
/// How far a share may be off: what the caches keep from one walk to the next.
const SHARE_ERROR_MAX: f64 = 0.03;
/// The test that two boots of a timed guest give the same figures, as `--only` names it.
const REPEATABLE: &str = "repeatable";
const REPEATED: &str = "hotcold objects=32 kib=512 hot=4 accesses=500k && \
                        tiercel run --verbose --fast 25% --tick 10ms -- \
                        hotcold objects=64 kib=1024 hot=8 accesses=1m && cat /proc/uptime\n";
/// Wall time of each boot: some tens of seconds on a quiet host.
const REPEATED_LIMIT: Duration = Duration::from_secs(3000);

/// A test that names this machine runs on all of them.
const EVERY: &str = "every";

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the guest tests
    Test(TestOptions),
    /// Build everything, then `tiercel lab bench`
    Bench(BenchOptions),
    /// Measure in timed guests; compare with the machine's file and published figures
    Validate(validate::Options),
}

#[derive(Args)]
struct TestOptions {
    /// Only the tests marked short, under two minutes
    #[arg(long)]
    short: bool,
    /// Only tests whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Only on this machine
    #[arg(long)]
    machine: Option<String>,
    /// Use the binary and the runtime as they were built last
    #[arg(long)]
    built: bool,
    /// Emulate (TCG) even where KVM works
    #[arg(long)]
    tcg: bool,
}

#[derive(Args)]
struct BenchOptions {
    /// Arguments of `tiercel lab bench`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl TestOptions {
    /// Whether a test of the lab itself, which is long and has its own guests, is to run.
    fn includes(&self, test: &str) -> bool {
        let named = self.only.as_ref().is_none_or(|part| test.contains(part.as_str()));
        named && !self.short && self.machine.is_none()
    }
}

/// Counts by (machine, test).
type Table = BTreeMap<(String, String), (usize, usize)>;

pub fn main(options: &Options) -> Result<()> {
    let options = match &options.verb {
        Verb::Test(options) => options,
        Verb::Bench(options) => return bench(options),
        Verb::Validate(options) => return validate::main(options),
    };
    // All of them in a short run as well: the programs of long tests, too, have to build.
    let all = suite::load(&exec::root().join("lab/tests"))?;
    let tests = chosen(options, &all)?;
    let started = Instant::now();
    let programs = programs(if options.short { &all } else { &tests }, options.built)?;
    let acceleration = if options.tcg { Acceleration::Tcg } else { Acceleration::Auto };
    let mut progress = |line: &str| eprintln!("{line}");
    let guest = Guest::prepare(&Cache::of_user()?, acceleration, &mut progress)?;
    let mut table = Table::new();
    let mut note = |case: Case| {
        show(&case);
        let counts = table.entry((case.machine, case.test)).or_default();
        *(if case.failure.is_none() { &mut counts.0 } else { &mut counts.1 }) += 1;
    };
    for machine in &machines(&tests)? {
        if options.machine.as_ref().is_some_and(|only| only != machine) {
            continue;
        }
        let machine_here = find(machine)?;
        let topology = Topology::of(&machine_here, Size::default())?;
        let here = |test: &&Test| test.machines.iter().any(|name| name == machine || name == EVERY);
        let here: Vec<Test> = tests.iter().filter(here).cloned().collect();
        let (timed, plain): (Vec<Test>, Vec<Test>) = here.into_iter().partition(|test| test.timed);
        suite::run(&guest, &topology, None, &plain, &programs, &mut note)?;
        if !timed.is_empty() {
            let plugin = plugin(options.built)?;
            let model = Model::default();
            let timing =
                Some(Timing { plugin: &plugin, machine: &machine_here, model, trace: None });
            suite::run(&guest, &topology, timing, &timed, &programs, &mut note)?;
        }
    }
    if options.includes(MISBEHAVING) {
        misbehaving_guests(&guest, &mut note)?;
    }
    if options.includes(REPEATABLE) {
        repeatable(&guest, options.built, &mut note)?;
    }
    if options.includes(TRUTHFUL) {
        truthful(options.built, &mut note)?;
    }
    summary(&table, started.elapsed())
}

fn bench(options: &BenchOptions) -> Result<()> {
    build::runtime(&[])?;
    build::workloads()?;
    plugin(false)?;
    let tiercel = build::tiercel()?;
    let mut command = exec::command(&tiercel.to_string_lossy());
    exec::run(command.current_dir(exec::root()).args(["lab", "bench"]).args(&options.arguments))
}

fn chosen(options: &TestOptions, all: &[Test]) -> Result<Vec<Test>> {
    let mut tests = all.to_vec();
    tests.retain(|test| {
        let named = options.only.as_ref().is_none_or(|part| test.name.contains(part.as_str()));
        named && (test.short || !options.short)
    });
    let other = [MISBEHAVING, REPEATABLE, TRUTHFUL].iter().any(|name| options.includes(name));
    ensure!(other || !tests.is_empty(), "no test's name contains that");
    Ok(tests)
}

/// The machines that tests name; [`EVERY`] means all of `lab/machines`.
fn machines(tests: &[Test]) -> Result<BTreeSet<String>> {
    let mut machines: BTreeSet<String> =
        tests.iter().flat_map(|test| test.machines.iter().cloned()).collect();
    if machines.remove(EVERY) {
        for entry in std::fs::read_dir(exec::root().join("lab/machines"))? {
            let path = entry?.path();
            let is_toml = path.extension().is_some_and(|e| e == "toml");
            machines
                .extend(path.file_stem().filter(|_| is_toml).map(|s| s.to_string_lossy().into()));
        }
    }
    Ok(machines)
}

fn find(machine: &str) -> Result<Machine> {
    cli::find_machine(machine, &[&exec::root().join("lab/machines")])
}

/// Builds the timing plugin.
pub fn plugin(built: bool) -> Result<PathBuf> {
    if !built {
        let package = "tiercel-emulator";
        exec::run(exec::cargo().args(["build", "--release", "--quiet", "--package", package]))?;
    }
    Ok(exec::target().join("release/libtiercel_emulator.so"))
}

/// Builds the programs that tests need: the binary, the runtime, C programs beside the tests,
/// workloads.
fn programs(tests: &[Test], built: bool) -> Result<BTreeMap<String, PathBuf>> {
    let names: BTreeSet<&String> = tests.iter().flat_map(|test| &test.programs).collect();
    let mut programs = BTreeMap::new();
    for name in names {
        programs.insert(name.clone(), program(name, built).with_context(|| name.clone())?);
    }
    Ok(programs)
}

/// Builds one program.
pub fn program(name: &str, built: bool) -> Result<PathBuf> {
    let source = exec::root().join(format!("lab/tests/{name}.c"));
    let of_runtime = exec::root().join(format!("runtime/tests/{name}.c"));
    match name {
        "tiercel" if built => stripped(&exec::target().join("release/tiercel")),
        "libtiercel.so" if built => Ok(exec::target().join("runtime/libtiercel.so")),
        "tiercel" => stripped(&build::tiercel()?),
        "libtiercel.so" => {
            build::runtime(&[])?;
            Ok(exec::target().join("runtime/libtiercel.so"))
        }
        "redis-server" | "redis-cli" | "redis-benchmark" | "python3" => of_debian(name),
        "move_range" => example("tiercel-mover", name),
        "samples" => example("tiercel-sampler", name),
        _ if source.exists() => compile(name, &source),
        _ if of_runtime.exists() => compile(name, &of_runtime),
        _ => {
            let path = build::workloads()?.join(name);
            ensure!(path.exists(), "it is neither in lab/tests nor in workloads");
            Ok(path)
        }
    }
}

/// A program that Debian has (setup/packages.txt).
fn of_debian(name: &str) -> Result<PathBuf> {
    let path = Path::new("/usr/bin").join(name);
    ensure!(path.exists(), "{} is missing: ./x setup installs it", path.display());
    Ok(path)
}

fn out_dir() -> Result<PathBuf> {
    let out = exec::target().join("lab");
    std::fs::create_dir_all(&out)?;
    Ok(out)
}

/// A copy without debug information: the guest unpacks it into memory.
fn stripped(binary: &Path) -> Result<PathBuf> {
    let copy = out_dir()?.join(binary.file_name().context("a program has a name")?);
    exec::run(exec::command("strip").arg("-o").arg(&copy).arg(binary))?;
    Ok(copy)
}

fn example(package: &str, name: &str) -> Result<PathBuf> {
    exec::run(exec::cargo().args(["build", "--quiet", "-p", package, "--example", name]))?;
    Ok(exec::target().join("debug/examples").join(name))
}

fn compile(name: &str, source: &Path) -> Result<PathBuf> {
    let binary = out_dir()?.join(name);
    let flags = ["-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"];
    exec::run(exec::command("cc").args(flags).arg(&binary).arg(source))?;
    Ok(binary)
}

/// Tests the lab itself: it must not take a guest that hangs or crashes for one that succeeded.
fn misbehaving_guests(guest: &Guest, note: &mut dyn FnMut(Case)) -> Result<()> {
    let topology = Topology::of(&find("spr-cxl")?, Size::default())?;
    let mut check = |what: &str, failure| {
        let (machine, test) = (topology.machine.clone(), MISBEHAVING.to_owned());
        note(Case { machine, test, what: what.to_owned(), failure });
    };
    let hang = "echo stuck > /dev/console; sleep 1000\n";
    let mut failure = None;
    for limit in HANG_LIMITS {
        failure = misbehave(guest, &topology, hang, limit, ["was killed", "stuck"]);
        if failure.is_none() {
            break;
        }
    }
    check("a hung guest is killed", failure);
    let crash = "echo c > /proc/sysrq-trigger\n";
    let signs = ["stopped before", "sysrq_handle_crash"];
    check("a crashed guest is noticed", misbehave(guest, &topology, crash, CRASH_LIMIT, signs));
    Ok(())
}

/// Runs a command that must fail with an error that contains all `signs`. Returns what went wrong.
fn misbehave(
    guest: &Guest,
    topology: &Topology,
    command: &str,
    timeout: Duration,
    signs: [&str; 2],
) -> Option<String> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let request = Request {
        topology,
        payload: Payload::default(),
        command,
        environment: &[],
        timeout,
        out: None,
        timing: None,
    };
    let streams = Streams { stdout: &mut stdout, stderr: &mut stderr };
    match guest.run(request, streams) {
        Ok(outcome) => Some(format!("it was taken for a success: {outcome:?}")),
        Err(error) => {
            let text = format!("{error:#}");
            (!signs.iter().all(|sign| text.contains(sign))).then_some(text)
        }
    }
}

/// Two boots of a timed guest with one virtual CPU give the same times, to the picosecond:
/// programs, kernel and Tiercel's daemon included.
fn repeatable(guest: &Guest, built: bool, note: &mut dyn FnMut(Case)) -> Result<()> {
    let machine = find("spr-cxl")?;
    let size = Size { cpus: 1, ..Size::default() };
    let topology = Topology::of(&machine, size)?;
    let plugin = plugin(built)?;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut payload = Payload::default();
        let places = ["usr/bin/tiercel", "usr/lib/tiercel/libtiercel.so", "usr/bin/hotcold"];
        for place in places {
            let name = place.rsplit('/').next().unwrap_or(place);
            payload.program(&program(name, built)?, place)?;
        }
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let request = Request {
            topology: &topology,
            payload,
            command: REPEATED,
            environment: &[],
            timeout: REPEATED_LIMIT,
            out: None,
            timing: Some(Timing {
                plugin: &plugin,
                machine: &machine,
                model: Model::default(),
                trace: None,
            }),
        };
        let streams = Streams { stdout: &mut stdout, stderr: &mut stderr };
        let outcome = guest.run(request, streams)?;
        ensure!(outcome.status == 0, "{}", String::from_utf8_lossy(&stderr));
        let printed = String::from_utf8_lossy(&stdout).into_owned();
        seen.push([printed, outcome.timing.context("nothing was counted")?]);
    }
    let whats = ["two boots print the same times", "two boots count the same, to the picosecond"];
    for (i, what) in whats.into_iter().enumerate() {
        let (first, second) = (&seen[0][i], &seen[1][i]);
        let failure = (first != second).then(|| format!("{first}\nand then\n{second}"));
        let machine = topology.machine.clone();
        note(Case { machine, test: REPEATABLE.to_owned(), what: what.to_owned(), failure });
    }
    Ok(())
}

/// `tiercel lab truth` on a program whose misses are known by construction (`lab/tests/shares.c`).
fn truthful(built: bool, note: &mut dyn FnMut(Case)) -> Result<()> {
    let (shares, machine) = (program("shares", built)?, "spr-cxl");
    program("tiercel", built)?;
    program("libtiercel.so", built)?;
    plugin(built)?;
    let tiercel = exec::target().join("release/tiercel");
    let mut command = exec::command(&tiercel.to_string_lossy());
    command.args(["lab", "truth", "--json", "--machine", machine, "--"]).arg(shares);
    let output = command.output().context("cannot start tiercel")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).context("it printed no JSON")?;
    let rows = report["sites"].as_array().context("it has no sites")?;
    let all: u32 = KNOWN_LINES.iter().map(|(_, lines)| lines).sum();
    for (site, lines) in KNOWN_LINES {
        let of_site = |row: &&Value| row["site"].as_str().is_some_and(|name| name.contains(site));
        let share = |row: Option<&Value>| row.and_then(|row| row["share"].as_f64()).unwrap_or(0.0);
        let (seen, known) = (share(rows.iter().find(of_site)), f64::from(lines) / f64::from(all));
        let off = (seen - known).abs() > SHARE_ERROR_MAX;
        let failure = off.then(|| format!("{seen:.3} of the misses, not {known:.3}; {report}"));
        let what = format!("{site} has its share of the misses, to 3 points");
        note(Case { machine: machine.to_owned(), test: TRUTHFUL.to_owned(), what, failure });
    }
    Ok(())
}

fn show(case: &Case) {
    let Case { machine, test, what, failure } = case;
    match failure {
        None => println!("ok      {machine} {test}: {what}"),
        Some(why) => println!("FAILED  {machine} {test}: {what}: {why}"),
    }
}

fn summary(table: &Table, elapsed: Duration) -> Result<()> {
    println!();
    println!("{:<24} {:<24} {:>6} {:>6}", "machine", "test", "passed", "failed");
    let (mut passed, mut failed) = (0, 0);
    for ((machine, test), counts) in table {
        println!("{machine:<24} {test:<24} {:>6} {:>6}", counts.0, counts.1);
        passed += counts.0;
        failed += counts.1;
    }
    println!("in {:.0} s", elapsed.as_secs_f64());
    println!("{passed} passed, {failed} failed");
    if passed == 0 || failed > 0 {
        bail!("guest tests failed");
    }
    Ok(())
}
