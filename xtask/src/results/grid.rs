//! A table in a document. In: cells of text. Out: Markdown without padding, so that a changed cell
//! changes one line. Knows nothing of numbers.

/// Rows of text.
pub struct Grid {
    width: usize,
    text: String,
}

impl Grid {
    /// A table whose first column is words, and whose others are numbers.
    pub fn new<T: AsRef<str>>(head: impl IntoIterator<Item = T>) -> Grid {
        Grid::with(head, "---:|")
    }

    /// A table whose columns are all words.
    pub fn of_words<T: AsRef<str>>(head: impl IntoIterator<Item = T>) -> Grid {
        Grid::with(head, "---|")
    }

    fn with<T: AsRef<str>>(head: impl IntoIterator<Item = T>, rule: &str) -> Grid {
        let head: Vec<T> = head.into_iter().collect();
        let mut grid = Grid { width: head.len(), text: String::new() };
        grid.row(head);
        grid.text += &format!("|---|{}\n", rule.repeat(grid.width - 1));
        grid
    }

    pub fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells: Vec<T> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.width, "a row has as many cells as its table has columns");
        let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
        self.text += &format!("| {} |\n", cells.join(" | "));
    }

    /// A row of a name and a value for each key.
    pub fn line<K>(&mut self, name: &str, keys: &[K], value: impl Fn(&K) -> String) {
        self.row([name.to_owned()].into_iter().chain(keys.iter().map(value)));
    }

    pub fn text(self) -> String {
        self.text
    }
}

/// Bytes in MiB.
pub fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_markdown() {
        let mut grid = Grid::new(["a", "b"]);
        grid.line("x", &[1], |n| n.to_string());
        assert_eq!(grid.text(), "| a | b |\n|---|---:|\n| x | 1 |\n");
        assert_eq!(Grid::of_words(["a", "b"]).text(), "| a | b |\n|---|---|\n");
    }
}
