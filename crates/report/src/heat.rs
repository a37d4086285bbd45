//! Rows over time, in colours: which object was accessed when, and when it lived.
//! In: names and numbers. Out: SVG, the same for the same input. Knows nothing of objects.
//!
//! A column is an interval of time, a cell the number of one row in it. Each colour covers a factor
//! of two: the darkest is from half of the largest number on, the next from a quarter, and so on. A
//! zero has no cell. What lives in a column in which nothing was observed is darker than what was
//! observed and not used.

use std::fmt::Write;

use crate::plot::PlotError;
use crate::text::{escaped, shortened};

/// Width of the picture, and of its margins: names on the left, notes on the right.
const WIDTH: f64 = 1100.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 130.0;
/// Room above the rows, for the names of intervals and the title; and below, for the axis.
const TOP: f64 = 52.0;
const BOTTOM: f64 = 62.0;
/// Height of a row, and of the bar in it.
const ROW: f64 = 15.0;
const BAR: f64 = 12.0;

/// Characters of 11 points that fit into the margins.
const NAME_CHARS_MAX: usize = 46;
const NOTE_CHARS_MAX: usize = 19;
/// The same above an interval, for each point of its width.
const INTERVAL_CHARS_PER_POINT: f64 = 1.0 / 6.5;

/// Rows and columns a browser still draws at once.
const ROWS_MAX: usize = 500;
const COLUMNS_MAX: usize = 2000;

/// From cold to hot; light to dark, so that they also differ in grey.
/// Alive and not accessed; alive while nothing was observed.
const UNUSED: &str = "#ececec";
const UNSEEN: &str = "#b9c4d0";

const COLOURS: [&str; 8] =
    ["#fff3cf", "#fee391", "#fec44f", "#fe9929", "#ec7014", "#cc4c02", "#993404", "#5c2003"];

/// Steps of the axis in a picture.
const STEPS: f64 = 6.0;

/// Rows of cells over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// Above the picture.
    pub title: String,
    /// What a cell counts, for the legend.
    pub unit: String,
    /// From the top.
    pub rows: Vec<HeatRow>,
    /// Named intervals of time, ascending; drawn as bands above the rows.
    pub intervals: Vec<TimeSpan>,
    /// Whether anything was observed in each column; those missing at the end were observed.
    pub seen: Vec<bool>,
    /// Length of a column, seconds.
    pub column_s: f64,
    /// End of the axis, seconds; from 0.
    pub end_s: f64,
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatRow {
    /// On the left.
    pub name: String,
    /// On the right.
    pub note: String,
    /// When it is there, seconds: from, to. The bar behind its cells.
    pub lives: Vec<(f64, f64)>,
    /// A number for each column, not below 0; those missing at the end are 0.
    pub cells: Vec<f64>,
}

/// An interval of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimeSpan {
    /// Its name; the same name has the same shade.
    pub name: String,
    /// From, to, seconds.
    pub start_s: f64,
    /// See `start_s`.
    pub end_s: f64,
}

