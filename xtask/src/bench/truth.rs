//! `./x bench truth`: how well Tiercel's figures agree with programs of which it is known what they
//! access. In: the patterns of `workloads/truth.c`, each recorded and run. Out: rows: error of
//! shares, what the said best tenth, quarter and half of bytes hold, how often 90% intervals hold
//! the truth, wrong first ranks that were called settled; patterns that are held out apart.
//! `--load` runs it on a busy machine. Knows nothing of how accesses are observed.
//!
//! The half that does not depend on a machine, records and samples that are made up, is in
//! `crates/ledger/tests/`.

mod score;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{build, exec};
use score::{Claim, Part, Score, score};
use tiercel_bench::BenchResult;

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
type Way = fn(&Built, &[String]) -> Result<Said>;

/// What was said of a program.
#[derive(Default)]
struct Said {
    parts: Vec<Part>,
    /// Of its sites; a profile claims nothing.
    claims: Vec<Claim>,
    is_settled: bool,
}

/// A pattern of the program.
struct Pattern {
    name: String,
    is_held_out: bool,
}

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
    let patterns = patterns(&built.program)?;
    let mut rows = Vec::new();
    let mut all: Vec<(bool, usize, Score)> = Vec::new();
    for (number, pattern) in (0..).zip(&patterns) {
        for (at, (name, way)) in WAYS.iter().enumerate() {
            let scores = scores(&built, number, ms, seeds, *way)?;
            rows.extend(rows_of(&format!("{}, {name}", pattern.name), &scores));
            all.extend(scores.into_iter().map(|score| (pattern.is_held_out, at, score)));
        }
    }
    for (at, (name, _)) in WAYS.iter().enumerate() {
        for (half, is_held_out) in [("tuned on", false), ("held out", true)] {
            let of_half = all.iter().filter(|one| (one.0, one.1) == (is_held_out, at));
            let scores: Vec<Score> = of_half.map(|one| one.2).collect();
            rows.extend(summary(&format!("{half}, {name}"), &scores));
        }
    }
    Ok(rows)
}

/// The patterns that the program knows; it lists them when it is asked for one that it does not.
fn patterns(program: &Path) -> Result<Vec<Pattern>> {
    let listed = exec::output(Command::new(program).arg("pattern=1000"))?;
    let lines = listed.lines().filter_map(|line| line.strip_prefix("pattern "));
    let pattern = |line: &str| match line.strip_suffix(" held-out") {
        Some(name) => Pattern { name: name.to_owned(), is_held_out: true },
        None => Pattern { name: line.to_owned(), is_held_out: false },
    };
    Ok(lines.map(pattern).collect())
}

fn scores(built: &Built, number: u64, ms: u64, seeds: &[u64], way: Way) -> Result<Vec<Score>> {
    let one = |seed: &u64| {
        let pattern = format!("pattern={number}");
        let arguments = [pattern, format!("ms={ms}"), format!("seed={seed}")];
        let Said { parts, claims, is_settled } = way(built, &arguments)?;
        ensure!(!parts.is_empty(), "pattern {number} printed no truth");
        Ok(score(&parts, &claims, is_settled))
    };
    seeds.iter().map(one).collect()
}

/// Figures of one pattern, or of all of a half.
fn rows_of(name: &str, scores: &[Score]) -> Vec<BenchResult> {
    let row = |what: &str, of: fn(&Score) -> f64, unit| {
        BenchResult::alone(format!("{name}: {what}"), mean(scores, of), None, unit)
    };
    let mut rows = vec![
        row("error of shares", |score| score.error, "share"),
        row("best tenth holds", |score| score.held[0], "of best"),
        row("best quarter holds", |score| score.held[1], "of best"),
        row("best half holds", |score| score.held[2], "of best"),
    ];
    let claims: f64 = scores.iter().map(|score| score.claims).sum();
    if claims > 0.0 {
        let covered: f64 = scores.iter().map(|score| score.covered).sum();
        let name = format!("{name}: intervals hold the truth");
        rows.push(BenchResult::alone(name, covered / claims, None, "of all"));
        rows.push(row("settled", |score| one_if(score.is_settled), "of runs"));
        let is_wrong = |score: &Score| one_if(score.is_first_settled && score.is_first_wrong);
        rows.push(row("first rank settled but wrong", is_wrong, "of runs"));
    }
    rows
}

fn summary(name: &str, scores: &[Score]) -> Vec<BenchResult> {
    let mut rows = rows_of(&format!("all, {name}"), scores);
    let row = |what: &str, of: fn(&Score) -> f64| {
        BenchResult::alone(format!("all, {name}: {what}"), mean(scores, of), None, "of runs")
    };
    rows.push(row("best quarter holds 0.9", |score| one_if(score.held[1] >= GOOD)));
    if scores.iter().any(|score| score.claims > 0.0) {
        let is_honest = |score: &Score| one_if(score.held[1] >= GOOD || !score.is_settled);
        rows.push(row("holds 0.9, or is not settled", is_honest));
        rows.push(row("first rank settled", |score| one_if(score.is_first_settled)));
    }
    rows
}

fn one_if(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}

