//! Shapes of files. In: files. Out: lines and files that are too long, files too big or not text,
//! C files and crates without their header. Knows nothing of contents.

use super::source::{File, blank_comments_and_strings};
use super::{Problem, problem};

/// Lines a file may have, unless its first comment says why it is long.
const FILE_LINES_MAX: usize = 600;
/// Columns a line may have.
const COLUMNS_MAX: usize = 100;
/// Bytes a file may have. Larger ones are data: commit a script that generates them instead.
const FILE_BYTES_MAX: usize = 1 << 20;
/// How far into a file its header may reach.
const HEADER_LINES_MAX: usize = 60;

pub fn check(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files {
        if file.text.is_none() {
            problems.push(problem(file, 0, "not text; commit a script that generates it instead"));
        }
        if file.bytes > FILE_BYTES_MAX {
            problems.push(problem(file, 0, format!("{} bytes, over 1 MiB", file.bytes)));
        }
        if !is_source(file) || file.is_generated() {
            continue;
        }
        problems.extend(long_lines(file));
        problems.extend(joined_headings(file));
        problems.extend(long_file(file));
        problems.extend(header(file));
    }
    problems
}

fn is_source(file: &File) -> bool {
    matches!(file.extension(), "rs" | "c" | "h" | "sh" | "py" | "cpp" | "hpp") || file.path == "x"
}

/// A line inside a string cannot be broken and is allowed.
fn long_lines(file: &File) -> Vec<Problem> {
    let code = blank_comments_and_strings(file.text());
    let is_comment = |line: &str| line.trim_start().starts_with(['/', '*', '#']);
    let lines = file.text().lines().zip(code.lines()).enumerate();
    lines
        .filter(|(_, (line, code))| is_comment(line) || !code.trim().is_empty())
        .map(|(n, (line, _))| (n, line.chars().count()))
        .filter(|(_, columns)| *columns > COLUMNS_MAX)
        .map(|(n, columns)| problem(file, n + 1, format!("{columns} columns")))
        .collect()
}

/// A heading of a doc comment that its text follows on the same line is all heading.
fn joined_headings(file: &File) -> Vec<Problem> {
    let is_joined = |line: &str| {
        let heading = line.trim_start().strip_prefix("/// # ");
        heading.is_some_and(|heading| {
            let words = ["Errors ", "Panics ", "Safety ", "Examples "];
            words.iter().any(|word| heading.starts_with(word))
        })
    };
    let lines = file.text().lines().enumerate().filter(|(_, line)| is_joined(line));
    lines.map(|(n, _)| problem(file, n + 1, "text on the line of its heading")).collect()
}

fn long_file(file: &File) -> Option<Problem> {
    let count = file.text().lines().count();
    (count >= FILE_LINES_MAX && !states_why_long(file.text())).then(|| {
        problem(file, 0, format!("{count} lines; its header must say why: `Long, because ...`"))
    })
}

/// Whether the header has "Long, because", perhaps on two lines.
fn states_why_long(text: &str) -> bool {
    let comment = first_comment(text);
    let words: Vec<&str> =
        comment.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).collect();
    words.windows(2).any(|pair| pair == ["Long,", "because"])
}

/// A crate's root and every C file says what it is, what goes in, what comes out and what it knows
/// nothing of. Test programs in C only say what they are.
fn header(file: &File) -> Option<Problem> {
    let name = file.path.rsplit('/').next().unwrap_or("");
    let is_root = file.path.contains("/src/") && matches!(name, "lib.rs" | "main.rs");
    let is_root = is_root && file.path.matches('/').count() <= 3;
    if !is_root && !file.is_c() {
        return None;
    }
    let header = first_comment(file.text());
    if header.is_empty() {
        return Some(problem(file, 1, "no header comment"));
    }
    if file.path.contains("/tests/") {
        return None;
    }
    let missing: Vec<&str> =
        ["In:", "Out:", "nothing"].into_iter().filter(|part| !header.contains(part)).collect();
    (!missing.is_empty()).then(|| {
        problem(
            file,
            1,
            format!(
                "its header lacks {}: what goes in, what comes out, what it knows nothing of",
                missing.join(", ")
            ),
        )
    })
}

/// The comment a file begins with, a licence line included; empty when it begins with code.
fn first_comment(text: &str) -> String {
    let mut comment = String::new();
    let mut inside = false;
    for line in text.lines().take(HEADER_LINES_MAX) {
        let line = line.trim();
        let begins = ["//", "#", "/*"].iter().any(|mark| line.starts_with(mark));
        if !inside && !begins {
            break;
        }
        inside |= line.starts_with("/*");
        comment.push_str(line);
        comment.push('\n');
        inside &= !line.ends_with("*/");
    }
    comment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(file: File) -> Vec<String> {
        check(&[file]).into_iter().map(|problem| problem.what).collect()
    }

    const HEADER: &str = "/* a.c: a.\n * In: a. Out: b.\n * Knows nothing of c. */\n";

    #[test]
    fn a_long_line_is_reported() {
        let text = format!("{HEADER}int a; /* {} */\n", "x".repeat(100));
        assert_eq!(whats(File::new("runtime/a.c", &text)), ["113 columns"]);
        let inside = format!("{HEADER}a(\"\n{}\n\");\n", "x".repeat(110));
        assert!(whats(File::new("runtime/a.c", &inside)).is_empty());
    }

    #[test]
    fn the_text_of_a_heading_is_below_it() {
        let joined = "//! A.\n/// Does it.\n///\n/// # Errors Never.\nfn a() {}\n";
        assert_eq!(
            whats(File::new("crates/a/src/b.rs", joined)),
            ["text on the line of its heading"]
        );
        let apart = joined.replace("Errors ", "Errors\n/// ");
        assert!(whats(File::new("crates/a/src/b.rs", &apart)).is_empty());
    }

    #[test]
    fn a_long_file_needs_a_reason() {
        let body = "int a;\n".repeat(600);
        assert_eq!(whats(File::new("runtime/a.c", &format!("{HEADER}{body}"))).len(), 1);
        let is_excused = |reason: &str| {
            let header = HEADER.replace("of c.", reason);
            whats(File::new("runtime/a.c", &format!("{header}{body}"))).is_empty()
        };
        assert!(is_excused("of c. Long, because the table is."));
        assert!(is_excused("of c. Long,\n * because the table is."));
        assert!(!is_excused("of c for as long as it lives."));
    }

    #[test]
    fn a_missing_header_is_reported() {
        assert_eq!(whats(File::new("runtime/a.c", "int a;\n")), ["no header comment"]);
        assert_eq!(whats(File::new("crates/a/src/lib.rs", "//! A crate.\n")).len(), 1);
        assert!(whats(File::new("crates/a/src/b.rs", "fn b() {}\n")).is_empty());
        assert!(whats(File::new("runtime/tests/a.c", "/* forks */\n")).is_empty());
    }

    #[test]
    fn large_files_and_binaries_are_reported() {
        let binary = File::read("a.bin".into(), vec![0; 2 << 20]);
        assert_eq!(whats(binary).len(), 2);
    }
}
