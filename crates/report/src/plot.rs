//! Two kinds of plots: groups of bars, and lines.
//! In: names and numbers. Out: SVG, the same for the same input.
//! Knows nothing of files.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Points of the picture.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 420;

/// Names under groups of bars are turned when there are more groups than this.
const LEVEL_GROUPS_MAX: usize = 12;

/// Colours that most people distinguish, also in grey (Okabe and Ito 2008), lightest left out.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(120, 60, 20),
];

/// Lines behind the plot.
const MESH: RGBColor = RGBColor(225, 225, 225);

/// A plot that cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plot {title:?}: {what}")]
pub struct PlotError {
    /// Which plot.
    pub title: String,
    /// What is wrong with it.
    pub what: String,
}

/// Numbers under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// (x, y); for [`Bars`] x is the group's index.
    pub points: Vec<(f64, f64)>,
}

/// A bar for each series in each group.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Above the plot.
    pub title: String,
    /// Beside the vertical axis.
    pub y: String,
    /// Names of the groups, from the left.
    pub groups: Vec<String>,
    /// One bar each in every group for which it has a point.
    pub series: Vec<Series>,
    /// A horizontal line to compare with.
    pub mark: Option<f64>,
}

/// A line for each series.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// Above the plot.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Beside the vertical axis.
    pub y: String,
    /// One line each, with a dot at each point.
    pub series: Vec<Series>,
    /// For each series, half an error bar at each of its points; may be empty.
    pub errors: Vec<Vec<f64>>,
    /// What they should be: smooth lines. Where there are any, `series` are dots only, each in the
    /// colour of the one of the same name here.
    pub expected: Vec<Series>,
    /// x are exponents of two: the axis shows the powers.
    pub powers: bool,
    /// A horizontal line to compare with.
    pub mark: Option<f64>,
}

impl Bars {
    /// Draws it.
    pub fn svg(&self) -> Result<String, PlotError> {
        let top = self.top()?;
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        let drawn = self.draw(&area, top);
        drop(area);
        drawn.map_err(|what| PlotError { title: self.title.clone(), what })?;
        Ok(text)
    }

    fn top(&self) -> Result<f64, PlotError> {
        let refuse = |what: &str| PlotError { title: self.title.clone(), what: what.to_owned() };
        if self.groups.is_empty() || self.series.is_empty() {
            return Err(refuse("there is nothing in it"));
        }
        let range =
            range(&self.series, self.mark).ok_or_else(|| refuse("a number is not finite"))?;
        Ok(range.1.max(f64::MIN_POSITIVE) * 1.05)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, top: f64) -> Result<(), String> {
        area.fill(&WHITE).map_err(text)?;
        let (plot, legend) = area.split_horizontally(WIDTH - legend_width(&self.series));
        let groups = self.groups.len() as f64;
        let turned = self.groups.len() > LEVEL_GROUPS_MAX;
        let mut chart = ChartBuilder::on(&plot)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(if turned { 90 } else { 30 })
            .y_label_area_size(55)
            .build_cartesian_2d(0.0..groups, 0.0..top)
            .map_err(text)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .bold_line_style(MESH)
            .x_labels(0)
            .y_desc(&self.y)
            .y_label_formatter(&short)
            .draw()
            .map_err(text)?;
        let font = ("sans-serif", 12).into_font();
        let font = if turned { font.transform(FontTransform::Rotate90) } else { font };
        let anchor = Pos::new(if turned { HPos::Left } else { HPos::Center }, VPos::Top);
        for (at, name) in self.groups.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(at as f64 + 0.5, 0.0));
            let style = TextStyle::from(font.clone()).pos(anchor);
            plot.draw(&Text::new(name.clone(), (x, y + 8), style)).map_err(text)?;
        }
        let width = 0.84 / self.series.len() as f64;
        for (at, series) in self.series.iter().enumerate() {
            let bar = |&(group, value): &(f64, f64)| {
                let left = group + 0.08 + width * at as f64;
                Rectangle::new([(left, 0.0), (left + width * 0.94, value)], colour(at).filled())
            };
            chart.draw_series(series.points.iter().map(bar)).map_err(text)?;
        }
        if let Some(mark) = self.mark {
            let line = LineSeries::new([(0.0, mark), (groups, mark)], BLACK.stroke_width(1));
            chart.draw_series(line).map_err(text)?;
        }
        draw_legend(&legend, &self.series)?;
        area.present().map_err(text)
    }
}

