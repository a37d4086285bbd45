//! Refused words. In: files, among them the list of refused words beside this one. Out: each place
//! that has one. Knows nothing of what words mean.
//!
//! The table is the one list. Each of its rows names words and what to write for them:
//! - a term is refused everywhere: in names, comments, messages, documents and file names;
//! - a term in backticks is refused in names alone, because prose may need the word;
//! - an ending in brackets, `word(ed)`, stands for both forms; a remark, `word (of memory)`, is
//!   ignored.
//!
//! Names are split: `someName`, `SOME_NAME` and "some name" are the same two words.

use super::source::{File, blank_comments_and_strings};
use super::{Problem, problem};

/// The list.
const PATH: &str = "xtask/src/tidy/refused.md";
/// What may be between two words of one term, beside white space: parts of names, and what lines of
/// comments begin with.
const JOINING: &str = "_-/*#!\\";
/// Recorded or quoted text, and history.
const EXEMPT: &[&str] =
    &[PATH, "CHANGELOG.md", "LICENSE", "docs/notes/", "fixtures/", "lab/results/"];
/// Extensions of source and prose; data is not read.
const EXTENSIONS: &[&str] = &["rs", "c", "h", "cpp", "hpp", "f90", "md", "toml", "sh", "py"];

/// One term that is refused.
struct Term {
    words: Vec<String>,
    /// Prose may have it.
    names_only: bool,
    /// The words to use instead.
    instead: String,
}

/// One word of a text.
struct Word {
    text: String,
    line: usize,
    /// Whether it is part of a name, not of prose.
    in_name: bool,
    /// Whether it and the word before can be one term.
    joined: bool,
}

/// Every refused word of the tree.
pub fn check(files: &[File]) -> Vec<Problem> {
    let list = files.iter().find(|file| file.path == PATH).map_or("", File::text);
    let terms = terms(list);
    if terms.is_empty() && files.len() > 1 {
        return vec![Problem { path: PATH.into(), line: 0, what: "has no table".into() }];
    }
    let files = files.iter().filter(|file| is_read(file));
    files.flat_map(|file| of_file(file, &terms)).collect()
}

fn is_read(file: &File) -> bool {
    let is_text = EXTENSIONS.contains(&file.extension())
        || file.path == "x"
        || file.path.ends_with("/Makefile");
    let exempt = EXEMPT.iter().any(|path| file.path.starts_with(path));
    is_text && !exempt && !file.is_generated()
}

/// The terms of the table.
fn terms(list: &str) -> Vec<Term> {
    let rows = list.lines();
    let rows =
        rows.filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let mut terms = Vec::new();
    for (refused, instead) in rows.skip(1) {
        for term in refused.split(',').map(str::trim) {
            let names_only = term.starts_with('`');
            let term = term.split(" (").next().unwrap_or(term).trim_matches('`');
            for form in forms(term) {
                let words = words_of_name(&form).into_iter().map(|word| word.text).collect();
                terms.push(Term { words, names_only, instead: instead.into() });
            }
        }
    }
    terms
}

/// `word(ed)`: `word` and `worded`.
fn forms(term: &str) -> Vec<String> {
    match term.trim_end_matches(')').split_once('(') {
        Some((word, ending)) => vec![word.to_owned(), format!("{word}{ending}")],
        None => vec![term.to_owned()],
    }
}

fn of_file(file: &File, terms: &[Term]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (words, is_path) in [(words_of_name(&file.path), true), (words_of_text(file), false)] {
        for at in 0..words.len() {
            for term in terms.iter().filter(|term| term.is_at(&words[at..])) {
                let found = term.words.join(" ");
                let what = format!("`{found}` is refused; use: {}", term.instead);
                problems.push(problem(file, if is_path { 0 } else { words[at].line }, what));
            }
        }
    }
    problems
}

impl Term {
    fn is_at(&self, words: &[Word]) -> bool {
        words.len() >= self.words.len()
            && self.words.iter().zip(words).all(|(one, word)| *one == word.text)
            && words[1..self.words.len()].iter().all(|word| word.joined)
            && (words[0].in_name || !self.names_only)
    }
}

