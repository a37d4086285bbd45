//! Tables and plots of results.
//! In: names and numbers. Out: Markdown, SVG. Knows nothing of what the numbers are.

#![forbid(unsafe_code)]

mod plot;
mod table;

pub use plot::{Bars, Lines, PlotError, Series};
pub use table::{Align, Table};
