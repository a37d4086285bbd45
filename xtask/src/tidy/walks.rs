//! What ARCHITECTURE.md and docs/extending.md name in the code exists. In: files. Out: functions,
//! types and events that no source file has, or that are not in the file named after them. Knows
//! nothing of what the code does.
//!
//! "`a` in `b.rs`" states that `b.rs` contains `a`. In ARCHITECTURE.md that counts in walks: list
//! items whose steps are separated by `->`. In docs/extending.md it counts everywhere, and so does
//! `Type::function` alone.

use super::source::File;
use super::{Problem, problem};

/// The document with the walks.
const DOCUMENT: &str = "ARCHITECTURE.md";
/// The document that says what an extension touches.
const EXTENDING: &str = "docs/extending.md";

pub fn check(files: &[File]) -> Vec<Problem> {
    let mut problems = walks(files);
    problems.extend(extending(files));
    problems
}

fn walks(files: &[File]) -> Vec<Problem> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else { return Vec::new() };
    let mut problems = Vec::new();
    for (line, item) in items(document.text()) {
        let steps = item.split("->").filter_map(|step| missing(files, step));
        problems.extend(steps.map(|what| problem(document, line, what)));
    }
    problems
}

/// Names of the second document that are followed by "in" and a path, or have a `::`.
fn extending(files: &[File]) -> Vec<Problem> {
    let Some(document) = files.iter().find(|file| file.path == EXTENDING) else {
        return Vec::new();
    };
    let parts: Vec<&str> = document.text().split('`').collect();
    let mut problems = Vec::new();
    let mut line = 1;
    for (at, part) in parts.iter().enumerate() {
        let is_code = at % 2 == 1;
        let path =
            parts.get(at + 1..=at + 2).and_then(|next| (next[0].trim() == "in").then_some(next[1]));
        let path = path.filter(|path| is_path(path));
        if is_code && !is_path(part) && (path.is_some() || part.contains("::")) {
            problems.extend(lacks(files, part, path).map(|what| problem(document, line, what)));
        }
        line += part.matches('\n').count();
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
    lacks(files, name, path.copied())
}

/// What is wrong with a name in a file, or in any.
fn lacks(files: &[File], name: &str, path: Option<&str>) -> Option<String> {
    let is_there = |file: &&File| path.is_none_or(|path| file.path.contains(path));
    let sources = files.iter().filter(|file| file.is_rust() || file.is_c());
    let found = sources.filter(is_there).any(|file| names(file, name));
    (!found).then(|| match path {
        Some(path) => format!("`{path}` does not have `{name}`"),
        None => format!("no source file has `{name}`"),
    })
}

fn is_path(quote: &str) -> bool {
    quote.contains('/') || [".rs", ".c", ".h"].iter().any(|end| quote.ends_with(end))
}

/// Whether a file has all parts of `Type::function` as words, or a test of that name.
fn names(file: &File, name: &str) -> bool {
    let is_apart = |c: char| !c.is_alphanumeric() && c != '_';
    let parts: Vec<&str> = name.trim_end_matches('!').split("::").collect();
    let has = |part: &&str| {
        file.code_lines().iter().any(|line| line.split(is_apart).any(|word| word == *part))
    };
    parts.iter().all(has) || file.text().contains(&format!("fn {name}("))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(walk: &str) -> Vec<String> {
        whats_in(DOCUMENT, walk)
    }

    fn whats_in(document: &str, text: &str) -> Vec<String> {
        let source = File::new(
            "crates/a/src/b.rs",
            "impl A {\n    fn go() {}\n}\n#[cfg(test)]\nmod tests {\n    fn it_goes() {}\n}\n",
        );
        let files = [File::new(document, text), source];
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
    fn names_of_the_second_document_exist_in_their_files() {
        let fine =
            "1. `go` in\n   `crates/a/src/b.rs`; `A::go`; `gone` elsewhere; `it_goes` in `b.rs`.\n";
        assert!(whats_in(EXTENDING, fine).is_empty());
        let gone = "`A::stop`, and `stop` in `crates/a/src/b.rs`\n";
        let want = ["no source file has `A::stop`", "`crates/a/src/b.rs` does not have `stop`"];
        assert_eq!(whats_in(EXTENDING, gone), want);
    }

    #[test]
    fn other_lists_are_free() {
        assert!(whats("- `anything` at all\n\n`x` -> `y`\n").is_empty());
    }
}