/// The words of a file. In a source file, names are what is neither comment nor string; in a
/// document, what is in backticks.
fn words_of_text(file: &File) -> Vec<Word> {
    let text = file.text();
    let in_name = match file.extension() {
        "md" => in_backticks(text),
        "rs" | "c" | "h" | "cpp" | "hpp" => {
            blank_comments_and_strings(text).chars().map(|c| !c.is_whitespace()).collect()
        }
        _ => before_hash(text),
    };
    words(text, in_name.into_iter())
}

/// The words of a name, or of a path.
fn words_of_name(name: &str) -> Vec<Word> {
    words(name, std::iter::repeat(true))
}

/// The words of a text, given for each of its characters whether it is part of a name.
fn words(text: &str, in_name: impl Iterator<Item = bool>) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let (mut line, mut last, mut joined) = (1, ' ', true);
    let mut chars = text.chars().zip(in_name).peekable();
    while let Some((c, in_name)) = chars.next() {
        if c.is_alphanumeric() {
            let next_is_lower = chars.peek().is_some_and(|(next, _)| next.is_lowercase());
            let is_capital = c.is_uppercase() && (!last.is_uppercase() || next_is_lower);
            if !last.is_alphanumeric() || is_capital {
                words.push(Word { text: String::new(), line, in_name, joined });
                joined = true;
            }
            if let Some(word) = words.last_mut() {
                word.text.extend(c.to_lowercase());
            }
        } else {
            line += usize::from(c == '\n');
            joined &= c.is_whitespace() || JOINING.contains(c);
        }
        last = c;
    }
    words
}

/// For each character whether it is between backticks, or in a fenced block.
fn in_backticks(text: &str) -> Vec<bool> {
    let mut inside = false;
    let mut flags = Vec::new();
    for c in text.chars() {
        inside ^= c == '`';
        flags.push(inside);
    }
    flags
}

/// For each character whether it is before its line's `#`.
fn before_hash(text: &str) -> Vec<bool> {
    let mut flags = Vec::new();
    for line in text.split_inclusive('\n') {
        let mut comment = false;
        flags.extend(line.chars().map(|c| {
            comment |= c == '#';
            !comment
        }));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of `path` with a refused word.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        let table =
            "| not | but |\n|---|---|\n| zork(s) | say it |\n| green way, `pim` (of tea) | x |\n";
        let files = [File::new(PATH, table), File::new(path, text)];
        check(&files).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn a_refused_word_is_found_in_prose_and_names() {
        let text = "// zork\nlet aZorks = 1;\nlet b = \"ZORK\";\nlet zorkish = 1;\n";
        assert_eq!(lines("crates/a/src/b.rs", text), [1, 2, 3]);
        assert_eq!(lines("lab/a.toml", "# a zork\nzorks = 1\n"), [1, 2]);
        assert_eq!(lines("runtime/zork.c", ""), [0]);
        assert!(lines("docs/notes/a.md", "zork\n").is_empty());
        assert!(lines("lab/results/a.md", "zork\n").is_empty());
        assert!(lines("a.md", "Generated by zork\n").is_empty());
    }

    #[test]
    fn a_term_of_two_words_is_found_across_lines() {
        assert_eq!(lines("a.rs", "fn green_way() {}\n// green\n// way\n// green. Way\n"), [1, 2]);
        assert_eq!(lines("a.rs", "struct GreenWay;\nconst GREEN_WAY: u8 = 1;\n"), [1, 2]);
    }

    #[test]
    fn a_term_in_backticks_is_refused_in_names_alone() {
        assert_eq!(lines("a.rs", "// a pim\nlet pim = \"pim\";\n"), [2]);
        assert_eq!(lines("a.md", "a pim\nand `a.pim`\n"), [2]);
        assert_eq!(lines("a.sh", "pim=1 # a pim\n"), [1]);
        assert_eq!(lines("runtime/pim.c", ""), [0]);
    }

    #[test]
    fn the_list_needs_its_table() {
        let files = [File::new(PATH, "# Words\n"), File::new("a.md", "")];
        assert_eq!(check(&files).len(), 1);
    }
}
