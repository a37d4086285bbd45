//! Tables of plain text: columns as wide as their widest cell.
//! In: rows of cells. Out: text. Knows nothing of what the cells mean.

use crate::terminal::printable;

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Figures.
    Right,
}

/// Columns with headings, and rows.
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row with one cell per column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "one cell per column");
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// The table, headings first, without trailing blanks.
    pub fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(self.columns[column].0.chars().count())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let mut out = String::new();
        for row in std::iter::once(&heading).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, (_, align)), width) in row.iter().zip(&self.columns).zip(&widths) {
                let cell = match align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
                line.push_str(&cell);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_escapes_do_not_pass() {
        let mut table = Table::new(&[("name", Align::Left), ("size", Align::Right)]);
        table.row(vec!["a\x1b[2J".into(), "1MiB".into()]);
        table.row(vec!["longer".into(), "10MiB".into()]);
        assert_eq!(table.text(), "name     size\na?[2J    1MiB\nlonger  10MiB\n");
    }
}
