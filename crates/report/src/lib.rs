//! Tables and plots of results.
//! In: names and numbers. Out: Markdown, SVG, HTML. Knows nothing of what the numbers are.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)
)]

mod heat;
mod page;
mod plot;
mod table;
mod text;

pub use heat::{HeatMap, HeatRow, TimeSpan};
pub use page::{Page, Picture};
pub use plot::{Bars, Lines, PlotError, Series};
pub use table::{Align, Table};
