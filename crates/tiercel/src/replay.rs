//! `tiercel replay`: streams of births and accesses through policies, in a model.
//! In: [`ReplayArgs`], profiles. Out: a table, or JSON. Knows nothing of how anything is modelled.

use crate::engine::{described, read_settings};
use crate::replay_args::ReplayArgs;
use crate::replay_energy::{EnergyStanding, energy_standings, energy_text};
use crate::table::{Align, Table};
use crate::terminal::{note, printable, say, say_json};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tiercel_machine::number::whole_ns;
use tiercel_replay::{
    Bench, Comparison, Contender, ContenderResult, Freed, Half, Model, PRESETS, Speeds, Stream,
    configured, preset, recipes, recorded,
};

/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// The speed over first touch that no stream may fall below with 95% confidence, as far as the
/// summary counts.
const HARM: f64 = 0.97;

/// Everything as JSON.
#[derive(Serialize)]
struct Printed<'a> {
    machine: &'a str,
    seed: u64,
    seeds: u32,
    period: u32,
    scale: f64,
    /// What recorded streams could not take over, by stream.
    lost: BTreeMap<String, Vec<String>>,
    summary: Vec<Standing>,
    /// Over interleave: time, moves, and where the machine's description has them, energies.
    energy: Vec<EnergyStanding>,
    comparisons: Vec<Comparison>,
}

/// A contender over all streams of a half.
#[derive(Serialize)]
struct Standing {
    policy: String,
    half: Half,
    comparisons: usize,
    /// Geometric mean of the speed over first touch.
    speed: f64,
    /// The lowest mean speed, and whose it is.
    worst_speed: f64,
    worst: String,
    /// Comparisons below [`HARM`] at 95% confidence.
    harmed: usize,
    /// Mean time over the bound's, less one.
    regret: f64,
    /// What is gained of all that the bound gains, summed over streams as shares of first touch.
    gain_share: Option<f64>,
    moved_mib: f64,
}

/// `tiercel replay`.
pub fn replay(args: &ReplayArgs) -> Result<()> {
    let streams = streams(args)?;
    let bench = bench(args)?;
    let (mut comparisons, mut lost) = (Vec::new(), BTreeMap::new());
    let (began, mut noted) = (Instant::now(), Instant::now());
    for (nth, stream) in streams.iter().enumerate() {
        if noted.elapsed() >= PROGRESS_EVERY {
            note(format_args!("{nth} of {} streams; {}", streams.len(), stream.name()));
            noted = Instant::now();
        }
        let stream = stream.stream(args.seed)?;
        comparisons.extend(bench.compare(&stream).context("this policy cannot be replayed")?);
        if !stream.lost.is_empty() {
            lost.insert(stream.name, stream.lost);
        }
    }
    let runs: usize = comparisons.iter().map(runs_of).sum();
    let took = began.elapsed().as_secs_f64();
    note(format_args!(
        "{} streams, {runs} runs in {took:.1} s: {:.0} runs a second; seed {}",
        streams.len(),
        runs as f64 / took,
        args.seed
    ));
    let summary = standings(&comparisons);
    let energy = energy_standings(&comparisons, &args.static_power);
    if args.json {
        let Bench { seed, seeds, .. } = bench;
        let (machine, period, scale) = (args.machine.as_str(), args.period, args.scale);
        let all =
            Printed { machine, seed, seeds, period, scale, lost, summary, energy, comparisons };
        return say_json("replay", &all);
    }
    say(&text(args, &comparisons, (&summary, &energy), &lost))
}

/// A stream that is made when it is replayed.
enum Source {
    Made(tiercel_replay::Recipe),
    /// Its folder, and how long its run takes without what recorded it.
    Recorded(PathBuf, Option<Duration>),
}

impl Source {
    fn name(&self) -> String {
        match self {
            Source::Made(recipe) => recipe.name.clone(),
            Source::Recorded(path, _) => path.display().to_string(),
        }
    }

    fn stream(&self, seed: u64) -> Result<Stream> {
        match self {
            Source::Made(recipe) => Ok(recipe.stream(seed)),
            Source::Recorded(path, lasts) => {
                let profile = tiercel_profile::read(path)?;
                let stream = recorded(&profile, &self.name());
                let stream = stream.with_context(|| path.display().to_string())?;
                let work_ns = lasts.map_or(stream.work_ns, whole_ns);
                let stream = stream.lasting(work_ns);
                stream.check()?;
                Ok(stream)
            }
        }
    }
}

