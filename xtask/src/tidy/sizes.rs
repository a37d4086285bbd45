//! Lengths of functions. In: files. Out: C functions that are too long, crates and C folders whose
//! median function is, and blocks of `impl Daemon` that are. Knows nothing of what functions do.
//!
//! A function's length is the number of lines of code in its body, as clippy counts them: neither
//! the signature, nor the braces' lines, nor comments, nor blank lines.

use std::collections::BTreeMap;

use super::source::{File, blank_comments_and_strings};
use super::{Problem, problem};

/// Lines a function may have; clippy.toml has the same number for Rust and clippy checks it there.
const FUNCTION_MAX: usize = 70;
/// Lines the median function of a crate may have.
const MEDIAN_MAX: usize = 8;
/// The daemon's parts own their state and take the rest as arguments; what remains on `Daemon`
/// outside of its own file is glue, at most this many lines a block.
const DAEMON_BLOCK_MAX: usize = 40;
const DAEMON: &str = "crates/daemon/src/";

/// One function.
#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    /// Where it begins.
    line: usize,
    /// Its length.
    lines: usize,
}

pub fn check(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files {
        if file.is_c() && !file.is_generated() {
            let long = functions(file).into_iter().filter(|one| one.lines > FUNCTION_MAX);
            problems.extend(
                long.map(|one| {
                    problem(file, one.line, format!("{}: {} lines", one.name, one.lines))
                }),
            );
        }
        problems.extend(daemon_blocks(file));
    }
    let long = sizes(files).into_iter().filter(|one| one.median > MEDIAN_MAX);
    problems.extend(long.map(|Size { folder, median, functions, .. }| {
        let what = format!(
            "the median of its {functions} functions has {median} lines, over {MEDIAN_MAX}"
        );
        Problem { path: folder, line: 0, what }
    }));
    problems
}

/// The functions of a crate, or of a folder of C.
pub struct Size {
    pub folder: String,
    pub functions: usize,
    pub median: usize,
    /// The longest: lines, and where it is.
    pub longest: (usize, String),
}

/// All crates and C folders, tests, examples and generated files left out.
pub fn sizes(files: &[File]) -> Vec<Size> {
    let mut by_folder: BTreeMap<&str, Vec<(usize, String)>> = BTreeMap::new();
    for file in files {
        let folder = match file.path.split_once("/src/") {
            Some((folder, _)) if file.is_rust() => folder,
            None if file.is_c() && file.path.starts_with("runtime/") => "runtime",
            None if file.is_c() && file.path.starts_with("workloads/") => "workloads",
            _ => continue,
        };
        let is_test = file.path.contains("/tests/") || file.path.ends_with("tests.rs");
        if is_test || file.is_generated() {
            continue;
        }
        let place = |one: &Function| format!("{}:{} {}", file.path, one.line, one.name);
        let all = functions(file).into_iter().map(|one| (one.lines, place(&one)));
        by_folder.entry(folder).or_default().extend(all);
    }
    by_folder.into_iter().filter_map(|(folder, functions)| Size::of(folder, functions)).collect()
}

impl Size {
    fn of(folder: &str, mut functions: Vec<(usize, String)>) -> Option<Size> {
        functions.sort();
        let count = functions.len();
        let median = functions.get(count / 2)?.0;
        let longest = functions.pop()?;
        Some(Size { folder: folder.into(), functions: count, median, longest })
    }
}

fn functions(file: &File) -> Vec<Function> {
    match file.is_c() {
        true => c_functions(file),
        false => rust_functions(file.code_lines()),
    }
}

/// From each `fn NAME` to the brace that closes its first one; a function within another one counts
/// for both.
fn rust_functions(code: &[String]) -> Vec<Function> {
    let mut functions = Vec::new();
    for (n, line) in code.iter().enumerate() {
        let Some((begin, name)) = name_after_fn(line) else { continue };
        if let Some(lines) = body(&code[n..], begin) {
            functions.push(Function { name: name.into(), line: n + 1, lines });
        }
    }
    functions
}

/// Where the first `fn NAME` of a line is, and the name.
fn name_after_fn(line: &str) -> Option<(usize, &str)> {
    let starts_word = |at: usize| at == 0 || line[..at].ends_with([' ', '(']);
    let (begin, _) = line.match_indices("fn ").find(|(at, _)| starts_word(*at))?;
    let name = line[begin + 3..].split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (!name.is_empty()).then_some((begin, name))
}

/// Lines of code within the braces of the function that begins in the first line at `begin`; `None`
/// when it has no body.
fn body(code: &[String], begin: usize) -> Option<usize> {
    let mut brackets = 0_usize;
    let mut braces = 0_usize;
    let mut lines = 0;
    for (n, line) in code.iter().enumerate() {
        let mut has_code = false;
        for c in line.chars().skip(if n == 0 { begin } else { 0 }) {
            match c {
                '(' | '[' if braces == 0 => brackets += 1,
                ')' | ']' if braces == 0 => brackets = brackets.saturating_sub(1),
                ';' if braces == 0 && brackets == 0 => return None,
                '{' => braces += 1,
                '}' if braces == 0 => return None,
                '}' if braces == 1 => return Some(lines + usize::from(has_code)),
                '}' => braces -= 1,
                _ => {}
            }
            has_code |= braces > 0 && !c.is_whitespace() && (braces > 1 || c != '{');
        }
        lines += usize::from(has_code);
    }
    None
}

