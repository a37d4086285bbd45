//! `tiercel whatif`: predicts the slowdown of a program with less fast memory or on
//! another machine.
//! In: [`WhatifArgs`], a profile. Out: a table, JSON, a plot. Knows nothing of how it is predicted.

use crate::engine::described;
use crate::plan_args::{PlanRequestArgs, StrategyArg, WhatifArgs};
use crate::table::{Align, Table};
use crate::terminal::{printable, say, say_json};
use anyhow::{Context, Result};
use serde::Serialize;
use tiercel_advisor::{advise, peak_bytes, predict};
use tiercel_machine::{Machine, short_bytes};
use tiercel_plan::{Bounds, Plan, Prediction, PredictionBounds, read_plan};
use tiercel_policy::Limit;
use tiercel_profile::Profile;
use tiercel_report::{Lines, Series};

/// The default capacities, percent of the peak: those of `lab/experiments` (12.5, 25, 33 and 50),
/// then 75 and 100 to complete the curve.
const SHARES: [f64; 6] = [12.5, 25.0, 33.0, 50.0, 75.0, 100.0];

/// What bounds mean, and how to get figures.
pub const OPEN: &str = "bounds, not estimates: the profile's sampler sees that memory is used, not \
                        how often caches are missed. `tiercel lab compare` measures the slowdown; a \
                        profile of `tiercel record` with --sampler perf, or compiled, counts \
                        misses";

/// Half a step of the third decimal, the last that is shown: below it nothing is uncertain.
const SHOWN: f64 = 0.0005;

/// The prediction for one machine with one size of fast memory.
#[derive(Serialize)]
pub struct Point {
    machine: String,
    fast: String,
    fast_bytes: u64,
    share_of_peak: f64,
    slowdown: f64,
    error: f64,
    all_slow: f64,
    /// What is known instead, where the sampler cannot count misses.
    bounds: Option<PredictionBounds>,
    moved_bytes: u64,
}

impl Point {
    /// Whether only bounds are known.
    pub fn is_bounded(&self) -> bool {
        self.bounds.is_some()
    }

    /// Whether a quarter of the peak is fast.
    pub fn is_quarter(&self) -> bool {
        self.fast == "25%"
    }

    /// `With 25% (40MiB) of it fast on spr-cxl, it may take 1.00 to 1.20 times as long as ...`
    pub fn sentence(&self) -> String {
        let sure = if self.is_bounded() { "may take" } else { "is predicted to take" };
        format!(
            "With {} ({}) of it fast on {}, it {sure} {} times as long as with all of it fast.",
            self.fast,
            short_bytes(self.fast_bytes),
            self.machine,
            span(&self.slowdown_bounds()),
        )
    }

    /// Where the slowdown lies: by chance in the samples, or by what the sampler leaves open.
    fn slowdown_bounds(&self) -> Bounds {
        let by_chance =
            Bounds { least: self.slowdown - self.error, most: self.slowdown + self.error };
        self.bounds.map_or(by_chance, |bounds| bounds.slowdown)
    }
}

/// `tiercel whatif`.
pub fn whatif(args: &WhatifArgs) -> Result<()> {
    let profile = tiercel_profile::read(&args.profile)?;
    let mut points = Vec::new();
    if let Some(path) = &args.plan {
        points.push(point_of(&profile, &read_plan(path)?)?);
    } else {
        for machine in &machines_of(&args.machine, &profile)? {
            points.extend(points_of(&profile, machine, &args.fast, args.strategy)?);
        }
    }
    if let Some(path) = &args.svg {
        let plot = plot(&points).svg().context("the plot")?;
        std::fs::write(path, plot).with_context(|| path.display().to_string())?;
    }
    match args.json {
        true => say_json("whatif", &serde_json::json!({ "points": points })),
        false => say(&table(&points)),
    }
}

/// The machines of these names; without names, the profile's machine.
pub fn machines_of(names: &[String], profile: &Profile) -> Result<Vec<Machine>> {
    match names.is_empty() {
        true => Ok(vec![profile.machine.clone()]),
        false => names.iter().map(|name| described(name)).collect(),
    }
}

