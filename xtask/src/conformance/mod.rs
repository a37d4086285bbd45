//! `./x conformance`: whether test suites of C libraries and of POSIX, and programs that do
//! something odd, end as they do without Tiercel. In: the lists of fixtures/conformance. Out: each
//! difference in outcome, beside what other allocators do; an error when a difference is not among
//! the known ones, or a known one is gone. Knows nothing of why.

mod compile;
mod document;
mod glibc;
mod known;
mod list;
mod own;
mod posix;
mod report;
mod trial;

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Result, bail};
use clap::Args;

use crate::sources::Sources;
use crate::{build, exec};
use known::Known;
use list::{Suite, Test};
use report::{Difference, Report, TestRow};
use trial::{Ending, Host};

pub use document::document;

/// Tests at a time, for each CPU: most wait for timers. Chosen, not measured.
const TESTS_PER_CPU: usize = 3;

#[derive(Args)]
pub struct Options {
    /// Only the tests whose name, `group/name`, contains this
    #[arg(long)]
    only: Option<String>,
    /// Only a subset that takes a minute or two
    #[arg(long)]
    quick: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print the tests, and why some are skipped, instead of running them
    #[arg(long)]
    list: bool,
    /// Use the binary and the runtime as they are
    #[arg(long)]
    no_build: bool,
}

/// Where all that this verb fetches and builds is.
fn folder() -> PathBuf {
    exec::target().join("conformance")
}

fn sources() -> Sources {
    Sources::below(folder())
}

pub fn main(options: &Options) -> Result<()> {
    let known = Known::read()?;
    let mut suite = chosen(options)?;
    if options.list {
        report::list(&suite);
        return Ok(());
    }
    if !options.no_build {
        build::runtime(&[])?;
        build::tiercel()?;
    }
    suite.build()?;
    let report = Report { rows: run(&suite)?, skipped: suite.skipped, known };
    if options.json {
        report.print_json()?;
    } else {
        report.print();
    }
    match report.failures() {
        0 => Ok(()),
        failed => bail!("{failed} outcomes are not those of fixtures/conformance/known.toml"),
    }
}

fn chosen(options: &Options) -> Result<Suite> {
    let mut suite = own::odd()?;
    suite.extend(own::stress()?);
    suite.extend(glibc::suite()?);
    suite.extend(posix::suite()?);
    if let Some(part) = &options.only {
        suite.retain(|name| name.contains(part.as_str()));
    }
    if options.quick {
        let quick = list::quick()?;
        suite.retain(|name| quick.contains(name));
    }
    if suite.tests.is_empty() && suite.skipped.is_empty() {
        bail!("no test's name contains that");
    }
    Ok(suite)
}

/// Runs each test plainly, then hosted if it passed. What differs is run again, alone.
fn run(suite: &Suite) -> Result<Vec<TestRow>> {
    let rows = Mutex::new(Vec::new());
    let threads = compile::threads() * TESTS_PER_CPU;
    compile::in_parallel(&suite.tests, threads, |test| {
        let row = compare(test);
        rows.lock().expect("no thread panics").push(row);
    });
    let mut rows: Vec<TestRow> =
        rows.into_inner().expect("no thread panics").into_iter().collect::<Result<_>>()?;
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    for row in &mut rows {
        let test = suite.tests.iter().find(|test| test.name == row.name);
        confirm(row, test.expect("each row is a test's"))?;
    }
    Ok(rows)
}

fn compare(test: &Test) -> Result<TestRow> {
    let mut row = TestRow {
        name: test.name.clone(),
        plain: trial::run(test, Host::Plain)?,
        ..TestRow::default()
    };
    if row.plain != Ending::Passed {
        return Ok(row);
    }
    for host in Host::HOSTED {
        let ending = trial::run(test, host)?;
        if ending != Ending::Passed {
            row.differences.push(Difference { host, ending, again: Ending::Passed });
        }
    }
    Ok(row)
}

/// Runs again, and in other allocators, what differs.
fn confirm(row: &mut TestRow, test: &Test) -> Result<()> {
    for difference in &mut row.differences {
        difference.again = trial::run(test, difference.host)?;
    }
    if !row.differences.is_empty() {
        for host in Host::PEERS {
            row.peers.push((host, trial::run(test, host)?));
        }
    }
    Ok(())
}