impl HeatMap {
    /// Draws it.
    ///
    /// # Errors
    /// Without rows, with more than can be drawn, or with numbers that are not finite.
    pub fn svg(&self) -> Result<String, PlotError> {
        self.check().map_err(|what| PlotError { title: self.title.clone(), what })?;
        let bottom = TOP + ROW * self.rows.len() as f64;
        let height = bottom + BOTTOM;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"18\" font-size=\"16\">{}</text>\n",
            escaped(&self.title),
        );
        self.draw_intervals(&mut out, bottom);
        self.draw_rows(&mut out);
        self.draw_axis(&mut out, bottom);
        self.draw_legend(&mut out, bottom + 34.0);
        out.push_str("</svg>");
        Ok(out)
    }

    fn check(&self) -> Result<(), String> {
        let columns = self.rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
        if self.rows.is_empty() {
            return Err("there is nothing in it".to_owned());
        }
        if self.rows.len() > ROWS_MAX || columns > COLUMNS_MAX {
            return Err(format!("more than {ROWS_MAX} rows or {COLUMNS_MAX} columns"));
        }
        let cells = self.rows.iter().flat_map(|row| row.cells.iter().copied());
        let lives = self.rows.iter().flat_map(|row| row.lives.iter().flat_map(|l| [l.0, l.1]));
        let intervals = self.intervals.iter().flat_map(|one| [one.start_s, one.end_s]);
        let times = [self.column_s, self.end_s].into_iter().chain(lives).chain(intervals);
        let sound = |number: f64| number.is_finite() && number >= 0.0;
        if !cells.chain(times).all(sound) || self.column_s <= 0.0 || self.end_s <= 0.0 {
            return Err("a number is not finite, or below 0".to_owned());
        }
        Ok(())
    }

    /// Where a time is, points from the left.
    fn x(&self, time_s: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (time_s / self.end_s).min(1.0)
    }

    fn draw_intervals(&self, out: &mut String, bottom: f64) {
        let mut names: Vec<&str> = Vec::new();
        for interval in &self.intervals {
            let known = names.iter().position(|name| *name == interval.name);
            let shade = known.unwrap_or_else(|| {
                names.push(&interval.name);
                names.len() - 1
            });
            let (from, to) = (self.x(interval.start_s), self.x(interval.end_s));
            let fill = if shade % 2 == 0 { "#dfe7ef" } else { "#eef1e4" };
            let name = shortened(&interval.name, whole((to - from) * INTERVAL_CHARS_PER_POINT));
            let _ = writeln!(
                out,
                "<g><title>{}: {:.3} to {:.3} s</title><rect x=\"{from:.1}\" y=\"26\" \
                 width=\"{:.1}\" height=\"18\" fill=\"{fill}\"/><text x=\"{:.1}\" y=\"39\">{}\
                 </text></g><path d=\"M{from:.1} 26V{bottom}\" stroke=\"#c9d3dc\" fill=\"none\"/>",
                escaped(&interval.name),
                interval.start_s,
                interval.end_s,
                to - from,
                from + 3.0,
                if to - from < 14.0 { String::new() } else { escaped(&name) },
            );
        }
    }

    fn draw_rows(&self, out: &mut String) {
        let cells = self.rows.iter().flat_map(|row| row.cells.iter().copied());
        let most = cells.fold(0.0, f64::max);
        let mut paths = vec![String::new(); COLOURS.len()];
        for (at, row) in self.rows.iter().enumerate() {
            let y = TOP + ROW * at as f64;
            let _ = write!(
                out,
                "<g><title>{}</title><text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>",
                escaped(&row.name),
                LEFT - 6.0,
                y + 10.0,
                escaped(&shortened(&row.name, NAME_CHARS_MAX)),
            );
            for &(from_s, to_s) in &row.lives {
                let (from, to) = (self.x(from_s), self.x(to_s));
                let _ = write!(
                    out,
                    "<rect x=\"{from:.1}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{BAR}\" \
                     fill=\"{UNUSED}\"/>",
                    (to - from).max(0.5),
                );
                self.draw_unseen(out, (from_s, to_s), y);
            }
            let _ = writeln!(
                out,
                "<text x=\"{:.0}\" y=\"{:.0}\">{}</text></g>",
                WIDTH - RIGHT + 6.0,
                y + 10.0,
                escaped(&shortened(&row.note, NOTE_CHARS_MAX)),
            );
            for (column, cell) in row.cells.iter().enumerate() {
                let Some(colour) = colour_of(*cell, most) else { continue };
                let from = self.x(column as f64 * self.column_s);
                let to = self.x((column + 1) as f64 * self.column_s);
                let width = (to - from).max(0.5);
                let _ = write!(paths[colour], "M{from:.1} {y:.0}h{width:.1}v{BAR}h-{width:.1}z");
            }
        }
        for (path, colour) in paths.iter().zip(COLOURS).filter(|(path, _)| !path.is_empty()) {
            // Names of rows are shown for the bars behind.
            let _ = writeln!(out, "<path fill=\"{colour}\" pointer-events=\"none\" d=\"{path}\"/>");
        }
    }

    /// The parts of a life in which nothing was observed.
    fn draw_unseen(&self, out: &mut String, (from_s, to_s): (f64, f64), y: f64) {
        for (column, _) in self.seen.iter().enumerate().filter(|(_, seen)| !**seen) {
            let start_s = from_s.max(column as f64 * self.column_s);
            let end_s = to_s.min((column + 1) as f64 * self.column_s);
            if end_s <= start_s {
                continue;
            }
            let (from, to) = (self.x(start_s), self.x(end_s));
            let _ = write!(
                out,
                "<rect x=\"{from:.1}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{BAR}\" \
                 fill=\"{UNSEEN}\"/>",
                (to - from).max(0.5),
            );
        }
    }

    fn draw_axis(&self, out: &mut String, bottom: f64) {
        let step = round_step(self.end_s / STEPS);
        let (left, right) = (self.x(0.0), self.x(self.end_s));
        let _ = write!(out, "<path d=\"M{left:.1} {bottom}H{right:.1}");
        let ticks = (0..=whole(self.end_s / step)).map(|at| at as f64 * step);
        for time_s in ticks.clone() {
            let _ = write!(out, "M{:.1} {bottom}v4", self.x(time_s));
        }
        out.push_str("\" stroke=\"#555\" fill=\"none\"/>\n");
        for time_s in ticks {
            let (x, y) = (self.x(time_s), bottom + 16.0);
            let label = crate::plot::short(&time_s);
            let _ = writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.0}\" text-anchor=\"middle\">{label} s</text>"
            );
        }
    }

    fn draw_legend(&self, out: &mut String, y: f64) {
        let unit = escaped(&self.unit);
        let _ = writeln!(
            out,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{unit}, each shade twice the one \
             before</text>",
            LEFT + 250.0,
            y + 10.0,
        );
        for (at, colour) in COLOURS.iter().enumerate() {
            let x = LEFT + 260.0 + 24.0 * at as f64;
            let _ = writeln!(
                out,
                "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"24\" height=\"12\" fill=\"{colour}\"/>"
            );
        }
        let x = LEFT + 270.0 + 24.0 * COLOURS.len() as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"24\" height=\"12\" fill=\"{UNUSED}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">alive, no access</text>",
            x + 30.0,
            y + 10.0,
        );
        let x = x + 130.0;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"24\" height=\"12\" fill=\"{UNSEEN}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">alive, not observed</text>",
            x + 30.0,
            y + 10.0,
        );
    }
}