fn streams(args: &ReplayArgs) -> Result<Vec<Source>> {
    let all = ["all".to_owned()];
    let names = match (args.streams.as_slice(), args.profile.is_empty()) {
        ([], true) => all.as_slice(),
        (names, _) => names,
    };
    let recipes = recipes();
    let mut wanted = vec![false; recipes.len()];
    for name in names {
        let is_named = |recipe: &tiercel_replay::Recipe| match name.as_str() {
            "all" => true,
            "tuned" => recipe.half == Half::Tuned,
            "held-out" => recipe.half == Half::HeldOut,
            _ => recipe.name == *name || recipe.kind() == name,
        };
        let before = wanted.iter().filter(|one| **one).count();
        wanted.iter_mut().zip(&recipes).for_each(|(one, recipe)| *one |= is_named(recipe));
        if before == wanted.iter().filter(|one| **one).count() && !recipes.iter().any(is_named) {
            bail!("no stream is called {name}; there are {}", kinds(&recipes));
        }
    }
    let made = recipes.into_iter().zip(wanted).filter(|(_, is)| *is);
    let made = made.map(|(recipe, _)| Source::Made(recipe));
    if ![0, args.profile.len()].contains(&args.lasts.len()) {
        bail!(
            "{} times for {} profiles: --lasts needs one for each",
            args.lasts.len(),
            args.profile.len()
        );
    }
    let lasts = args.lasts.iter().copied().map(Some).chain(std::iter::repeat(None));
    let profiles = args.profile.iter().cloned().zip(lasts);
    let profiles = profiles.map(|(path, lasts)| Source::Recorded(path, lasts));
    Ok(made.chain(profiles).collect())
}

fn kinds(recipes: &[tiercel_replay::Recipe]) -> String {
    let mut kinds: Vec<&str> = recipes.iter().map(tiercel_replay::Recipe::kind).collect();
    kinds.dedup();
    format!("{}, each with /0 to /{}", kinds.join(", "), tiercel_replay::SETS - 1)
}

fn bench(args: &ReplayArgs) -> Result<Bench> {
    let mut contenders = Vec::new();
    for name in &args.policy {
        contenders.extend(contender(name, args)?);
    }
    if args.period == 0 || !(args.scale > 0.0 && args.scale.is_finite()) {
        bail!("--period and --scale must be above 0");
    }
    let freed = if args.freed_goes_back { Freed::GoesBack } else { Freed::AsGlibc };
    let (period, scale) = (args.period, args.scale);
    Ok(Bench {
        speeds: Speeds::new(&described(&args.machine)?)?,
        contenders,
        per_mille: args.fast.clone(),
        seed: args.seed,
        seeds: args.seeds,
        model: Model { period, scale, freed, ..Model::default() },
    })
}

fn contender(name: &str, args: &ReplayArgs) -> Result<Vec<(String, Contender)>> {
    if name == "config" {
        let Some(path) = &args.config else { bail!("--policy config needs --config FILE") };
        let settings = read_settings(path)?;
        let sizes = (settings.objects.extent, settings.objects.finest);
        let contender = configured(name, settings.policy, sizes);
        return Ok(vec![(name.to_owned(), contender)]);
    }
    preset(name).with_context(|| {
        let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        format!("no policy is called {name}; there are {}, config", names.join(", "))
    })
}

fn runs_of(comparison: &Comparison) -> usize {
    1 + comparison.results.iter().map(|result| result.runs.len()).sum::<usize>()
}

fn standings(comparisons: &[Comparison]) -> Vec<Standing> {
    let mut standings = Vec::new();
    let names = comparisons.first().map(|one| &one.results).into_iter().flatten();
    for name in names.map(|result| &result.name) {
        for half in [Half::Tuned, Half::HeldOut] {
            let of_half: Vec<(&Comparison, &ContenderResult)> = comparisons
                .iter()
                .filter(|comparison| comparison.half == half)
                .flat_map(|one| one.results.iter().map(move |result| (one, result)))
                .filter(|(_, result)| result.name == *name)
                .collect();
            standings.extend(standing(name, half, &of_half));
        }
    }
    standings
}

