//! `tiercel lab bench`, `compare`, `report`: policies against each other in the guest.
//! In: an experiment file, or a program. Out: a folder of results, tables on standard output.
//! Knows nothing of how a guest is made.

use crate::terminal::{note, say, say_json};
use anyhow::{Context, Result, ensure};
use clap::{Args as ClapArgs, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tiercel_advisor::predict;
use tiercel_daemon::Settings;
use tiercel_lab::Acceleration;
use tiercel_lab::bench::experiment::{
    Baseline, Command, Experiment, Half, Huge, Metric, Policy, Workload,
};
use tiercel_lab::bench::share::Share;
use tiercel_lab::bench::{self, Agent, BenchOptions, Spec, Summary, Tally};
use tiercel_machine::parse_bytes;
use tiercel_plan::read_plan;

/// Where a checkout keeps results.
const RESULTS: &str = "lab/results";

/// Options of both `bench` and `compare`.
#[derive(ClapArgs, Debug)]
pub struct MakeArgs {
    /// Only runs whose WORKLOAD/POLICY/SHARE contains this; may be given several times
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Copy a file or folder into the guest; THERE is its path in the guest, by default the same
    #[arg(long = "file", value_name = "HERE[:THERE]")]
    files: Vec<String>,
    /// Do not model times: fast, but shows only that programs work
    #[arg(long)]
    untimed: bool,
    /// Emulate CPUs (TCG) even where KVM works
    #[arg(long)]
    tcg: bool,
    /// Repeat runs that failed in earlier calls
    #[arg(long)]
    retry: bool,
    /// Print the rows as JSON, one a line, instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct BenchArgs {
    /// The experiment: a file, or a name in lab/experiments
    #[arg(value_name = "EXPERIMENT")]
    experiment: String,
    /// Folder of the results; lab/results/NAME without. What is there is not made again
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Only one repeat, and the middle capacity
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    make: MakeArgs,
}

#[derive(ClapArgs, Debug)]
pub struct CompareArgs {
    /// The machine: a description's file, a name in lab/machines, or a built-in name
    #[arg(long, value_name = "FILE|NAME", default_value = "spr-cxl")]
    machine: String,
    /// Fast memory, as a share of the program's peak; may be given several times
    #[arg(long, value_name = "SHARE", default_value = "25%", value_parser = share)]
    fast: Vec<Share>,
    /// Memory of the guest, shared out among the nodes as on the machine
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_bytes)]
    memory: u64,
    /// Virtual CPUs
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// What to compare besides all-fast and all-slow memory
    #[arg(long = "policy", value_name = "POLICY", value_enum)]
    #[arg(default_values_t = [Contender::FirstTouch, Contender::KernelTiering, Contender::Tiercel])]
    policies: Vec<Contender>,
    /// Compare what the program marks as its regions of interest, and time nothing else in detail:
    /// set-up then costs its instructions only
    #[arg(long, conflicts_with = "untimed")]
    regions: bool,
    /// Tiercel's configuration; without it, Tiercel as it comes
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Host seconds after which a run counts as hung
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    limit: u64,
    /// Folder of the results; lab-compare in this folder without. What is there is not made again
    #[arg(long, value_name = "FOLDER", default_value = "lab-compare")]
    results: PathBuf,
    #[command(flatten)]
    make: MakeArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Contender {
    /// Fast memory until it is full, then slow memory
    FirstTouch,
    /// The kernel's NUMA balancing with tiering and demotion
    KernelTiering,
    /// OS pages in turn, weighted by bandwidth
    WeightedInterleave,
    /// The kernel's DAMON
    Damon,
    /// `tiercel run`
    Tiercel,
}

#[derive(ClapArgs, Debug)]
pub struct ReportArgs {
    /// Folder of the results of an experiment
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Repeat the predictions of plans with this build, from the profiles and plans that are stored
    /// with the runs; what was measured stays
    #[arg(long)]
    predict: bool,
    /// Print the rows as JSON, one a line, instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct AgentArgs {
    /// What to run, JSON
    #[arg(value_name = "FILE")]
    specs: PathBuf,
}

