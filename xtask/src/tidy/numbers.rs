//! Numbers: constants state where they come from, and casts lose nothing. In: files. Out: numeric
//! constants without a comment, and crates where clippy does not refuse lossy casts. Knows
//! nothing of whether a comment is right.

use super::source::File;
use super::{Problem, problem};

/// Types whose constants need a comment. Others, such as strings and tables, explain themselves
/// more often than not.
const NUMERIC: [&str; 13] = [
    "f32", "f64", "u8", "u16", "u32", "u64", "u128", "usize", "i16", "i32", "i64", "isize",
    "Duration",
];
/// The first line of every library and program, after its documentation.
const LINTS: [&str; 3] =
    ["clippy::cast_possible_truncation", "clippy::cast_sign_loss", "clippy::cast_possible_wrap"];

pub fn check(files: &[File]) -> Vec<Problem> {
    files.iter().flat_map(|file| constants(file).into_iter().chain(casts(file))).collect()
}

/// Numeric constants without a comment. One comment serves a group of constants: lines that follow
/// one another without an empty line.
fn constants(file: &File) -> Vec<Problem> {
    let name = match file.extension() {
        "rs" => of_rust,
        "c" | "h" => of_c,
        _ => return Vec::new(),
    };
    let of_tests =
        ["/tests/", "/tests.rs", "/fixtures/"].iter().any(|part| file.path.contains(part));
    if file.is_generated() || of_tests {
        return Vec::new();
    }
    let text: Vec<&str> = file.text().lines().collect();
    let mut problems = Vec::new();
    for (n, code) in file.code_lines().iter().enumerate() {
        let Some(name) = name(code) else { continue };
        if !is_explained(&text, file.code_lines(), n) {
            let what =
                format!("{name} has no comment: state its arithmetic, source or measurement");
            problems.push(problem(file, n + 1, what));
        }
    }
    problems
}

/// Whether a line has a comment, or the group of lines that it ends begins with one. That of a
/// module serves its first group.
fn is_explained(text: &[&str], code: &[String], line: usize) -> bool {
    let commented = |n: usize| text[n].trim() != code[n].trim();
    let group = (0..=line).rev().take_while(|&n| !text[n].trim().is_empty());
    group.take_while(|&n| !opens_function(&code[n])).any(commented)
}

fn opens_function(code: &str) -> bool {
    code.trim_end().ends_with('{') && !code.contains("mod ")
}

/// The name of a numeric constant of Rust that the line defines.
fn of_rust(code: &str) -> Option<String> {
    let (before, rest) = code.split_once("const ")?;
    let (name, rest) = rest.split_once(':')?;
    let (kind, value) = rest.split_once('=')?;
    if before.contains('<') || value.contains('$') {
        return None; // a generic parameter; a macro's argument
    }
    let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let computed = value.contains("size_of") || value.contains("offset_of");
    (is_name && NUMERIC.contains(&kind.trim()) && !computed).then(|| name.into())
}

/// The name of a macro of C that the line defines as a number.
fn of_c(code: &str) -> Option<String> {
    let rest = code.trim_start().strip_prefix("#define ")?;
    let (name, value) = rest.trim().split_once(' ')?;
    let value = value.trim().trim_start_matches('(').trim_start_matches("(size_t)");
    (!name.contains('(') && value.starts_with(|c: char| c.is_ascii_digit())).then(|| name.into())
}

/// The root of a crate that does not refuse lossy casts.
fn casts(file: &File) -> Vec<Problem> {
    let parts: Vec<&str> = file.path.split('/').collect();
    let is_root = match parts[..] {
        ["crates", _, "src", name] => name == "lib.rs" || name == "main.rs",
        ["xtask", "src", name] => name == "main.rs",
        _ => false,
    };
    if !is_root || LINTS.iter().all(|lint| file.text().contains(lint)) {
        return Vec::new();
    }
    vec![problem(file, 1, format!("does not refuse lossy casts: `deny({})`", LINTS.join(", ")))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&[File::new(path, text)]).iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn a_constant_without_a_comment_is_refused() {
        let rust = "/// Two per line.\nconst A: usize = 2;\n\nconst B: f64 = 0.5;\n\n\
                    const C: &str = \"x\";\n";
        assert_eq!(lines("crates/x/src/y.rs", rust), [4]);
        let c = "#define A 1 /* a line */\n\n#define B 2\n\n#define F(x) 3\n#define N tcl\n";
        assert_eq!(lines("runtime/x.c", c), [3]);
    }

    #[test]
    fn a_comment_serves_the_group_below_it() {
        let text = "// Margins of a plot, pixels.\nconst LEFT: u32 = 2;\nconst RIGHT: u32 = 3;\n\n\
                    const TOP: u32 = 4;\n";
        assert_eq!(lines("crates/x/src/y.rs", text), [5]);
    }

    #[test]
    fn constants_of_tests_need_none() {
        let unit = "#[cfg(test)]\nmod tests {\n const A: u8 = 1;\n}\n";
        assert!(lines("crates/x/src/y.rs", unit).is_empty());
        assert!(lines("crates/x/tests/y.rs", "const A: u8 = 1;\n").is_empty());
    }

    #[test]
    fn a_crate_root_refuses_lossy_casts() {
        assert_eq!(lines("crates/x/src/lib.rs", "//! x\n"), [1]);
        let deny = format!("//! x\n#![deny({})]\n", LINTS.join(", "));
        assert!(lines("crates/x/src/lib.rs", &deny).is_empty());
        assert!(lines("crates/x/src/other.rs", "//! x\n").is_empty());
    }
}
