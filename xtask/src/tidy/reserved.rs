//! Reserved names: a bare word of the glossary names a type only in the crate that owns the term.
//! In: files. Out: types that take such a name elsewhere. Knows nothing of what the types are for.
//!
//! `Record` is an event on the wire, for example. A qualified name, such as `PerfRecord` for a
//! record of perf, may be used anywhere.

use super::source::File;
use super::{Problem, problem};

/// The word, and the crates that own it. *Interval* has two meanings in docs/glossary.md; a *phase*
/// is in a profile and in the workload that the planner reads.
const RESERVED: &[(&str, &[&str])] = &[
    ("Record", &["wire"]),
    ("Row", &["ledger"]),
    ("Plan", &["plan"]),
    ("Placement", &["planner"]),
    ("Interval", &["policy", "advisor"]),
    ("Extent", &["ledger"]),
    ("Phase", &["planner", "profile"]),
    ("Tick", &["daemon"]),
    ("Session", &["wire"]),
];

/// What comes before the name of a type.
const KEYWORDS: &[&str] = &["struct", "enum", "trait", "type"];

pub fn check(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (at, line) in file.code_lines().iter().enumerate() {
            problems.extend(taken(file, line).map(|what| problem(file, at + 1, what)));
        }
    }
    problems
}

/// The complaint about a line that defines a type with a reserved name.
fn taken(file: &File, line: &str) -> Option<String> {
    let is_apart = |c: char| !c.is_alphanumeric() && c != '_';
    let words: Vec<&str> = line.split(is_apart).filter(|word| !word.is_empty()).collect();
    let (_, owners, name) = words.windows(2).find_map(|two| {
        let (word, owners) = RESERVED.iter().find(|(word, _)| *word == two[1])?;
        KEYWORDS.contains(&two[0]).then_some((word, owners, two[1]))
    })?;
    let is_owner = owners.contains(&file.crate_name());
    (!is_owner).then(|| {
        format!("`{name}` is reserved for crates/{} (docs/glossary.md); qualify it", owners[0])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[File::new(path, text)]).len()
    }

    #[test]
    fn a_reserved_name_belongs_to_its_crate() {
        assert_eq!(count("crates/lab/src/a.rs", "pub struct Row {}\n"), 1);
        assert_eq!(count("crates/ledger/src/a.rs", "pub struct Row {}\n"), 0);
        assert_eq!(count("xtask/src/a.rs", "enum Record<'a> {}\n"), 1);
        assert_eq!(count("crates/lab/examples/a.rs", "type Plan = u32;\n"), 1);
    }

    #[test]
    fn qualified_names_and_uses_are_free() {
        assert_eq!(count("crates/lab/src/a.rs", "struct TableRow;\nfn f(row: Row) {}\n"), 0);
        assert_eq!(count("crates/lab/src/a.rs", "// struct Row\n"), 0);
    }
}
