//! Compares predicted run times with measured ones. In: results. Out: a table, plots, and the
//! distribution of the errors. Knows nothing of how predictions are made.
//!
//! Both times are of the whole program, as multiples of its time with all memory fast: `whatif`
//! predicts the same ratio.

use tiercel_machine::number;
use tiercel_report::{Lines, Series, Table};

use super::columns::table;
use super::run_result::{Cell, RunResult};

/// A prediction with an error up to this counts as accurate: a tenth of the all-fast time. The
/// project's own target: chosen, not derived.
const TOLERANCE: f64 = 0.1;

/// Target share of accurate predictions, percent: the project's own, which the plot of errors
/// marks.
const ACCURATE_SHARE: f64 = 80.0;

/// All predictions.
#[derive(Clone, Debug)]
pub struct Predictions {
    /// The errors, in a sentence or two.
    pub accuracy: String,
    /// Each.
    pub table: Table,
    /// Predicted over measured times.
    pub plot: Lines,
    /// The cumulative distribution of the errors.
    pub spread: Lines,
}

/// One prediction.
struct Point<'a> {
    cell: &'a Cell,
    what: &'static str,
    predicted: f64,
    /// Half the width of its error bar.
    error: f64,
    measured: f64,
}

impl Point<'_> {
    fn deviation(&self) -> f64 {
        self.predicted - self.measured
    }
}

/// The prediction that accompanies those of plans.
const ALL_SLOW_NAME: &str = "everything in slow memory";

/// Compares the prediction of each plan and, for each workload and machine, the prediction for
/// everything in slow memory with the measured times. `None`: no run has both.
pub fn compare(results: &[RunResult], all_fast: &str, all_slow: &str) -> Option<Predictions> {
    let wall = |cell: &Cell, policy: &str| {
        let of = |result: &&RunResult| {
            let other = &result.cell;
            other.policy == policy
                && (&other.workload, &other.machine) == (&cell.workload, &cell.machine)
        };
        results.iter().find(of).map(|result| result.measured.wall_ns as f64)
    };
    let mut points: Vec<Point<'_>> = Vec::new();
    for result in results {
        let time = |name| result.measured.figure(&["planned", "expected", "time", name]);
        let (cell, wall_ns) = (&result.cell, result.measured.wall_ns as f64);
        let (Some(planned), Some(slow), Some(fast_ns)) =
            (time("slowdown"), time("all_slow"), wall(cell, all_fast))
        else {
            continue;
        };
        let error = time("error").unwrap_or(0.0);
        let known = |point: &Point<'_>| {
            point.what == ALL_SLOW_NAME
                && (&point.cell.workload, &point.cell.machine) == (&cell.workload, &cell.machine)
        };
        if let (Some(slow_ns), false) = (wall(cell, all_slow), points.iter().any(known)) {
            // A plan's error bar covers its part of the slowdown; this scales it to the whole
            // slowdown.
            let part = (slow - 1.0) / (planned - 1.0).max(f64::EPSILON);
            let error = if planned > 1.0 { error * part } else { 0.0 };
            let (predicted, measured) = (slow, slow_ns / fast_ns);
            points.push(Point { cell, what: ALL_SLOW_NAME, predicted, error, measured });
        }
        let measured = wall_ns / fast_ns;
        points.push(Point { cell, what: "", predicted: planned, error, measured });
    }
    (!points.is_empty()).then(|| Predictions {
        accuracy: accuracy(&points),
        table: rows_of(&points),
        plot: plot_of(&points),
        spread: spread_of(&points),
    })
}

/// Absolute errors, ascending.
fn absolute_errors(points: &[Point<'_>]) -> Vec<f64> {
    let mut errors: Vec<f64> = points.iter().map(|point| point.deviation().abs()).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

fn accuracy(points: &[Point<'_>]) -> String {
    let errors = absolute_errors(points);
    let right = errors.iter().filter(|error| **error <= TOLERANCE).count();
    let index = |part: f64| number::saturating_usize(((errors.len() - 1) as f64 * part).round());
    let at = |part: f64| 100.0 * errors[index(part)];
    let is_slower = |point: &&Point<'_>| point.measured > 1.0 + TOLERANCE;
    let parts = points.iter().filter(is_slower);
    let parts = parts.map(|point| (point.predicted - 1.0) / (point.measured - 1.0));
    let (least, most) =
        parts.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p), high.max(p)));
    let beyond = match least <= most {
        true => format!(
            " The time beyond all-fast, where it is more than a tenth of that, is predicted at {least:.2} \
             to {most:.2} of the measured one."
        ),
        false => String::new(),
    };
    format!(
        "{right} of {} are within {:.0} percentage points of the all-fast time; the error is {:.0} in \
         the median, {:.0} at the 90th percentile, {:.0} at most.{beyond}",
        errors.len(),
        100.0 * TOLERANCE,
        at(0.5),
        at(0.9),
        at(1.0),
    )
}

