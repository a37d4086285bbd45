//! What plans foretold of a run's time, against what was measured.
//! In: rows. Out: a table, and how far the predictions were off. Knows nothing of how they are
//! made.
//!
//! Both are times of the whole program over that with everything in fast memory, as `whatif`
//! predicts them.

use tiercel_report::Table;

use super::row::{Cell, Row};
use super::summary::table;

/// A prediction that is off by no more counts as right: a tenth of the all-fast time.
const RIGHT: f64 = 0.1;

/// One prediction.
struct Point<'a> {
    cell: &'a Cell,
    what: &'static str,
    foretold: f64,
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
pub fn foretold(rows: &[Row], all_fast: &str, all_slow: &str) -> Option<(String, Table)> {
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
        let known = |point: &Point<'_>| {
            point.what == ALL_SLOW_NAME
                && (&point.cell.workload, &point.cell.machine) == (&cell.workload, &cell.machine)
        };
        if let (Some(slow_ns), false) = (wall(cell, all_slow), points.iter().any(known)) {
            let (foretold, measured) = (slow, slow_ns / fast_ns);
            points.push(Point { cell, what: ALL_SLOW_NAME, foretold, measured });
        }
        points.push(Point { cell, what: "", foretold: planned, measured: wall_ns / fast_ns });
    }
    (!points.is_empty()).then(|| (said(&points), rows_of(&points)))
}

fn said(points: &[Point<'_>]) -> String {
    let mut off: Vec<f64> = points.iter().map(|point| point.off().abs()).collect();
    off.sort_by(f64::total_cmp);
    let right = off.iter().filter(|off| **off <= RIGHT).count();
    let at = |part: f64| 100.0 * off[((off.len() - 1) as f64 * part).round() as usize];
    format!(
        "{right} of {} are within {:.0} percentage points of the all-fast time; off by {:.0} in the \
         median, {:.0} at nine of ten, {:.0} at worst.",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::Half;
    use crate::bench::row::Measured;

    fn row(policy: &str, wall_ns: u64, foretold: Option<(f64, f64)>) -> Row {
        let tiercel = foretold.map_or(serde_json::Value::Null, |(slowdown, all_slow)| {
            let time = serde_json::json!({ "slowdown": slowdown, "all_slow": all_slow });
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

    #[test]
    fn predictions_are_held_against_times() {
        let rows = [
            row("all-fast", 100, None),
            row("all-slow", 400, None),
            row("first-touch", 300, None),
            row("idp", 205, Some((2.0, 3.5))),
            row("joint", 150, Some((1.8, 3.5))),
        ];
        let (said, table) = foretold(&rows, "all-fast", "all-slow").expect("predictions");
        assert!(said.starts_with("1 of 3 are within 10 "), "{said}");
        assert!(said.contains("30 in the median") && said.contains("50 at worst"), "{said}");
        let text = table.markdown();
        assert!(text.contains("everything in slow memory"), "{text}");
        assert!(text.contains("-5 ") && text.contains("+30 ") && text.contains("-50 "), "{text}");
        assert!(foretold(&rows[..3], "all-fast", "all-slow").is_none());
    }
}