/// Runs an experiment from a file.
pub fn bench(args: &BenchArgs) -> Result<ExitCode> {
    let path = experiment_file(&args.experiment);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read the experiment {}", path.display()))?;
    let experiment = Experiment::parse(&text, &judge)
        .with_context(|| format!("in the experiment {}", path.display()))?;
    let results = args.results.clone().unwrap_or_else(|| Path::new(RESULTS).join(&experiment.name));
    make(experiment, &results, args.quick, &args.make)
}

/// Runs one program under several policies.
pub fn compare(args: &CompareArgs) -> Result<ExitCode> {
    let config = compare_config(args)?;
    judge(&config)?;
    let name = Path::new(&args.program[0]).file_name().unwrap_or_default().to_string_lossy();
    let policies = compared_policies(&args.policies);
    let experiment = Experiment {
        nodes: Default::default(),
        name: "compare".to_owned(),
        what: format!("`{}` under several policies.", args.program.join(" ")),
        machines: vec![args.machine.clone()],
        memory: args.memory,
        vcpus: args.cpus,
        timed: true,
        prefetch: false,
        share: false,
        regions_only: args.regions,
        repeats: 1,
        capacities: args.fast.clone(),
        huge: Huge::Always,
        limit_s: args.limit,
        boot_runs: 24,
        config: toml::from_str(&config).context("in the configuration")?,
        workloads: vec![Workload {
            name: name.into_owned(),
            command: Command::Words(args.program.clone()),
            half: Half::Tuning,
            metric: if args.regions { Metric::Regions } else { Metric::Wall },
        }],
        policies,
    };
    experiment.check(&judge)?;
    make(experiment, &args.results, false, &args.make)
}

fn compare_config(args: &CompareArgs) -> Result<String> {
    match &args.config {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display())),
        None => Ok(String::new()),
    }
}

fn compared_policies(contenders: &[Contender]) -> Vec<Policy> {
    let baselines = [
        (Contender::FirstTouch, "first-touch", Some(Baseline::FirstTouch)),
        (Contender::KernelTiering, "kernel-tiering", Some(Baseline::KernelTiering)),
        (Contender::WeightedInterleave, "weighted-interleave", Some(Baseline::WeightedInterleave)),
        (Contender::Damon, "damon", Some(Baseline::Damon)),
        (Contender::Tiercel, "tiercel", None),
    ];
    let chosen = baselines.into_iter().filter(|(which, ..)| contenders.contains(which));
    let mut policies = vec![Policy::new("all-slow", Some(Baseline::AllSlow))];
    policies.extend(chosen.map(|(_, name, baseline)| Policy::new(name, baseline)));
    policies
}

