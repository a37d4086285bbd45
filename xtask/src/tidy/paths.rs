//! Paths in documents against the tree. In: files. Out: links, and paths in backticks, that lead
//! nowhere. Knows nothing of what is in the files.

use std::collections::BTreeSet;

use super::markdown::{self, documents};
use super::source::{File, normal};
use super::{Problem, problem};

/// Names of files in backticks without a folder are looked for when they end so; others may be of
/// the reader's own files.
const SOURCES: &[&str] = &["rs", "c", "h", "hpp", "sh"];

pub fn check(files: &[File]) -> Vec<Problem> {
    let tree = Tree::new(files);
    let mut problems = Vec::new();
    for file in documents(files) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in markdown::links(file.text()) {
            let target = link.text.split('#').next().unwrap_or("");
            let is_outside = target.is_empty() || target.contains(':');
            if !is_outside && !tree.has(&normal(folder, target)) {
                problems.push(problem(file, link.line, format!("a link to nothing: {target}")));
            }
        }
        for code in markdown::code(file.text()) {
            if tree.should_have(&code.text) && !tree.has_pattern(&code.text) {
                problems.push(problem(file, code.line, format!("no such file: `{}`", code.text)));
            }
        }
    }
    problems
}

/// The paths of all files and folders.
struct Tree<'a> {
    paths: BTreeSet<&'a str>,
}

impl<'a> Tree<'a> {
    fn new(files: &'a [File]) -> Tree<'a> {
        let mut paths = BTreeSet::new();
        for file in files {
            let ends = file.path.match_indices('/').map(|(at, _)| at);
            paths.extend(ends.chain([file.path.len()]).map(|end| &file.path[..end]));
        }
        Tree { paths }
    }

    fn has(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    /// Whether code in a document is a path of the tree: it begins with a name at the top of the
    /// tree, or is the name of a source file.
    fn should_have(&self, code: &str) -> bool {
        let is_path = code.chars().all(|c| c.is_alphanumeric() || "_-./*{},".contains(c));
        let extension = code.rsplit_once('.').map_or("", |(_, extension)| extension);
        is_path
            && match code.split_once('/') {
                Some((top, _)) => !top.is_empty() && self.paths.contains(top),
                None => !code.starts_with(['.', '*']) && SOURCES.contains(&extension),
            }
    }

    /// Whether a path exists that may have `*`, `{a,b}` and names in capitals for any part.
    fn has_pattern(&self, pattern: &str) -> bool {
        alternatives(pattern.trim_end_matches('/')).iter().all(|pattern| {
            let parts: Vec<&str> = pattern.split('/').collect();
            self.paths.iter().any(|path| {
                let there: Vec<&str> = path.split('/').collect();
                let there = if parts.len() == 1 { &there[there.len() - 1..] } else { &there[..] };
                there.len() == parts.len()
                    && parts.iter().zip(there).all(|(part, name)| matches(part, name))
            })
        })
    }
}

/// `a{b,c}d`: `abd` and `acd`.
fn alternatives(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let Some((inside, after)) = rest.split_once('}') else { return vec![pattern.to_owned()] };
    let each = inside.split(',').map(|one| format!("{before}{one}{after}"));
    each.flat_map(|one| alternatives(&one)).collect()
}

/// Whether `name` is what `part` says: `*` is any text, a part in capitals any name.
fn matches(part: &str, name: &str) -> bool {
    let is_placeholder =
        |text: &str| text.len() > 1 && text.chars().all(|c| c.is_ascii_uppercase());
    let stem = part.split('.').next().unwrap_or(part);
    let part = match is_placeholder(stem) && part != name {
        true => part.replacen(stem, "*", 1),
        false => part.to_owned(),
    };
    match part.split_once('*') {
        None => part == name,
        Some((before, after)) => {
            let rest = name.strip_prefix(before);
            rest.is_some_and(|rest| match after.contains('*') {
                true => rest.char_indices().any(|(at, _)| matches(after, &rest[at..])),
                false => rest.ends_with(after),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(text: &str) -> Vec<String> {
        let files = [
            File::new("docs/a.md", text),
            File::new("docs/b.md", ""),
            File::new("crates/wire/src/lib.rs", ""),
            File::new("crates/wire/src/ring.rs", ""),
        ];
        check(&files).into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn a_broken_link_is_reported() {
        assert!(
            whats("[b](b.md), [b](b.md#c), [top](../crates/wire), [x](https://x)\n").is_empty()
        );
        assert_eq!(whats("[c](c.md)\n"), ["a link to nothing: c.md"]);
        assert_eq!(whats("[c](../b.md)\n"), ["a link to nothing: ../b.md"]);
    }

    #[test]
    fn a_missing_path_is_reported() {
        for there in [
            "crates/wire/src/ring.rs",
            "crates/wire/",
            "crates/*/src/lib.rs",
            "crates/wire/src/{lib,ring}.rs",
            "crates/NAME/src",
            "ring.rs",
            "/proc/self/maps",
            "target/release/tiercel",
            "a/b",
            "my.toml",
        ] {
            assert!(whats(&format!("see `{there}`\n")).is_empty(), "{there}");
        }
        for gone in [
            "crates/wire/src/heap.rs",
            "crates/heap/",
            "crates/wire/src/{lib,heap}.rs",
            "crates/*/src/heap.rs",
            "heap.c",
        ] {
            assert_eq!(whats(&format!("see `{gone}`\n")).len(), 1, "{gone}");
        }
    }
}
