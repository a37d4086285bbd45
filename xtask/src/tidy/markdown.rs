//! What documents quote. In: Markdown. Out: its code, in backticks or fences, and its links, by
//! line. Knows nothing of what the code or the links mean.

use super::source::File;

/// A piece of a document.
#[derive(Debug, PartialEq)]
pub struct Quote {
    pub line: usize,
    pub text: String,
}

/// The documents that are compared with the tree: those by hand that speak of it as it is.
pub fn documents(files: &[File]) -> impl Iterator<Item = &File> {
    const TOP: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    files.iter().filter(|file| {
        let of_docs = file.path.starts_with("docs/") && !file.path.starts_with("docs/notes/");
        let is_document = TOP.contains(&file.path.as_str()) || of_docs && file.extension() == "md";
        is_document && !file.is_generated()
    })
}

/// Code in backticks within a line.
pub fn code(text: &str) -> Vec<Quote> {
    let mut quotes = Vec::new();
    each_line(text, |line, content, fenced| {
        if !fenced {
            let odd = content.split('`').skip(1).step_by(2);
            quotes.extend(odd.map(|text| Quote { line, text: text.to_owned() }));
        }
    });
    quotes
}

/// Lines of fenced code.
pub fn fenced(text: &str) -> Vec<Quote> {
    let mut quotes = Vec::new();
    each_line(text, |line, content, fenced| {
        if fenced {
            quotes.push(Quote { line, text: content.to_owned() });
        }
    });
    quotes
}

/// Targets of links, `[text](target)`.
pub fn links(text: &str) -> Vec<Quote> {
    let mut quotes = Vec::new();
    each_line(text, |line, content, fenced| {
        if !fenced {
            let targets = content.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            quotes.extend(targets.map(|(text, _)| Quote { line, text: text.to_owned() }));
        }
    });
    quotes
}

/// Calls `note` with number, text and whether it is fenced, for all lines but the fences.
fn each_line(text: &str, mut note: impl FnMut(usize, &str, bool)) {
    let mut fenced = false;
    for (n, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else {
            note(n + 1, line, fenced);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_fences_and_links_are_found() {
        let text = "a `b` and `c d`\n```sh\n$ e `f`\n```\n[g](h.md#i), `[j](k)`\n";
        let texts = |quotes: Vec<Quote>| -> Vec<String> {
            quotes.into_iter().map(|quote| format!("{} {}", quote.line, quote.text)).collect()
        };
        assert_eq!(texts(code(text)), ["1 b", "1 c d", "5 [j](k)"]);
        assert_eq!(texts(fenced(text)), ["3 $ e `f`"]);
        assert_eq!(texts(links(text)), ["5 h.md#i", "5 k"]);
    }
}
