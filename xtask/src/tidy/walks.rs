//! Walks through the code in ARCHITECTURE.md: what they name exists. In: files. Out: functions,
//! types and events of a walk that no source file has, or that are not in the file named after
//! them. Knows nothing of what the code does.
//!
//! A walk is a list item whose steps are separated by `->`. In a step, "`a` in `b.rs`" states that
//! `b.rs` contains `a`.

use super::source::File;
use super::{Problem, problem};

/// The document with the walks.
const DOCUMENT: &str = "ARCHITECTURE.md";

pub fn check(files: &[File]) -> Vec<Problem> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else { return Vec::new() };
    let mut problems = Vec::new();
    for (line, item) in items(document.text()) {
        let steps = item.split("->").filter_map(|step| missing(files, step));
        problems.extend(steps.map(|what| problem(document, line, what)));
    }
    problems
}

/// List items that have steps, unwrapped, with the line on which they begin.
fn items(text: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("- ") {
            items.push((at + 1, String::new()));
            is_open = true;
        } else if !line.starts_with("  ") {
            is_open = false;
        }
        if let Some((_, item)) = items.last_mut().filter(|_| is_open) {
            item.push(' ');
            item.push_str(line);
        }
    }
    items.retain(|(_, item)| item.contains("->"));
    items
}

/// What a step names and the tree lacks.
fn missing(files: &[File], step: &str) -> Option<String> {
    let quotes: Vec<&str> = step.split('`').skip(1).step_by(2).collect();
    let name = *quotes.iter().find(|quote| !is_path(quote))?;
    let path = quotes.iter().find(|quote| is_path(quote) && step.contains("` in `"));
    let is_there = |file: &&File| path.is_none_or(|path| file.path.contains(*path));
    let sources = files.iter().filter(|file| file.is_rust() || file.is_c());
    let found = sources.filter(is_there).any(|file| names(file, name));
    (!found).then(|| match path {
        Some(path) => format!("`{path}` does not have `{name}`"),
        None => format!("no source file has `{name}`"),
    })
}

fn is_path(quote: &str) -> bool {
    quote.contains('/') || quote.ends_with(".rs") || quote.ends_with(".c")
}

/// Whether a file has all parts of `Type::function` as words.
fn names(file: &File, name: &str) -> bool {
    let is_apart = |c: char| !c.is_alphanumeric() && c != '_';
    let parts: Vec<&str> = name.split("::").collect();
    let has = |part: &&str| {
        file.code_lines().iter().any(|line| line.split(is_apart).any(|word| word == *part))
    };
    parts.iter().all(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(walk: &str) -> Vec<String> {
        let source = File::new("crates/a/src/b.rs", "impl A {\n    fn go() {}\n}\n");
        let files = [File::new(DOCUMENT, walk), source];
        check(&files).into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn steps_that_exist_are_fine() {
        assert!(
            whats("- **A walk**: `A::go` in `crates/a/src/b.rs` ->\n  `go` -> `A`.\n").is_empty()
        );
    }

    #[test]
    fn steps_that_do_not_exist_are_named() {
        assert_eq!(whats("- x: `A` -> `A::stop`\n"), ["no source file has `A::stop`"]);
        let moved = "- x: `stop` in `a/src/b.rs` -> `A`\n";
        assert_eq!(whats(moved), ["`a/src/b.rs` does not have `stop`"]);
    }

    #[test]
    fn other_lists_are_free() {
        assert!(whats("- `anything` at all\n\n`x` -> `y`\n").is_empty());
    }
}
