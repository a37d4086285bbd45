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
use tiercel_plan::{Plan, Prediction, read_plan};
use tiercel_policy::Limit;
use tiercel_profile::Profile;
use tiercel_report::{Lines, Series};

/// The default capacities, percent of the peak: those of `lab/experiments` (12.5, 25, 33 and 50),
/// then 75 and 100 to complete the curve.
const SHARES: [f64; 6] = [12.5, 25.0, 33.0, 50.0, 75.0, 100.0];

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
    moved_bytes: u64,
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
        true => say_json(&points),
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
    for point in points {
        table.row(vec![
            printable(&point.machine),
            point.fast.clone(),
            short_bytes(point.fast_bytes),
            format!("{:.3}", point.slowdown),
            format!("+-{:.3}", point.error),
            format!("{:.3}", point.all_slow),
            short_bytes(point.moved_bytes),
        ]);
    }
    table.text()
        + "slowdown over all memory being fast; 95% CI: the confidence interval that follows from \
           the number of samples\n"
}

/// A line for each machine, with error bars.
pub fn plot(points: &[Point]) -> Lines {
    let machines = || points.chunk_by(|a, b| a.machine == b.machine);
    let errors = machines().map(|of_one| of_one.iter().map(|one| one.error).collect()).collect();
    let series = machines().map(|of_one| Series {
        name: of_one[0].machine.clone(),
        points: of_one.iter().map(|one| (one.share_of_peak * 100.0, one.slowdown)).collect(),
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
