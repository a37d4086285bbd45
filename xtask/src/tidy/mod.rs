//! Checks what no compiler checks. In: the tree as text. Out: every place that breaks a rule, with
//! file, line and the rule. Knows nothing of what the code does; each file here is one kind of
//! rule, a function from files to problems, with tests on small inputs that must fail.

mod absence;
mod documents;
mod layers;
mod shape;
mod source;
mod words;

use anyhow::{Result, bail};

use crate::{exec, metadata};
use source::File;

/// One broken rule.
#[derive(Debug, PartialEq)]
pub struct Problem {
    /// Path from the top folder.
    pub path: String,
    /// Counted from 1; 0 when the file as a whole is meant.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

/// A kind of rule.
type Rule = fn(&[File]) -> Vec<Problem>;

pub fn main() -> Result<()> {
    let files = source::read(&exec::root())?;
    let packages = metadata::packages()?;
    let rules: [Rule; 4] = [shape::check, absence::check, words::check, documents::check];
    let mut problems: Vec<Problem> = rules.iter().flat_map(|rule| rule(&files)).collect();
    problems.extend(layers::check(&packages, &exec::root()));
    for problem in &problems {
        println!("{}:{}: {}", problem.path, problem.line, problem.what);
    }
    if !problems.is_empty() {
        bail!("{} places are not tidy", problems.len());
    }
    println!("{} files are tidy", files.len());
    Ok(())
}

fn problem(file: &File, line: usize, what: impl Into<String>) -> Problem {
    Problem { path: file.path.clone(), line, what: what.into() }
}
