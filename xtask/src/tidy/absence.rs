//! What must stay absent. In: files. Out: `unsafe` outside the crates that may, macros that print
//! outside the chores, files, clocks, threads and processes in pure crates, tests that are switched
//! off. Knows nothing of which crate depends on which.

use super::source::File;
use super::{Problem, problem};

/// The crates that call the kernel or read memory that another process writes.
const MAY_BE_UNSAFE: &[&str] = &["wire", "sampler", "mover", "pool", "emulator"];
/// The chores, and the emulator, which inside QEMU has only stderr to report why it ends; programs
/// in examples/ may too. The binary may not: these macros panic when the stream is closed, which
/// would replace the hosted program's exit status.
const MAY_PRINT: &[&str] = &["xtask", "emulator"];
/// The crates that get files, clocks, threads and chance as arguments, or not at all.
const PURE: &[&str] =
    &["machine", "memsim", "ledger", "policy", "planner", "advisor", "replay", "report"];
/// The edges of `machine`: they read files below a given root.
const MACHINE_EDGES: [&str; 2] = ["crates/machine/src/discover", "crates/machine/src/room"];

const PRINTS: &[&str] = &["println!", "eprintln!", "print!", "eprint!", "dbg!"];
const IMPURE: &[&str] = &[
    "std::fs",
    "std::thread",
    "std::process",
    "std::env",
    "std::net",
    "std::os",
    "Instant",
    "SystemTime",
    "libc",
    "rustix",
    "rand",
];

/// The crates that the tables name.
pub fn crates() -> impl Iterator<Item = &'static str> {
    [MAY_BE_UNSAFE, MAY_PRINT, PURE].into_iter().flatten().copied()
}

pub fn check(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        problems.extend(unsafe_code(file));
        problems.extend(tests_switched_off(file));
        if file.path.contains("/src/") {
            problems.extend(printing(file));
            problems.extend(impurity(file));
        }
    }
    problems
}

fn unsafe_code(file: &File) -> Vec<Problem> {
    if MAY_BE_UNSAFE.contains(&file.crate_name()) {
        return Vec::new();
    }
    let mut problems = lines_with(file, &["unsafe"], "unsafe code; only at the edges");
    let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
    if is_root && !file.text().contains("#![forbid(unsafe_code)]") {
        problems.push(problem(file, 1, "lacks #![forbid(unsafe_code)]"));
    }
    problems
}

fn printing(file: &File) -> Vec<Problem> {
    if MAY_PRINT.contains(&file.crate_name()) {
        return Vec::new();
    }
    lines_with(
        file,
        PRINTS,
        "prints by a macro, which panics on a closed stream; see tiercel::terminal",
    )
}

fn impurity(file: &File) -> Vec<Problem> {
    let is_edge = MACHINE_EDGES.iter().any(|edge| file.path.starts_with(edge));
    if !PURE.contains(&file.crate_name()) || is_edge {
        return Vec::new();
    }
    lines_with(file, IMPURE, "a pure crate; take it as an argument")
}

fn tests_switched_off(file: &File) -> Vec<Problem> {
    let code = super::source::blank_comments_and_strings(file.text());
    let lines = code.lines().enumerate();
    lines
        .filter(|(_, line)| line.contains("#[ignore"))
        .map(|(n, _)| problem(file, n + 1, "a test that is ignored; assert today's answer"))
        .collect()
}

/// Lines of code that have one of `words` as a whole word.
fn lines_with(file: &File, words: &[&str], what: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (n, line) in file.code_lines().iter().enumerate() {
        if let Some(word) = words.iter().find(|word| has_word(line, word)) {
            problems.push(problem(file, n + 1, format!("`{word}`: {what}")));
        }
    }
    problems
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[File::new(path, text)]).len()
    }

    #[test]
    fn unsafe_only_at_the_edges() {
        let text = "fn a() { unsafe { b() } }\n";
        assert_eq!(count("crates/policy/src/a.rs", text), 1);
        assert_eq!(count("crates/mover/src/a.rs", text), 0);
        assert_eq!(count("crates/policy/src/a.rs", "#![forbid(unsafe_code)] // unsafe\n"), 0);
        assert_eq!(count("crates/policy/src/lib.rs", "fn a() {}\n"), 1);
    }

    #[test]
    fn macros_that_print_only_in_the_chores() {
        let text = "fn a() { println!(\"x\") }\n";
        assert_eq!(count("crates/daemon/src/a.rs", text), 1);
        assert_eq!(count("crates/tiercel/src/a.rs", text), 1);
        assert_eq!(count("xtask/src/a.rs", text), 0);
        assert_eq!(count("crates/ledger/examples/a.rs", text), 0);
        let in_test = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { println!(); } }\n";
        assert_eq!(count("crates/daemon/src/a.rs", in_test), 0);
    }

    #[test]
    fn pure_crates_see_no_clock() {
        let text = "use std::time::Instant;\n";
        assert_eq!(count("crates/ledger/src/a.rs", text), 1);
        assert_eq!(count("crates/daemon/src/a.rs", text), 0);
        assert_eq!(count("crates/machine/src/discover.rs", "use std::fs;\n"), 0);
        assert_eq!(count("crates/machine/src/machine.rs", "use std::fs;\n"), 1);
        assert_eq!(count("crates/ledger/src/a.rs", "let instant_ns = operand;\n"), 0);
    }

    #[test]
    fn no_test_is_ignored() {
        let text = "#[cfg(test)]\nmod tests {\n#[test]\n#[ignore]\nfn a() {}\n}\n";
        assert_eq!(count("crates/daemon/src/a.rs", text), 1);
    }
}