/// Index of a number's colour; `None` for nothing.
fn colour_of(cell: f64, most: f64) -> Option<usize> {
    if cell <= 0.0 {
        return None;
    }
    let last = COLOURS.len() - 1;
    let halvings = (most / cell).log2().floor();
    Some(last - whole(halvings).min(last))
}

/// The whole part of a number; 0 for NaN and negative numbers.
fn whole(value: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates by definition"
    )]
    let whole = value as usize;
    whole
}

/// 1, 2 or 5 times a power of ten, not below.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * 0.999).unwrap_or(steps[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> HeatMap {
        let row = |name: &str, cells: &[f64]| HeatRow {
            name: name.to_owned(),
            note: "DDR".to_owned(),
            lives: vec![(0.0, 2.0)],
            cells: cells.to_vec(),
        };
        let interval =
            |name: &str, start_s, end_s| TimeSpan { name: name.to_owned(), start_s, end_s };
        HeatMap {
            title: "objects".to_owned(),
            unit: "accesses".to_owned(),
            rows: vec![row("hot", &[8.0, 8.0]), row("warm", &[0.0, 1.0]), row("cold", &[])],
            intervals: vec![interval("build", 0.0, 1.0), interval("solve", 1.0, 2.0)],
            seen: Vec::new(),
            column_s: 1.0,
            end_s: 2.0,
        }
    }

    #[test]
    fn what_was_not_observed_differs_from_what_was_not_used() {
        let bars = |svg: &str| svg.matches(&format!("fill=\"{UNSEEN}\"")).count() - 1;
        let mut map = map();
        assert_eq!(bars(&map.svg().expect("drawn")), 0, "but for the legend");
        map.seen = vec![true, false];
        map.rows[2].lives = vec![(0.0, 0.9)];
        assert_eq!(bars(&map.svg().expect("drawn")), 2, "the third was gone by then");
    }

    /// Cells drawn in a colour, by index.
    fn cells(svg: &str, colour: usize) -> usize {
        let mark = format!("<path fill=\"{}\"", COLOURS[colour]);
        let path = svg.split(&mark).nth(1).and_then(|rest| rest.split("/>").next());
        path.map_or(0, |path| path.matches('z').count())
    }

    #[test]
    fn cells_have_the_colour_of_their_number() {
        let svg = map().svg().expect("drawn");
        // 8 of 8 is darkest; 1 of 8 is three halvings below; 0 is no cell.
        assert_eq!([7, 4, 0].map(|colour| cells(&svg, colour)), [2, 1, 0], "{svg}");
        for word in ["hot", "warm", "cold", "build", "solve", "DDR", "2 s", "objects"] {
            assert!(svg.contains(word), "{word} is not in {svg}");
        }
        assert_eq!(colour_of(1e-30, 1e30), Some(0));
    }

    #[test]
    fn hostile_names_are_text() {
        let mut map = map();
        let name = "\"/></svg><script>x</script>".to_owned();
        (map.title, map.unit) = (name.clone(), name.clone());
        (map.rows[0].name, map.rows[0].note) = (name.clone(), name.clone());
        map.intervals[0].name = name;
        let svg = map.svg().expect("drawn");
        assert!(!svg.contains("<script") && svg.matches("</svg>").count() == 1, "{svg}");
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        assert!(HeatMap::default().svg().is_err());
        for spoil in [
            |map: &mut HeatMap| map.rows[0].cells[0] = f64::NAN,
            |map: &mut HeatMap| map.rows[0].cells[0] = -1.0,
            |map: &mut HeatMap| map.end_s = 0.0,
            |map: &mut HeatMap| map.rows[0].cells = vec![1.0; COLUMNS_MAX + 1],
            |map: &mut HeatMap| map.intervals[0].end_s = f64::INFINITY,
        ] {
            let mut map = map();
            spoil(&mut map);
            assert!(map.svg().is_err(), "{map:?}");
        }
    }

    #[test]
    fn steps_are_round() {
        let steps = [0.3, 0.5, 1.7, 42.0].map(round_step);
        assert_eq!(steps, [0.5, 0.5, 2.0, 50.0]);
    }
}
