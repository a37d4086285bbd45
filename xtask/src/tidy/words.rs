//! Words and names. In: files. Out: paths of one machine, notes to oneself, and empty
//! names. Knows nothing of grammar.

use super::source::File;
use super::{Problem, problem};

/// Text that has no place in the tree: folders of one machine, and notes to oneself (write
/// an issue, or a test that asserts today's answer). Split here so that this file passes.
const REFUSED: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/."), concat!("TO", "DO"), concat!("FIX", "ME")];
/// Words about authors, not about the program; whole words, in any case.
const REFUSED_WORDS: &[&str] =
    &[concat!("cla", "ude"), concat!("anth", "ropic"), concat!("chat", "gpt"), concat!("l", "lm")];
/// Crate and file names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["common", "util", "utils", "misc", "helpers"];
/// A crate that says nothing; as a file it may be about a CPU's core.
const EMPTY_CRATE: &str = "core";

pub fn check(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files {
        let mut parts = file.path.split(['/', '.']);
        let empty = parts.find(|part| EMPTY_NAMES.contains(part));
        let crate_name = Some(file.crate_name()).filter(|name| *name == EMPTY_CRATE);
        if let Some(name) = empty.or(crate_name) {
            // What tests share is called that by Rust's custom.
            let exempt = file.path.starts_with("fixtures/") || file.path.contains("/tests/");
            if !exempt {
                problems.push(problem(file, 0, format!("`{name}` says nothing; name its role")));
            }
        }
        for (n, line) in file.text().lines().enumerate() {
            if let Some(found) = refused(line) {
                problems.push(problem(file, n + 1, format!("`{found}` has no place in the tree")));
            }
        }
    }
    problems
}

fn refused(line: &str) -> Option<&'static str> {
    let text = REFUSED.iter().find(|text| line.contains(**text));
    text.or_else(|| {
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        words.find_map(|word| REFUSED_WORDS.iter().find(|one| one.eq_ignore_ascii_case(word)))
    })
    .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_and_notes_are_reported() {
        for text in REFUSED.iter().chain(REFUSED_WORDS) {
            assert_eq!(check(&[File::new("a.md", &format!("x\nsee {text} there\n"))]).len(), 1);
        }
        assert!(check(&[File::new("a.md", "see /proc/self/maps\n")]).is_empty());
    }

    #[test]
    fn a_meaningless_name_is_reported() {
        assert_eq!(check(&[File::new("crates/util/src/lib.rs", "")]).len(), 1);
        assert_eq!(check(&[File::new("crates/daemon/src/misc.rs", "")]).len(), 1);
        assert_eq!(check(&[File::new("crates/core/src/lib.rs", "")]).len(), 1);
        assert!(check(&[File::new("crates/memsim/src/core.rs", "")]).is_empty());
        assert!(check(&[File::new("crates/daemon/src/socket.rs", "")]).is_empty());
    }
}