impl Lines {
    /// Draws it.
    pub fn svg(&self) -> Result<String, PlotError> {
        let refuse = |what: String| PlotError { title: self.title.clone(), what };
        let all = || self.series.iter().chain(&self.expected);
        if all().all(|series| series.points.is_empty()) {
            return Err(refuse("there is nothing in it".to_owned()));
        }
        let bars = self.bars();
        let y = range(all().chain(&bars), self.mark)
            .ok_or_else(|| refuse("a number is not finite".to_owned()))?;
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        let drawn = self.draw(&area, y.1, &bars);
        drop(area);
        drawn.map_err(refuse)?;
        Ok(text)
    }

    /// Error bars: each series' ends, two points for each bar.
    fn bars(&self) -> Vec<Series> {
        let pairs = self.series.iter().zip(&self.errors).map(|(series, errors)| {
            let ends = series.points.iter().zip(errors);
            let points = ends.flat_map(|(&(x, y), error)| [(x, y - error), (x, y + error)]);
            Series { name: series.name.clone(), points: points.collect() }
        });
        pairs.collect()
    }

    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        top: f64,
        bars: &[Series],
    ) -> Result<(), String> {
        area.fill(&WHITE).map_err(text)?;
        let (plot, legend) = area.split_horizontally(WIDTH - legend_width(&self.series));
        let all = self.series.iter().chain(&self.expected);
        let xs = all.flat_map(|series| series.points.iter().map(|point| point.0));
        let (low, high) =
            xs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        // A single point needs a width to stand in.
        let high = if high > low { high } else { low + 1.0 };
        let mut chart = ChartBuilder::on(&plot)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(55)
            .build_cartesian_2d(low..high, 0.0..top.max(f64::MIN_POSITIVE) * 1.05)
            .map_err(text)?;
        let label = |x: &f64| if self.powers { short(&x.exp2()) } else { short(x) };
        chart
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(MESH)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&label)
            .y_label_formatter(&short)
            .draw()
            .map_err(text)?;
        for expected in &self.expected {
            let at = self.series.iter().position(|series| series.name == expected.name);
            let style = at.map_or(BLACK, colour).stroke_width(2);
            let line = LineSeries::new(expected.points.iter().copied(), style);
            chart.draw_series(line).map_err(text)?;
        }
        for (at, series) in bars.iter().enumerate() {
            for ends in series.points.chunks(2) {
                // Below 0 there is no plot.
                let ends = ends.iter().map(|&(x, y)| (x, y.max(0.0)));
                let bar = LineSeries::new(ends, colour(at).stroke_width(1));
                chart.draw_series(bar).map_err(text)?;
            }
        }
        for (at, series) in self.series.iter().enumerate() {
            let points = series.points.iter().copied();
            if self.expected.is_empty() {
                let line = LineSeries::new(points.clone(), colour(at).stroke_width(2));
                chart.draw_series(line).map_err(text)?;
            }
            let dots = points.map(|point| Circle::new(point, 3, colour(at).filled()));
            chart.draw_series(dots).map_err(text)?;
        }
        if let Some(mark) = self.mark {
            let line = LineSeries::new([(low, mark), (high, mark)], BLACK.stroke_width(1));
            chart.draw_series(line).map_err(text)?;
        }
        draw_legend(&legend, &self.series)?;
        area.present().map_err(text)
    }
}

/// A label's number without needless places.
pub(crate) fn short(number: &f64) -> String {
    // Steps between labels are rounded ones; what is left beyond is binary fractions.
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Least and largest y; `None` when one is not finite.
fn range<'a>(
    series: impl IntoIterator<Item = &'a Series>,
    mark: Option<f64>,
) -> Option<(f64, f64)> {
    let ys = series.into_iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let mut range = (f64::INFINITY, f64::NEG_INFINITY);
    for y in ys.chain(mark) {
        if !y.is_finite() {
            return None;
        }
        range = (range.0.min(y), range.1.max(y));
    }
    Some(range)
}

/// Room for the longest name at 12 points, which is about 6.5 wide a letter.
fn legend_width(series: &[Series]) -> u32 {
    let longest = series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0);
    let longest = u32::try_from(longest).unwrap_or(u32::MAX);
    40 + longest.saturating_mul(13).div_ceil(2).min(WIDTH / 3)
}

fn draw_legend(area: &DrawingArea<SVGBackend<'_>, Shift>, series: &[Series]) -> Result<(), String> {
    for (at, (series, y)) in series.iter().zip((45..).step_by(18)).enumerate() {
        let square = Rectangle::new([(5, y), (15, y + 10)], colour(at).filled());
        area.draw(&square).map_err(text)?;
        let name = Text::new(series.name.clone(), (20, y - 1), ("sans-serif", 12));
        area.draw(&name).map_err(text)?;
    }
    Ok(())
}

fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(values: &[f64]) -> Bars {
        let points = values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
        Bars {
            title: "times".to_owned(),
            y: "of all-fast".to_owned(),
            groups: values.iter().enumerate().map(|(at, _)| format!("group{at}")).collect(),
            series: vec![Series { name: "lru".to_owned(), points }],
            mark: Some(1.0),
        }
    }

    #[test]
    fn bars_carry_their_names_and_are_repeatable() {
        let svg = bars(&[1.0, 2.5]).svg().expect("drawn");
        for word in ["<svg", "group0", "group1", "lru", "times", "of all-fast", "</svg>"] {
            assert!(svg.contains(word), "{word} is not in {svg}");
        }
        assert_eq!(svg, bars(&[1.0, 2.5]).svg().expect("drawn"));
        assert_ne!(svg, bars(&[1.0, 2.6]).svg().expect("drawn"));
    }

    #[test]
    fn many_groups_keep_their_names() {
        let svg = bars(&[1.0; 20]).svg().expect("drawn");
        assert!((0..20).all(|at| svg.contains(&format!("group{at}\n"))), "{svg}");
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        assert!(bars(&[]).svg().is_err());
        assert!(bars(&[f64::NAN]).svg().is_err());
        let none = Lines {
            title: "t".to_owned(),
            x: "x".to_owned(),
            y: "y".to_owned(),
            series: vec![Series { name: "s".to_owned(), points: Vec::new() }],
            errors: Vec::new(),
            expected: Vec::new(),
            powers: false,
            mark: None,
        };
        assert!(none.svg().is_err());
    }

    #[test]
    fn lines_are_drawn_even_with_one_point() {
        let mut lines = Lines {
            title: "curve".to_owned(),
            x: "share".to_owned(),
            y: "time".to_owned(),
            series: vec![Series { name: "apb".to_owned(), points: vec![(25.0, 1.5)] }],
            errors: Vec::new(),
            expected: Vec::new(),
            powers: false,
            mark: None,
        };
        assert!(lines.svg().expect("drawn").contains("apb"));
        lines.series[0].points.push((50.0, 1.2));
        let circles = |svg: &str| svg.matches("<circle").count();
        let svg = lines.svg().expect("drawn");
        assert_eq!((svg.matches("#0072B2\" stroke-width=\"2\"").count(), circles(&svg)), (1, 2));
        // Beside what is expected there are dots only; the line has their colour.
        lines.expected.push(lines.series[0].clone());
        lines.series[0].points.pop();
        let svg = lines.svg().expect("drawn");
        assert_eq!((svg.matches("#0072B2\" stroke-width=\"2\"").count(), circles(&svg)), (1, 1));
    }

    #[test]
    fn labels_have_no_needless_places() {
        let numbers = [0.0, 50.0, 0.1 + 0.2, 1.25, 1e6];
        assert_eq!(numbers.map(|number| short(&number)), ["0", "50", "0.3", "1.25", "1000000"]);
    }

    #[test]
    fn exponents_are_shown_as_powers() {
        let points = vec![(2.0, 1.0), (14.0, 9.0)];
        let series = vec![Series { name: "s".to_owned(), points }];
        let name = String::new;
        let (expected, errors, mark) = (Vec::new(), Vec::new(), None);
        let (title, x, y, powers) = (name(), name(), name(), true);
        let lines = Lines { title, x, y, series, errors, expected, powers, mark };
        assert!(lines.svg().expect("drawn").contains("4096\n"));
    }

    #[test]
    fn error_bars_stand_at_their_points_and_widen_the_axis() {
        let series = vec![Series { name: "s".to_owned(), points: vec![(0.0, 1.0), (1.0, 2.0)] }];
        let name = String::new;
        let (title, x, y, powers) = (name(), name(), name(), false);
        let (errors, expected) = (Vec::new(), Vec::new());
        let mut lines = Lines { title, x, y, series, errors, expected, powers, mark: None };
        let bars = |lines: &Lines| {
            lines.svg().expect("drawn").matches("#0072B2\" stroke-width=\"1\"").count()
        };
        let without = bars(&lines);
        lines.errors = vec![vec![0.5, 7.0]];
        assert_eq!(bars(&lines), without + 2);
        assert!(lines.svg().expect("drawn").contains("8\n"), "up to 9, not to 2");
        lines.errors = vec![vec![0.5, f64::INFINITY]];
        assert!(lines.svg().is_err());
    }
}