/// A point for each size of a machine's fast memory; without sizes, for the default ones.
pub fn points_of(
    profile: &Profile,
    machine: &Machine,
    sizes: &[Limit],
    strategy: StrategyArg,
) -> Result<Vec<Point>> {
    let peak = peak_bytes(profile);
    let result = |fast: Limit| {
        let request = PlanRequestArgs::usual(strategy).request(fast, peak);
        let plan = advise(profile, machine, &request)?.plan;
        Ok(point(&plan, plan.expected.time.unwrap_or_default(), peak))
    };
    sizes_or_default(sizes).into_iter().map(result).collect()
}

fn sizes_or_default(sizes: &[Limit]) -> Vec<Limit> {
    match sizes.is_empty() {
        true => SHARES.iter().map(|share| Limit::ShareOfPeak(share / 100.0)).collect(),
        false => sizes.to_vec(),
    }
}

/// The prediction for an existing plan.
fn point_of(profile: &Profile, plan: &Plan) -> Result<Point> {
    let name = &plan.machine.name;
    let machine = match profile.machine.name == *name {
        true => profile.machine.clone(),
        false => described(name).with_context(|| format!("the plan was made for {name}"))?,
    };
    Ok(point(plan, predict(profile, &machine, plan), peak_bytes(profile)))
}

fn point(plan: &Plan, predicted: Prediction, peak_bytes: u64) -> Point {
    let fast_bytes = plan.fast_bytes_of_all();
    Point {
        machine: plan.machine.name.clone(),
        fast: plan.options.fast.clone(),
        fast_bytes,
        share_of_peak: fast_bytes as f64 / peak_bytes.max(1) as f64,
        slowdown: predicted.slowdown,
        error: predicted.error,
        all_slow: predicted.all_slow,
        bounds: predicted.bounds,
        moved_bytes: plan.expected.moved_bytes,
    }
}

fn table(points: &[Point]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("machine", Left),
        ("fast", Right),
        ("size", Right),
        ("slowdown", Right),
        ("95% CI", Right),
        ("all slow", Right),
        ("moved", Right),
    ]);
    points.iter().for_each(|point| table.row(cells(point)));
    let notes = "slowdown over all memory being fast; 95% CI: the confidence interval that follows \
                 from the number of samples\n";
    match points.iter().any(Point::is_bounded) {
        true => table.text() + notes + OPEN + "\n",
        false => table.text() + notes,
    }
}

fn cells(point: &Point) -> Vec<String> {
    let (slowdown, interval, all_slow) = match &point.bounds {
        None => {
            let interval = format!("+-{:.3}", point.error);
            (format!("{:.3}", point.slowdown), interval, format!("{:.3}", point.all_slow))
        }
        Some(bounds) => (span(&bounds.slowdown), "unknown".to_owned(), span(&bounds.all_slow)),
    };
    let (machine, fast) = (printable(&point.machine), point.fast.clone());
    let (size, moved) = (short_bytes(point.fast_bytes), short_bytes(point.moved_bytes));
    vec![machine, fast, size, slowdown, interval, all_slow, moved]
}

/// `1.00 to 2.10`, or one figure where both are the same.
fn span(bounds: &Bounds) -> String {
    match bounds.most - bounds.least < SHOWN {
        true => format!("{:.3}", bounds.most),
        false => format!("{:.2} to {:.2}", bounds.least, bounds.most),
    }
}

/// A line for each machine, with error bars.
pub fn plot(points: &[Point]) -> Lines {
    let machines = || points.chunk_by(|a, b| a.machine == b.machine);
    let half = |one: &Point| (one.slowdown_bounds().most - one.slowdown_bounds().least) / 2.0;
    let middle = |one: &Point| (one.slowdown_bounds().most + one.slowdown_bounds().least) / 2.0;
    let errors = machines().map(|of_one| of_one.iter().map(half).collect()).collect();
    let series = machines().map(|of_one| Series {
        name: of_one[0].machine.clone(),
        points: of_one.iter().map(|one| (one.share_of_peak * 100.0, middle(one))).collect(),
    });
    Lines {
        title: "Predicted slowdown".to_owned(),
        x: "fast memory, percent of the program's peak".to_owned(),
        y: "time over all fast".to_owned(),
        series: series.collect(),
        errors,
        expected: Vec::new(),
        powers: false,
        mark: Some(1.0),
    }
}
