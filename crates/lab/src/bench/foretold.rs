//! What plans foretold of a run's time, against what was measured.
//! In: rows. Out: a table, plots, and how far the predictions were off. Knows nothing of how they
//! are made.
//!
//! Both are times of the whole program over that with everything in fast memory, as `whatif`
//! predicts them.

use tiercel_report::{Lines, Series, Table};

use super::columns::table;
use super::row::{Cell, Row};

/// A prediction that is off by no more counts as right: a tenth of the all-fast time.
const RIGHT: f64 = 0.1;

/// Share of the predictions that is to be right, percent.
const RIGHT_SHARE: f64 = 80.0;

/// All predictions.
#[derive(Clone, Debug)]
pub struct Foretold {
    /// How far they were off, as a sentence or two.
    pub said: String,
    /// Each.
    pub table: Table,
    /// Foretold over measured.
    pub plot: Lines,
    /// How many were off by how much at most.
    pub spread: Lines,
}

/// One prediction.
struct Point<'a> {
    cell: &'a Cell,
    what: &'static str,
    foretold: f64,
    /// Half its error bar.
    error: f64,
    measured: f64,
}

impl Point<'_> {
    fn off(&self) -> f64 {
        self.foretold - self.measured
    }
}

/// What is foretold besides plans.
const ALL_SLOW_NAME: &str = "everything in slow memory";

/// Every plan's prediction; and one of each workload and machine of everything in slow memory.
pub fn foretold(rows: &[Row], all_fast: &str, all_slow: &str) -> Option<Foretold> {
    let wall = |cell: &Cell, policy: &str| {
        let of = |row: &&Row| {
            let other = &row.cell;
            other.policy == policy
                && (&other.workload, &other.machine) == (&cell.workload, &cell.machine)
        };
        rows.iter().find(of).map(|row| row.measured.wall_ns as f64)
    };
    let mut points: Vec<Point<'_>> = Vec::new();
    for row in rows {
        let time = |name| row.measured.figure(&["planned", "expected", "time", name]);
        let (cell, wall_ns) = (&row.cell, row.measured.wall_ns as f64);
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
            // A plan's bar is of its own part of what slow memory costs.
            let part = (slow - 1.0) / (planned - 1.0).max(f64::EPSILON);
            let error = if planned > 1.0 { error * part } else { 0.0 };
            let (foretold, measured) = (slow, slow_ns / fast_ns);
            points.push(Point { cell, what: ALL_SLOW_NAME, foretold, error, measured });
        }
        let measured = wall_ns / fast_ns;
        points.push(Point { cell, what: "", foretold: planned, error, measured });
    }
    (!points.is_empty()).then(|| Foretold {
        said: said(&points),
        table: rows_of(&points),
        plot: plot_of(&points),
        spread: spread_of(&points),
    })
}

/// How far they are off, ascending.
fn distances(points: &[Point<'_>]) -> Vec<f64> {
    let mut off: Vec<f64> = points.iter().map(|point| point.off().abs()).collect();
    off.sort_by(f64::total_cmp);
    off
}

fn said(points: &[Point<'_>]) -> String {
    let off = distances(points);
    let right = off.iter().filter(|off| **off <= RIGHT).count();
    let at = |part: f64| 100.0 * off[((off.len() - 1) as f64 * part).round() as usize];
    let is_slower = |point: &&Point<'_>| point.measured > 1.0 + RIGHT;
    let parts = points.iter().filter(is_slower);
    let parts = parts.map(|point| (point.foretold - 1.0) / (point.measured - 1.0));
    let (least, most) =
        parts.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p), high.max(p)));
    let beyond = match least <= most {
        true => format!(
            " The time beyond all-fast, where it is more than a tenth of that, is foretold at {least:.2} \
             to {most:.2} of what it is."
        ),
        false => String::new(),
    };
    format!(
        "{right} of {} are within {:.0} percentage points of the all-fast time; off by {:.0} in the \
         median, {:.0} at nine of ten, {:.0} at worst.{beyond}",
        off.len(),
        100.0 * RIGHT,
        at(0.5),
        at(0.9),
        at(1.0),
    )
}