fn standing(
    name: &str,
    half: Half,
    of_half: &[(&Comparison, &ContenderResult)],
) -> Option<Standing> {
    let speed = |(_, result): &(&Comparison, &ContenderResult)| result.speed.mean;
    let worst = of_half.iter().min_by(|a, b| speed(a).total_cmp(&speed(b)))?;
    let count = of_half.len() as f64;
    let mean = |of: &dyn Fn(&(&Comparison, &ContenderResult)) -> f64| {
        of_half.iter().map(of).sum::<f64>() / count
    };
    let possible = mean(&|(one, _)| 1.0 - 1.0 / one.bound_speed);
    let gained = mean(&|(one, result)| {
        let times = result.runs.iter().map(|run| run.time_ns);
        1.0 - times.sum::<f64>() / result.runs.len() as f64 / one.first_touch_ns
    });
    Some(Standing {
        policy: name.to_owned(),
        half,
        comparisons: of_half.len(),
        speed: mean(&|one| speed(one).ln()).exp(),
        worst_speed: speed(worst),
        worst: format!("{} at {}", worst.0.stream, percent(worst.0.per_mille)),
        harmed: of_half.iter().filter(|(_, result)| lowest(result) < HARM).count(),
        regret: mean(&|(_, result)| result.regret.mean),
        gain_share: (possible > 0.0).then_some(gained / possible),
        moved_mib: mean(&|(_, result)| result.promoted_mib.mean + result.demoted_mib.mean),
    })
}

fn lowest(result: &ContenderResult) -> f64 {
    result.speed.low_95.unwrap_or(result.speed.mean)
}

fn percent(per_mille: u64) -> String {
    format!("{}%", per_mille as f64 / 10.0)
}

fn text(
    args: &ReplayArgs,
    comparisons: &[Comparison],
    (summary, energy): (&[Standing], &[EnergyStanding]),
    lost: &BTreeMap<String, Vec<String>>,
) -> String {
    let mut text = rows(comparisons, args.rows);
    text.push('\n');
    text.push_str(&summary_table(summary));
    let _ = writeln!(
        text,
        "speed over first touch; low: its 95% lower bound over seeds; regret: time over that of \
         perfect knowledge that pays for its moves, which no run beats; of gain: share of what that \
         gains; seed {}, {} seeds, {}",
        args.seed,
        args.seeds,
        printable(&args.machine)
    );
    text.push_str(&energy_text(energy));
    for (stream, lost) in lost {
        let _ = writeln!(text, "{} lost {}", printable(stream), lost.join("; "));
    }
    text
}

/// The rows with the lowest speeds, worst first.
fn rows(comparisons: &[Comparison], most: usize) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("stream", Left),
        ("fast", Right),
        ("policy", Left),
        ("speed", Right),
        ("spread", Right),
        ("low", Right),
        ("bound", Right),
        ("static", Right),
        ("regret", Right),
        ("of gain", Right),
        ("moved up", Right),
        ("down", Right),
    ]);
    let mut all: Vec<(&Comparison, &ContenderResult)> = comparisons
        .iter()
        .flat_map(|one| one.results.iter().map(move |result| (one, result)))
        .collect();
    all.sort_by(|a, b| lowest(a.1).total_cmp(&lowest(b.1)));
    let rest = all.len().saturating_sub(most);
    all.iter().take(most).for_each(|(one, result)| table.row(cells(one, result)));
    let mut text = table.text();
    if rest > 0 {
        let _ = writeln!(text, "... and {rest} more; --rows shows them, --json all");
    }
    text
}

fn cells(one: &Comparison, result: &ContenderResult) -> Vec<String> {
    let speed = &result.speed;
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    vec![
        one.stream.clone(),
        percent(one.per_mille),
        result.name.clone(),
        format!("{:.3}", speed.mean),
        figure(speed.deviation),
        figure(speed.low_95),
        format!("{:.3}", one.bound_speed),
        figure(one.fixed_ns.map(|ns| one.first_touch_ns / ns)),
        format!("{:.1}%", result.regret.mean * 100.0),
        share(result.gain_share),
        format!("{:.1}MiB", result.promoted_mib.mean),
        format!("{:.1}MiB", result.demoted_mib.mean),
    ]
}

fn share(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{:.0}%", value * 100.0))
}

fn summary_table(summary: &[Standing]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("policy", Left),
        ("half", Left),
        ("cases", Right),
        ("speed", Right),
        ("worst", Right),
        ("where", Left),
        ("below 0.97", Right),
        ("regret", Right),
        ("of gain", Right),
        ("moved", Right),
    ]);
    for one in summary {
        table.row(vec![
            one.policy.clone(),
            if one.half == Half::Tuned { "tuned" } else { "held out" }.to_owned(),
            one.comparisons.to_string(),
            format!("{:.3}", one.speed),
            format!("{:.3}", one.worst_speed),
            one.worst.clone(),
            one.harmed.to_string(),
            format!("{:.1}%", one.regret * 100.0),
            share(one.gain_share),
            format!("{:.1}MiB", one.moved_mib),
        ]);
    }
    table.text()
}