fn mean(scores: &[Score], of: impl Fn(&Score) -> f64) -> f64 {
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
    let is_of = |part: &Part| is_of_site(label, site_and_range(&part.name).0);
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

/// Whether a label is that of a site: its name, then where it is.
fn is_of_site(label: &str, site: &str) -> bool {
    // Of static data it is the symbol, after which its module is named.
    let label = label.strip_prefix("static: ").unwrap_or(label);
    label.strip_prefix(site).is_some_and(|rest| !rest.starts_with(is_of_a_name))
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

// ---- Ways ---------------------------------------------------------------------------------------

fn recorded(built: &Built, arguments: &[String]) -> Result<Said> {
    let profile = built.folder.path().join("truth.profile");
    let mut record = Command::new(&built.tiercel);
    record.args(["record", "--quiet", "--sampler", SAMPLER, "-o"]).arg(&profile).arg("--");
    let mut parts = truth(&exec::output(record.arg(&built.program).args(arguments))?)?;
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
        say(&mut parts, label, range, number(&access["reads"]) + number(&access["writes"]));
    }
    Ok(Said { parts, ..Said::default() })
}

fn run(built: &Built, arguments: &[String]) -> Result<Said> {
    let report = built.folder.path().join("report.json");
    let mut run = Command::new(&built.tiercel);
    run.args(["run", "--no-learn", "--machine", "spr-cxl", "--fast", "25%", "--json"]);
    run.args(["--sampler", SAMPLER]);
    run.arg("--output").arg(&report).arg("--").arg(&built.program).args(arguments);
    let mut parts = truth(&exec::output(&mut run)?)?;
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
    let sites = report["sites"].as_array().context("no sites in the report")?;
    for site in sites {
        let (name, used) = (label(site), &site["used"]);
        let accesses = number(&used["reads"]) + number(&used["writes"]);
        for (range, share) in within(&used["within"]) {
            say(&mut parts, name, range, accesses * share);
        }
    }
    let claims = claims(&parts, sites);
    let is_settled = report["summary"]["ranking"]["settled"].as_bool().context("no ranking")?;
    Ok(Said { parts, claims, is_settled })
}

/// Ranges of a site's largest object and their shares of its accesses; all of it where the report
/// does not divide it.
fn within(said: &Value) -> Vec<(Option<(f64, f64)>, f64)> {
    let accesses: Vec<f64> =
        said["accesses"].as_array().into_iter().flatten().map(number).collect();
    let all: f64 = accesses.iter().sum();
    if all <= 0.0 {
        return vec![(None, 1.0)];
    }
    let part_bytes = number(&said["bytes"]) / accesses.len() as f64;
    let part = |(nth, accesses): (usize, &f64)| {
        let from = nth as f64 * part_bytes;
        (Some((from, from + part_bytes)), accesses / all)
    };
    accesses.iter().enumerate().map(part).collect()
}

fn label(site: &Value) -> &str {
    without_program(site["name"].as_str().unwrap_or_default())
}

/// What a report says of the sites of these parts.
fn claims(parts: &[Part], sites: &[Value]) -> Vec<Claim> {
    let mut names: Vec<&str> = parts.iter().map(|part| site_and_range(&part.name).0).collect();
    names.dedup();
    let claim = |name: &str| {
        let of = |part: &&Part| site_and_range(&part.name).0 == name;
        let mut claim = Claim { is_settled: true, ..Claim::default() };
        for part in parts.iter().filter(of) {
            claim.accesses += part.accesses;
            claim.bytes += part.bytes;
        }
        // Several rows of one site are several stacks: their intervals add up like deviations.
        let (mut share, mut below, mut above) = (0.0, 0.0f64, 0.0f64);
        for used in
            sites.iter().filter(|site| is_of_site(label(site), name)).map(|row| &row["used"])
        {
            let end = |end: &str| number(&used["share"][end]);
            share += end("of");
            below = below.hypot(end("of") - end("low"));
            above = above.hypot(end("high") - end("of"));
            let accesses = number(&used["reads"]) + number(&used["writes"]);
            claim.density += accesses / number(&used["peak_bytes"]).max(4096.0);
            claim.is_settled &= used["settled"].as_bool().unwrap_or(false);
        }
        Claim { low: share - below, high: share + above, ..claim }
    };
    names.into_iter().map(claim).collect()
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
        say(&mut parts, "static: hot_node in truth", None, 2.0);
        say(&mut parts, "elsewhere", None, 100.0);
        let said: Vec<f64> = parts.iter().map(|part| part.said).collect();
        assert_eq!(said, [4.0 + 24.0, 4.0 + 8.0, 5.0 + 2.0]);
        assert!(truth("truth hot many 1").is_err());
        let divided = serde_json::json!({"bytes": 8, "accesses": [0.0, 3.0, 1.0, 0.0]});
        assert_eq!(within(&divided)[1..3], [(Some((2.0, 4.0)), 0.75), (Some((4.0, 6.0)), 0.25)]);
        assert_eq!(within(&Value::Null), [(None, 1.0)]);
        let used = |accesses: f64, of: f64| {
            serde_json::json!({"name": "truth: hot truth.c:70", "used": {"reads": accesses,
                "writes": 0, "peak_bytes": 33554432, "settled": true,
                "share": {"of": of, "low": of - 0.03, "high": of + 0.04}}})
        };
        let claims = claims(&parts, &[used(100.0, 0.5), used(20.0, 0.1)]);
        assert_eq!((claims.len(), claims[0].accesses, claims[0].is_settled), (2, 90.0, true));
        assert!((claims[0].low - 0.5576).abs() < 1e-3 && (claims[0].high - 0.6566).abs() < 1e-3);
        assert_eq!((claims[1].low, claims[1].high, claims[1].density), (0.0, 0.0, 0.0));
        assert_eq!(without_program("truth: hot truth.c:84"), "hot truth.c:84");
    }
}