fn rows_of(points: &[Point<'_>]) -> Table {
    let mut table = table(&["run", "foretold", "measured", "off, percentage points"]);
    for point in points {
        let what = match point.what {
            "" => point.cell.label(),
            what => format!("{}: {what}", point.cell.workload),
        };
        table.row(vec![
            format!("{}: {what}", point.cell.machine),
            format!("{:.3}", point.foretold),
            format!("{:.3}", point.measured),
            format!("{:+.0}", 100.0 * point.off()),
        ]);
    }
    table
}

/// A dot for each prediction, in the colour of its workload; the line is where all should be.
fn plot_of(points: &[Point<'_>]) -> Lines {
    let (mut series, mut errors): (Vec<Series>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
    for point in points {
        let name = format!("{} {}", point.cell.machine, point.cell.workload);
        let at = series.iter().position(|one| one.name == name).unwrap_or_else(|| {
            series.push(Series { name, points: Vec::new() });
            errors.push(Vec::new());
            series.len() - 1
        });
        series[at].points.push((point.measured, point.foretold));
        errors[at].push(point.error);
    }
    let most = points.iter().fold(1.0, |most: f64, one| most.max(one.measured).max(one.foretold));
    Lines {
        title: "What plans foretold: time of the program over all-fast".to_owned(),
        x: "measured".to_owned(),
        y: "foretold".to_owned(),
        series,
        errors,
        expected: vec![Series { name: String::new(), points: vec![(1.0, 1.0), (most, most)] }],
        powers: false,
        mark: None,
    }
}

/// The distribution of the errors: of all predictions, how many percent are off by no more.
fn spread_of(points: &[Point<'_>]) -> Lines {
    let off = distances(points);
    let all = off.len() as f64;
    let share = |(at, off): (usize, &f64)| (100.0 * off, 100.0 * (at + 1) as f64 / all);
    let shares = off.iter().enumerate().map(share).collect();
    Lines {
        title: "Predictions by how far they were off".to_owned(),
        x: "off by so many percentage points of the all-fast time at most".to_owned(),
        y: "% of the predictions".to_owned(),
        series: vec![Series { name: "predictions".to_owned(), points: shares }],
        errors: Vec::new(),
        expected: Vec::new(),
        powers: false,
        mark: Some(RIGHT_SHARE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::Half;
    use crate::bench::row::Measured;

    fn row(policy: &str, wall_ns: u64, foretold: Option<(f64, f64)>) -> Row {
        let tiercel = foretold.map_or(serde_json::Value::Null, |(slowdown, all_slow)| {
            let time = serde_json::json!({
                "slowdown": slowdown,
                "all_slow": all_slow,
                "error": 0.25,
            });
            serde_json::json!({ "planned": { "expected": { "time": time } } })
        });
        Row {
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
        (x.round() as i64, y.round() as i64)
    }

    #[test]
    fn predictions_are_held_against_times() {
        let rows = [
            row("all-fast", 100, None),
            row("all-slow", 400, None),
            row("first-touch", 300, None),
            row("idp", 205, Some((2.0, 3.5))),
            row("joint", 150, Some((1.8, 3.5))),
        ];
        let found = foretold(&rows, "all-fast", "all-slow").expect("predictions");
        let Foretold { said, table, plot, spread } = found;
        assert!(said.starts_with("1 of 3 are within 10 "), "{said}");
        assert!(said.contains("30 in the median") && said.contains("50 at worst"), "{said}");
        let text = table.markdown();
        assert!(text.contains("everything in slow memory"), "{text}");
        assert!(text.contains("-5 ") && text.contains("+30 ") && text.contains("-50 "), "{text}");
        assert!(said.contains("0.83 to 1.60 of what it is"), "{said}");
        // Everything slow is 2.5 times as much as the first plan's part, and so is its bar.
        assert_eq!(plot.series[0].points, [(4.0, 3.5), (2.05, 2.0), (1.5, 1.8)]);
        assert_eq!(plot.errors[0], [0.625, 0.25, 0.25]);
        assert!(plot.svg().expect("drawn").contains("m w"));
        let shares: Vec<(i64, i64)> = spread.series[0].points.iter().map(rounded).collect();
        assert_eq!(shares, [(5, 33), (30, 67), (50, 100)]);
        assert!(foretold(&rows[..3], "all-fast", "all-slow").is_none());
    }
}