/// Redraws tables and plots.
pub fn report(args: &ReportArgs) -> Result<ExitCode> {
    if args.predict {
        let mut repeat = |profile: &Path, plan: &Path| {
            let profile = tiercel_profile::read(profile)?;
            let prediction = predict(&profile, &profile.machine, &read_plan(plan)?);
            Ok(serde_json::to_value(prediction)?)
        };
        let count = bench::repeat_predictions(&args.folder, &mut repeat, &mut |line| note(line))?;
        note(format_args!("lab: {count} predictions were repeated"));
    }
    let summary = bench::report(&args.folder, &mut |line| note(line))?;
    show(&summary, args.json, &args.folder)?;
    Ok(if is_bounded(&summary) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The bench's agent in the guest.
pub fn agent(args: &AgentArgs) -> Result<ExitCode> {
    let text = std::fs::read_to_string(&args.specs)
        .with_context(|| format!("cannot read {}", args.specs.display()))?;
    let specs: Vec<Spec> = serde_json::from_str(&text).context("the bench's specs")?;
    Agent::new(Path::new("/")).serve(&specs, &mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

fn make(
    mut experiment: Experiment,
    results: &Path,
    quick: bool,
    args: &MakeArgs,
) -> Result<ExitCode> {
    experiment.timed &= !args.untimed;
    let options = BenchOptions {
        results: results.to_owned(),
        only: args.only.clone(),
        quick,
        retry: args.retry,
        files: args.files.iter().map(|text| file(text)).collect::<Result<_>>()?,
        acceleration: if args.tcg { Acceleration::Tcg } else { Acceleration::Auto },
    };
    let (tally, summary) = bench::bench(&experiment, &options, &mut |line| note(line))?;
    show(&summary, args.json, results)?;
    let is_sound = is_bounded(&summary);
    if tally.failed + tally.unsized_runs == 0 && is_sound {
        return Ok(ExitCode::SUCCESS);
    }
    print_failures(&summary, &tally);
    Ok(ExitCode::FAILURE)
}

/// Whether no run beats its bound; those that do are named.
fn is_bounded(summary: &Summary) -> bool {
    let beaten = summary.beaten();
    for (run, over) in &beaten {
        note(format_args!(
            "DEFECT {run}: it took {over:.3} of the time that no run should beat: the bound is \
             wrong, or the run is"
        ));
    }
    beaten.is_empty()
}

fn print_failures(summary: &Summary, tally: &Tally) {
    for failure in summary.failures() {
        note(format_args!("FAILED {}: {}", failure.cell.label(), failure.why));
    }
    let Tally { done, failed, unsized_runs } = tally;
    note(format_args!(
        "tiercel: {done} runs finished, {failed} failed, {unsized_runs} could not be sized because \
         their all-fast run failed; --retry repeats them"
    ));
}

fn show(summary: &Summary, json: bool, results: &Path) -> Result<()> {
    if json {
        for result in summary.results() {
            say_json("lab-run", result)?;
        }
    } else {
        say(&summary.short())?;
        note(format_args!("lab: tables and plots are in {}", results.join("README.md").display()));
    }
    Ok(())
}

fn experiment_file(name: &str) -> PathBuf {
    let known = Path::new("lab/experiments").join(format!("{name}.toml"));
    if !name.contains('/') && !name.ends_with(".toml") && known.exists() {
        return known;
    }
    PathBuf::from(name)
}

/// Checks a policy's configuration as Tiercel does.
fn judge(text: &str) -> Result<()> {
    let settings = Settings::from_toml(text)?;
    ensure!(
        settings.machine.name.is_empty(),
        "machine: not allowed here, because the lab sets the guest's machine"
    );
    Ok(())
}

fn share(text: &str) -> Result<Share, String> {
    Share::try_from(text.to_owned())
}

/// `HERE:THERE`, or one path that is the same in both.
pub(crate) fn file(text: &str) -> Result<(PathBuf, String)> {
    let (here, there) = match text.split_once(':') {
        Some((here, there)) => (PathBuf::from(here), there.to_owned()),
        None => {
            let path = std::path::absolute(Path::new(text)).context("no current directory")?;
            let there = path.to_string_lossy().into_owned();
            (path, there)
        }
    };
    anyhow::ensure!(here.exists(), "--file {text}: there is no {} here", here.display());
    Ok((here, there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_experiments_of_the_tree_are_valid() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/experiments");
        let mut seen = 0;
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let parsed = Experiment::parse(&text, &judge);
            let experiment = parsed.unwrap_or_else(|error| panic!("{path:?}: {error:#}"));
            assert_eq!(Some(experiment.name.as_str()), path.file_stem().and_then(|s| s.to_str()));
            seen += 1;
        }
        assert!(seen >= 2, "{}", dir.display());
    }

    #[test]
    fn configurations_are_checked_as_tiercel_does() {
        assert!(judge("fast = \"25%\"").is_ok());
        assert!(judge("").is_ok());
        assert!(judge("fest = 1").is_err());
        assert!(judge("machine = \"spr-cxl\"").is_err());
    }
}