fn rows_of(points: &[Point<'_>]) -> Table {
    let mut table = table(&["run", "predicted", "measured", "error, percentage points"]);
    for point in points {
        let what = match point.what {
            "" => point.cell.label(),
            what => format!("{}: {what}", point.cell.workload),
        };
        table.row(vec![
            format!("{}: {what}", point.cell.machine),
            format!("{:.3}", point.predicted),
            format!("{:.3}", point.measured),
            format!("{:+.0}", 100.0 * point.deviation()),
        ]);
    }
    table
}

/// A dot for each prediction, in the colour of its workload; the line is predicted = measured.
fn plot_of(points: &[Point<'_>]) -> Lines {
    let (mut series, mut errors): (Vec<Series>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
    for point in points {
        let name = format!("{} {}", point.cell.machine, point.cell.workload);
        let at = series.iter().position(|one| one.name == name).unwrap_or_else(|| {
            series.push(Series { name, points: Vec::new() });
            errors.push(Vec::new());
            series.len() - 1
        });
        series[at].points.push((point.measured, point.predicted));
        errors[at].push(point.error);
    }
    let most = points.iter().fold(1.0, |most: f64, one| most.max(one.measured).max(one.predicted));
    Lines {
        title: "Predictions of plans: time of the program over all-fast".to_owned(),
        x: "measured".to_owned(),
        y: "predicted".to_owned(),
        series,
        errors,
        expected: vec![Series { name: String::new(), points: vec![(1.0, 1.0), (most, most)] }],
        powers: false,
        mark: None,
    }
}

/// The cumulative distribution of the errors.
fn spread_of(points: &[Point<'_>]) -> Lines {
    let errors = absolute_errors(points);
    let all = errors.len() as f64;
    let share = |(at, error): (usize, &f64)| (100.0 * error, 100.0 * (at + 1) as f64 / all);
    let shares = errors.iter().enumerate().map(share).collect();
    Lines {
        title: "Errors of predictions".to_owned(),
        x: "error up to, percentage points of the all-fast time".to_owned(),
        y: "% of the predictions".to_owned(),
        series: vec![Series { name: "predictions".to_owned(), points: shares }],
        errors: Vec::new(),
        expected: Vec::new(),
        powers: false,
        mark: Some(ACCURATE_SHARE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::Half;
    use crate::bench::run_result::Measured;

    fn result(policy: &str, wall_ns: u64, predicted: Option<(f64, f64)>) -> RunResult {
        let tiercel = predicted.map_or(serde_json::Value::Null, |(slowdown, all_slow)| {
            let time = serde_json::json!({
                "slowdown": slowdown,
                "all_slow": all_slow,
                "error": 0.25,
            });
            serde_json::json!({ "planned": { "expected": { "time": time } } })
        });
        RunResult {
            key: policy.to_owned(),
            cell: Cell {
                machine: "m".to_owned(),
                workload: "w".to_owned(),
                half: Half::Tuning,
                policy: policy.to_owned(),
                share: None,
                repeat: 0,
            },
            timed: true,
            vcpus: 1,
            fast_bytes: None,
            measured: Measured { wall_ns, tiercel, ..Measured::default() },
            host_s: 1.0,
        }
    }

    fn rounded(&(x, y): &(f64, f64)) -> (i64, i64) {
        (number::saturating_i64(x.round()), number::saturating_i64(y.round()))
    }

    #[test]
    fn predictions_are_compared_with_measured_times() {
        let results = [
            result("all-fast", 100, None),
            result("all-slow", 400, None),
            result("first-touch", 300, None),
            result("idp", 205, Some((2.0, 3.5))),
            result("joint", 150, Some((1.8, 3.5))),
        ];
        let found = compare(&results, "all-fast", "all-slow").expect("predictions");
        let Predictions { accuracy, table, plot, spread } = found;
        assert!(accuracy.starts_with("1 of 3 are within 10 "), "{accuracy}");
        assert!(
            accuracy.contains("30 in the median") && accuracy.contains("50 at most"),
            "{accuracy}"
        );
        let text = table.markdown();
        assert!(text.contains("everything in slow memory"), "{text}");
        assert!(text.contains("-5 ") && text.contains("+30 ") && text.contains("-50 "), "{text}");
        assert!(accuracy.contains("0.83 to 1.60 of the measured one"), "{accuracy}");
        // The slowdown of all-slow is 2.5 times the first plan's, and so is its error bar.
        assert_eq!(plot.series[0].points, [(4.0, 3.5), (2.05, 2.0), (1.5, 1.8)]);
        assert_eq!(plot.errors[0], [0.625, 0.25, 0.25]);
        assert!(plot.svg().expect("drawn").contains("m w"));
        let shares: Vec<(i64, i64)> = spread.series[0].points.iter().map(rounded).collect();
        assert_eq!(shares, [(5, 33), (30, 67), (50, 100)]);
        assert!(compare(&results[..3], "all-fast", "all-slow").is_none());
    }
}
