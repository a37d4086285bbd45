//! `./x bench truth`: how well Tiercel's figures agree with programs of which it is known what they
//! access. In: the patterns of `workloads/truth.c`, each recorded and run. Out: rows: error of
//! shares, what the said best quarter of bytes holds, wrong first ranks. Nothing has a limit: the
//! rows say what is wrong today. Knows nothing of how accesses are observed.
//!
//! The half that does not depend on a machine, records and samples that are made up, is in
//! `crates/ledger/tests/`.

mod score;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::bench_result::BenchResult;
use crate::{build, exec};
use score::{Part, Score, score};

/// How long a pattern runs, milliseconds: half a tick and two and a half ticks of the daemon.
const QUICK_MS: u64 = 1000;
const FULL_MS: u64 = 5000;
/// Seeds of a full run; a quick one has the first.
const SEEDS: [u64; 3] = [1, 2, 3];
/// The sampler that every machine has.
const SAMPLER: &str = "probe";
/// What counts as good: the said best quarter holds this part of what the true best does.
const GOOD: f64 = 0.9;

/// How a pattern is observed.
const WAYS: [(&str, Way); 2] = [("record", recorded), ("run", run)];

/// Runs the command and finds what it says of each part.
type Way = fn(&Built, &[String], &mut Vec<Part>) -> Result<()>;

struct Built {
    tiercel: PathBuf,
    program: PathBuf,
    folder: tempfile::TempDir,
}

pub fn rows(quick: bool) -> Result<Vec<BenchResult>> {
    build::runtime(&[])?;
    let (tiercel, workloads) = (build::tiercel()?, build::workloads()?);
    let folder = tempfile::tempdir()?;
    let built = Built { tiercel, program: workloads.join("truth"), folder };
    let seeds = if quick { &SEEDS[..1] } else { &SEEDS[..] };
    let ms = if quick { QUICK_MS } else { FULL_MS };
    eprintln!("seeds {seeds:?}, {ms} ms each, sampler {SAMPLER}");
    let mut rows = Vec::new();
    let mut all: Vec<Vec<Score>> = vec![Vec::new(); WAYS.len()];
    for (number, pattern) in (0..).zip(patterns(&built.program)?) {
        for ((name, way), all) in WAYS.iter().zip(&mut all) {
            let scores = scores(&built, number, ms, seeds, *way)?;
            rows.extend(rows_of(&format!("{pattern}, {name}"), &scores));
            all.extend(scores);
        }
    }
    rows.extend(WAYS.iter().zip(&all).flat_map(|((name, _), scores)| summary(name, scores)));
    Ok(rows)
}

/// The patterns that the program knows; it lists them when it is asked for one that it does not.
fn patterns(program: &Path) -> Result<Vec<String>> {
    let listed = exec::output(Command::new(program).arg("pattern=1000"))?;
    let names = listed.lines().filter_map(|line| line.strip_prefix("pattern "));
    Ok(names.map(str::to_owned).collect())
}

fn scores(built: &Built, number: u64, ms: u64, seeds: &[u64], way: Way) -> Result<Vec<Score>> {
    let one = |seed: &u64| {
        let pattern = format!("pattern={number}");
        let arguments = [pattern, format!("ms={ms}"), format!("seed={seed}")];
        let mut parts = Vec::new();
        way(built, &arguments, &mut parts)?;
        ensure!(!parts.is_empty(), "pattern {number} printed no truth");
        Ok(score(&parts))
    };
    seeds.iter().map(one).collect()
}

fn rows_of(name: &str, scores: &[Score]) -> Vec<BenchResult> {
    let row = |what: &str, of: fn(&Score) -> f64, unit| {
        BenchResult::alone(format!("{name}: {what}"), mean(scores, of), None, unit)
    };
    vec![
        row("error of shares", |score| score.error, "share"),
        row("best quarter holds", |score| score.held, "of best"),
        row("wrong first", |score| f64::from(u8::from(score.is_first_wrong)), "of runs"),
    ]
}

fn summary(name: &str, scores: &[Score]) -> Vec<BenchResult> {
    let mut rows = rows_of(&format!("all, {name}"), scores);
    let good = mean(scores, |score| f64::from(u8::from(score.held >= GOOD)));
    rows.push(BenchResult::alone(format!("all, {name}: hold 0.9"), good, None, "of runs"));
    rows
}

fn mean(scores: &[Score], of: fn(&Score) -> f64) -> f64 {
    scores.iter().map(of).sum::<f64>() / scores.len().max(1) as f64
}

/// What the program prints of itself.
fn truth(printed: &str) -> Result<Vec<Part>> {
    let lines = printed.lines().filter_map(|line| line.strip_prefix("truth "));
    let part = |line: &str| {
        let mut words = line.split(' ');
        let mut next = || words.next().with_context(|| format!("no truth: {line}"));
        let (name, accesses, bytes) = (next()?.to_owned(), next()?.parse()?, next()?.parse()?);
        Ok(Part { name, accesses, bytes, said: 0.0 })
    };
    lines.map(part).collect()
}

