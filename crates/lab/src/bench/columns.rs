//! The form of tables in results.
//! In: names of columns. Out: an empty table. Knows nothing of rows.

use tiercel_report::{Align, Table};

/// The first column is text, the others are numbers.
pub(super) fn table(columns: &[&str]) -> Table {
    let align = |at: usize| if at == 0 { Align::Left } else { Align::Right };
    Table::new(
        columns.iter().enumerate().map(|(at, name)| ((*name).to_owned(), align(at))).collect(),
    )
}