/// A function's body begins with a line that ends in `{` and has its name at the first column, or
/// with `{` alone there, and ends with `}` at the first column: clang-format sees to that.
fn c_functions(file: &File) -> Vec<Function> {
    let code = blank_comments_and_strings(file.text());
    let mut functions = Vec::new();
    let mut current: Option<Function> = None;
    let mut last_at_margin = String::new();
    for (n, line) in code.lines().enumerate() {
        let at_margin = line.starts_with(|c: char| !c.is_whitespace() && c != '#');
        match &mut current {
            Some(_) if line.starts_with('}') => functions.extend(current.take()),
            Some(function) => function.lines += usize::from(!line.trim().is_empty()),
            None => current = c_function(line, &last_at_margin, n + 1),
        }
        if at_margin {
            last_at_margin = line.to_string();
        }
    }
    functions
}

/// The function whose body begins in this line, if one does.
fn c_function(line: &str, last_at_margin: &str, number: usize) -> Option<Function> {
    let has_arguments = last_at_margin.contains('(') || line.contains('(');
    if !line.trim_end().ends_with('{') || !has_arguments {
        return None;
    }
    let name = if line.starts_with('{') { last_at_margin } else { line };
    let is_function = !name.starts_with(['}', ' ']) || last_at_margin.contains('(');
    let name = name.trim_end_matches(['{', ' ']).to_string();
    (is_function && !name.contains("extern")).then_some(Function { name, line: number, lines: 0 })
}

/// Blocks `impl Daemon` outside daemon.rs that are too long.
fn daemon_blocks(file: &File) -> Vec<Problem> {
    if !file.path.starts_with(DAEMON) || file.path == format!("{DAEMON}daemon.rs") {
        return Vec::new();
    }
    let code = file.code_lines();
    let begins = code.iter().enumerate().filter(|(_, line)| {
        line.starts_with("impl") && line.split_whitespace().any(|word| word == "Daemon")
    });
    let lengths =
        begins.filter_map(|(n, _)| Some((n, code[n..].iter().position(|l| l == "}")? + 1)));
    lengths
        .filter(|(_, lines)| *lines > DAEMON_BLOCK_MAX)
        .map(|(n, lines)| {
            problem(
                file,
                n + 1,
                format!(
                    "`impl Daemon`: {lines} lines; at most {DAEMON_BLOCK_MAX} outside daemon.rs"
                ),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<String> {
        check(&[File::new(path, text)]).into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn a_long_c_function_is_reported() {
        for begin in ["int a(int b) {\n", "int a(int b)\n{\n", "int a(int b,\n      int c) {\n"] {
            let text = |lines| format!("{begin}{}}}\n", "    b++;\n".repeat(lines));
            let short = "int d(void) {\n}\n".repeat(2);
            assert!(whats("runtime/a.c", &(text(70) + &short)).is_empty(), "{begin}");
            assert_eq!(whats("runtime/a.c", &(text(71) + &short)).len(), 1, "{begin}");
        }
    }

    #[test]
    fn only_lines_of_code_count() {
        let text = "fn a<T>(\n    b: [u8; 4],\n) -> T {\n    // c\n    d {\n        e\n    }\n\n}\n\
                    trait F { fn g(); }\nfn h() { i }\nfn j() {}\n";
        let file = File::new("crates/a/src/b.rs", text);
        let found: Vec<(String, usize)> =
            functions(&file).into_iter().map(|one| (one.name, one.lines)).collect();
        assert_eq!(found, [("a".into(), 3), ("h".into(), 1), ("j".into(), 0)]);
    }

    #[test]
    fn a_high_median_is_reported() {
        let function = |lines| format!("fn a() {{\n{}}}\n", "    b();\n".repeat(lines));
        let text = function(8) + &function(8) + &function(60);
        assert!(whats("crates/a/src/b.rs", &text).is_empty());
        let text = function(8) + &function(9) + &function(9);
        assert_eq!(whats("crates/a/src/b.rs", &text).len(), 1);
    }

    #[test]
    fn a_long_impl_block_of_the_daemon_is_reported() {
        let text =
            |lines| format!("impl Daemon {{\n{}}}\n", "    const A: u8 = 1;\n".repeat(lines));
        let count = |path: &str, lines| daemon_blocks(&File::new(path, &text(lines))).len();
        assert_eq!(count("crates/daemon/src/daemon.rs", 39), 0);
        assert_eq!(count("crates/daemon/src/tick.rs", 38), 0);
        assert_eq!(count("crates/daemon/src/tick.rs", 39), 1);
    }
}
