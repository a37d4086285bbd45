//! A table for a Markdown document.
//! In: columns, rows of text. Out: Markdown that also reads well as it is.
//! Knows nothing of numbers: cells come formatted.

/// Which side of its column a cell touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under named columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: Vec<(String, Align)>) -> Table {
        assert!(!columns.is_empty(), "a table has columns");
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row; it has as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "{cells:?}");
        self.rows.push(cells);
    }

    /// Names of the columns, and how they are set.
    pub(crate) fn columns(&self) -> &[(String, Align)] {
        &self.columns
    }

    /// The rows added so far.
    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As Markdown, columns padded; ends with a line's end.
    pub fn markdown(&self) -> String {
        let head: Vec<String> = self.columns.iter().map(|(name, _)| escaped(name)).collect();
        let body: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect();
        // Three: the shortest rule Markdown takes.
        let width = |at: usize| {
            let cells = body.iter().map(|row| &row[at]).chain([&head[at]]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        let mut out = self.line(&head, &widths);
        for ((_, align), width) in self.columns.iter().zip(&widths) {
            out += &match align {
                Align::Left => format!("|{}", "-".repeat(width + 2)),
                Align::Right => format!("|{}:", "-".repeat(width + 1)),
            };
        }
        out += "|\n";
        for row in &body {
            out += &self.line(row, &widths);
        }
        out
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut out = String::new();
        for ((cell, (_, align)), width) in cells.iter().zip(&self.columns).zip(widths) {
            out += &match align {
                Align::Left => format!("| {cell:<width$} "),
                Align::Right => format!("| {cell:>width$} "),
            };
        }
        out + "|\n"
    }
}

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn columns_are_padded_and_bars_escaped() {
        let columns = [("what", Align::Left), ("x", Align::Right)];
        let mut table = Table::new(columns.map(|(name, align)| (name.to_owned(), align)).to_vec());
        assert!(table.is_empty());
        table.row(vec!["a|b".to_owned(), "1.5".to_owned()]);
        table.row(vec!["long name".to_owned(), "12345".to_owned()]);
        expect![[r"
            | what      |     x |
            |-----------|------:|
            | a\|b      |   1.5 |
            | long name | 12345 |
        "]]
        .assert_eq(&table.markdown());
    }
}
