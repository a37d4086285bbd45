//! Documents against the tree. In: files. Out: crates ARCHITECTURE.md does not describe or that are
//! gone, folders README.md does not name, decisions without a part, packages listed twice. Knows
//! nothing of prose.

use std::collections::BTreeSet;

use super::Problem;
use super::source::File;

/// Top-level folders that need no line in README.md.
const UNNAMED: &[&str] = &[".cargo", ".ci", ".github"];
/// The groups setup/packages.txt may use.
const GROUPS: &[&str] = &[
    "build",
    "test",
    "bench",
    "demo",
    "conformance",
    "project",
    "soak",
    "package",
    "exact",
    "rust",
];

pub fn check(files: &[File]) -> Vec<Problem> {
    let mut problems = architecture(files);
    problems.extend(readme(files));
    problems.extend(decisions(files));
    problems.extend(packages(files));
    problems
}

fn text_of<'a>(files: &'a [File], path: &str) -> &'a str {
    files.iter().find(|file| file.path == path).map_or("", File::text)
}

fn at(path: &str, line: usize, what: String) -> Problem {
    Problem { path: path.into(), line, what }
}

/// A crate's paragraph in ARCHITECTURE.md begins with its name as ``**`name`**``.
fn architecture(files: &[File]) -> Vec<Problem> {
    const PATH: &str = "ARCHITECTURE.md";
    let there: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| file.path.strip_prefix("crates/")?.split_once('/'))
        .map(|(name, _)| name)
        .collect();
    let described: BTreeSet<&str> = text_of(files, PATH)
        .lines()
        .filter_map(|line| line.strip_prefix("**`")?.split_once("`**"))
        .map(|(name, _)| name)
        .collect();
    let missing = there.difference(&described).map(|name| format!("no paragraph for `{name}`"));
    let gone = described.difference(&there).map(|name| format!("there is no crate `{name}`"));
    missing.chain(gone).map(|what| at(PATH, 0, what)).collect()
}

fn readme(files: &[File]) -> Vec<Problem> {
    const PATH: &str = "README.md";
    let text = text_of(files, PATH);
    let folders: BTreeSet<&str> =
        files.iter().filter_map(|file| Some(file.path.split_once('/')?.0)).collect();
    folders
        .into_iter()
        .filter(|folder| !UNNAMED.contains(folder) && !text.contains(&format!("`{folder}/`")))
        .map(|folder| at(PATH, 0, format!("no line for `{folder}/`")))
        .collect()
}

/// Each decision says what was to be decided, between what, how, and when to revisit it.
fn decisions(files: &[File]) -> Vec<Problem> {
    const PARTS: [&str; 4] = ["**Problem.**", "**Options.**", "**Choice.**", "**Revisit when**"];
    let decisions = files.iter().filter(|file| file.path.starts_with("docs/decisions/"));
    let lacking = decisions.flat_map(|file| {
        let missing = PARTS.iter().filter(|part| !file.text().contains(**part));
        missing.map(|part| at(&file.path, 0, format!("no part `{part}`")))
    });
    lacking.collect()
}

fn packages(files: &[File]) -> Vec<Problem> {
    const PATH: &str = "setup/packages.txt";
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for (n, line) in text_of(files, PATH).lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() != 2 || !GROUPS.contains(&words[0]) {
            problems.push(at(PATH, n + 1, format!("not `group package`: {line}")));
        } else if !seen.insert(line) {
            problems.push(at(PATH, n + 1, format!("twice: {line}")));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undescribed_and_removed_crates_are_reported() {
        let files = [
            File::new("crates/wire/src/lib.rs", ""),
            File::new("ARCHITECTURE.md", "**`machine`** is data.\n"),
        ];
        let whats: Vec<String> = architecture(&files).into_iter().map(|one| one.what).collect();
        assert_eq!(whats, ["no paragraph for `wire`", "there is no crate `machine`"]);
    }

    #[test]
    fn a_folder_without_a_line_is_reported() {
        let files = [File::new("lab/a", ""), File::new("README.md", "`crates/` Rust\n")];
        assert_eq!(readme(&files).len(), 1);
    }

    #[test]
    fn a_decision_without_a_part_is_reported() {
        let text = "**Problem.** a\n**Options.** b\n**Choice.** c\n";
        let whole = format!("{text}**Revisit when** d.\n");
        assert_eq!(decisions(&[File::new("docs/decisions/1.md", text)]).len(), 1);
        assert!(decisions(&[File::new("docs/decisions/1.md", &whole)]).is_empty());
    }

    #[test]
    fn faults_of_a_package_list_are_reported() {
        let text = "# packages\nbuild gcc\nbuild gcc\nodd gcc\nbuild\n";
        assert_eq!(packages(&[File::new("setup/packages.txt", text)]).len(), 3);
    }
}