/// The site of a part, and its range in bytes, if it is not all of the site.
fn site_and_range(name: &str) -> (&str, Option<(f64, f64)>) {
    let Some((site, range)) = name.split_once('@') else { return (name, None) };
    let mib = |text: &str| text.parse::<f64>().ok().map(|mib| mib * f64::from(1 << 20));
    let ends = range.split_once('-').and_then(|(from, to)| Some((mib(from)?, mib(to)?)));
    (site, ends)
}

/// Adds accesses that were said of a range of a site, or of all of it, to the parts they are of.
fn say(parts: &mut [Part], label: &str, range: Option<(f64, f64)>, accesses: f64) {
    let is_of = |part: &Part| {
        let site = site_and_range(&part.name).0;
        label.strip_prefix(site).is_some_and(|rest| !rest.starts_with(is_of_a_name))
    };
    let weight = |part: &Part| match (is_of(part), range, site_and_range(&part.name).1) {
        (false, _, _) => 0.0,
        (true, Some((from, to)), Some((first, end))) => (to.min(end) - from.max(first)).max(0.0),
        (true, _, _) => part.bytes,
    };
    let weights: Vec<f64> = parts.iter().map(weight).collect();
    let all: f64 = weights.iter().sum();
    for (part, weight) in parts.iter_mut().zip(weights).filter(|_| all > 0.0) {
        part.said += accesses * weight / all;
    }
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

// ---- Ways ---------------------------------------------------------------------------------------

fn recorded(built: &Built, arguments: &[String], parts: &mut Vec<Part>) -> Result<()> {
    let profile = built.folder.path().join("truth.profile");
    let mut record = Command::new(&built.tiercel);
    record.args(["record", "--quiet", "--sampler", SAMPLER, "-o"]).arg(&profile).arg("--");
    *parts = truth(&exec::output(record.arg(&built.program).args(arguments))?)?;
    let table = |name: &str| -> Result<Vec<Value>> {
        let mut export = Command::new(&built.tiercel);
        export.args(["profile", "export", "--json", "--table", name]).arg(&profile);
        Ok(serde_json::from_str(&exec::output(&mut export)?)?)
    };
    let (sites, objects) = (table("sites")?, table("objects")?);
    for access in table("accesses")? {
        let object = &objects[index(&access["object"])?];
        let label = sites[index(&object["site"])?]["label"].as_str().unwrap_or_default();
        let extent_bytes = number(&object["extent_bytes"]);
        let from = number(&access["extent"]) * extent_bytes;
        let range = (extent_bytes > 0.0).then_some((from, from + extent_bytes));
        say(parts, label, range, number(&access["reads"]) + number(&access["writes"]));
    }
    Ok(())
}

fn run(built: &Built, arguments: &[String], parts: &mut Vec<Part>) -> Result<()> {
    let report = built.folder.path().join("report.json");
    let mut run = Command::new(&built.tiercel);
    run.args(["run", "--machine", "spr-cxl", "--fast", "25%", "--sampler", SAMPLER, "--json"]);
    run.arg("--output").arg(&report).arg("--").arg(&built.program).args(arguments);
    *parts = truth(&exec::output(&mut run)?)?;
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    for site in report["sites"].as_array().context("no sites in the report")? {
        let (name, used) = (site["name"].as_str().unwrap_or_default(), &site["used"]);
        say(parts, without_program(name), None, number(&used["reads"]) + number(&used["writes"]));
    }
    Ok(())
}

/// Names of sites in reports begin with the program's.
fn without_program(name: &str) -> &str {
    name.split_once(": ").map_or(name, |(_, site)| site)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn index(value: &Value) -> Result<usize> {
    let index = value.as_u64().context("no number of a row")?;
    Ok(usize::try_from(index)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_range_or_a_site_goes_to_its_parts() {
        const MIB: f64 = 1048576.0;
        let printed = "other line\ntruth hot@0-24 10 25165824\ntruth hot@24-32 80 8388608\n\
                       truth hot_node 10 4096\n";
        let mut parts = truth(printed).expect("good lines");
        say(&mut parts, "hot truth.c:70", Some((23.0 * MIB, 25.0 * MIB)), 8.0);
        say(&mut parts, "hot", None, 32.0);
        say(&mut parts, "hot_node truth.c:90", None, 5.0);
        say(&mut parts, "elsewhere", None, 100.0);
        let said: Vec<f64> = parts.iter().map(|part| part.said).collect();
        assert_eq!(said, [4.0 + 24.0, 4.0 + 8.0, 5.0]);
        assert!(truth("truth hot many 1").is_err());
        assert_eq!(without_program("truth: hot truth.c:84"), "hot truth.c:84");
    }
}
