//! docs/conformance.md. In: the lists of fixtures/conformance. Out: its text, with an argument for
//! each known difference. Knows nothing of results.

use std::fmt::Write as _;

use anyhow::Result;

use super::known::{Entry, Known};
use super::list;

/// The document and its text.
pub fn document() -> Result<(&'static str, String)> {
    let mut text = list::text("document.md")?;
    for entry in Known::read()?.known {
        text.push_str(&paragraph(&entry));
    }
    Ok(("docs/conformance.md", text))
}

fn paragraph(entry: &Entry) -> String {
    let tests: Vec<String> = entry.tests.iter().map(|name| format!("`{name}`")).collect();
    let mut text = format!("\n- {} ({}", tests.join(", "), entry.under.join(" and "));
    if entry.at_times {
        text.push_str(", at times");
    }
    let _ = writeln!(text, "): {}", entry.why.split_whitespace().collect::<Vec<_>>().join(" "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec;

    #[test]
    fn the_committed_document_is_current() {
        let (path, text) = document().expect("the committed lists");
        let committed = std::fs::read_to_string(exec::root().join(path)).expect("the document");
        assert_eq!(committed, text, "run `cargo xtask docs`");
    }
}
