//! Checks what no compiler checks. In: the tree as text. Out: every place that breaks a rule, with
//! file, line and the rule. Knows nothing of what the code does; each file here is one kind of
//! rule, a function from files to problems, with tests on small inputs that must fail.

mod absence;
mod circles;
mod commands;
mod documents;
mod layers;
mod markdown;
mod modules;
mod numbers;
mod paths;
mod refused;
mod reserved;
mod shape;
mod sizes;
mod source;
mod walks;
mod words;

use anyhow::{Result, bail};
use clap::{Args, CommandFactory as _};

use crate::{exec, metadata};
use source::File;

#[derive(Args)]
pub struct Options {
    /// Only list the circles of imports; a folder, such as `crates/ledger`, or `all`
    #[arg(long, value_name = "FOLDER")]
    circles: Option<String>,
    /// Only list refused words; below a folder, or `all`
    #[arg(long, value_name = "FOLDER")]
    words: Option<String>,
    /// Only list the median and the longest function of each crate
    #[arg(long)]
    sizes: bool,
}

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

pub fn main(options: &Options) -> Result<()> {
    let files = source::read(&exec::root())?;
    let lists =
        [(&options.circles, circles::check as Rule), (&options.words, refused::check as Rule)];
    for (folder, rule) in lists {
        if let Some(folder) = folder {
            let mut problems = rule(&files);
            problems.retain(|problem| folder == "all" || problem.path.starts_with(folder.as_str()));
            return show(&problems, &files);
        }
    }
    if options.sizes {
        for sizes::Size { folder, functions, median, longest: (lines, place) } in
            sizes::sizes(&files)
        {
            println!(
                "{folder:18} {functions:4} functions, median {median:2}, longest {lines:2}: {place}"
            );
        }
        return Ok(());
    }
    let packages = metadata::packages()?;
    let rules: [Rule; 11] = [
        shape::check,
        sizes::check,
        absence::check,
        words::check,
        documents::check,
        paths::check,
        circles::check,
        refused::check,
        numbers::check,
        reserved::check,
        walks::check,
    ];
    let mut problems: Vec<Problem> = rules.iter().flat_map(|rule| rule(&files)).collect();
    problems.extend(commands::check(&files, &crate::Cli::command()));
    problems.extend(layers::check(&packages, &exec::root()));
    show(&problems, &files)
}

fn show(problems: &[Problem], files: &[File]) -> Result<()> {
    for problem in problems {
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
